"""Encoder of a schema: cells follow the declared rules of their kind, row by row, within the public norm bound.

The decoder reverses the encoder, and finds the nearest allowed values of any numbers.
"""

import datetime as dt
import json
import subprocess
import sys
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BadSource, Invalid, NotInstalled
from dpca.schemas.encoder import Encoder, decode
from dpca.schemas.schema import Schema


def encoder(*columns: dict[str, Any], **more: Any) -> Encoder:
    return Encoder.of({"columns": [{"name": "x", **column} for column in columns], **more})


def encoded(column: dict[str, Any], cells: Any, **more: Any) -> list[list[float]]:
    rows: list[list[float]] = encoder(column, **more).transform(pa.table({"x": cells})).tolist()
    return rows


NUMERIC = {"kind": "numeric", "range": [0, 10]}


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(25, 2), pa.string(), pa.large_string()]
)
def test_numbers_of_every_type_are_scaled_to_the_range(kind: pa.DataType) -> None:
    cells = pa.array([0, 5, 10, 20]).cast(kind)
    assert encoded(NUMERIC, cells) == [[0], [0.5], [1], [1]]
    assert encoded({**NUMERIC, "scale": "symmetric"}, cells) == [[-1], [0], [1], [1]]
    assert encoded({**NUMERIC, "scale": "none"}, cells) == [[0], [5], [10], [10]]


@pytest.mark.parametrize("text", ["", "x", "1,5", "nan", "inf", "1 2", "--1", "0x1", "1e", "1_0", "٣", "1e999"])
def test_text_that_is_not_a_finite_number_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(Invalid, match=r"^row 1, column 'x', has a (value that is not a finite|missing)") as caught:
        encoded(NUMERIC, pa.array(["1", text]))
    assert "1,5" not in str(caught.value)


def test_with_a_decimal_comma_a_point_is_refused() -> None:
    text = {"text": {"decimal": ",", "delimiter": ";"}}
    assert encoded(NUMERIC, pa.array(["2,5", "-1e1", " 5 ", "1,"]), **text) == [[0.25], [0], [0.5], [0.1]]
    for wrong in ("2.5", "1.000,5", "1,0,0"):
        with pytest.raises(Invalid, match="not a finite number"):
            encoded(NUMERIC, pa.array([wrong]), **text)


@pytest.mark.parametrize("cells", [pa.array([None, 4.0]), pa.array([float("nan"), 4.0]), pa.array(["NA", "4"])])
def test_a_missing_value_follows_its_public_rule(cells: pa.Array) -> None:
    more = {"missing_texts": ["NA"]}
    with pytest.raises(Invalid, match="row 0, column 'x', has a missing value; the schema refuses such rows"):
        encoded(NUMERIC, cells, **more)
    assert encoded({**NUMERIC, "missing": "category"}, cells, **more) == [[0, 1], [0.4, 0]]
    assert encoded({**NUMERIC, "missing": {"value": 7}}, cells, **more) == [[0.7], [0.4]]


def test_a_column_of_nulls_has_no_type_and_is_missing() -> None:
    for column in (
        NUMERIC,
        {"kind": "categorical", "values": ["a"], "others": "refuse"},
        {"kind": "boolean"},
        {"kind": "date", "range": ["2020-01-01", "2021-01-01"]},
        {"kind": "vector", "length": 1, "norm": 1},
    ):
        rows = encoded({**column, "missing": "category"}, pa.nulls(2))
        assert rows == [[0, 1], [0, 1]]


def test_values_outside_the_range_are_clipped_or_refused() -> None:
    cells = pa.array([1, 11])
    assert encoded(NUMERIC, cells) == [[0.1], [1]]
    with pytest.raises(Invalid, match="row 1, column 'x', has a value outside the declared range"):
        encoded({**NUMERIC, "outside": "refuse"}, cells)


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["1", "2", "3"]),
        pa.array([1, 2, 3]),
        pa.array([1.0, 2.0, 3.0]),
        pa.array(["1", "2", "3"]).dictionary_encode(),
    ],
    ids=["text", "integers", "floats", "dictionary"],
)
def test_categories_of_every_type_are_the_declared_words(cells: pa.Array) -> None:
    listed = {"kind": "categorical", "values": [2, 1]}
    assert encoded({**listed, "others": "category"}, cells) == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert encoded({**listed, "others": "zero"}, cells) == [[0, 1], [1, 0], [0, 0]]
    with pytest.raises(Invalid, match="row 2, column 'x', has a value that the schema does not list"):
        encoded({**listed, "others": "refuse"}, cells)


