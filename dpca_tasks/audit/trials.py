"""An audit: many runs of a mechanism on worst-case neighbours, and a lower bound on its epsilon.

Every trial runs the production code: plan, reservation, curator, exact sum, keyed noise, mechanism, with a fresh key.
The first half of the trials chooses an event (pair of neighbours, statistic, direction, threshold); the second half is
run on the chosen pair only, and counts it. The false-alarm rate is at most ``1 - confidence``. Keys come from a seed,
so an audit is reproducible.

>>> from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
>>> audit_mechanism(AnalyzeGauss(n_components=1), relation="add_remove", trials=200).passed
True
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.attacks import Attacker, RecordingCurator
from dpca_tasks.audit.bounds import Samples, choose_event, epsilon_bound
from dpca_tasks.audit.neighbours import AuditSubject, Neighbours
from dpca_tasks.audit.subspace import SUBSPACE_AUDIT
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Terms
from dpca_tasks.privacy.gate import InMemoryReservation

TARGET = PrivacyTarget(epsilon=1.0, delta=0.1, allow_large_delta=True)
"""The audited claim. With a larger delta the distinguishing events are more common, so fewer trials suffice.

The code from the claim to the noise is the same for every delta: at this one, 4000 trials detect noise that is too
small by ``sqrt 2``; at 0.001 that takes ten times as many.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of an audit.

    ``bound`` is a lower bound on the true epsilon at the claim's delta, wrong with probability at most
    ``1 - confidence``; ``attack`` names the statistic and the pair of neighbours.
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
        """Whether the bound does not contradict the claim."""
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
        The public facts, in that relation; by default those of the family's audit.
    pairs : sequence of Neighbours, optional
        The datasets to distinguish; by default the worst known ones.
    target : PrivacyTarget
        The claim. A mechanism whose plan is pure is tested at delta 0.
    trials : int
        Runs on each dataset of the chosen pair; half choose the event, half count it.
    confidence : float
        The confidence of the bound over both directions, all statistics and all pairs.
    seed : int
        The seed of the trials' keys.
    progress : callable, optional
        Called with the number of finished runs and the number of all, other pairs included.

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
    """Tell whether the event of every step is pure."""
    return all(step["name"] == "laplace" or step.get("delta") == 0 for step in events.steps(plan.event))


class _Count:
    """A count of runs that reports each."""

    def __init__(self, *, runs: int, report: Callable[[int, int], None] | None) -> None:
        self._runs, self._report, self._done = runs, report, 0

    def one_more(self) -> None:
        """Count and report a finished run."""
        self._done += 1
        if self._report is not None:
            self._report(self._done, self._runs)


class _Trials:
    """The trials of a mechanism on both datasets of a pair, of which as many are run as were asked for so far."""

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
        """The values of each statistic on both datasets; 0, which favours neither, where a trial has no value."""

    def run(self, upto: int) -> None:
        """Run the trials before number `upto` that were not run yet."""
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
        """Return the values of each statistic on both datasets, in the trials from `first` to before `last`."""
        return {name: (left[first:last], right[first:last]) for name, (left, right) in self.values.items()}
