"""Requests for noisy answers, and the table of all permitted requests with their sensitivities.

`TABLE` lists the permitted pairs of a query and a noise distribution. The gate refuses a pair without a row. The
sensitivities in a row are for reviewers. The code uses the `sensitivity` method of the query, which the notes of the
query's class prove, and a test compares both. The sensitivities are in units in which a clipped record has norm 1, and
may depend on the number d of features.

A `Request` consists of a query, its noise distribution, the scales of the noise in grid steps, and a digest. Other
functions convert sensitivities to noise scales in grid steps, and answers from grid steps to data units.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_cube, unpack_stack, unpack_symmetric
from dpca_tasks.noise.distributions import MAX_NOISE_STEPS, JointGaussian, NoiseDistribution
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.poisson_sampled import SampledPasses

type Bound = float | Callable[[int], float] | None

_ROOT_2, _ROOT_3 = math.sqrt(2.0), math.sqrt(3.0)


class Row(NamedTuple):
    """A permitted query with its noise distributions, and its proved sensitivity for each neighboring relation.

    A sensitivity is None if the query refuses the relation.
    """

    query: str  # the name and the version of the query
    distributions: tuple[str, ...]
    norm: str
    add_remove: Bound
    zero_out: Bound
    replace_one: Bound
    is_sharp: bool = True  # False if the stated number is only an upper bound of the query's sensitivity
    per_zeta: bool = False  # True if the sensitivity is for all answers of a stream, in units of `zeta`


_FROBENIUS = ("Symmetric", "UpperTriangle")
_CUBES = ("Cube", "CubeRadial", "CubeShare")
_DRAWN = ("Peeling", "GibbsChain")
_DISCLOSED = ("NoneType",)

_SUMS = (
    Row("second_moment 1", _FROBENIUS, "l2", 1.0, 1.0, _ROOT_2),
    Row("second_moment 1", ("SymmetricLaplace",), "l1", lambda d: (d + 1) / 2, lambda d: (d + 1) / 2, lambda d: d + 1),
    Row("moment_product 1", ("Gaussian",), "l2", 1.0, 1.0, 2.0),
    Row("replaced_product 1", ("Gaussian",), "l2", 1.0, 1.0, 2.0, is_sharp=False),
    Row("record_mean 1", ("Gaussian",), "l2", 0.5, 0.5, _ROOT_3 / 2),
    Row(
        "record_mean 1",
        ("Laplace",),
        "l1",
        lambda d: (math.sqrt(3 * d) + 1) / 4,
        lambda d: (math.sqrt(3 * d) + 1) / 4,
        lambda d: max(math.sqrt(3 * d) / 2, 7 / 8),
    ),
)
"""Sums over all records that are also permitted over a Poisson sample of the records."""

_MOMENTS = tuple(
    row
    for kind, emptied in (
        ("second_moment 1", 1.0),
        ("centred_moment 1", math.sqrt(21.0) / 4),
    )
    for row in (
        Row(kind, ("WishartDifference",), "nuclear", 1.0, emptied, 2.0),
        Row(kind, _DRAWN, "scores", 1.0, emptied, 2.0),
        Row(kind, _DISCLOSED, "none", math.inf, math.inf, math.inf),
    )
)

_CENTRED = (
    Row("centred_moment 1", _FROBENIUS, "l2", 1.0, 1.0, _ROOT_2),
    Row("centred_moment 1", ("SymmetricLaplace",), "l1", lambda d: (d + 2) / 2, lambda d: (d + 2) / 2, lambda d: d + 2),
)

_SHARED = (
    Row("second_moment 1", ("SymmetricShare",), "l2", 1.0, 1.0, _ROOT_2),
    Row("moment_product 1", ("VectorShare",), "l2", 1.0, 1.0, 2.0),
    Row("replaced_product 1", ("VectorShare",), "l2", 1.0, 1.0, 2.0, is_sharp=False),
    Row("clipped_product 1", ("VectorShare",), "l2", 1.0, 1.0, 2.0, is_sharp=False),
)
"""Sums over several sites, each of which adds a part of the noise; a record's contribution has norm at most 1."""

_TENSORS = (
    Row("second_moment 1", ("SymmetricRadial",), "l2", 1.0, 1.0, _ROOT_2),
    Row("word_pairs 1", (*_FROBENIUS, "SymmetricRadial", "SymmetricShare"), "l2", 1.0, 1.0, _ROOT_2),
    Row("word_triples 1", _CUBES, "l2", 1.0, 1.0, 2.0, is_sharp=False),
    Row("point_triples 1", _CUBES, "l2", 1.0, 1.0, 2.0, is_sharp=False),
    *(
        Row(kind, _DISCLOSED, "none", math.inf, math.inf, math.inf)
        for kind in ("word_pairs 1", "word_triples 1", "point_triples 1")
    ),
)
"""Second moments of documents and points, and third moments along a few directions, for tensor mechanisms."""

