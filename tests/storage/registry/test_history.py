"""Alias histories, incremental checks, pointers, and joint releases.

The history of an alias contains the moves in the journal, on both databases, and of this name alone. A check of ledger
and registry continues from the previous check, unless that check found a fault. The rows of a pointer give the same
result whether names are listed or every row is read. A joint release is published with its sites' releases as lineage,
in a ledger that was charged nothing.
"""

import getpass
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dpca.artifacts.files import write_artifact
from dpca.errors import Conflict, Corrupt
from dpca.home import key_folder, store
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.ledger import checks, journal
from storage.ledger.ledger import Ledger
from storage.registry.agreement import (
    FEW,
    NOTE,
    IncrementalCheck,
    alias_history,
    compare_artifacts,
    owners_of,
    read_numbers,
    read_pointer,
    read_pointers,
)
from storage.registry.publishing import promote, record_version
from storage.workspace import Workspace
from tests.dpca.artifacts.test_subspace import make_subspace
from tests.storage.releasing import publish


def moved(ledger: Ledger, name: str, version: int, alias: str = "champion") -> None:
    with ledger.transaction() as connection:
        promote(connection, name=name, version=version, alias=alias)


def test_every_alias_move_is_listed_with_the_previous_version(budget: Ledger) -> None:
    for run in ("one", "two", "three"):
        publish(budget, run)
    publish(budget, "other", name="map.a")
    for version in (1, 2, 2, 1, 3):  # in the third call, the alias already has this version
        moved(budget, "map", version)
    moved(budget, "map.a", 1)
    moved(budget, "map", 1, alias="challenger")
    with transaction(budget.engine) as connection:
        found = alias_history(connection, "map")
        every = alias_history(connection)
        assert alias_history(connection, "none") == ()
    assert [(move.alias, move.before, move.version) for move in found] == [
        ("champion", None, 1),
        ("champion", 1, 2),
        ("champion", 2, 1),
        ("champion", 1, 3),
        ("challenger", None, 1),
    ]
    assert [move.time for move in found] == sorted(move.time for move in found)
    assert {move.name for move in found} == {"map"}
    assert {move.actor for move in found} == {getpass.getuser()}
    assert [move.name for move in every] == ["map"] * 4 + ["map.a", "map"]


def test_an_alias_move_is_listed_with_the_facts_of_its_decision(budget: Ledger) -> None:
    publish(budget, "one")
    with budget.transaction() as connection:
        promote(connection, name="map", version=1, alias="champion", why={"drift": 0.1})
        assert [dict(move.why) for move in alias_history(connection, "map")] == [{"drift": 0.1}]


def test_a_name_with_a_wildcard_character_matches_only_itself(budget: Ledger) -> None:
    for name in ("a_b", "axb"):
        publish(budget, f"run-{name}", name=name)
        moved(budget, name, 1)
    with transaction(budget.engine) as connection:
        assert [move.name for move in alias_history(connection, "a_b")] == ["a_b"]


RELEASES = 4


