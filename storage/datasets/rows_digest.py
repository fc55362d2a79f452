"""Digest of a set of rows in any order, by which the catalog recognizes the same rows in another population."""

import struct
from typing import Any

import numpy as np
from blake3 import blake3
from numba import njit, uint64
from numpy.typing import NDArray

_LABEL = b"dpca rows 1\0"


class RowsDigest:
    """Hash of rows in canonical form that ignores the order of rows and the individuals to which they belong.

    The same rows have the same digest with and without ids of individuals, and for any bound on the rows per
    individual. The catalog uses the digest to recognize rows that another population already has.

    Guarantees
    ----------
    Each row has a 128-bit hash of its columns and values. The hashes of all rows are added up, so the digest depends on
    the multiset of rows. Equal multisets have equal digests. The converse is not secure: an adversary who chooses rows
    may find different rows with the same digest.
    """

    def __init__(self, *, n_features: int) -> None:
        self._n_features, self._n_rows = n_features, 0
        self._sum = np.zeros(2, np.uint64)

    def update(self, *, values: NDArray[Any], indices: NDArray[np.int64], row_ptr: NDArray[np.int64]) -> None:
        """Add rows to the hash.

        Parameters
        ----------
        values : array of shape (nnz,), exact in float64
        indices : integer array of shape (nnz,), columns from 0
        row_ptr : integer array of shape (n_rows + 1,), where each row begins in `values`
        """
        self._n_rows += len(row_ptr) - 1
        # adding 0.0 turns -0.0 into 0.0, so that both have the same hash
        exact = np.ascontiguousarray(values, dtype=np.float64) + 0.0
        _add_rows(self._sum, exact.view(np.uint64), np.asarray(indices, np.int64), np.asarray(row_ptr, np.int64))

    def hexdigest(self) -> str:
        """Return the digest of all rows added so far, as 64 hex digits."""
        shape = struct.pack("<2q", self._n_rows, self._n_features)
        return blake3(_LABEL + shape + self._sum.astype("<u8").tobytes()).hexdigest()


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
    """Mix the bits of a 64-bit integer with the bijection that SplitMix64 uses."""
    word += uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))
