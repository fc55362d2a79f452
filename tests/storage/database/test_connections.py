"""A stage has one connection to SQLite, and no transaction runs on one whose files or process are not its own."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.database.connections import one_connection
from storage.database.engine import connect, transaction


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    """Make a database with one empty table, of small numbers."""
    made = connect(f"sqlite:///{tmp_path}/ledger.sqlite")
    with transaction(made) as connection:
        connection.exec_driver_sql("CREATE TABLE noted (number INTEGER CHECK (number < 10))")
    return made


def note(engine: sa.Engine, number: int) -> sqlite3.Connection:
    """Write a row, and return the driver's connection that wrote it."""
    with transaction(engine) as connection:
        connection.exec_driver_sql("INSERT INTO noted VALUES (?)", (number,))
        driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def noted(engine: sa.Engine) -> list[int]:
    """Return the rows."""
    with transaction(engine) as connection:
        return list(connection.exec_driver_sql("SELECT number FROM noted").scalars())


def test_transactions_share_a_connection_until_the_end_and_see_each_other(engine: sa.Engine) -> None:
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
def test_another_thread_has_a_connection_of_its_own(engine: sa.Engine, context: Callable[[], Context]) -> None:
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


def test_a_forked_process_opens_its_own(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_connection():
        first = note(engine, 1)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert note(engine, 2) is not first
