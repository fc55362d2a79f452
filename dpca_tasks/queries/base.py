"""The interface of every query, a sum over records of a bounded integer contribution.

A query is public. It contains everything that determines the statistic except the rows: the clip norm, the grid, the
neighbouring relation, public arrays. `map` takes one `RowBlock` and returns its integer total; the class notes prove
the sensitivity. Totals of blocks add up exactly, so the program itself has the proved sensitivity. A query gets the
keys of one step's coins and noise through `RowSum.with_secrets` only.
"""

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_symmetric
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.records.blocks import RECORDS_VERSION, Block, RowBlock, grid_block


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSecrets:
    """The secrets of a step that a query may use; no repr and no digest contains them.

    Parameters
    ----------
    release_coins : SecretKey
        The key of coins that all steps of a release share.
    step_coins : SecretKey
        The key of coins that are fresh for every step.
    noise : SecretKey
        The key of this request's noise.
    noise_scale : float, grid steps
        The scale of the noise of this request.
    """

    release_coins: SecretKey = field(repr=False)
    step_coins: SecretKey = field(repr=False)
    noise: SecretKey = field(repr=False)
    noise_scale: float


Norm = Literal["l1", "l2", "nuclear", "scores", "joint"]
"""Norm in which the change of a sum S by one record is bounded. ``scores`` is the length of an interval that
contains 0 and the change of ``tr(V^T S V)`` for every V with orthonormal columns; it is at most the nuclear norm.
``joint`` is the l2 norm of a statistic of several parts, each divided as `dpca_tasks.queries.joint_sum` states."""

_SHARED = ("n_features", "clip_norm", "relation", "bits")
"""Fields in which a query must agree with the queries that contain it."""

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
        The neighbouring relation for which sensitivities are stated.
    bits : int
        Records are on a grid of step ``2^-bits`` in units of the clip norm.
    """

    n_features: int
    clip_norm: float
    relation: Relation
    bits: int

    name: ClassVar[str]
    """The name in digests. It never changes, even if the class is renamed."""
    version: ClassVar[int]
    degree: ClassVar[int]

    def __post_init__(self) -> None:
        """Check the public parameters that all queries share."""
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
        for each in dataclasses.fields(self):
            inner = getattr(self, each.name)
            if isinstance(inner, RowSum) and (differ := [name for name in _SHARED if _differ(self, inner, name)]):
                raise InvalidInput(
                    f"{self.name} and the {inner.name} in it differ in {', '.join(differ)}; both must have the same "
                    "records, grid and relation: pass equal values."
                )

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The packing of the coordinates."""

    @abstractmethod
    def sensitivity(self, norm: Norm) -> float:
        """Bound the change of the sum by one record, in units in which a clipped record has norm 1."""

    @abstractmethod
    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add a block to a packed total in grid steps."""

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the packed total of a block in grid steps."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total

    @property
    def steps_per_unit(self) -> int:
        """The number of grid steps in one unit of the output."""
        return int(2 ** (self.degree * self.bits))

    @property
    def unit(self) -> float:
        """One unit of the output in data units."""
        return self.clip_norm**self.degree

    @property
    def record_bits(self) -> int:
        """The bits of the grid to which `grid` rounds records; `bits` unless `map` rounds them again."""
        return self.bits

    @property
    def kind(self) -> str:
        """The key in the table of `dpca_tasks.privacy.request`: name and version."""
        return f"{self.name} {self.version}"

    @property
    def noises_itself(self) -> bool:
        """True if `map` adds the noise."""
        return False

    def with_secrets(self, secrets: StepSecrets) -> "RowSum":
        """Return the query with the secret coins or noise key that it needs, if any; only the curator has them."""
        return self

    @property
    def plain(self) -> "RowSum":
        """The same sum over all records, without sampling and without noise."""
        return self

    def event_of(self, noise: Event) -> Event:
        """Return the event of an answer, which is the event of its noise unless the query samples."""
        return noise

    def grid(self, block: Block) -> RowBlock:
        """Clip a stored block's records and convert them to the grid of this query."""
        return grid_block(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.record_bits)

    def select(self, rows: RowBlock) -> RowBlock:
        """Return `grid` of a block, computed from the rows of the same block on the grid of `plain`."""
        return rows

    def matrix(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the matrix S of a symmetric sum, used to score directions, in units of `unit`."""
        return unpack_symmetric(total / self.steps_per_unit, self.layout.order)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays of the query by field name."""
        pairs = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: value for name, value in pairs if isinstance(value, np.ndarray)}

    def digest(self) -> bytes:
        """Hash everything that determines the statistic except the rows, with length prefixes against ambiguity."""
        hasher = hashlib.sha256()
        parts: list[tuple[str, str | bytes]] = [("query", self.name), ("version", f"{self.version} {RECORDS_VERSION}")]
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                parts.append((each.name, f"{value.dtype.str}{value.shape}"))
                parts.append((each.name, np.ascontiguousarray(value).tobytes()))
            elif isinstance(value, RowSum):
                parts.append((each.name, value.digest()))
            else:
                parts.append((each.name, value.hex() if isinstance(value, float) else repr(value)))
        for label, content in parts:
            for piece in (label.encode(), content.encode() if isinstance(content, str) else content):
                hasher.update(len(piece).to_bytes(8, "little"))
                hasher.update(piece)
        return hasher.digest()


def _differ(one: RowSum, other: RowSum, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))
