"""The rows of a pointer are read alike whether names are listed or every row is read."""

from collections.abc import Collection, Iterator

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.database.engine import connect, transaction
from storage.ledger import journal
from storage.registry.pointer_rows import FEW, read_numbers, read_pointer, read_pointers
from storage.registry.pointers import Pointer
from storage.registry.publishing import promote, record_version

NEWS = Pointer(name="news", versions={1: "1" * 64, 2: "2" * 64}, aliases={"champion": 1}, not_private=frozenset({2}))
OTHER = Pointer(name="other", versions={1: "3" * 64}, aliases={})
JOINT = Pointer(name="joint", versions={1: "4" * 64}, aliases={})
PRIVATE, WHOLE = '{"name": "gaussian"}', '{"name": "non_private"}'
MORE = [f"name {number}" for number in range(FEW)]
"""With a name of `NEWS` more than a query lists."""


@pytest.fixture
def connection(database_url: str) -> Iterator[sa.Connection]:
    """Return a transaction on a database that has the rows of three pointers, one of them signed."""
    engine = connect(database_url)
    then = journal.now()
    shared = {"population": "p", "snapshot_id": "s", "fingerprint": "f", "request": "{}", "accounting": "1"}
    spent = {"epsilon": 0.1, "delta": 1e-9, "charge": b"", "state": "committed", "created_at": then, "updated_at": then}
    budget = {"population": "p", "relation": "add_remove", "filter": "gdp", "unit": "record"}
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="l", created_at=then))
        connection.execute(tables.budget.insert().values(**budget, epsilon=1.0, delta=1e-6, created_at=then))
        for pointer, events in ((NEWS, (PRIVATE, WHOLE)), (OTHER, (PRIVATE,))):
            for (version, digest), event in zip(pointer.versions.items(), events, strict=True):
                release = {"id": f"{pointer.name} {version}", "run_key": f"{pointer.name} {version}", "event": event}
                connection.execute(tables.release.insert().values(**shared, **spent, **release))
                record_version(connection, name=pointer.name, version=version, digest=digest, release_id=release["id"])
        record_version(connection, name="joint", version=1, digest=JOINT.versions[1], release_id="joint-1", sites=[])
        promote(connection, name="news", version=1, alias="champion")
        connection.execute(tables.signed_pointer.insert().values(name="news", number=7, tag="t"))
        yield connection
    engine.dispose()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, [JOINT, NEWS, OTHER]),
        ([], []),
        (["news"], [NEWS]),
        (["joint", "news", "strange"], [JOINT, NEWS]),
        (["news", *MORE], [NEWS]),
    ],
)
def test_names_are_read_with_all_their_rows(
    connection: sa.Connection, names: Collection[str] | None, found: list[Pointer]
) -> None:
    assert sorted(read_pointers(connection, names), key=lambda pointer: pointer.name) == found


def test_a_name_without_versions_has_an_empty_pointer(connection: sa.Connection) -> None:
    assert read_pointer(connection, "news") == NEWS
    assert read_pointer(connection, "strange") == Pointer(name="strange", versions={}, aliases={})


@pytest.mark.parametrize(
    ("names", "found"), [(None, {"news": 7}), (["news", "other"], {"news": 7}), (["other"], {}), ([], {})]
)
def test_numbers_are_those_of_signed_pointers(
    connection: sa.Connection, names: Collection[str] | None, found: dict[str, int]
) -> None:
    assert read_numbers(connection, names) == found
