"""Open HDF5 files after a trial in a process of its own: the library loops for ever, or crashes, on some broken ones.

``python -m storage.formats.hdf5 ADDRESS`` reads what a reader reads before the rows, and prints nothing; with ``held``
it reads the file that is open as standard input, for which the address is a name.
"""

import subprocess
import sys
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from storage.errors import BadSource, Invalid
from storage.formats.files import SourceFile, locate
from storage.formats.held_files import HeldFile

_SECONDS = 20.0
_HELD = "held"


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

    if not _is_survived(file.address, file.version(), file.descriptor if isinstance(file, HeldFile) else None):
        raise BadSource(f"its head cannot be read within {_SECONDS:g} s, or crashes HDF5; save it again")
    return opened.enter_context(h5py.File(opened.enter_context(file.open()), mode="r"))


def read_names(root: Any, frame: str) -> list[str] | None:
    """Read the names of the variables (``var``) or rows (``obs``) of an AnnData store, HDF5 or Zarr."""
    index = find_index(root, frame)
    if index is None:
        return None
    return [name.decode() if isinstance(name, bytes) else str(name) for name in index[:].tolist()]


def find_index(root: Any, frame: str) -> Any:
    """Return the array with the names of a frame, or None where it has none."""
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
        dict(root["X"].attrs)
        read_names(root, "var")


if __name__ == "__main__":
    _read_head(HeldFile(Path(sys.argv[1]), 0) if sys.argv[2:] == [_HELD] else locate(sys.argv[1]))
