"""Random raw tables, whose cells are texts, Arrow values or Python objects of random types."""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

CODES = ("-9", "NA", "1.5", "2001-02-03")
"""The missing texts of every random schema."""
WORDS = ("a", "é", "b c", "007", "1.x", "nan", "-", "None", "+5", "2020-13-01")
NUMBERS = (Decimal(0), Decimal(1), Decimal(-3), Decimal("0.1"), Decimal("-2.25"), Decimal(300), Decimal("0.007"))
LARGE = (Decimal(10**16), Decimal(2**53), Decimal("1e-7"))
DAYS = tuple(dt.date(2001, 2, 1) + dt.timedelta(days) for days in (0, 1, 2, 30, 400))

type Cell = Decimal | bool | str | dt.date | None
"""The meaning of a cell: a value, which may be a missing code, or None for no value."""


@dataclass(frozen=True)
class Column:
    """A column's declaration in a schema, with the true values of its cells."""

    declared: dict[str, Any]
    cells: list[Cell]

    def texts(self, rng: random.Random, *, decimal: str) -> list[str]:
        """Return the cells as texts, each in a random valid spelling."""
        return [_spelled(cell, rng, self.declared["kind"], decimal) for cell in self.cells]

    def arrow(self, rng: random.Random, *, decimal: str) -> pa.Array:
        """Return the cells as an Arrow array of a random type that can represent them."""
        given = [cell for cell in self.cells if cell is not None]
        if given and all(isinstance(cell, dt.date) for cell in given):
            kinds = (pa.date32(), pa.date64(), *map(pa.timestamp, ("s", "ms", "us", "ns")), pa.timestamp("us", "UTC"))
            return pa.array(self.cells, pa.date32()).cast(rng.choice(kinds))
        if given and all(isinstance(cell, Decimal | bool) for cell in given) and rng.random() < 0.8:
            return _numbers(self.cells, given, rng)
        texts = [text or None if rng.random() < 0.5 else text for text in self.texts(rng, decimal=decimal)]
        array = pa.array(texts, rng.choice((pa.string(), pa.large_string(), pa.string_view())))
        return array.cast(pa.string()).dictionary_encode() if rng.random() < 0.3 else array

    def objects(self, rng: random.Random, *, decimal: str) -> list[Any]:
        """Return the cells as Python objects, each of a random type."""
        return [_object(cell, rng, self.declared["kind"], decimal) for cell in self.cells]


def columns(rng: random.Random, n_rows: int) -> list[Column]:
    """Return random columns with a given number of rows."""
    made = []
    for place in range(rng.randint(1, 4)):
        kind = rng.choice(("numeric", "categorical", "boolean", "date"))
        pool: list[Cell] = [None, *_POOLS[kind](rng)]
        cells = [rng.choice(pool) for _ in range(n_rows)]
        made.append(Column({"name": f"c{place}", "missing": "category", **_DECLARED[kind](rng)}, cells))
    return made


def _numeric(rng: random.Random) -> list[Cell]:
    more: list[Cell] = [*LARGE, True, False] if rng.random() < 0.3 else []
    return [*rng.sample(NUMBERS, 3), *more, Decimal(-9), Decimal("1.5")]


def _categorical(rng: random.Random) -> list[Cell]:
    texts: list[Cell] = [*rng.sample(WORDS, 4), "NA"]
    return [*_numeric(rng), *(texts if rng.random() < 0.5 else [])]


def _date(rng: random.Random) -> list[Cell]:
    return [*rng.sample(DAYS, 3), dt.date(2001, 2, 3)]


_POOLS: dict[str, Callable[[random.Random], list[Cell]]] = {
    "numeric": _numeric,
    "categorical": _categorical,
    "boolean": lambda _: [True, False],
    "date": _date,
}
_DECLARED: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "numeric": lambda rng: {"kind": "numeric", "range": [-3, 301], "scale": rng.choice(("unit", "symmetric", "none"))},
    "categorical": lambda rng: {
        "kind": "categorical",
        "values": rng.sample(("0.10", "1.00", "-3", "1e16", "300.0", "1e-07", "é", "007", "nan"), 4),
        "others": rng.choice(("category", "zero")),
    },
    "boolean": lambda rng: {"kind": "boolean"},
    "date": lambda rng: {
        "kind": "date",
        "range": ["2001-01-01", "2002-01-01"],
        "formats": rng.choice((["%Y-%m-%d", "%d.%m.%Y"], ["%d.%m.%Y", "%Y-%m-%d", "%Y%m%d"])),
    },
}


