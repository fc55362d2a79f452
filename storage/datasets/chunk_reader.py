"""Read chunks of the padded arrays of a snapshot without Zarr's event loop and buffers: they take longer than codecs.

A chunk is Blosc, then four bytes of CRC-32C, under the key that Zarr's default encoding gives it; see
`storage.datasets.snapshot_writer`, which writes it with Zarr.
"""

import struct
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from storage.backends.base import Place

_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedArray:
    """A 2-D array in chunks of one row, of which the beginning of each row is read.

    Attributes
    ----------
    place : Place, of the group
    name : str, of the array in the group
    dtype : numpy dtype
    width : int, columns of a chunk
    """

    place: Place
    name: str
    dtype: np.dtype[Any]
    width: int

    def head(self, row: int, length: int) -> NDArray[Any]:
        """Return the first `length` items of a row; the rest of it is padding.

        Raises
        ------
        OSError
            If a chunk is missing or cannot be read.
        ValueError, RuntimeError
            If it was changed after it was written.
        """
        chunks = [self._chunk(row, column) for column in range(-(-length // self.width))]
        items = chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, self.dtype), *chunks])
        return items[:length]

    def _chunk(self, row: int, column: int) -> NDArray[Any]:
        from numcodecs import blosc  # type: ignore[import-untyped]  # at use: whoever plans reads no row

        payload = np.frombuffer(self.place.read(f"{self.name}/c/{row}/{column}").payload, dtype=np.uint8)
        packed, checksum = payload[: -_CHECKSUM.size], payload[-_CHECKSUM.size :].tobytes()
        if _CHECKSUM.pack(google_crc32c.value(packed)) != checksum:
            raise ValueError("a chunk does not have its checksum")
        items: NDArray[Any] = np.frombuffer(blosc.decompress(packed), dtype=self.dtype)
        if len(items) != self.width:
            raise ValueError("a chunk does not have the length of its array's chunks")
        return items
