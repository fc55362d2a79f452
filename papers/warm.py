"""Measure how much more variance a release captures with a warm start than without, on two halves of a9a.

With a warm start, the second half is released with a public map, which is computed from a release of the first half.
Both releases of the second half have the same privacy. For one setting, the rows of the second half are also divided
among four sites, of which none colludes with the aggregator. Such a joint release has the noise of one owner. Keys are
derived from seeds, so every number is reproducible. The data are public, so nothing is charged.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpca_tasks.mechanisms.base import Center, PrivacyTarget, Problem
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.warm_start import Start, start_of
from dpca_tasks.metrics import captured_variance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from papers.lib.experiments import Check, Matrix, Report, at_least, near, report
from papers.lib.public_data import a9a_rows
from papers.rounds import moment_around

DELTA, RUNS, TOLERANCE = 1e-6, 5, 0.008
"""The tolerance is three standard deviations of a mean of five draws, as for releases in rounds at epsilon .1."""
_SEED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A setting, with the expected captured variance with a warm start."""

    n_components: int
    epsilon: float
    center: Center
    expected: float

    @property
    def name(self) -> str:
        """The number of components, epsilon and centering as text."""
        return f"k={self.n_components} epsilon={self.epsilon:g}" + " centred" * (self.center == "private")


CELLS = (
    Cell(n_components=10, epsilon=0.1, center="none", expected=0.973),
    Cell(n_components=30, epsilon=0.1, center="none", expected=0.944),
    Cell(n_components=10, epsilon=0.1, center="private", expected=0.93),
    Cell(n_components=30, epsilon=0.1, center="private", expected=0.887),
    Cell(n_components=30, epsilon=0.3, center="none", expected=0.991),
)
"""The expected numbers come from the derivation of the method, where each is a mean of three draws."""
SITES, OF_SITES = 4, {"one round": 0.953, "three rounds": 0.966, "warm": 0.973}
"""The number of sites, and the captured variances expected for the first of `CELLS`, which are those of one owner."""


def reproduce() -> Report:
    """Check the captured variance of warm starts on the second half of a9a, with a map from the first half.

    The data are public and keys are derived from seeds, so no budget is spent.

    Returns
    -------
    Report
        Each check compares a mean of five draws with an expected number. ``tolerance`` is three standard deviations of
        this mean.
    """
    return report(_checks())


def _checks() -> Iterator[Check]:
    rows = a9a_rows()
    order = np.random.default_rng(_SEED).permutation(rows.shape[0])
    first, second = (rows[np.sort(half)] for half in np.array_split(order, 2))
    sources = ArrayBlocks(first), ArrayBlocks(second)
    for cell in CELLS:
        moment = moment_around(second, cell.center)
        values = np.linalg.eigvalsh(moment)[::-1]
        draws = [_captured(cell, sources, second.shape, draw, moment, values) for draw in range(RUNS)]
        rounds, warm = (float(mean) for mean in np.mean(draws, axis=0)[1:])
        yield near(f"{cell.name}, warm", cell.expected, TOLERANCE, got=warm)
        yield at_least(f"{cell.name}, warm minus three rounds", 0.0, got=warm - rounds)
    yield from _of_sites(CELLS[0], sources[0], second)


def _of_sites(cell: Cell, first: ArrayBlocks, second: Any) -> Iterator[Check]:
    """Compare the captured variance of joint releases over four sites with that of one owner."""
    parts = [ArrayBlocks(second[at::SITES]) for at in range(SITES)]
    moment = moment_around(second, cell.center)
    values = np.linalg.eigvalsh(moment)[::-1]
    found = [
        [
            captured_variance(moment, each, values=values)
            for each in _joint_components(cell, first, parts, second.shape, draw)
        ]
        for draw in range(RUNS)
    ]
    for (name, expected), got in zip(OF_SITES.items(), np.mean(found, axis=0), strict=True):
        yield near(f"{cell.name}, {SITES} sites, {name}", expected, TOLERANCE, got=float(got))


