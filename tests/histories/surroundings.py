"""Simulated environment of processes: clocks, randomness, databases, and observed files.

Clocks, randomness and databases are each replaced in one place. Files are not replaced but observed: an audit hook of
the interpreter sees every call that opens, renames, lists or removes a file under the world's folder, so no call is
missed. The content of a file is recorded before the file is removed, for the check that no exact sum was ever written.
Clocks advance by steps, and jump when a history plans it. Names are drawn from the seed.

Each statement and commit of a simulated process is a step of the scheduler. SQLite does not wait for locks here: a
locked database returns an error at once. PostgreSQL gives up after a millisecond, and rolls back to a savepoint that
keeps the rest of the transaction. In both cases the process lets others continue, and then tries again. Connections of
a killed process are rolled back at once, as the operating system and the server would do.
"""

import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import random
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch
from uuid import UUID

import numpy as np
import psycopg

from dpca.backends import atomic_files
from dpca_tasks.privacy import curator
from dpca_tasks.sums.exact_sum import exact_sum
from storage.ledger import releases
from storage.ledger.step_answers import StepStore
from tests.histories.scheduler import Process, Scheduler


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


PACKAGES = ("dpca", "dpca_tasks", "flows", "storage")
FILES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR
SEPARATE = ("datasets", "scratch")
"""Folders that contain rows, or nothing of the ledger."""


@dataclass(kw_only=True)
class Seen:
    """Observations of a history, made without the code under test.

    Each entry of ``pointers`` has a step, the name and the content of the pointer file written at that step, and the
    versions of that name that were then committed.
    """

    written: list[tuple[str, bytes]] = field(default_factory=list)
    pointers: list[tuple[int, str, dict[str, Any], frozenset[int]]] = field(default_factory=list)
    totals: set[int] = field(default_factory=set)
    answers: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    keys: dict[str, bytes] = field(default_factory=dict)
    drawn: set[str] = field(default_factory=set)


