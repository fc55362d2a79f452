"""Reader of one or more source files in order, each with the reader of its format."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpca.errors import BadSource, Invalid, StorageError, Unavailable
from storage.formats.batch import MAX_INTEGER, Reader, Rejects, RowBatch, check_features
from storage.formats.declared import Declared
from storage.formats.delimited import DelimitedReader
from storage.formats.files import SourceFile, locate
from storage.formats.held_files import held
from storage.formats.registry import FORMATS, all_suffixes, by_suffix, named
from storage.formats.tables import ParquetReader

_PACKED = (".gz", ".zst")
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers for exhausted resources (open files, memory), which are no fault of a file."""


def open_file(source: SourceFile | Path, declared: Declared) -> Reader:
    """Open one file in the declared format or, without a declaration, in the format of its suffix.

    Raises
    ------
    BadSource
        If the file is missing, is empty, has a different format, or has a different number of columns than declared.
    Invalid
        If the format requires a declared number of columns and none is declared. Also if a declaration does not fit the
        format.
    """
    file = source if isinstance(source, SourceFile) else locate(source)
    with opening():
        kind = checked_format(file, declared)
        chosen = named(kind)
        if declared.schema is not None and not chosen.is_table:
            raise Invalid(
                f"{kind} files contain only numbers, but a schema is for raw tables; give CSV, TSV or Parquet"
            )
        if declared.unit_column is not None and not chosen.is_table:
            raise Invalid(
                f"{kind} has no columns with names, so none with the ids of individuals; give a file of ids (units), "
                "or a table"
            )
        if chosen.needs_width and declared.width is None:
            raise Invalid(
                f"{kind} does not declare its number of columns, which is never inferred from rows; declare the number "
                "of features"
            )
        reader: Reader = chosen.open(file, replace(declared, format=kind))
        return reader


@contextmanager
def _opened(file: SourceFile, declared: Declared) -> Iterator[tuple[Reader, tuple[object, ...]]]:
    """Open a file once, and yield its reader and its fingerprint.

    The fingerprint differs for another file, and for another version of the same file.
    """
    with ExitStack() as opened:
        with opening():
            one = opened.enter_context(held(file))
        reader = opened.enter_context(closing(open_file(one, declared)))
        yield reader, (one.marks(), one.version())


