"""Registry of the source formats and their readers.

Each entry of `FORMATS` states the suffixes, the reader and the allowed declarations of a format. A new format needs a
reader and one entry; commands, flows, help texts and error messages are derived from the entry. A reader is a class
that implements `storage.formats.batch.Reader`, and is called as ``Reader(file, declared=...)``. It is imported when the
first file of its format is opened.

>>> named("npy").suffixes
('.npy',)
>>> by_suffix(".LIBSVM")
'svmlight'
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from dpca.errors import Invalid

DUPLICATES = ("sum", "mean", "last", "refuse")
"""Policies for several values of the same row and column; "refuse" means that the row is bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Properties of one format of source files.

    Attributes
    ----------
    reader : str, module and class of the reader, such as ``storage.formats.dense:NpzReader``
    suffixes : tuple of str, in lower case; a file name that ends in one of these suffixes has this format
    is_table : bool, whether columns have names, so that a schema and a column with ids of individuals are allowed
    keeps_zeros : bool, whether the format may list single entries of a row, so that `keep_zeros` is allowed
    repeats : bool, whether a file may have two values of one row and column, so that `duplicates` is allowed
    needs_width : bool, whether the user must declare the number of features
    density : float or None, the share of stored entries, if the format determines it (1 for dense arrays)
    """

    reader: str
    suffixes: tuple[str, ...]
    is_table: bool = False
    keeps_zeros: bool = False
    repeats: bool = True
    needs_width: bool = False
    density: float | None = None

    def open(self, file: Any, declared: Any) -> Any:
        """Open a file with this format's reader; `declared.format` must be the name of this format."""
        return resolve_name(self.reader)(file, declared=declared)


FORMATS = {
    "svmlight": Format(
        reader="storage.formats.svmlight:SvmlightReader", suffixes=(".svm", ".svmlight", ".libsvm"), needs_width=True
    ),
    "npz": Format(reader="storage.formats.dense:NpzReader", suffixes=(".npz",)),
    "mtx": Format(reader="storage.formats.mtx:MatrixMarketReader", suffixes=(".mtx",), keeps_zeros=True),
    "csv": Format(
        reader="storage.formats.delimited:DelimitedReader", suffixes=(".csv",), is_table=True, keeps_zeros=True
    ),
    "tsv": Format(
        reader="storage.formats.delimited:DelimitedReader", suffixes=(".tsv",), is_table=True, keeps_zeros=True
    ),
    "parquet": Format(
        reader="storage.formats.tables:ParquetReader", suffixes=(".parquet",), is_table=True, keeps_zeros=True
    ),
    "npy": Format(reader="storage.formats.dense:NpyReader", suffixes=(".npy",), repeats=False, density=1.0),
    "zarr": Format(reader="storage.formats.groups:GroupReader", suffixes=(".zarr",)),
    "h5ad": Format(reader="storage.formats.groups:GroupReader", suffixes=(".h5ad", ".h5")),
}


def named(name: str) -> Format:
    """Return the format with this name.

    Raises
    ------
    Invalid
        If there is no such format.
    """
    if name not in FORMATS:
        raise Invalid(f"format {name!r} is not one of {', '.join(FORMATS)}; choose one of them")
    return FORMATS[name]


def by_suffix(suffix: str) -> str | None:
    """Return the name of the format with this suffix, in upper or lower case; None if no format has this suffix."""
    return next((name for name, each in FORMATS.items() if suffix.lower() in each.suffixes), None)


def of_reader(format: str) -> Format | None:  # noqa: A002
    """Return the format whose name a reader reports, with or without compression, such as CSV for ``csv.gz``.

    Return None for "several", which is reported for files of several formats.
    """
    return FORMATS.get(format.partition(".")[0])


def all_suffixes() -> str:
    """Return the suffixes of all formats as text, for messages and help texts."""
    return ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)


def option_help() -> str:
    """Return the help text of an option that selects a format."""
    *others, last = FORMATS
    return f"{', '.join(others)} or {last}; by suffix ({all_suffixes()}) by default."