def _spelled(cell: Cell, rng: random.Random, kind: str, decimal: str) -> str:
    if cell is None:
        return rng.choice(("", " ", "NA", " NA"))
    if isinstance(cell, bool):
        text = rng.choice(("true", "True", "TRUE", "1", "1.0") if cell else ("false", "False", "0", "0.00", "-0"))
        return text.replace(".", decimal)
    if isinstance(cell, dt.date):
        return rng.choice(
            (f"{cell:%Y-%m-%d}", f"{cell:%d.%m.%Y}", f"{cell:%Y-%m-%d} 00:00:00", f"{cell:%Y-%m-%d} 17:05:01.25")
        )
    if isinstance(cell, Decimal):
        forms = [f"{cell:f}", f"{cell:e}", f"{cell:E}", f"{cell:.20f}", repr(float(cell))]
        forms += [f"+{cell:f}", f"00{cell:f}"] if kind == "numeric" and cell >= 0 else []
        return f"{rng.choice(('', ' '))}{rng.choice(forms)}".replace(".", decimal)
    return rng.choice((cell, f" {cell}", f"{cell}\t", cell.replace("é", "e\u0301")))


def _numbers(cells: list[Cell], given: list[Any], rng: random.Random) -> pa.Array:
    """Return the number cells as an Arrow array of a random type that can represent each of them."""
    if all(isinstance(cell, bool) for cell in given) and rng.random() < 0.5:
        return pa.array(cells, pa.bool_())
    values = [Decimal(cell) if isinstance(cell, Decimal | bool) else None for cell in cells]
    kinds: list[pa.DataType] = [pa.float64(), pa.decimal256(60, 20)]
    if all(abs(value) < 1000 for value in values if value is not None):
        kinds += [pa.float16(), pa.float32(), pa.decimal128(20, 7), pa.float32()]
    if all(value == int(value) for value in values if value is not None):
        kinds += [kind for kind in _INTEGERS if all(int(value) in _ENDS[kind] for value in values if value is not None)]
    kind = rng.choice(kinds)
    if pa.types.is_decimal(kind):
        return pa.array(values, kind)
    if pa.types.is_integer(kind):
        array = pa.array([None if value is None else int(value) for value in values], kind)
        return array.dictionary_encode() if rng.random() < 0.3 else array
    empty = np.nan if rng.random() < 0.5 else None
    width = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}[kind]
    return pa.array([empty if value is None else width(float(value)) for value in values], kind)


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_ENDS = {
    kind: range(-(1 << kind.bit_width - 1) if str(kind)[0] == "i" else 0, 1 << kind.bit_width - (str(kind)[0] == "i"))
    for kind in _INTEGERS
}


def _object(cell: Cell, rng: random.Random, kind: str, decimal: str) -> Any:
    if cell is None:
        return rng.choice((None, float("nan"), "", np.datetime64("NaT", "D"), Decimal("NaN")))
    choices: list[Any] = [_spelled(cell, rng, kind, decimal)]
    if isinstance(cell, bool):
        choices += [cell, np.bool_(cell), int(cell), float(cell)]
    elif isinstance(cell, Decimal):
        choices += [cell, float(cell), np.float64(cell), *([int(cell)] if cell == int(cell) else [])]
        choices += [np.float32(cell)] if abs(cell) < 1000 else []
    elif isinstance(cell, dt.date):
        choices += [
            cell,
            np.datetime64(cell),
            dt.datetime(cell.year, cell.month, cell.day, 5),
            dt.datetime(cell.year, cell.month, cell.day, 5, tzinfo=dt.UTC),
        ]
    return rng.choice(choices)
