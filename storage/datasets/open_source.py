"""The opened source files of an ingest.

`open_source` finds and opens the files, reads the user's declarations about them, and chooses the type of the stored
values. If the source has no column with the id of each row's individual, a separate file may list these ids (`Units`).

Examples
--------
::

    owners = Units(Path("patients.npy"), reader=reader)
    for batch in owners.attach(reader.batches(rejects)):
        batch.unit_ids                     # one id per row

::

    with open_source("a9a.svm.gz", options=options, declared=declared, rejects=Rejects()) as source:
        source.reader.n_features, source.dtype
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpca.errors import BadSource, Invalid
from dpca.schemas.canonical import id_cells
from storage.datasets.ingest_options import ENTRIES_ALONE, TRIPLETS_ALONE, IngestOptions
from storage.datasets.kept_sources import SavedColumns
from storage.formats.batch import Reader, Rejects, RowBatch, SkippedRows, stored_dtype
from storage.formats.declared import Declared, read_scale
from storage.formats.files import LocalFile, SourceFile, find_files
from storage.formats.registry import of_reader
from storage.formats.sources import FilesReader, infer_items

_STEP = 1 << 16
_WIDEST = 8  # bytes of the widest float type in Arrow
_NO_ID = "has an id in the file of individuals' ids that is neither a whole number nor text; correct or drop it"


class Units:
    """The ids of the individuals to whom rows belong, read from a memory-mapped file.

    Parameters
    ----------
    path : Path
        A .npy file with one id per row, of shape (n_rows,). `dpca.schemas.canonical` brings ids into a uniform
        spelling.
    reader : Reader
        The reader of the source's rows.

    Raises
    ------
    Invalid
        If the file is not a one-dimensional array of numbers or text, or its length differs from the number of rows
        that the source declares.
    """

    def __init__(self, path: Path, *, reader: Reader) -> None:
        if reader.scattered and reader.n_rows is None:
            raise Invalid(
                "the rows of triplets cannot be matched to a file of ids by position; give a column of ids "
                "(unit_column)"
            )
        try:
            self._ids: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError, EOFError):
            raise Invalid(
                f"the file of individuals' ids {path} is not a readable .npy array; save the ids with numpy.save"
            ) from None
        kind = self._ids.dtype.kind
        if self._ids.ndim != 1 or kind not in "iufU" or (kind == "f" and self._ids.dtype.itemsize > _WIDEST):
            raise Invalid(
                f"the individuals' ids in {path} must be whole numbers or text, one for each row; convert them"
            )
        if reader.n_rows not in (None, len(self._ids)):
            raise _unequal()

    def reject_missing(self, rejects: Rejects) -> int:
        """Report each row whose id is missing or unreadable to `rejects`, and return the number of these rows."""
        count = 0
        for first in range(0, len(self._ids), _STEP):
            missing = self._take(slice(first, first + _STEP)).is_null().to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(missing).tolist():
                rejects.reject(place="row", number=first + row, reason=_NO_ID)
            count += int(missing.sum())
        return count

    def attach(self, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
        """Yield the batches with the id of each row's individual attached; a row without an id is rejected.

        Raises
        ------
        BadSource
            If the number of rows differs from the number of ids.
        """
        first = 0
        for batch in batches:
            if batch.row_ids is not None:
                owners = self._take(batch.row_ids.fill_null(0).to_numpy())
                unknown = batch.row_ids.is_null()
                yield _owned(batch, pc.if_else(unknown, pa.scalar(None, owners.type), owners))
                continue
            stop = first + len(batch.places)
            if stop > len(self._ids):
                raise _unequal()
            yield _owned(batch, self._take(slice(first, stop)))
            first = stop
        if first not in (0, len(self._ids)):
            raise _unequal()

    def _take(self, rows: Any) -> pa.Array:
        ids = self._ids[rows]
        ids = ids.tolist() if ids.dtype.kind == "U" else ids.astype(ids.dtype.newbyteorder("="))
        return id_cells(pa.array(ids, pa.string() if isinstance(ids, list) else None))


def _owned(batch: RowBatch, owners: pa.Array) -> RowBatch:
    """Return a batch with the given ids of individuals attached; rows without an id are rejected."""
    rejected = batch.rejected
    if owners.null_count:
        missing = owners.is_null().to_numpy(zero_copy_only=False)
        rejected = missing if rejected is None else rejected | missing
    return replace(batch, unit_ids=owners, rejected=rejected)


def declared_rows(n_rows: int) -> Iterator[RowBatch]:
    """Yield every row of a matrix whose source declares the number of rows, each as an empty row.

    Grouped with the entries of the source, they ensure that rows without entries are not lost.
    """
    for first in range(0, n_rows, _STEP):
        rows = np.arange(first, min(first + _STEP, n_rows))
        yield RowBatch(
            values=np.empty(0),
            indices=np.empty(0, dtype=np.int64),
            row_ptr=np.zeros(len(rows) + 1, dtype=np.int64),
            record_ptr=np.arange(len(rows) + 1),
            places=rows,
            place="row",
            row_ids=pa.array(rows),
        )


def _unequal() -> BadSource:
    return BadSource("the number of individuals' ids differs from the number of rows; give one id for each row")


type Source = str | Path | SourceFile | Sequence[str | Path]
"""The files of an ingest, by name or as an opened file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenSource:
    """The opened files of an ingest, with everything needed to read them.

    Attributes
    ----------
    files : sequence of SourceFile, the files with rows, and the file with unit ids if there is one
    declared : Declared, the user's declarations; names of public items that were read from the rows are included
    reader : FilesReader, the reader of all files
    owners : Units or None, the ids of the rows' individuals, if a separate file lists them
    factors : float64 array of shape (n_features,), or None, public factors by which the columns are multiplied
    dtype : numpy dtype of the stored values
    merges : str, the policy for several values of one row and column: "sum", "mean", "last" or "refuse"
    """

    files: Sequence[SourceFile]
    declared: Declared
    reader: FilesReader
    owners: Units | None
    factors: NDArray[np.float64] | None
    dtype: np.dtype[Any]
    merges: str

    @property
    def names(self) -> Sequence[str] | None:
        """Names of the columns: the declared names, or else the names in the source."""
        return self.declared.names or self.reader.names

    def request(self, options: IngestOptions, *, block_nnz: int) -> dict[str, Any]:
        """Return all facts that determine which blocks this ingest writes.

        An ingest can resume the blocks of a killed ingest if both have equal requests.
        """
        declared = asdict(self.declared)
        if declared["header"] is None:
            del declared["header"]
        for name in (
            "value_named",
            "drop_others",
            "is_unattended",
            "schema",
            # these declarations do not change the blocks: they only cause refusals, or are included elsewhere in the
            # request
        ):
            del declared[name]
        schema = self.declared.schema
        return {
            "files": [_fingerprint(file) for file in self.files],
            "declared": declared,
            "rows": [options.max_rows_per_unit, options.quarantines, str(self.dtype), block_nnz],
            "scale": None if self.factors is None else self.factors.tolist(),
            "duplicates": self.merges,
            **({"keep_zeros": True} if options.keep_zeros else {}),
            **({} if schema is None else {"schema": schema.facts()}),
        }


