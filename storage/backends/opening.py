"""Open the place that an address names: a local folder, or a prefix of an S3-compatible object store."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
from storage.backends.base import Place
from storage.backends.local import LocalPlace


def open_place(address: str | Path) -> Place:
    """Return the place at an address: ``s3://bucket/prefix``, or a local folder.

    Raises
    ------
    Invalid
        When it is another kind of URL.
    """
    if isinstance(address, str) and "://" in address:
        from storage.backends.s3 import ObjectPlace  # at use: whoever reads a folder needs no client of object stores

        return ObjectPlace(address)
    return LocalPlace(Path(address).expanduser().absolute())
