"""Audits: many runs of a mechanism on two neighboring datasets, which prove a lower bound of the true epsilon.

*Lower bound.* If a mechanism is (epsilon, delta)-DP, then ``P(event | D) <= e^epsilon P(event | D') + delta`` for every
event and all neighbors D and D'. So ``epsilon >= log((p - delta) / q)`` for the two probabilities p and q of an event.
The event is counted in many runs on both datasets. These counts give a lower confidence bound of p and an upper
confidence bound of q (Clopper and Pearson). The event is chosen in one half of the runs, and counted in the other half.
So only one event is tested, and the confidence needs no correction for multiple tests.

>>> import numpy as np
>>> noise = np.random.default_rng(0).standard_normal((2, 4000))
>>> event = choose_event({"shift": (noise[0] + 1.0, noise[1])}, delta=0.01)
>>> event.statistic
'shift'
>>> bool(0.5 < epsilon_bound(2300, 500, trials=4000, delta=0.01, miss=0.025) < 1.6)
True

*Trials.* Each trial runs the production code with a fresh key for the noise: plan, reservation, curator, exact sum,
noise and mechanism. From the first half of the trials an event is chosen: a pair of neighbors, a statistic, a direction
and a threshold. The second half of the trials runs on the chosen pair only, and counts the event. A correct mechanism
fails an audit with probability at most ``1 - confidence``. The keys are derived from a seed, so an audit is
reproducible.

*Subspace mechanisms.* `SUBSPACE_AUDIT` has the settings and the neighbors for audits of subspace mechanisms, and a
statistic of their published directions.

>>> from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
>>> audit_mechanism(AnalyzeGauss(n_components=1), relation="add_remove", trials=200).passed
True
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from dpca_tasks.accounting import events
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import (
    Attacker,
    AuditSubject,
    Neighbours,
    RecordingCurator,
    exact_answer,
    gapped_neighbours,
    worst_neighbours,
)
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Problem, Subspace, Terms
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.second_moment import SecondMoment

CAUTION = 1e-5
"""The error probability of the bounds that rank events; small, so that a rare event is not chosen by chance."""

type Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The values of a statistic in trials on the left and on the right dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The event that a statistic of a run is at least, or at most, a threshold.

    A statistic of at least the threshold indicates the left dataset; a statistic of at most the threshold indicates the
    right dataset.
    """

    statistic: str
    threshold: float
    upwards: bool

    def count(self, samples: Samples) -> tuple[int, int]:
        """Count how often the event occurs on the dataset that it indicates, and on the other dataset."""
        left, right = (
            int(np.count_nonzero(values >= self.threshold if self.upwards else values <= self.threshold))
            for values in samples
        )
        return (left, right) if self.upwards else (right, left)


