"""One connection to a SQLite file for as long as a stage runs, in place of one a transaction.

Opening a file, and moving its log into it when the last connection is closed, takes longer than most transactions.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident

import sqlalchemy as sa

type _Identity = tuple[object, ...]
type _Connections = dict[sa.Engine, tuple[_Identity, sa.Connection]]


_held: ContextVar[tuple[int, _Connections] | None] = ContextVar("held", default=None)
"""The thread, and its open connections by engine, each with the files that it reads; None where none are held.

A context may be copied into another thread, in which these connections are not held.
"""


@contextmanager
def one_connection() -> Iterator[None]:
    """Let the transactions of this thread share one connection to each SQLite file, until the end.

    A connection is not used again when a transaction failed on it, when a restored copy took the place of its files, or
    in a forked process. PostgreSQL has a connection a transaction as ever: one that idles while rows are summed may be
    cut by whatever stands between.
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
    """Yield a connection in a transaction, the one that is held or a new one; commit it at the end unless it reads."""
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
    if engine in connections:  # by a transaction within this one
        connection.close()
    else:
        connections[engine] = identity or _identity(path), connection


def _held_here() -> _Connections | None:
    """Return the connections that this thread holds, if it does."""
    thread, connections = _held.get() or (0, None)
    return connections if thread == get_ident() else None


def _taken(connections: _Connections, engine: sa.Engine, path: str) -> tuple[_Identity | None, sa.Connection]:
    """Take the connection that is held, and what it reads, if it may be used again, or a new one."""
    if engine not in connections:
        return None, engine.connect()
    identity, held = connections.pop(engine)
    if identity == _identity(path):
        return identity, held
    held.close()
    return None, engine.connect()


def _identity(path: str) -> _Identity:
    """Name this process, and the database and its log as the file system knows them."""
    found: list[object] = [os.getpid()]
    for file in (path, f"{path}-wal"):
        try:
            status = os.stat(file)  # noqa: PTH116 - a path takes ten times as long
        except OSError:
            found.append(object())  # equal to nothing: a connection whose files cannot be told apart is not used again
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)
