"""Canonical encoding: a value is encoded to the same bits in every format, type and path.

This is checked for a table of formats and for random tables. A cell of every Arrow type is cast exactly, becomes null,
or is refused: no cast fails inside Arrow, and no timestamp becomes a raw tick count.
"""

import csv
import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import sparse

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BadSource, Invalid
from dpca.schemas.canonical import Canonical, cast_cells, plain_cells, word_of
from dpca.schemas.encoder import Encoder
from flows.estimators import PrivatePCA
from flows.estimators.tables import Entries, Table
from flows.scored_files import score_file
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats.batch import Rejects
from storage.formats.declared import Declared
from storage.formats.sources import open_file
from storage.workspace import Workspace
from tests.docs.reader import DOCS
from tests.dpca.schemas.random_tables import CODES, columns
from tests.flows.conftest import isolate

# set by anndata

MISSING = ["NA", "99", "2099-09-09"]
DAYS = {"kind": "date", "range": ["2020-01-01", "2020-01-11"], "formats": ["%d.%m.%Y", "%Y%m%d", "%Y-%m-%d"]}
KINDS: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "numeric, whole": ({"kind": "numeric", "range": [0, 10]}, [[0.1, 0], [0.5, 0], [0, 1], [1, 0], [0, 1]]),
    "numeric, fraction": ({"kind": "numeric", "range": [0, 1]}, [[0.1, 0], [0.5, 0], [0, 1], [1, 0], [0, 1]]),
    "categorical, number": (
        {"kind": "categorical", "values": [1, "5.0"], "others": "category"},
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]],
    ),
    "categorical, fraction": (
        {"kind": "categorical", "values": ["0.10", 0.5], "others": "category"},
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]],
    ),
    "categorical, text": (
        {"kind": "categorical", "values": ["007", "é", 7], "others": "zero"},
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]],
    ),
    "boolean": ({"kind": "boolean"}, [[1, 0], [0, 0], [0, 1], [1, 0], [0, 1]]),
    "date": (DAYS, [[0.1, 0], [0.5, 0], [0, 1], [1, 0], [0, 1]]),
    "vector": ({"kind": "vector", "length": 1, "range": [0, 1]}, [[0.1, 0], [0.5, 0], [0, 1], [1, 0], [0, 1]]),
}
"""Declarations with the expected encoding of five rows; row 3 has a missing code, row 5 a missing value."""

WHOLE, FRACTION = [1, 5, 99, 10, None], [Decimal("0.1"), Decimal("0.5"), Decimal(99), Decimal(1), None]
BOOLEANS = [True, False, None, True, None]
DATES = [dt.date(2020, 1, 2), dt.date(2020, 1, 6), dt.date(2099, 9, 9), dt.date(2020, 1, 11), None]
ITEMS = [[0.1], [0.5], None, [2.0], [None]]
TEXTS = {
    "numeric, whole": {
        "text": ["1", "5", "99", "10", ""],
        "text with decimals": ["1.0", " 5.00", "99.0", "1e1", "NA"],
        "text with zeros": ["+01", "05", "099", "010", " "],
    },
    "numeric, fraction": {
        "text": ["0.1", "0.5", "99", "1", ""],
        "text with decimals": [".10", "5e-1", "9.9e1", "1.", "NA"],
    },
    "categorical, number": {
        "text": ["1", "5", "99", "10", ""],
        "text with decimals": ["1.00", "5.0", "99.0", "1e1", "NA"],
        "text of booleans": ["True", "5", "99", "false", ""],
    },
    "categorical, fraction": {
        "text": ["0.1", "0.5", "99", "1", ""],
        "text with decimals": [".1", "0.50", "99.", "1e0", "NA"],
    },
    "categorical, text": {
        "text": ["007", "é", "NA", "7", ""],
        "text in another form": [" 007", "e\u0301 ", "NA", "7.0", " "],
    },
    "boolean": {
        "text": ["true", "false", "99", "true", ""],
        "text in capitals": ["True", "FALSE", "NA", "TRUE", ""],
        "text of numbers": ["1", "0.0", "99.0", "1.0", ""],
    },
    "date": {
        "text": ["02.01.2020", "06.01.2020", "09.09.2099", "11.01.2020", ""],
        "text of numbers": ["20200102", "20200106.0", "20990909", "20200111", "NA"],
        "text with a time": ["2020-01-02 23:59:59", "2020-01-06 00:00:00", "2099-09-09", "2020-01-11T00:00:01.5", ""],
    },
}
_STRINGS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
}
_DECIMALS = {"decimal128": pa.decimal128(30, 3), "decimal256": pa.decimal256(60, 20)}
_FLOATS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}
_INTEGERS = {
    str(kind): kind
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}


