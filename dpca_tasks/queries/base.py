"""The base class of all queries; a query is a sum over records of bounded integer contributions.

A query object is public. It contains everything that determines the statistic except the private rows: the clip norm,
the integer grid, the neighbouring relation and public arrays. The method `RowSum.map` returns the integer total of one
`RowBlock`. The Notes section of each query class proves the sensitivity. Totals of blocks are integers and add up
exactly, so the proof holds for the program and not only for real numbers. Secret keys, for sampling and for noise, are
passed to a query only through `RowSum.with_secrets`.
"""

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_symmetric
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.records.blocks import RECORDS_VERSION, Block, RowBlock, grid_block


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSecrets:
    """The secrets that a query may use in one step of a release; they appear in no repr and no digest.

    Parameters
    ----------
    release_coins : SecretKey
        The key of random choices (coins) that are the same in all steps of a release.
    step_coins : SecretKey
        The key of random choices (coins) that are fresh for every step.
    noise : SecretKey
        The key from which the noise of this step is drawn.
    noise_scale : float, grid steps
        The scale of the noise of this step.
    """

    release_coins: SecretKey = field(repr=False)
    step_coins: SecretKey = field(repr=False)
    noise: SecretKey = field(repr=False)
    noise_scale: float


Norm = Literal["l1", "l2", "nuclear", "scores", "joint"]
"""Norm in which the change of a sum S by one record is bounded. ``scores`` is the length of an interval that
contains 0 and the change of ``tr(V^T S V)``, for every V with orthonormal columns. It is at most the nuclear norm.
``joint`` is the l2 norm of a statistic of several parts, each divided as `dpca_tasks.queries.joint_sum` states."""

_SHARED = ("n_features", "clip_norm", "relation", "bits")
"""Fields that must have equal values in a query and in a query that it contains."""

MAX_STEP_BITS = 28
SQRT_2_UP = math.nextafter(math.sqrt(2.0), math.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSum(ABC):
    """The base class of queries: a sum over records, where the contribution of each record is bounded.

    Parameters
    ----------
    n_features : int
        Declared number of columns d.
    clip_norm : float, data units
        Bound C on the Frobenius norm of a record, which is all rows of one individual. Larger records are scaled down
        to norm C.
    relation : {"add_remove", "zero_out", "replace_one"}
        The neighbouring relation for which `sensitivity` is stated.
    bits : int
        Records are rounded to a grid of step ``2^-bits``, in units of the clip norm.
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
        if not 1e-100 <= self.clip_norm <= 1e100:  # within this range, clip_norm^3 neither overflows nor underflows
            raise InvalidInput(
                f"clip_norm={self.clip_norm!r} must be positive, between 1e-100 and 1e100; "
                "choose it from public knowledge of row norms."
            )
        if self.n_features < 1:
            raise InvalidInput(f"n_features={self.n_features} must be at least 1; declare the columns of the data.")
        if self.relation not in get_args(Relation):
            raise InvalidInput(f"relation={self.relation!r} must be one of {', '.join(get_args(Relation))}; pass one.")
        if not 0 <= self.degree * self.bits <= MAX_STEP_BITS:
            raise InvalidInput(
                f"bits={self.bits} is not allowed: one unit of the output must have from 1 to 2^{MAX_STEP_BITS} grid "
                f"steps; use bits from 0 to {MAX_STEP_BITS // max(self.degree, 1)}."
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
        """The layout of the statistic: the kind and number of its packed coordinates."""

    @abstractmethod
    def sensitivity(self, norm: Norm) -> float:
        """Return a bound on the change of the sum by one record, in the given norm.

        The bound is in units of the output (`unit`).
        """

    @abstractmethod
    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the contributions of a block's records to a packed total, in grid steps."""

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the packed total of the contributions of a block's records, in grid steps."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total

    @property
    def steps_per_unit(self) -> int:
        """The number of grid steps in one unit of the output."""
        return int(2 ** (self.degree * self.bits))

    @property
    def unit(self) -> float:
        """The size of one unit of the output, in data units."""
        return self.clip_norm**self.degree

    @property
    def record_bits(self) -> int:
        """The bits of the grid to which the method `grid` rounds records; differs from `bits` if `map` rounds again."""
        return self.bits

    @property
    def kind(self) -> str:
        """The key of this query in the table of sensitivities in `dpca_tasks.privacy.request`: name and version."""
        return f"{self.name} {self.version}"

    @property
    def noises_itself(self) -> bool:
        """True if `map` itself adds the noise of the release, so that no noise is added to the sum later."""
        return False

    def with_secrets(self, secrets: StepSecrets) -> "RowSum":
        """Return the query with the secret keys that it needs, if any; only the curator has the keys and calls this."""
        return self

    @property
    def plain(self) -> "RowSum":
        """The query that sums the same contributions over all records, without sampling and without noise."""
        return self

    def event_of(self, noise: Event) -> Event:
        """Return the DP event of a noisy answer; equals the event of the noise unless the query samples records."""
        return noise

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block and round them to the integer grid of this query."""
        return grid_block(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.record_bits)

    def select(self, rows: RowBlock) -> RowBlock:
        """Return the rows that `grid` returns, computed from the rows that `grid` of `plain` returned for the block."""
        return rows

    def matrix(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return a symmetric sum as a full matrix in units of the output, given its packed total in grid steps."""
        return unpack_symmetric(total / self.steps_per_unit, self.layout.order)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays among the fields of the query, by field name."""
        pairs = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: value for name, value in pairs if isinstance(value, np.ndarray)}

    def with_inputs(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the query with other public arrays, given as by `public_inputs`."""
        return dataclasses.replace(self, **arrays)  # type: ignore[arg-type]

    def digest(self) -> bytes:
        """Return a hash of everything that determines the statistic except the private rows.

        Each hashed part is preceded by its length, so two different queries never hash the same bytes.
        """
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
