"""Measure how much more variance a stream captures if its ticks apply public linear maps, on 16 nights of a9a.

A tick publishes one version, each night. The last version is compared with the last version of a stream without maps,
for the same privacy. Keys are derived from seeds, so every number is reproducible. The data are public, so nothing is
charged.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from scipy import sparse

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.mechanisms.base import Center, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients, combined, streamed_subspace
from dpca_tasks.mechanisms.streams.stream_maps import (
    TickAnswer,
    TickMap,
    combined_answer,
    first_map,
    mapped_subspace,
    next_map,
)
from dpca_tasks.mechanisms.streams.stream_ticks import norm_one_std, plan_stream, release_tick, tick_noise, tick_query
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.warm_start import Start, start_of
from dpca_tasks.metrics import captured_variance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from papers.lib.experiments import Check, Report, at_least, near, report, run_mechanism
from papers.lib.public_data import a9a_rows
from papers.rounds import moment_around

type Arm = Literal["plain", "like", "doubling"]

DELTA, RUNS, NIGHTS, COMPONENTS = 1e-6, 3, 16, 10
TOLERANCE = 0.002
"""Three standard deviations of a mean of three draws, as for releases in rounds from epsilon .3 on."""
WEIGHTS = choose_weights("sqrt", ticks=NIGHTS)
_SEED = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A setting, with the captured variance expected without maps, and with a new map in nights 2, 4, 8, ..."""

    epsilon: float
    center: Center = "none"
    plain: float | None = None
    doubling: float | None = None

    @property
    def name(self) -> str:
        """The epsilon and centering as text."""
        return f"epsilon={self.epsilon:g}" + " centred" * (self.center == "private")


CELLS = (
    Cell(epsilon=0.3, plain=0.988, doubling=0.991),
    Cell(epsilon=1.0, plain=0.998, doubling=0.999),
    Cell(epsilon=0.3, center="private"),
    Cell(epsilon=1.0, center="private"),
)


def reproduce() -> Report:
    """Check the captured variance of the last of 16 versions, without maps, with one map, and with changing maps.

    One map comes from a release of half of the rows. The data are public and keys are derived from seeds, so no budget
    is spent.

    Returns
    -------
    Report
        Each check compares a mean of three draws. ``tolerance`` is three standard deviations of this mean.
    """
    return report(_checks())


def _checks() -> Iterator[Check]:
    rows = a9a_rows()
    for cell in CELLS:
        moment = moment_around(rows, cell.center)
        values = np.linalg.eigvalsh(moment)[::-1]
        means = {
            arm: float(
                np.mean(
                    [
                        captured_variance(moment, _components(rows, cell, arm, draw), values=values)
                        for draw in range(RUNS)
                    ]
                )
            )
            for arm in ("plain", "like", "doubling")
        }
        for arm, expected in (("plain", cell.plain), ("doubling", cell.doubling)):
            if expected is not None:
                yield near(f"{cell.name}, {arm}", expected, TOLERANCE, got=means[arm])
        yield at_least(f"{cell.name}, like minus plain", 0.0, got=means["like"] - means["plain"])
        yield at_least(f"{cell.name}, doubling minus plain", 0.0, got=means["doubling"] - means["plain"])


def _components(rows: sparse.csr_array, cell: Cell, arm: str, draw: int) -> np.ndarray:
    """Return the components of the last version of a stream."""
    found = _last_version(rows, cell, arm, draw)
    return np.asarray(refine_release(found, n_components=COMPONENTS, method="auto").subspace.components)


def _last_version(rows: sparse.csr_array, cell: Cell, arm: str, draw: int) -> Subspace:
    n_rows, n_features = rows.shape
    problem = Problem(n_features=n_features, clip_norm=1.0, records_at_most=n_rows, center=cell.center)
    target = PrivacyTarget(epsilon=cell.epsilon, delta=DELTA)
    plan = plan_stream(problem, target, weights=WEIGHTS, ticks=NIGHTS, n_components=COMPONENTS, mapped=arm != "plain")
    nights = np.array_split(np.random.default_rng(_SEED).permutation(n_rows), NIGHTS)
    whole = coefficients(WEIGHTS, kept=range(1, NIGHTS + 1))
    answers: list[np.ndarray] = []
    mapped: list[TickAnswer] = []
    inputs: TickMap | None = None
    for tick in range(1, NIGHTS + 1):
        arrivals = tuple(range(1, tick + 1))
        query_of = partial(tick_query, plan, weights=WEIGHTS, horizon=NIGHTS, tick=tick, arrivals=arrivals)
        if arm != "plain":
            unmapped = query_of(inputs=TickMap.none(problem))
            std = norm_one_std(plan, unmapped)
            if inputs is None:
                start = _earlier(rows, cell, draw) if arm == "like" else None
                inputs = first_map(
                    problem, start, n_components=COMPONENTS, noise_std=std * float(np.linalg.norm(whole))
                )
            elif arm == "doubling" and not tick & (tick - 1):
                multipliers = coefficients(WEIGHTS, kept=range(1, tick))
                before = combined_answer(mapped, multipliers, last=mapped[-1], step=0.0)
                spread = std * float(np.linalg.norm(multipliers))
                inputs = next_map(before, mapped[-1], n_components=COMPONENTS, noise_std=spread)
        query = query_of(inputs=inputs)
        seen = np.repeat(arrivals, [len(night) for night in nights[:tick]])
        source = ArrayBlocks(rows[np.concatenate(nights[:tick])], first_seen=seen)
        key = hashlib.sha256(repr((_SEED, cell.name, arm, draw, tick)).encode()).digest()
        answer = release_tick(Curator(source, InMemoryReservation(event=plan.event, key=key)), plan, query)
        answers.append(answer)
        if inputs is not None:
            mapped.append(TickAnswer(tick=inputs, released=answer, noise_std=float(tick_noise(plan, query)["std"])))
    if inputs is None:
        noise = tick_noise(plan, query)
        estimate = combined(answers, whole)
        return streamed_subspace(estimate, problem, noise=noise, multipliers=whole, n_components=COMPONENTS)
    found = combined_answer(mapped, whole, last=mapped[-1], step=0.0)
    return mapped_subspace(found, problem, last=inputs, n_components=COMPONENTS, like=arm)


def _earlier(rows: sparse.csr_array, cell: Cell, draw: int) -> Start:
    """Release half of the rows, and return the public facts that a stream with ``--like`` uses from this release."""
    half = rows[np.sort(np.random.default_rng(_SEED + 1).permutation(rows.shape[0])[: rows.shape[0] // 2])]
    problem = Problem(n_features=rows.shape[1], clip_norm=1.0, records_at_most=half.shape[0], center=cell.center)
    released = run_mechanism(
        AnalyzeGauss(n_components=COMPONENTS, rounds=1),
        problem,
        PrivacyTarget(epsilon=cell.epsilon, delta=DELTA),
        ArrayBlocks(half),
        key=hashlib.sha256(repr((_SEED, cell.name, "earlier", draw)).encode()).digest(),
    )
    start = start_of(released, clip_norm=1.0, records_at_most=half.shape[0])
    assert start is not None
    return start
