"""The one shape of every query: a sum over records of a bounded integer contribution.

A query is public. It carries everything that determines the statistic except the rows: the clip norm, the
grid, the neighbouring relation, public arrays. `map` takes one `RowBlock` and returns the block's integer
total; its docstring proves the sensitivity. Totals of blocks add up exactly, so the sum has the proved
sensitivity as a program.
"""

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_symmetric
from dpca_tasks.queries.step_secrets import StepSecrets
from dpca_tasks.records.blocks import Block, RowBlock
from dpca_tasks.records.gridding import RECORDS_VERSION, grid_block

Norm = Literal["l1", "l2", "nuclear", "scores", "joint"]
"""Of how far one record moves a sum S. ``scores`` is the length of the interval, with 0 in it, within which it moves
``tr(V^T S V)`` for every V of orthonormal columns at once: at most the nuclear norm. ``joint`` is l2 of a statistic of
several parts, each divided as `dpca_tasks.queries.joint_sum` states."""

_SHARED = ("n_features", "clip_norm", "relation", "bits")
"""What a query has in common with those that are built from it."""

MAX_STEP_BITS = 28
SQRT_2_UP = math.nextafter(math.sqrt(2.0), math.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSum(ABC):
    """A bounded sum over records.

    Parameters
    ----------
    n_features : int
        Declared number of columns d.
    clip_norm : float, data units
        Bound C on a record's Frobenius norm; larger records are scaled down to it.
    relation : {"add_remove", "zero_out", "replace_one"}
        What a neighbouring dataset is; sensitivities are stated in it.
    bits : int
        Records lie on a grid of step ``2^-bits`` in units of the clip norm.
    """

    n_features: int
    clip_norm: float
    relation: Relation
    bits: int

    name: ClassVar[str]
    """The name in digests, whatever the class is called: it never changes."""
    version: ClassVar[int]
    degree: ClassVar[int]

    def __post_init__(self) -> None:
        """Check the public parameters that every query shares."""
        if not 1e-100 <= self.clip_norm <= 1e100:  # so that its third power is a normal number
            raise InvalidInput(
                f"clip_norm={self.clip_norm!r} must be positive, between 1e-100 and 1e100; "
                "choose it from public knowledge of row norms."
            )
        if self.n_features < 1:
            raise InvalidInput(f"n_features={self.n_features} must be at least 1; declare the columns of the data.")
        if self.relation not in get_args(Relation):
            raise InvalidInput(f"relation={self.relation!r} must be one of {', '.join(get_args(Relation))}.")
        if not 0 <= self.degree * self.bits <= MAX_STEP_BITS:
            raise InvalidInput(
                f"bits={self.bits} must give a grid of at most 2^{MAX_STEP_BITS} steps in one unit of the output; "
                f"use at most {MAX_STEP_BITS // max(self.degree, 1)}."
            )
        for field in dataclasses.fields(self):
            inner = getattr(self, field.name)
            if isinstance(inner, RowSum) and (differ := [name for name in _SHARED if _differ(self, inner, name)]):
                raise InvalidInput(
                    f"{self.name} and the {inner.name} in it differ in {', '.join(differ)}; both must be of the same "
                    "records, on one grid and in one relation: give them the same."
                )

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How the coordinates are packed."""

    @abstractmethod
    def sensitivity(self, norm: Norm) -> float:
        """Bound how far one record moves the sum, in units where a clipped record has norm 1."""

    @abstractmethod
    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the block's packed total in grid steps."""

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add what `map` returns to a running total, without an array of that size where the query knows how."""
        total += self.map(block)

    @property
    def steps_per_unit(self) -> int:
        """Grid steps in one unit of the output (G of the design)."""
        return int(2 ** (self.degree * self.bits))

    @property
    def unit(self) -> float:
        """One unit of the output in data units."""
        return self.clip_norm**self.degree

    @property
    def kind(self) -> str:
        """Name and version: by which `dpca_tasks.privacy.sensitivities` finds the query."""
        return f"{self.name} {self.version}"

    @property
    def noises_itself(self) -> bool:
        """Whether what `map` returns has its noise already."""
        return False

    def with_secrets(self, secrets: StepSecrets) -> "RowSum":
        """Return the query with the coins or the noise that it takes, if it takes any: the curator alone has them."""
        return self

    @property
    def plain(self) -> "RowSum":
        """The sum without coins or noise of the query's own: of every record, as it is."""
        return self

    def event_of(self, noise: Event) -> Event:
        """Return what an answer does whose noise has an event: that event, unless the query samples."""
        return noise

    def grid(self, block: Block) -> RowBlock:
        """Clip a stored block's records and put them on this query's grid."""
        return grid_block(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def select(self, rows: RowBlock) -> RowBlock:
        """Return those of the rows on the grid of `plain` that enter this sum: `grid` of the same block."""
        return rows

    def matrix(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the matrix S of a symmetric sum, by which directions are scored, in units of `unit`."""
        return unpack_symmetric(total / self.steps_per_unit, self.layout.order)

    def former(self) -> "Iterator[RowSum]":
        """Iterate over the forms in which an earlier version asked this.

        A step that was kept in one of them is read as it was asked; no new step is asked in one of them.
        """
        return iter(())

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays that the query was built with, by field name."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if isinstance(value, np.ndarray)}

    def digest(self) -> bytes:
        """Hash all that determines the statistic but the rows; length-prefixed, so that nothing slides."""
        hasher = hashlib.sha256()
        parts: list[tuple[str, str | bytes]] = [("query", self.name), ("version", f"{self.version} {RECORDS_VERSION}")]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                parts.append((field.name, f"{value.dtype.str}{value.shape}"))
                parts.append((field.name, np.ascontiguousarray(value).tobytes()))
            elif isinstance(value, RowSum):
                parts.append((field.name, value.digest()))
            else:
                parts.append((field.name, value.hex() if isinstance(value, float) else repr(value)))
        for label, content in parts:
            for piece in (label.encode(), content.encode() if isinstance(content, str) else content):
                hasher.update(len(piece).to_bytes(8, "little"))
                hasher.update(piece)
        return hasher.digest()


def _differ(one: RowSum, other: RowSum, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))