_AROUND = "mapped_moment 1 around a mean"
_STREAMED = tuple(
    Row(
        f"streamed_moment 1 of {kind}{signs}",
        *(("Symmetric",), "l2", 1.0, replaced if kind == _AROUND else 1.0, replaced, not signs),
        per_zeta=True,
    )
    for kind in ("second_moment 1", "centred_moment 1", "mapped_moment 1", _AROUND)
    for signs, replaced in (("", _ROOT_2), (" with signs", 2.0))
)
"""Answers of streams (sums with weights by age). With negative weights, `replace_one` is only an upper bound."""

TABLE = (
    *_SUMS,
    *(row._replace(query=f"sampled {row.query}", replace_one=row.zero_out) for row in _SUMS),
    *_MOMENTS,
    *_CENTRED,
    *_SHARED,
    *_TENSORS,
    *_STREAMED,
    Row("shifted_moment 1", _DRAWN, "scores", 1.0, 2.0, 2.0),
    Row("mapped_moment 1", ("Symmetric", "SymmetricShare"), "l2", 1.0, 1.0, _ROOT_2),
    Row("mapped_moment 1 around a mean", ("Symmetric",), "l2", 1.0, _ROOT_2, _ROOT_2),
    Row("clipped_product 1", ("Gaussian",), "l2", 1.0, 1.0, 2.0, is_sharp=False),
    Row("norm_histogram 1", ("Gaussian",), "l2", 1.0, 1.0, _ROOT_2),
    Row("norm_histogram 1", ("Laplace",), "l1", 1.0, 1.0, 2.0),
    Row("rejected_records 1", ("Gaussian",), "l2", 1.0, _ROOT_2, _ROOT_2),
    Row("rejected_records 1", ("Laplace",), "l1", 1.0, 2.0, 2.0),
    Row("captured_energies 1", ("Gaussian",), "l2", 1.0, 1.0, _ROOT_2),
    Row("captured_energies 1", ("Laplace",), "l1", 1.0, 1.0, 2.0),
    Row("captured_energies 1 around a mean", ("Gaussian",), "l2", 1.0, _ROOT_2, _ROOT_2),
    Row("captured_energies 1 around a mean", ("Laplace",), "l1", 1.0, 2.0, 2.0),
    Row("locally_noised 1 of second_moment 1", ("Symmetric",), "l2", None, _ROOT_2, _ROOT_2),
    Row("locally_noised 1 of centred_moment 1", ("Symmetric",), "l2", None, _ROOT_2, _ROOT_2),
    Row("user_means 1", ("JointGaussian",), "joint", 1.0, 1.0, 1.0),
    Row("item_totals 1", ("JointGaussian",), "joint", 1.0, 1.0, 1.0),
    Row("prediction_scores 1", ("JointGaussian",), "joint", 1.0, 1.0, 1.0),
    Row("prediction_scores 1", _DISCLOSED, "none", math.inf, math.inf, math.inf),
    Row("item_totals 1", _DISCLOSED, "none", math.inf, math.inf, math.inf),
    Row("item_statistics 1", _DISCLOSED, "none", math.inf, math.inf, math.inf),
    Row("rating_moment 1", ("JointGaussian",), "joint", 1.0, 1.0, 1.0),
    Row("item_statistics 1", ("JointGaussian",), "joint", 1.0, 1.0, 1.0),
    Row("Eigensolver 1", ("SmoothNoise", "ProposedGap"), "eigengap", 1.0, 1.0, 2.0),
    Row("Eigensolver 1 around a mean", ("SmoothNoise", "ProposedGap"), "eigengap", 1.0, 2.0, 2.0),
)
"""All permitted pairs of a query and its noise distributions."""

WITHOUT_ROW = ("exact_product", "unrounded_product")
"""Queries that are used only inside the trust boundary: their sums are never published, with or without noise."""

_ROWS = {(row.query, name): row for row in TABLE for name in row.distributions}


class TableQuery(Protocol):
    """The attributes of a query by which a row of the table is found."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102


class Named(Protocol):
    """The attributes of a noise distribution by which a row of the table is found."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def norm(self) -> str: ...  # noqa: D102


def check_row(query: TableQuery, distribution: Named) -> None:
    """Raise `InvalidInput` if the table states no proved sensitivity of the query for the noise distribution."""
    row = _ROWS.get((query.kind, distribution.name))
    if row is None or row.norm != distribution.norm or getattr(row, query.relation) is None:
        others = sorted(name for kind, name in _ROWS if kind == query.kind and name not in _DISCLOSED)
        raise InvalidInput(
            f"no sensitivity of the statistic {query.kind} is proved for {distribution.name} noise; "
            f"use {' or '.join(others) or 'another statistic'}."
        )


