"""Places (a local folder or an object store) behind one interface: writes are complete, published content is final."""

import pickle
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import pytest
import zarr

from dpca.backends.base import Place, Stored
from dpca.backends.local import LocalPlace, open_place
from dpca.errors import Invalid, Unavailable
from tests.s3 import ACCESS_KEY, SECRET_KEY, Server, serve

FILES = {"mark": b"1", "empty": b"", "inner/leaf": b"22", "inner/more/leaf": bytes(range(256))}


@pytest.fixture(params=["folder", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return an empty place, once as a local folder and once in an object store."""
    if request.param == "folder":
        return open_place(tmp_path / "place")
    s3_server.enter(monkeypatch)
    return open_place(s3_server.url(tmp_path.name))


@pytest.fixture
def objects(tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    s3_server.enter(monkeypatch)
    return open_place(s3_server.url(tmp_path.name))


def stage(folder: Path, files: dict[str, bytes]) -> Path:
    for relative, payload in files.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    return folder


def test_a_written_file_is_read_back_unchanged(place: Place) -> None:
    assert place.write("a/b/c.json", b"one", over=None)
    found = place.read("a/b/c.json")
    assert found.payload == b"one"
    assert place.write("a/b/c.json", b"two", over=found)
    assert place.read("a/b/c.json").payload == b"two"
    assert place.names("a/b") == ["c.json"]


def test_an_empty_place_has_no_files(place: Place) -> None:
    assert place.names("a") == []
    assert not place.holds("a", marker="mark")
    for read in (place.read, place.read_folder):
        with pytest.raises(FileNotFoundError) as caught:
            read("a")
        assert not isinstance(caught.value, Unavailable)
        assert "\n" not in str(caught.value)


def test_a_published_folder_is_complete_and_read_back(place: Place, tmp_path: Path) -> None:
    assert place.publish(stage(tmp_path / "staged", FILES), "shelf/x", marker="mark")
    assert place.holds("shelf/x", marker="mark")
    assert place.read_folder("shelf/x") == FILES
    assert place.names("shelf") == ["x"]
    assert place.names("shelf/x") == ["empty", "inner", "mark"]
    assert place.read("shelf/x/inner/leaf").payload == b"22"


def test_existing_content_is_never_overwritten(place: Place, tmp_path: Path) -> None:
    assert place.publish(stage(tmp_path / "one", FILES), "x", marker="mark")
    assert not place.publish(stage(tmp_path / "two", {"mark": b"other", "more": b""}), "x", marker="mark")
    assert place.read_folder("x") == FILES


def test_one_of_several_concurrent_publishers_wins(place: Place, tmp_path: Path) -> None:
    staged = [stage(tmp_path / str(number), FILES) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda folder: place.publish(folder, "shelf/x", marker="mark"), staged))
    assert sorted(won) == [False] * 5 + [True]
    assert place.read_folder("shelf/x") == FILES


def test_a_removed_folder_is_gone_and_its_neighbour_is_not(place: Place, tmp_path: Path) -> None:
    for name in ("x", "xy"):
        place.publish(stage(tmp_path / name, FILES), f"shelf/{name}", marker="mark")
    for _ in range(2):
        place.remove("shelf/x", marker="mark")
        assert not place.holds("shelf/x", marker="mark")
        assert place.names("shelf") == ["xy"]
    assert place.read_folder("shelf/xy") == FILES


def test_several_processes_may_remove_a_folder_at_once(place: Place, tmp_path: Path) -> None:
    files = FILES | {f"chunk/{number}": b"" for number in range(200)}
    place.publish(stage(tmp_path / "staged", files), "shelf/x", marker="mark")
    together = Barrier(4)

    def remove(_: int) -> None:
        together.wait()
        place.remove("shelf/x", marker="mark")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remove, range(4)))
    assert place.names("shelf") == []


def test_a_folder_may_be_cleaned_up_while_it_is_removed(tmp_path: Path) -> None:
    place, over = LocalPlace(tmp_path), Event()

    def sweep() -> None:
        while not over.is_set():
            shutil.rmtree(tmp_path / "shelf" / ".x.removed", ignore_errors=True)

    with ThreadPoolExecutor(2) as pool:
        swept = [pool.submit(sweep) for _ in range(2)]
        try:
            for _ in range(20):
                stage(tmp_path / "shelf" / "x", {f"chunk/{number}": b"" for number in range(50)})
                place.remove("shelf/x", marker="mark")
                assert not place.holds("shelf/x", marker="mark")
        finally:
            over.set()
        for sweeper in swept:
            sweeper.result()


def test_a_folder_hidden_by_a_killed_removal_is_removed(tmp_path: Path) -> None:
    stage(tmp_path / "shelf" / ".x.removed", FILES)
    LocalPlace(tmp_path).remove("shelf/x", marker="mark")
    assert LocalPlace(tmp_path).names("shelf") == []


def test_a_folder_with_more_entries_than_one_response_is_listed_completely(objects: Place) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: objects.write(f"many/{number}", b"", over=None), range(1001)))
    assert len(objects.names("many")) == 1001


def test_a_zarr_group_opens_in_its_place_read_only(place: Place, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "group").create_array("a", data=np.array([1, 2, 3]))
    place.publish(tmp_path / "group", "g", marker="zarr.json")
    inside = open_place(place.at("g"))
    assert inside.holds("", marker="zarr.json")
    array = zarr.open_array(inside.zarr_store(), path="a", mode="r")
    np.testing.assert_array_equal(array[:], [1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 7


def test_an_address_and_a_pickle_open_the_same_place(place: Place) -> None:
    place.write("a", b"1", over=None)
    assert open_place(place.address) == place
    copy = pickle.loads(pickle.dumps(place))
    assert copy == place
    assert copy.read("a").payload == b"1"


def test_a_file_is_overwritten_only_if_unchanged_since_it_was_read(objects: Place) -> None:
    assert objects.write("a", b"1", over=None)
    first = objects.read("a")
    assert not objects.write("a", b"2", over=None)
    assert objects.write("a", b"2", over=first)
    assert not objects.write("a", b"3", over=first)
    assert objects.read("a").payload == b"2"
    assert not objects.write("lost", b"3", over=Stored(b"2", first.tag))


def test_hidden_files_of_the_writer_are_not_copied_to_an_object_store(objects: Place, tmp_path: Path) -> None:
    objects.publish(stage(tmp_path / "staged", {**FILES, ".notes": b"local"}), "x", marker="mark")
    assert objects.read_folder("x") == FILES


def test_no_credential_is_pickled_or_shown(objects: Place) -> None:
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret.encode() not in pickle.dumps(objects)
        assert secret not in repr(objects)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://", "s3:///prefix", "s3://a", "s3://bucket//x", "s3://bucket/../x", "s3://bucket/.x", "s3://bucket/a b"),
        *("s3://key:secret@bucket/x", "s3://bucket/x?key=secret", "http://bucket/x", "S3://bucket", "file:///x"),
    ],
)
def test_an_invalid_store_url_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(Invalid, match="s3://bucket/prefix") as caught:
        open_place(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a/b=1/_c", "s3://a.bucket/x-y.z/"])
def test_a_url_of_a_store_is_its_address(url: str) -> None:
    assert open_place(url).address == url.removesuffix("/")


def uses(place: Place, staged: Path) -> Iterator[str]:
    """Yield the error message of each operation of a place that is unavailable, so that all operations fail."""
    for use in (
        lambda: place.read("a"),
        lambda: place.write("a", b"", over=None),
        lambda: place.names("a"),
        lambda: place.holds("a", marker="mark"),
        lambda: place.read_folder("a"),
        lambda: place.publish(staged, "a", marker="mark"),
        lambda: place.remove("a", marker="mark"),
    ):
        with pytest.raises(Unavailable) as caught:
            use()
        yield str(caught.value)


def assert_one_clear_line(text: str, shown: str) -> None:
    assert re.search(shown, text)
    assert "\n" not in text
    assert SECRET_KEY not in text
    assert ACCESS_KEY not in text


def test_a_wrong_bucket_is_named(objects: Place, tmp_path: Path) -> None:
    wrong = open_place("s3://no-such-bucket/x")
    for text in uses(wrong, stage(tmp_path / "staged", FILES)):
        assert_one_clear_line(text, "s3://no-such-bucket/x cannot be used: the bucket does not exist; create it")


def test_wrong_credentials_and_then_a_server_that_is_gone_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(tmp_path / "staged", FILES)
    with serve() as server:
        server.enter(monkeypatch)
        place = open_place(server.url("x"))
        place.write("a", b"", over=None)
        server.check_credentials()
        for text in uses(place, staged):
            assert_one_clear_line(text, "the credentials are not accepted here; correct the AWS_")
    # only the first operation, because each one waits for the server to come back
    for text in islice(uses(place, staged), 1):
        assert_one_clear_line(text, "it does not answer; check AWS_ENDPOINT_URL")


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("AWS_ACCESS_KEY_ID", None, "there are no credentials; set AWS_ACCESS_KEY_ID"),
        ("AWS_ALLOW_HTTP", None, "not an https:// URL; correct AWS_ENDPOINT_URL, or set AWS_ALLOW_HTTP=true"),
        ("AWS_ALLOW_HTTP", "maybe", "an AWS_. variable has an invalid value"),
        ("AWS_ENDPOINT_URL", "nonsense", "AWS_ENDPOINT_URL must be the URL of an S3 service"),
    ],
)
def test_a_missing_or_wrong_variable_is_named(
    objects: Place, monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None, shown: str
) -> None:
    monkeypatch.delenv(variable)
    if value is not None:
        monkeypatch.setenv(variable, value)
    with pytest.raises((Unavailable, Invalid)) as caught:
        open_place(objects.address).read("a")
    assert_one_clear_line(str(caught.value), shown.replace("AWS_.", r"AWS_\*"))


@pytest.mark.parametrize("use", ["read", "names", "write", "publish"])
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, use: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    place, staged = LocalPlace(tmp_path / "file"), stage(tmp_path / "staged", FILES)
    with pytest.raises(Unavailable) as caught:
        {
            "read": lambda: place.read("a"),
            "names": lambda: place.names("a"),
            "write": lambda: place.write("a", b"", over=None),
            "publish": lambda: place.publish(staged, "a", marker="mark"),
        }[use]()
    assert_one_clear_line(str(caught.value), f"{tmp_path}/file.* cannot be (read|written)")
