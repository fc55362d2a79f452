"""Comparison of joint PCA over several sites on rows in memory: CAPE, CAPE as printed, and baselines.

The compared methods (arms) are CAPE with and without colluders, its baselines, pooled rows, and no privacy. They use
the mechanisms of dpca, with noise from a seed. Two further methods divide all rows by the largest norm of any row, as
the authors of CAPE do, which is not private. One of them adds the printed noise, the other the noise of dpca.

The energy of directions V is ``tr(V^T Sigma V)``, where Sigma is the second moment.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.layouts import Layout, unpack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.joint_plan import Cape, LocalParties, least_scale, masked_messages, mu_of
from dpca_tasks.mechanisms.sites.noised_moments import Conv, DpDis, Local
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.noise.distributions import symmetric_weights
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.base import SQRT_2_UP
from dpca_tasks.records.blocks import ArrayBlocks, BlockSource
from papers.lib.experiments import Matrix, mean_rows
from papers.lib.public_data import unit_rows

RELATION: Relation = "replace_one"
DELTA = 0.01
COLUMNS = ("data", "sweep", "value", "epsilon", "delta", "sites", "records", "arm", "energy", "share")
CAPE, COLLUDING, GAUSSIAN = "cape", "cape with colluders", "cape with Gaussian masks"
PRINTED, RESCALED = "cape as printed", "cape on rows over the largest norm"
CONV, DP_DIS, LOCAL, POOLED, NON_PRIVATE = "conv", "dp_dis", "local", "pooled", "non-private"
ARMS = (CAPE, COLLUDING, GAUSSIAN, CONV, DP_DIS, LOCAL, POOLED, NON_PRIVATE, RESCALED, PRINTED)
OF_PAPER = (POOLED, CAPE, PRINTED, CONV, DP_DIS, LOCAL, NON_PRIVATE)
"""The arms of the paper's figures, and CAPE as printed."""
METHODS: dict[str, Callable[..., Any]] = {
    CAPE: partial(CapePca, colluders=0, rounds=1),
    COLLUDING: partial(CapePca, rounds=1),
    CONV: Conv,
    DP_DIS: DpDis,
    LOCAL: Local,
}
"""The mechanisms over sites by arm, in one round as published.

`COLLUDING` tolerates the default number of colluders.
"""