def test_booleans_are_typed_numbered_or_worded() -> None:
    boolean = {"kind": "boolean"}
    for cells in (pa.array([True, False]), pa.array([1, 0]), pa.array(["true", "0"])):
        assert encoded(boolean, cells) == [[1], [0]]
    worded = {**boolean, "when_true": ["ja"], "when_false": ["nein"], "missing": {"value": True}}
    assert encoded(worded, pa.array(["ja", "nein", ""])) == [[1], [0], [1]]
    with pytest.raises(Invalid, match="does not list"):
        encoded(worded, pa.array(["Ja"]))


DATES = {"kind": "date", "range": ["2020-01-01", "2020-01-11"], "formats": ["%d.%m.%Y", "%Y-%m-%d"]}


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["03.01.2020", "2020-01-11", "1.1.1900"]),
        pa.array([dt.date(2020, 1, 3), dt.date(2020, 1, 11), dt.date(1900, 1, 1)]),
        pa.array([dt.date(2020, 1, 3), dt.date(2020, 1, 11), dt.date(1900, 1, 1)], pa.date64()),
        pa.array([dt.datetime(2020, 1, 3, 23, 59), dt.datetime(2020, 1, 11, 12), dt.datetime(1900, 1, 1)]),
        pa.array(
            [dt.datetime(2020, 1, 3), dt.datetime(2020, 1, 11), dt.datetime(1900, 1, 1)], pa.timestamp("ms", "UTC")
        ),
    ],
    ids=["text", "days", "date64", "moments", "zoned"],
)
def test_dates_of_every_type_are_days_of_the_range(cells: pa.Array) -> None:
    assert encoded(DATES, cells) == [[0.2], [1], [0]]


@pytest.mark.parametrize("text", ["31.02.2020", "2020-1-32", "x", "01/02/2020", "2020-01-01T00:00"])
def test_text_that_is_not_a_date_in_the_formats_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="row 0, column 'x', has a value that no declared format reads as a date"):
        encoded(DATES, pa.array([text]))


VECTOR = {"kind": "vector", "length": 2, "range": [-1, 1]}


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2), pa.list_(pa.int8())],
    ids=str,
)
def test_lists_of_every_type_are_vectors(kind: pa.DataType) -> None:
    cells = pa.array([[0, 1], None, [-1, 3]]).cast(kind)
    assert encoded({**VECTOR, "missing": "zero"}, cells) == [[0.5, 1], [0, 0], [0, 1]]
    assert encoded({**VECTOR, "missing": "category"}, cells[1:]) == [[0, 0, 1], [0, 1, 0]]


def test_a_vector_of_another_length_or_with_a_missing_entry_is_refused() -> None:
    for cells, rule in (
        ([[1.0, 2.0, 3.0]], "has a list whose length differs"),
        ([[]], "has a list whose length differs"),
        ([[1.0, None]], "has a missing value"),
        ([[float("inf"), 0.0]], "not a finite number"),
    ):
        with pytest.raises(Invalid, match=rule):
            encoded(VECTOR, pa.array(cells, pa.list_(pa.float64())))
    longer = {"kind": "vector", "length": 2, "norm": 5, "outside": "refuse"}
    assert encoded(longer, pa.array([[3.0, 4.0]])) == [[0.6, 0.8]]
    with pytest.raises(Invalid, match="outside the declared range"):
        encoded(longer, pa.array([[3.0, 5.0]]))


