"""Read and write transactions: reads see one state and never wait, and writers lock from their first statement.

No other code connects to the database.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpca.errors import Corrupt, Refused, Unavailable
from storage.database import tables
from storage.database.engine import reading, transaction
from storage.ledger import budgets, checks, journal
from storage.ledger.budgets import Budget
from storage.ledger.ledger import Ledger
from storage.ledger.witness import Witnesses
from storage.registry import agreement
from storage.workspace import Workspace
from tests.storage.releasing import DELTA, EPSILON, POPULATION, calibrated, publish, reserve

ROOT = Path(__file__).parents[3]
SMALL = calibrated(0.01)
READS: dict[str, Callable[[Workspace], object]] = {
    "budget": lambda home: home.ledger.budget(POPULATION),
    "statement": lambda home: home.ledger.statement(POPULATION, burn_down=True),
    "history": lambda home: home.ledger.history(POPULATION),
    "quote": lambda home: home.ledger.quote(POPULATION, SMALL, epsilon=EPSILON, delta=DELTA),
    "pace": lambda home: home.ledger.pace(POPULATION, runs=3),
    "runs that fit": lambda home: home.ledger.runs_that_fit(POPULATION, epsilon=0.1, delta=DELTA),
    "find": lambda home: home.ledger.find("run"),
    "verify": lambda home: home.ledger.verify(),
    "look over": lambda home: home.ledger.check_changes(),
    "streams": lambda home: home.ledger.streams.all(),
    "aliases": lambda home: home.alias_history("map"),
    "datasets": lambda home: home.catalog.entries(),
    "read-only opening": lambda home: Workspace.read_only(),
}


@pytest.fixture
def used(budget: Ledger) -> Ledger:
    """Return a ledger with one published release."""
    publish(budget)
    return budget


@pytest.mark.parametrize("read", READS)
def test_a_read_does_not_wait_for_a_writer(used: Ledger, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.database.engine.LOCK_TIMEOUT", 0.2)
    home = Workspace.open()
    with transaction(used.engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL statement_timeout = '5s'")
        READS[read](home)


@pytest.mark.parametrize("kind", ["open", "read_only"])
@pytest.mark.parametrize("read", ["statement", "history", "quote", "pace", "runs that fit"])
def test_a_total_is_compared_with_the_journal_of_the_same_moment(
    used: Ledger, kind: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, shown, runs = getattr(Workspace, kind)(), budgets._shown, iter(range(10))

    def another_charges_first(connection: sa.Connection, budget: Budget) -> object:
        monkeypatch.setattr(budgets, "_shown", shown)
        reserve(used, f"between {next(runs)}", event=SMALL)
        return shown(connection, budget)

    monkeypatch.setattr(budgets, "_shown", another_charges_first)
    READS[read](home)
    assert used.find("between 0") is not None


@pytest.mark.parametrize("kind", ["open", "read_only"])
@pytest.mark.parametrize("read", ["verify", "look over"])
def test_rows_are_compared_with_the_journal_of_the_same_moment(
    used: Ledger, kind: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, stored_rows = getattr(Workspace, kind)(), checks.stored_rows

    def another_publishes_first(connection: sa.Connection, name: str, keys: object = None) -> object:
        monkeypatch.setattr(checks, "stored_rows", stored_rows)
        publish(used, "between", event=SMALL)
        return stored_rows(connection, name)

    monkeypatch.setattr(checks, "stored_rows", another_publishes_first)
    READS[read](home)
    assert used.find("between") is not None


def test_a_partial_check_compares_one_state(used: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    before, between = used.check_changes().known, checks._between

    def another_publishes_first(connection: sa.Connection, first: int, last: int) -> object:
        found = between(connection, first, last)
        monkeypatch.setattr(checks, "_between", between)
        publish(used, "between", event=SMALL)
        return found

    monkeypatch.setattr(checks, "_between", another_publishes_first)
    monkeypatch.setattr(checks, "compare", lambda connection: pytest.fail("the partial check failed"))
    assert used.check_changes(before).known.entries == before.entries


def test_a_witness_newer_than_the_read_state_causes_no_alarm(used: Ledger) -> None:
    home = Workspace.read_only()
    with reading(home.ledger.engine) as connection:
        seen = journal.head(connection)
        reserve(used, "since", event=SMALL)
        witness: Witnesses = vars(home.ledger)["_witness"]
        assert witness.check(connection) == seen


def test_a_name_published_during_the_comparison_causes_no_alarm(used: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    read_names, read_tags = vars(agreement)["read_names"], vars(agreement)["read_tags"]

    def after_another[T](listed: Callable[..., T], run_key: str) -> Callable[..., T]:
        def list_late(place: object) -> T:
            publish(used, run_key, name=run_key, event=SMALL)
            return listed(place)

        return list_late

    monkeypatch.setattr(agreement, "read_names", after_another(read_names, "first"))
    Workspace.read_only()
    monkeypatch.setattr(agreement, "read_names", read_names)
    monkeypatch.setattr(agreement, "read_tags", after_another(read_tags, "second"))
    assert agreement.damaged_names(used.engine, Workspace.read_only().store) == set()


def test_a_name_whose_pointer_file_is_not_yet_written_is_not_reported_as_damaged(
    used: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.storage.releasing.rebuild_pointers", lambda *_: None)
    publish(used, "new", name="new", event=SMALL)
    assert agreement.damaged_names(used.engine, Workspace.read_only().store) == set()


def test_damage_is_found_in_one_state(used: Ledger) -> None:
    total = tables.charged_total
    with used.transaction() as connection:
        connection.execute(total.update().values(releases=total.c.releases + 1))
    for read in ("statement", "history", "quote", "pace", "verify", "look over"):
        for home in (Workspace.open(), Workspace.read_only()):
            with pytest.raises(Corrupt):
                READS[read](home)


@pytest.mark.parametrize("kind", ["open", "read_only"])
def test_a_reading_connection_writes_nothing(used: Ledger, kind: str) -> None:
    engine = getattr(Workspace, kind)().ledger.engine
    with pytest.raises((Unavailable, sa.exc.DBAPIError), match=r"read-?only"), reading(engine) as connection:
        connection.execute(tables.alias.insert().values(name="map", alias="mine", version=1))
    with reading(used.engine) as connection:
        assert connection.execute(sa.select(tables.alias)).all() == []


def test_a_writer_holds_the_lock_before_its_first_statement(used: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = used.engine
    if engine.dialect.name == "sqlite":
        other = sa.create_engine(
            engine.url, poolclass=sa.NullPool, connect_args={"timeout": 0, "isolation_level": None}
        )
        statement, refusal = "BEGIN IMMEDIATE", "locked"
    else:
        other, statement, refusal = engine, "SELECT id FROM ledger FOR UPDATE NOWAIT", "could not obtain lock"
    with transaction(engine), other.connect() as connection, pytest.raises(sa.exc.OperationalError, match=refusal):
        connection.exec_driver_sql(statement)


def test_a_restored_database_is_refused_by_reads_that_precede_a_release(used: Ledger) -> None:
    steps = used.steps(reserve(used, "restored", event=SMALL).release_id)
    witness: Witnesses = vars(used)["_witness"]
    # the witness has seen an entry that the restored database does not have
    vars(witness)["_ours"] = journal.Head(ledger=used.id, seq=1000, hash="f" * 64)
    for read in (steps.check, lambda: steps.find(0), used.streams.all):
        with pytest.raises(Refused, match="counts less than was spent"):
            read()


def connects(path: Path) -> Iterator[str]:
    """Yield each way in which a source file uses a database without `reading` and `transaction`."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "engine" in text or "begun" in text else ():
        found = set[str]()
        match node:
            case ast.Call(func=ast.Attribute(attr=attribute, value=value)) if "engine" in ast.unparse(value):
                found = {attribute} & {"connect", "raw_connection", "begin"}
            case ast.Attribute(attr="create_engine" as attribute):
                found = {attribute}
            case ast.ImportFrom(module="storage.database.engine", names=names):
                found = {name.name for name in names} & {"begun", "schema_transaction"}
        if found and not (found == {"schema_transaction"} and path.name in OF_SCHEMAS):
            yield f"{path}: {', '.join(found)}"


OF_SCHEMAS = ("workspace.py", "copying.py")
"""The files that create or upgrade tables."""


def test_databases_are_used_only_by_read_and_write_transactions() -> None:
    files = [path for folder in ("dpca", "storage", "flows") for path in (ROOT / folder).rglob("*.py")]
    inside = ROOT / "storage" / "database"
    assert [found for path in files if inside not in path.parents for found in connects(path)] == []


@pytest.mark.parametrize(
    "planted",
    [
        "with self.engine.connect() as connection: pass",
        "with ledger.engine.begin() as connection: pass",
        "engine.raw_connection()",
        "import sqlalchemy as sa\nsa.create_engine('sqlite://')",
        "from storage.database.engine import begun",
        "from storage.database.engine import schema_transaction",
    ],
)
def test_a_planted_direct_use_of_a_database_is_detected(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "planted.py"
    path.write_text(planted)
    assert list(connects(path))
