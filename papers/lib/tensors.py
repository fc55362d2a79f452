"""The synthetic topics and mixtures of the capeAGN paper, and the methods (arms) that it compares.

Components are the first K columns of a random orthogonal D x D matrix, different in each draw. For topics, negative
entries are set to 0 and columns are scaled to sum 1. Weights are proportional to K even steps from 1 to 10 K.

Sums of the records are computed once and used by many releases. A release requests a second moment, and a core (the
third moment along directions that depend on the noise). For documents of three words, the whole third moment is stored,
and the core is computed from it. For points, the rows are stored.

These sums are computed in floating point and rounded once, whereas a query rounds each record to its grid. A test
checks that the difference is far below the noise. Plans, queries, sensitivities, noise, shares and masks come from
dpca, with keys from a seed.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Relation
from dpca_tasks.mechanisms.base import NO_GUARANTEE, ComponentModel, Components, Plan, PrivacyTarget
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.mechanisms.sites.noised_moments import ConvAgn, LocalAgn
from dpca_tasks.mechanisms.tensors.agn import Agn
from dpca_tasks.mechanisms.tensors.avn import Avn
from dpca_tasks.mechanisms.tensors.non_private import NonPrivate
from dpca_tasks.mechanisms.tensors.tensor_releases import POINT_FACTOR, TensorProblem
from dpca_tasks.privacy.curator import Curator, DisclosingCurator, Rows
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.words import PointTriples, WordPairs, WordTriples
from dpca_tasks.records.blocks import ArrayBlocks
from papers.lib.experiments import Matrix

type Records = NDArray[np.int16] | NDArray[np.float64]
"""Documents as arrays of words, one word per column, or points."""
WORDS = 3
VARIANCE = 0.05
_SEED = 20180412


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A generator of synthetic records from topics or from a mixture.

    Parameters
    ----------
    model : {"topics", "mixture"}
    n_features, n_components : int
        The numbers D of features and K of components.
    """

    model: ComponentModel
    n_features: int
    n_components: int

    @property
    def name(self) -> str:
        """The model with D and K as text."""
        return f"{self.model} D={self.n_features} K={self.n_components}"

    @property
    def weights(self) -> Matrix:
        """The weight of each component, which is the same in all draws."""
        steps = np.linspace(1.0, 10.0 * self.n_components, self.n_components)
        return np.asarray(steps / steps.sum())

    def components(self, *, draw: int) -> Matrix:
        """Return the true components of a draw, as rows."""
        return self._components(np.random.default_rng([_SEED, self.n_features, draw]))

    def random_components(self, *, draw: int) -> Matrix:
        """Return random components that are independent of the records of a draw, as a baseline without data."""
        return self._components(np.random.default_rng([_SEED, self.n_features, draw, 1]))

    def records(self, n_records: int, *, draw: int) -> Records:
        """Return the first ``n_records`` records of a draw; fewer records are a prefix of more records."""
        components = self.components(draw=draw)
        rng = np.random.default_rng([_SEED, self.n_features, draw, 2])
        pieces: list[Any] = []
        for first in range(0, n_records, _PIECE):
            of = rng.choice(self.n_components, size=_PIECE, p=self.weights)
            piece = (
                self._documents(components, of, rng) if self.model == "topics" else self._points(components, of, rng)
            )
            pieces.append(piece[: n_records - first])
        together: Records = np.concatenate(pieces)
        return together

    def _components(self, rng: np.random.Generator) -> Matrix:
        square, upper = np.linalg.qr(rng.standard_normal((self.n_features, self.n_features)))
        rows = (square * np.sign(np.diag(upper)))[:, : self.n_components].T
        if self.model == "mixture":
            return np.ascontiguousarray(rows)
        rows = np.maximum(rows, 0.0)
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))

    def _documents(self, components: Matrix, of: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int16]:
        """Draw the three words of each document from its topic, whose index is in ``of``."""
        words = np.empty((of.size, WORDS), np.int16)
        for topic, component in enumerate(components):
            mine = np.flatnonzero(of == topic)
            words[mine] = rng.choice(self.n_features, size=(mine.size, WORDS), p=component)
        return words

    def _points(self, components: Matrix, of: NDArray[np.int64], rng: np.random.Generator) -> Matrix:
        noise = rng.standard_normal((of.size, self.n_features))
        return np.asarray(components[of] + np.sqrt(VARIANCE) * noise)


_PIECE = 50_000
_SUMMED_AT_ONCE = 20_000


class Sums(Protocol):
    """The interface of records whose sums are computed once and reused."""

    def total(self, query: RowSum) -> Matrix:
        """Return the sum of a query as a full tensor, in the units of the query."""


