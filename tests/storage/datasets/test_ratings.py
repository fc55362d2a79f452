"""Ratings: what several values of one user and item become, zeros that stay, and triplets without values."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import sqlalchemy as sa
import zarr

from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.open_source import open_source
from storage.errors import BadSource, Invalid
from storage.formats.declared import Declared
from storage.formats.rejects import Rejects, quarantine_notes
from storage.workspace import Workspace
from tests.storage.test_schema import Take, records, take

__all__ = ["take"]

ROLES = {"row": "user", "column": "item", "value": "rating"}
TEXT = "user,item,rating\nann,0,4\nbob,2,3\nann,1,0\nann,0,4\nann,2,5\nbob,0,0\nann,0,1\n"


@pytest.mark.parametrize(
    ("duplicates", "merged"), [("sum", 9.0), ("mean", 3.0), ("last", 1.0)], ids=["sum", "mean", "last"]
)
@pytest.mark.parametrize("keep_zeros", [False, True], ids=["zeros dropped", "zeros kept"])
def test_duplicates_and_zeros_become_what_was_asked(
    take: Take, *, duplicates: str, merged: float, keep_zeros: bool
) -> None:
    report, dataset = take(TEXT, features=3, columns=ROLES, duplicates=duplicates, keep_zeros=keep_zeros)
    ann = [(0, merged), (1, 0.0), (2, 5.0)] if keep_zeros else [(0, merged), (2, 5.0)]
    bob = [(0, 0.0), (2, 3.0)] if keep_zeros else [(2, 3.0)]
    assert records(dataset) == [[ann], [bob]]
    assert (report.records, report.rows, dataset.manifest.privacy_unit) == (2, 2, "row")
    assert dataset.verify() == report.content_digest


def test_the_sum_without_zeros_is_the_default(take: Take) -> None:
    plain, _ = take(TEXT, features=3, columns=ROLES)
    stated, _ = take(TEXT, features=3, columns=ROLES, duplicates="sum", keep_zeros=False)
    kept, _ = take(TEXT, features=3, columns=ROLES, keep_zeros=True)
    assert plain.content_digest == stated.content_digest != kept.content_digest


def engine_of(_home: Path) -> sa.Engine:
    return Workspace.open().ledger.engine


def test_refused_duplicates_are_a_bad_row(take: Take) -> None:
    with pytest.raises(BadSource, match=r"x\.csv: line 5: it has the row and column of line 2; drop"):
        take(TEXT, features=3, columns=ROLES, duplicates="refuse")
    report, dataset = take(TEXT, features=3, columns=ROLES, duplicates="refuse", on_error="quarantine")
    assert (records(dataset), report.quarantined) == ([[[]], [[(2, 3.0)]]], 1)
    once, dataset = take("user,item,rating\nann,0,4\nann,1,4\n", features=2, columns=ROLES, duplicates="refuse")
    assert (once.quarantined, records(dataset)) == (0, [[[(0, 4.0), (1, 4.0)]]])


@pytest.mark.parametrize("packed", ["csv", "parquet"])
def test_without_a_column_of_values_each_is_one(take: Take, tmp_path: Path, packed: str) -> None:
    source: Any = "user,item\nann,0\nbob,1\nann,1\nann,0\n"
    if packed == "parquet":
        source = tmp_path / "x.parquet"
        pq.write_table(pa.table({"user": ["ann", "bob", "ann", "ann"], "item": [0, 1, 1, 0]}), source)
    named = {"row": "user", "column": "item"}
    report, dataset = take(source, features=2, columns=named, duplicates="last")
    assert records(dataset) == [[[(0, 1.0), (1, 1.0)]], [[(1, 1.0)]]]
    assert dataset.manifest.dtype == "float64"
    assert dataset.verify() == report.content_digest
    with pytest.raises(BadSource, match="no column 'stars'"):
        take(source, features=2, columns={**named, "value": "stars"})
    with pytest.raises(BadSource, match="no column 'value'"):
        take(source, features=2, columns={**named, "value": "value"})


def test_a_mean_of_whole_numbers_is_stored_as_a_float_and_never_rounded_to_a_declared_integer(
    take: Take, tmp_path: Path
) -> None:
    source = tmp_path / "x.parquet"
    pq.write_table(pa.table({"user": [7, 7], "item": [0, 0], "rating": np.array([4, 5], np.int8)}), source)
    _, dataset = take(source, features=1, columns=ROLES, duplicates="mean")
    assert (records(dataset), dataset.manifest.dtype) == ([[[(0, 4.5)]]], "float64")
    with pytest.raises(BadSource, match="not whole"):
        take(source, features=1, columns=ROLES, duplicates="mean", dtype="int8")


def test_a_zero_that_a_mean_gives_is_kept_without_its_sign(take: Take) -> None:
    text = "user,item,rating\nann,0,-1\nann,0,1\nann,1,-0.0\n"
    _, dataset = take(text, features=2, columns=ROLES, duplicates="mean", keep_zeros=True)
    assert records(dataset) == [[[(0, 0.0), (1, 0.0)]]]
    assert [math.copysign(1.0, value) for value in dataset.read(0).values] == [1.0, 1.0]


def test_a_declared_row_without_entries_is_still_empty(take: Take) -> None:
    entries = "%%MatrixMarket matrix coordinate real general\n3 2 2\n1 1 0\n3 1 2\n"
    _, dataset = take(entries, file="x.mtx", keep_zeros=True)
    assert records(dataset) == [[[(0, 0.0)]], [[]], [[(0, 2.0)]]]


@pytest.mark.parametrize("asked", [{"duplicates": "last"}, {"keep_zeros": True}], ids=["duplicates", "zeros"])
def test_a_table_whose_columns_come_once_refuses_both(take: Take, asked: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"of (triplets|formats that list the entries)"):
        take("a,b\n1,2\n", features=2, **asked)


def test_zeros_of_whole_rows_are_not_kept(take: Take) -> None:
    with pytest.raises(Invalid, match="keep_zeros is of triplets"):
        take("1 1:1\n", file="x.svm", features=1, keep_zeros=True)


@pytest.mark.parametrize(
    ("second", "line", "other"), [("bob,1,1\nann,0,5\n", 3, "2 of .*a.csv"), ("ann,2,1\n\nbob,2,2\nann,2,2\n", 5, "2")]
)
def test_a_second_rating_is_named_with_the_file_and_line_of_both(
    home: Path, tmp_path: Path, second: str, line: int, other: str
) -> None:
    (tmp_path / "a.csv").write_text("user,item,rating\nann,0,4\nbob,0,3\nann,1,0\n")
    (tmp_path / "b.csv").write_text("user,item,rating\n" + second)
    options = IngestOptions(features=3, columns=ROLES, duplicates="refuse")
    with pytest.raises(BadSource, match=rf"b\.csv: line {line}: it has the row and column of line {other};") as refused:
        ingest([tmp_path / "a.csv", tmp_path / "b.csv"], name="x", home=home, engine=engine_of(home), options=options)
    assert "ann" not in str(refused.value)
    quarantined = replace(options, on_error="quarantine")
    report = ingest(
        [tmp_path / "a.csv", tmp_path / "b.csv"], name="x", home=home, engine=engine_of(home), options=quarantined
    )
    notes = quarantine_notes(home / "datasets/x" / report.snapshot).read_text().splitlines()
    assert [note.rsplit("/", 1)[-1].split(",")[:3] for note in notes[1:]] == [["b.csv", "line", str(line)]]


REPEATED = {
    "x.svm": "1 1:1 3:2 1:4\n1 2:1\n",
    "x.npz": sp.csr_array((np.array([1.0, 2, 4, 1]), np.array([0, 2, 0, 1]), np.array([0, 3, 4])), shape=(2, 3)),
    "x.zarr": None,
    "x.h5ad": None,
}


def repeated(folder: Path, name: str) -> Path:
    """Write a matrix whose first row has two values in its first column."""
    path, matrix = folder / name, REPEATED["x.npz"]
    if name == "x.svm":
        path.write_text(REPEATED[name])
        return path
    if name == "x.npz":
        sp.save_npz(path, matrix)
        return path
    root: Any = h5py.File(path, "w") if name == "x.h5ad" else zarr.open_group(path, mode="w")
    group = root.create_group("X")
    group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", [2, 3]
    for part in ("indptr", "indices", "data"):
        if name == "x.h5ad":
            group.create_dataset(part, data=getattr(matrix, part))
        else:
            group.create_array(part, data=getattr(matrix, part))
    if name == "x.h5ad":
        root.close()
    return path


@pytest.mark.parametrize("name", REPEATED)
def test_a_column_that_comes_twice_in_a_whole_row_is_refused_or_merged_as_asked(
    take: Take, tmp_path: Path, name: str
) -> None:
    path, given = repeated(tmp_path, name), {"features": 3}
    place = "line 1" if name == "x.svm" else "row 0"
    with pytest.raises(BadSource, match=f"{place} has two values in one column; drop one, or choose --duplicates"):
        take(path, **given)
    for duplicates, merged in (("sum", 5.0), ("mean", 2.5), ("last", 4.0)):
        _, dataset = take(path, duplicates=duplicates, **given)
        assert records(dataset) == [[[(0, merged), (2, 2.0)]], [[(1, 1.0)]]]
        assert dataset.manifest.duplicates == duplicates
    report, dataset = take(path, on_error="quarantine", **given)
    assert (records(dataset), report.quarantined, dataset.manifest.duplicates) == ([[[]], [[(1, 1.0)]]], 1, "whole")
    np.save(tmp_path / "owners.npy", [7, 7])
    with pytest.raises(BadSource, match=f"{place} has two values in one column"):
        take(path, units=str(tmp_path / "owners.npy"), **given)
    _, dataset = take(path, units=str(tmp_path / "owners.npy"), duplicates="last", **given)
    assert records(dataset) == [[[(0, 4.0), (2, 2.0)], [(1, 1.0)]]]


def test_a_rule_outside_the_list_is_refused() -> None:
    with pytest.raises(Invalid, match="duplicates='first' is not one of sum, mean, last, refuse"):
        IngestOptions(duplicates="first")


def test_the_rule_enters_the_request_that_a_killed_ingest_is_continued_by(tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    source.write_text(TEXT)

    def request(**asked: Any) -> dict[str, Any]:
        options = IngestOptions(features=3, columns=ROLES, **asked)
        declared = Declared.of(n_features=3, columns=ROLES)
        with open_source(source, options=options, declared=declared, rejects=Rejects()) as opened:
            return opened.request(options, block_nnz=100)

    plain = request()
    assert plain == request(duplicates="sum", keep_zeros=False)
    assert request(duplicates="last") not in (plain, request(duplicates="mean"))
    assert request(keep_zeros=True) != plain
