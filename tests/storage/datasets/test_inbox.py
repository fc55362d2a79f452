"""Inboxes for arriving files, and snapshots in an object store.

For an inbox on a disk or in an object store, the tests check which files are taken, in which order, and that each has
one token. Snapshots in an object store are complete or invisible, verified, and their pickles contain no private fact.
"""

import io
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.backends.base import Place
from dpca.backends.local import open_place
from dpca.errors import Corrupt, NotFound, Unavailable
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.datasets.inbox import Inbox
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from tests.s3 import ACCESS_KEY, SECRET_KEY, Server, serve

Put = Callable[..., str]


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    """Return the inbox of a dataset in a separate home."""
    return Inbox(tmp_path / "home", "people")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder."""
    made = tmp_path / "inbox"
    made.mkdir()
    return made


@pytest.fixture
def put(tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Return a function that puts an object below a separate prefix, and returns the prefix."""
    s3_server.enter(monkeypatch)
    prefix = s3_server.url(tmp_path.name)

    def stored(name: str = "", payload: bytes = b"") -> str:
        if name:
            s3_server.call("PUT", f"{prefix.removeprefix('s3://')}/{quote(name)}", payload)
        return prefix

    return stored


def rows(seed: int = 1) -> bytes:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(seed).normal(size=(3, 2)))
    return file.getvalue()


def addresses(inbox: Inbox, address: Path | str) -> list[str]:
    found = inbox.waiting(str(address), settled=0.0).tokens
    return [inbox.arrival(token).address for token in found]


