"""A store that lies: what it acknowledges is looked at, and what it answers is checked, or put again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.backends import s3
from storage.backends.base import Place, write_and_check
from storage.backends.opening import open_place
from storage.datasets.snapshot_reader import Dataset, _open_handles
from storage.errors import Corrupt, NotFound, Unavailable
from tests.crash.lying_store import LIES, LyingStore, lying_store
from tests.s3 import Server
from tests.storage.datasets.test_s3_snapshots import add, catalog_in
from tests.storage.datasets.test_snapshot_reader import single_rows, write

FOLDER, MARKER = "registry/artifacts/a", "manifest.json"
FILES = {"values/c/0": b"12345678", "values/c/1": b"87654321", MARKER: b"{}"}


@pytest.fixture(scope="module")
def proxy(s3_server: Server) -> Iterator[tuple[LyingStore, Server]]:
    with lying_store(s3_server) as found:
        yield found


@pytest.fixture
def liar(proxy: tuple[LyingStore, Server], monkeypatch: pytest.MonkeyPatch) -> LyingStore:
    """The proxy, which this process takes for its store; the client is not patient."""
    proxy[1].enter(monkeypatch)
    monkeypatch.setenv("AWS_TIMEOUT", "500ms")
    monkeypatch.setattr(s3, "_MAX_RETRIES", 2)
    return proxy[0]


@pytest.fixture
def place(liar: LyingStore, proxy: tuple[LyingStore, Server], tmp_path: Path) -> Place:
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
def test_what_was_published_while_a_store_recovers_is_whole(
    liar: LyingStore, place: Place, staged: Path, lie: str, where: str
) -> None:
    with liar.lying(lie, where=where, times=1):
        place.publish(staged, FOLDER, marker=MARKER)
    assert place.read_folder(FOLDER) == FILES


@pytest.mark.parametrize("lie", ["lost_write", "torn_write", "error_after"])
def test_what_a_store_does_not_keep_is_not_published(liar: LyingStore, place: Place, staged: Path, lie: str) -> None:
    with liar.lying(lie, where="values/c/1"), pytest.raises(Unavailable) as caught:
        place.publish(staged, FOLDER, marker=MARKER)
    assert "\n" not in str(caught.value)
    assert not place.holds(FOLDER, marker=MARKER)
    assert place.publish(staged, FOLDER, marker=MARKER)
    assert place.read_folder(FOLDER) == FILES


def test_a_listing_that_never_catches_up_is_not_believed(liar: LyingStore, place: Place, staged: Path) -> None:
    with liar.lying("stale_list"):
        assert place.publish(staged, FOLDER, marker=MARKER)
        assert liar.lies_told
    assert place.read_folder(FOLDER) == FILES


def test_a_file_that_was_lost_since_is_put_back_by_the_next_publisher(place: Place, staged: Path) -> None:
    place.publish(staged, FOLDER, marker=MARKER)
    place.remove(f"{FOLDER}/values/c", marker="1")
    assert place.names(f"{FOLDER}/values/c") == []
    assert not place.publish(staged, FOLDER, marker=MARKER)
    assert place.read_folder(FOLDER) == FILES


def test_a_removal_that_is_not_done_is_noticed_and_can_be_repeated(
    liar: LyingStore, place: Place, tmp_path: Path
) -> None:
    with catalog_in(tmp_path, place) as catalog:
        report = add(catalog)
        with liar.lying("lost_delete", times=2):
            assert catalog.remove("x") == [report.snapshot]
        assert place.names("datasets/x") == []
        report = add(catalog)
        with liar.lying("lost_delete"), pytest.raises(Unavailable, match="acknowledged a removal, and still has files"):
            catalog.remove("x")
        assert catalog.remove("x") == [report.snapshot]
        assert place.names("datasets/x") == []
        with pytest.raises(NotFound):
            catalog.remove("x")


@pytest.mark.parametrize(
    "lie", ["swapped", "truncated", *(pytest.param(lie, marks=pytest.mark.audit_only) for lie in ("cut", "slow"))]
)
def test_rows_that_are_not_those_of_a_block_are_not_read(
    liar: LyingStore, place: Place, tmp_path: Path, lie: str
) -> None:
    local = write(
        tmp_path / "local", [[[(column, number)] for column in range(3)] for number in range(1, 41)], block_nnz=12
    )
    place.publish(Path(local.address), "x", marker="zarr.json")
    dataset = Dataset.open(place.at("x"))
    for where in ("values", "indices", "row_nnz", "record_rows"):
        if lie == "swapped" and where != "values":
            continue  # the chunks of two blocks are equal
        with liar.lying(lie, where=f"/{where}/c/1/"), pytest.raises((Corrupt, Unavailable)) as caught:
            dataset.read(1)
        assert "\n" not in str(caught.value)
        assert liar.lies_told
    assert (dataset.read(1).values == local.read(1).values).all()


def test_extents_of_other_blocks_are_not_read(liar: LyingStore, place: Place, tmp_path: Path) -> None:
    place.publish(Path(write(tmp_path / "local", single_rows(40), block_nnz=60).address), "x", marker="zarr.json")
    _open_handles.cache_clear()
    with liar.lying("truncated", where="extents/c"), pytest.raises(Corrupt):
        Dataset.open(place.at("x"))


@pytest.mark.parametrize("lie", ["lost_write", "torn_write", "stale_read", "error_after"])
def test_a_small_file_is_written_until_it_reads_back(liar: LyingStore, place: Place, lie: str) -> None:
    with liar.lying(lie, times=1):
        write_and_check(place, "streams/a", b"an answer")
    assert place.read("streams/a").payload == b"an answer"
    with liar.lying(lie), pytest.raises(Unavailable) as caught:
        write_and_check(place, "streams/b", b"an answer")
    assert "\n" not in str(caught.value)


def test_every_lie_has_a_kind_of_request() -> None:
    kinds = {kind for of, _ in LIES.values() for kind in of.split()}
    assert kinds == {"read", "write", "list", "delete"}