@pytest.mark.parametrize("norm", [1e-300, 1.0, 1e300])
def test_a_vector_whose_squared_norm_overflows_is_clipped_too(norm: float) -> None:
    rows = encoded({"kind": "vector", "length": 2, "norm": norm}, pa.array([[1.7e308, -1.7e308], [0.0, -1.7e308]]))
    np.testing.assert_allclose(rows, [[0.5**0.5, -(0.5**0.5)], [0.0, -1.0]], rtol=1e-12)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (NUMERIC, pa.array([[1]])),
        (NUMERIC, pa.array([dt.date(2020, 1, 1)])),
        (DATES, pa.array([1], pa.duration("s"))),
        (VECTOR, pa.array([1.0])),
        (VECTOR, pa.array([["a", "b"]])),
        (DATES, pa.array([b"x"], pa.binary_view())),
        ({"kind": "boolean"}, pa.array([None], pa.month_day_nano_interval())),
        ({"kind": "categorical", "values": ["a"], "others": "zero"}, pa.array([[1]])),
    ],
)
def test_a_column_of_another_type_is_refused_in_one_line(column: dict[str, Any], cells: pa.Array) -> None:
    with pytest.raises(Invalid, match=r"^column 'x': it holds [^\n]*; convert it"):
        encoded(column, cells)
    with pytest.raises(BadSource, match=r"^column 'x': it holds"):
        encoder(column).encode({"x": cells})


CELLS = st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70), st.text(max_size=4)).map(
    lambda value: None if value is None else str(value)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CELLS, min_size=1, max_size=8), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_encoded_rows_are_within_the_public_bound_and_independent_of_other_rows(
    cells: list[str | None], low: float, width: float
) -> None:
    columns = [
        {"kind": "numeric", "name": "n", "range": [low, low + width], "scale": "none", "missing": "category"},
        {"kind": "numeric", "name": "s", "range": [low, low + width], "scale": "symmetric", "missing": {"value": low}},
        {"kind": "categorical", "name": "c", "values": ["0", "1"], "others": "category", "missing": "category"},
    ]
    one = Encoder.of({"columns": columns})
    table = {name: pa.array(cells, pa.string()) for name in "nsc"}
    rows, faults = one.encode(table)
    good = ~np.logical_or.reduce([fault.rows for fault in faults] or [np.zeros(len(cells), bool)])
    assert np.isfinite(rows).all()
    assert (np.linalg.norm(rows[good], axis=1) <= one.norm_at_most * (1 + 1e-12)).all()
    for row in range(len(cells)):
        alone, _ = one.encode({name: column[row : row + 1] for name, column in table.items()})
        assert alone.tobytes() == rows[row : row + 1].tobytes()


def test_frames_of_pandas_give_the_same_bits() -> None:
    one = Encoder.of(
        {
            "columns": [
                {"name": "a", "kind": "numeric", "range": [0, 3], "missing": "category"},
                {"name": "b", "kind": "categorical", "values": ["x", "7"], "others": "zero", "missing": "zero"},
                {"name": "who", "kind": "id"},
                {"name": "junk", "kind": "drop"},
            ]
        }
    )
    table = pa.table({"a": [1, None, 2], "b": ["x", None, "7"]})
    expected = one.transform(table)
    frame = table.to_pandas()
    for found in (
        frame,
        frame.convert_dtypes(),
        frame.astype({"b": "category"}),
        frame[["b", "a"]].assign(junk=[{}, 1, "x"]),
    ):
        assert one.transform(found).tobytes() == expected.tobytes()
    with pytest.raises(Invalid, match="must have column names"):
        one.transform(np.ones((3, 2)))
    with pytest.raises(Invalid, match="column 'b' is missing"):
        one.transform(frame[["a"]])
    with pytest.raises(Invalid, match="holds objects that are not text, numbers or dates"):
        one.transform(frame.assign(b=[1, "x", {}]))
    with pytest.raises(Invalid, match="two columns have the same name"):
        one.transform(pd.concat([frame, frame], axis=1))