class DocumentSums:
    """Documents of three words, with their second moment (word pairs) and third moment (word triples).

    Parameters
    ----------
    words : array of shape (n_documents, 3)
    n_features : int
    """

    def __init__(self, words: NDArray[np.int16], n_features: int) -> None:
        codes = np.ravel_multi_index(tuple(words.T.astype(np.int64)), (n_features,) * WORDS)
        counts = np.bincount(codes, minlength=n_features**WORDS).reshape((n_features,) * WORDS).astype(np.float64)
        turned = [counts.transpose(axes) for axes in itertools.permutations(range(WORDS))]
        self.triples: Matrix = np.add.reduce(turned) / len(turned)
        self.pairs: Matrix = self.triples.sum(axis=2)

    def total(self, query: RowSum) -> Matrix:
        """Return the second moment, or the third moment along the directions of the query (the core)."""
        if isinstance(query, WordPairs):
            return self.pairs
        assert isinstance(query, WordTriples)
        directions = query.directions / 2.0**DIRECTION_BITS
        core: Matrix = self.triples
        for _ in range(WORDS):
            # contracts the first axis, and appends the result as the last axis
            core = np.tensordot(core, directions, axes=(0, 0))
        return core


class PointSums:
    """Points of a mixture, with their second moment.

    Parameters
    ----------
    rows : array of shape (n_points, n_features)
    """

    def __init__(self, rows: Matrix) -> None:
        self.rows = rows
        self._moments: dict[float, Matrix] = {}

    def total(self, query: RowSum) -> Matrix:
        """Return the second moment of clipped points, or the third moment along the directions of the query (core)."""
        if isinstance(query, SecondMoment):
            return self._moment(query.clip_norm)
        assert isinstance(query, PointTriples)
        directions, order = query.directions / 2.0**DIRECTION_BITS, query.layout.order
        third, first = np.zeros((order * order, order)), np.zeros(order)
        for start in range(0, len(self.rows), _SUMMED_AT_ONCE):
            scores = clipped(self.rows[start : start + _SUMMED_AT_ONCE] @ directions, query.radius) / query.radius
            third += (scores[:, :, None] * scores[:, None, :]).reshape(len(scores), -1).T @ scores
            first += scores.sum(axis=0)
        variance = query.variance_steps / 2.0**36
        eye = np.eye(order)
        taken = sum(np.einsum(places, first, eye) for places in ("i,jk->ijk", "j,ik->ijk", "k,ij->ijk"))
        return np.asarray(third.reshape((order,) * 3) - variance * taken)

    def _moment(self, clip_norm: float) -> Matrix:
        if clip_norm not in self._moments:
            total = np.zeros((self.rows.shape[1],) * 2)
            for start in range(0, len(self.rows), _SUMMED_AT_ONCE):
                rows = clipped(self.rows[start : start + _SUMMED_AT_ONCE], clip_norm) / clip_norm
                total += rows.T @ rows
            self._moments[clip_norm] = total
        return self._moments[clip_norm]


