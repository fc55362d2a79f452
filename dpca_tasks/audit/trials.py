"""Audits: many runs of a mechanism on neighbours, and the lower bound on epsilon that they prove.

*Lower bound.* If a mechanism is (epsilon, delta)-DP, then ``P(event | D) <= e^epsilon P(event | D') + delta`` for every
event. Counting an event on both datasets therefore proves ``epsilon >= log((p - delta) / q)``, with ``p`` bounded from
below and ``q`` from above (Clopper and Pearson). The event is chosen on one part of the trials and counted on the
other. So only one event is tested, and the confidence needs no correction.

>>> import numpy as np
>>> noise = np.random.default_rng(0).standard_normal((2, 4000))
>>> event = choose_event({"shift": (noise[0] + 1.0, noise[1])}, delta=0.01)
>>> event.statistic
'shift'
>>> bool(0.5 < epsilon_bound(2300, 500, trials=4000, delta=0.01, miss=0.025) < 1.6)
True

*Trials.* Every trial runs the production code with a fresh key: plan, reservation, curator, exact sum, keyed noise and
mechanism. The first half of the trials chooses an event (pair of neighbours, statistic, direction, threshold). The
second half runs on the chosen pair only and counts the event. The false-alarm rate is at most ``1 - confidence``. Keys
come from a seed, so an audit is reproducible.

*Subspace mechanisms.* `SUBSPACE_AUDIT` holds their settings, their neighbours, and a statistic of the published
directions.

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
    """The event that a statistic reaches a threshold.

    Reached upwards, it indicates the left dataset; reached downwards, the right dataset.
    """

    statistic: str
    threshold: float
    upwards: bool

    def count(self, samples: Samples) -> tuple[int, int]:
        """Count the event on the dataset that it indicates, and on the other dataset."""
        left, right = (
            int(np.count_nonzero(values >= self.threshold if self.upwards else values <= self.threshold))
            for values in samples
        )
        return (left, right) if self.upwards else (right, left)


def proportion_bounds(count: ArrayLike, *, trials: int, miss: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bound a probability from below and from above; each bound is wrong with probability at most ``miss``."""
    seen = np.asarray(count, np.float64)
    low = np.where(seen > 0, betaincinv(np.maximum(seen, 1.0), trials - seen + 1.0, miss), 0.0)
    high = np.where(seen < trials, betaincinv(seen + 1.0, np.maximum(trials - seen, 1.0), 1.0 - miss), 1.0)
    return low, high


def epsilon_bound(count: ArrayLike, other: ArrayLike, *, trials: int, delta: float, miss: float) -> NDArray[np.float64]:
    """Bound epsilon from below by the counts of an event on two neighbours; 0 if the counts prove nothing.

    Parameters
    ----------
    count, other : int or array of int
        The number of occurrences of the event in ``trials`` trials on each dataset.
    trials : int
        The number of trials on each dataset.
    delta : float
        The delta of the claim.
    miss : float
        The error probability of the bound on each of the two proportions. The error probability of the result is twice
        as large.
    """
    ratio = _bounded_ratio(count, other, trials=trials, delta=delta, miss=miss)
    return np.log(np.maximum(ratio, 1.0))


def choose_event(samples: Mapping[str, Samples], *, delta: float) -> Event:
    """Return the event with the largest cautious bound, over statistics, directions and thresholds."""
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
    """Build a registered mechanism for the audit, with one component and few steps.

    Raises
    ------
    InvalidInput
        When no mechanism has the name.
    """
    if name not in MECHANISMS:
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(sorted(MECHANISMS))}.")
    kind = MECHANISMS[name]
    mechanism: Mechanism[Subspace] = kind(n_components=1, **getattr(kind, "audited_with", {}))
    return mechanism


def audited_problem(relation: Relation) -> Problem:
    """Return a problem with two features; noise in more features would only hide the difference."""
    return Problem(n_features=2, clip_norm=1.0, relation=relation)


def neighbours_of(name: str, problem: Problem) -> tuple[Neighbours, ...]:
    """Return the worst pairs known for a mechanism."""
    known = gapped_neighbours if getattr(MECHANISMS.get(name), "needs_gap", False) else worst_neighbours
    return known(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


def along_difference(pair: Neighbours, problem: Problem) -> Callable[[Subspace], float]:
    """Return a statistic of a subspace: its reconstructed second moment, projected on the difference of a pair."""
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
    """The result of an audit.

    ``bound`` is a lower bound on the true epsilon at the claim's delta. It is wrong with probability at most
    ``1 - confidence``. ``attack`` names the statistic and the pair of neighbours.
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
        """True if the bound does not contradict the claim."""
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
    """Audit a mechanism in one relation.

    Parameters
    ----------
    mechanism : Mechanism
    relation : {"add_remove", "zero_out", "replace_one"}
    subject : AuditSubject
        The family of the mechanism.
    problem : Terms, optional
        The public facts, in that relation; by default the problem of the family's audit.
    pairs : sequence of Neighbours, optional
        The datasets to distinguish; by default the worst known ones.
    target : PrivacyTarget
        The claim. A mechanism whose plan is pure is tested at delta 0.
    trials : int
        Runs on each dataset of the chosen pair; one half chooses the event, the other counts it.
    confidence : float
        The confidence of the bound over both directions, all statistics and all pairs.
    seed : int
        The seed of the trials' keys.
    progress : callable, optional
        Called with the number of finished runs and the total number of runs, including other pairs.

    Returns
    -------
    Finding
    """
    if trials < 2 or not 0 < confidence < 1:
        raise InvalidInput(
            f"trials={trials} must be at least 2 and confidence={confidence} strictly between 0 and 1; "
            "4000 trials at 0.95 detect noise that is a third too small."
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
    """Return whether the event of every step is pure."""
    return all(step["name"] == "laplace" or step.get("delta") == 0 for step in events.steps(plan.event))


class _Count:
    """A counter of runs that reports each finished run."""

    def __init__(self, *, runs: int, report: Callable[[int, int], None] | None) -> None:
        self._runs, self._report, self._done = runs, report, 0

    def one_more(self) -> None:
        """Count and report a finished run."""
        self._done += 1
        if self._report is not None:
            self._report(self._done, self._runs)


class _Trials:
    """The trials of a mechanism on both datasets of a pair, run on request."""

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
        """The values of each statistic on both datasets; 0, which favours neither, if a trial has no value."""

    def run(self, upto: int) -> None:
        """Run the trials before number ``upto`` that were not run yet."""
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
        """Return the values of each statistic on both datasets, in the trials from ``first`` to before ``last``."""
        return {name: (left[first:last], right[first:last]) for name, (left, right) in self.values.items()}
