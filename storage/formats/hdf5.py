"""Open HDF5 files after a trial in a process of its own: the library loops for ever, or crashes, on some broken ones.

``python -m storage.formats.hdf5 ADDRESS`` reads what a reader reads before the rows, and prints nothing.
"""

import subprocess
import sys
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from storage.errors import BadSource, Invalid
from storage.formats.files import SourceFile, locate

_SECONDS = 20.0


def open_hdf5(file: SourceFile, opened: ExitStack) -> Any:
    """Return an opened file; `opened` closes it.

    Raises
    ------
    BadSource
        If it cannot be opened safely.
    Invalid
        If h5py is not installed.
    """
    if find_spec("h5py") is None:
        raise Invalid("reading .h5ad needs h5py; install the extra: pip install 'dpca-pipeline[anndata]'")
    import h5py

    if not _is_survived(file.address, file.version()):
        raise BadSource(f"its head cannot be read within {_SECONDS:g} s, or crashes HDF5; save it again")
    return opened.enter_context(h5py.File(opened.enter_context(file.open()), mode="r"))


def read_names(root: Any, frame: str) -> list[str] | None:
    """Read the names of the variables (``var``) or rows (``obs``) of an AnnData store, HDF5 or Zarr."""
    if frame not in root or "_index" not in root[frame].attrs:
        return None
    index = root[frame][str(root[frame].attrs["_index"])]
    names = (index if hasattr(index, "shape") else index["values"])[:]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]


@lru_cache(maxsize=1024)
def _is_survived(address: str, version: tuple[int, str]) -> bool:
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "storage.formats.hdf5", address], capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode >= 0


def _read_head(address: str) -> None:
    with ExitStack() as opened:
        import h5py

        root = opened.enter_context(h5py.File(opened.enter_context(locate(address).open()), mode="r"))
        dict(root["X"].attrs)
        read_names(root, "var")


if __name__ == "__main__":
    _read_head(sys.argv[1])