def _cast(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(value) for value in values], kind)
    plain = [
        float(value) if isinstance(value, Decimal) and not pa.types.is_decimal(kind) else value for value in values
    ]
    return pa.array(plain).cast(kind) if not isinstance(plain[0], Decimal) else pa.array(plain, kind)


def _columns() -> Iterator[tuple[str, str, pa.Array]]:
    """Yield each kind of column in a schema with each Arrow type that may represent it."""
    for kind, spellings in TEXTS.items():
        for name, texts in spellings.items():
            yield kind, name, pa.array(texts)
        texts = next(iter(spellings.values()))
        for name, text in _STRINGS.items():
            yield kind, name, pa.array(texts).cast(text)
        yield kind, "dictionary of string", pa.array([text or None for text in texts]).dictionary_encode()
    for kind in ("numeric, whole", "categorical, number"):
        for name, number in {**_INTEGERS, **_FLOATS, **_DECIMALS}.items():
            yield kind, name, _cast(WHOLE, number)
        yield kind, "dictionary of int64", pa.array(WHOLE).dictionary_encode()
    for kind in ("numeric, fraction", "categorical, fraction"):
        for name, number in {**_FLOATS, **_DECIMALS}.items():
            yield kind, name, _cast(FRACTION, number)
    for name, number in {"bool": pa.bool_(), "int8": pa.int8(), "float64": pa.float64()}.items():
        yield "boolean", name, pa.array(BOOLEANS).cast(number)
    yield "date", "int64", pa.array([20200102, 20200106, 20990909, 20200111, None])
    units = {f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")}
    for name, day in {
        "date32": pa.date32(),
        "date64": pa.date64(),
        "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
        **units,
    }.items():
        yield "date", name, pa.array(DATES).cast(day)
    for name, items in {
        "list": pa.list_(pa.float64()),
        "list of float32": pa.list_(pa.float32()),
        "large_list": pa.large_list(pa.float64()),
        "fixed_size_list": pa.list_(pa.float64(), 1),
    }.items():
        yield "vector", name, pa.array(ITEMS, items)


COLUMNS = {f"{kind}: {name}": (kind, array) for kind, name, array in _columns()}
IS_WRITTEN = [name for name, (kind, array) in COLUMNS.items() if name.split(": ")[1].startswith("text")]
FILES, FRAMES = (
    ("csv", "tsv", "parquet"),
    ("arrow", "pandas", "pandas nullable", "pandas arrow", "pandas objects", "polars", "h5ad obs"),
)
PATHS = {**dict.fromkeys(FILES, ("ingest", "transform")), **dict.fromkeys(FRAMES, ("loaded", "estimator"))}


def holds(form: str, name: str) -> bool:
    """Return whether a file format or frame library can represent a column of this type."""
    kind, array = COLUMNS[name]
    if form in ("csv", "tsv"):
        return name in IS_WRITTEN
    if form == "h5ad obs":  # anndata can write neither dates nor lists
        return kind != "vector" and not any(
            word in name for word in ("date32", "date64", "timestamp", "decimal", "view")
        )
    if form == "pandas nullable":
        return (
            pa.types.is_integer(array.type)
            or pa.types.is_boolean(array.type)
            or array.type in (pa.float32(), pa.float64(), pa.string())
        )
    # floats of Python objects are always float64, so float32 lists have no such form
    return form != "pandas objects" or name != "vector: list of float32"


CELLS = [(name, form, path) for name in COLUMNS for form in PATHS if holds(form, name) for path in PATHS[form]]


class Polars:
    """Stub of a polars data frame with the methods that the code calls; real polars gives the same Arrow arrays."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.columns = table, table.column_names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, name: str) -> "Polars":
        return Polars(self.table.select([name]))

    def to_numpy(self) -> Any:
        raise AssertionError("a frame with raw columns must not be converted to a matrix")

    def to_arrow(self) -> pa.Array:
        column = self.table.column(0).combine_chunks()
        return column.cast(pa.large_string()) if pa.types.is_string(column.type) else column


def _objects(column: pa.ChunkedArray) -> list[Any]:
    """Return cells as Python objects, but half- and single-precision numbers as NumPy scalars."""
    width = {pa.float16(): np.float16, pa.float32(): np.float32}.get(column.type, lambda value: value)
    return [None if value is None else width(value) for value in column.to_pylist()]


def framed(form: str, table: pa.Table, folder: Path) -> Any:
    """Return an Arrow table as a data frame of the library that ``form`` names."""
    if form == "arrow":
        return table
    if form == "polars":
        return Polars(table)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype if form == "pandas arrow" else None)
    if form == "pandas nullable":
        return frame.convert_dtypes()
    if form == "pandas objects":
        return pd.DataFrame(
            {name: pd.Series(_objects(table.column(name)), dtype=object) for name in table.column_names}
        )
    if form == "h5ad obs":
        frame = frame.astype({name: "boolean" for name in frame if COLUMNS[name][1].type == pa.bool_()})
        frame.index = [f"row{row}" for row in range(len(frame))]
        anndata.AnnData(X=np.zeros((len(frame), 1)), obs=frame).write_h5ad(folder / "rows.h5ad")
        return anndata.read_h5ad(folder / "rows.h5ad").obs
    return frame


def write(form: str, table: pa.Table, folder: Path, *, delimiter: str | None = None) -> Path:
    """Write a table of texts as CSV or TSV, or any table as Parquet."""
    path = folder / f"rows.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter or ("," if form == "csv" else "\t"), lineterminator="\n")
            writer.writerow(table.column_names)
            writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return path


def identity(encoder: Encoder) -> PrivateSubspace:
    """Return a subspace whose components are the identity, so that its scores are the encoded rows."""
    names = list(encoder.feature_names)
    return PrivateSubspace(
        components=np.eye(len(names)), manifest={"feature_names": names, "encoder": encoder.schema.facts()}
    )


@dataclass(frozen=True)
class Encoded:
    """The encoder, and the encoded rows of one format that was read through one path."""

    encoder: Encoder
    rows: NDArray[np.float64]

    def of(self, column: str) -> list[list[float]]:
        (declared,) = (one for one in self.encoder.columns if one.name == column)
        chosen = [self.encoder.feature_names.index(name) for name in declared.features()]
        found: list[list[float]] = self.rows[:, chosen].tolist()
        return found


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Encoded]:
    """Return a function that encodes all columns of a format through one path, with a cache."""
    made: dict[tuple[str, str], Encoded] = {}

    def encode(form: str, path: str) -> Encoded:
        if (form, path) not in made:
            made[form, path] = _encode(form, path, tmp_path_factory.mktemp("rows"))
        return made[form, path]

    return encode


def _encode(form: str, path: str, folder: Path) -> Encoded:
    names = [name for name in COLUMNS if holds(form, name)]
    columns = [{**KINDS[COLUMNS[name][0]][0], "name": name, "missing": "category"} for name in names]
    encoder = Encoder.of({"missing_texts": MISSING, "columns": columns})
    table = pa.table({name: COLUMNS[name][1] for name in names})
    if path == "loaded":
        return Encoded(encoder, identity(encoder).transform(framed(form, table, folder)))
    if path == "estimator":
        checked = Table.checked(
            PrivatePCA(), encoder.transform(framed(form, table, folder)), reset=True, entries=Entries()
        )
        return Encoded(encoder, np.vstack([piece() for piece in checked.pieces]))
    file = write(form, table, folder)
    if path == "transform":
        return Encoded(encoder, score_file(identity(encoder), file, Declared()).values)
    (folder / "schema.yaml").write_text(json.dumps({"missing_texts": MISSING, "columns": columns}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=folder / "home")
        workspace = Workspace.open()
        options = IngestOptions(table_schema=str(folder / "schema.yaml"))
        ingest(file, name="d", home=workspace.home, engine=workspace.ledger.engine, options=options)
        block = workspace.catalog.open(workspace.catalog.current("d")).read(0)
    parts = (block.values.astype(np.float64), block.indices.astype(np.int64), block.row_ptr)
    return Encoded(encoder, sparse.csr_array(parts, shape=(5, len(encoder.feature_names))).toarray())


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize(("column", "form", "path"), CELLS, ids=[" | ".join(cell) for cell in CELLS])
def test_a_value_has_the_same_bits(column: str, form: str, path: str, encoded: Callable[[str, str], Encoded]) -> None:
    expected = [list(map(float, row)) for row in KINDS[COLUMNS[column][0]][1]]
    assert encoded(form, path).of(column) == expected


def bits(encoder: Encoder, rows: Any) -> bytes:
    return identity(encoder).transform(rows).tobytes()


def file_bits(encoder: Encoder, path: Path) -> bytes:
    """Return the bits of the encoded rows that the reader of a file produces."""
    with closing(open_file(path, Declared(schema=encoder.schema))) as reader:
        parts = [(batch.values, batch.indices, batch.row_ptr) for batch in reader.batches(Rejects())]
    width = len(encoder.feature_names)
    rows = [sparse.csr_array(part, shape=(len(part[2]) - 1, width)).toarray() for part in parts]
    return bytes(np.vstack(rows).tobytes())


def check_random_table(seed: int, folder: Path) -> None:
    """Encode one random table from each format and library, and check that all results have the same bits."""
    rng = random.Random(f"table {seed}")
    n_rows, decimal = rng.randint(2, 12), rng.choice((".", ","))
    made = columns(rng, n_rows)
    text = {"decimal": decimal, "delimiter": ";"}
    encoder = Encoder.of({"missing_texts": CODES, "text": text, "columns": [column.declared for column in made]})
    names = [column.declared["name"] for column in made]

    def texts() -> pa.Table:
        return pa.table({name: column.texts(rng, decimal=decimal) for name, column in zip(names, made, strict=True)})

    def typed(*, halves: bool = True) -> pa.Table:
        arrays = [column.arrow(rng, decimal=decimal) for column in made]
        if not halves and any(array.type == pa.float16() for array in arrays):  # pandas has no nullable float16
            return typed(halves=False)
        return pa.table(dict(zip(names, arrays, strict=True)))

    expected, table = bits(encoder, texts()), typed()
    found = {
        "texts": bits(encoder, texts()),
        "arrow": bits(encoder, table),
        "batch": bits(encoder, typed().to_batches()[0]),
        "pandas": bits(encoder, typed().to_pandas()),
        "pandas arrow": bits(encoder, typed().to_pandas(types_mapper=pd.ArrowDtype)),
        "pandas nullable": bits(encoder, typed(halves=False).to_pandas().convert_dtypes()),
        "objects": bits(
            encoder,
            pd.DataFrame(
                {
                    name: pd.Series(one.objects(rng, decimal=decimal), dtype=object)
                    for name, one in zip(names, made, strict=True)
                }
            ),
        ),
        "polars": bits(encoder, Polars(typed())),
        "parquet": file_bits(encoder, write("parquet", typed(), folder)),
        "csv": file_bits(encoder, write("csv", texts(), folder, delimiter=";")),
        "tsv": file_bits(encoder, write("tsv", texts(), folder, delimiter=";")),
    }
    wrong = [name for name, content in found.items() if content != expected]
    assert not wrong, (seed, wrong, encoder.schema.columns, [column.cells for column in made])


QUICK, ALL = range(60), range(60, 900)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("seeds", [QUICK, pytest.param(ALL, marks=pytest.mark.audit_only)], ids=["quick", "all"])
def test_a_random_table_has_the_same_bits_in_every_format(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        check_random_table(seed, tmp_path)


def table_of_cells() -> list[str]:
    """Return a Markdown table of the kinds, types and formats for the documentation."""
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in COLUMNS:
        kind, _, kept = name.partition(": ")
        rows.setdefault((kind, tuple(form for form in PATHS if holds(form, name))), []).append(kept)
    return [f"| {kind} | {', '.join(types)} | {', '.join(forms)} |" for (kind, forms), types in rows.items()]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_the_documents_have_the_table_of_cells() -> None:
    page = (DOCS / "reference/values.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| kind ")] == (
        table_of_cells()
    )
    for form, paths in PATHS.items():
        assert f"`{form}`" in page
        assert all(f"**{path}**" in page for path in paths)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize(
    ("text", "word"),
    [
        *(("1.00", "1"), ("-0.0", "0"), ("1e16", "10000000000000000"), (".5", "0.5"), ("1e-7", "1e-07")),
        *(("0.10000000000000001", "0.1"), ("9007199254740993", "9007199254740993"), ("1e999", "1e999")),
        *(
            ("0.99999999999999999999", "1"),
            ("1e-99999999999999999999", "0"),
            ("007", "007"),
            ("+5", "+5"),
            ("00", "00"),
        ),
        *(
            ("True", "1"),
            ("FALSE", "0"),
            ("nan", "nan"),
            ("e\u0301", "é"),
            ("\u00a0x ", "x"),
            ("1_0", "1_0"),
            ("٣", "٣"),
        ),
        *(("2020-01-05T12:30:00.50", "2020-01-05 12:30:00.5"), ("2020-01-05 00:00:00", "2020-01-05")),
    ],
)
def test_a_text_has_one_canonical_text(text: str, word: str) -> None:
    assert word_of(text) == word == word_of(word)
    assert Canonical().words(plain_cells(pa.array([text, None]))).to_pylist() == [word, None]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_codes_are_not_numbers_and_numbers_are_not_codes() -> None:
    codes = {"name": "x", "kind": "categorical", "values": ["007", "7"], "others": "zero"}
    encoder = Encoder.of({"columns": [codes]})
    assert encoder.transform(pa.table({"x": ["007", "7", "7.0"]})).tolist() == [[1, 0], [0, 1], [0, 1]]
    assert encoder.transform(pd.DataFrame({"x": [7, 7.0]})).tolist() == [[0, 1], [0, 1]]
    objects = pd.DataFrame({"x": pd.Series(["007", 7, np.float32(7)], dtype=object)})
    assert encoder.transform(objects).tolist() == [[1, 0], [0, 1], [0, 1]]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_date_without_its_leading_zero_is_refused_and_not_guessed() -> None:
    day = {"name": "x", "kind": "date", "range": ["2020-01-01", "2020-12-31"], "formats": ["%d%m%Y"]}
    encoder = Encoder.of({"columns": [day]})
    assert encoder.transform(pa.table({"x": ["01012020"]})).tolist() == [[0.0]]
    # the number is an ambiguous date: 1 November or 11 January
    for cells in (pa.array([1112020]), pa.array(["1112020"])):
        with pytest.raises(Invalid, match="no declared format reads"):
            encoder.transform(pa.table({"x": cells}))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_value_without_canonical_text_is_refused_in_one_line() -> None:
    encoder = Encoder.of({"columns": [{"name": "x", "kind": "numeric", "range": [0, 9]}]})
    for column in (
        pd.period_range("2020", periods=2, freq="M"),
        pd.interval_range(0, 2),
        pd.to_timedelta([1, 2], unit="D"),
        pd.Series([{}, 1], dtype=object),
        pd.Series([1j, 2]),
        pd.to_datetime(["2020-01-01"] * 2),
    ):
        with pytest.raises(Invalid, match=r"^column 'x'[^\n]* holds [^\n]*convert it[^\n]*$"):
            encoder.transform(pd.DataFrame({"x": column}))
    with pytest.raises(Invalid, match=r"or `obs` of an AnnData"):
        encoder.transform(anndata.AnnData(X=np.zeros((2, 1)), var=pd.DataFrame(index=["x"])))


CELLS_KINDS = (pa.int64(), pa.float64())
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
    whole, real = (plain(cast_cells(cells, kind)) for kind in CELLS_KINDS)
    assert (whole, real) == ([3, None, None], [3.0, 1.5, None])


@pytest.mark.parametrize("kind", CELLS_KINDS, ids=str)
@pytest.mark.parametrize("cells", OTHERS, ids=lambda cells: str(cells.type))
def test_cells_that_are_not_numbers_are_refused(cells: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(BadSource, match=r"a column holds .*; it must be \w+; convert it"):
        cast_cells(cells, kind)


def plain(cells: pa.Array) -> list[Any]:
    return [None if cell is None or np.isnan(cell) else cell for cell in cells.to_pylist()]
