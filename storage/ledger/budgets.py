"""Terms of populations' budgets, their charged totals, and alerts about low budgets.

The terms of a budget are fixed when it is opened.

The total charge of each population is cached in the database, so that a request need not add up all releases. Charges
are vectors of integers, so the cached total equals the sum of all charges exactly. The total is written in the
transaction of each charge, under the lock of the budget, and the journal entry of the charge states the same total.
Database triggers remove the cached total when a release is inserted, abandoned or edited; the next request then adds up
all charges. If the total differs from the newest journal entry, it was edited by hand, and every request is refused.
`storage.ledger.checks` compares the total with the whole journal.

Alerts report that a budget runs low. For each population, each alert level (percentage of the budget left) is recorded
once, in the transaction of the charge that reaches the level. The transaction holds the lock of the budget. So if
several processes charge at the same time, exactly one of them reaches a level, and this process sends the
notifications.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import batched
from typing import Any, cast, get_args

import sqlalchemy as sa

from dpca.errors import Conflict, Corrupt, Invalid, NotFound, Refused
from dpca.privacy_unit import PrivacyUnit, privacy_statement
from dpca_tasks.accounting import filters, prices
from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.filters import share_left
from dpca_tasks.accounting.prices import Charge
from storage.database import tables
from storage.ledger import journal
from storage.ledger.journal import check_rows

RECORDS_AT_MOST = 100_000
"""Number of records assumed for a dataset without a declared bound, when the delta of a budget is checked."""
_LOCK = (
    sa.select(tables.budget.c.population)
    .where(tables.budget.c.population == sa.bindparam("population"))
    .with_for_update()
)
_TERMS = sa.select(tables.budget).where(tables.budget.c.population == sa.bindparam("population"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The terms of a population's budget, which are fixed when the budget is opened.

    Attributes
    ----------
    population : str, the name of the group of people whose data are released
    epsilon, delta : float, bounds on the privacy loss of all releases together
    failure_delta : float, the part of delta reserved for events that are known only by (epsilon, delta)
    relation : str, the neighboring relation of datasets, for which queries state their sensitivities
    filter : str, the accounting of compositions: ``gdp`` or ``renyi``
    unit : str, the privacy unit: the name of the ids of individuals, whose rows are protected together, or ``row``
    rows_per_unit : int or None, the maximum number of rows of one individual in a dataset; None means no bound
    """

    population: str
    epsilon: float
    delta: float
    failure_delta: float
    relation: Relation
    filter: str
    unit: str
    rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        """Check that every term is in its allowed range."""
        check_name("population", self.population)
        if not 0 < self.epsilon <= 100:
            raise Invalid(f"epsilon={self.epsilon!r} must be positive and at most 100; a total of 1 to 10 is usual.")
        if not 0 < self.delta < 1:
            raise Invalid(f"delta={self.delta!r} must be strictly between 0 and 1; 1e-6 is usual.")
        if not 0 <= self.failure_delta < self.delta:
            raise Invalid(
                f"failure_delta={self.failure_delta!r} must be at least 0 and at most delta={self.delta!r}; 0 is usual."
            )
        if self.relation not in get_args(Relation):
            raise Invalid(f"relation={self.relation!r} must be one of {', '.join(get_args(Relation))}.")
        if self.filter not in filters.KINDS:
            raise Invalid(f"filter={self.filter!r} must be one of {', '.join(filters.KINDS)}.")
        _ = self.privacy_unit

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """Privacy unit of the budget, as an object."""
        return PrivacyUnit(name=self.unit, rows=self.rows_per_unit)

    def statement(self, spent: float = 0.0) -> str:
        """Return the privacy guarantee of all releases together, as one sentence.

        The sentence states ``spent`` instead of the budget's epsilon if it is larger, which can happen after a release
        without privacy or after a restore.
        """
        epsilon, unit = max(self.epsilon, spent), self.privacy_unit
        return privacy_statement(epsilon=epsilon, delta=self.delta, relation=self.relation, unit=unit)

    def check_unit(self, dataset: str, unit: PrivacyUnit) -> None:
        """Check that the budget covers a dataset's privacy unit: the same ids, and no more rows per individual.

        Raises
        ------
        Refused
            When the budget does not cover the dataset's privacy unit. Nothing is charged.
        """
        if (other := self.other_unit(dataset, unit)) is not None:
            found, remedy = other
            raise Refused(f"{found}; nothing was charged: {remedy}.")

    def other_unit(self, dataset: str, unit: PrivacyUnit) -> tuple[str, str] | None:
        """Return the difference between a dataset's privacy unit and the budget's, and the remedy, as text.

        Return None if the budget covers the unit.
        """
        if self.privacy_unit.covers(unit):
            return None
        found = f"budget {self.population!r} uses {self.privacy_unit} as the unit of privacy, and dataset {dataset!r}"
        return f"{found} has {unit}", _remedy(self.privacy_unit, unit)

    def build_filter(self) -> filters.PrivacyFilter:
        """Return the privacy filter with these terms, which admits or refuses charges."""
        return filters.build_filter(
            self.filter,
            epsilon=self.epsilon,
            delta=self.delta,
            failure_delta=self.failure_delta,
            replaced=self.relation == "replace_one",
        )