@contextmanager
def opening() -> Iterator[None]:
    """Convert errors of opening a file into one BadSource error, or Unavailable if resources are exhausted."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError:
        raise BadSource("no such file; correct the path") from None
    except OSError as error:
        if error.errno in _SHORT:
            raise Unavailable(
                f"files cannot be opened ({error.strerror}); close other programs, or raise the limit of open files "
                "or memory"
            ) from None
        raise BadSource(
            f"the file cannot be read ({error.strerror or 'input error'}); check the path and the permissions"
        ) from None


def checked_format(file: SourceFile, declared: Declared) -> str:
    """Return the format of a file, after checking that it exists and is not empty.

    Raises
    ------
    BadSource
        If the file is missing or empty. Also if no format is declared, and the file name has no known suffix.
    """
    size, _ = file.version()
    is_store = declared.format == "zarr" or (declared.format is None and file.is_zarr())
    if not (is_store or file.is_file()):
        raise BadSource("this is not a regular file; give files, or a pattern of files such as FOLDER/*/*.parquet")
    if file.is_file() and size == 0:
        raise BadSource("the file is empty; a dataset needs at least one row")
    return declared.format or format_of(file)


def infer_items(files: Sequence[SourceFile], declared: Declared, *, rejects: Rejects) -> tuple[str, ...]:
    """Collect all distinct column ids of triplets as feature names; the user must have declared the ids public.

    Parameters
    ----------
    files : sequence of SourceFile
    declared : Declared
    rejects : Rejects
        Receives each line that is not a row.

    Returns
    -------
    tuple of str
        The distinct ids: first integers, sorted by value, then other text, sorted by code point.

    Raises
    ------
    Invalid
        If a file does not contain triplets.
    """
    seen: set[str] = set()
    for file in files:
        with _opened(file, replace(declared, n_features=1)) as (reader, _):
            if not isinstance(reader, DelimitedReader | ParquetReader) or not reader.scattered:
                raise Invalid("public items require CSV or Parquet triplets; give triplets or feature names")
            for ids in reader.items(rejects):
                seen.update(item for item in ids.to_pylist() if item)
    check_features(len(seen))
    return tuple(sorted(seen, key=_item_order))


class FilesReader:
    """Reader of one or more files in order as one source; it implements `storage.formats.batch.Reader`.

    Parameters
    ----------
    files : sequence of SourceFile
        The files.
    declared : Declared
        The user's declarations.
    rejects : Rejects
        Receives the address of the file being read, for messages.

    Raises
    ------
    BadSource, Invalid
        If a file cannot be opened, or the files differ in their columns or in how rows are identified.
    """

    def __init__(self, files: Sequence[SourceFile], declared: Declared, rejects: Rejects) -> None:
        self._files, self._declared = list(files), declared
        self._versions: list[tuple[object, ...]] = []
        self._done = 0
        self._reader: Reader | None = None
        opened: list[tuple[Any, ...]] = []
        self.repeats = False
        types: dict[str, set[Any]] = {"unit": set(), "row": set()}
        for file in files:
            rejects.file = file.address
            with _opened(file, declared) as (reader, version):
                self._versions.append(version)
                opened.append(
                    (reader.n_features, reader.scattered, reader.dtype, reader.format, reader.size, reader.n_rows)
                )
                self.repeats |= reader.repeats
                for role, kind in getattr(reader, "id_types", {}).items():
                    types[role].add(kind)
                names = reader.names
                if reader.scattered and opened[0][1] and (reader.n_rows is None) != (opened[0][5] is None):
                    raise BadSource(
                        "a Matrix Market file numbers its rows, but a table of triplets names them; ingest one format"
                    )
                if opened[-1][:2] != opened[0][:2] or (len(opened) > 1 and names != self.names):
                    raise BadSource(
                        "the columns differ from the columns of the first file; ingest the files separately"
                    )
                self.names: Sequence[str] | None = names
        widths, kinds, dtypes, formats, sizes, counts = zip(*opened, strict=True)
        self.n_features: int = widths[0]
        self.scattered: bool = kinds[0]
        self.dtype: np.dtype[Any] = np.result_type(*dtypes)
        self.format = formats[0] if len(set(formats)) == 1 else "several"
        self.size = sum(sizes)
        self.n_rows: int | None = None if None in counts else sum(counts)
        if self.scattered and self.n_rows is None and set(counts) != {None}:
            raise BadSource(
                "rows are identified by position in one file and by ids in another; ingest the files separately"
            )
        self._as_text = [f"{role}_ids" for role, kinds in types.items() if len(kinds) > 1]

    @property
    def position(self) -> int:
        """Number of bytes read so far."""
        return self._done + (0 if self._reader is None else self._reader.position)

    def close(self) -> None:
        """Close the file that is being read, if any."""
        if self._reader is not None:
            self._reader.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows of one file after the other; declared row numbers continue from file to file."""
        first_row = 0
        for file, version in zip(self._files, self._versions, strict=True):
            rejects.file = file.address
            with _opened(file, self._declared) as (self._reader, found):
                if found != version:
                    raise BadSource("the file was changed while it was read; ingest it again")
                for batch in self._reader.batches(rejects):
                    texts = {ids: getattr(batch, ids) for ids in self._as_text}
                    shifted = replace(batch, **{ids: array.cast(pa.string()) for ids, array in texts.items()})
                    if first_row and batch.row_ids is not None:
                        shifted = replace(shifted, row_ids=pc.add(batch.row_ids, first_row))
                    yield shifted
                    rejects.file = file.address
            if self._reader.n_rows is not None:
                first_row = min(first_row + self._reader.n_rows, MAX_INTEGER)
            self._done += self._reader.size
            self._reader = None


def format_of(file: SourceFile) -> str:
    """Return the format of a file according to the suffix of its name.

    Raises
    ------
    BadSource
        If the name has no known suffix.
    """
    if not file.is_file() and file.is_zarr():
        return "zarr"
    suffixes = PurePath(file.name).suffixes[-2:]
    last = suffixes[0] if len(suffixes) == 2 and suffixes[1] in _PACKED else "".join(suffixes[-1:])
    if (kind := by_suffix(last)) is None:
        raise BadSource(
            f"the name has no known format; it must end in one of {all_suffixes()}, for text also in .gz or .zst; "
            f"rename it, or give --format with one of {', '.join(FORMATS)}"
        )
    return kind


def _item_order(item: str) -> tuple[bool, int, str]:
    whole = item.isascii() and item.isdigit() and len(item) < 20
    return not whole, int(item) if whole else 0, item
