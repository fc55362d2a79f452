"""Write chunks of the padded arrays of a snapshot without Zarr's event loop and buffers: they take longer than codecs.

A chunk has the bytes that Zarr gives it with `COMPRESSORS`, under the key of its default encoding;
`storage.datasets.chunk_reader` reads it.
"""

import struct
from pathlib import Path
from typing import Any

import google_crc32c
from numcodecs import Blosc  # type: ignore[import-untyped]
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec

COMPRESSORS = (BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec())
"""What the metadata of an array name: each chunk is packed, and ends in a CRC-32C."""

_PACKING = Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE)


def write_chunk(array: Path, *, row: int, column: int, items: NDArray[Any]) -> bytes:
    """Write a whole chunk of one row, and return its checksum; a reader of the array may see a part meanwhile.

    Parameters
    ----------
    array : Path
        The folder of the array.
    row, column : int
        Number of the chunk in each dimension.
    items : array of shape (width,), little endian

    Raises
    ------
    OSError
        If the disk is full or cannot be used.
    """
    folder = array / "c" / str(row)
    folder.mkdir(parents=True, exist_ok=True)
    packed = _PACKING.encode(items)
    checksum = struct.pack("<I", google_crc32c.value(packed))
    with (folder / str(column)).open("wb") as file:
        file.write(packed)
        file.write(checksum)
    return checksum