@contextmanager
def open_source(
    source: Source,
    *,
    options: IngestOptions,
    declared: Declared,
    rejects: Rejects,
    saved: SavedColumns | None = None,
) -> Iterator[OpenSource]:
    """Open the files of a source, and close them at the end of the context.

    Parameters
    ----------
    source : str, Path, or a sequence of them, or an opened file
        See `storage.formats.files.find_files` for folders and patterns.
    options : IngestOptions
    declared : Declared
        The user's declarations about the source, as the readers require them.
    rejects : Rejects
        Receives the names of the files, for messages about bad rows.
    saved : SavedColumns or None
        The columns of the dataset's current snapshot. If a table has these columns in another order, they are reordered
        by name.

    Raises
    ------
    Invalid
        If an option does not fit the source.
    BadSource
        If a file is missing or breaks a rule of its format, or if its columns differ from the dataset's columns.
    """
    sources = [source] if isinstance(source, str | Path | SourceFile) else list(source)
    rejects.file = ", ".join(each.address if isinstance(each, SourceFile) else str(each) for each in sources)
    files = find_files(sources)
    if options.public_items:
        # bad rows are reported later, when the rows are read for the ingest
        skipped = SkippedRows() if rejects.is_tolerant else Rejects()
        declared = replace(declared, names=infer_items(files, declared, rejects=skipped))
    if saved is not None and declared.names is None:
        declared = _as_saved(files, declared, rejects, saved)
    with closing(FilesReader(files, declared, rejects)) as reader:
        if options.keep_zeros and not reader.scattered:
            raise Invalid(TRIPLETS_ALONE)
        if options.duplicates is not None and not reader.repeats:
            raise Invalid(ENTRIES_ALONE)
        merges = options.duplicates or ("sum" if reader.scattered else "refuse")
        if declared.is_unattended and reader.scattered and options.duplicates is None:
            raise Invalid(
                "duplicates is missing, but an unattended run needs a rule for two values in one row and column "
                "before it reads a row; give sum, mean, last or refuse"
            )
        if declared.names is not None and reader.names is not None and not reader.scattered:
            _check_order(declared.names, reader.names)
        # with public items, a new ingest may have new columns, so columns are not compared
        if saved is not None and not options.public_items:
            names = declared.names or reader.names
            saved.check(names, n_features=reader.n_features, scattered=reader.scattered)
        rejects.names = reader.names
        owners = None if options.units is None else Units(Path(options.units), reader=reader)
        factors = None if options.scale is None else read_scale(options.scale, n_features=reader.n_features)
        yield OpenSource(
            files=[*files, *([] if options.units is None else [LocalFile(Path(options.units))])],
            declared=declared,
            reader=reader,
            owners=owners,
            factors=factors,
            dtype=_stored_dtype(reader.dtype, options, is_divided=factors is not None or merges == "mean"),
            merges=merges,
        )


