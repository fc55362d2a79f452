"""Artifacts and pointer files in an object store: they are complete or invisible, and verified when read.

A consumer needs only S3 to read an artifact. Against a store that gives false acknowledgments or answers, acknowledged
writes are checked and repeated, and answers are verified.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts.files import read_artifact, write_artifact
from dpca.backends import s3
from dpca.backends.base import Place, Stored, write_and_check
from dpca.backends.local import LocalPlace, open_place
from dpca.backends.s3 import ObjectPlace
from dpca.errors import Corrupt, NotFound, Unavailable
from dpca.home import store
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from storage.database.engine import transaction
from storage.datasets.snapshot_reader import Dataset, _open_handles
from storage.registry.publishing import rebuild_pointers
from tests.crash.lying_store import LIES, LyingStore, lying_store
from tests.dpca.artifacts.test_subspace import SUBSPACE
from tests.s3 import Server
from tests.storage.datasets.test_inbox import add, catalog_in
from tests.storage.datasets.test_snapshot_reader import single_rows, write
from tests.storage.registry.test_publishing import DIGESTS, RELEASES, opened, publish


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    with opened(tmp_path) as engine:
        yield engine


def rebuild(engine: sa.Engine, place: Place) -> None:
    with transaction(engine) as connection:
        rebuild_pointers(connection, place)


def run(program: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


class TestSetting:
    def test_the_setting_selects_a_store_outside_the_home(
        self, place: Place, s3_server: Server, tmp_path: Path
    ) -> None:
        assert place == open_place(s3_server.url(tmp_path.name))
        assert Registry.open().place == Registry.open(place.address).place == place
        assert Registry.open(tmp_path).place == LocalPlace(tmp_path)

    def test_without_the_setting_the_store_is_the_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DPCA_HOME", str(tmp_path))
        monkeypatch.setenv("DPCA_STORE_URL", "")
        assert store() == LocalPlace(tmp_path)

    def test_another_kind_of_store_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for value in (str(tmp_path), "gs://bucket/prefix", "s3:/bucket"):
            monkeypatch.setenv("DPCA_STORE_URL", value)
            with pytest.raises(ValueError, match="s3://bucket/prefix"):
                store()


class TestArtifacts:
    def test_an_artifact_has_the_digest_and_the_files_of_a_local_one(self, place: Place, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path / "one", place=place)
        assert write_artifact(SUBSPACE, home=tmp_path / "two") == digest
        folder = f"registry/artifacts/{digest}"
        assert place.read_folder(folder) == LocalPlace(tmp_path / "two").read_folder(folder)
        assert [path.name for path in (tmp_path / "one").rglob("*")] == ["staging"]

    def test_concurrent_publishers_of_one_artifact_agree(self, place: Place, tmp_path: Path) -> None:
        with ThreadPoolExecutor(6) as pool:
            digests = set(pool.map(lambda _: write_artifact(SUBSPACE, home=tmp_path, place=place), range(6)))
        assert len(digests) == 1
        read = read_artifact(place, digests.pop())
        np.testing.assert_array_equal(read.components, SUBSPACE.components)

    def test_a_publisher_killed_at_any_request_leaves_a_complete_artifact_or_none(
        self, place: Place, s3_server: Server, tmp_path: Path
    ) -> None:
        program = (
            "import os, sys, pathlib, obstore, zarr\n"
            "from dpca.artifacts.files import write_artifact\n"
            "from dpca.backends.local import open_place\n"
            "from tests.dpca.artifacts.test_subspace import SUBSPACE\n"
            "def survive(url, puts):\n"
            "    put, left = obstore.put, iter(range(puts))\n"
            "    def counted(*args, **options):\n"
            "        return put(*args, **options) if next(left, None) is not None else os._exit(9)\n"
            "    obstore.put = counted\n"
            "    write_artifact(SUBSPACE, home=pathlib.Path(sys.argv[2]), place=open_place(url))\n"
            "    os._exit(0)\n"
            "for puts in range(99):\n"
            "    child = os.fork() or survive(f'{sys.argv[1]}/{puts}', puts)\n"
            "    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0: break\n"
            "print(puts)\n"
        )
        done = run(program, place.address, str(tmp_path))
        deaths = int(done.stdout)
        digest = write_artifact(SUBSPACE, home=tmp_path)
        folder = f"registry/artifacts/{digest}"
        assert deaths == len(LocalPlace(tmp_path).read_folder(folder))
        for death in range(deaths):
            dead = open_place(place.at(str(death)))
            assert not dead.holds(folder, marker="manifest.json")
            with pytest.raises(Corrupt):
                read_artifact(dead, digest)
            assert write_artifact(SUBSPACE, home=tmp_path, place=dead) == digest
        assert read_artifact(open_place(place.at(str(deaths))), digest).manifest == SUBSPACE.manifest

    def test_a_flipped_byte_in_any_file_is_found(self, place: Place, s3_server: Server, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path, place=place)
        for path in place.read_folder(f"registry/artifacts/{digest}"):
            address = place.at(f"registry/artifacts/{digest}/{path}")
            s3_server.flip_a_byte(address)
            with pytest.raises(Corrupt, match="has digest") as caught:
                read_artifact(place, digest)
            assert "\n" not in str(caught.value)
            s3_server.flip_a_byte(address)
        read_artifact(place, digest)

    def test_a_lost_artifact_is_corrupt(self, place: Place, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path, place=place)
        place.remove(f"registry/artifacts/{digest}", marker="manifest.json")
        with pytest.raises(Corrupt, match="cannot be read") as caught:
            read_artifact(place, digest)
        assert "\n" not in str(caught.value)


def interfere(patch: pytest.MonkeyPatch, payloads: Iterator[bytes]) -> None:
    """Make another writer write the next payload immediately after each read."""
    read = ObjectPlace.read

    def read_too_early(place: ObjectPlace, path: str, **bounds: int) -> Stored:
        found = read(place, path, **bounds)
        if (payload := next(payloads, None)) is not None:
            place.write(path, payload, over=found)
        return found

    patch.setattr(ObjectPlace, "read", read_too_early)


class TestPointers:
    def test_a_pointer_has_the_bytes_of_a_local_one(self, engine: sa.Engine, place: Place, tmp_path: Path) -> None:
        publish(engine, "news", RELEASES[0])
        for where in (place, LocalPlace(tmp_path)):
            rebuild(engine, where)
        assert place.read(Pointer.path("news")).payload == (tmp_path / Pointer.path("news")).read_bytes()
        assert [str(row) for row in Registry.open(place.address).list()] == ["news@1"]

    def test_concurrent_publishers_leave_the_newest_state(self, engine: sa.Engine, place: Place) -> None:
        def publish_and_report(release: str) -> None:
            publish(engine, "news", release)
            rebuild(engine, place)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(publish_and_report, RELEASES))
        found = {row.version: row.digest for row in Registry.open().list()}
        assert sorted(found) == list(range(1, 13))
        assert set(found.values()) == set(DIGESTS.values())

    def test_a_concurrent_write_after_the_read_is_not_overwritten(
        self, engine: sa.Engine, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(engine, "news", RELEASES[0])
        rebuild(engine, place)
        older = place.read(Pointer.path("news")).payload
        publish(engine, "news", RELEASES[1])
        interfere(monkeypatch, iter([b"one", b"two", older]))
        rebuild(engine, place)
        assert Registry.open().resolve("news").version == 2

    def test_endless_concurrent_writes_are_reported(
        self, engine: sa.Engine, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(engine, "news", RELEASES[0])
        rebuild(engine, place)
        publish(engine, "news", RELEASES[1])
        interfere(monkeypatch, (str(number).encode() for number in range(99)))
        with pytest.raises(Unavailable, match="only one ledger may publish"):
            rebuild(engine, place)

    def test_a_damaged_pointer_is_named_and_rebuilt(self, engine: sa.Engine, place: Place, s3_server: Server) -> None:
        publish(engine, "news", RELEASES[0])
        rebuild(engine, place)
        s3_server.call("PUT", place.at(Pointer.path("news")).removeprefix("s3://"), b"{")
        with pytest.raises(Corrupt, match=r"news\.json is damaged"):
            Registry.open().resolve("news")
        rebuild(engine, place)
        assert Registry.open().resolve("news").version == 1


class TestConsumers:
    def test_a_consumer_needs_the_credentials_and_nothing_else(
        self, engine: sa.Engine, place: Place, s3_server: Server, tmp_path: Path
    ) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path, place=place)
        pointer = Pointer(name="news", versions={1: digest}, aliases={"champion": 1})
        place.write(Pointer.path("news"), pointer.encode(), over=None)
        program = (
            "import sys\n"
            "from dpca.registry.reader import Registry\n"
            "assert 'obstore' not in sys.modules\n"
            "heavy = 'sqlalchemy alembic dp_accounting matplotlib numba dask prefect flows dpca_tasks boto3'\n"
            "subspace = Registry.open(sys.argv[1]).load('news@champion')\n"
            "assert not [name for name in heavy.split() if name in sys.modules], sys.modules.keys()\n"
            "print(subspace.transform([[1.0] * 7]).shape)\n"
        )
        home = tmp_path / "nobody"
        environment = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path), **s3_server.environment}
        done = run(program, place.address, environment=environment)
        assert (done.stdout, done.stderr.count("\n")) == ("(1, 3)\n", 1)
        assert "without a pinned root key" in done.stderr
        assert not home.exists()

    def test_reading_a_folder_imports_no_client(self, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path)
        program = (
            "import sys\n"
            "from dpca.artifacts.files import read_artifact\n"
            "from dpca.backends.local import open_place\n"
            "read_artifact(open_place(sys.argv[1]), sys.argv[2])\n"
            "print('obstore' in sys.modules)\n"
        )
        assert run(program, str(tmp_path), digest).stdout == "False\n"

    def test_an_unknown_name_is_answered_with_the_existing_names(self, engine: sa.Engine, place: Place) -> None:
        publish(engine, "news", RELEASES[0])
        rebuild(engine, place)
        with pytest.raises(NotFound, match=r"'mews' does not exist in s3://.*/registry, which has news"):
            Registry.open().load("mews")


FOLDER, MARKER = "registry/artifacts/a", "manifest.json"
FILES = {"values/c/0": b"12345678", "values/c/1": b"87654321", MARKER: b"{}"}


@pytest.fixture(scope="module")
def proxy(s3_server: Server) -> Iterator[tuple[LyingStore, Server]]:
    with lying_store(s3_server) as found:
        yield found


@pytest.fixture
def liar(proxy: tuple[LyingStore, Server], monkeypatch: pytest.MonkeyPatch) -> LyingStore:
    """Return a proxy that can misbehave, set as this process's object store, with short timeouts."""
    proxy[1].enter(monkeypatch)
    monkeypatch.setenv("AWS_TIMEOUT", "2s")
    monkeypatch.setattr(s3, "_MAX_RETRIES", 2)
    return proxy[0]


