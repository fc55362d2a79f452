"""Checks of a file before a row is read: it must not be broken, nor declare a shape beyond its size.

Libraries raise many kinds of errors at a broken file, and trust any shape that it declares.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa

from storage.errors import BadSource, StorageError
from storage.formats.batch import MAX_FEATURES

MAX_CHUNK = 1 << 30
"""Bytes of the pieces, at most, in which an array is stored: each is held in memory whole."""

_RAISED = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, SyntaxError),
    *(RuntimeError, TokenError, zlib.error, BadZipFile, pa.ArrowException),
)
_ROWS, _ROWS_A_BYTE = 1 << 22, 16
_CELLS, _CELLS_A_BYTE = 1 << 28, 1 << 12


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """Raise one BadSource for every error that a library raises at a broken file.

    An ``OSError`` with a number comes from the disk, and passes unchanged.
    """
    try:
        yield
    except StorageError:
        raise
    except _RAISED as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BadSource(f"this is no readable {kind} (cut short, corrupt or another kind); save it again") from None


def check_width(width: int, n_features: int | None) -> None:
    """Refuse a matrix whose width no dataset has, or is not the declared one.

    Raises
    ------
    BadSource
        If it has another width.
    """
    if not 1 <= width <= MAX_FEATURES:
        raise BadSource(f"the matrix has {width} columns; a dataset has 1 to {MAX_FEATURES}; reshape it")
    if n_features is not None and n_features != width:
        raise BadSource(
            f"the matrix has {width} columns, but {n_features} features are declared; declare the same number or none"
        )


def check_rows(n_rows: int, *, stored: int, width: int = 0) -> None:
    """Refuse a declared shape of almost only empty rows, which costs its reader hours.

    Parameters
    ----------
    n_rows : int
        Declared rows.
    stored : int
        Bytes that hold them.
    width : int
        Declared columns of a dense matrix, of which every cell is read.

    Raises
    ------
    BadSource
        If there are more than four million rows and more than 16 a stored byte, or more than 2^28 cells and more
        than 4,096 a stored byte; or fewer than no row.
    """
    if n_rows < 0:
        raise BadSource(f"the matrix has {n_rows} rows; a matrix has 0 or more; save it again")
    if n_rows > max(_ROWS, _ROWS_A_BYTE * stored) or n_rows * width > max(_CELLS, _CELLS_A_BYTE * stored):
        raise BadSource(
            f"{n_rows} rows are declared in {stored} bytes, so almost all are empty; correct the declared shape"
        )


def check_chunks(chunk: tuple[int, ...] | None, dtype: np.dtype[Any]) -> None:
    """Refuse chunks that do not fit into memory.

    Raises
    ------
    BadSource
        If one takes more than `MAX_CHUNK` bytes.
    """
    size = math.prod(chunk or ()) * dtype.itemsize
    if size > MAX_CHUNK:
        raise BadSource(f"an array is stored in pieces of {size} bytes; save it in pieces of at most {MAX_CHUNK}")


def check_real(dtype: np.dtype[Any]) -> None:
    """Refuse values that are no real numbers.

    Raises
    ------
    BadSource
        If they are not.
    """
    if dtype.kind not in "biuf":
        raise BadSource(f"values have dtype {dtype}; they must be real numbers; convert them")