class TestFolder:
    def test_files_of_any_name_arrive_oldest_first_each_with_one_token(self, inbox: Inbox, folder: Path) -> None:
        names = ["two\nlines.npy", "a*[b].npy", "\x1b[31m.npy", os.fsdecode(b"not-utf8-\xff.npy"), "ü ?.npy"]
        for age, name in enumerate(names):
            (folder / name).write_bytes(rows())
            os.utime(folder / name, (1_000 + age, 1_000 + age))
        assert addresses(inbox, folder) == [str(folder / name) for name in names]
        assert inbox.waiting(str(folder), settled=0.0) == inbox.waiting(str(folder), settled=0.0)

    def test_links_and_unfinished_files_are_left_and_counted(self, inbox: Inbox, folder: Path, tmp_path: Path) -> None:
        other = tmp_path / "secret.npy"
        other.write_bytes(rows())
        (folder / "link.npy").symlink_to(other)
        (folder / "dangling.npy").symlink_to(tmp_path / "nowhere")
        (folder / "rows.npy.part").write_bytes(rows())
        (folder / ".hidden.npy").write_bytes(rows())
        (folder / "done").mkdir()
        found = inbox.waiting(str(folder), settled=0.0)
        assert (found.tokens, found.left) == ((), 3)

    def test_a_file_has_one_token_however_its_folder_is_named(
        self, inbox: Inbox, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "rows.npy").write_bytes(rows())
        (folder / "sub").mkdir()
        (tmp_path / "link").symlink_to(folder)
        (tmp_path / "way").symlink_to(tmp_path)
        monkeypatch.chdir(tmp_path)
        (token,) = inbox.waiting(str(folder), settled=0.0).tokens
        for named in ("inbox", "inbox/sub/../", "link", "way/link/", "way/way/inbox/*.npy", "link/r*", "link/rows.npy"):
            assert inbox.waiting(named, settled=0.0).tokens == (token,), named

    @pytest.mark.parametrize("swapped", ["link", "pipe", "folder", "gone", "linked folder", "hidden change"])
    def test_a_replacement_of_an_arrived_file_is_not_opened(
        self, inbox: Inbox, folder: Path, tmp_path: Path, swapped: str
    ) -> None:
        path = folder / "sub" / "rows.npy"
        path.parent.mkdir()
        path.write_bytes(rows())
        (token,) = inbox.waiting(str(folder / "sub" / "*.npy"), settled=0.0).tokens
        arrival, status, secret = inbox.arrival(token), path.stat(), tmp_path / "secret" / "rows.npy"
        secret.parent.mkdir()
        secret.write_bytes(rows(2))
        # give the secret file the same size and time as the arrived file
        os.utime(secret, ns=(status.st_atime_ns, status.st_mtime_ns))
        if swapped == "linked folder":
            path.parent.rename(folder / "old")
            path.parent.symlink_to(secret.parent)
        else:
            path.unlink()
        if swapped == "link":
            path.symlink_to(secret)
        elif swapped == "pipe":
            os.mkfifo(path)
        elif swapped == "folder":
            path.mkdir()
        elif swapped == "hidden change":
            path.write_bytes(rows() + b"more")
        assert not inbox.stands(arrival)
        with pytest.raises(FileNotFoundError), inbox.holding(arrival):
            pytest.fail("it was opened")

    def test_a_link_exchanged_for_the_file_is_never_read(self, inbox: Inbox, folder: Path, tmp_path: Path) -> None:
        path, kept, link, secret = folder / "rows.npy", tmp_path / "kept", tmp_path / "turn", tmp_path / "secret"
        for made, seed in ((path, 1), (secret, 2)):
            made.write_bytes(rows(seed))
            os.utime(made, (1_000, 1_000))
        (token,) = inbox.waiting(str(folder), settled=0.0).tokens
        arrival, ended, read = inbox.arrival(token), threading.Event(), list[bytes]()

        def swap() -> None:
            while not ended.is_set():
                os.link(path, kept)
                link.symlink_to(secret)
                link.replace(path)
                time.sleep(0)
                kept.replace(path)

        thread = threading.Thread(target=swap)
        thread.start()
        try:
            for _ in range(2_000):
                with suppress(FileNotFoundError), inbox.holding(arrival) as file:
                    read += [file.open().read(), file.open().read()]
        finally:
            ended.set()
            thread.join()
        assert 2 < len(read) < 4_000
        assert {*read} == {rows(1)}

    def test_an_opened_file_is_read_completely_even_if_replaced(self, inbox: Inbox, folder: Path) -> None:
        path = folder / "rows.npy"
        path.write_bytes(rows(1))
        (token,) = inbox.waiting(str(folder), settled=0.0).tokens
        with inbox.holding(inbox.arrival(token)) as file, file.open() as stream:
            assert stream.read(5) == rows(1)[:5]
            path.unlink()
            path.write_bytes(rows(2))
            assert stream.read() == rows(1)[5:]
            assert file.open().read() == rows(1)

    def test_a_file_being_written_waits_and_a_changed_file_is_a_new_arrival(self, inbox: Inbox, folder: Path) -> None:
        path = folder / "rows.npy"
        path.write_bytes(rows())
        assert inbox.waiting(str(folder), settled=3_600.0).left == 1
        (first,) = inbox.waiting(str(folder), settled=0.0).tokens
        inbox.end(first, "released")
        assert inbox.waiting(str(folder), settled=0.0).tokens == ()
        path.write_bytes(rows() + b"more")
        (second,) = inbox.waiting(str(folder), settled=0.0).tokens
        assert second != first
        assert not inbox.stands(inbox.arrival(first))
        assert inbox.stands(inbox.arrival(second))

    def test_a_missing_inbox_is_unavailable_and_an_unknown_token_is_not_found(self, inbox: Inbox, folder: Path) -> None:
        with pytest.raises(Unavailable, match="the folder does not exist"):
            inbox.waiting(str(folder / "elsewhere" / "deep"), settled=0.0)
        with pytest.raises(NotFound, match="list the inbox again"):
            inbox.arrival("0" * 32)

    def test_one_process_takes_an_arrival_at_a_time(self, inbox: Inbox, folder: Path) -> None:
        (folder / "rows.npy").write_bytes(rows())
        (token,) = inbox.waiting(str(folder), settled=0.0).tokens
        at_once: list[int] = []
        inside = [0]

        def take(number: int) -> str:
            with inbox.taking(token):
                inside[0] += 1
                at_once.append(inside[0])
                time.sleep(0.01)
                inside[0] -= 1
                return inbox.note_snapshot(token, f"snapshot-{number}")

        with ThreadPoolExecutor(max_workers=4) as pool:
            noted = {*pool.map(take, range(8))}
        assert at_once == [1] * 8
        assert len(noted) == 1