class PublicQuery(TableQuery, Protocol):
    """The part of a query's interface that the gate uses, before it releases an answer."""

    def event_of(self, noise: Event, /) -> Event: ...  # noqa: D102
    def public_inputs(self) -> dict[str, NDArray[Any]]: ...  # noqa: D102
    def with_inputs(self, arrays: Mapping[str, NDArray[Any]], /) -> Self: ...  # noqa: D102
    def digest(self) -> bytes: ...  # noqa: D102


class Drawn(Named, Protocol):
    """The part of the interface of a noise distribution, or of a randomised mechanism, that the gate uses."""

    @property
    def event(self) -> Event: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Request[Q: PublicQuery, L: Drawn]:
    """An admitted request for an answer with noise.

    ``step`` is the first of the ``steps`` charged steps that the request answers. ``numbers`` determine the noise; the
    first is the scale. ``digest`` is a hash of everything that determines the answer except the key.
    """

    step: int
    steps: int
    query: Q
    distribution: L
    numbers: tuple[float, ...]
    digest: bytes


def make_request[Q: PublicQuery, L: Drawn](
    query: Q,
    distribution: L,
    *,
    numbers: Callable[[Q, L], tuple[float, ...]],
    content: str,
    step: int,
    steps: int,
    bound_to: bytes = b"",
) -> Request[Q, L]:
    """Return the request for a query with noise in a step, with its digest.

    ``content`` is the digest of the rows in hexadecimal form, and ``numbers`` computes the numbers of the noise.
    """
    found = numbers(query, distribution)
    digest = hash_request(content, step, query, distribution, found, bound_to=bound_to)
    return Request(step=step, steps=steps, query=query, distribution=distribution, numbers=found, digest=digest)


def hash_request(
    content: str,
    step: int,
    query: PublicQuery,
    distribution: Drawn,
    numbers: tuple[float, ...],
    *,
    bound_to: bytes = b"",
) -> bytes:
    """Hash everything that determines the answer to a request, except the key.

    The parts are the digest of the rows, the step, the query, the noise distribution and its numbers. ``bound_to`` is
    hashed too, if the answer depends on other facts, such as a roster of sites.
    """
    hasher = hashlib.sha256()
    for part in (
        bytes.fromhex(content),
        step.to_bytes(8, "little"),
        query.digest(),
        distribution.name.encode(),
        *(float(number).hex().encode() for number in numbers),
        *((b"bound to", bound_to) if bound_to else ()),
    ):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def scale_in_steps(query: RowSum | SampledPasses, distribution: NoiseDistribution) -> tuple[float]:
    """Return the scale of a noisy sum's noise in grid steps, rounded up, as a tuple of one number."""
    scale = math.nextafter(distribution.noise_multiplier * query.sensitivity(distribution.norm), math.inf)
    scale *= query.steps_per_unit
    if not 0 < scale <= MAX_NOISE_STEPS:
        raise InvalidInput(
            f"the noise scale of {scale:.3g} grid steps must be positive and at most 2^28; use a coarser grid."
        )
    return (scale,)


def part_scales_in_steps(query: JointSum, distribution: JointGaussian) -> tuple[float, ...]:
    """Return the noise scale of each part of a joint statistic, in the grid steps of the part, rounded up."""
    scales = tuple(
        math.nextafter(distribution.noise_multiplier * part.scale, math.inf) * part.steps_per_unit
        for part in query.parts.values()
    )
    for name, scale in zip(query.parts, scales, strict=True):
        if not 0 < scale <= MAX_NOISE_STEPS:
            raise InvalidInput(
                f"the noise scale of {scale:.3g} grid steps in part {name} must be positive and at most 2^28; use "
                "another grid for this part."
            )
    return scales


def part_in_data_units(answer: NDArray[np.int64], part: Part) -> NDArray[np.float64]:
    """Convert a part of a joint statistic from grid steps to data units.

    A symmetric part is unpacked to a full matrix or tensor.
    """
    return _unpacked(answer, part.unit / part.steps_per_unit, part.layout)


def in_data_units(answer: NDArray[np.int64], query: RowSum) -> NDArray[np.float64]:
    """Convert the packed answer to a query from grid steps to data units.

    A symmetric answer is unpacked to a full matrix or tensor.
    """
    return _unpacked(answer, query.unit / query.steps_per_unit, query.layout)


def _unpacked(answer: NDArray[np.int64], step: float, layout: Layout) -> NDArray[np.float64]:
    numbers = answer.astype(np.float64)
    numbers *= step  # the number of steps per unit is a power of two, so nothing is rounded twice
    if layout.kind == "stack":
        return unpack_stack(numbers, layout.order)
    if layout.kind == "cube":
        return unpack_cube(numbers, layout.order)
    return unpack_symmetric(numbers, layout.order) if layout.kind == "symmetric" else numbers