def _as_saved(files: Sequence[SourceFile], declared: Declared, rejects: Rejects, saved: SavedColumns) -> Declared:
    """Declare the current snapshot's column names if tables have these names in another order.

    Readers then match the columns by name.
    """
    with closing(FilesReader(files, declared, rejects)) as reader:
        chosen = of_reader(reader.format)
        is_table = chosen is not None and chosen.is_table and not reader.scattered
        return replace(declared, names=saved.names) if is_table and saved.is_permuted(reader.names) else declared


def _check_order(declared: Sequence[str], found: Sequence[str]) -> None:
    """Refuse declared names that are the names in the source in another order.

    Columns are matched by position. Entirely different names would rename the columns, which is allowed. Permuted names
    would give columns the names of other columns.

    Raises
    ------
    Invalid
        If the declared names are a permutation of the names in the source.
    """
    if len(declared) == len(found) and set(declared) == set(found) and list(declared) != list(found):
        raise Invalid(
            "the feature names are the file's names in another order, but its columns are matched by position; omit "
            "the names, or give them in the order of the file"
        )


def _stored_dtype(dtype: np.dtype[Any], options: IngestOptions, *, is_divided: bool) -> np.dtype[Any]:
    if options.dtype is not None:
        return stored_dtype(options.dtype)
    return np.dtype(np.float64) if is_divided and dtype.kind != "f" else stored_dtype(dtype)


def _fingerprint(file: SourceFile) -> tuple[str, int, str]:
    """Return the location of a file, its size, and a tag that changes with its content."""
    return str(file.path.absolute()) if isinstance(file, LocalFile) else file.address, *file.version()