def _joint_components(
    cell: Cell, first: ArrayBlocks, parts: list[ArrayBlocks], shape: tuple[int, ...], draw: int
) -> list[Matrix]:
    """Return the components of joint releases: in one round, in three rounds, and with a warm start."""
    start, count = _start(cell, first, shape, draw), cell.n_components
    kinds = (
        CapePca(n_components=count, colluders=0, rounds=1),
        CapePca(n_components=count, colluders=0, rounds=3),
        CapePca(n_components=count, colluders=0, warm=True, start=lambda: start),
    )
    return [_released_jointly(mechanism, cell, parts, shape, draw) for mechanism in kinds]


def _start(cell: Cell, first: ArrayBlocks, shape: tuple[int, ...], draw: int) -> Start:
    """Return the public facts for a warm start, from a release of the first half in one round."""
    parent, _ = _released(AnalyzeGauss(n_components=cell.n_components, rounds=1), cell, first, shape, draw)
    start = start_of(parent, clip_norm=1.0, records_at_most=shape[0])
    assert start is not None
    return start


def _released_jointly(
    mechanism: CapePca, cell: Cell, parts: list[ArrayBlocks], shape: tuple[int, ...], draw: int
) -> Matrix:
    """Return the refined components of a joint release."""
    problem = Problem(n_features=shape[1], clip_norm=1.0, records_at_most=shape[0], center=cell.center)
    target, count = PrivacyTarget(epsilon=cell.epsilon, delta=DELTA), len(parts)
    plan = mechanism.plan([problem] * count, [target] * count, session=f"{cell.name} {draw}")
    if mechanism.start is not None:
        facts = {"artifact": "the first half", "mean_square": mechanism.start().mean_square}
        plan = replace(plan, total=replace(plan.total, start=facts))
    curators = []
    for at, (part, site) in enumerate(zip(parts, plan.sites, strict=True)):
        key = hashlib.sha256(repr((_SEED, cell.name, mechanism.rounds, mechanism.warm, at, draw)).encode()).digest()
        curators.append(Curator(part, InMemoryReservation(event=site.event, relation=problem.relation, key=key)))
    released = mechanism.run(LocalParties(curators=curators, roster=plan.roster), plan)
    refined = refine_release(released, n_components=cell.n_components, method="auto")
    return np.asarray(refined.subspace.components)


def _captured(
    cell: Cell,
    sources: tuple[ArrayBlocks, ArrayBlocks],
    shape: tuple[int, ...],
    draw: int,
    moment: Matrix,
    values: Matrix,
) -> list[float]:
    """Return the captured variance of the second half: of one round, of three rounds, and with a warm start."""
    start = _start(cell, sources[0], shape, draw)
    kinds = (
        AnalyzeGauss(n_components=cell.n_components, rounds=1),
        AnalyzeGauss(n_components=cell.n_components, rounds=3),
        AnalyzeGauss(n_components=cell.n_components, warm=True, start=lambda: start),
    )
    found = [_released(mechanism, cell, sources[1], shape, draw)[1] for mechanism in kinds]
    return [captured_variance(moment, each, values=values) for each in found]


def _released(
    mechanism: AnalyzeGauss, cell: Cell, source: ArrayBlocks, shape: tuple[int, ...], draw: int
) -> tuple[Any, Matrix]:
    """Return a release and its refined components."""
    problem = Problem(n_features=shape[1], clip_norm=1.0, records_at_most=shape[0], center=cell.center)
    target = PrivacyTarget(epsilon=cell.epsilon, delta=DELTA)
    key = hashlib.sha256(
        repr((_SEED, cell.name, mechanism.rounds, mechanism.warm, source.content, draw)).encode()
    ).digest()
    plan = mechanism.plan(problem, target)
    if mechanism.start is not None:
        facts = {"artifact": "the first half", "mean_square": mechanism.start().mean_square}
        plan = replace(plan, start=facts)
    reservation = InMemoryReservation(event=plan.event, relation=problem.relation, key=key)
    released = mechanism.run(Curator(source, reservation), plan)
    refined = refine_release(released, n_components=cell.n_components, method="auto")
    return released, np.asarray(refined.subspace.components)
