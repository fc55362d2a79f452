"""The individual behind each row, from a file of ids beside a source that has no column for it.

Examples
--------
::

    owners = Units(Path("patients.npy"), reader=reader)
    for batch in owners.attach(reader.batches(rejects)):
        batch.unit_ids                     # one id a row
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import BadSource, Invalid
from storage.formats.batch import Reader, RowBatch

_STEP = 1 << 16


class Units:
    """The ids of the individuals behind the rows, read through a memory map.

    Parameters
    ----------
    path : Path
        A .npy file of integers or text of shape (n_rows,).
    reader : Reader
        The source that the ids belong to.

    Raises
    ------
    Invalid
        If the file is no such array, or its length is not the number of rows that the source declares.
    """

    def __init__(self, path: Path, *, reader: Reader) -> None:
        if reader.scattered and reader.n_rows is None:
            raise Invalid("rows of triplets have no position in a file of unit ids; name a unit column")
        try:
            self._ids: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError, EOFError):
            raise Invalid(f"unit ids {path} are no readable .npy array; save the ids with numpy.save") from None
        if self._ids.ndim != 1 or self._ids.dtype.kind not in "iuU":
            raise Invalid(f"unit ids {path} must be integers or text, one for each row; convert them")
        if reader.n_rows not in (None, len(self._ids)):
            raise _unequal()

    def attach(self, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
        """Attach to each row the id of its individual.

        Raises
        ------
        BadSource
            If there are not as many rows as ids.
        """
        first = 0
        for batch in batches:
            if batch.row_ids is not None:
                owners = self._take(batch.row_ids.fill_null(0).to_numpy())
                unknown = batch.row_ids.is_null()
                yield replace(batch, unit_ids=pc.if_else(unknown, pa.scalar(None, owners.type), owners))
                continue
            stop = first + len(batch.places)
            if stop > len(self._ids):
                raise _unequal()
            yield replace(batch, unit_ids=self._take(slice(first, stop)))
            first = stop
        if first not in (0, len(self._ids)):
            raise _unequal()

    def _take(self, rows: Any) -> pa.Array:
        ids = self._ids[rows]
        if ids.dtype.kind == "U":
            return pa.array(ids.tolist(), pa.string())
        if ids.dtype == np.uint64:  # some may pass 2^63, and all are treated alike
            return pa.array(ids.astype(str).tolist(), pa.string())
        return pa.array(ids.astype(np.int64))


def declared_rows(n_rows: int) -> Iterator[RowBatch]:
    """Yield every row of a declared matrix as an empty one, so that rows without an entry are kept too."""
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
    return BadSource("there are not as many unit ids as rows; give one id for each row")
