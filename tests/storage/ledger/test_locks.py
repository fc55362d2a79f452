"""Locks of the ledger, checked on SQLite: a transaction that writes locks before it reads the rows it decides by.

A transaction of SQLite locks the whole database when it begins, so a missing row lock has an effect on PostgreSQL
alone, and there only in a race. These tests record statements instead: SQLAlchemy keeps ``FOR UPDATE`` in them,
although it does not send that to SQLite.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from storage.ledger import journal
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage import streaming
from tests.storage.releasing import begin, commit, open_budget, publish, reserve


@dataclass(slots=True)
class Trace:
    """The statements of transactions, in order: what each does, and to which table."""

    transactions: list[list[tuple[str, str]]] = field(default_factory=list)

    def add(self, what: str, table: str) -> None:
        self.transactions[-1].append((what, table))

    def writing(self, write: tuple[str, str]) -> list[list[tuple[str, str]]]:
        """Return the transactions with a write: an insert or an update, and its table."""
        return [statements for statements in self.transactions if write in statements]


def _record(trace: Trace, statement: Any) -> None:
    if isinstance(statement, sa.Insert | sa.Update):
        trace.add("insert" if isinstance(statement, sa.Insert) else "update", str(statement.entity_description["name"]))
    elif isinstance(statement, sa.Select):
        what = "read" if statement._for_update_arg is None else "lock"
        for table in statement.get_final_froms():
            trace.add(what, str(getattr(table, "name", table)))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    """Do everything that writes in a ledger on SQLite, and return the trace of it."""
    found = Trace()

    def lock(connection: sa.Connection) -> None:
        found.add("lock", "journal")

    def started(connection: sa.Connection) -> None:
        found.transactions.append([])

    def executed(connection: sa.Connection, statement: Any, *_: Any) -> None:
        _record(found, statement)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("DPCA_HOME", str(tmp_path_factory.mktemp("locks") / "home"))
        ledger = Workspace.open().ledger
        patch.setattr(journal, "lock", lock)
        sa.event.listen(ledger.engine, "begin", started)
        sa.event.listen(ledger.engine, "before_execute", executed)
        act(ledger)
        yield found


def act(ledger: Ledger) -> None:
    """Do everything with releases and streams that writes."""
    open_budget(ledger)
    ledger.abandon(reserve(ledger, "given up").release_id)
    begin(ledger, "closed").keep(0, {"a": streaming.STREAMED})
    ledger.close(begin(ledger, "closed").release_id)
    commit(ledger, begin(ledger, "committed").release_id)
    publish(ledger, "published")
    streaming.register(ledger)
    streaming.open_stream(ledger)
    streaming.publish_tick(ledger, "night 1")
    streaming.begin_tick(ledger, "night 2")
    ledger.streams.close_tick(streaming.NAME, 2)
    ledger.streams.close(streaming.NAME)


JOURNAL, BUDGET, RELEASE = ("lock", "journal"), ("lock", "budget"), ("lock", "release")
RULES: dict[tuple[str, str], tuple[set[tuple[str, str]], tuple[str, str] | None]] = {
    ("insert", "budget"): ({JOURNAL}, ("read", "budget")),
    ("insert", "release"): ({JOURNAL, BUDGET}, ("read", "charged_total")),
    ("update", "release"): ({RELEASE}, None),
    ("insert", "event"): ({JOURNAL}, None),
    ("insert", "step"): ({RELEASE}, ("read", "step")),
    ("insert", "stream"): ({JOURNAL, BUDGET}, ("read", "charged_total")),
    ("insert", "tick"): ({JOURNAL, BUDGET}, ("read", "charged_total")),
    ("insert", "tick_answer"): ({RELEASE}, ("read", "tick_answer")),
    ("insert", "version"): ({JOURNAL}, ("read", "published")),
}
"""For each write, the locks that come before it, and before the first read that it is decided by.

A transaction also holds the ledger's lock from its start, which `tests.storage.database` tests; a snapshot needs no
other.
"""


@pytest.mark.parametrize("write", RULES, ids=" ".join)
def test_a_write_and_what_it_is_decided_by_come_after_their_locks(trace: Trace, write: tuple[str, str]) -> None:
    locks, read = RULES[write]
    writing = trace.writing(write)
    assert writing
    for statements in writing:
        first = statements.index(read) if read in statements else statements.index(write)
        assert locks <= set(statements[: min(first, statements.index(write))])


def test_the_end_of_the_journal_is_read_under_its_lock_by_each_that_appends(trace: Trace) -> None:
    for statements in trace.writing(("insert", "event")):
        written = statements.index(("insert", "event"))
        last_read = max(at for at, each in enumerate(statements[:written]) if each == ("read", "event"))
        assert JOURNAL in statements[:last_read]


def test_a_tick_is_bound_to_its_stream_as_it_is_under_the_lock(trace: Trace) -> None:
    for statements in trace.writing(("insert", "tick")):
        after = statements[statements.index(BUDGET) : statements.index(("insert", "tick"))]
        assert ("read", "stream") in after


def test_every_transaction_that_writes_a_charge_changes_its_total_under_the_lock(trace: Trace) -> None:
    changing = trace.writing(("insert", "charged_total"))
    assert len(changing) > 5
    for statements in changing:
        assert BUDGET in statements[: statements.index(("read", "charged_total"))]