class TestObjectStore:
    def test_objects_directly_below_a_prefix_arrive_the_oldest_first(self, inbox: Inbox, put: Put) -> None:
        names = ["z.npy", "a b.npy", "100%.npy", "month=1;x.npy", "ü[1].npy"]
        for name in names:
            put(name, rows())
            time.sleep(1.0 if name == "z.npy" else 0.0)  # the S3 server reports times in whole seconds
        prefix = put("deeper/c.npy", rows())
        put("d.npy.part", rows())
        put("nothing/", b"")
        found = addresses(inbox, prefix)
        assert found[0] == f"{prefix}/z.npy"
        assert sorted(found) == sorted(f"{prefix}/{name}" for name in names)
        assert inbox.waiting(prefix, settled=0.0).left == 1
        assert addresses(inbox, f"{prefix}/") == found
        assert addresses(inbox, f"s3://{prefix.removeprefix('s3://').replace('/', '//', 1)}//") == found
        assert addresses(inbox, f"{prefix}/z*.npy") == found[:1]

    def test_a_replaced_object_is_a_new_arrival(self, inbox: Inbox, put: Put) -> None:
        prefix = put("rows.npy", rows(1))
        (first,) = inbox.waiting(prefix, settled=0.0).tokens
        put("rows.npy", rows(2))
        (second,) = inbox.waiting(prefix, settled=0.0).tokens
        assert not inbox.stands(inbox.arrival(first))
        assert inbox.stands(inbox.arrival(second))

    def test_equal_rows_that_are_stored_again_are_a_new_arrival(self, inbox: Inbox, put: Put) -> None:
        """Put equal rows again under the same name: they count as a new arrival, as changed rows do.

        Whether rows are equal is private, but a store tags an object with a digest of its content.
        """
        prefix = put("rows.npy", rows(1))
        (first,) = inbox.waiting(prefix, settled=0.0).tokens
        assert inbox.waiting(prefix, settled=0.0).tokens == (first,)
        time.sleep(1.05)  # the S3 server reports times in whole seconds
        put("rows.npy", rows(1))
        (second,) = inbox.waiting(prefix, settled=0.0).tokens
        assert second != first
        assert not inbox.stands(inbox.arrival(first))
        assert inbox.stands(inbox.arrival(second))

    def test_an_empty_prefix_holds_nothing_and_a_missing_bucket_is_unavailable(self, inbox: Inbox, put: Put) -> None:
        assert inbox.waiting(put(), settled=0.0).tokens == ()
        with pytest.raises(Unavailable):
            inbox.waiting("s3://no-such-bucket/prefix", settled=0.0)


@pytest.mark.parametrize("act", ["note_snapshot", "note_reason", "end"])
def test_an_arrival_that_cannot_be_recorded_is_reported_in_one_line(inbox: Inbox, folder: Path, act: str) -> None:
    (folder / "rows.npy").write_bytes(rows())
    (token,) = inbox.waiting(str(folder), settled=0.0).tokens
    with pytest.raises(Unavailable, match="cannot be written"):
        getattr(inbox, act)(f"no folder/{token}", "told")


ROWS = "1 1:1 2:2\n1 2:1\n1 1:3\n"


