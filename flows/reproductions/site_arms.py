"""What is compared over sites: CAPE with and without colluders, its baselines, pooled rows, and no privacy.

Every arm but the last runs a mechanism of the product on rows in memory, with noise from a seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.sites.cape import Cape, least_scale, mu_of
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.gaussian_messages import masked_messages
from dpca_tasks.mechanisms.sites.noised_moments import Conv, DpDis, Local
from dpca_tasks.mechanisms.sites.parties import LocalParties
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.noise.symmetric_weights import symmetric_weights
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.queries.base import SQRT_2_UP
from dpca_tasks.records.blocks import BlockSource
from flows.reproductions.site_rows import Sites

type Matrix = NDArray[np.float64]

RELATION: Relation = "replace_one"
CAPE, COLLUDING, GAUSSIAN = "cape", "cape with colluders", "cape with Gaussian masks"
CONV, DP_DIS, LOCAL, POOLED, NON_PRIVATE = "conv", "dp_dis", "local", "pooled", "non-private"
ARMS = (CAPE, COLLUDING, GAUSSIAN, CONV, DP_DIS, LOCAL, POOLED, NON_PRIVATE)
METHODS: dict[str, Callable[..., Any]] = {
    CAPE: partial(CapePca, colluders=0),
    COLLUDING: CapePca,
    CONV: Conv,
    DP_DIS: DpDis,
    LOCAL: Local,
}
"""The mechanisms over sites by their arm; the second tolerates as many colluders as usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is asked of every arm: a guarantee for each site's records, and k."""

    epsilon: float
    delta: float
    n_components: int

    @property
    def target(self) -> PrivacyTarget:
        """The guarantee."""
        return PrivacyTarget(epsilon=self.epsilon, delta=self.delta, allow_large_delta=True)


def components_of(arm: str, sites: Sites, setting: Setting, *, seed: int) -> Matrix:
    """Return the directions that an arm finds, as orthonormal rows."""
    if arm == NON_PRIVATE:
        return leading(sites.sums.sum(axis=0), sites.n_features, setting.n_components)
    if arm == GAUSSIAN:
        return _of_gaussian_masks(sites, setting, seed=seed)
    if arm == POOLED:
        mechanism = AnalyzeGauss(n_components=setting.n_components)
        plan = mechanism.plan(_problem(sites, sum(sites.sizes)), setting.target)
        (curator,) = _curators([sites.all_rows], [plan], arm=arm, seed=seed)
        return mechanism.run(curator, plan).components
    method = METHODS[arm](n_components=setting.n_components)
    problems = [_problem(sites, size) for size in sites.sizes]
    plan = method.plan(problems, [setting.target] * len(problems), session=f"{seed}")
    curators = list(_curators(sites.sources[: len(plan.sites)], plan.sites, arm=arm, seed=seed))
    found: Matrix = method.run(LocalParties(curators=curators, roster=plan.roster), plan).components
    return found


def leading(packed: Matrix, order: int, count: int) -> Matrix:
    """Return the leading directions of a packed symmetric matrix, as rows."""
    return leading_eigenpairs(unpack_symmetric(packed, order), count)[1]


def _of_gaussian_masks(sites: Sites, setting: Setting, *, seed: int) -> Matrix:
    """Return the directions of messages in floating point, under the published masks and no colluders."""
    count, layout = len(sites.sizes), sites.layout
    cape = Cape(sites=count, colluders=0, masks="gaussian")
    mu = mu_of(epsilon=setting.epsilon, delta=setting.delta)
    noise = cape.noise(scale=least_scale(weights=[1.0] * count, sensitivities=[SQRT_2_UP] * count, mus=[mu] * count))
    weights = symmetric_weights(layout.order, start=0, stop=layout.size)
    key = np.random.default_rng([seed, ARMS.index(GAUSSIAN)]).bytes(32)
    messages = masked_messages(sites.sums, noise, weights, key=key)
    return leading(messages.sum(axis=0), sites.n_features, setting.n_components)


def _problem(sites: Sites, records: int) -> Problem:
    return Problem(n_features=sites.n_features, clip_norm=1.0, relation=RELATION, records_at_most=records)


def _curators(sources: Sequence[BlockSource], plans: Sequence[Any], *, arm: str, seed: int) -> Iterator[Curator]:
    for at, (source, plan) in enumerate(zip(sources, plans, strict=True)):
        key = np.random.default_rng([seed, at, ARMS.index(arm)]).bytes(32)
        yield Curator(source, InMemoryReservation(event=plan.event, relation=RELATION, key=key))
