"""Connections, transactions and migrations of a database, for SQLite and PostgreSQL.

Every access uses one of two contexts. `reading` is for reads: all statements in one `reading` see the same snapshot of
the database, and never wait for a writer. `transaction` is for writes: it takes the ledger's lock with its first
statement, so no row that it reads changes before the commit. Without either context, two statements could see different
states of the database, which later checks would report as damage.

`one_connection` keeps one connection to a SQLite file open for several transactions. It saves time: opening the file,
and the checkpoint of the write-ahead log when the last connection closes, take longer than most transactions.

`raw_rows` is for large results: it yields the driver's plain tuples, without column names or type conversions.
"""

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, OperationalError

from dpca.backends.atomic_files import create_file
from dpca.errors import Invalid, Refused, Unavailable
from storage.database import tables

type _Identity = tuple[object, ...]
type _Connections = dict[sa.Engine, tuple[_Identity, sa.Connection]]


_held: ContextVar[tuple[int, _Connections] | None] = ContextVar("held", default=None)
"""The thread id, and the connections that this thread shares, by engine; None outside of `one_connection`.

Each connection is stored with the identity of its process and files. The thread id is needed because a context may be
copied into another thread, which must not use these connections.
"""


@contextmanager
def one_connection() -> Iterator[None]:
    """Let the transactions of this thread share one connection to each SQLite file while the context is open.

    The connection is replaced by a new one after a failed transaction, after a restored copy has replaced the database
    files, and in a forked process. PostgreSQL connections are not shared: the network may close a connection that idles
    while rows are summed. Each PostgreSQL transaction opens a new connection.
    """
    if _held_here() is not None:
        yield
        return
    connections: _Connections = {}
    token = _held.set((get_ident(), connections))
    try:
        yield
    finally:
        _held.reset(token)
        for _, connection in connections.values():
            connection.close()


@contextmanager
def begun(engine: sa.Engine, *, reads: bool = False) -> Iterator[sa.Connection]:
    """Yield a connection in a transaction that is rolled back at the end if ``reads`` is true, else committed.

    Inside `one_connection`, the thread's shared SQLite connection is used; otherwise a new connection is opened.
    """
    connections, path = _held_here(), engine.url.database
    if connections is None or engine.dialect.name != "sqlite" or path is None:
        with engine.connect() as connection, connection.begin() as transaction:
            yield connection
            if reads:
                transaction.rollback()
        return
    identity, connection = _taken(connections, engine, path)
    try:
        with connection.begin() as transaction:
            yield connection
            if reads:
                transaction.rollback()
    except BaseException:
        connection.close()
        raise
    if engine in connections:  # a nested transaction has already stored a connection to this database
        connection.close()
    else:
        connections[engine] = identity or _identity(path), connection


def _held_here() -> _Connections | None:
    """Return the SQLite connections that `one_connection` shares in this thread, or None outside of that context."""
    thread, connections = _held.get() or (0, None)
    return connections if thread == get_ident() else None


def _taken(connections: _Connections, engine: sa.Engine, path: str) -> tuple[_Identity | None, sa.Connection]:
    """Return the shared connection to the SQLite file at `path`, or a new one if the shared one may not be reused.

    The first item is the shared connection's identity (see `_identity`), or None for a new connection.
    """
    if engine not in connections:
        return None, engine.connect()
    identity, held = connections.pop(engine)
    if identity == _identity(path):
        return identity, held
    held.close()
    return None, engine.connect()


def _identity(path: str) -> _Identity:
    """Identify this process and the files at `path`.

    Return the process id, and the device and inode of the database file and of its write-ahead log.
    """
    found: list[object] = [os.getpid()]
    for file in (path, f"{path}-wal"):
        try:
            status = os.stat(file)  # noqa: PTH116 - `Path.stat` takes ten times as long
        except OSError:
            # a missing file gets a new object as identity, so a connection to it is never reused
            found.append(object())
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


_AT_ONCE = 4096


