"""The closed table of permitted pairs of query and noise distribution, with their sensitivities.

The gate refuses a pair that has no row. The numbers of a row are stated here for reviewers; the code computes with the
query's own `sensitivity`, which its class notes prove, and a test compares the two. The numbers are in units in which a
clipped record has norm 1, for d features.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput

type Bound = float | Callable[[int], float] | None

_ROOT_2, _ROOT_3 = math.sqrt(2.0), math.sqrt(3.0)


class Row(NamedTuple):
    """The proved sensitivity for each relation; None where the query refuses the relation."""

    query: str  # name and version
    distributions: tuple[str, ...]
    norm: str
    add_remove: Bound
    zero_out: Bound
    replace_one: Bound
    is_sharp: bool = True  # if not, the query may state less than this, depending on its grid
    per_zeta: bool = False  # if so, in units of the query's `zeta`, and of all ticks of a stream together


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
"""Sums with additive noise that may also be taken over a Poisson sample."""

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
"""Sums of which several sites add up noised shares; one record's contribution has norm at most one unit."""

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
"""Moments of documents and points, of which components are found; third moments along a few directions."""

_STREAMED = tuple(
    Row(f"streamed_moment 1 of {kind}{signs}", ("Symmetric",), "l2", 1.0, 1.0, replaced, not signs, per_zeta=True)
    for kind in ("second_moment 1", "centred_moment 1")
    for signs, replaced in (("", _ROOT_2), (" with signs", 2.0))
)
"""Ticks of a stream; where weights have signs, replacing a record moves a stream by less than is stated here."""

TABLE = (
    *_SUMS,
    *(row._replace(query=f"sampled {row.query}", replace_one=row.zero_out) for row in _SUMS),
    *_MOMENTS,
    *_CENTRED,
    *_SHARED,
    *_TENSORS,
    *_STREAMED,
    Row("shifted_moment 1", _DRAWN, "scores", 1.0, 2.0, 2.0),
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
"""Every permitted pair."""

WITHOUT_ROW = ("exact_product", "unrounded_product")
"""Queries that are summed inside the boundary only: their sums never leave, with or without noise of their own."""

_ROWS = {(row.query, name): row for row in TABLE for name in row.distributions}


class Stated(Protocol):
    """The interface of a query that the table uses."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102


class Named(Protocol):
    """The interface of a noise distribution that the table uses."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def norm(self) -> str: ...  # noqa: D102


def check_row(query: Stated, distribution: Named) -> None:
    """Refuse a query under a noise distribution for which no sensitivity is proved."""
    row = _ROWS.get((query.kind, distribution.name))
    if row is None or row.norm != distribution.norm or getattr(row, query.relation) is None:
        others = sorted(name for kind, name in _ROWS if kind == query.kind and name not in _DISCLOSED)
        raise InvalidInput(
            f"no sensitivity of the statistic {query.kind} is proved for {distribution.name} noise; "
            f"use {' or '.join(others) or 'another statistic'}."
        )
