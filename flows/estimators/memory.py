"""A budget in memory: it admits releases while they fit, and keeps each, so that asking again costs nothing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Self

from dpca_tasks.accounting.charges import Charge, add
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.privacy.reservation import InMemoryReservation
from flows.estimators.tables import TableRows
from flows.families.base import PlannedRelease
from flows.families.table import family_of
from flows.releases.planning import plan_in
from flows.releases.running import run_mechanism
from flows.requests.base import Request
from storage.artifacts.base import Artifact
from storage.datasets.catalog import Entry
from storage.errors import BudgetExhausted, Invalid
from storage.ledger.budgets import Budget

_NAME = "in-memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A release that an estimator got: its artifact, and the version under which it is published, if it is."""

    artifact: Any
    published: str | None = None


class InMemoryBudget:
    """The privacy budget of some people, for the life of this process.

    Parameters
    ----------
    epsilon, delta : float, optional
        What all releases together may cost. Without them every release is admitted, and keeps its own guarantee alone.
    relation : {"add_remove", "zero_out", "replace_one"}

    Notes
    -----
    The same rows and request are the same release: it is kept, returned again, and charged once. Other rows are another
    release and another charge. A copy is the same budget; one that is unpickled, or forked, admits nothing.
    """

    def __init__(
        self, epsilon: float | None = None, delta: float | None = None, *, relation: Relation = "add_remove"
    ) -> None:
        if (epsilon is None) != (delta is None):
            raise Invalid(f"epsilon={epsilon!r} and delta={delta!r} bound a budget together; state both, or neither.")
        self.terms: Budget | None = None
        if epsilon is not None and delta is not None:
            self.terms = Budget(
                population=_NAME,
                epsilon=epsilon,
                delta=delta,
                failure_delta=delta / 10,
                relation=relation,
                filter="gdp",
                unit="record",
            )
        self.relation = relation
        self._process: int | None = os.getpid()
        self._total: Charge | None = None if self.terms is None else self.terms.build_filter().zero
        self._begun: dict[str, InMemoryReservation] = {}
        self._made: dict[str, Artifact] = {}
        self._lock = RLock()

    def __repr__(self) -> str:
        """Show the terms."""
        if self.terms is None:
            return "InMemoryBudget()"
        return f"InMemoryBudget(epsilon={self.terms.epsilon:g}, delta={self.terms.delta:g})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the budget itself: a copy would be money out of nothing."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a budget that admits nothing."""
        return _closed_budget, ()

    @property
    def spent(self) -> float:
        """The composed epsilon of all releases at the budget's delta, rounded up."""
        return self._bounded()[0]

    @property
    def remaining(self) -> float:
        """The largest epsilon of one more Gaussian release at the budget's delta, rounded down."""
        return self._bounded()[1]

    @property
    def releases(self) -> tuple[Artifact, ...]:
        """What was released, in order: one artifact a request on rows."""
        return tuple(self._made.values())

    def release(self, request: Request, rows: TableRows, *, relation: Relation, records_at_most: int | None) -> Made:
        """Return the release of a request on rows: the kept one, or one that is charged and made now.

        Raises
        ------
        BudgetExhausted
            When it does not fit. Nothing is charged.
        """
        entry = Entry(
            snapshot=rows.content,
            name=_NAME,
            population=_NAME,
            n_features=rows.n_features,
            records_at_most=records_at_most,
            path="",
            content_digest=rows.content,
            created_at="",
        )
        planned = plan_in(relation, entry, replace(request, dataset=_NAME, publish=_NAME))
        family, key = family_of(planned.request), f"{relation}/{planned.fingerprint}"
        with self._lock:
            if key not in self._made:
                family.refuse_noise(planned)
                reservation = self._begun.get(key) or self._reserve(key, planned, relation, content=rows.content)
                result = run_mechanism(planned, family.source(planned, rows), reservation)
                self._made[key] = family.state(
                    planned, result, release_id=reservation.release_id, feature_names=rows.feature_names()
                )
                del self._begun[key]
            artifact = self._made[key]
        restated = family.restate(planned.request, artifact, parent=_NAME)
        return Made(artifact=_named(artifact if restated is None else restated, rows.feature_names()))

    def _reserve(
        self, key: str, planned: PlannedRelease[Any], relation: Relation, *, content: str
    ) -> InMemoryReservation:
        """Charge a release, and keep its reservation until it is made: a failed one goes on where it stopped."""
        if self._process is None or (self.terms is not None and self._process != os.getpid()):
            raise BudgetExhausted(
                "this in-memory budget was opened by another process, which alone can spend it; fit there, or pass a "
                "budget of a ledger."
            )
        if self.terms is not None and self._total is not None:
            rules, target = self.terms.build_filter(), planned.plan.target
            total = add(self._total, rules.charge_after(self._total, planned.plan.event, delta=target.delta))
            if not rules.admits(total):
                raise BudgetExhausted(
                    f"epsilon={target.epsilon:g} at delta={target.delta:g} does not fit into {self!r}, of which "
                    f"epsilon={self.remaining:.4g} is left; ask for less, or for a release that was made before."
                )
            self._total = total
        reservation = InMemoryReservation(
            event=planned.plan.event, relation=relation, content=content, release_id=f"{_NAME}-{len(self._made)}"
        )
        self._begun[key] = reservation
        return reservation

    def _bounded(self) -> tuple[float, float]:
        if self.terms is None or self._total is None:
            raise Invalid(f"{self!r} has no bound, so nothing adds up; state an epsilon and a delta to count with.")
        rules = self.terms.build_filter()
        return rules.spent(self._total), rules.remaining(self._total)


def _named(artifact: Any, names: Sequence[str] | None) -> Any:
    """Return an artifact that states the names of the columns of these rows, which equal rows may have others of."""
    return (
        artifact if names is None else replace(artifact, manifest={**artifact.manifest, "feature_names": list(names)})
    )


def _closed_budget() -> InMemoryBudget:
    budget = InMemoryBudget()
    budget._process = None
    return budget


SESSION = InMemoryBudget()
"""The budget of estimators without one: it bounds nothing, and keeps what was released in this process."""
