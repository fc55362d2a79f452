"""Identification of a fit by its public arguments, and a privacy budget in memory.

A release is identified by arguments of the fit, never by its rows. Without a slot, each fit is a new release and a new
charge. A slot names one release of a budget. It keeps the rows of the fit that was charged, and rows passed later are
not read.

A budget in memory admits releases while they fit, and keeps the release of each slot.
"""

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, Self

import numpy as np
import sklearn

from dpca.artifacts.base import Artifact
from dpca.errors import BudgetExhausted, Conflict, Invalid
from dpca.privacy_unit import PrivacyUnit
from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.prices import Charge, add
from dpca_tasks.errors import InvalidInput
from dpca_tasks.privacy.gate import InMemoryReservation
from flows.estimators.tables import Columns, TableRows
from flows.families import columns as declared
from flows.families.base import PlannedRelease, family_of
from flows.releases.running import run_mechanism
from flows.releases.stages import plan_in
from flows.requests import Request
from storage.datasets.catalog import Entry
from storage.ledger.budgets import Budget

LONGEST_SLOT = 100
_PARAMETERS = {"components": "n_components", "rank": "n_components", "publish": "published name"}
"""By field of a request: the name of the estimator's parameter, where the two names differ."""
_RESOLVED = ("mechanism", "settings")
"""Fields of a stored request that contain the choice made for ``mechanism="auto"``."""
LIBRARIES = (str(Path(__file__).parent), str(Path(sklearn.__file__).parent))


class RepeatedFitWarning(UserWarning):
    """Warning that a fit without ``slot=`` charges again for parameters that this process charged before."""


class NoLedgerWarning(UserWarning):
    """Warning that a fit has no budget, so nothing bounds or records the sum of several fits."""


class LearnedStepWarning(UserWarning):
    """Warning that an earlier step of a Pipeline learned from the rows without noise, outside the guarantee."""


class ReadRows(Protocol):
    """A function that checks and reads the rows of a fit."""

    def __call__(self, *, copied: bool = False) -> TableRows:
        """Return the rows; ``copied`` if later changes by the caller must not affect them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One call of ``fit``.

    Attributes
    ----------
    request : Request
    columns : Columns
    read_rows : ReadRows
        Called only for a new release.
    relation : str or None
    records_at_most : int or None
    slot : str or None
    """

    request: Request
    columns: Columns
    read_rows: ReadRows
    relation: Relation | None
    records_at_most: int | None
    slot: str | None

    def __post_init__(self) -> None:
        """Refuse a slot that is not a short line of printable text."""
        if self.slot is None:
            return
        if not isinstance(self.slot, str) or not self.slot.strip() or not self.slot.isprintable():
            raise InvalidInput(f"slot={self.slot!r} must be printable text; pass a name such as 'fold-1', or None.")
        if len(self.slot) > LONGEST_SLOT:
            raise InvalidInput(
                f"slot has {len(self.slot)} characters, but at most {LONGEST_SLOT} are allowed; pass a shorter name."
            )

    def of(self, dataset: str, *, published: str, relation: Relation) -> Self:
        """Return the fit with the relation of its budget, and with the budget's dataset and published name."""
        return replace(self, request=replace(self.request, dataset=dataset, publish=published), relation=relation)

    @property
    def parameters(self) -> dict[str, Any]:
        """The public arguments without the columns, as JSON values."""
        request = {**asdict(self.request), "family": self.request.family}
        terms = {**request, "relation": self.relation, "records_at_most": self.records_at_most}
        read: dict[str, Any] = json.loads(json.dumps(terms, default=_plain))
        return read

    @property
    def terms(self) -> dict[str, Any]:
        """All public arguments, as JSON values."""
        names = self.columns.names
        columns = {"number of columns": self.columns.n_features, "column names": None if names is None else list(names)}
        return {**self.parameters, **columns}

    @property
    def digest(self) -> str:
        """SHA-256 digest of the terms."""
        return hashlib.sha256(_text(self.terms).encode()).hexdigest()

    def warn_of_no_ledger(self) -> None:
        """Warn that no budget bounds this fit."""
        warnings.warn(
            f"no budget was passed: this fit spends epsilon={self.request.epsilon:g} at "
            f"delta={self.request.delta:g}, and the total of several fits is neither bounded nor recorded; pass "
            "budget=dpca.open_budget(POPULATION, ...), or dpca.Budget(...) in memory.",
            NoLedgerWarning,
            skip_file_prefixes=LIBRARIES,
        )

    def warn_if_repeated(self, charged: Counter[str], *, payer: object) -> None:
        """Warn before a fit without a slot charges again; ``charged`` counts such fits by their parameters.

        The message contains parameters and a count, which are public.
        """
        before = charged[_text(self.parameters)]
        if self.slot is None and before:
            request = self.request
            warnings.warn(
                f"fit {before + 1} with equal parameters on {payer!r} in this process is a separate "
                f"release, and charges epsilon={request.epsilon:g} at delta={request.delta:g} again; pass slot='NAME' "
                "so that later fits return one release.",
                RepeatedFitWarning,
                skip_file_prefixes=LIBRARIES,
            )

    def note_charge(self, charged: Counter[str]) -> None:
        """Count a charged fit if it has no slot."""
        if self.slot is None:
            charged[_text(self.parameters)] += 1

    def other_terms(self, stored: Mapping[str, Any]) -> Conflict:
        """Return the error for a slot charged with other terms; it names the terms that differ from ``stored``."""
        left_open = _RESOLVED if self.request.mechanism == "auto" else ()
        differing = [
            _PARAMETERS.get(name, name)
            for name, value in self.terms.items()
            if name in stored and name not in left_open and stored[name] != value
        ]
        named = ", ".join(differing) or "column names or public bounds"
        return Conflict(
            f"slot {self.slot!r} was charged with other terms ({named}), and a slot has one "
            "release; pass the same terms, or another slot."
        )