@pytest.fixture
def place_of_lying_store(liar: LyingStore, proxy: tuple[LyingStore, Server], tmp_path: Path) -> Place:
    return open_place(proxy[1].url(tmp_path.name))


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    for path, payload in FILES.items():
        target = tmp_path / "staged" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(payload)
    return tmp_path / "staged"


@pytest.mark.parametrize("where", ["values/c/1", MARKER, ""])
@pytest.mark.parametrize("lie", ["lost_write", "torn_write", "error_after", "doubled", "late", "stale_list"])
def test_content_published_during_a_recovery_of_the_store_is_complete(
    liar: LyingStore, place_of_lying_store: Place, staged: Path, lie: str, where: str
) -> None:
    with liar.lying(lie, where=where, times=1):
        place_of_lying_store.publish(staged, FOLDER, marker=MARKER)
    assert place_of_lying_store.read_folder(FOLDER) == FILES


@pytest.mark.parametrize("lie", ["lost_write", "torn_write", "error_after"])
def test_content_that_the_store_loses_is_not_reported_as_published(
    liar: LyingStore, place_of_lying_store: Place, staged: Path, lie: str
) -> None:
    with liar.lying(lie, where="values/c/1"), pytest.raises(Unavailable) as caught:
        place_of_lying_store.publish(staged, FOLDER, marker=MARKER)
    assert "\n" not in str(caught.value)
    assert not place_of_lying_store.holds(FOLDER, marker=MARKER)
    assert place_of_lying_store.publish(staged, FOLDER, marker=MARKER)
    assert place_of_lying_store.read_folder(FOLDER) == FILES


