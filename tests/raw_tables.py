"""Five raw tables of public shapes, each with its schema, made by code: what a user has before anything is encoded."""

import csv
import datetime as dt
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REPEATED = 12
"""How often the rows of a table follow each other, so that there is something to fit."""


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """A raw table.

    Attributes
    ----------
    suffix : str, of its file
    schema : str, YAML
    columns : tuple of (name, values), as the file has them
    encoded : list of rows, what the schema makes of the rows
    names : tuple of str, of the encoded features
    norm : float, the public bound
    needed : str, a column that cannot be missing
    ids : list or None, of the rows
    """

    suffix: str
    schema: str
    columns: tuple[tuple[str, Any], ...]
    encoded: list[list[float]]
    names: tuple[str, ...]
    norm: float
    needed: str
    ids: list[Any] | None = None
    has_header: bool = True
    text: Callable[[Sequence[str], list[list[str]], bool], bytes] | None = None

    def write(self, folder: Path, *, order: Sequence[int] | None = None, without: str | None = None) -> Path:
        """Write the file, its columns in another order, or without one."""
        path = folder / f"raw{self.suffix}"
        chosen = [self.columns[at] for at in (range(len(self.columns)) if order is None else order)]
        chosen = [(name, values) for name, values in chosen if name != without]
        if self.text is None:
            table = pa.table({name: pa.concat_arrays([values] * REPEATED) for name, values in chosen})
            pq.write_table(table, path)
        else:
            rows = [list(row) for row in zip(*(values for _, values in chosen), strict=True)] * REPEATED
            path.write_bytes(self.text([name for name, _ in chosen], rows, self.has_header))
        return path

    def write_schema(self, folder: Path) -> Path:
        """Write the schema."""
        path = folder / "schema.yaml"
        path.write_text(self.schema, encoding="utf-8")
        return path

    @property
    def rows(self) -> Any:
        """The encoded rows of the file."""
        return np.array(self.encoded * REPEATED)


def _written(separator: str, delimiter: str, encoding: str) -> Callable[[Sequence[str], list[list[str]], bool], bytes]:
    def text(names: Sequence[str], rows: list[list[str]], has_header: bool) -> bytes:  # noqa: FBT001
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
        writer.writerows([*([names] if has_header else []), *rows])
        return buffer.getvalue().replace(delimiter, separator).encode(encoding)

    return text


CENSUS = RawTable(
    suffix=".csv",
    text=_written(", ", ",", "utf-8"),
    schema="""
missing_texts: ["?"]
columns:
  - {name: age, kind: numeric, range: [0, 100]}
  - {name: workclass, kind: categorical, values: [Private, State-gov], others: category, missing: category}
  - {name: fnlwgt, kind: drop}
  - {name: sex, kind: categorical, values: [Female, Male], others: refuse}
  - {name: capital-gain, kind: numeric, range: [0, 1000], scale: none}
  - {name: income, kind: boolean, when_true: [">50K"], when_false: ["<=50K"]}
""",
    columns=(
        ("age", ["39", "50", "120", "17"]),
        ("workclass", ["State-gov", "Private", "?", "Never-worked"]),
        ("fnlwgt", ["77516", "83311", "SECRET", "?"]),
        ("sex", ["Male", "Male", "Female", "Female"]),
        ("capital-gain", ["2174", "0", "12.5", "-3"]),
        ("income", ["<=50K", ">50K", ">50K", "<=50K"]),
    ),
    names=(
        *("age", "workclass=Private", "workclass=State-gov", "workclass=(other)", "workclass=(missing)"),
        *("sex=Female", "sex=Male", "capital-gain", "income"),
    ),
    encoded=[
        [0.39, 0, 1, 0, 0, 0, 1, 1000, 0],
        [0.5, 1, 0, 0, 0, 0, 1, 0, 1],
        [1, 0, 0, 0, 1, 1, 0, 12.5, 1],
        [0.17, 0, 0, 1, 0, 1, 0, 0, 0],
    ],
    norm=(4 + 1000**2) ** 0.5,
    needed="sex",
)

BANK = RawTable(
    suffix=".csv",
    text=_written(";", ";", "latin-1"),
    schema="""
text: {delimiter: ";", decimal: ",", encoding: latin-1}
missing_texts: ["", "unbekannt"]
columns:
  - {name: größe, kind: numeric, range: [100, 200], scale: symmetric, missing: category}
  - {name: beruf, kind: categorical, values: [Müller, Bäcker], others: zero, missing: {value: Müller}}
  - {name: seit, kind: date, range: [1970-01-01, 1970-01-11], formats: ["%d.%m.%Y"], missing: {value: 1970-01-06}}
  - {name: saldo, kind: numeric, range: [-10, 10], missing: {value: 0}}
  - {name: kunde, kind: id}
""",
    columns=(
        ("größe", ["150,5", "", " 175 ", "99,9"]),
        ("beruf", ["Bäcker", "", "Koch", "Müller"]),
        ("seit", ["02.01.1970", "1.1.1970", "", "31.12.2020"]),
        ("saldo", ["-5,25", "unbekannt", "1e1", "0"]),
        ("kunde", ["p3", "p1", "p2", "p0"]),
    ),
    names=("größe", "größe=(missing)", "beruf=Müller", "beruf=Bäcker", "seit", "saldo"),
    encoded=[
        [2 * 0.505 - 1, 0, 0, 1, 0.1, 0.2375],
        [0, 1, 1, 0, 0, 0.5],
        [0.5, 0, 0, 0, 0.5, 1],
        [-1, 0, 1, 0, 1, 0.5],
    ],
    norm=2.0,
    needed="saldo",
    ids=["p3", "p1", "p2", "p0"],
)

