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
from storage.formats.rejects import Rejects
from storage.schemas.unit_ids import id_cells

_STEP = 1 << 16
_WIDEST = 8  # bytes of a float that Arrow has
_NO_ID = "has no whole number or text as its id in the file of unit ids; correct or drop it"


class Units:
    """The ids of the individuals behind the rows, read through a memory map.

    Parameters
    ----------
    path : Path
        A .npy file of ids of shape (n_rows,), read by `storage.schemas.unit_ids`.
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
        kind = self._ids.dtype.kind
        if self._ids.ndim != 1 or kind not in "iufU" or (kind == "f" and self._ids.dtype.itemsize > _WIDEST):
            raise Invalid(f"unit ids {path} must be whole numbers or text, one for each row; convert them")
        if reader.n_rows not in (None, len(self._ids)):
            raise _unequal()

    def reject_missing(self, rejects: Rejects) -> int:
        """Pass each row without an id to `rejects`, and count them."""
        count = 0
        for first in range(0, len(self._ids), _STEP):
            missing = self._take(slice(first, first + _STEP)).is_null().to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(missing).tolist():
                rejects.reject(place="row", number=first + row, reason=_NO_ID)
            count += int(missing.sum())
        return count

    def attach(self, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
        """Attach to each row the id of its individual; a row without one is rejected.

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
    """Return rows with the ids of their individuals."""
    rejected = batch.rejected
    if owners.null_count:
        missing = owners.is_null().to_numpy(zero_copy_only=False)
        rejected = missing if rejected is None else rejected | missing
    return replace(batch, unit_ids=owners, rejected=rejected)


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