_SEED = 20180412


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The synthetic data of the CAPE paper: Gaussian rows with a diagonal covariance.

    The k leading variances decrease evenly from 10 to 1; the others are uniform on [0, 0.5].
    """

    n_features: int = 200
    n_components: int = 50

    @property
    def variances(self) -> Matrix:
        """The variance of each feature, which is the same for all draws of rows."""
        rest = np.random.default_rng(_SEED).uniform(0.0, 0.5, self.n_features - self.n_components)
        return np.concatenate([np.linspace(10.0, 1.0, self.n_components), rest])

    def draw(self, n_records: int, *, seed: int) -> Matrix:
        """Return rows that are not scaled to norm 1."""
        rng = np.random.default_rng([_SEED, seed])
        return np.asarray(rng.standard_normal((n_records, self.n_features)) * np.sqrt(self.variances))


class Sites:
    """Rows that are divided into sites, and the packed second moment of each site.

    Parameters
    ----------
    rows : float64 array of shape (n_records, n_features)
    sizes : sequence of int
        The number of records of each site, in order; the remaining rows are left out.

    Attributes
    ----------
    sums, printed_sums : float64 arrays of shape (sites, d (d + 1) / 2)
        The second moments of rows divided by their own norms, and of rows divided by the largest norm of any row.
    """

    def __init__(self, rows: Matrix, sizes: Sequence[int]) -> None:
        ends = np.cumsum(sizes)
        rows = rows[: ends[-1]]
        self.sizes, self.n_features = tuple(sizes), rows.shape[1]
        self.sums, parts = self._sums(unit_rows(rows), ends)
        self.printed_sums, _ = self._sums(rows / np.linalg.norm(rows, axis=1).max(), ends)
        self.sources = [ArrayBlocks(part) for part in parts]
        self.all_rows = ArrayBlocks(np.concatenate(parts))

    def _sums(self, rows: Matrix, ends: NDArray[np.intp]) -> tuple[Matrix, list[Matrix]]:
        parts = np.split(rows, ends[:-1])
        triangle = np.triu_indices(self.n_features)
        return np.stack([(part.T @ part)[triangle] for part in parts]), parts

    @property
    def layout(self) -> Layout:
        """The layout of the packed second moments."""
        return Layout(kind="symmetric", order=self.n_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The exact second moment of a data set, with which directions are evaluated, and the number k of components."""

    data: str
    moment: Matrix
    n_components: int

    @property
    def best(self) -> float:
        """The energy of the k leading eigenvectors, which is the largest possible."""
        return float(np.linalg.eigvalsh(self.moment)[-self.n_components :].sum())

    def energy(self, components: Matrix) -> float:
        """Return the energy ``tr(V M V^T)`` of directions V, given as orthonormal rows, with the second moment M."""
        return float(np.sum(components * (components @ self.moment)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of a figure, given by sites, a privacy target and the methods to run."""

    sweep: str
    value: float
    sites: Sites
    epsilon: float
    delta: float = DELTA
    arms: tuple[str, ...] = ARMS

    def rows(self, truth: Truth, *, seed: int) -> Iterator[dict[str, Any]]:
        """Run the compared methods, and yield a row of the table for each."""
        target = PrivacyTarget(epsilon=self.epsilon, delta=self.delta, allow_large_delta=True)
        for arm in self.arms:
            found = components_of(arm, self.sites, target, n_components=truth.n_components, seed=seed)
            energy = truth.energy(found)
            yield {
                "data": truth.data,
                "sweep": self.sweep,
                "value": self.value,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "sites": len(self.sites.sizes),
                "records": sum(self.sites.sizes),
                "arm": arm,
                "energy": energy,
                "share": energy / truth.best,
            }


def sweep_rows(cells: Callable[[int], Iterator[Cell]], truth: Truth, runs: int) -> list[dict[str, Any]]:
    """Compute all points of a figure ``runs`` times, and average the energies of corresponding rows."""
    draws = [[row for cell in cells(run) for row in cell.rows(truth, seed=run)] for run in range(runs)]
    return mean_rows(draws, ("energy", "share"))


def components_of(arm: str, sites: Sites, target: PrivacyTarget, *, n_components: int, seed: int) -> Matrix:
    """Return the directions that a compared method (arm) finds, as orthonormal rows."""
    if arm == NON_PRIVATE:
        return leading(sites.sums.sum(axis=0), sites.n_features, n_components)
    if arm in (GAUSSIAN, RESCALED, PRINTED):
        return _of_messages(arm, sites, target, n_components=n_components, seed=seed)
    if arm == POOLED:
        mechanism = AnalyzeGauss(n_components=n_components, rounds=1)
        plan = mechanism.plan(_problem(sites, sum(sites.sizes)), target)
        (curator,) = _curators([sites.all_rows], [plan], arm=arm, seed=seed)
        return mechanism.run(curator, plan).components
    return subspace_of(arm, sites, [target] * len(sites.sizes), n_components=n_components, seed=seed).components


def subspace_of(arm: str, sites: Sites, targets: Sequence[PrivacyTarget], *, n_components: int, seed: int) -> Subspace:
    """Return the joint release of a compared method (arm) over sites, each with its own privacy target."""
    method = METHODS[arm](n_components=n_components)
    plan = method.plan([_problem(sites, size) for size in sites.sizes], targets, session=f"{seed}")
    curators = list(_curators(sites.sources[: len(plan.sites)], plan.sites, arm=arm, seed=seed))
    found: Subspace = method.run(LocalParties(curators=curators, roster=plan.roster), plan)
    return found


def leading(packed: Matrix, order: int, count: int) -> Matrix:
    """Return ``count`` leading eigenvectors of a packed symmetric matrix, as rows."""
    return leading_eigenpairs(unpack_symmetric(packed, order), count)[1]


def _of_messages(arm: str, sites: Sites, target: PrivacyTarget, *, n_components: int, seed: int) -> Matrix:
    """Return the directions that follow from floating-point messages of the sites, with Gaussian masks.

    There are no colluders. The printed noise has std ``sqrt(2 ln(1.25 / delta)) / epsilon`` in each entry of the upper
    triangle, which is calibrated for a removed record. The printed masks are added too.
    """
    count, layout = len(sites.sizes), sites.layout
    sums = sites.sums if arm == GAUSSIAN else sites.printed_sums
    if arm == PRINTED:
        scale = FORMULAS["cape"].noise(Settings(epsilon=target.epsilon, delta=target.delta))
        cape, weights = Cape(sites=count, colluders=0, masks="gaussian", calibration="paper"), np.ones(layout.size)
    else:
        mu = mu_of(epsilon=target.epsilon, delta=target.delta)
        scale = least_scale(weights=[1.0] * count, sensitivities=[SQRT_2_UP] * count, mus=[mu] * count)
        cape, weights = (
            Cape(sites=count, colluders=0, masks="gaussian"),
            symmetric_weights(layout.order, start=0, stop=layout.size),
        )
    key = np.random.default_rng([seed, ARMS.index(arm)]).bytes(32)
    messages = masked_messages(sums, cape.noise(scale=scale), weights, key=key)
    return leading(messages.sum(axis=0), sites.n_features, n_components)


def _problem(sites: Sites, records: int) -> Problem:
    return Problem(n_features=sites.n_features, clip_norm=1.0, relation=RELATION, records_at_most=records)


def _curators(sources: Sequence[BlockSource], plans: Sequence[Any], *, arm: str, seed: int) -> Iterator[Curator]:
    for at, (source, plan) in enumerate(zip(sources, plans, strict=True)):
        key = np.random.default_rng([seed, at, ARMS.index(arm)]).bytes(32)
        yield Curator(source, InMemoryReservation(event=plan.event, relation=RELATION, key=key))