HEADERLESS = RawTable(
    suffix=".tsv",
    text=_written("\t", "\t", "utf-16"),
    has_header=False,
    schema="""
text: {header: false, encoding: utf-16, quote: null}
columns:
  - {name: id, kind: id}
  - {name: species, kind: categorical, values: [1, 2, 3], others: refuse}
  - {name: length, kind: numeric, range: [0, 8]}
  - {name: note, kind: drop}
""",
    columns=(
        ("id", ["07", "7", "a", "b"]),
        ("species", ["3", "1", "2", "2"]),
        ("length", ["4", "8", ".5", "0"]),
        ("note", ['say "hi', "", "x", "y"]),
    ),
    names=("species=1", "species=2", "species=3", "length"),
    encoded=[[0, 0, 1, 0.5], [1, 0, 0, 1], [0, 1, 0, 0.0625], [0, 1, 0, 0]],
    norm=2**0.5,
    needed="length",
    ids=["07", "7", "a", "b"],
)

NULLABLE = RawTable(
    suffix=".parquet",
    schema="""
columns:
  - {name: age, kind: numeric, range: [0, 100], missing: category}
  - {name: smoker, kind: boolean, missing: category}
  - {name: grade, kind: categorical, values: [1, 2], others: category, missing: zero}
  - {name: city, kind: categorical, values: [Bern, Oslo], others: zero, missing: zero}
  - {name: score, kind: numeric, range: [-1, 1], missing: {value: 0}}
  - {name: seen, kind: date, range: [2020-01-01, 2020-01-11], missing: category}
  - {name: patient, kind: id}
""",
    columns=(
        ("age", pa.array([25, None, 250, 50], pa.int16())),
        ("smoker", pa.array([True, None, False, False])),
        ("grade", pa.array([1.0, None, 2.0, 3.5])),
        ("city", pa.array(["Oslo", None, "Rome", "Bern"]).dictionary_encode()),
        ("score", pa.array([0.5, float("nan"), None, -1.0], pa.float32())),
        (
            "seen",
            pa.array(
                [dt.datetime(2020, 1, 2, 23, 59), None, dt.datetime(2019, 1, 1), dt.datetime(2020, 1, 6)],
                pa.timestamp("ns", "UTC"),
            ),
        ),
        ("patient", pa.array([30, 10, 20, 40], pa.int32())),
    ),
    names=(
        *("age", "age=(missing)", "smoker", "smoker=(missing)", "grade=1", "grade=2", "grade=(other)"),
        *("city=Bern", "city=Oslo", "score", "seen", "seen=(missing)"),
    ),
    encoded=[
        [0.25, 0, 1, 0, 1, 0, 0, 0, 1, 0.75, 0.1, 0],
        [0, 1, 0, 1, 0, 0, 0, 0, 0, 0.5, 0, 1],
        [1, 0, 0, 0, 0, 1, 0, 0, 0, 0.5, 0, 0],
        [0.5, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0.5, 0],
    ],
    norm=6**0.5,
    needed="smoker",
    ids=[30, 10, 20, 40],
)

NESTED = RawTable(
    suffix=".parquet",
    schema="""
columns:
  - {name: embedding, kind: vector, length: 3, norm: 2}
  - {name: fixed, kind: vector, length: 2, range: [0, 10], missing: category}
  - {name: person.age, kind: numeric, range: [0, 100], missing: {value: 50}}
  - {name: person.home.country, kind: categorical, values: [CH, "NO"], others: zero, missing: category}
  - {name: raw, kind: drop}
""",
    columns=(
        ("embedding", pa.array([[0.0, 1.0, 1.5], [3.0, 0, 4], [0, 0, 0], [1, 0, 0]], pa.list_(pa.float32()))),
        ("fixed", pa.array([[1.0, 2], None, [20, 10], [None, 1]], pa.list_(pa.float64(), 2))),
        (
            "person",
            pa.array(
                [
                    {"age": 10, "home": {"country": "NO"}},
                    {"age": None, "home": None},
                    None,
                    {"age": 90, "home": {"country": "SE"}},
                ],
                pa.struct([("age", pa.int64()), ("home", pa.struct([("country", pa.string())]))]),
            ),
        ),
        ("raw", pa.array([{"b": b"SECRET"}] * 4)),
    ),
    names=(
        *("embedding[0]", "embedding[1]", "embedding[2]", "fixed[0]", "fixed[1]", "fixed=(missing)"),
        *("person.age", "person.home.country=CH", "person.home.country=NO", "person.home.country=(missing)"),
    ),
    encoded=[
        [0, 0.5, 0.75, 0.1, 0.2, 0, 0.1, 0, 1, 0],
        [0.6, 0, 0.8, 0, 0, 1, 0.5, 0, 0, 1],
        [0, 0, 0, 1, 1, 0, 0.5, 0, 0, 1],
        [0.5, 0, 0, 0, 0, 1, 0.9, 0, 0, 0],
    ],
    norm=5**0.5,
    needed="embedding",
)

TABLES = {"census": CENSUS, "bank": BANK, "headerless": HEADERLESS, "nullable": NULLABLE, "nested": NESTED}