def open_budget(
    connection: sa.Connection,
    population: str,
    *,
    epsilon: float,
    delta: float,
    failure_delta: float | None,
    relation: str,
    filter: str,  # noqa: A002 - the name of this term in `Budget`
    unit: PrivacyUnit,
    allow_large_delta: bool,
) -> Budget:
    """Open a budget with these terms, or return the open budget if it has the same terms.

    If ``failure_delta`` is None, a tenth of delta is used. But if the population already has a budget with the same
    delta, the failure_delta of that budget is used.

    Raises
    ------
    Conflict
        When the budget is open with other terms, or another budget's name differs only by case.
    Refused
        When the delta of a new budget is not below 1 / (number of records), and ``allow_large_delta`` is false.
    """
    journal.lock(connection)
    standing = find_budget(connection, population)
    if failure_delta is None:
        same = standing is not None and standing.delta == delta
        failure_delta = standing.failure_delta if standing is not None and same else delta / 10
    numbers = {"epsilon": float(epsilon), "delta": float(delta), "failure_delta": float(failure_delta)}
    kind = cast(Relation, relation)
    terms: dict[str, Any] = {**numbers, **unit.facts}
    budget = Budget(population=population, **terms, relation=kind, filter=filter)
    if standing is None:
        alike = sa.select(tables.budget.c.population).where(
            sa.func.lower(tables.budget.c.population) == population.lower()
        )
        if (found := connection.scalar(alike.limit(1))) is not None:
            raise Conflict(
                f"budget {population!r} differs from {found!r} only by case, and the privacy losses of two budgets for "
                f"the same people add up; use {found!r}, or choose another name."
            )
        if not allow_large_delta:
            _check_delta(connection, budget)
        facts = asdict(budget)
        connection.execute(tables.budget.insert().values(created_at=journal.now(), **facts))
        del facts["population"]
        journal.append(
            connection, "budget_opened", population=population, detail=facts | {"statement": budget.statement()}
        )
    elif standing != budget:
        raise Conflict(
            f"budget {population!r} is open with epsilon={standing.epsilon:g}, delta={standing.delta:g}, "
            f"failure_delta={standing.failure_delta:g}, relation={standing.relation}, filter={standing.filter}, for "
            f"{standing.privacy_unit}; its terms never change: use these terms."
        )
    return budget


def has_large_delta(connection: sa.Connection, population: str) -> bool:
    """Return whether a population has a budget whose delta is at least 1 / (declared number of records)."""
    budget = find_budget(connection, population)
    return budget is not None and budget.delta * records_bound(connection, population) >= 1


def records_bound(connection: sa.Connection, population: str) -> int:
    """Return the largest bound on the number of records that a dataset of a population declares.

    A dataset without a declared bound counts with `RECORDS_AT_MOST` records, and so does a population without datasets.
    """
    table = tables.snapshot
    present = (table.c.population == population) & table.c.removed_at.is_(None)
    newest_last = (table.c.seq.nulls_first(), table.c.created_at, table.c.id)
    query = sa.select(table.c.name, table.c.records_at_most).where(present).order_by(*newest_last)
    declared = {row.name: row.records_at_most or RECORDS_AT_MOST for row in connection.execute(query)}
    return max(declared.values(), default=RECORDS_AT_MOST)


def _check_delta(connection: sa.Connection, budget: Budget) -> None:
    records = records_bound(connection, budget.population)
    if budget.delta * records >= 1:
        raise Refused(
            f"delta={budget.delta!r} is not below 1/records_at_most={1 / records:.3g}: it would allow some records to "
            "be published whole; choose a smaller delta, first declare fewer records with `dpca dataset ingest "
            "--records-at-most`, or open it anyway with --allow-large-delta."
        )


