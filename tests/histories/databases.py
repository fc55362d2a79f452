"""Database connections of simulated processes, where each statement and commit is a step of the scheduler.

SQLite does not wait for locks here: a locked database returns an error at once. PostgreSQL gives up after a
millisecond, and rolls back to a savepoint that keeps the rest of the transaction. In both cases the process lets others
continue, and then tries again. Connections of a killed process are rolled back at once, as the operating system and the
server would do.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol
from unittest.mock import patch

import psycopg

from tests.histories.scheduler import Process


class Observer(Protocol):
    """Callbacks by which a connection reports its statements and commits."""

    @property
    def running(self) -> Process | None: ...

    def reach(self, what: str) -> None: ...

    def wait(self, what: str) -> None: ...

    def statement(self, words: str, parameters: Any) -> None:
        """Record a statement and its parameters."""

    def after_commit(self, error: type[Exception]) -> None:
        """Record a commit; raise ``error`` if the plan of the history loses the answer to this commit."""


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_MAY_WAIT = ("INSERT", "UPDATE", "DELETE", "LOCK")
_KEPT = b"simulated"
PATIENCE = "-c lock_timeout=1"


@contextmanager
def stepwise(observer: Observer) -> Iterator[None]:
    """In this context, make each statement and commit of a new database connection a step of the scheduler."""
    in_file: Any = sqlite3.connect
    to_server: Any = psycopg.connect

    def connect_file(*args: Any, **settings: Any) -> Any:
        process = observer.running
        if process is None:
            return in_file(*args, **settings)
        made: Any = partial(FileConnection, observer=observer)
        connection = in_file(*args, **{**settings, "timeout": 0, "check_same_thread": False, "factory": made})
        process.at_death.append(partial(_close_file, connection))
        return connection

    def connect_server(*args: Any, **settings: Any) -> Any:
        process = observer.running
        if process is None:
            return to_server(*args, **settings)
        observer.reach("connect")
        made = ServerConnection.connect(*args, **{**settings, "options": PATIENCE})
        made.observer = observer
        made.cursor_factory = ServerCursor
        process.at_death.append(partial(_close_server, made))
        return made

    with (
        patch.object(sqlite3, "connect", connect_file),
        patch.object(sqlite3.dbapi2, "connect", connect_file),
        patch.object(psycopg, "connect", connect_server),
    ):
        yield


class FileConnection(sqlite3.Connection):
    """A connection to a SQLite file, whose statements and commits are steps of the scheduler."""

    def __init__(self, *args: Any, observer: Observer, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.observer = observer

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose statements are steps of the scheduler."""
        cursor = super().cursor(FileCursor)
        cursor.observer = self.observer
        return cursor

    def execute(self, *args: Any) -> Any:
        """Execute a statement."""
        return self.cursor().execute(*args)

    def commit(self) -> None:
        """Commit."""
        self.observer.reach("commit")
        _by_turns(self.observer, super().commit)
        self.observer.after_commit(sqlite3.OperationalError)


class FileCursor(sqlite3.Cursor):
    """A cursor on a SQLite file, whose statements are steps of the scheduler."""

    observer: Observer

    def execute(self, words: str, parameters: Any = ()) -> Any:
        """Execute a statement."""
        self.observer.reach(_short(words))
        self.observer.statement(words, parameters)
        return _by_turns(self.observer, lambda: super(FileCursor, self).execute(words, parameters))

    def executemany(self, words: str, parameters: Any) -> Any:
        """Execute a statement for each set of parameters."""
        parameters = list(parameters)
        self.observer.reach(_short(words))
        self.observer.statement(words, parameters)
        return _by_turns(self.observer, lambda: super(FileCursor, self).executemany(words, parameters))


def _by_turns[T](observer: Observer, act: Callable[[], T]) -> T:
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY:
                raise
            observer.wait("the database")


class ServerConnection(psycopg.Connection[Any]):
    """A connection to a PostgreSQL server, whose statements and commits are steps of the scheduler."""

    observer: Observer

    def commit(self) -> None:
        """Commit."""
        self.observer.reach("commit")
        super().commit()
        self.observer.after_commit(psycopg.OperationalError)


class ServerCursor(psycopg.Cursor[Any]):
    """A cursor on a PostgreSQL server, whose statements are steps of the scheduler."""

    def execute(self, query: Any, params: Any = None, **settings: Any) -> Any:
        """Execute a statement."""
        return self._step(query, params, lambda: super(ServerCursor, self).execute(query, params, **settings))

    def executemany(self, query: Any, params_seq: Any, **settings: Any) -> Any:
        """Execute a statement for each set of parameters."""
        rows = list(params_seq)
        return self._step(query, rows, lambda: super(ServerCursor, self).executemany(query, rows, **settings))

    def _step(self, query: Any, params: Any, act: Callable[[], Any]) -> Any:
        connection: Any = self.connection
        observer: Observer = connection.observer
        words = str(query)
        observer.reach(_short(words))
        observer.statement(words, params)
        server = connection.pgconn
        guarded = connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS and (
            words.startswith(_MAY_WAIT) or "FOR UPDATE" in words or "lock(" in words
        )
        while True:
            if guarded:
                server.exec_(b"SAVEPOINT " + _KEPT)
            try:
                done = act()
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                if guarded:
                    server.exec_(b"ROLLBACK TO SAVEPOINT " + _KEPT)
                    server.exec_(b"RELEASE SAVEPOINT " + _KEPT)
                else:
                    connection.rollback()
                observer.wait("a row")
            else:
                if guarded:
                    server.exec_(b"RELEASE SAVEPOINT " + _KEPT)
                return done


def _short(words: str) -> str:
    return " ".join(words.split()[:3])[:60]


def _close_file(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        sqlite3.Connection.rollback(connection)
    with suppress(sqlite3.Error):
        sqlite3.Connection.close(connection)


def _close_server(connection: psycopg.Connection[Any]) -> None:
    if not connection.closed:
        connection.pgconn.exec_(b"ROLLBACK")  # when this rollback returns, the server has released the locks
        connection.close()
