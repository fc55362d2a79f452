"""Publishing: versions are consecutive and never change, aliases move, and pointer files follow the rows."""

import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dpca.artifacts.files import write_artifact
from dpca.backends.local import LocalPlace
from dpca.errors import Conflict, Invalid, NotFound
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.ledger import journal
from storage.registry.publishing import add_version, promote, rebuild_pointers
from tests.dpca.artifacts.test_subspace import make_subspace

RELEASES = [f"{number:032x}" for number in range(12)]
DIGESTS = {release: release * 2 for release in RELEASES}


@contextmanager
def opened(home: Path) -> Iterator[sa.Engine]:
    """Return a ledger on SQLite with one budget and some releases."""
    engine = connect(f"sqlite:///{home / 'dpca.sqlite'}")
    then = journal.now()
    budget = {"population": "p", "relation": "add_remove", "filter": "gdp", "unit": "record"}
    release = {"population": "p", "snapshot_id": "s", "fingerprint": "f", "request": "{}", "event": "{}"}
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="l", created_at=then))
        connection.execute(tables.budget.insert().values(**budget, epsilon=1.0, delta=1e-6, created_at=then))
        for release_id in RELEASES:
            connection.execute(
                tables.release.insert().values(
                    **release,
                    id=release_id,
                    run_key=release_id,
                    epsilon=0.1,
                    delta=1e-9,
                    charge=b"",
                    accounting="1",
                    state="committed",
                    created_at=then,
                    updated_at=then,
                )
            )
    yield engine
    engine.dispose()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    with opened(tmp_path) as engine:
        yield engine


def publish(engine: sa.Engine, name: str, release_id: str) -> int:
    with transaction(engine) as connection:
        return add_version(connection, name=name, digest=DIGESTS[release_id], release_id=release_id)


def move(engine: sa.Engine, name: str, version: int, alias: str) -> None:
    with transaction(engine) as connection:
        promote(connection, name=name, version=version, alias=alias)


def rebuild(engine: sa.Engine, home: Path, name: str | None = None) -> None:
    with transaction(engine) as connection:
        rebuild_pointers(connection, LocalPlace(home), None if name is None else [name])


def events(engine: sa.Engine) -> list[tuple[str, str | None, dict[str, object]]]:
    with transaction(engine) as connection:
        journal.verify(connection)
        rows = connection.execute(sa.select(tables.event).order_by(tables.event.c.seq))
        return [(row.name, row.release_id, json.loads(row.detail)) for row in rows]


class TestAddVersion:
    def test_versions_of_a_name_are_consecutive(self, engine: sa.Engine) -> None:
        assert [publish(engine, "news", release) for release in RELEASES] == list(range(1, 13))
        assert publish(engine, "other", RELEASES[0]) == 1

    def test_publishing_a_release_again_returns_its_version(self, engine: sa.Engine) -> None:
        publish(engine, "news", RELEASES[0])
        publish(engine, "news", RELEASES[1])
        assert publish(engine, "news", RELEASES[0]) == 1
        assert [name for name, _, _ in events(engine)] == ["version_published"] * 2

    def test_a_version_never_changes_its_digest(self, engine: sa.Engine) -> None:
        publish(engine, "news", RELEASES[0])
        with pytest.raises(Conflict, match="news@1"), transaction(engine) as connection:
            add_version(connection, name="news", digest="f" * 64, release_id=RELEASES[0])

    def test_the_journal_records_published_versions(self, engine: sa.Engine) -> None:
        publish(engine, "news", RELEASES[3])
        detail = {"name": "news", "version": 1, "digest": DIGESTS[RELEASES[3]]}
        assert events(engine) == [("version_published", RELEASES[3], detail)]

    @pytest.mark.parametrize("name", ["", "News", "a@1", "../a", "3"])
    def test_a_bad_name_publishes_nothing(self, engine: sa.Engine, name: str) -> None:
        with pytest.raises(Invalid, match="name"):
            publish(engine, name, RELEASES[0])
        assert not events(engine)

    def test_a_failed_transaction_publishes_nothing(self, engine: sa.Engine) -> None:
        def commit_that_fails() -> None:
            with transaction(engine) as connection:
                add_version(connection, name="news", digest="d" * 64, release_id=RELEASES[0])
                raise RuntimeError("the ledger refused")

        with pytest.raises(RuntimeError, match="refused"):
            commit_that_fails()
        assert not events(engine)
        assert publish(engine, "news", RELEASES[1]) == 1

    def test_concurrent_publishers_get_distinct_consecutive_versions(self, engine: sa.Engine) -> None:
        with ThreadPoolExecutor(max_workers=6) as pool:
            versions = list(pool.map(lambda release: publish(engine, "news", release), RELEASES * 2))
        assert sorted(versions[:12]) == list(range(1, 13))
        assert versions[12:] == versions[:12]
        assert len(events(engine)) == 12


