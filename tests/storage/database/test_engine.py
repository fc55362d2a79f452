"""Database connections and schema.

A stage has one connection to SQLite, and no transaction runs on a connection that belongs to other files or another
process. Both databases have the schema that the code expects, and enforce immutability where it is required.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from dpca.errors import Conflict, Invalid, Refused, Unavailable
from storage.database import tables
from storage.database.engine import _switch_to_wal, connect, one_connection, transaction
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.postgres import Server, running_server
from tests.storage.conftest import DATABASES
from tests.storage.releasing import (
    answer_tick,
    begin,
    begin_tick,
    commit,
    event_names,
    open_budget,
    open_stream,
    register,
    reserve,
)


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    """Create a database with one empty table of small numbers."""
    made = connect(f"sqlite:///{tmp_path}/ledger.sqlite")
    with transaction(made) as connection:
        connection.exec_driver_sql("CREATE TABLE noted (number INTEGER CHECK (number < 10))")
    return made


def note(engine: sa.Engine, number: int) -> sqlite3.Connection:
    """Write a number to the table, and return the driver's connection that wrote it."""
    with transaction(engine) as connection:
        connection.exec_driver_sql("INSERT INTO noted VALUES (?)", (number,))
        driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def noted(engine: sa.Engine) -> list[int]:
    """Return the numbers in the table."""
    with transaction(engine) as connection:
        return list(connection.exec_driver_sql("SELECT number FROM noted").scalars())


def test_transactions_of_a_stage_share_one_connection(engine: sa.Engine) -> None:
    with one_connection():
        first = note(engine, 1)
        with one_connection():
            assert note(engine, 2) is first
        assert noted(engine) == [1, 2]
        assert note(engine, 3) is first
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("SELECT 1")
    assert note(engine, 4) is not note(engine, 5)


@pytest.mark.parametrize("context", [Context, copy_context])
def test_another_thread_has_a_separate_connection(engine: sa.Engine, context: Callable[[], Context]) -> None:
    found: list[sqlite3.Connection] = []
    with one_connection():
        ours = note(engine, 1)
        other = threading.Thread(target=context().run, args=(lambda: found.append(note(engine, 2)),))
        other.start()
        other.join()
        assert noted(engine) == [1, 2]
    assert found[0] is not ours


def test_a_connection_on_which_a_transaction_failed_is_not_used_again(engine: sa.Engine) -> None:
    with one_connection():
        first = note(engine, 1)
        with pytest.raises(sa.exc.IntegrityError):
            note(engine, 10)
        assert note(engine, 3) is not first
        assert noted(engine) == [1, 3]