@pytest.fixture
def published(sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Publish more versions than one incremental check reads; return their digests."""
    monkeypatch.setattr(checks, "PART", 8)
    return [publish(sqlite_budget, f"run {number}") for number in range(RELEASES)]


def check(ledger: Ledger, *, everything: bool = False) -> tuple[tuple[int, int] | None, int]:
    """Run an incremental check; return the checked part of the ledger, and the number of versions read."""
    one = IncrementalCheck(ledger, store(), keys=key_folder(), everything=everything)
    return one.ledger().part, one.registry()


def round_of(ledger: Ledger) -> list[tuple[tuple[int, int] | None, int]]:
    entries = ledger.verify()
    return [check(ledger) for _ in range(-(-entries // checks.PART))]


def test_a_round_of_checks_reads_each_manifest_and_one_check_reads_few(
    sqlite_budget: Ledger, published: list[str]
) -> None:
    assert check(sqlite_budget) == (None, RELEASES)
    seen = round_of(sqlite_budget)
    assert sum(count for _, count in seen) >= RELEASES
    assert max(count for _, count in seen) < RELEASES
    publish(sqlite_budget, "new")
    part, count = check(sqlite_budget)
    assert part is not None
    assert 1 <= count <= RELEASES
    assert check(sqlite_budget, everything=True) == (None, RELEASES + 1)


def test_an_edited_old_manifest_is_found_within_a_round_and_reported_again(
    sqlite_budget: Ledger, published: list[str], home: Path
) -> None:
    check(sqlite_budget)
    for digest in published:
        path = home / "registry" / "artifacts" / digest / "manifest.json"
        sound = path.read_bytes()
        path.write_bytes(sound.replace(b'"epsilon": 1.0', b'"epsilon": 0.5'))
        with pytest.raises(Corrupt, match="another release, event or epsilon"):
            round_of(sqlite_budget)
        with pytest.raises(Corrupt, match="another release, event or epsilon"):
            check(sqlite_budget)
        with pytest.raises(Corrupt, match="another release, event or epsilon"):
            check(sqlite_budget, everything=True)
        path.write_bytes(sound)
        check(sqlite_budget)


def _of_another_version(note: Path) -> None:
    note.write_text(note.read_text().replace('"writer": "', '"writer": "x'))


def _of_another_form(note: Path) -> None:
    note.write_text(json.dumps({**json.loads(note.read_text()), "totals": 1}))


@pytest.mark.parametrize(
    "damage", [Path.unlink, _of_another_version, _of_another_form, lambda note: note.write_text("{")]
)
def test_without_a_valid_note_of_the_last_check_everything_is_read(
    sqlite_budget: Ledger, published: list[str], damage: Callable[[Path], object]
) -> None:
    check(sqlite_budget)
    assert check(sqlite_budget)[0] is not None
    damage(key_folder() / NOTE)
    assert check(sqlite_budget) == (None, RELEASES)
    assert check(sqlite_budget)[0] is not None


def test_a_failed_check_leaves_no_note(sqlite_budget: Ledger, published: list[str]) -> None:
    with sqlite_budget.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER budget_no_update")
        connection.exec_driver_sql("UPDATE budget SET epsilon = 100")
    one = IncrementalCheck(sqlite_budget, store(), keys=key_folder(), everything=False)
    with pytest.raises(Corrupt, match="budget 'people'"):
        one.ledger()
    assert one.registry() == RELEASES
    assert not (key_folder() / NOTE).exists()


NEWS = Pointer(name="news", versions={1: "1" * 64, 2: "2" * 64}, aliases={"champion": 1}, not_private=frozenset({2}))
OTHER = Pointer(name="other", versions={1: "3" * 64}, aliases={})
JOINT = Pointer(name="joint", versions={1: "4" * 64}, aliases={})
PRIVATE, WHOLE = '{"name": "gaussian"}', '{"name": "non_private"}'
MORE = [f"name {number}" for number in range(FEW)]
"""Together with the name of `NEWS`, more names than one query lists."""


@pytest.fixture
def connection(database_url: str) -> Iterator[sa.Connection]:
    """Yield a transaction on a database that has the rows of three pointers, one of them signed."""
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


JOINT_VERSIONS_JOINT = "joint-" + 32 * "a"
SITES = [{"site": "north", "release": 32 * "1"}, {"site": "south", "release": 32 * "2"}]


@pytest.fixture
def home_of_joint_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    return tmp_path / "home"


def written(joint_id: str = JOINT_VERSIONS_JOINT, sites: object = SITES, epsilon: float = 1.0) -> str:
    plain = make_subspace()
    facts = {"release": joint_id, "plan": {"sites": sites}, "privacy": {"epsilon": epsilon}}
    artifact = replace(plain, manifest={**plain.manifest, **facts})
    return write_artifact(artifact, home=Path(os.environ["DPCA_HOME"]), place=store())


def published_of_joint_versions(name: str = "map", *, digest: str | None = None) -> int:
    workspace = Workspace.open()
    return workspace.publish_joint(JOINT_VERSIONS_JOINT, name=name, artifact_digest=digest or written(), sites=SITES)


def owners() -> frozenset[str | None]:
    with Workspace.open().ledger.transaction() as connection:
        return owners_of(connection, "map")


def test_a_name_with_a_joint_version_belongs_to_no_single_population(home_of_joint_versions: Path) -> None:
    assert owners() == frozenset()
    published_of_joint_versions()
    assert owners() == {None}


def test_the_same_joint_release_is_the_same_version_and_is_shown_by_the_registry(home_of_joint_versions: Path) -> None:
    assert [published_of_joint_versions(), published_of_joint_versions(), published_of_joint_versions("other")] == [
        1,
        1,
        1,
    ]
    workspace = Workspace.open()
    assert workspace.digest_of_joint(JOINT_VERSIONS_JOINT) == written()
    assert workspace.digest_of_joint("joint-" + 32 * "b") is None
    shown = Registry.open().show("map")
    assert (shown["artifact"], shown["release"], shown["manifest"]["plan"]["sites"]) == (
        "map@1",
        JOINT_VERSIONS_JOINT,
        SITES,
    )
    assert workspace.ledger.verify() > 0
    with transaction(workspace.ledger.engine) as connection:
        assert compare_artifacts(connection, workspace.store) == 2
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.release)).scalar() == 0


def test_a_joint_release_has_one_artifact_under_any_name(home_of_joint_versions: Path) -> None:
    published_of_joint_versions()
    for name in ("map", "other"):
        with pytest.raises(Conflict, match="map@1 is release joint-"):
            published_of_joint_versions(name, digest=written(epsilon=2.0))


def test_manually_changed_rows_and_artifacts_of_other_sites_are_detected(home_of_joint_versions: Path) -> None:
    published_of_joint_versions()
    workspace = Workspace.open()
    for statement in (
        tables.joint_version.update().values(digest="f" * 64),
        tables.joint_version.delete(),
    ):
        with pytest.raises(IntegrityError), workspace.ledger.engine.begin() as connection:
            connection.execute(statement)
    other = written("joint-" + 32 * "c", [])
    workspace.publish_joint("joint-" + 32 * "c", name="map", artifact_digest=other, sites=SITES)
    with (
        pytest.raises(Corrupt, match="map@2 states another joint release"),
        transaction(workspace.ledger.engine) as connection,
    ):
        compare_artifacts(connection, workspace.store)
    with workspace.ledger.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER joint_version_no_update")
        connection.execute(tables.joint_version.update().values(sites="[]"))
    with pytest.raises(Corrupt, match=r"row of map@1 differs from the journal \(sites\)"):
        workspace.ledger.verify()


@pytest.mark.parametrize("lost", ["database", "database and witness"])
def test_a_restored_ledger_records_a_joint_version_again_without_charge(
    home_of_joint_versions: Path, lost: str
) -> None:
    Workspace.open()
    for file in home_of_joint_versions.glob("dpca.sqlite*"):
        shutil.copy(file, home_of_joint_versions.parent / file.name)
    published_of_joint_versions()
    for file in home_of_joint_versions.glob("dpca.sqlite*"):
        file.unlink()
    for file in home_of_joint_versions.parent.glob("dpca.sqlite*"):
        shutil.copy(file, home_of_joint_versions / file.name)
    if lost == "database and witness":
        shutil.rmtree(home_of_joint_versions.parent / "state")
    workspace = Workspace.open(accept_restored="the disk was lost")
    assert workspace.recharged == ()
    assert workspace.digest_of_joint(JOINT_VERSIONS_JOINT) == written()
    assert workspace.ledger.verify() > 0
    assert published_of_joint_versions() == 1
