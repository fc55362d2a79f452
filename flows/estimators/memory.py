"""A budget in memory: it admits releases while they fit, and keeps the release of each slot."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any, Self

from dpca_tasks.accounting.charges import Charge, add
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.privacy.gate import InMemoryReservation
from flows.estimators.fits import Fit
from flows.estimators.tables import TableRows
from flows.families.base import PlannedRelease
from flows.families.table import family_of
from flows.releases.planning import plan_in
from flows.releases.running import run_mechanism
from storage.artifacts.base import Artifact
from storage.datasets.catalog import Entry
from storage.errors import BudgetExhausted, Invalid
from storage.ledger.budgets import Budget
from storage.privacy_unit import PrivacyUnit

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
    Each fit is a new release and a new charge, whatever its rows. With ``slot=`` it is the release of that slot, which
    is charged once. A copy is the same budget; one that is unpickled, or forked, admits nothing.
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
                **PrivacyUnit().facts,
            )
        self.relation = relation
        self._process: int | None = os.getpid()
        self._total: Charge | None = None if self.terms is None else self.terms.build_filter().zero
        self._charged = 0
        self._fits = Counter[str]()
        self._slots: dict[str, _Held] = {}
        self._made: list[Artifact] = []
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
        """The artifacts that were released, in order."""
        return tuple(self._made)

    def release(self, fit: Fit) -> Made:
        """Return the release of a fit's slot, or charge a new one and make it.

        A fit with a slot that was charged and then stopped is finished from the rows of that charge.

        Raises
        ------
        Conflict
            When the slot was charged with other terms.
        BudgetExhausted
            When a new release does not fit. Nothing is charged.
        """
        fit = fit.of(_NAME, published=_NAME, relation=fit.relation or self.relation)
        with self._lock:
            held = None if fit.slot is None else self._slots.get(fit.slot)
            if held is None:
                held = self._charge(fit)
            elif held.terms != fit.terms:
                raise fit.other_terms(held.terms)
            elif held.under_way is not None:
                self._check_process()
            if held.under_way is not None:
                self._finish(held, *held.under_way)
            return Made(artifact=held.artifact)

    def _charge(self, fit: Fit) -> "_Held":
        """Plan a release and charge it; a slot holds it from then on."""
        rows = fit.read_rows(copied=fit.slot is not None)
        entry = Entry(
            snapshot="",
            name=_NAME,
            population=_NAME,
            n_features=fit.columns.n_features,
            records_at_most=fit.records_at_most,
            path="",
            content_digest="",
            created_at="",
        )
        planned = plan_in(fit.relation or self.relation, entry, fit.request, unit=PrivacyUnit())
        family_of(planned.request).refuse_noise(planned)
        if self.terms is not None or self._process is None:
            self._check_process()
        total = self._total_with(planned)
        fit.warn_if_repeated(self._fits, payer=self)
        self._total, self._charged = total, self._charged + 1
        fit.note_charge(self._fits)
        reservation = InMemoryReservation(
            event=planned.plan.event,
            relation=fit.relation or self.relation,
            content=rows.content,
            release_id=f"{_NAME}-{self._charged - 1}",
        )
        held = _Held(terms=fit.terms, planned=planned, under_way=(reservation, rows))
        if fit.slot is not None:
            self._slots[fit.slot] = held
        return held

    def _finish(self, held: "_Held", reservation: InMemoryReservation, rows: TableRows) -> None:
        """Make a charged release, then let go of its key and its rows."""
        planned, family = held.planned, family_of(held.planned.request)
        result = run_mechanism(planned, family.source(planned, rows), reservation)
        held.artifact = family.state(
            planned, result, release_id=reservation.release_id, feature_names=rows.feature_names()
        )
        held.under_way = None
        self._made.append(held.artifact)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise BudgetExhausted(
                "this in-memory budget was opened by another process, which alone can spend it; fit there, or pass a "
                "budget of a ledger."
            )

    def _total_with(self, planned: PlannedRelease[Any]) -> Charge | None:
        """Return what all releases cost together with a planned one.

        Raises
        ------
        BudgetExhausted
            When the budget does not admit it.
        """
        if self.terms is None or self._total is None:
            return None
        rules, target = self.terms.build_filter(), planned.plan.target
        total = add(self._total, rules.charge_after(self._total, planned.plan.event, delta=target.delta))
        if not rules.admits(total):
            raise BudgetExhausted(
                f"epsilon={target.epsilon:g} at delta={target.delta:g} does not fit into {self!r}, of which "
                f"epsilon={self.remaining:.4g} is left; request less, or the slot of an earlier release."
            )
        return total

    def _bounded(self) -> tuple[float, float]:
        if self.terms is None or self._total is None:
            raise Invalid(f"{self!r} has no bound, so nothing adds up; state an epsilon and a delta to count with.")
        rules = self.terms.build_filter()
        return rules.spent(self._total), rules.remaining(self._total)


@dataclass(slots=True, kw_only=True)
class _Held:
    """A charged release; until it is made, its reservation and the rows that it was charged for are held."""

    terms: Mapping[str, Any]
    planned: PlannedRelease[Any]
    under_way: tuple[InMemoryReservation, TableRows] | None
    artifact: Artifact | None = None


def _closed_budget() -> InMemoryBudget:
    budget = InMemoryBudget()
    budget._process = None
    return budget


SESSION = InMemoryBudget()
"""The budget of estimators without one: it bounds nothing, and keeps the releases of this process."""
