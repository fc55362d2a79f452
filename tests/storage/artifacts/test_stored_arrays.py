"""The arrays of an artifact are written as `zarr` writes them, and read back as they were."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore

from storage.artifacts.base import Artifact
from storage.artifacts.stored_arrays import read_arrays, write_arrays

ARRAYS = {
    "components": np.linspace(-1, 1, 21).reshape(7, 3),
    "eigenvalues": np.array([3.5, 2.0, 1e-300]),
    "cube": np.arange(2.0 * 3 * 4).reshape(4, 3, 2).transpose(2, 1, 0),
}
DIMENSIONS = {
    "components": ("component", "feature"),
    "eigenvalues": ("component",),
    "cube": ("topic", "word", "word"),
    "absent": ("feature",),
}


def an_artifact() -> Artifact:
    return cast(Artifact, SimpleNamespace(folder="a.zarr", dimensions=DIMENSIONS, arrays=lambda: ARRAYS))


def written_by_zarr(arrays: Mapping[str, NDArray[np.float64]], chunks: Mapping[str, int]) -> dict[str, bytes]:
    stored: dict[str, Any] = {}
    with zarr.config.set({"json_indent": 2}):
        group = zarr.create_group(MemoryStore(stored), zarr_format=3)
        for name, values in arrays.items():
            group.create_array(
                name,
                data=values,
                chunks=(chunks[name], *values.shape[1:]),
                shards=None,
                filters=None,
                compressors=None,
                serializer=BytesCodec(endian="little"),
                fill_value=0.0,
                dimension_names=DIMENSIONS[name],
                config={"write_empty_chunks": True},
            )
    return {f"a.zarr/{path}": buffer.to_bytes() for path, buffer in stored.items()}


@pytest.mark.parametrize(
    ("chunk_values", "rows"),
    [
        (2**23, {"components": 7, "eigenvalues": 3, "cube": 2}),
        (10, {"components": 3, "eigenvalues": 3, "cube": 1}),
        (1, {"components": 1, "eigenvalues": 1, "cube": 1}),
    ],
)
def test_the_files_are_those_that_zarr_writes(chunk_values: int, rows: Mapping[str, int]) -> None:
    files = write_arrays(an_artifact(), chunk_values=chunk_values)
    assert files == written_by_zarr(ARRAYS, rows)
    read = read_arrays(files, cast(type[Artifact], an_artifact()))
    assert read.keys() == ARRAYS.keys()
    for name, values in read.items():
        np.testing.assert_array_equal(values, ARRAYS[name])