def proportion_bounds(count: ArrayLike, *, trials: int, miss: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a lower and an upper confidence bound of a probability, given the count of an event in some trials.

    Each bound is wrong with probability at most ``miss``.
    """
    seen = np.asarray(count, np.float64)
    low = np.where(seen > 0, betaincinv(np.maximum(seen, 1.0), trials - seen + 1.0, miss), 0.0)
    high = np.where(seen < trials, betaincinv(seen + 1.0, np.maximum(trials - seen, 1.0), 1.0 - miss), 1.0)
    return low, high


def epsilon_bound(count: ArrayLike, other: ArrayLike, *, trials: int, delta: float, miss: float) -> NDArray[np.float64]:
    """Return a lower confidence bound of epsilon from counts of an event on two neighboring datasets.

    The result is 0 if the counts prove nothing.

    Parameters
    ----------
    count, other : int or array of int
        How often the event occurred in the trials on one dataset, and in the trials on the other dataset.
    trials : int
        The number of trials on each dataset.
    delta : float
        The delta of the claimed guarantee.
    miss : float
        The error probability of the confidence bound of each of the two probabilities. The error probability of the
        result is at most twice as large.
    """
    ratio = _bounded_ratio(count, other, trials=trials, delta=delta, miss=miss)
    return np.log(np.maximum(ratio, 1.0))


def choose_event(samples: Mapping[str, Samples], *, delta: float) -> Event:
    """Return the event with the largest lower confidence bound of epsilon.

    The events of all statistics, both directions and many thresholds are compared.
    """
    best, chosen = -math.inf, None
    for statistic, (left, right) in samples.items():
        thresholds = np.unique(np.concatenate([left, right]))
        below_left, below_right = (np.searchsorted(np.sort(part), thresholds) for part in (left, right))
        upto_left, upto_right = (np.searchsorted(np.sort(part), thresholds, "right") for part in (left, right))
        trials = left.size
        for upwards, count, other in (
            (True, trials - below_left, trials - below_right),
            (False, upto_right, upto_left),
        ):
            ratios = _bounded_ratio(count, other, trials=trials, delta=delta, miss=CAUTION)
            at = int(ratios.argmax())
            if ratios[at] > best:
                best = float(ratios[at])
                chosen = Event(statistic=statistic, threshold=float(thresholds[at]), upwards=upwards)
    assert chosen is not None, "at least one statistic"
    return chosen


def _bounded_ratio(
    count: ArrayLike, other: ArrayLike, *, trials: int, delta: float, miss: float
) -> NDArray[np.float64]:
    low, _ = proportion_bounds(count, trials=trials, miss=miss)
    _, high = proportion_bounds(other, trials=trials, miss=miss)
    return (low - delta) / high


_BITS = 12


def build_audited(name: str) -> Mechanism[Subspace]:
    """Build the subspace mechanism with a name for an audit, with one component and few steps.

    Raises
    ------
    InvalidInput
        If no subspace mechanism has this name.
    """
    if name not in MECHANISMS:
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(sorted(MECHANISMS))}.")
    kind = MECHANISMS[name]
    mechanism: Mechanism[Subspace] = kind(n_components=1, **getattr(kind, "audited_with", {}))
    return mechanism


def audited_problem(relation: Relation) -> Problem:
    """Return the problem on which subspace mechanisms are audited.

    It has only two features, because noise in more features would only hide the difference of neighbors.
    """
    return Problem(n_features=2, clip_norm=1.0, relation=relation)


def neighbours_of(name: str, problem: Problem) -> tuple[Neighbours, ...]:
    """Return the worst known pairs of neighboring datasets for the subspace mechanism with a name."""
    known = gapped_neighbours if getattr(MECHANISMS.get(name), "needs_gap", False) else worst_neighbours
    return known(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


def along_difference(pair: Neighbours, problem: Problem) -> Callable[[Subspace], float]:
    """Return a statistic of a published subspace that tends to be larger if the left dataset was used.

    The statistic is the inner product of two matrices: the second moment that the subspace represents, and the
    difference of the second moments of both datasets.
    """
    moment = SecondMoment(
        n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=_BITS
    )
    direction = exact_answer(pair.left, moment) - exact_answer(pair.right, moment)

    def project(published: Subspace) -> float:
        rows, k = published.components, len(published.components)
        if published.eigenvalues is None or published.spectrum is None:
            return float(np.vdot(direction, rows.T @ rows))
        rest = published.spectrum[k:].mean() if published.spectrum.size > k else 0.0
        rebuilt = (rows.T * (published.eigenvalues - rest)) @ rows + rest * np.eye(rows.shape[1])
        return float(np.vdot(direction, rebuilt))

    return project


SUBSPACE_AUDIT = AuditSubject(
    names=tuple(MECHANISMS),
    build=build_audited,
    problem=audited_problem,
    neighbours=neighbours_of,
    published=along_difference,
)


TARGET = PrivacyTarget(epsilon=1.0, delta=0.1, allow_large_delta=True)
"""The audited claim. With a larger delta the distinguishing events are more common, so fewer trials suffice.

The code from the claim to the noise is the same for every delta. At this delta, 4000 trials detect noise that is too
small by ``sqrt 2``; at 0.001 ten times as many trials are needed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of an audit of one mechanism.

    ``bound`` is a lower bound of the true epsilon at the delta of the claim. The bound is wrong with probability at
    most ``1 - confidence``. ``attack`` names the statistic and the pair of neighbors that gave the bound.
    """

    mechanism: str
    relation: Relation
    epsilon: float
    delta: float
    bound: float
    confidence: float
    trials: int
    attack: str

    @property
    def passed(self) -> bool:
        """True if the lower bound of epsilon does not exceed the claimed epsilon."""
        return self.bound <= self.epsilon


def audit_mechanism(
    mechanism: Mechanism[Any],
    *,
    relation: Relation,
    subject: AuditSubject = SUBSPACE_AUDIT,
    problem: Terms | None = None,
    pairs: Sequence[Neighbours] | None = None,
    target: PrivacyTarget = TARGET,
    trials: int = 4000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Finding:
    """Audit a mechanism for one neighboring relation: prove a lower bound of its true epsilon by an attack.

    Parameters
    ----------
    mechanism : Mechanism
    relation : {"add_remove", "zero_out", "replace_one"}
    subject : AuditSubject
        The functions for attacks on the family of the mechanism.
    problem : Terms, optional
        The public facts of the problem, for the same relation; by default the problem of `subject`.
    pairs : sequence of Neighbours, optional
        The pairs of datasets to distinguish; by default the worst known pairs.
    target : PrivacyTarget
        The claimed guarantee. A mechanism with a pure guarantee is tested at delta 0.
    trials : int
        The number of runs on each dataset of the chosen pair. In one half of the runs an event is chosen; in the other
        half it is counted.
    confidence : float
        The probability with which the bound is correct, for all pairs, statistics and directions together.
    seed : int
        The seed from which the keys for the noise are derived.
    progress : callable, optional
        Called after each run with the number of finished runs and the total number of runs on all pairs.

    Returns
    -------
    Finding
        The lower bound of epsilon, and the attack that gave it.
    """
    if trials < 2 or not 0 < confidence < 1:
        raise InvalidInput(
            f"trials={trials} must be at least 2 and confidence={confidence} strictly between 0 and 1; for example, "
            "4000 trials at confidence 0.95 detect noise that is a third too small."
        )
    problem = subject.problem(relation) if problem is None else problem
    plan = mechanism.plan(problem, target)
    pairs = subject.neighbours(mechanism.name, problem) if pairs is None else pairs
    half = trials // 2
    spent = _Count(runs=2 * (half * len(pairs) + trials - half), report=progress)
    attacked = [
        _Trials(mechanism, plan, pair, subject, trials=trials, seed=seed, report=spent.one_more) for pair in pairs
    ]
    delta = 0.0 if _is_pure(plan) else target.delta
    samples: dict[str, Samples] = {}
    for each in attacked:
        each.run(half)
        samples |= each.samples(0, half)
    event = choose_event(samples, delta=delta)
    chosen = next(each for each in attacked if event.statistic in each.values)
    chosen.run(trials)
    count, other = event.count(chosen.samples(half, trials)[event.statistic])
    miss = (1.0 - confidence) / 2.0
    bound = epsilon_bound(count, other, trials=trials - half, delta=delta, miss=miss)
    return Finding(
        mechanism=mechanism.name,
        relation=relation,
        epsilon=target.epsilon,
        delta=delta,
        bound=float(bound),
        confidence=confidence,
        trials=trials,
        attack=event.statistic,
    )


def _is_pure(plan: Plan) -> bool:
    """Return whether every step of a plan has a pure guarantee, that is, delta 0."""
    return all(step["name"] == "laplace" or step.get("delta") == 0 for step in events.steps(plan.event))


class _Count:
    """A counter of finished runs, which reports each finished run to a callback."""

    def __init__(self, *, runs: int, report: Callable[[int, int], None] | None) -> None:
        self._runs, self._report, self._done = runs, report, 0

    def one_more(self) -> None:
        """Count one more finished run, and report it."""
        self._done += 1
        if self._report is not None:
            self._report(self._done, self._runs)


class _Trials:
    """The trials of a mechanism on both datasets of a pair of neighbors, which are run only on request."""

    def __init__(
        self,
        mechanism: Mechanism[Any],
        plan: Plan,
        pair: Neighbours,
        subject: AuditSubject,
        *,
        trials: int,
        seed: int,
        report: Callable[[], None],
    ) -> None:
        self._mechanism, self._plan, self._pair, self._seed, self._report = mechanism, plan, pair, seed, report
        self._attacker = Attacker(pair, subject.published(pair, plan.problem))
        self._trials, self._done = trials, 0
        self.values: dict[str, NDArray[np.float64]] = {}
        """The values of each statistic on both datasets; 0, which indicates neither, for a trial without a value."""

    def run(self, upto: int) -> None:
        """Run all trials with numbers below ``upto`` that were not run yet."""
        for side, source in enumerate((self._pair.left, self._pair.right)):
            for trial in range(self._done, upto):
                key = hashlib.sha256(f"dpca audit {self._seed} {self._pair.name} {side} {trial}".encode()).digest()
                curator = RecordingCurator(
                    source, InMemoryReservation(event=self._plan.event, relation=self._plan.problem.relation, key=key)
                )
                published = self._mechanism.run(curator, self._plan)
                for name, value in self._attacker.statistics(curator.recorded, published).items():
                    kept = self.values.setdefault(f"{name}, {self._pair.name}", np.zeros((2, self._trials)))
                    kept[side, trial] = value
                self._report()
        self._done = max(self._done, upto)

    def samples(self, first: int, last: int) -> dict[str, Samples]:
        """Return the values of each statistic on both datasets, in the trials ``first`` to ``last - 1``."""
        return {name: (left[first:last], right[first:last]) for name, (left, right) in self.values.items()}
