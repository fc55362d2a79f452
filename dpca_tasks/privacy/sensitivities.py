"""The closed table of what may be asked under which noise, and how far one record moves it.

The gate refuses a pair of query and distribution that has no row. A row's numbers are stated here for whoever checks
them; what is computed with is the query's own `sensitivity`, whose class notes prove it, and a test compares the two.
They are in units in which a clipped record has norm 1, for d features.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput

type Bound = float | Callable[[int], float] | None

_ROOT_2, _ROOT_3 = math.sqrt(2.0), math.sqrt(3.0)


class Row(NamedTuple):
    """A proved sensitivity by relation; None where the query refuses the relation."""

    query: str  # name and version
    distributions: tuple[str, ...]
    norm: str
    add_remove: Bound
    zero_out: Bound
    replace_one: Bound
    is_sharp: bool = True  # else the query may state less than this, by its grid


_FROBENIUS = ("Symmetric", "UpperTriangle")
_DRAWN = ("Peeling", "GibbsChain")
_DISCLOSED = ("NoneType",)

_SUMS = (
    Row("second_moment 1", _FROBENIUS, "l2", 1.0, 1.0, _ROOT_2),
    Row("second_moment 1", ("SymmetricLaplace",), "l1", lambda d: (d + 1) / 2, lambda d: (d + 1) / 2, lambda d: d + 1),
    Row("moment_product 1", ("Gaussian",), "l2", 1.0, 1.0, 2.0),
    Row("replaced_product 1", ("Gaussian",), "l2", 1.0, 1.0, 2.0, is_sharp=False),
    Row("record_mean 2", ("Gaussian",), "l2", 0.5, 0.5, _ROOT_3 / 2),
    Row(
        "record_mean 2",
        ("Laplace",),
        "l1",
        lambda d: (math.sqrt(3 * d) + 1) / 4,
        lambda d: (math.sqrt(3 * d) + 1) / 4,
        lambda d: max(math.sqrt(3 * d) / 2, 7 / 8),
    ),
)
"""Additive noise on sums that may also be of a Poisson sample."""

_MOMENTS = tuple(
    row
    for kind, emptied in (
        ("second_moment 1", 1.0),
        ("centred_moment 1", math.sqrt(21.0) / 4),
        ("centred_moment 2", math.sqrt(21.0) / 4),
    )
    for row in (
        Row(kind, ("WishartDifference",), "nuclear", 1.0, emptied, 2.0),
        Row(kind, _DRAWN, "scores", 1.0, emptied, 2.0),
        Row(kind, _DISCLOSED, "none", math.inf, math.inf, math.inf),
    )
)

_CENTRED = tuple(
    row
    for kind in ("centred_moment 1", "centred_moment 2")
    for row in (
        Row(kind, _FROBENIUS, "l2", 1.0, 1.0, _ROOT_2),
        Row(kind, ("SymmetricLaplace",), "l1", lambda d: (d + 2) / 2, lambda d: (d + 2) / 2, lambda d: d + 2),
    )
)

TABLE = (
    *_SUMS,
    *(row._replace(query=f"sampled {row.query}", replace_one=row.zero_out) for row in _SUMS),
    *_MOMENTS,
    *_CENTRED,
    Row("shifted_moment 1", _DRAWN, "scores", 1.0, 2.0, 2.0),
    Row("record_mean 1", ("Gaussian",), "l2", 0.5, 0.5, 1.0),
    Row(
        "record_mean 1",
        ("Laplace",),
        "l1",
        lambda d: (math.sqrt(3 * d) + 1) / 4,
        lambda d: (math.sqrt(3 * d) + 1) / 4,
        lambda d: (2 * math.sqrt(3 * d) + 1) / 4,
    ),
    Row("norm_histogram 1", ("Gaussian",), "l2", 1.0, 1.0, _ROOT_2),
    Row("norm_histogram 1", ("Laplace",), "l1", 1.0, 1.0, 2.0),
    Row("locally_noised 1", ("Symmetric",), "l2", None, _ROOT_2, _ROOT_2),
    Row("Eigensolver 1", ("SmoothNoise", "ProposedGap"), "eigengap", 1.0, 1.0, 2.0),
    Row("Eigensolver 1 around a mean", ("SmoothNoise", "ProposedGap"), "eigengap", 1.0, 2.0, 2.0),
)
"""Every pair that may be asked. Version 1 of the centred moment and of the mean is read, and asked no more; of that
moment zero_out does not hold for records of about ``4^bits`` rows: see `FirstCentredMoment`."""

WITHOUT_ROW = ("exact_product", "unrounded_product")
"""Queries that are summed inside the boundary alone: nothing of theirs is noised, or leaves, as it is."""

_ROWS = {(row.query, name): row for row in TABLE for name in row.distributions}


class Stated(Protocol):
    """A query, as far as the table knows it."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102


class Named(Protocol):
    """A distribution, as far as the table knows it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def norm(self) -> str: ...  # noqa: D102


def check_row(query: Stated, distribution: Named) -> None:
    """Refuse a query under a distribution for which no sensitivity is proved."""
    row = _ROWS.get((query.kind, distribution.name))
    if row is None or row.norm != distribution.norm or getattr(row, query.relation) is None:
        others = sorted(name for kind, name in _ROWS if kind == query.kind and name not in _DISCLOSED)
        raise InvalidInput(
            f"no sensitivity of the statistic {query.kind} is proved for {distribution.name} noise; "
            f"use {' or '.join(others) or 'another statistic'}."
        )