class TestPromote:
    def test_an_alias_move_is_recorded_in_the_journal(self, engine: sa.Engine, tmp_path: Path) -> None:
        for release in RELEASES[:2]:
            publish(engine, "news", release)
        for version in (1, 2, 2, 1):
            move(engine, "news", version, "champion")
        rebuild(engine, tmp_path)
        assert Registry.open(tmp_path).resolve("news@champion").version == 1
        moved = [detail for name, _, detail in events(engine) if name == "alias_moved"]
        assert [(detail["from"], detail["to"]) for detail in moved] == [(None, 1), (1, 2), (2, 1)]
        assert all((detail["name"], detail["alias"]) == ("news", "champion") for detail in moved)

    def test_an_alias_belongs_to_one_name(self, engine: sa.Engine, tmp_path: Path) -> None:
        for name in ("news", "other"):
            for release in RELEASES[:2]:
                publish(engine, name, release)
        move(engine, "news", 1, "champion")
        move(engine, "other", 1, "champion")
        move(engine, "news", 2, "champion")
        rebuild(engine, tmp_path)
        registry = Registry.open(tmp_path)
        assert registry.resolve("news@champion").version == 2
        assert registry.resolve("other@champion").version == 1

    @pytest.mark.parametrize(
        ("name", "version", "shown"), [("news", 2, "only version 1 exists"), ("mews", 1, "it was never published")]
    )
    def test_an_unknown_version_is_answered_with_what_exists(
        self, engine: sa.Engine, name: str, version: int, shown: str
    ) -> None:
        publish(engine, "news", RELEASES[0])
        with pytest.raises(NotFound, match=f"{name} has no version {version}; {shown}"):
            move(engine, name, version, "champion")

    @pytest.mark.parametrize("alias", ["latest", "3", "Champion", ""])
    def test_a_bad_alias_is_refused(self, engine: sa.Engine, alias: str) -> None:
        publish(engine, "news", RELEASES[0])
        with pytest.raises(Invalid, match="alias"):
            move(engine, "news", 1, alias)


