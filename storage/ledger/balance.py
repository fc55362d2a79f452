"""Balance of a budget, explanations of refused charges, and the ledger interface that a release uses.

The balance states the allowed, spent and remaining budget, now and after each release. It is read in the caller's
database transaction. Explanations state why a charge is refused, and what the budget still admits. They are computed
from public numbers only. `ReleaseLedger` is the interface that a release uses. It is implemented by `Ledger`, which
accesses the database, and by clients of a remote ledger.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import sqlalchemy as sa

from dpca.errors import BudgetExhausted
from dpca_tasks.accounting import filters, prices
from dpca_tasks.accounting.events import Event, is_private, parts_of
from dpca_tasks.accounting.prices import Charge
from storage.ledger.budgets import Budget, charged_to, ensure_total, read_budget, read_total
from storage.ledger.releases import Grant, Release, actors_of, charges_of, releases_of, versions_of
from storage.ledger.step_answers import Reservation

BOUNDS: Mapping[str, str] = {"gdp": "the Gaussian that dominates it", "renyi": "randomized response of its epsilon"}
"""For each privacy filter, the mechanism whose privacy loss bounds an event known only by (epsilon, delta)."""


def knows_samples(budget: Budget) -> bool:
    """Return whether a budget has a separate accounting for subsampled events.

    If not, a subsampled event is charged like an event known only by (epsilon, delta).
    """
    return budget.filter == "renyi" and budget.relation != "replace_one"


def refusal(
    budget: Budget, charged: Charge, charge: Charge, event: Event, requested: Mapping[str, Any]
) -> BudgetExhausted:
    """Return the error that explains why a budget does not admit a charge.

    ``charged`` is the total before, ``charge`` the refused charge, and ``requested`` the (epsilon, delta) of the
    request.
    """
    rules = budget.build_filter()
    if not is_private(event):
        return BudgetExhausted(
            f"budget {budget.population!r} cannot admit a release without privacy, whose epsilon is infinite; nothing "
            "was charged: to release it anyway, give --i-know-this-is-not-private, which voids the budget permanently."
        )
    if math.isinf(rules.spent(charged)):
        return BudgetExhausted(
            f"budget {budget.population!r} was voided by a release without privacy, so it no longer has a guarantee; "
            "nothing was charged: it admits no further private release of these people."
        )
    if any(charge[:2]) and (left := rules.own_left(charged)) is not None:
        return BudgetExhausted(
            f"budget {budget.population!r} has epsilon {left[0]:.6g} and delta {left[1]:.6g} left for one release "
            f"with a standalone charge (its epsilon and delta are subtracted from the budget), and "
            f"{rules.spent(charge):.6g} at delta {charge[1] / filters.DELTA_UNITS:.6g} was requested; nothing was "
            "charged: request less, or stop here."
        )
    if rules.failures(prices.add(charged, charge)) > budget.failure_delta:
        return BudgetExhausted(
            f"{_no_failures(budget, charged, charge)}; nothing was charged: {_remedy(budget, charged)}"
        )
    if _is_bounded(budget, event):
        return BudgetExhausted(
            f"budget {budget.population!r} has epsilon {rules.remaining(charged):.6g} left for one Gaussian release; "
            f"since the first Gaussian release, each event that is not Gaussian is charged as {BOUNDS[budget.filter]}: "
            f"a request of epsilon {requested['epsilon']:g} at delta {requested['delta']:g} would take epsilon "
            f"{rules.spent(charge):.6g}; nothing was charged: {_remedy(budget, charged)}"
        )
    return _exhausted(budget.population, left=rules.remaining(charged), **requested)


def _no_failures(budget: Budget, charged: Charge, charge: Charge) -> str:
    """Explain why a budget refuses an event known only by (epsilon, delta), after its first Gaussian release.

    Such an event needs a part of `failure_delta`.
    """
    rules = budget.build_filter()
    requested = f"{rules.failures(charge):.6g}"
    if not budget.failure_delta:
        return (
            f"budget {budget.population!r} was opened with failure_delta=0, so after its first Gaussian release it "
            f"admits no release whose guarantee is known only as (epsilon, delta); one of delta {requested} was "
            "requested"
        )
    return (
        f"budget {budget.population!r} reserves failure_delta={budget.failure_delta:g} for releases whose guarantee is "
        f"known only as (epsilon, delta), after its first Gaussian release; {rules.failures(charged):.6g} of it is "
        f"used and {requested} was requested"
    )


def _exhausted(population: str, *, epsilon: float, delta: float, left: float) -> BudgetExhausted:
    """Return the error for an exhausted budget, with the requested and the remaining epsilon; both are public."""
    return BudgetExhausted(
        f"budget {population!r} has epsilon {left:.6g} left for one release, and {epsilon:g} at delta {delta:g} was "
        "requested; nothing was charged: request less, or stop here."
    )


def _remedy(budget: Budget, charged: Charge) -> str:
    """Return advice for a refused event that is not Gaussian: use a Gaussian mechanism, or the largest request."""
    rules = budget.build_filter()
    if not rules.remaining(charged) > 0:
        return "stop here."
    gaussian = "use a Gaussian mechanism such as analyze_gauss"
    left = budget.failure_delta - rules.failures(charged)
    delta = _written(left, lambda delta: _admits(rules, charged, epsilon=0.0, delta=delta))
    largest = _bounded_left(rules, charged, delta=float(delta))
    epsilon = _written(largest, lambda epsilon: _admits(rules, charged, epsilon=epsilon, delta=float(delta)))
    if not float(epsilon) > 0:
        return f"{gaussian}."
    pure = "" if float(delta) else " (pure differential privacy)"
    return f"{gaussian}, or request at most --epsilon {epsilon} and --delta {delta}{pure}."


def _written(value: float, fits: Callable[[float], bool]) -> str:
    """Format a number with six digits, slightly reduced if necessary, so that the formatted number satisfies `fits`.

    Return "0" if no such number is found.
    """
    written = (f"{value * (1 - shaved):.6g}" for shaved in (0.0, 1e-5))
    return next((text for text in written if float(text) > 0 and fits(float(text))), "0")


def _is_bounded(budget: Budget, event: Event) -> bool:
    """Return whether the budget charges a part of an event by an upper bound on its privacy loss."""
    parts = parts_of(event)
    return bool(parts.approximate or (parts.sampled and not knows_samples(budget)))


def _bounded_left(rules: filters.PrivacyFilter, total: Charge, *, delta: float) -> float:
    """Return the largest epsilon of one more release that is known only by (epsilon, delta).

    The result holds once the budget has begun to compose releases; see `dpca_tasks.accounting.filters`.
    """
    low, high = 0.0, rules.epsilon
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _admits(rules, total, epsilon=middle, delta=delta) else (low, middle)
    return low


def _admits(rules: filters.PrivacyFilter, total: Charge, *, epsilon: float, delta: float) -> bool:
    event = {"name": "approximate", "epsilon": epsilon, "delta": delta}
    return rules.admits(prices.add(total, rules.charge(event, delta=delta)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The allowed, spent and remaining budget of a population, with a list of releases.

    ``spent`` is the epsilon of the composition of all releases at the budget's delta, rounded up. ``remaining`` is the
    largest epsilon of one more Gaussian release at the same delta, rounded down so that a request for this epsilon is
    admitted. ``spent`` and ``remaining`` do not add up to the budget, because composition is not a sum. ``releases``
    are all releases or only the newest, oldest first, and ``earlier`` is the number of releases before these.
    ``published`` maps the digest of each artifact to the versions with this artifact, such as ``news@3``. ``left`` maps
    the id of each charged release to the budget that remained after the release, if that was requested. ``actors`` maps
    the id of each release to the user who reserved it.
    """

    budget: Budget
    spent: float
    remaining: float
    releases: tuple[Release, ...]
    earlier: int = 0
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left: Mapping[str, float] = field(default_factory=dict)
    actors: Mapping[str, str] = field(default_factory=dict)

    def after(self, quote: "Quote") -> float:
        """Return what would remain after a quoted release, or what remains now if the quote is refused."""
        return self.remaining if quote.refusal is not None else self.budget.build_filter().remaining(quote.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The total of a budget after one more release, as epsilon and as a charge; the error if the release is refused."""

    spent: float
    total: Charge
    refusal: BudgetExhausted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Equal shares of a remaining budget for ``runs`` more Gaussian releases.

    ``epsilon_each`` is the largest epsilon at ``delta_each`` with which all of these releases are admitted, or 0 if
    there is none. ``remaining`` is the largest epsilon of one more Gaussian release now, and ``after`` the same after
    these releases. ``state`` is ``voided`` after a release without privacy, ``exhausted`` if not even one more release
    is admitted, and otherwise ``open``.
    """

    runs: int
    remaining: float
    epsilon_each: float
    delta_each: float
    after: float
    state: Literal["open", "exhausted", "voided"]


def read_charged(connection: sa.Connection, population: str) -> tuple[Budget, Charge]:
    """Return a population's budget and the total charge of the population's releases.

    Callers compute prices from budget and charge after the database transaction, because computing takes time.
    """
    budget = read_budget(connection, population)
    return budget, charged_to(connection, budget)


def quote_of(budget: Budget, charged: Charge, event: Event, *, epsilon: float, delta: float, void: bool) -> Quote:
    """Return the total after one more event, and whether the budget would refuse the event.

    ``epsilon`` and ``delta`` are the nominal guarantee of the event, which a refusal states. With ``void``, an event
    without privacy is admitted whatever the budget.
    """
    rules = budget.build_filter()
    charge = rules.charge_after(charged, event, delta=delta)
    requested = {"epsilon": epsilon, "delta": delta}
    refused = _refused(budget, charged, charge, event, requested, void=void)
    total = prices.add(charged, charge)
    return Quote(spent=rules.spent(total), total=total, refusal=refused)


def _refused(
    budget: Budget, charged: Charge, charge: Charge, event: Event, requested: dict[str, float], *, void: bool
) -> BudgetExhausted | None:
    if budget.build_filter().admits(prices.add(charged, charge)) or (void and not is_private(event)):
        return None
    return refusal(budget, charged, charge, event, requested)


def admitted_charge(
    connection: sa.Connection, budget: Budget, event: Event, *, epsilon: float, delta: float, void: bool = False
) -> tuple[Charge, Charge]:
    """Return the charge of an event, and the total after the charge; the caller holds the budget's lock.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit the event. With ``void``, an event without privacy is admitted whatever the
        budget.
    """
    charged = ensure_total(connection, budget)
    charge = budget.build_filter().charge_after(charged, event, delta=delta)
    refused = _refused(budget, charged, charge, event, {"epsilon": epsilon, "delta": delta}, void=void)
    if refused is not None:
        raise refused
    return charge, prices.add(charged, charge)


def statement_of(
    connection: sa.Connection, population: str, *, newest: int | None = None, burn_down: bool = False
) -> Statement:
    """Return the allowed, spent and remaining budget of a population, with all or only the ``newest`` releases.

    With ``burn_down``, the statement includes the remaining budget after each release.
    """
    budget = read_budget(connection, population)
    rules, total = budget.build_filter(), read_total(connection, budget)
    releases = releases_of(connection, population, newest=newest)
    after = history_of(connection, population, newest=newest) if burn_down else ()
    actors = actors_of(connection, population) if releases else {}
    return Statement(
        budget=budget,
        spent=rules.spent(total.charge),
        remaining=rules.remaining(total.charge),
        releases=releases,
        earlier=total.releases - len(releases),
        published=versions_of(connection, releases),
        actors={row.id: actors[row.id] for row in releases if row.id in actors},
        left={row["release"]: row["remaining"] for row in after},
    )


def pace_of(budget: Budget, charged: Charge, *, runs: int, delta: float | None = None) -> Pace:
    """Share the remaining budget among ``runs`` Gaussian releases, by default at the budget's delta."""
    rules = budget.build_filter()
    delta = budget.delta if delta is None else delta
    each = filters.largest_epsilon(rules, charged, runs=runs, delta=delta)
    total = filters.total_after_runs(rules, charged, runs=runs, epsilon=each, delta=delta) if each else None
    state: Literal["open", "exhausted", "voided"] = "open"
    if math.isinf(rules.spent(charged)):
        state = "voided"
    elif not (each or filters.largest_epsilon(rules, charged, runs=1, delta=delta)):
        state = "exhausted"
    remaining, after = (rules.remaining(at) for at in (charged, total or charged))
    return Pace(runs=runs, remaining=remaining, epsilon_each=each, delta_each=delta, after=after, state=state)


def runs_that_fit(budget: Budget, charged: Charge, *, epsilon: float, delta: float) -> int:
    """Return how many Gaussian releases with this (epsilon, delta) a budget still admits in sequence."""
    return filters.admitted_runs(budget.build_filter(), charged, epsilon=epsilon, delta=delta)


def history_of(connection: sa.Connection, population: str, *, newest: int | None = None) -> list[dict[str, Any]]:
    """Return the spent and remaining budget after each charged release, oldest first.

    Ticks of streams are left out, because they are not charged. ``newest`` is the number of newest releases to return;
    None returns all.
    """
    budget = read_budget(connection, population)
    rules, charged = budget.build_filter(), charges_of(connection, budget, newest=newest)
    stored, actors = [charge for _, _, charge in charged], actors_of(connection, population)
    before = prices.subtract(charged_to(connection, budget), prices.total_of(stored, zero=rules.zero))
    totals = [prices.add(before, total) for total in prices.totals_after(stored, zero=rules.zero)]
    return [
        {"time": time, "release": release, "actor": actors.get(release), "spent": spent, "remaining": remaining}
        for (time, release, _), (spent, remaining) in zip(charged, filters.burn_down(rules, totals), strict=True)
    ]


class ReleaseLedger(Protocol):
    """Interface of the ledger operations that a release and its report use; see `storage.ledger.ledger.Ledger`."""

    id: str
    home: Path

    def budget(self, population: str) -> Budget: ...  # noqa: D102

    def statement(  # noqa: D102
        self, population: str, *, newest: int | None = None, burn_down: bool = False
    ) -> Statement: ...

    def history(self, population: str, *, newest: int | None = None) -> list[dict[str, Any]]: ...  # noqa: D102

    def quote(  # noqa: D102
        self, population: str, event: Event, *, epsilon: float, delta: float, void: bool = False
    ) -> Quote: ...

    def alerts(self, release_id: str) -> tuple[int, ...]: ...  # noqa: D102

    def find(self, run_key: str, *, population: str | None = None) -> Release | None: ...  # noqa: D102

    def release(self, release_id: str) -> Release: ...  # noqa: D102

    def reserve(  # noqa: D102
        self,
        population: str,
        *,
        run_key: str,
        fingerprint: str,
        event: Event,
        epsilon: float,
        delta: float,
        snapshot_id: str,
        request: Mapping[str, Any],
        void: bool = False,
    ) -> Grant: ...

    def begin(self, release_id: str) -> Reservation: ...  # noqa: D102