def test_the_encoder_needs_neither_database_nor_scheduler_nor_compiler() -> None:
    code = """
import json, sys
from dpca.artifacts.subspace import PrivateSubspace
import numpy as np
facts = {"columns": [{"name": "a", "kind": "numeric", "range": [0, 2]}]}
subspace = PrivateSubspace(components=np.eye(1), manifest={"feature_names": ["a"], "encoder": facts})
assert subspace.transform([[0.5]]).tolist() == [[0.5]]
light = [name for name in ("pyarrow", "pydantic", "yaml") if name in sys.modules]
import pandas as pd
scores = subspace.transform(pd.DataFrame({"a": [1]})).tolist()
names = ("duckdb", "dask", "sqlalchemy", "prefect", "numba", "zarr", "distributed")
heavy = [name for name in names if name in sys.modules]
print(json.dumps([light, scores, heavy]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], [[0.5]], []]


def test_without_its_libraries_raw_rows_are_refused_in_one_line_and_arrays_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"columns": [{"name": "a", "kind": "numeric", "range": [0, 2]}]}
    subspace = PrivateSubspace(components=np.eye(1), manifest={"feature_names": ["a"], "encoder": facts})
    monkeypatch.delitem(sys.modules, "dpca.schemas.encoder")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert subspace.transform([[0.5]]).tolist() == [[0.5]]
    with pytest.raises(
        NotInstalled, match=r"^a raw table needs pyarrow, which is not installed; install dpca-pipeline\[tables\]$"
    ):
        subspace.transform(pd.DataFrame({"a": [1]}))


def test_an_invalid_encoder_is_refused_in_one_line() -> None:
    for facts in ({}, {"columns": "x"}, {"version": 2, "columns": []}, {"columns": [{"kind": "later", "name": "x"}]}):
        with pytest.raises(Invalid, match=r"^the encoder of this release is not a schema of this version: [^\n]+$"):
            Encoder.of(facts)


SCHEMA = Schema.parse(
    {
        "columns": [
            {"name": "age", "kind": "numeric", "range": [0, 100], "missing": "category"},
            {"name": "height", "kind": "numeric", "range": [1.0, 2.5], "scale": "symmetric"},
            {"name": "id", "kind": "drop"},
            {"name": "born", "kind": "date", "range": ["1990-01-01", "2020-01-01"]},
            {"name": "owner", "kind": "boolean"},
            {"name": "rich", "kind": "boolean", "when_true": ["yes", "y"], "when_false": ["no"], "missing": "category"},
            {"name": "seen", "kind": "date", "range": ["1990-01-01", "2020-01-01"], "formats": ["%d.%m.%Y"]},
            {"name": "job", "kind": "categorical", "values": ["a", "b"], "others": "category", "missing": "category"},
            {"name": "point", "kind": "vector", "length": 2, "range": [-1, 1]},
            {"name": "unit", "kind": "vector", "length": 2, "norm": 2.0},
        ]
    }
)
TABLE = pa.table(
    {
        "age": [50.0, None, 0.5],
        "height": [1.5, 2.25, 1.0],
        "born": [date(2000, 2, 29), date(1990, 1, 1), date(2020, 1, 1)],
        "owner": [True, False, True],
        "rich": ["yes", "no", None],
        "seen": ["29.02.2000", "01.01.1990", "01.01.2020"],
        "job": ["a", None, "b"],
        "point": [[0.5, -0.25], [1.0, 0.0], [0.0, -1.0]],
        "unit": [[2.0, 0.0], [0.5, 1.0], [0.0, 0.0]],
    }
)


def test_encoded_rows_are_decoded_to_the_rows_that_they_came_from() -> None:
    assert decode(SCHEMA, Encoder(SCHEMA).transform(TABLE)).to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_any_numbers_become_values_that_the_schema_allows(seed: int) -> None:
    rows = 3.0 * np.random.default_rng(seed).standard_normal((200, len(SCHEMA.feature_names)))
    table = decode(SCHEMA, rows)
    again = Encoder(SCHEMA).transform(table)
    assert np.allclose(Encoder(SCHEMA).transform(decode(SCHEMA, again)), again)
    assert set(table["job"].to_pylist()) == {"a", "b", "(other)", None}


def test_numbers_between_two_days_become_the_nearest_day() -> None:
    column = {"name": "born", "kind": "date", "range": ["2000-01-01", "2000-01-11"], "scale": "symmetric"}
    days = np.array([-9.0, 0.4, 3.6, 9.4, 9.6, 99.0])  # after the first day
    found = decode(Schema.parse({"columns": [column]}), (days[:, None] / 5.0 - 1.0))
    assert [day.day for day in found["born"].to_pylist()] == [1, 1, 5, 10, 11, 11]


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(Invalid, match="pass one column per feature"):
        decode(SCHEMA, np.zeros((1, 3)))
