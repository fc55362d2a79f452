"""Rows that break a rule are set aside at a cost that does not grow with their share, and are counted."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pytest

from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import BadSource
from storage.formats import svmlight, tables
from storage.formats.declared import Declared
from storage.formats.rejects import Quarantine, describe, read_tally
from storage.formats.sources import open_file
from storage.schemas.cells import cast_cells
from storage.workspace import Workspace

ROWS = 4096


def calls_of(module: str, path: Path, rejects: Quarantine) -> tuple[int, int]:
    """Read a source of two features to its end; count calls of a module's functions, and batches."""
    calls = 0

    def watch(frame: FrameType, event: str, _value: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == module

    with closing(open_file(path, Declared(n_features=2))) as reader:
        sys.setprofile(watch)
        try:
            batches = sum(1 for _ in reader.batches(rejects))
        finally:
            sys.setprofile(None)
    return calls, batches


@pytest.fixture
def rejects(tmp_path: Path) -> Iterator[Quarantine]:
    """Return a quarantine whose notes are open."""
    quarantine = Quarantine()
    quarantine.open(tmp_path / "notes")
    yield quarantine
    quarantine.close()


@pytest.mark.parametrize("line", ["x,1\n", "x,1\n2,1\n", "x,y\n", "1,\n"])
def test_bad_cells_of_a_table_are_found_without_a_call_for_each(tmp_path: Path, rejects: Quarantine, line: str) -> None:
    (tmp_path / "x.csv").write_text("a,b\n" + line * (ROWS // line.count("\n")))
    calls, _ = calls_of(tables.__file__, tmp_path / "x.csv", rejects)
    assert rejects.count == ROWS // line.count("\n")
    assert calls < 100


def test_bad_lines_of_svmlight_cost_no_batch_each(tmp_path: Path, rejects: Quarantine) -> None:
    (tmp_path / "x.svm").write_text("1 9:1\n1 2:1\n1 x\n" * ROWS)
    _, batches = calls_of(svmlight.__file__, tmp_path / "x.svm", rejects)
    assert rejects.count == 2 * ROWS
    assert batches == 1


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (
            pa.array(["1", "+1", " 2 ", "1.", ".5", "1e3", "-inf", "NaN", "007"]),
            [1, 1, 2, 1, 0.5, 1e3, -np.inf, None, 7],
        ),
        (pa.array(["x", "", "1_0", "0x10", "e5", "1e", "--1", "1,0", "."]), [None] * 9),
        (pa.array([1, 2**53, 2**53 + 1, 2**64 - 1], pa.uint64()), [1, 2**53, None, None]),
        (pa.array([-1, -(2**53), -(2**53) - 1, None], pa.int64()), [-1, -(2**53), None, None]),
    ],
)
def test_a_cell_is_a_number_whatever_stands_beside_it(cells: pa.Array, kept: list[float | None]) -> None:
    for number, alone in enumerate(kept):
        for beside in (cells[number : number + 1], cells):
            found = cast_cells(beside, pa.float64())[number if len(beside) > 1 else 0].as_py()
            assert found == alone or (alone is None and (found is None or np.isnan(found)))


def test_a_source_without_a_good_row_ends_in_counts_by_reason_and_column(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "age,pay\n" + f"1,{'none':50}\n" * 30_000 + "old,2\n" * 20_000 + "1,nan\n" * 3 + "1\n" * 2
    )
    ledger, heard = Workspace.open().ledger, []
    with pytest.raises(BadSource) as caught:
        ingest(
            tmp_path / "x.csv",
            name="x",
            home=home,
            engine=ledger.engine,
            progress=lambda _phase, done, total, _rows: heard.append(done / total),
            options=IngestOptions(features=2, on_error="quarantine"),
        )
    assert str(caught.value) == (
        f"{tmp_path / 'x.csv'}: no row is left, and 50005 were set aside: "
        "30000 x has a value that is missing or not a number (column pay), "
        "20000 x has a value that is missing or not a number (column age), "
        "3 x has a value that is not finite (column pay), 2 x has another number of fields than the header; "
        "correct them, or what is declared about the source"
    )
    assert heard == sorted(heard)
    assert heard[0] < 1 == heard[-1]


def test_notes_are_counted_as_they_were_taken_and_the_rare_ones_together(tmp_path: Path, rejects: Quarantine) -> None:
    for column in range(2000):
        rejects.reject(place="row", number=column, reason="is bad; correct it", column=column)
    rejects.reject(place="row", number=9, reason="is bad; correct it", column=0)
    rejects.close()
    assert read_tally(tmp_path / "notes") == rejects.tally
    assert len(rejects.tally) == 1001
    assert describe(rejects.tally) == (
        "1000 x is bad, 2 x is bad (column 0), 1 x is bad (column 1), 1 x is bad (column 2), 1 x is bad (column 3), "
        "996 x other reasons or columns"
    )
