"""Open the files of an ingest: find them, read what they declare, and settle how their values are stored.

Examples
--------
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
from numpy.typing import NDArray

from storage.datasets.ingest_options import ENTRIES_ALONE, TRIPLETS_ALONE, IngestOptions
from storage.datasets.privacy_units import Units
from storage.datasets.saved_columns import SavedColumns
from storage.errors import Invalid
from storage.formats.batch import stored_dtype
from storage.formats.declared import Declared, read_scale
from storage.formats.files import LocalFile, SourceFile, find_files
from storage.formats.registry import of_reader
from storage.formats.rejects import Rejects, SkippedRows
from storage.formats.sources import FilesReader, infer_items

type Source = str | Path | SourceFile | Sequence[str | Path]
"""The files of an ingest as they are named, or one that is open already."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenSource:
    """The opened files of an ingest.

    Attributes
    ----------
    files : sequence of SourceFile, those with rows and the one with unit ids
    declared : Declared, the user's declarations, with the public items if they are taken from the rows
    reader : FilesReader
    owners : Units or None, the individuals behind the rows, where a file lists them
    factors : float64 array of shape (n_features,), or None, the public factors of the columns
    dtype : numpy dtype of the stored values
    merges : str, one of `DUPLICATES`: what several values of one row and column become
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
        """Names of the columns: the declared ones, else those in the source."""
        return self.declared.names or self.reader.names

    def request(self, options: IngestOptions, *, block_nnz: int) -> dict[str, Any]:
        """Return everything that determines the blocks written; a killed ingest of the same can be resumed."""
        declared = asdict(self.declared)
        if declared["header"] is None:
            del declared["header"]
        for name in (
            "value_named",
            "drop_others",
            "is_unattended",
            "schema",
        ):  # a refusal follows from the first, or it is in the files
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
    """Open the files of a source, and close them at the end.

    Parameters
    ----------
    source : str, Path, or a sequence of them, or an opened file
        Files, folders and patterns; see `storage.formats.files.find_files`.
    options : IngestOptions
    declared : Declared
        The options about the schema, as the readers take them.
    rejects : Rejects
        Receives the name of the file being read, for messages.
    saved : SavedColumns or None
        The columns that the dataset has already. Those of a table are brought into their order by name.

    Raises
    ------
    Invalid
        If an option does not fit the source.
    BadSource
        If a file is missing or breaks a rule of its format, or has other columns than the dataset.
    """
    sources = [source] if isinstance(source, str | Path | SourceFile) else list(source)
    rejects.file = ", ".join(each.address if isinstance(each, SourceFile) else str(each) for each in sources)
    files = find_files(sources)
    if options.public_items:
        skipped = SkippedRows() if rejects.is_tolerant else Rejects()  # they are reported when the rows are read
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
                "duplicates is left out, and what becomes of two values in one row and column must be stated before an "
                "unattended run reads a row; give sum, mean, last or refuse"
            )
        if declared.names is not None and reader.names is not None and not reader.scattered:
            _check_order(declared.names, reader.names)
        if saved is not None and not options.public_items:  # items are known by their ids, and more may come
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
    """Declare the saved names, so that columns are found by them, where the columns of tables have another order."""
    with closing(FilesReader(files, declared, rejects)) as reader:
        chosen = of_reader(reader.format)
        is_table = chosen is not None and chosen.is_table and not reader.scattered
        return replace(declared, names=saved.names) if is_table and saved.is_permuted(reader.names) else declared


def _check_order(declared: Sequence[str], found: Sequence[str]) -> None:
    """Refuse names that are those of the source in another order: other names would rename its columns, these mix them.

    Raises
    ------
    Invalid
        If they are.
    """
    if len(declared) == len(found) and set(declared) == set(found) and list(declared) != list(found):
        raise Invalid(
            "the feature names are those of the file in another order, and its columns go by position; leave them out, "
            "or give them in the order of the file"
        )


def _stored_dtype(dtype: np.dtype[Any], options: IngestOptions, *, is_divided: bool) -> np.dtype[Any]:
    if options.dtype is not None:
        return stored_dtype(options.dtype)
    return np.dtype(np.float64) if is_divided and dtype.kind != "f" else stored_dtype(dtype)


def _fingerprint(file: SourceFile) -> tuple[str, int, str]:
    """Return where a file is, its size, and a tag that changes with its content."""
    return str(file.path.absolute()) if isinstance(file, LocalFile) else file.address, *file.version()