@contextmanager
def catalog_in(home: Path, place: Place) -> Iterator[Catalog]:
    """Open the catalog of a home that has a ledger."""
    engine = connect(f"sqlite:///{home / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        if connection.scalar(sa.select(tables.ledger.c.id)) is None:
            connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield Catalog(engine, home, place)
    engine.dispose()


@pytest.fixture
def catalog(tmp_path: Path, place: Place) -> Iterator[Catalog]:
    with catalog_in(tmp_path, place) as catalog:
        yield catalog


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, s3_server: Server) -> Path:
    """Kill ingests into one store while they publish; return the folder of their homes."""
    folder = tmp_path_factory.mktemp("killed")
    program = (
        "import os, pathlib, signal, sys\n"
        "from dpca.backends import atomic_files\n"
        "from dpca.backends.local import open_place\n"
        "from tests.storage.datasets.test_inbox import add, catalog_in\n"
        "def survive(home, place, point):\n"
        "    atomic_files.hook = lambda reached: reached == point and os.kill(os.getpid(), signal.SIGKILL)\n"
        "    home.mkdir(parents=True)\n"
        "    with catalog_in(home, place) as catalog: add(catalog)\n"
        "    os._exit(0)\n"
        "for point in ('folder.synced', 'folder.renamed'):\n"
        "    for action in ('start over', 'resume'):\n"
        "        home, url = pathlib.Path(sys.argv[1], point, action), f'{sys.argv[2]}/{point}/{action[0]}'\n"
        "        child = os.fork() or survive(home, open_place(url), point)\n"
        "        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL\n"
    )
    command = [sys.executable, "-c", program, str(folder), s3_server.url(folder.name)]
    environment = {**os.environ, **s3_server.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def add(catalog: Catalog, *, resume: bool = False) -> IngestReport:
    source = catalog.home / "rows.svm"
    if not source.exists():
        source.write_text(ROWS)
    return ingest(
        source,
        name="x",
        home=catalog.home,
        engine=catalog.engine,
        place=catalog.place,
        options=IngestOptions(features=3, resume=resume),
    )


class TestSnapshots:
    def test_a_snapshot_is_read_from_the_store_alone(self, catalog: Catalog) -> None:
        report = add(catalog)
        entry = catalog.current("x")
        assert catalog.address(entry) == catalog.place.at(f"datasets/x/{report.snapshot}")
        assert catalog.verify("x") == report.content_digest
        np.testing.assert_array_equal(catalog.open(entry).read(0).values, [1, 2, 1, 3])
        assert not [*(catalog.home / "datasets").iterdir()]
        assert not [name for name in catalog.place.names(entry.path) if name.startswith(".")]

    def test_a_pickled_snapshot_contains_its_address_alone(self, catalog: Catalog) -> None:
        report = add(catalog)
        dataset = catalog.open(catalog.current("x"))
        pickled = pickle.dumps(dataset)
        assert pickle.loads(pickled) == dataset
        for secret in (report.content_digest, ACCESS_KEY, SECRET_KEY):
            assert secret.encode() not in pickled

    def test_a_flipped_byte_and_a_lost_chunk_are_found(self, catalog: Catalog, s3_server: Server) -> None:
        add(catalog)
        address = catalog.address(catalog.current("x"))
        s3_server.flip_a_byte(f"{address}/values/c/0/0")
        with pytest.raises(Corrupt, match="block 0"):
            Dataset.open(address).read(0)
        s3_server.call("DELETE", f"{address}/values/c/0/0".removeprefix("s3://"))
        with pytest.raises(Corrupt, match="block 0"):
            Dataset.open(address).read(0)

    def test_a_removed_dataset_leaves_no_object(self, catalog: Catalog) -> None:
        add(catalog)
        add(catalog)
        catalog.remove("x")
        assert catalog.place.names("datasets/x") == []

    def test_an_unavailable_store_is_not_reported_as_damage(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serve() as passing:
            passing.enter(monkeypatch)
            with catalog_in(tmp_path, open_place(passing.url("x"))) as catalog:
                add(catalog)
                dataset = catalog.open(catalog.current("x"))
            dataset.read(0)
        with pytest.raises(Unavailable, match="does not answer") as caught:
            dataset.read(0)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("action", ["start over", "resume"])
    @pytest.mark.parametrize("point", ["folder.synced", "folder.renamed"])
    def test_an_ingest_killed_during_publication_is_invisible_and_finally_removed(
        self, killed: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch, point: str, action: str
    ) -> None:
        s3_server.enter(monkeypatch)
        home, place = killed / point / action, open_place(s3_server.url(f"{killed.name}/{point}/{action[0]}"))
        with catalog_in(home, place) as catalog:
            assert catalog.entries() == []
            (left,) = place.names("datasets/x")
            if point == "folder.synced":
                with pytest.raises(NotFound, match="there is no snapshot"):
                    Dataset.open(place.at(f"datasets/x/{left}"))
            report = add(catalog, resume=action == "resume")
            assert (report.snapshot == left) == (action == "resume")
            assert catalog.verify("x") == report.content_digest
            assert place.names("datasets/x") == [report.snapshot]
            assert not [*(home / "datasets").iterdir()]


class TestFirstSeen:
    def test_two_machines_share_the_table_of_a_store(self, catalog: Catalog, place: Place, tmp_path: Path) -> None:
        """Ingest from two machines that share only database, store and keys: they must share the first-seen table."""
        source, firsts = tmp_path / "rows.csv", []
        for machine, ids in enumerate(("ab", "bc", "abcd")):
            source.write_text("who,a\n" + "".join(f"{who},{ord(who)}\n" for who in ids))
            report = ingest(
                source,
                name="x",
                home=tmp_path / f"machine-{machine}",
                engine=catalog.engine,
                place=place,
                keys=tmp_path / "keys",
                options=IngestOptions(features=1, unit_column="who"),
            )
            assert not report.arrivals_lost
            dataset = catalog.open(catalog.entry(report.snapshot))
            firsts.append(
                [
                    (dataset.read(block).first_seen, *dataset.read(block).values.tolist())
                    for block in range(dataset.n_blocks)
                ]
            )
        a, b, c, d = map(float, b"abcd")
        assert firsts == [[(1, a, b)], [(1, b), (2, c)], [(1, a, b), (2, c), (3, d)]]