def find_budget(connection: sa.Connection, population: str) -> Budget | None:
    """Return the terms of a population's budget, or None if it has no budget.

    Raises
    ------
    Corrupt
        When the stored terms differ from the journal.
    """
    row = connection.execute(_TERMS, {"population": population}).first()
    if row is None:
        return None
    opened = (tables.event.c.name == "budget_opened") & (tables.event.c.population == population)
    check_rows(connection, "budget", [row], opened)
    return Budget(**{name: value for name, value in row._mapping.items() if name != "created_at"})


def read_budget(connection: sa.Connection, population: str) -> Budget:
    """Return the terms of a population's budget; raise `NotFound` if it has no budget."""
    found = find_budget(connection, population)
    if found is None:
        raise NotFound(
            f"population {population!r} has no budget; open one with "
            f"`dpca budget open {population} --epsilon E --delta D`."
        )
    return found


def check_snapshots(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
    """Check that rows of the snapshot table agree with the journal, before the rows are used.

    Raises
    ------
    Corrupt
        When a row was edited, removed or restored by hand.
    """
    if rows:
        entry = tables.event.c
        registered = entry.seq.in_([row.seq for row in rows]) & (entry.name == "snapshot_registered")
        people = entry.population.in_({row.population for row in rows})
        check_rows(connection, "snapshot", rows, registered, (entry.name == "snapshot_removed") & people)


_TOGETHER = 1_000  # largest number of rows per statement, since databases limit the parameters of a statement


def current_snapshot(connection: sa.Connection, name: str) -> sa.Row[Any] | None:
    """Return the checked row of a dataset's newest snapshot that was not removed; None if there is none."""
    table = tables.snapshot
    newest_first = (table.c.seq.desc().nulls_last(), table.c.created_at.desc(), table.c.id.desc())
    rows = connection.execute(sa.select(table).where(table.c.name == name).order_by(*newest_first)).all()
    at = next((number for number, row in enumerate(rows) if row.removed_at is None), len(rows))
    for newer in batched(rows[: at + 1], _TOGETHER):
        check_snapshots(connection, newer)
    return rows[at] if at < len(rows) else None


def check_snapshot_unit(connection: sa.Connection, budget: Budget, snapshot_id: str) -> None:
    """Check with `Budget.check_unit` that a budget covers the privacy unit of a registered snapshot.

    The unit of an unregistered snapshot is unknown, and is not checked.
    """
    query = sa.select(tables.snapshot).where(tables.snapshot.c.id == snapshot_id)
    if (found := connection.execute(query).first()) is not None:
        check_snapshots(connection, [found])
        budget.check_unit(found.name, PrivacyUnit(name=found.unit, rows=found.rows_per_unit))


def other_units(connection: sa.Connection, population: str | None = None) -> dict[str, tuple[str, str]]:
    """Return the datasets whose current snapshot has a privacy unit that their budget does not cover.

    Each dataset is mapped to the difference and the remedy, as `Budget.other_unit` returns them. With ``population``,
    only datasets of this population are included.
    """
    table = tables.snapshot
    columns = (table.c.name, table.c.population, table.c.unit, table.c.rows_per_unit)
    newest_last = (table.c.seq.nulls_first(), table.c.created_at, table.c.id)
    query = sa.select(*columns).where(table.c.removed_at.is_(None)).order_by(*newest_last)
    if population is not None:
        query = query.where(table.c.population == population)
    others = {}
    for row in {row.name: row for row in connection.execute(query)}.values():
        budget = find_budget(connection, row.population)
        unit = PrivacyUnit(name=row.unit, rows=row.rows_per_unit)
        if budget is not None and (other := budget.other_unit(row.name, unit)) is not None:
            others[row.name] = other
    return others


def lock_budget(connection: sa.Connection, budget: Budget) -> None:
    """Lock a budget and the journal until the transaction ends.

    No other process can then charge a release, in any population.
    """
    connection.execute(_LOCK, {"population": budget.population})
    journal.lock(connection)


def check_name(what: str, name: str) -> None:
    """Check that a name, such as a population or run key, is printable and short enough."""
    if not name.strip() or len(name) > 500 or not name.isprintable():
        raise Invalid(f"{what} {name!r} must be printable and have at most 500 characters; choose another.")


def _remedy(given: PrivacyUnit, found: PrivacyUnit) -> str:
    """Return advice on how to ingest a dataset so that its privacy unit matches the budget."""
    if given == PrivacyUnit():
        return "ingest it without ids, or open a budget with this privacy unit for another population"
    if given.name != found.name:
        return f"ingest it with the ids {given.name!r}, as --unit-column or --units with --unit-name"
    return f"ingest it with --max-rows-per-unit {given.rows}"


CHANGES = ("release_reserved", "release_abandoned")
"""The names of journal entries that change the total charge of a population, and state the new total."""

_TABLE = tables.charged_total
_NOTE = sa.select(_TABLE).where(_TABLE.c.population == sa.bindparam("population"))
_REMOVE = _TABLE.delete().where(_TABLE.c.population == sa.bindparam("population"))
_INSERT = _TABLE.insert()


def _newest_of(name: str) -> sa.Select[tuple[int, str]]:
    table = tables.event
    newest = (
        sa.select(table.c.seq, table.c.detail)
        .where(table.c.name == name, table.c.population == sa.bindparam("population"))
        .order_by(table.c.seq.desc())
        .limit(1)
    )
    return sa.select(*newest.subquery().c)


_NEWEST = sa.union_all(*map(_newest_of, CHANGES))
"""Query for the newest entry of each kind in `CHANGES`; built once, since building it takes longer than running it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedTotal:
    """The total charge of a population's releases, without abandoned releases.

    Attributes
    ----------
    population : str
    charge : Charge, the sum of the charges
    accounting : str, the name of the accounting that priced one of the releases; all have the same units
    releases : int, the number of releases, including abandoned ones
    """

    population: str
    charge: Charge
    accounting: str
    releases: int


def charged_to(connection: sa.Connection, budget: Budget) -> Charge:
    """Return the total charge of a population's releases, without abandoned releases."""
    return read_total(connection, budget).charge


def read_total(connection: sa.Connection, budget: Budget) -> ChargedTotal:
    """Return the total charge of a budget, from the cache or, if it is empty, as the sum of all charges.

    Raises
    ------
    Corrupt
        When the newest journal entry of a charge states another total.
    Refused
        When a charge is in other units than the budget's filter uses; see `check_units`.
    """
    total = _found_note(connection, budget.population) or _added_up(connection, budget)
    check_units(budget, {(total.accounting, len(prices.encode((0,) * len(total.charge))))})
    if facts_of(total) != _shown(connection, budget):
        raise Corrupt(
            f"the charges of the releases of budget {budget.population!r} differ from the total in the journal; check "
            "with `dpca doctor`, and restore the database from a copy."
        )
    return total


def ensure_total(connection: sa.Connection, budget: Budget) -> Charge:
    """Return the total charge of a budget, and store it in the cache if it is not there.

    The caller holds the budget's lock. Raises the errors of `read_total`.
    """
    total = read_total(connection, budget)
    if _found_note(connection, budget.population) is None:
        _note(connection, total)
    return total.charge


def with_release(before: ChargedTotal, charge: Charge) -> ChargedTotal:
    """Return the total after one more release with this charge."""
    return replace(before, charge=prices.add(before.charge, charge), releases=before.releases + 1)


def without_charge(before: ChargedTotal, charge: Charge) -> ChargedTotal:
    """Return the total after a release with this charge is abandoned; the release still counts in ``releases``."""
    return replace(before, charge=prices.subtract(before.charge, charge))


def note_total(connection: sa.Connection, total: ChargedTotal) -> dict[str, Any]:
    """Store a total in the cache, and return the facts about it for the journal entry."""
    _note(connection, total)
    return facts_of(total)


def facts_of(total: ChargedTotal) -> dict[str, Any]:
    """Return the facts of a total that a journal entry states."""
    return {"total": list(total.charge), "releases": total.releases}


def is_charged(budget: Budget) -> sa.ColumnElement[bool]:
    """Return the SQL condition for the releases that are charged to a budget."""
    table = tables.release
    return (table.c.population == budget.population) & (table.c.state != "abandoned")


def check_units(budget: Budget, found: set[tuple[str, int]]) -> None:
    """Check that stored charges have the units of a budget's filter; ``found`` has (accounting, size) of each.

    A charge is fixed when it is admitted (`dpca_tasks.accounting.filters`), and is never computed again. The name of an
    accounting, such as ``gdp-2``, contains a family and a version. All versions of a family use the same units, in the
    same order.

    Raises
    ------
    Refused
        When a charge has another family of accounting or another length.
    """
    rules = budget.build_filter()
    family, length = rules.accounting.partition("-")[0], len(prices.encode(rules.zero))
    for accounting, size in found:
        if (accounting.partition("-")[0], size) != (family, length):
            raise Refused(
                f"a release was charged in units of accounting {accounting!r}, and this version of dpca supports "
                f"{family!r}; a charge is never recomputed: use the version that admitted it."
            )


def _added_up(connection: sa.Connection, budget: Budget) -> ChargedTotal:
    table, rules = tables.release, budget.build_filter()
    rows = connection.execute(sa.select(table.c.charge, table.c.accounting).where(is_charged(budget))).all()
    check_units(budget, {(row.accounting, len(row.charge)) for row in rows})
    count = sa.select(sa.func.count()).where(table.c.population == budget.population)
    return ChargedTotal(
        population=budget.population,
        charge=prices.total_of([bytes(row.charge) for row in rows], zero=rules.zero),
        accounting=rows[-1].accounting if rows else rules.accounting,
        releases=connection.execute(count).scalar_one(),
    )


def _found_note(connection: sa.Connection, population: str) -> ChargedTotal | None:
    row = connection.execute(_NOTE, {"population": population}).mappings().first()
    return None if row is None else ChargedTotal(**{**row, "charge": tuple(json.loads(row["charge"]))})


def _shown(connection: sa.Connection, budget: Budget) -> dict[str, Any]:
    """Return the total that the newest journal entry of a charge states.

    If there is no such entry yet, return a total of zero.
    """
    newest = [tuple(row) for row in connection.execute(_NEWEST, {"population": budget.population})]
    if not newest:
        return {"total": list(budget.build_filter().zero), "releases": 0}
    detail = json.loads(max(newest)[1])
    return {name: detail.get(name) for name in journal.TOTAL}


def _note(connection: sa.Connection, total: ChargedTotal) -> None:
    facts = {"charge": json.dumps(total.charge), "accounting": total.accounting, "releases": total.releases}
    connection.execute(_REMOVE, {"population": total.population})
    connection.execute(_INSERT, {"population": total.population, **facts})


LEVELS = (50, 20, 5)
"""Alert levels: percentages of the budget that are left."""

# tolerance in percent: charges are rounded, so a charge of half the budget may leave slightly more than 50 %
_ROUNDING = 1e-6
_NAME = "budget_alerted"
_EVENT = tables.event.c
_LEVELS = sa.select(_EVENT.detail).where(_EVENT.name == _NAME).order_by(_EVENT.seq)
_OF_POPULATION = _LEVELS.where(_EVENT.population == sa.bindparam("population"))
_RESERVED = sa.select(tables.release.c.seq).where(tables.release.c.id == sa.bindparam("release_id")).scalar_subquery()
# journal entries of alerts directly follow the entry of their charge, so only a few entries are read
_OF_RELEASE = _LEVELS.where(
    _EVENT.seq > _RESERVED,
    _EVENT.seq <= _RESERVED + len(LEVELS) + 1,
    _EVENT.release_id == sa.bindparam("release_id"),
)


def note_levels(connection: sa.Connection, budget: Budget, total: Charge, *, release_id: str) -> None:
    """Record each alert level that a total charge reaches for the first time; the caller holds the budget's lock."""
    percent = 100 * share_left(budget.build_filter(), total)
    reached = [level for level in LEVELS if percent <= level + _ROUNDING]
    if not reached:
        return
    noted = _levels(connection.execute(_OF_POPULATION, {"population": budget.population}))
    for level in reached:
        if level not in noted:
            subject = {"population": budget.population, "release_id": release_id}
            journal.append(connection, _NAME, **subject, detail={"level": level})


def levels_reached(connection: sa.Connection, release_id: str) -> tuple[int, ...]:
    """Return the alert levels (percentages left) that this release was the first to reach, highest first."""
    return tuple(_levels(connection.execute(_OF_RELEASE, {"release_id": release_id})))


def _levels(details: sa.CursorResult[tuple[str]]) -> Sequence[int]:
    return [int(json.loads(detail)["level"]) for detail in details.scalars()]