def test_a_permanently_stale_listing_is_refused(liar: LyingStore, place_of_lying_store: Place, staged: Path) -> None:
    with liar.lying("stale_list"):
        assert place_of_lying_store.publish(staged, FOLDER, marker=MARKER)
        assert liar.lies_sent
    assert place_of_lying_store.read_folder(FOLDER) == FILES


def test_a_lost_file_is_restored_by_the_next_publisher(place_of_lying_store: Place, staged: Path) -> None:
    place_of_lying_store.publish(staged, FOLDER, marker=MARKER)
    place_of_lying_store.remove(f"{FOLDER}/values/c", marker="1")
    assert place_of_lying_store.names(f"{FOLDER}/values/c") == []
    assert not place_of_lying_store.publish(staged, FOLDER, marker=MARKER)
    assert place_of_lying_store.read_folder(FOLDER) == FILES


def test_an_unexecuted_removal_is_reported_and_can_be_repeated(
    liar: LyingStore, place_of_lying_store: Place, tmp_path: Path
) -> None:
    with catalog_in(tmp_path, place_of_lying_store) as catalog:
        report = add(catalog)
        with liar.lying("lost_delete", times=2):
            assert catalog.remove("x") == [report.snapshot]
        assert place_of_lying_store.names("datasets/x") == []
        report = add(catalog)
        with liar.lying("lost_delete"), pytest.raises(Unavailable, match="acknowledged a removal, but still has files"):
            catalog.remove("x")
        assert catalog.remove("x") == [report.snapshot]
        assert place_of_lying_store.names("datasets/x") == []
        with pytest.raises(NotFound):
            catalog.remove("x")


