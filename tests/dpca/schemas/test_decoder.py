"""Decoding of encoded rows by a schema: the reverse of the encoder, and the nearest allowed values of any numbers."""

from datetime import date

import numpy as np
import pyarrow as pa
import pytest

from dpca.errors import Invalid
from dpca.schemas.decoder import decode
from dpca.schemas.encoder import Encoder
from dpca.schemas.schema import Schema

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
