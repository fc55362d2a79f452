"""Ratings: what several values of one user and item become, zeros that stay, and triplets without values."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets.ingest_options import IngestOptions
from storage.datasets.open_source import open_source
from storage.errors import BadSource, Invalid
from storage.formats.declared import Declared
from storage.formats.rejects import Rejects
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


def test_refused_duplicates_are_a_bad_row(take: Take) -> None:
    with pytest.raises(BadSource, match="has two values in one column; drop one, or choose --duplicates"):
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
def test_rows_that_are_whole_already_refuse_both(take: Take, asked: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="of triplets"):
        take("1 1:1\n", file="x.svm", features=1, **asked)
    with pytest.raises(Invalid, match="of triplets"):
        take("a,b\n1,2\n", features=2, **asked)


def test_a_rule_outside_the_list_is_refused() -> None:
    with pytest.raises(Invalid, match="duplicates='first' is not one of sum, mean, last, refuse"):
        IngestOptions(duplicates="first")


def test_only_a_rule_that_was_asked_enters_the_request_that_a_killed_ingest_is_continued_by(tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    source.write_text(TEXT)

    def request(**asked: Any) -> dict[str, Any]:
        options = IngestOptions(features=3, columns=ROLES, **asked)
        declared = Declared.of(n_features=3, columns=ROLES)
        with open_source(source, options=options, declared=declared, rejects=Rejects()) as opened:
            return opened.request(options, block_nnz=100)

    plain = request()
    assert set(plain) == {"files", "declared", "rows", "scale"}, "requests of older versions"
    assert set(plain["declared"]) == {"n_features", "names", "format", "columns", "columns_named", "unit_column"}
    assert plain == request(duplicates="sum", keep_zeros=False)
    assert request(duplicates="last") not in (plain, request(duplicates="mean"))
    assert request(keep_zeros=True) != plain
