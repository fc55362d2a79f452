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

import hashlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LABEL = b"dpca content 1\0"


class ContentDigest:
    """Hash canonical rows as they stream by, in pieces of any size.

    Guarantees
    ----------
    The digest is SHA-256 over a label, the number of rows, records and columns, and four SHA-256 digests: the
    rows of each record, the values of each row, the columns (all int64) and the values (float64), little
    endian. Block size, file format and a dtype that holds the values exactly do not enter it.
    """

    def __init__(self, *, n_features: int) -> None:
        self._n_features = n_features
        self._n_rows = 0
        self._n_records = 0
        self._streams = tuple(hashlib.sha256() for _ in range(4))

    def update(
        self,
        *,
        values: NDArray[Any],
        indices: NDArray[np.integer[Any]],
        row_nnz: NDArray[np.integer[Any]],
        record_rows: NDArray[np.integer[Any]],
    ) -> None:
        """Add whole records in order.

        Parameters
        ----------
        values : array of shape (nnz,), exact in float64
        indices : integer array of shape (nnz,), columns from 0
        row_nnz : integer array of shape (n_rows,), stored values of each row
        record_rows : integer array of shape (n_records,), rows of each record
        """
        self._n_rows += len(row_nnz)
        self._n_records += len(record_rows)
        kinds = ("<i8", "<i8", "<i8", "<f8")
        for stream, kind, array in zip(self._streams, kinds, (record_rows, row_nnz, indices, values), strict=True):
            stream.update(np.ascontiguousarray(array, dtype=kind).data)

    def hexdigest(self) -> str:
        """Return the digest of everything added so far, as 64 hex digits."""
        shape = struct.pack("<3q", self._n_rows, self._n_records, self._n_features)
        return hashlib.sha256(_LABEL + shape + b"".join(s.digest() for s in self._streams)).hexdigest()
