"""The homes that are measured are those that the ledger makes, and no request reads more of a longer history."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    table,
    taken_by,
)
from storage.workspace import Workspace

POPULATIONS = 5
FEW, MANY = 24, 240


@contextmanager
def filled(folder: Path, count: int, *, each: bool = False) -> Iterator[Workspace]:
    """Make a home of many releases, and point to it."""
    folder.mkdir(mode=0o700)
    with own_home(folder):
        workspace = Workspace.open()
        open_budgets(workspace, POPULATIONS)
        (release_each if each else release_at_once)(workspace, count, populations=POPULATIONS)
        yield workspace


def test_releases_written_at_once_are_those_made_step_by_step(tmp_path: Path) -> None:
    records = []
    for each in (False, True):
        with filled(tmp_path / str(each), 6, each=each) as workspace:
            workspace.ledger.verify()
            records.append(record_of(workspace))
    assert records[0] == records[1]


def test_what_is_to_be_flat_and_is_not_is_named() -> None:
    short, long = (Measured(seconds=seconds, steps=1, statements=1) for seconds in (1.0, 2.0))
    found = {1: dict.fromkeys((POINTERS, "a", "b"), short), 9: {POINTERS: long, "a": long, "b": short}}
    assert falls_short(found) == ["a"]
    assert "below 2 but where all versions are written or everything is read: falls short of it: a." in " ".join(
        table(found, where="memory").split()
    )


def test_what_is_asked_reads_no_more_of_a_longer_history(tmp_path: Path) -> None:
    found: list[dict[str, Measured]] = []
    with Gauge() as gauge:
        for count in (FEW, MANY):
            with filled(tmp_path / str(count), count) as workspace:
                found.append({})
                for name, request in requests_on(workspace):
                    if name not in COMMANDS:
                        request()  # the first notes what later ones follow
                        found[-1][name] = taken_by(request, gauge)
    few, many = found
    for name in few.keys() - LINEAR:
        assert many[name].statements == few[name].statements, name
        assert many[name].steps <= 1.2 * few[name].steps + 200, name
