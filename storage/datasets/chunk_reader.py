"""Read chunks of the padded arrays of a snapshot without Zarr's event loop and buffers: they take longer than codecs.

A chunk is Blosc, then four bytes of CRC-32C, under the key that Zarr's default encoding gives it; see
`storage.datasets.snapshot_writer`, which writes it with Zarr.
"""

import struct
from collections.abc import Mapping
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

    def head(self, row: int, length: int) -> tuple[NDArray[Any], bytes]:
        """Return the first `length` items of a row, after which padding follows, and the checksums of its chunks.

        Raises
        ------
        OSError
            If a chunk is missing or cannot be read.
        ValueError, RuntimeError
            If it was changed after it was written.
        """
        chunks = [self._chunk(row, column) for column in range(-(-length // self.width))]
        parts = [items for items, _ in chunks]
        items = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])
        return items[:length], b"".join(checksum for _, checksum in chunks)

    def _chunk(self, row: int, column: int) -> tuple[NDArray[Any], bytes]:
        from numcodecs import blosc  # type: ignore[import-untyped]  # at use: whoever plans reads no row

        payload = np.frombuffer(self.place.read(f"{self.name}/c/{row}/{column}").payload, dtype=np.uint8)
        packed, checksum = payload[: -_CHECKSUM.size], payload[-_CHECKSUM.size :].tobytes()
        if _CHECKSUM.pack(google_crc32c.value(packed)) != checksum:
            raise ValueError("a chunk does not have its checksum")
        items: NDArray[Any] = np.frombuffer(blosc.decompress(packed), dtype=self.dtype)
        if len(items) != self.width:
            raise ValueError("a chunk does not have the length of its array's chunks")
        return items, checksum


def checksum_of(chunks: Mapping[str, bytes]) -> int:
    """Return the checksum of a block from the checksums of its chunks, by array; an array without a chunk is left out.

    A chunk has a checksum of its own, but nothing in it says where it belongs. This one is stored with the extent of
    the block, so a chunk of another block, an older one or a lost one is noticed.
    """
    joined = b"".join(name.encode() + b"\0" + chunks[name] for name in sorted(chunks) if chunks[name])
    return int(google_crc32c.value(joined))
