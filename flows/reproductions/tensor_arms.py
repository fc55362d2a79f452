"""What is compared over sites: capeAGN, its baselines, pooled records with Gaussian and with pure noise, no privacy.

Every arm but the random one runs a mechanism of the product, its plan and its noise, with keys from a seed. Sums of
records are looked up (`flows.reproductions.tensor_sums`); sites, their shares of noise and their masks are in this
process.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Plan, PrivacyTarget
from dpca_tasks.mechanisms.parts.tensor_problem import TensorProblem
from dpca_tasks.mechanisms.parts.tensor_releases import POINT_FACTOR
from dpca_tasks.mechanisms.results import Components
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.noised_tensors import ConvAgn, LocalAgn
from dpca_tasks.mechanisms.sites.parties import LocalParties
from dpca_tasks.mechanisms.tensors.agn import Agn
from dpca_tasks.mechanisms.tensors.avn import Avn
from dpca_tasks.mechanisms.tensors.non_private import NonPrivate
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.disclosure import DisclosingCurator
from dpca_tasks.privacy.reservation import InMemoryReservation
from flows.reproductions.tensor_makers import VARIANCE, WORDS, Maker, Records
from flows.reproductions.tensor_sums import NO_ROWS, DocumentSums, PointSums, Sums, TotalSums, over_sums

RELATION: Relation = "replace_one"
SITES = 5
CAPE, CONV, LOCAL, POOLED, AVN = "cape", "conv", "local", "pooled", "avn"
NON_PRIVATE, RANDOM = "non-private", "random"
ARMS = (CAPE, CONV, LOCAL, POOLED, AVN, NON_PRIVATE, RANDOM)
OVER_SITES: dict[str, Callable[..., Any]] = {CAPE: partial(CapeAgn, colluders=0), CONV: ConvAgn, LOCAL: LocalAgn}
WITHOUT_EPSILON = (NON_PRIVATE, RANDOM)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sites:
    """Made records, cut evenly into sites, summed once.

    Parameters
    ----------
    maker : Maker
    draw : int
    parts : tuple of Sums
        One for each site.
    records : int
        At each site.
    """

    maker: Maker
    draw: int
    parts: tuple[Sums, ...]
    records: int
    known: dict[str, Components] = field(default_factory=dict)
    """The results of arms that no epsilon changes."""

    def problem(self, *, sites: int) -> TensorProblem:
        """Return the public facts of the records of so many sites; points are clipped by the usual factor."""
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
    """Cut records into sites of as many each, and sum what does not depend on a release."""
    parts = np.array_split(records[: len(records) // sites * sites], sites)
    sums = [
        DocumentSums(part, maker.n_features) if maker.model == "topics" else PointSums(part)  # type: ignore[arg-type]
        for part in parts
    ]
    return Sites(maker=maker, draw=draw, parts=tuple(sums), records=len(records) // sites)


def components_of(arm: str, sites: Sites, *, epsilon: float, delta: float, seed: int) -> Components:
    """Return the components that an arm finds."""
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
    mechanism = Agn(components=maker.n_components) if arm == POOLED else Avn(components=maker.n_components)
    plan = mechanism.plan(sites.problem(sites=count), target)
    (curator,) = _curators([TotalSums(sites.parts)], [plan], arm=arm, seed=seed)
    return mechanism.run(curator, plan)


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
