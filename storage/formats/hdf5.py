"""Opening of HDF5 files, after a trial in a separate process.

The trial is needed because the HDF5 library loops for ever, or crashes, on some broken files. The trial process runs
``python -m storage.formats.hdf5 ADDRESS``, which reads the metadata that a reader needs before the rows, and prints
nothing. With the further argument ``held``, it reads the file that is open as standard input, and the address is only a
name.
"""

import subprocess
import sys
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpca.errors import BadSource, Invalid
from storage.formats.files import SourceFile, locate
from storage.formats.held_files import HeldFile

CSR = ("indptr", "indices", "data")
"""Names of the arrays in a group with a CSR matrix."""
_SECONDS = 20.0
_HELD = "held"


def open_hdf5(file: SourceFile, opened: ExitStack) -> Any:
    """Open an HDF5 file after a trial in a separate process; the exit stack `opened` closes the file.

    Raises
    ------
    BadSource
        If the trial process crashes, or does not end in time.
    Invalid
        If h5py is not installed.
    """
    if find_spec("h5py") is None:
        raise Invalid("reading .h5ad and .h5 needs h5py; install the extra: pip install 'dpca-pipeline[anndata]'")
    import h5py

    if not _is_survived(file.address, file.version(), file.descriptor if isinstance(file, HeldFile) else None):
        raise BadSource(
            f"the file's header cannot be read within {_SECONDS:g} s, or crashes the HDF5 library; save the file again"
        )
    return opened.enter_context(h5py.File(opened.enter_context(file.open()), mode="r"))


class _Frame:
    """An array of names, with the interface of a frame (`obs` or `var`) of an AnnData store."""

    def __init__(self, names: Any) -> None:
        self.attrs, self._names = {"_index": "names"}, names

    def __getitem__(self, _: str) -> Any:
        return self._names


class _Cells:
    """The matrix of a 10x file, with the interface of a CSR matrix of cells by features.

    The file stores a CSC matrix of features by cells, which has the same arrays.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        features, cells = (int(size) for size in group["shape"][:])
        self.attrs = {"shape": (cells, features), "encoding-type": "csr_matrix"}

    def __contains__(self, name: str) -> bool:
        return name in self._group

    def __getitem__(self, name: str) -> Any:
        return self._group[name]

    def keys(self) -> list[str]:
        """Return the names of the CSR arrays that the group contains."""
        return [name for name in CSR if name in self._group]


def find_matrix(root: Any) -> tuple[Any, Any]:
    """Return the matrix of a store, and the frames (`var` and `obs`) with the names of columns and rows.

    Each row of the matrix is one record.

    Raises
    ------
    BadSource
        If the store contains no matrix, or several matrices.
    """
    if hasattr(root, "shape") or (set(CSR) <= set(root.keys()) and "barcodes" not in root):
        return root, {}
    if "X" in root and getattr(root["X"], "shape", ()) is not None:
        return root["X"], root
    groups = [root[name] for name in root if "barcodes" in getattr(root[name], "keys", list)()]
    if len(groups) == 1 and {*CSR, "shape"} <= set(groups[0].keys()):
        group = groups[0]
        names = group["features"]["id"] if "features" in group else group["genes"]
        return _Cells(group), {"var": _Frame(names), "obs": _Frame(group["barcodes"])}
    if groups:
        raise BadSource("the file has several 10x matrices, one per genome; save each separately as .h5ad")
    layers = sorted(root["layers"].keys()) if "layers" in root else []
    if layers:
        raise BadSource(
            f"the store has no X, but the layer {layers[0]!r}; copy a layer to X, as in adata.X = "
            f"adata.layers[{layers[0]!r}], and save it again"
        )
    raise BadSource(
        "the store has no X, the matrix of rows, and is not a 10x file; save a dense array or csr matrix as X"
    )


def read_names(root: Any, frame: str) -> list[str] | None:
    """Read the names of the columns (``var``) or rows (``obs``) of an AnnData store; None if there are none."""
    index = find_index(root, frame)
    if index is None:
        return None
    return as_texts(index[:])


def as_texts(names: Any) -> list[str]:
    """Return an array of names, which may be bytes, as a list of text."""
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]


def find_index(root: Any, frame: str) -> Any:
    """Return the array with the names of a frame (``var`` or ``obs``), or None if the frame has no names."""
    if frame not in root or "_index" not in root[frame].attrs:
        return None
    index = root[frame][str(root[frame].attrs["_index"])]
    return index if hasattr(index, "shape") else index["values"]


@lru_cache(maxsize=1024)
def _is_survived(address: str, version: tuple[int, str], opened: int | None) -> bool:
    command = [sys.executable, "-m", "storage.formats.hdf5", address]
    try:
        ended = subprocess.run(
            command if opened is None else [*command, _HELD],
            stdin=opened,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode >= 0


def _read_head(file: SourceFile) -> None:
    with ExitStack() as opened:
        import h5py

        root = opened.enter_context(h5py.File(opened.enter_context(file.open()), mode="r"))
        matrix, frames = find_matrix(root)
        dict(matrix.attrs)
        read_names(frames, "var")


if __name__ == "__main__":
    _read_head(HeldFile(Path(sys.argv[1]), 0) if sys.argv[2:] == [_HELD] else locate(sys.argv[1]))