@pytest.mark.parametrize(
    "lie", ["swapped", "truncated", *(pytest.param(lie, marks=pytest.mark.audit_only) for lie in ("cut", "slow"))]
)
def test_rows_of_another_block_are_refused(
    liar: LyingStore, place_of_lying_store: Place, tmp_path: Path, lie: str
) -> None:
    local = write(
        tmp_path / "local", [[[(column, number)] for column in range(3)] for number in range(1, 41)], block_nnz=12
    )
    place_of_lying_store.publish(Path(local.address), "x", marker="zarr.json")
    dataset = Dataset.open(place_of_lying_store.at("x"))
    for where in ("values", "indices", "row_nnz", "record_rows"):
        if lie == "swapped" and where != "values":
            continue  # these arrays have equal chunks in both blocks, so swapped chunks change nothing
        with liar.lying(lie, where=f"/{where}/c/1/"), pytest.raises((Corrupt, Unavailable)) as caught:
            dataset.read(1)
        assert "\n" not in str(caught.value)
        assert liar.lies_sent
    assert (dataset.read(1).values == local.read(1).values).all()


def test_extents_of_another_block_are_refused(liar: LyingStore, place_of_lying_store: Place, tmp_path: Path) -> None:
    place_of_lying_store.publish(
        Path(write(tmp_path / "local", single_rows(40), block_nnz=60).address), "x", marker="zarr.json"
    )
    _open_handles.cache_clear()
    with liar.lying("truncated", where="extents/c"), pytest.raises(Corrupt):
        Dataset.open(place_of_lying_store.at("x"))


@pytest.mark.parametrize("lie", ["lost_write", "torn_write", "stale_read", "error_after"])
def test_a_small_file_is_written_until_it_reads_back(liar: LyingStore, place_of_lying_store: Place, lie: str) -> None:
    with liar.lying(lie, times=1):
        write_and_check(place_of_lying_store, "streams/a", b"an answer")
    assert place_of_lying_store.read("streams/a").payload == b"an answer"
    with liar.lying(lie), pytest.raises(Unavailable) as caught:
        write_and_check(place_of_lying_store, "streams/b", b"an answer")
    assert "\n" not in str(caught.value)


def test_every_lie_applies_to_a_kind_of_request() -> None:
    kinds = {kind for of, _ in LIES.values() for kind in of.split()}
    assert kinds == {"read", "write", "list", "delete"}
