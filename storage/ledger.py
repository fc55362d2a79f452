"""The ledger: one budget a population, one row a release, and the protocol that spends exactly once.

``reserve`` charges before anything is computed, ``begin`` passes the point of no return, steps are kept as they are
noised, and ``commit`` publishes in one transaction. A crash anywhere leaves the budget spent and the release
resumable. The program never refunds.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import sqlalchemy as sa
from numpy.typing import NDArray

from storage import database, filters, journal, keys
from storage.crashpoints import reached
from storage.errors import BudgetExhausted, Conflict, Corrupt, Invalid, NotFound, Refused
from storage.events import Event
from storage.home import database_url, key_folder, writable_home
from storage.journal import Witness
from storage.keys import KeyFolder
from storage.steps import Arrays, StepStore
from storage.versions import rebuild_pointers

T = TypeVar("T")
Relation = Literal["add_remove", "zero_out", "replace_one"]
ORPHAN_AFTER = 3600.0  # seconds; what is written before its row gets it within moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The terms of a population's budget. They never change."""

    population: str
    epsilon: float
    delta: float
    relation: Relation
    filter: str
    unit: str

    def build_filter(self) -> filters.PrivacyFilter:
        """Return the filter that decides what is admitted."""
        return filters.build_filter(self.filter, epsilon=self.epsilon, delta=self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of the ledger."""

    id: str
    population: str
    snapshot_id: str
    run_key: str
    fingerprint: str
    request: Mapping[str, Any]
    event: Event
    epsilon: float
    delta: float
    charge: bytes = field(repr=False)
    state: str
    artifact_digest: str | None
    created_at: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a budget allowed, spent and has left, release by release.

    ``spent`` is the composed epsilon at the budget's delta, rounded up; ``remaining`` the largest epsilon of one more
    Gaussian release at that delta, rounded down so that asking for it fits. They do not add up: composition is not a
    sum.
    """

    budget: Budget
    spent: float
    remaining: float
    releases: tuple[Release, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A reservation: the release's id, its state, and whether it was made just now."""

    release_id: str
    state: str
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A release that has begun: what a curator needs to answer its steps."""

    release_id: str
    event: Event
    _keys: KeyFolder = field(repr=False)
    _steps: StepStore = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key, read when noise is drawn; a resumed release whose steps are kept needs none."""
        return self._keys.read(self.release_id)

    def kept(self, step: int) -> Arrays | None:
        """Return the arrays of a step that was answered before."""
        return self._steps.kept(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Keep a step's arrays unless it has some; return the ones that stand."""
        return self._steps.keep(step, arrays)


class Ledger:
    """Budgets and releases in a database, keys and noised steps in folders beside it.

    ``Ledger.open()`` finds all of them through ``DPCA_HOME``, ``DPCA_DATABASE_URL`` and ``DPCA_KEY_FOLDER``.
    """

    def __init__(self, engine: sa.Engine, *, home: Path, keys: KeyFolder, ledger_id: str) -> None:
        self.engine = engine
        self.home = home
        self.id = ledger_id
        self._keys = keys
        self._witness = Witness(keys.folder)

    @classmethod
    def open(cls, *, accept_restored: str | None = None) -> "Ledger":
        """Open the ledger of this home, created when there is none.

        Parameters
        ----------
        accept_restored : str, optional
            An operator's reason to go on with a database that was restored from a copy. It is journalled.

        Raises
        ------
        Unavailable
            When the home folder or the database cannot be used.
        Refused
            When the database was restored from a copy or belongs to other keys.
        """
        home, folder = writable_home(), key_folder()
        engine = database.connect(database_url())
        witness = Witness(folder)
        with database.transaction(engine) as connection:
            ledger_id = _identify(connection)
            if accept_restored is None:
                witness.check(connection)
            else:
                journal.append(connection, "ledger_accepted", detail={"reason": accept_restored})
            current = journal.head(connection)
        witness.advance(current, back=accept_restored is not None)
        ledger = cls(engine, home=home, keys=KeyFolder(folder), ledger_id=ledger_id)
        ledger._recover()
        return ledger

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Run one transaction of the record, then let the witness follow the journal."""
        with database.transaction(self.engine) as connection:
            yield connection
            current = journal.head(connection)
        reached("record.committed")
        self._witness.advance(current)

    def open_budget(
        self,
        population: str,
        *,
        epsilon: float,
        delta: float,
        relation: str = "add_remove",
        filter: str = "gdp",  # noqa: A002 - its name in the record
    ) -> Budget:
        """Open a population's budget; the same terms again are fine.

        Raises
        ------
        Invalid
            When a term is outside its domain.
        Conflict
            When the budget is open with other terms.
        """
        budget = Budget(
            population=_checked_population(population),
            epsilon=_positive("epsilon", epsilon),
            delta=_probability("delta", delta),
            relation=_checked_relation(relation),
            filter=filter,
            unit="record",
        )
        budget.build_filter()
        with self.transaction() as connection:
            connection.execute(sa.select(database.ledger.c.id).with_for_update())
            standing = _find_budget(connection, population)
            if standing is None:
                terms = {name: getattr(budget, name) for name in ("epsilon", "delta", "relation", "filter", "unit")}
                connection.execute(
                    database.budget.insert().values(population=population, created_at=journal.now(), **terms)
                )
                journal.append(connection, "budget_opened", population=population, detail=terms)
            elif standing != budget:
                raise Conflict(
                    f"budget {population!r} is open with epsilon={standing.epsilon:g}, delta={standing.delta:g}, "
                    f"relation={standing.relation}, filter={standing.filter}; its terms never change: use those."
                )
        return budget

    def budget(self, population: str) -> Budget:
        """Return a population's terms.

        Raises
        ------
        NotFound
            When it has no budget.
        """
        with database.transaction(self.engine) as connection:
            return _budget(connection, population)

    def statement(self, population: str) -> Statement:
        """Return what was allowed, spent and left."""
        with database.transaction(self.engine) as connection:
            budget = _budget(connection, population)
            releases = _releases(connection, population)
        rules = budget.build_filter()
        total = filters.total_of([row.charge for row in releases if row.state != "abandoned"], zero=rules.zero)
        return Statement(budget=budget, spent=rules.spent(total), remaining=rules.remaining(total), releases=releases)

    def history(self, population: str) -> list[dict[str, Any]]:
        """Return what was spent and left after each release that is charged, oldest first."""
        with database.transaction(self.engine) as connection:
            rules = _budget(connection, population).build_filter()
            releases = _releases(connection, population)
        total, rows = rules.zero, []
        for row in releases:
            if row.state != "abandoned":
                total = filters.add(total, filters.total_of([row.charge], zero=rules.zero))
                facts = {"time": row.created_at, "release": row.id}
                rows.append({**facts, "spent": rules.spent(total), "remaining": rules.remaining(total)})
        return rows

    def admits(self, population: str, event: Event, *, delta: float) -> bool:
        """Tell whether the budget would admit an event now. Nothing is charged."""
        with database.transaction(self.engine) as connection:
            rules = _budget(connection, population).build_filter()
            total = _total(connection, population, rules)
        return rules.admits(filters.add(total, rules.charge(event, delta=delta)))

    def find(self, run_key: str) -> Release | None:
        """Return the release of a run key."""
        with database.transaction(self.engine) as connection:
            return _find_release(connection, database.release.c.run_key == run_key)

    def release(self, release_id: str) -> Release:
        """Return a release.

        Raises
        ------
        NotFound
            When there is none of this id.
        """
        with database.transaction(self.engine) as connection:
            return _release(connection, release_id)

    def reserve(
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
    ) -> Grant:
        """Charge a release, or find the one of this run key.

        Parameters
        ----------
        population : str
            Whose budget pays.
        run_key : str
            Names the release: the same key is the same release.
        fingerprint : str
            Digest of everything asked for.
        event : mapping
            What the release will do, as `storage.events` records it.
        epsilon, delta : float
            The nominal guarantee; sampled parts are priced at this delta.
        snapshot_id : str
        request : mapping
            The public request, to resume the release from.

        Raises
        ------
        Conflict
            When the run key stands for another request.
        BudgetExhausted
            When the budget does not admit the event. Nothing is charged or written.
        """
        rules = self.budget(population).build_filter()
        charge = rules.charge(event, delta=delta)
        with self.transaction() as connection:
            _lock_budget(connection, population)
            standing = _find_release(connection, database.release.c.run_key == run_key)
            if standing is not None:
                return _same_release(standing, fingerprint)
            total = _total(connection, population, rules)
            if not rules.admits(filters.add(total, charge)):
                raise exhausted(population, epsilon=epsilon, delta=delta, left=rules.remaining(total))
            key = keys.new_key()
            release_id = keys.release_id_of(key)
            if _find_release(connection, database.release.c.id == release_id) is not None:
                raise Conflict(f"release {release_id} exists already; a key serves one release: draw another.")
            self._keys.create(release_id, key)
            reached("reserve.key_written")
            moment = journal.now()
            connection.execute(
                database.release.insert().values(
                    id=release_id,
                    population=population,
                    snapshot_id=snapshot_id,
                    run_key=run_key,
                    fingerprint=fingerprint,
                    request=json.dumps(dict(request), sort_keys=True),
                    event=json.dumps(event, sort_keys=True),
                    epsilon=epsilon,
                    delta=delta,
                    charge=filters.encode(charge),
                    accounting=rules.accounting,
                    state="reserved",
                    created_at=moment,
                    updated_at=moment,
                )
            )
            journal.append(
                connection,
                "release_reserved",
                population=population,
                release_id=release_id,
                detail={"event": event, "fingerprint": fingerprint, "charge": charge},
            )
            reached("reserve.row_written")
        reached("reserve.row_committed")
        return Grant(release_id=release_id, state="reserved", is_new=True)

    def begin(self, release_id: str) -> Reservation:
        """Pass the point of no return, or resume a release that passed it.

        Raises
        ------
        Refused
            When the release is committed, abandoned or closed.
        """
        with self.transaction() as connection:
            row = _release(connection, release_id, lock=True)
            if row.state == "reserved":
                self._move(connection, row, "noising", "release_begun")
            elif row.state == "noising":
                journal.append(connection, "release_resumed", population=row.population, release_id=release_id)
            else:
                raise Refused(f"release {release_id} is {row.state}; ask again under another --run-key.")
            reached("begin.row_written")
        reached("begin.row_committed")
        steps = StepStore(self.engine, self._staging(release_id), release_id)
        return Reservation(release_id=release_id, event=row.event, _keys=self._keys, _steps=steps)

    def commit(self, release_id: str, *, artifact_digest: str, record: Callable[[sa.Connection], T]) -> T:
        """Commit a release with its artifact, and whatever ``record`` writes, in one transaction.

        Repeating it with the same artifact repeats ``record`` alone, which must then be idempotent: so a release is
        published under a second name. The key and the staged steps are removed afterwards.

        Raises
        ------
        Refused
            When the release did not begin, or was closed.
        Corrupt
            When it was committed with another artifact.
        """
        with self.transaction() as connection:
            row = _release(connection, release_id, lock=True)
            if row.state == "noising":
                self._move(connection, row, "committed", "release_committed", artifact_digest=artifact_digest)
            elif row.state != "committed":
                raise Refused(f"release {release_id} is {row.state}; only a release that began can be committed.")
            elif row.artifact_digest != artifact_digest:
                raise Corrupt(
                    f"release {release_id} was committed as {row.artifact_digest}, not {artifact_digest}; "
                    "one release has one artifact: use the committed one."
                )
            result = record(connection)
            reached("commit.row_written")
        reached("commit.row_committed")
        self._forget(release_id)
        return result

    def abandon(self, release_id: str) -> None:
        """Give up a reservation that never began. It then costs nothing, and can never begin."""
        self._end(release_id, "reserved", "abandoned", "release_abandoned")

    def close(self, release_id: str) -> None:
        """Give up a release that began. It stays charged; its key and steps are erased."""
        self._end(release_id, "noising", "closed", "release_closed")

    def verify(self) -> int:
        """Check the journal's whole chain; return the number of events."""
        with database.transaction(self.engine) as connection:
            return journal.verify(connection)

    def _end(self, release_id: str, before: str, after: str, event: str) -> None:
        with self.transaction() as connection:
            row = _release(connection, release_id, lock=True)
            if row.state not in (before, after):
                raise Refused(f"release {release_id} is {row.state}; only a {before} one can become {after}.")
            if row.state == before:
                self._move(connection, row, after, event)
        self._forget(release_id)

    def _move(
        self, connection: sa.Connection, row: Release, state: str, event: str, *, artifact_digest: str | None = None
    ) -> None:
        table = database.release
        connection.execute(
            table.update()
            .where(table.c.id == row.id, table.c.state == row.state)
            .values(state=state, updated_at=journal.now(), artifact_digest=artifact_digest)
        )
        detail = {"artifact": artifact_digest} if artifact_digest else {}
        journal.append(connection, event, population=row.population, release_id=row.id, detail=detail)

    def _staging(self, release_id: str) -> Path:
        return self.home / "staging" / release_id

    def _forget(self, release_id: str) -> None:
        self._keys.erase(release_id)
        reached("commit.key_erased")
        shutil.rmtree(self._staging(release_id), ignore_errors=True)
        reached("commit.staging_removed")

    def _recover(self) -> None:
        """Finish what a crash left: pointers, keys and steps of ended releases, and whatever never got a row."""
        staging = self.home / "staging"
        staged = [path.name for path in staging.iterdir() if len(path.name) == 32] if staging.is_dir() else []
        for release_id in {*self._keys.release_ids(), *staged}:
            with database.transaction(self.engine) as connection:
                row = _find_release(connection, database.release.c.id == release_id)
            if row is not None and row.state in ("committed", "abandoned", "closed"):
                self._forget(release_id)
            elif row is None:
                _remove_orphan(self._keys.folder / release_id)
                _remove_orphan(self._staging(release_id))
        for folder in (self._keys.folder, self.home / "registry" / "names"):
            for path in folder.glob(".*.tmp"):
                _remove_orphan(path)
        with self.transaction() as connection:
            rebuild_pointers(connection, self.home)


def exhausted(population: str, *, epsilon: float, delta: float, left: float) -> BudgetExhausted:
    """Say what was asked and what is left; both are public."""
    return BudgetExhausted(
        f"budget {population!r} has epsilon {left:.6g} left for one release, {epsilon:g} at delta {delta:g} was asked; "
        "nothing was charged: ask for less, or stop here."
    )


def _remove_orphan(path: Path) -> None:
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > ORPHAN_AFTER:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _identify(connection: sa.Connection) -> str:
    found = connection.execute(sa.select(database.ledger.c.id)).scalar_one_or_none()
    if found is None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE ledger IN EXCLUSIVE MODE")
            found = connection.execute(sa.select(database.ledger.c.id)).scalar_one_or_none()
        if found is None:
            found = hashlib.sha256(keys.new_key()).hexdigest()[:32]
            connection.execute(database.ledger.insert().values(id=found, created_at=journal.now()))
            journal.append(connection, "ledger_created", detail={"ledger": found})
    return str(found)


def _find_budget(connection: sa.Connection, population: str) -> Budget | None:
    columns = [column for column in database.budget.c if column.name != "created_at"]
    row = connection.execute(sa.select(*columns).where(database.budget.c.population == population)).mappings().first()
    return Budget(**row) if row else None


def _budget(connection: sa.Connection, population: str) -> Budget:
    found = _find_budget(connection, population)
    if found is None:
        raise NotFound(
            f"population {population!r} has no budget; open one with "
            f"`dpca budget open {population} --epsilon E --delta D`."
        )
    return found


def _lock_budget(connection: sa.Connection, population: str) -> None:
    table = database.budget
    connection.execute(sa.select(table.c.population).where(table.c.population == population).with_for_update())


def _row(mapping: Mapping[str, Any]) -> Release:
    values = {name: value for name, value in mapping.items() if name != "accounting"}
    return Release(**{**values, "request": json.loads(values["request"]), "event": json.loads(values["event"])})


def _find_release(connection: sa.Connection, where: sa.ColumnElement[bool]) -> Release | None:
    row = connection.execute(sa.select(database.release).where(where)).mappings().first()
    return _row(row) if row else None


def _release(connection: sa.Connection, release_id: str, *, lock: bool = False) -> Release:
    query = sa.select(database.release).where(database.release.c.id == release_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        raise NotFound(f"release {release_id!r} is not in this ledger; see `dpca budget show`.")
    return _row(row)


def _releases(connection: sa.Connection, population: str) -> tuple[Release, ...]:
    table = database.release
    query = sa.select(table).where(table.c.population == population).order_by(table.c.created_at, table.c.id)
    return tuple(_row(row) for row in connection.execute(query).mappings())


def _total(connection: sa.Connection, population: str, rules: filters.PrivacyFilter) -> filters.Charge:
    table = database.release
    query = sa.select(table.c.charge).where(table.c.population == population, table.c.state != "abandoned")
    return filters.total_of([bytes(charge) for charge in connection.execute(query).scalars()], zero=rules.zero)


def _same_release(row: Release, fingerprint: str) -> Grant:
    if row.fingerprint != fingerprint:
        raise Conflict(f"run key {row.run_key!r} stands for another request (release {row.id}); use another --run-key.")
    return Grant(release_id=row.id, state=row.state, is_new=False)


def _checked_population(population: str) -> str:
    if not population.strip() or len(population) > 200 or not population.isprintable():
        raise Invalid(f"population {population!r} must be a printable name of at most 200 characters.")
    return population


def _checked_relation(relation: str) -> Relation:
    if relation not in get_args(Relation):
        raise Invalid(f"relation={relation!r} must be one of {', '.join(get_args(Relation))}.")
    return relation  # type: ignore[return-value]


def _positive(name: str, value: float) -> float:
    if not 0 < value <= 100:
        raise Invalid(f"{name}={value!r} must be positive and at most 100; 1 to 10 in all is usual.")
    return float(value)


def _probability(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise Invalid(f"{name}={value!r} must lie strictly between 0 and 1; 1e-6 is usual.")
    return float(value)