class Surroundings:
    """The simulated environment of the processes of one history.

    Attributes
    ----------
    seen : Seen
    errors : dict of kind to number, the remaining failures of disk and database
    labels : dict of process name to the label from which its next keys are derived
    """

    def __init__(
        self, root: Path, *, seed: int, scheduler: Scheduler, recorded: Callable[[str], frozenset[int]]
    ) -> None:
        self.root, self.scheduler, self.seen = root, scheduler, Seen()
        self._recorded = recorded
        self.errors: dict[str, int] = defaultdict(int)
        self.labels: dict[str, str] = {}
        self._random, self._jumped, self._began = random.Random(f"names {seed}"), timedelta(), time.time()
        self._drawn: dict[str, int] = defaultdict(int)
        self._is_looking = False

    # --- steps of processes ---

    @property
    def running(self) -> Process | None:
        """The process whose code is running; None while this environment itself reads files."""
        return None if self._is_looking else self.scheduler.running

    def reach(self, what: str) -> None:
        """Make a step of the scheduler."""
        self.scheduler.reach(what)

    def wait(self, what: str) -> None:
        """Let other processes continue, because one of them holds a lock."""
        self.scheduler.wait(what)

    def statement(self, words: str, parameters: Any) -> None:
        """Record the parameters of an SQL statement."""
        if parameters:
            self.seen.written.append((f"database {words[:40]}", _bytes_of(parameters)))

    def after_commit(self, error: type[Exception]) -> None:
        """Lose the answer to a commit if the plan requires it."""
        if self.errors["answer"]:
            self.errors["answer"] -= 1
            raise error("the connection was lost")

    def jump(self, by: timedelta) -> None:
        """Set all clocks forward or back by ``by``."""
        self._jumped += by

    def now(self) -> float:
        """Return the time of all clocks; no two readings are equal."""
        self._jumped += timedelta(microseconds=1)
        return self._began + self.scheduler.step * 1e-3 + self._jumped.total_seconds()

    # --- installation ---

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the environment for the duration of the context."""
        with ExitStack() as stack:
            stack.enter_context(_watched(self))
            stack.enter_context(stepwise(self))
            stack.enter_context(patch.object(fcntl, "flock", partial(self._lock, fcntl.flock)))
            stack.enter_context(patch.object(os, "fsync", lambda _file: self.reach("sync")))
            stack.enter_context(patch.object(atomic_files, "hook", self.reach))
            stack.enter_context(patch.object(releases, "new_key", self._new_key))
            stack.enter_context(patch.object(curator, "exact_sum", partial(self._summed, exact_sum)))
            stack.enter_context(patch.object(StepStore, "keep", _noting(self.seen, StepStore.keep)))
            for module, name, replacement in self._clocks_and_names():
                stack.enter_context(patch.object(module, name, replacement))
            stack.enter_context(self._logged())
            yield

    def _clocks_and_names(self) -> Iterator[tuple[ModuleType, str, Any]]:
        """Yield each product module's sources of time and of random names, with their replacements."""
        surroundings = self

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.fromtimestamp(surroundings.now(), tz)

        clocks = SimpleNamespace(time=self.now, monotonic=self.now, perf_counter=self.now, sleep=self._sleep)
        names = SimpleNamespace(token_hex=lambda count: self._random.randbytes(count).hex())
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] in PACKAGES:
                for known, replacement in (("time", clocks), ("datetime", Clock), ("secrets", names)):
                    if getattr(module, known, None) in (time, datetime, sys.modules["secrets"]):
                        yield module, known, replacement
                if hasattr(module, "uuid4"):
                    yield module, "uuid4", lambda: UUID(bytes=self._random.randbytes(16), version=4)

    def _sleep(self, seconds: float) -> None:
        self._jumped += timedelta(seconds=seconds)
        self.wait("a while")

    @contextmanager
    def _logged(self) -> Iterator[None]:
        message = io.StringIO()
        handler = logging.StreamHandler(message)
        handler.setLevel(logging.DEBUG)
        logger, level = logging.getLogger("dpca"), logging.getLogger("dpca").level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        # root handlers are those of an orchestrator, which write to the terminal
        elsewhere: Any = patch.object(logging.getLogger(), "handlers", [])
        with elsewhere, patch.object(sys, "stderr", message), patch.object(sys, "stdout", message):
            try:
                yield
            finally:
                logger.removeHandler(handler)
                logger.setLevel(level)
                self.seen.written.append(("log", message.getvalue().encode()))

    # --- replacements ---

    def _lock(self, original: Any, file: Any, operation: int) -> None:
        process = self.running
        if process is None or operation & (fcntl.LOCK_NB | fcntl.LOCK_UN):
            original(file, operation)
            return
        self.reach("lock a file")
        while True:
            try:
                original(file, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                self.wait("a file")
            else:
                process.at_death.append(partial(_unlock, original, file))
                return

    def _new_key(self) -> bytes:
        """Derive the key of a release from the request's label and the number of draws, equal in every history."""
        process = self.running
        label = self.labels.get(process.name, "nobody") if process else "nobody"
        self._drawn[label] += 1
        key = hashlib.sha256(f"{label}, draw {self._drawn[label]}".encode()).digest()
        self.seen.keys[releases.release_id_of(key)] = key
        return key

    def _summed(self, original: Any, *args: Any, **named: Any) -> Any:
        total = original(*args, **named)
        self.seen.totals.update(int(number) for number in np.asarray(total).ravel())
        return total

    def on_file(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Make every access to a file of the world a step, and record files before they are removed."""
        if self._is_looking or self.running is None:
            return
        within = self._within(arguments[0])
        if within is None:
            return
        writes = event != "open" or bool(int(arguments[2] or 0) & WRITING)
        self.reach(f"{event}{' to write' if event == 'open' and writes else ''} {within}")
        if event == "open" and writes and self.errors["disk"]:
            self.errors["disk"] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with self._looking():
            if event in ("os.rename", "os.remove", "shutil.rmtree"):
                self.keep(Path(os.fsdecode(arguments[0])))
            if (
                event == "os.rename"
                and (target := self._within(arguments[1]))
                and target.startswith("home/registry/names/")
            ):
                self.pointer(Path(target).stem, Path(os.fsdecode(arguments[0])).read_bytes())

    def pointer(self, name: str, payload: bytes) -> None:
        """Record the new content of a pointer file, and the committed versions of its name."""
        with self._looking(), suppress(ValueError):
            self.seen.pointers.append((self.scheduler.step, name, json.loads(payload), self._recorded(name)))

    @contextmanager
    def _looking(self) -> Iterator[None]:
        before, self._is_looking = self._is_looking, True
        try:
            yield
        finally:
            self._is_looking = before

    def keep(self, path: Path) -> None:
        """Record the content of a file, or of all files in a folder."""
        for found in [path] if path.is_file() else sorted(path.rglob("*")):
            if found.is_file():
                within = found.relative_to(self.root).as_posix()
                if within.split("/")[1] not in SEPARATE:
                    self.seen.written.append((within, found.read_bytes()))

    def _within(self, path: Any) -> str | None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        text = os.fsdecode(path)
        if not text.startswith(f"{self.root}/"):
            return None
        return text[len(str(self.root)) + 1 :]


_watching: Surroundings | None = None
_is_hooked = False


@contextmanager
def _watched(surroundings: Surroundings) -> Iterator[None]:
    """Connect the interpreter's audit hook to this environment, inside the context.

    A hook is installed once, because Python cannot remove it.
    """
    global _watching, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_audit)
        _is_hooked = True
    _watching = surroundings
    try:
        yield
    finally:
        _watching = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None and event in FILES:
        _watching.on_file(event, arguments)


def _noting(seen: Seen, original: Any) -> Any:
    def keep(store: StepStore, step: int, arrays: Any) -> Any:
        digest = hashlib.sha256()
        for name, values in sorted(arrays.items()):
            digest.update(name.encode() + np.asarray(values).tobytes())
        seen.answers[store.release_id, step].add(digest.hexdigest())
        return original(store, step, arrays)

    return keep


def _unlock(original: Any, file: Any) -> None:
    if not isinstance(file, int):
        with suppress(ValueError, OSError):
            original(file, fcntl.LOCK_UN)


def _bytes_of(parameters: Any) -> bytes:
    if isinstance(parameters, bytes):
        return parameters
    if isinstance(parameters, dict):
        return b"\0".join(_bytes_of(value) for value in parameters.values())
    if isinstance(parameters, (list, tuple)):
        return b"\0".join(_bytes_of(value) for value in parameters)
    return str(parameters).encode()
