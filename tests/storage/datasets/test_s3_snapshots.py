"""Snapshots in an object store: whole or invisible, verified, and without a private fact in a pickle."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from storage.backends.base import Place
from storage.backends.opening import open_place
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.errors import Corrupt, NotFound, Unavailable
from tests.s3 import ACCESS_KEY, SECRET_KEY, Server, serve

ROWS = "1 1:1 2:2\n1 2:1\n1 1:3\n"


@contextmanager
def catalog_in(home: Path, place: Place) -> Iterator[Catalog]:
    """Open the catalog of a home, with a ledger in it."""
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
        "from storage.backends import crash_points\n"
        "from storage.backends.opening import open_place\n"
        "from tests.storage.datasets.test_s3_snapshots import add, catalog_in\n"
        "def survive(home, place, point):\n"
        "    crash_points.hook = lambda reached: reached == point and os.kill(os.getpid(), signal.SIGKILL)\n"
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

    def test_a_pickle_is_the_address_alone(self, catalog: Catalog) -> None:
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
        s3_server.ask("DELETE", f"{address}/values/c/0/0".removeprefix("s3://"))
        with pytest.raises(Corrupt, match="block 0"):
            Dataset.open(address).read(0)

    def test_a_removed_dataset_leaves_no_object(self, catalog: Catalog) -> None:
        add(catalog)
        add(catalog)
        catalog.remove("x")
        assert catalog.place.names("datasets/x") == []

    def test_a_store_that_is_gone_is_not_called_damage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    def test_an_ingest_killed_while_it_publishes_is_invisible_and_leaves_nothing_in_the_end(
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
        """They share database, store and keys, and nothing else: each has a home of its own."""
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