class TestPointers:
    def test_files_are_rebuilt_from_the_rows_alone(self, engine: sa.Engine, tmp_path: Path) -> None:
        for name in ("news", "other"):
            publish(engine, name, RELEASES[0])
        move(engine, "news", 1, "champion")
        rebuild(engine, tmp_path)
        files = {path: path.read_bytes() for path in (tmp_path / "registry" / "names").iterdir()}
        assert sorted(path.name for path in files) == ["news.json", "other.json"]
        damaged, missing = files
        damaged.write_bytes(b"{")
        missing.unlink()
        rebuild(engine, tmp_path)
        assert {path: path.read_bytes() for path in (tmp_path / "registry" / "names").iterdir()} == files

    def test_a_file_has_the_published_form(self, engine: sa.Engine, tmp_path: Path) -> None:
        for release in RELEASES[:2]:
            publish(engine, "news", release)
        move(engine, "news", 2, "champion")
        rebuild(engine, tmp_path, "news")
        content = json.loads((tmp_path / Pointer.path("news")).read_text())
        assert content == {
            "versions": {"1": DIGESTS[RELEASES[0]], "2": DIGESTS[RELEASES[1]]},
            "aliases": {"champion": 2},
            "checksum": content["checksum"],
        }

    def test_one_name_is_rebuilt_without_changing_others(self, engine: sa.Engine, tmp_path: Path) -> None:
        for name in ("news", "other"):
            publish(engine, name, RELEASES[0])
        rebuild(engine, tmp_path, "news")
        assert [*Registry.open(tmp_path).names()] == ["news"]

    def test_a_name_without_rows_gets_no_file(self, engine: sa.Engine, tmp_path: Path) -> None:
        rebuild(engine, tmp_path, "news")
        rebuild(engine, tmp_path)
        assert not (tmp_path / "registry").exists()

    def test_correct_pointer_files_are_not_rewritten(self, engine: sa.Engine, tmp_path: Path) -> None:
        publish(engine, "news", RELEASES[0])
        rebuild(engine, tmp_path)
        path = tmp_path / Pointer.path("news")
        before = path.stat().st_ino
        rebuild(engine, tmp_path)
        assert path.stat().st_ino == before

    def test_a_failed_write_leaves_the_old_file(
        self, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(engine, "news", RELEASES[0])
        rebuild(engine, tmp_path)
        publish(engine, "news", RELEASES[1])

        def full(_: int) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="no space"):
                rebuild(engine, tmp_path)
        assert Registry.open(tmp_path).resolve("news").version == 1
        rebuild(engine, tmp_path)
        assert Registry.open(tmp_path).resolve("news").version == 2

    def test_concurrent_publishers_leave_the_newest_state(self, engine: sa.Engine, tmp_path: Path) -> None:
        def publish_and_report(release: str) -> None:
            version = publish(engine, "news", release)
            move(engine, "news", version, f"by-{release}")
            rebuild(engine, tmp_path, "news")

        with ThreadPoolExecutor(max_workers=6) as pool:
            list(pool.map(publish_and_report, RELEASES))
        registry = Registry.open(tmp_path)
        assert len(registry.list()) == 12
        for release in RELEASES:
            assert registry.resolve(f"news@by-{release}").digest == DIGESTS[release]

    def test_a_published_artifact_is_loaded_by_its_alias(self, engine: sa.Engine, tmp_path: Path) -> None:
        digest = write_artifact(make_subspace(), home=tmp_path)
        with transaction(engine) as connection:
            version = add_version(connection, name="news", digest=digest, release_id=RELEASES[0])
            promote(connection, name="news", version=version, alias="champion")
        rebuild(engine, tmp_path, "news")
        loaded = Registry.open(tmp_path).load("news@champion")
        assert loaded.manifest == make_subspace().manifest


class RegistryModel(RuleBasedStateMachine):
    """State machine that publishes, promotes and loses files; a rebuilt registry must equal plain dictionaries."""

    names = st.sampled_from(["a", "b"])

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.home = Path(self.folder.name)
        self.context = opened(self.home)
        self.engine = self.context.__enter__()
        self.versions: dict[str, list[str]] = {"a": [], "b": []}
        self.aliases: dict[tuple[str, str], int] = {}

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        self.folder.cleanup()

    @rule(name=names, release=st.sampled_from(RELEASES))
    def publish(self, name: str, release: str) -> None:
        if release not in self.versions[name]:
            self.versions[name].append(release)
        assert publish(self.engine, name, release) == self.versions[name].index(release) + 1

    @rule(name=names, version=st.integers(1, 4), alias=st.sampled_from(["x", "y"]))
    def promote(self, name: str, version: int, alias: str) -> None:
        if version > len(self.versions[name]):
            with pytest.raises(NotFound):
                move(self.engine, name, version, alias)
        else:
            move(self.engine, name, version, alias)
            self.aliases[name, alias] = version

    @rule(name=names)
    def lose_a_pointer_file(self, name: str) -> None:
        (self.home / Pointer.path(name)).unlink(missing_ok=True)

    @invariant()
    def the_pointer_files_agree_with_the_model(self) -> None:
        rebuild(self.engine, self.home)
        registry = Registry.open(self.home)
        shown = [(row.name, row.version, row.digest, row.aliases) for row in registry.list()]
        assert shown == [
            (
                name,
                version,
                DIGESTS[release],
                tuple(alias for alias in ("x", "y") if self.aliases.get((name, alias)) == version),
            )
            for name in ("a", "b")
            for version, release in enumerate(self.versions[name], start=1)
        ]
        for name in registry.names():
            assert registry.resolve(name).version == len(self.versions[name])


def test_the_registry_agrees_with_a_plain_model() -> None:
    run_state_machine_as_test(RegistryModel, settings=settings(max_examples=10, stateful_step_count=15, deadline=None))