def raw_rows(
    connection: sa.Connection, query: sa.Select[Any], given: Mapping[str, Any] | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a query in order, in lists of up to `_AT_ONCE` plain tuples."""
    with connection.execute(query, given) as result:
        cursor = result.cursor
        assert cursor is not None
        while rows := cursor.fetchmany(_AT_ONCE):
            yield list(rows)


HEAD = "0001"
"""The newest migration; a database at an older one is upgraded when it is opened for writing."""

LOCK_TIMEOUT = 60.0
"""Seconds for which SQLite waits until another process finishes its transaction."""

_LOCK = sa.select(tables.ledger.c.id).with_for_update()
_OF_A_STANDBY = "25006"
"""The SQLSTATE with which PostgreSQL refuses writes, because the server is a standby or read-only."""
_NOTICES = {
    "connect_timeout": 10,
    **{"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3},
    "tcp_user_timeout": 60_000,
}
"""Time limits to detect a lost PostgreSQL server, in seconds (the last in ms), unless the URL sets them."""


def connect(url: str) -> sa.Engine:
    """Open a database for reading and writing, and migrate it to the newest schema if necessary.

    A connection is closed after each transaction, or at the end of `one_connection`, so no connection is left open or
    shared with a forked process. SQLite runs in WAL mode with full synchronization. With its first statement, a writing
    transaction takes the write lock of SQLite, or locks the row of the ledger in PostgreSQL. In PostgreSQL, it runs at
    the isolation level READ COMMITTED, whatever the server's default, so that it reads the rows as they are after it
    got the lock.

    Raises
    ------
    Invalid
        When the URL is not the URL of a SQLite file or of PostgreSQL.
    Refused
        When the database was written by a newer version of this program.
    Unavailable
        When the database cannot be reached or written.
    """
    engine = _usable_engine(url)
    with schema_transaction(engine) as connection:
        upgrade(connection)
    return engine


def connect_as_is(url: str) -> sa.Engine:
    """Return an engine on a database without migrating it; the database may be empty or have any schema version.

    Raises
    ------
    Invalid
        When the URL is not the URL of a SQLite file or of PostgreSQL.
    """
    return _usable_engine(url)


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a connection that sees one snapshot of the database, as of its first statement, and blocks no writer.

    Later commits are not visible. A file that is read afterwards may therefore be newer than these rows. To compare
    rows with a file, read the file first, or read the database again after the file.

    Raises
    ------
    Unavailable
        When the database is missing or damaged.
    """
    with _explained():
        if engine.dialect.name == "postgresql":
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            with engine.connect().execution_options(**options) as connection:
                yield connection
        else:
            path = engine.url.database
            with begun(engine if path is None else _reading_engine(Path(path)), reads=True) as connection:
                yield connection


def connect_to_read(url: str) -> sa.Engine | None:
    """Open a database for reading only; return None if no database exists yet.

    On a read-only or full disk, SQLite cannot create the files that coordinate readers and writers. The database file
    is then opened as immutable. This is refused if the write-ahead log has content, because the database file alone
    would lack the newest rows.

    Raises
    ------
    Invalid
        When the URL is not the URL of a SQLite file or of PostgreSQL.
    Unavailable
        When the database cannot be read.
    Refused
        When another version of this program wrote the database.
    """
    engine = _usable_engine(url)
    path = Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None
    if path is not None:
        if not path.is_file():
            return None
        engine = _reading_engine(path)
    with reading(engine) as connection:
        migration = migration_of(connection)
    if migration not in (None, HEAD):
        raise Refused("the database was written by another version of dpca; read it with that version.")
    return None if migration is None else engine


def connect_in_memory() -> sa.Engine:
    """Return an engine on a new SQLite database in memory."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
    # the engine's only connection holds the in-memory database, so it is closed together with the engine
    weakref.finalize(engine, engine.pool.dispose)
    with schema_transaction(engine) as connection:
        migrate(connection)
    return engine


@cache
def _reading_engine(path: Path) -> sa.Engine:
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, poolclass=sa.NullPool, creator=lambda: _open_to_read(path))
    _begin_with(engine, "BEGIN")
    return engine


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _open_to_read(path: Path) -> sqlite3.Connection:
    where = f"file:{quote(str(path))}"
    connection = sqlite3.connect(f"{where}?mode=rw", uri=True, timeout=LOCK_TIMEOUT, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        connection.close()
        is_damaged = not isinstance(error, sqlite3.OperationalError)
        if is_damaged or _has_content(path.with_name(f"{path.name}-wal")):
            raise
        return sqlite3.connect(f"{where}?immutable=1", uri=True, isolation_level=None)
    return connection


@contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run one writing transaction, which holds the ledger's lock from its first statement to its end.

    Raises
    ------
    Unavailable
        When the database cannot be used; see `schema_transaction`.
    """
    with schema_transaction(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(_LOCK)
        yield connection


@contextmanager
def schema_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run one transaction without the ledger's lock, to create, upgrade or fill tables.

    The table `ledger`, whose row is the lock, may not exist yet. Failures of the database are reported in one line.

    Raises
    ------
    Unavailable
        When the database is missing, full, locked for too long, damaged, read-only or a standby. The transaction then
        wrote nothing, with one exception: if the connection was lost during the commit, the transaction may be
        committed. Running the same request again is safe in both cases. Also raised when PostgreSQL committed with a
        warning, for example that it stopped waiting for its standby.
    """
    warned: list[str] = []
    with _explained(), begun(engine) as connection:
        if engine.dialect.name == "postgresql":
            _listen_for_warnings(connection, warned)
        yield connection
        warned.clear()  # warnings from before the commit are dropped; only warnings about the commit count
    if warned:
        raise Unavailable(
            f"the database committed the transaction with a warning ({warned[0]}), so a failover may lose it; restore "
            "the standby, and run the same request again."
        )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        # SQLite reports a damaged file as the base class DatabaseError; its other subclasses mean a faulty statement.
        known = isinstance(error, OperationalError) or type(error) is DatabaseError
        if not known and getattr(error.orig, "sqlstate", None) != _OF_A_STANDBY:
            raise
        raise _unavailable(error) from None
    except InterfaceError as error:
        raise _unavailable(error) from None


def _listen_for_warnings(connection: sa.Connection, notices: list[str]) -> None:
    """Append the PostgreSQL server's warnings on this connection to `notices`.

    One such warning is that a commit did not wait for the synchronous standby.
    """

    def record(notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING":
            notices.append(" ".join(str(notice.message_primary).split())[:200])

    driver: Any = connection.connection.driver_connection
    # psycopg 3, from the extra `postgres`, reports server warnings to such a handler
    if hasattr(driver, "add_notice_handler"):
        driver.add_notice_handler(record)


def _usable_engine(url: str) -> sa.Engine:
    try:
        return _engine(url)
    # SQLAlchemy raises ValueError if the port in the URL is not a number
    except (ArgumentError, ImportError, ValueError):
        raise Invalid(
            "DPCA_DATABASE_URL is not usable; write sqlite:////path/to/file or postgresql+psycopg://user@host/name "
            "(with the `postgres` extra installed)."
        ) from None


@cache
def _engine(url: str) -> sa.Engine:
    """Return the engine of a database URL; each process makes only one, because it caches compiled statements."""
    address = sa.make_url(url)
    match address.get_backend_name():
        case "postgresql":
            noticing = {name: value for name, value in _NOTICES.items() if name not in address.query}
            return sa.create_engine(
                address, poolclass=sa.NullPool, isolation_level="READ COMMITTED", connect_args=noticing
            )
        case "sqlite" if address.database not in (None, "", ":memory:"):
            return _sqlite(address)
    raise ArgumentError("a ledger requires a SQLite file or PostgreSQL")


def _sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": LOCK_TIMEOUT})

    @sa.event.listens_for(engine, "do_connect")
    def _create(_dialect: Any, _record: Any, arguments: Any, _others: Any) -> None:
        path = Path(arguments[0])
        # the database file is created as a private file, because SQLite gives its log files the same mode
        if not path.exists() and path.parent.is_dir():
            with suppress(OSError):
                create_file(path)

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # the driver must not begin transactions by itself, because `_begin_with` begins them
        connection.isolation_level = None
        _switch_to_wal(connection)
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            connection.execute("PRAGMA " + pragma)

    _begin_with(engine, "BEGIN IMMEDIATE")
    return engine


def _begin_with(engine: sa.Engine, statement: str) -> None:
    def begin(dbapi_connection: Any) -> None:
        dbapi_connection.execute(statement)

    # the dialect's method is replaced, because an event listener would slow down every statement
    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch a new file to WAL mode, retrying while another process switches it, because SQLite does not wait then."""
    last = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                raise
            time.sleep(0.02)
        else:
            return


def migration_of(connection: sa.Connection) -> str | None:
    """Return the database's current migration (its schema version), or None if the database is empty."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def upgrade(connection: sa.Connection) -> None:
    """Migrate a database to the newest schema if it is not up to date, in the caller's transaction.

    Raises
    ------
    Refused
        When the database was written by a newer version of this program.
    """
    if migration_of(connection) != HEAD:
        migrate(connection)


def migrate(connection: sa.Connection) -> None:
    """Run all missing migrations up to the newest one, in the caller's transaction.

    Raises
    ------
    Refused
        When the database has a migration that this version of the program does not know.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    if connection.dialect.name == "postgresql":
        # this PostgreSQL lock lets only one process migrate at a time
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4452437761)")
    config = Config()
    config.set_main_option("script_location", "storage.database:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError:
        raise Refused("the database was written by a newer version of dpca; run that version, or upgrade.") from None


def _unavailable(error: DBAPIError) -> Unavailable:
    reason = " ".join(str(error.orig).split())[:200]
    return Unavailable(
        f"the database cannot be used ({reason}); fix it, or correct DPCA_DATABASE_URL, and run the same request again."
    )
