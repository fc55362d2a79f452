"""In-memory object store under the product's own object-store code, where each request is a step of the scheduler.

Only the client's functions are replaced. obstore's `MemoryStore` implements conditional writes, tags and listings.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import obstore
import zarr.storage
from obstore.store import MemoryStore

from dpca.backends import s3

ADDRESS = "s3://histories"

Watch = Callable[[str, str, bytes], None]
"""Callback before each request, with its operation, its path, and the bytes that it writes."""


@dataclass(frozen=True, slots=True)
class At:
    """The in-memory store, seen under a prefix."""

    store: MemoryStore
    prefix: str

    def full(self, path: str) -> str:
        """Return the path of an object in the whole store."""
        return f"{self.prefix}/{path}".strip("/")

    def short(self, path: str) -> str:
        """Return the path of an object under the prefix."""
        return path.removeprefix(f"{self.prefix}/")

    def entry(self, entry: Any) -> dict[str, Any]:
        """Return the metadata of an object, with its path under the prefix."""
        return {**entry, "path": self.short(entry["path"])}


@contextmanager
def in_memory(folder: Path | None, *, watch: Watch = lambda *_: None) -> Iterator[MemoryStore | None]:
    """Keep objects in memory, loaded from a folder and written back to it; without a folder, do nothing."""
    if folder is None:
        yield None
        return
    store = MemoryStore()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            obstore.put(store, path.relative_to(folder).as_posix(), path.read_bytes())
    with (
        patch.object(s3, "S3Store", lambda _bucket, *, prefix, **_settings: At(store, prefix or "")),
        patch.object(s3, "obstore", _requests(watch)),
        patch.object(s3, "each", _one_by_one),
        patch.object(s3.ObjectPlace, "zarr_store", _zarr_store),
    ):
        yield store
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, payload in contents(store).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(payload)


def contents(store: MemoryStore) -> dict[str, bytes]:
    """Return the objects of a store by their paths."""
    paths = [entry["path"] for entry in obstore.list(store).collect()]
    return {path: bytes(obstore.get(store, path).bytes()) for path in sorted(paths)}


def _requests(watch: Watch) -> SimpleNamespace:
    def get(at: At, path: str) -> Any:
        watch("get", at.full(path), b"")
        return obstore.get(at.store, at.full(path))

    def put(at: At, path: str, payload: Any, **conditions: Any) -> Any:
        content = payload.read_bytes() if isinstance(payload, Path) else bytes(payload)
        watch("put", at.full(path), content)
        return obstore.put(at.store, at.full(path), content, **conditions)

    def delete(at: At, paths: Any) -> None:
        for path in [paths] if isinstance(paths, str) else paths:
            watch("delete", at.full(path), b"")
            obstore.delete(at.store, at.full(path))

    def listed(at: At, folder: str) -> Any:
        watch("list", at.full(folder), b"")
        found = [at.entry(entry) for entry in obstore.list(at.store, at.full(folder)).collect()]
        return _Listed([found])

    def list_with_delimiter(at: At, folder: str) -> Any:
        watch("list", at.full(folder), b"")
        found = obstore.list_with_delimiter(at.store, at.full(folder))
        prefixes = [at.short(path) for path in found["common_prefixes"]]
        return {"common_prefixes": prefixes, "objects": [at.entry(entry) for entry in found["objects"]]}

    return SimpleNamespace(get=get, put=put, delete=delete, list=listed, list_with_delimiter=list_with_delimiter)


class _Listed(list[Any]):
    """The pages of a listing of objects."""

    def collect(self) -> list[Any]:
        """Return all pages of the listing as one page."""
        return [entry for page in self for entry in page]


def _one_by_one[T](function: Callable[[str], T], paths: Iterable[str]) -> list[T]:
    """Call a function for each path in turn, as a replacement for the product's concurrent requests."""
    return [function(path) for path in paths]


def _zarr_store(place: s3.ObjectPlace) -> Any:
    """Return the objects under a place's prefix as a Zarr store."""
    at: Any = place._store
    found = {at.short(path): payload for path, payload in contents(at.store).items() if path.startswith(at.prefix)}
    buffers = {
        path: zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data) for path, data in found.items()
    }
    return zarr.storage.MemoryStore(buffers, read_only=True)
