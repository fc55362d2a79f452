"""The arrays of an artifact as files: a Zarr v3 group of uncompressed float64, in chunks of whole rows.

They are written here to the byte as `zarr` writes them, so that equal arrays have equal digests under every version of
it, and read from untrusted files.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.base import Artifact

DESCRIPTION = "zarr.json"
"""The file of a group or an array that says what is stored there."""
MOST_DESCRIPTION = 1 << 16
#: How an array is stored, so that nothing of it is larger in memory than on the disk.
_STORED = {
    "zarr_format": 3,
    "node_type": "array",
    "data_type": "float64",
    "fill_value": 0.0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "storage_transformers": [],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """The shape of a stored array and of its chunks, of which only the first side may be shorter than the array's."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @classmethod
    def parse(cls, payload: bytes, *, name: str, ndim: int) -> Self:
        """Read the description of an array.

        Raises
        ------
        AttributeError, LookupError, RecursionError, TypeError, ValueError
            When it is not in the form that artifacts are written in.
        """
        if len(payload) > MOST_DESCRIPTION:
            raise ValueError(f"the description of {name} holds more than {MOST_DESCRIPTION} bytes")
        described: dict[str, Any] = json.loads(payload)
        shape, chunk = described["shape"], described["chunk_grid"]["configuration"]["chunk_shape"]
        plain = all(described.get(key, value) == value for key, value in _STORED.items())
        sides = [*shape, *chunk]
        if (
            not plain
            or len(shape) != ndim
            or not all(type(side) is int and side > 0 for side in sides)
            or chunk[1:] != shape[1:]
        ):
            raise ValueError(f"{name} is not stored as uncompressed float64 in whole rows")
        return cls(shape=tuple(shape), chunk=tuple(chunk))

    def describe(self, dimensions: Sequence[str]) -> bytes:
        """Write the description of an array, with the names of its dimensions."""
        chunk = {"chunk_shape": list(self.chunk)}
        return _described(
            {
                "shape": list(self.shape),
                "data_type": _STORED["data_type"],
                "chunk_grid": {"name": "regular", "configuration": chunk},
                "chunk_key_encoding": _STORED["chunk_key_encoding"],
                "fill_value": _STORED["fill_value"],
                "codecs": _STORED["codecs"],
                "attributes": {},
                "dimension_names": list(dimensions),
                "zarr_format": _STORED["zarr_format"],
                "node_type": _STORED["node_type"],
                "storage_transformers": _STORED["storage_transformers"],
            }
        )

    @property
    def chunk_bytes(self) -> int:
        """The size of a chunk's file."""
        return 8 * math.prod(self.chunk)

    @property
    def n_chunks(self) -> int:
        """The number of chunks."""
        return -(-self.shape[0] // self.chunk[0])

    def path(self, number: int) -> str:
        """Return the path of a chunk in the array's folder."""
        return f"c/{number}{'/0' * (len(self.shape) - 1)}"


def write_arrays(artifact: Artifact, *, chunk_values: int) -> dict[str, bytes]:
    """Write the arrays of an artifact as files, by their paths, in chunks of at most so many values or one row."""
    files = {DESCRIPTION: _described({"attributes": {}, "zarr_format": 3, "node_type": "group"})}
    for name, values in artifact.arrays().items():
        rows = min(len(values), max(1, chunk_values // values[:1].size))
        stored = StoredArray(shape=values.shape, chunk=(rows, *values.shape[1:]))
        files[f"{name}/{DESCRIPTION}"] = stored.describe(artifact.dimensions[name])
        for number in range(stored.n_chunks):
            part = np.ascontiguousarray(values[number * rows : (number + 1) * rows], dtype="<f8").tobytes()
            files[f"{name}/{stored.path(number)}"] = part.ljust(stored.chunk_bytes, b"\0")
    return {f"{artifact.folder}/{path}": payload for path, payload in files.items()}


def read_arrays(files: Mapping[str, bytes], kind: type[Artifact]) -> dict[str, NDArray[np.float64]]:
    """Read those arrays of a kind of artifact that are present.

    Raises
    ------
    AttributeError, LookupError, RecursionError, TypeError, ValueError
        When they are not as artifacts are written.
    """
    named = ((name, f"{kind.folder}/{name}", len(dimensions)) for name, dimensions in kind.dimensions.items())
    return {
        name: _array(files, name, folder, ndim) for name, folder, ndim in named if f"{folder}/{DESCRIPTION}" in files
    }


def _array(files: Mapping[str, bytes], name: str, folder: str, ndim: int) -> NDArray[np.float64]:
    """Read an array, whose files are as large as its declared shape."""
    stored = StoredArray.parse(files[f"{folder}/{DESCRIPTION}"], name=name, ndim=ndim)
    paths = [f"{folder}/{stored.path(number)}" for number in range(min(stored.n_chunks, len(files) + 1))]
    if any(len(files.get(path, b"")) != stored.chunk_bytes for path in paths):
        raise ValueError(f"the chunks of {name} are not of the size that its shape declares")
    parts = [np.frombuffer(files[path], "<f8").reshape(stored.chunk) for path in paths]
    found: NDArray[np.float64] = np.concatenate(parts)
    return found[: stored.shape[0]]


def _described(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=2).encode()