class TotalSums:
    """The records of all sites together, with sums that are the totals over the sites.

    Parameters
    ----------
    parts : sequence of Sums
    """

    def __init__(self, parts: Sequence[Sums]) -> None:
        self.parts = parts

    def total(self, query: RowSum) -> Matrix:
        """Return the total of a query over all sites."""
        return np.asarray(sum(part.total(query) for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummedRows(Rows):
    """Rows that are replaced by their precomputed sums, for use by a curator."""

    sums: Sums

    def sum(self, query: RowSum, *, keep: bool) -> NDArray[np.int64]:
        """Return the precomputed sum of a query, rounded to the query's grid and packed."""
        total = self.sums.total(query)
        places = itertools.combinations_with_replacement(range(query.layout.order), total.ndim)
        packed = total[tuple(np.array(list(places)).T)]
        return np.asarray(np.rint(packed * query.steps_per_unit), np.int64)


def over_sums[C: Curator](curator: C, sums: Sums) -> C:
    """Make a curator use precomputed sums, and return it; the curator must have been created with `NO_ROWS`."""
    curator._rows = SummedRows(source=NO_ROWS, sums=sums)
    return curator


def clipped(rows: Matrix, norm: float) -> Matrix:
    """Scale rows that are longer than ``norm`` down to this norm."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, norm / np.maximum(lengths, np.finfo(np.float64).tiny)))


NO_ROWS = ArrayBlocks(np.zeros((1, 1)))
RELATION: Relation = "replace_one"
SITES = 5
CAPE, CONV, LOCAL, POOLED, AVN = "cape", "conv", "local", "pooled", "avn"
NON_PRIVATE, RANDOM, PRINTED = "non-private", "random", "cape as printed"
ARMS = (CAPE, CONV, LOCAL, POOLED, AVN, NON_PRIVATE, RANDOM, PRINTED)
"""The compared methods. Without colluders, the sum that CAPE unmasks is distributed like a release by one owner. So
`PRINTED` is AGN on all records together, with the printed noise."""
OVER_SITES: dict[str, Callable[..., Any]] = {CAPE: partial(CapeAgn, colluders=0), CONV: ConvAgn, LOCAL: LocalAgn}
WITHOUT_EPSILON = (NON_PRIVATE, RANDOM)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sites:
    """Synthetic records that are divided evenly into sites, with the precomputed sums of each site.

    Parameters
    ----------
    maker : Maker
    draw : int
    parts : tuple of Sums
        The sums of each site.
    records : int
        The number of records at each site.
    """

    maker: Maker
    draw: int
    parts: tuple[Sums, ...]
    records: int
    known: dict[str, Components] = field(default_factory=dict)
    """The results of arms that do not depend on epsilon."""

    def problem(self, *, sites: int) -> TensorProblem:
        """Return the public facts about the records of ``sites`` sites.

        The clip norm of points is `POINT_FACTOR` times their root mean squared norm.
        """
        points = {"clip_norm": POINT_FACTOR * math.sqrt(1.0 + self.maker.n_features * VARIANCE)}
        bound: dict[str, Any] = {"words_at_most": WORDS} if self.maker.model == "topics" else points
        return TensorProblem(
            n_features=self.maker.n_features,
            model=self.maker.model,
            relation=RELATION,
            records_at_most=sites * self.records,
            **bound,
        )


def sites_of(maker: Maker, records: Records, *, draw: int, sites: int = SITES) -> Sites:
    """Divide records evenly into sites, and precompute the sums of each site."""
    parts = np.array_split(records[: len(records) // sites * sites], sites)
    sums = [
        DocumentSums(part, maker.n_features) if maker.model == "topics" else PointSums(part)  # type: ignore[arg-type]
        for part in parts
    ]
    return Sites(maker=maker, draw=draw, parts=tuple(sums), records=len(records) // sites)


def components_by(arm: str, sites: Sites, *, epsilon: float, delta: float, seed: int) -> Components:
    """Return the components that a compared method (arm) finds."""
    if arm in WITHOUT_EPSILON:
        if arm not in sites.known:
            sites.known[arm] = _random(sites) if arm == RANDOM else _non_private(sites)
        return sites.known[arm]
    maker, count = sites.maker, len(sites.parts)
    target = PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True)
    if arm in OVER_SITES:
        method = OVER_SITES[arm](n_components=maker.n_components)
        problems = [sites.problem(sites=1)] * count
        joint = method.plan(problems, [target] * count, session=f"{seed}")
        curators = _curators(sites.parts[: len(joint.sites)], joint.sites, arm=arm, seed=seed)
        found: Components = method.run(LocalParties(curators=curators, roster=joint.roster), joint)
        return found
    mechanism: Any = {
        POOLED: Agn(components=maker.n_components),
        PRINTED: Agn(components=maker.n_components, calibration="paper"),
        AVN: Avn(components=maker.n_components),
    }[arm]
    plan = mechanism.plan(sites.problem(sites=count), target)
    (curator,) = _curators([TotalSums(sites.parts)], [plan], arm=arm, seed=seed)
    pooled: Components = mechanism.run(curator, plan)
    return pooled


def _random(sites: Sites) -> Components:
    maker = sites.maker
    return Components(
        components=maker.random_components(draw=sites.draw),
        weights=np.full(maker.n_components, 1.0 / maker.n_components),
        model=maker.model,
        eigenvalues=np.zeros(0),
        outcome={},
    )


def _non_private(sites: Sites) -> Components:
    mechanism = NonPrivate(components=sites.maker.n_components)
    plan = mechanism.plan(sites.problem(sites=len(sites.parts)), NO_GUARANTEE)
    kept = InMemoryReservation(event=plan.event, relation=RELATION, key=bytes(32))
    curator = DisclosingCurator(NO_ROWS, kept, i_know_this_is_not_private=True)
    return mechanism.run(over_sums(curator, TotalSums(sites.parts)), plan)


def _curators(sums: Sequence[Sums], plans: Sequence[Plan], *, arm: str, seed: int) -> list[Curator]:
    curators = []
    for at, (each, plan) in enumerate(zip(sums, plans, strict=True)):
        key = np.random.default_rng([seed, at, ARMS.index(arm)]).bytes(32)
        kept = InMemoryReservation(event=plan.event, relation=RELATION, key=key)
        curators.append(over_sums(Curator(NO_ROWS, kept), each))
    return curators