def test_a_database_that_is_replaced_is_opened_again(engine: sa.Engine, tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite"
    note(engine, 1)
    shutil.copy(path, copy)
    with one_connection():
        note(engine, 2)
        for log in tmp_path.glob("ledger.sqlite-*"):
            log.unlink()
        copy.replace(path)
        assert noted(engine) == [1]


def test_a_forked_process_opens_a_new_connection(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_connection():
        first = note(engine, 1)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert note(engine, 2) is not first


NEVER = (
    *("event", "version", "budget", "step", "ledger"),
    *("stream", "stream_charge", "tick", "tick_answer"),
)

OF_EACH_DIALECT = ("ix_release_newest",)
"""The indexes whose definition differs between the databases."""


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    """Return a ledger with rows in every immutable table."""
    fill(ledger)
    return ledger


@pytest.fixture
def ledger_on_postgresql(postgres: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Open a new ledger on PostgreSQL, for tests of features that SQLite lacks."""
    with postgres.database() as url:
        monkeypatch.setenv("DPCA_DATABASE_URL", url)
        yield Workspace.open().ledger


def fill(ledger: Ledger) -> None:
    """Put a row into every immutable table, and a release in every state except abandoned."""
    open_budget(ledger)
    reserve(ledger, "reserved")
    begin(ledger, "noising")
    begun = begin(ledger, "committed")
    begun.keep(0, {})
    commit(ledger, begun.release_id)
    with ledger.transaction() as connection:
        row = {"name": "n", "version": 1, "digest": "d" * 64, "release_id": begun.release_id, "created_at": "now"}
        connection.execute(tables.version.insert().values(**row))
    register(ledger)
    open_stream(ledger)
    answer_tick(ledger, begin_tick(ledger))


def refused(ledger: Ledger, statement: str, saying: str) -> None:
    with pytest.raises(sa.exc.DBAPIError, match=saying), ledger.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def test_the_schema_after_migrations_is_the_metadata(ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        opts = {"compare_type": True, "include_name": lambda name, *_: name not in OF_EACH_DIALECT}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, tables.metadata) == []


def test_rows_that_never_change_are_neither_updated_nor_deleted(filled: Ledger) -> None:
    for table in NEVER:
        column = next(iter(tables.metadata.tables[table].columns)).name
        refused(filled, f"UPDATE {table} SET {column} = {column}", "never change")
        refused(filled, f"DELETE FROM {table}", "never change")
    refused(filled, "DELETE FROM release", "never")


def test_immutable_rows_are_neither_replaced_nor_truncated(filled: Ledger) -> None:
    for table in (*NEVER, "release"):
        if filled.engine.dialect.name == "postgresql":
            refused(filled, f"TRUNCATE {table} CASCADE", "never change")
        else:
            refused(filled, f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}", "never replaced")


def test_a_run_key_or_version_is_not_replaced_under_another_id(sqlite_ledger: Ledger) -> None:
    fill(sqlite_ledger)
    columns = ", ".join(column.name for column in tables.release.c if column.name != "id")
    statement = f"REPLACE INTO release (id, {columns}) SELECT 'other', {columns} FROM release"
    refused(sqlite_ledger, statement, "never replaced")
    refused(sqlite_ledger, "REPLACE INTO version SELECT name, 2, 'x', release_id, 'now' FROM version", "never replaced")


def test_invalid_state_changes_of_a_release_are_refused(filled: Ledger) -> None:
    for before, after in (
        ("reserved", "committed"),
        ("reserved", "closed"),
        ("reserved", "unheard-of"),
        ("noising", "reserved"),
        ("noising", "abandoned"),
        ("committed", "noising"),
        ("committed", "closed"),
        ("committed", "abandoned"),
    ):
        digest = "'x'" if after == "committed" else "NULL"
        change = f"UPDATE release SET state = '{after}', artifact_digest = {digest} WHERE run_key = '{before}'"
        refused(filled, change, "only moves forward")


def test_reserved_terms_never_change(filled: Ledger) -> None:
    texts = (
        "id",
        "population",
        "snapshot_id",
        "run_key",
        "fingerprint",
        "request",
        "event",
        "accounting",
        "created_at",
    )
    for change in (
        *(f"{name} = {name} || 'x'" for name in texts),
        *("epsilon = epsilon / 2", "delta = delta / 2", "charge = ''"),
    ):
        refused(filled, f"UPDATE release SET {change}", "only moves forward")


def test_a_committed_release_keeps_its_artifact_and_no_other_has_one(filled: Ledger) -> None:
    for change in (
        "artifact_digest = 'other' WHERE state = 'committed'",
        "artifact_digest = NULL WHERE state = 'committed'",
        "artifact_digest = 'd' WHERE state = 'noising'",
        "state = 'committed' WHERE state = 'noising'",
    ):
        refused(filled, f"UPDATE release SET {change}", "only moves forward")


def test_sqlite_is_durable_and_postgresql_reads_what_was_committed_whatever_its_default(ledger: Ledger) -> None:
    if ledger.engine.dialect.name == "sqlite":
        with ledger.engine.begin() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        return
    with ledger.engine.begin() as connection:
        name = ledger.engine.url.database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    with ledger.engine.begin() as connection:
        assert connection.exec_driver_sql("SHOW default_transaction_isolation").scalar() == "serializable"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"


@pytest.mark.parametrize(
    "url",
    [
        *("", "nonsense", "oracle://host/name", "sqlite://", "sqlite:///:memory:", "mysql+nonesuch://host/name"),
        "postgresql+psycopg://host:port/name",
    ],
)
def test_an_unusable_address_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="DPCA_DATABASE_URL"):
        connect(url)


def test_a_database_of_a_newer_program_is_refused(ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Refused, match="newer"):
        Workspace.open()
    with pytest.raises(Refused, match="another version"):
        Workspace.read_only()


def test_a_missing_server_is_reported_as_unavailable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_DATABASE_URL", "postgresql+psycopg://dpca@127.0.0.1:1/none?connect_timeout=2")
    with pytest.raises(Unavailable, match="cannot be used"):
        Workspace.open()


def test_a_missing_folder_and_a_damaged_file_are_unavailable(home: Path) -> None:
    with pytest.raises(Unavailable, match="unable to open"):
        connect(f"sqlite:///{home / 'nowhere' / 'file'}")
    (home / "dpca.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(Unavailable, match="not a database"):
        Workspace.open()


def test_a_full_disk_is_reported_as_unavailable_and_the_ledger_stays_intact(sqlite_ledger: Ledger) -> None:
    open_budget(sqlite_ledger)
    begin(sqlite_ledger, "first")
    script = (
        "import resource, signal, sys; from tests.storage.releasing import reserve;"
        "from storage.workspace import Workspace; from dpca.errors import Unavailable;"
        "ledger = Workspace.open().ledger;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "try: reserve(ledger, 'second')\n"
        "except Unavailable as error: sys.exit(f'Unavailable: {error}')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stderr.startswith("Unavailable: "), run.stderr
    assert run.stderr.count("\n") == 1
    again = Workspace.open().ledger
    assert [row.run_key for row in again.statement("people").releases] == ["first"]
    assert reserve(again, "second").is_new
    assert again.verify() == len(event_names(again))


def test_a_read_only_file_is_unavailable(sqlite_ledger: Ledger, home: Path) -> None:
    open_budget(sqlite_ledger)
    engine = connect(str(sqlite_ledger.engine.url))

    @sa.event.listens_for(engine, "connect")
    def _freeze(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA query_only = ON")

    with pytest.raises(Unavailable, match="readonly"), transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="x", created_at="now"))


def test_a_violated_constraint_is_not_reported_as_unavailable(sqlite_ledger: Ledger) -> None:
    with pytest.raises(sa.exc.IntegrityError), sqlite_ledger.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM ledger")


def test_no_connection_outlives_its_transaction(sqlite_ledger: Ledger, home: Path) -> None:
    open_budget(sqlite_ledger)
    assert not (home / "dpca.sqlite-wal").exists()
    with closing(sqlite3.connect(home / "dpca.sqlite")) as connection:
        assert connection.execute("SELECT population FROM budget").fetchall() == [("people",)]


def test_a_transaction_of_sqlite_holds_the_lock_before_its_first_statement(sqlite_ledger: Ledger, home: Path) -> None:
    with closing(sqlite3.connect(home / "dpca.sqlite", timeout=0, isolation_level=None)) as other:
        with transaction(sqlite_ledger.engine), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")


def test_an_error_rolls_back_its_transaction(ledger: Ledger) -> None:
    before = event_names(ledger)
    open_budget(ledger)

    def write_and_fail() -> None:
        with ledger.transaction() as connection:
            connection.execute(tables.alias.insert().values(name="n", alias="a", version=1))
            raise Conflict("the transaction must be rolled back")

    with pytest.raises(Conflict):
        write_and_fail()
    with ledger.transaction() as connection:
        assert connection.execute(sa.select(tables.alias)).all() == []
    assert event_names(ledger) == [*before, "budget_opened"]


if "postgresql" in DATABASES:

    def test_a_lost_server_is_reported_as_unavailable_and_used_again_after_restart(
        home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running_server() as server:
            monkeypatch.setenv("DPCA_DATABASE_URL", f"{server.url}/postgres")
            ledger = Workspace.open().ledger
            open_budget(ledger)
            begun = begin(ledger)

            def lose_the_server() -> None:
                with ledger.transaction() as connection:
                    server.stop()
                    connection.execute(sa.select(tables.ledger))

            for attempt in (
                lose_the_server,
                lambda: reserve(ledger, "other"),
                lambda: begun.keep(0, {}),
                Workspace.open,
            ):
                with pytest.raises(Unavailable, match="cannot be used"):
                    attempt()
            server.start()
            assert not reserve(ledger).is_new
            begun.keep(0, {})
            commit(ledger, begun.release_id)
            assert reserve(Workspace.open().ledger).state == "committed"

    def test_a_standby_is_reported_as_unavailable(ledger_on_postgresql: Ledger) -> None:
        ledger, name = ledger_on_postgresql, ledger_on_postgresql.engine.url.database
        open_budget(ledger)
        begun = begin(ledger)
        with ledger.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        for attempt in (lambda: reserve(ledger, "other"), lambda: begun.keep(0, {}), lambda: begin(ledger)):
            with pytest.raises(Unavailable, match=r"in a read-only transaction.*run the same request again"):
                attempt()
        assert Workspace.read_only().ledger.budget("people").epsilon == 1.0
        with ledger.engine.begin() as connection:  # simulates the promotion of the standby, which then accepts writes
            connection.exec_driver_sql("SET TRANSACTION READ WRITE")
            connection.exec_driver_sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        begun.keep(0, {})

    def test_a_commit_with_a_warning_of_the_server_is_not_acknowledged(ledger_on_postgresql: Ledger) -> None:
        ledger = ledger_on_postgresql
        warn = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'not replicated'; RETURN NULL; END $$"
        with ledger.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE FUNCTION warn() {warn}")
            connection.exec_driver_sql(
                "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON budget DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION warn()"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER early AFTER INSERT ON release FOR EACH ROW EXECUTE FUNCTION warn()"
            )
        with pytest.raises(Unavailable, match=r"with a warning .not replicated., so a failover may lose it"):
            open_budget(ledger)
        open_budget(ledger)  # it was committed
        assert reserve(ledger).is_new  # a warning of the server before the commit does not matter

    def test_the_writable_one_of_several_servers_is_used(
        ledger_on_postgresql: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = ledger_on_postgresql.engine.url
        several = f"postgresql+psycopg://dpca@/{url.database}?host=127.0.0.1:1&host={url.host}:{url.port}"
        monkeypatch.setenv("DPCA_DATABASE_URL", f"{several}&target_session_attrs=read-write&connect_timeout=3")
        open_budget(Workspace.open().ledger)
        assert ledger_on_postgresql.budget("people").epsilon == 1.0


class _BusyAtFirst:
    """Stub of a connection that fails twice, as when two SQLite connections switch the journal mode at once."""

    def __init__(self, code: int) -> None:
        self.code, self.requested = code, 0

    def execute(self, _: str) -> None:
        self.requested += 1
        if self.requested < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error


def test_a_concurrent_switch_of_the_journal_mode_is_retried() -> None:
    connection: Any = _BusyAtFirst(sqlite3.SQLITE_BUSY_RECOVERY)
    _switch_to_wal(connection)
    assert connection.requested == 3
    broken: Any = _BusyAtFirst(sqlite3.SQLITE_READONLY)
    with pytest.raises(sqlite3.OperationalError):
        _switch_to_wal(broken)
    assert broken.requested == 1
