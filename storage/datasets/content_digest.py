"""The content digest of a dataset: the same rows give the same digest, whatever their source and storage.

It is a secret of the curator. Whoever holds it can test a guess of the whole dataset, so it never enters an
artifact, a run key or an orchestrator.

>>> digest = ContentDigest(n_features=3)
>>> digest.update(
...     values=np.array([1.0]), indices=np.array([2]), row_nnz=np.array([1, 0]), record_rows=np.array([1, 1])
... )
>>> len(digest.hexdigest())
64
"""

import struct
from typing import Any

import numpy as np
from blake3 import blake3
from numba import njit, uint64
from numpy.typing import NDArray

_LABEL = b"dpca content 1\0"
_ROWS_LABEL = b"dpca rows 1\0"


class ContentDigest:
    """Hash canonical rows as they stream by, in pieces of any size.

    Guarantees
    ----------
    The digest is BLAKE3 over a label, the number of rows, records and columns, and the BLAKE3 digests of the rows of
    each record, the values of each row, the columns (all int64), the values (float64), little endian, and, where there
    are any, the ordinals of rejected records (int64). Block size, file format and a dtype that holds the values exactly
    do not enter it.
    """

    def __init__(self, *, n_features: int) -> None:
        self._n_features = n_features
        self._n_rows = 0
        self._n_records = 0
        self._streams = tuple(blake3() for _ in range(4))
        self._rejected = blake3()
        self._n_rejected = 0

    def update(
        self,
        *,
        values: NDArray[Any],
        indices: NDArray[np.integer[Any]],
        row_nnz: NDArray[np.integer[Any]],
        record_rows: NDArray[np.integer[Any]],
        rejected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add whole records in order.

        Parameters
        ----------
        values : array of shape (nnz,), exact in float64
        indices : integer array of shape (nnz,), columns from 0
        row_nnz : integer array of shape (n_rows,), stored values of each row
        record_rows : integer array of shape (n_records,), rows of each record
        rejected : bool array of shape (n_records,), or None: the records that are empty because they had a bad row
        """
        if rejected is not None:
            ordinals = self._n_records + np.flatnonzero(rejected)
            self._rejected.update(_bytes(ordinals, "<i8"))
            self._n_rejected += len(ordinals)
        self._n_rows += len(row_nnz)
        self._n_records += len(record_rows)
        kinds = ("<i8", "<i8", "<i8", "<f8")
        for stream, kind, array in zip(self._streams, kinds, (record_rows, row_nnz, indices, values), strict=True):
            stream.update(_bytes(array, kind))

    def hexdigest(self) -> str:
        """Return the digest of everything added so far, as 64 hex digits."""
        shape = struct.pack("<3q", self._n_rows, self._n_records, self._n_features)
        streams = (*self._streams, *([self._rejected] if self._n_rejected else []))
        return blake3(_LABEL + shape + b"".join(stream.digest() for stream in streams)).hexdigest()


def _bytes(array: NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(array, dtype=kind).view(np.uint8).data


class RowsDigest:
    """Hash canonical rows without regard to their order and to whose they are.

    The same rows with ids and without them, and under another bound on the rows of an individual, have one digest:
    by it rows are recognised that other people hold already.

    Guarantees
    ----------
    Each row has a hash of 128 bits of its columns and values, and the hashes are added up, so a digest is one of a bag
    of rows. It is no proof of equality against somebody who chooses rows: it finds the same rows, whoever ingests them.
    """

    def __init__(self, *, n_features: int) -> None:
        self._n_features, self._n_rows = n_features, 0
        self._sum = np.zeros(2, np.uint64)

    def update(self, *, values: NDArray[Any], indices: NDArray[np.int64], row_ptr: NDArray[np.int64]) -> None:
        """Add rows.

        Parameters
        ----------
        values : array of shape (nnz,), exact in float64
        indices : integer array of shape (nnz,), columns from 0
        row_ptr : integer array of shape (n_rows + 1,), where each row begins
        """
        self._n_rows += len(row_ptr) - 1
        exact = np.ascontiguousarray(values, dtype=np.float64) + 0.0  # of a zero, the positive one
        _add_rows(self._sum, exact.view(np.uint64), np.asarray(indices, np.int64), np.asarray(row_ptr, np.int64))

    def hexdigest(self) -> str:
        """Return the digest of everything added so far, as 64 hex digits."""
        shape = struct.pack("<2q", self._n_rows, self._n_features)
        return blake3(_ROWS_LABEL + shape + self._sum.astype("<u8").tobytes()).hexdigest()


@njit(cache=True, nogil=True)
def _add_rows(total, bits, indices, row_ptr):  # type: ignore[no-untyped-def]
    for row in range(len(row_ptr) - 1):
        one, other = uint64(0x9E3779B97F4A7C15), uint64(0xC2B2AE3D27D4EB4F)
        for at in range(row_ptr[row], row_ptr[row + 1]):
            column = uint64(indices[at])
            one = _mixed(one ^ (bits[at] + column * uint64(0xD6E8FEB86659FD93)))
            other = _mixed(other ^ (bits[at] + column * uint64(0xA0761D6478BD642F)))
        total[0] += one
        total[1] += other


@njit(cache=True, nogil=True)
def _mixed(word):  # type: ignore[no-untyped-def]
    """Mix 64 bits one to one, as the last step of SplitMix64 does."""
    word += uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))