def _text(terms: Mapping[str, Any]) -> str:
    return json.dumps(dict(terms), sort_keys=True)


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, and any other object as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


_NAME = "in-memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A release of an estimator, with its artifact and, if it is published, its version."""

    artifact: Any
    published: str | None = None


class InMemoryBudget:
    """Privacy budget of a population for the lifetime of this process.

    Parameters
    ----------
    epsilon, delta : float, optional
        Bound on the total cost of all releases. Without it, every release is admitted and has only its own guarantee.
    relation : {"add_remove", "zero_out", "replace_one"}

    Notes
    -----
    Each fit is a new release and a new charge, whatever its rows. A fit with ``slot=`` returns the release of that
    slot, which is charged once. A copy is the same budget. An unpickled budget admits nothing, and neither does a
    bounded budget in a forked process.

    See Also
    --------
    dpca.open_budget : a persistent budget, in the ledger of this home.

    Examples
    --------
    >>> import dpca
    >>> import numpy as np
    >>> rows, budget = np.ones((1000, 3)), dpca.Budget(epsilon=1, delta=1e-6)
    >>> _ = dpca.PrivatePCA(1, epsilon=0.8, delta=1e-7, clip_norm=1, budget=budget).fit(rows)
    >>> _ = dpca.PrivatePCA(1, epsilon=0.8, delta=1e-7, clip_norm=2, budget=budget).fit(rows)
    Traceback (most recent call last):
    dpca.errors.BudgetExhausted: ...
    """

    def __init__(
        self, epsilon: float | None = None, delta: float | None = None, *, relation: Relation = "add_remove"
    ) -> None:
        if (epsilon is None) != (delta is None):
            raise Invalid(
                f"epsilon={epsilon!r} and delta={delta!r} bound a budget only together; state both, or neither."
            )
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
        """Return the terms as text."""
        if self.terms is None:
            return "InMemoryBudget()"
        return f"InMemoryBudget(epsilon={self.terms.epsilon:g}, delta={self.terms.delta:g})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the budget itself, because a copy could be spent again."""
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
        """The released artifacts, in order."""
        return tuple(self._made)

    def release(self, fit: Fit) -> Made:
        """Return the release of a fit's slot, or charge and make a new release.

        If the release of a slot was charged and then interrupted, it is finished from the rows of that charge.

        Raises
        ------
        Conflict
            When the slot was charged with other terms.
        BudgetExhausted
            When the budget does not admit a new release. Nothing is charged.
        """
        fit = fit.of(_NAME, published=_NAME, relation=fit.relation or self.relation)
        with self._lock:
            held = None if fit.slot is None else self._slots.get(fit.slot)
            if held is None:
                held = self._charge(fit)
            elif held.terms != fit.terms:
                raise fit.other_terms(held.terms)
            elif held.unfinished is not None:
                self._check_process()
            if held.unfinished is not None:
                self._finish(held, *held.unfinished)
            return Made(artifact=held.artifact)

    def _charge(self, fit: Fit) -> "_Held":
        """Plan and charge a release, and store it under the slot of the fit, if it has one."""
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
        held = _Held(terms=fit.terms, planned=planned, unfinished=(reservation, rows))
        if fit.slot is not None:
            self._slots[fit.slot] = held
        return held

    def _finish(self, held: "_Held", reservation: InMemoryReservation, rows: TableRows) -> None:
        """Compute a charged release, then drop its key and its rows."""
        planned, family = held.planned, family_of(held.planned.request)
        result = run_mechanism(family.ready(planned), family.source(planned, rows), reservation)
        columns = declared.Columns(
            table="X", n_features=rows.n_features, names=rows.feature_names(), encoder=rows.encoder()
        )
        artifact = family.state(planned, result, release_id=reservation.release_id, columns=columns)
        held.artifact = artifact.with_encoder(columns.encoder)
        held.unfinished = None
        self._made.append(held.artifact)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise BudgetExhausted(
                "this in-memory budget was opened by another process, and only that process can spend "
                "it; fit there, or pass a budget of a ledger."
            )

    def _total_with(self, planned: PlannedRelease[Any]) -> Charge | None:
        """Return the total charge of all releases including a planned one.

        Raises
        ------
        BudgetExhausted
            When the budget does not admit the planned release.
        """
        if self.terms is None or self._total is None:
            return None
        rules, target = self.terms.build_filter(), planned.plan.target
        total = add(self._total, rules.charge_after(self._total, planned.plan.event, delta=target.delta))
        if not rules.admits(total):
            raise BudgetExhausted(
                f"epsilon={target.epsilon:g} at delta={target.delta:g} does not fit into {self!r}, "
                f"which has epsilon={self.remaining:.4g} left; request less, or pass the slot of an earlier release "
                "to get that release again."
            )
        return total

    def _bounded(self) -> tuple[float, float]:
        if self.terms is None or self._total is None:
            raise Invalid(f"{self!r} has no bound, so it keeps no total; state an epsilon and a delta to keep one.")
        rules = self.terms.build_filter()
        return rules.spent(self._total), rules.remaining(self._total)


@dataclass(slots=True, kw_only=True)
class _Held:
    """A charged release, which holds its reservation and its rows until it is computed."""

    terms: Mapping[str, Any]
    planned: PlannedRelease[Any]
    unfinished: tuple[InMemoryReservation, TableRows] | None
    artifact: Artifact | None = None


def _closed_budget() -> InMemoryBudget:
    budget = InMemoryBudget()
    budget._process = None
    return budget


SESSION = InMemoryBudget()
"""Default budget of estimators without a budget; it bounds nothing, and keeps the releases of this process."""
