"""A cell of every Arrow type is cast exactly, becomes null, or is refused: none fails in Arrow, none becomes ticks."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import BadSource
from storage.schemas.cells import cast_cells

KINDS = (pa.int64(), pa.float64())
DECIMALS = [pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal128(5, 2), pa.decimal128(38, 30), pa.decimal256(76, 70)]
NUMBERS = [
    *(pa.array([Decimal(3), Decimal("1.5"), None], kind) for kind in DECIMALS),
    pa.array(np.array([3.0, 1.5, np.nan], np.float16)),
    *(pa.array([3.0, 1.5, None], kind) for kind in (pa.float32(), pa.float64())),
    *(pa.array(["3", "1.5", "x"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    pa.array(["3", "1.5", "x"]).dictionary_encode(),
]
OTHERS = [
    *(pa.array([b"3"], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view())),
    pa.array([date(2026, 1, 5)]),
    *(pa.array([datetime(2026, 1, 5, tzinfo=UTC)], pa.timestamp(unit, "UTC")) for unit in ("s", "ns")),
    *(pa.array([timedelta(1)], pa.duration(unit)) for unit in ("s", "ns")),
    pa.array([time(1)]),
    pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    *(pa.array([[1]], kind(pa.int64())) for kind in (pa.list_, pa.large_list, pa.list_view)),
    pa.array([{"a": 1}]),
]


@pytest.mark.parametrize("cells", NUMBERS, ids=lambda cells: str(cells.type))
def test_numbers_of_every_type_are_cast_exactly(cells: pa.Array) -> None:
    whole, real = (plain(cast_cells(cells, kind)) for kind in KINDS)
    assert (whole, real) == ([3, None, None], [3.0, 1.5, None])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("cells", OTHERS, ids=lambda cells: str(cells.type))
def test_cells_that_are_no_numbers_are_refused(cells: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(BadSource, match=r"a column holds .*; it must be \w+; convert it"):
        cast_cells(cells, kind)


def plain(cells: pa.Array) -> list[Any]:
    return [None if cell is None or np.isnan(cell) else cell for cell in cells.to_pylist()]
