"""Read CSV and TSV, plain or packed: a header line, then triplets or wide rows, one row a line.

A field in double quotes may hold the delimiter, but no line break. Blank lines hold no row.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from storage.errors import BadSource
from storage.formats.batch import BATCH_VALUES, RowBatch
from storage.formats.declared import Declared
from storage.formats.rejects import Rejects
from storage.formats.tables import column_text, table_schema
from storage.formats.text import TextFile

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_LONGEST = 1 << 29  # a wide header of five million names stays below
_WIDTH = "has another number of fields than the header; correct or drop it"


class DelimitedReader:
    """Satisfies `storage.formats.batch.Reader` for a delimited text file.

    Parameters
    ----------
    path : Path
        The file.
    format : str
        "csv" or "tsv".
    declared : Declared
        What the user said; the width is never taken from the file alone.
    """

    n_rows: int | None = None

    def __init__(self, path: Path, *, format: str, declared: Declared) -> None:  # noqa: A002
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        self._text = TextFile(path)
        self._pieces = self._text.pieces(longest=_LONGEST)
        self._parse_options = {"delimiter": _DELIMITERS[format], "ignore_empty_lines": False}
        self.size = self._text.size
        self.format = f"{format}{self._text.packing}"
        try:
            self._header, self._rest = self._read_header()
            self._schema = table_schema(self._header, declared, declares_width=False)
        except BaseException:
            self.close()
            raise
        self.n_features = self._schema.n_features
        self.names: Sequence[str] | None = self._schema.names
        self.scattered = self._schema.triplet is not None

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._text.position

    def close(self) -> None:
        """Close the file."""
        self._text.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows of each piece of text.

        Raises
        ------
        BadSource
            Where a packed stream is cut short or corrupt, or text is not UTF-8.
        """
        step = max(1, BATCH_VALUES // max(1, len(self._header)))
        for table, places in self._tables(self._schema.read, rejects):
            for at in range(0, table.num_rows, step):
                yield self._schema.batch(
                    table[at : at + step], places=places[at : at + step], place="line", rejects=rejects
                )

    def items(self, rejects: Rejects) -> Iterator[pa.Array]:
        """Yield the column ids of triplets, each once a piece, as text."""
        if self._schema.triplet is not None:
            name = self._schema.triplet[1]
            for table, _ in self._tables([name], rejects):
                yield pc.unique(column_text(table.column(name)))

    def _tables(self, wanted: list[str], rejects: Rejects) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        text, line = self._rest, 2
        while True:
            if text:
                yield self._parse(text, line, wanted, rejects)
            line += text.count(b"\n")
            piece = next(self._pieces, None)
            if piece is None:
                return
            text = bytes(piece[0])

    def _parse(
        self, text: bytes, first_line: int, wanted: list[str], rejects: Rejects
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Split whole lines into fields, still as text, and say on which line each row stands."""
        lines = np.arange(text.count(b"\n")) + first_line
        if text[:1] in b"\r\n" or b"\n\n" in text or b"\n\r\n" in text:
            split = text.splitlines(keepends=True) if b"\r" not in text else text.replace(b"\r\n", b"\n").split(b"\n")
            filled = [row for row, line in enumerate(split) if line.strip()]
            lines, text = lines[filled], b"".join(split[row].rstrip(b"\n") + b"\n" for row in filled)
        bad: list[int] = []

        def skip(row: csv.InvalidRow) -> str:
            number = int(lines[row.number - 1])
            rejects.reject(place="line", number=number, reason=_WIDTH)
            bad.append(row.number - 1)
            return "skip"

        if not text:
            return pa.record_batch({name: pa.array([], pa.string()) for name in wanted}), lines
        refused: list[BadSource] = []

        def skip_or_stop(row: csv.InvalidRow) -> str:
            try:
                return skip(row)
            except BadSource as error:  # an exception would be lost in the parser's own thread
                refused.append(error)
                return "error"

        try:
            table = csv.read_csv(
                pa.py_buffer(text),
                read_options=csv.ReadOptions(
                    use_threads=False, column_names=self._header, block_size=max(len(text) + 1, 1 << 16)
                ),
                parse_options=csv.ParseOptions(**self._parse_options, invalid_row_handler=skip_or_stop),
                convert_options=csv.ConvertOptions(
                    include_columns=wanted,
                    column_types={name: pa.string() for name in wanted},
                    strings_can_be_null=False,
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            if refused:
                raise refused[0] from None
            raise BadSource(f"the text near line {first_line} is not UTF-8 or not delimited text; convert it") from None
        if bad:
            lines = np.delete(lines, bad)
        batches = table.combine_chunks().to_batches()
        return (batches[0] if batches else self._parse(b"", first_line, wanted, rejects)[0]), lines

    def _read_header(self) -> tuple[list[str], bytes]:
        text = bytes(next(self._pieces, (memoryview(b""), 1))[0])
        header, _, rest = text.partition(b"\n")
        if not header.strip():
            raise BadSource("the first line is empty; it must name the columns")
        try:
            names = csv.read_csv(
                pa.py_buffer(header + b"\n"),
                read_options=csv.ReadOptions(use_threads=False, block_size=max(len(header) + 2, 1 << 16)),
                parse_options=csv.ParseOptions(**self._parse_options),
            ).column_names
        except (pa.ArrowInvalid, UnicodeDecodeError):
            raise BadSource("the first line does not name columns in UTF-8; convert the file") from None
        return [name.strip() for name in names], rest
