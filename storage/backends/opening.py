"""Open the place that an address names: a local folder, a prefix of an S3-compatible object store, or a web server."""

from pathlib import Path

from storage.backends.base import Place
from storage.backends.local import LocalPlace

_WEB = ("https://", "http://")


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


def open_published(address: str | Path) -> Place:
    """Return the place of a registry: what `open_place` takes, or ``https://host/path/registry``, which is read-only.

    Raises
    ------
    Invalid
        When it is another kind of URL.
    """
    if isinstance(address, str) and address.startswith(_WEB):
        from storage.backends.web import WebPlace  # at use, likewise

        return WebPlace(address)
    return open_place(address)
