"""Arrays in the .npy format, read piece by piece from any stream; no allocation trusts a header.

>>> import io
>>> stream = io.BytesIO()
>>> np.save(stream, np.arange(6.0).reshape(3, 2))
>>> NpyRows(stream, size=stream.tell())[1:3].tolist()
[[2.0, 3.0], [4.0, 5.0]]
"""

import math
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from storage.errors import BadSource

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read (shape, whether columns come first, dtype) from the start of the array.

    Raises
    ------
    ValueError
        If it is no header, or that of an array of objects.
    """
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"npy version {version}")
    shape, by_columns, dtype = _HEADERS[version](stream)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"{shape} array of {dtype}")
    return shape, by_columns, dtype


class NpyRows:
    """An array in a seekable stream, read whole or some rows at a time.

    Parameters
    ----------
    stream : file of bytes, at its beginning
    size : int, bytes of the file

    Raises
    ------
    ValueError
        If it is no array, or the file is shorter than its header declares.
    BadSource
        If the file is longer, as one with two arrays is.
    """

    def __init__(self, stream: BinaryIO, *, size: int) -> None:
        self._stream = stream
        stream.seek(0)
        self.shape, by_columns, self.dtype = read_header(stream)
        self._start = stream.tell()
        declared = self._start + math.prod(self.shape) * self.dtype.itemsize
        if size < declared:
            raise ValueError("the file is shorter than its header declares")
        if size > declared:
            raise BadSource(
                f"the file has {size - declared} more bytes than its header declares; save one array a file"
            )
        self.is_by_columns = by_columns and len(self.shape) > 1

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read some consecutive rows."""
        first, stop, _ = rows.indices(self.shape[0])
        count, width = max(stop - first, 0), math.prod(self.shape[1:])
        if not self.is_by_columns:
            return self._read(first * width, count * width).reshape(count, *self.shape[1:])
        found = np.empty((count, width), dtype=self.dtype)
        for column in range(width):
            found[:, column] = self._read(column * self.shape[0] + first, count)
        return found

    def whole(self) -> NDArray[Any]:
        """Read the whole array, which must be small."""
        order: Literal["C", "F"] = "F" if self.is_by_columns else "C"
        return self._read(0, math.prod(self.shape)).reshape(self.shape, order=order)

    def _read(self, first: int, count: int) -> NDArray[Any]:
        self._stream.seek(self._start + first * self.dtype.itemsize)
        raw = self._stream.read(count * self.dtype.itemsize)
        return np.frombuffer(raw, dtype=self.dtype, count=count)
