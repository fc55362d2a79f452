"""The files of an artifact, addressed by the digest of their content.

An artifact is a folder named by the digest of its files. It holds ``manifest.json`` and the arrays of its kind as a
Zarr v3 group that any Zarr reader opens, such as ``subspace.zarr``. Equal input gives equal bytes, and so the same
address.

*Kinds.* `KINDS` maps the kind in a manifest to the class that is written and that `Registry.load` returns.

*Arrays.* They are stored as uncompressed float64, in chunks of whole rows. This module writes the same bytes as `zarr`,
so that equal arrays have equal digests with every version of `zarr`. It reads them as untrusted files.

*Places that cannot list files.* Each file is named by a file read earlier: the manifest, then the descriptions of
arrays. These files are not trusted. The caller checks that they have the artifact's digest, which fails if a file is
missing, changed, or not one of its kind.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import FORMAT, Artifact, canonical_json, in_short
from dpca.backends.atomic_files import (
    MOST_BYTES,
    MOST_FILES,
    check_sizes,
    digest_files,
    make_folder,
    reached,
    read_tree,
    write_files,
    writing,
)
from dpca.backends.base import Place, each
from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt, Invalid, StorageError, Unavailable
from dpca.home import STAGING

KINDS = {
    "private_subspace": "dpca.artifacts.subspace:PrivateSubspace",
    "item_embeddings": "dpca.artifacts.embeddings:ItemEmbeddings",
    "private_estimate": "dpca.artifacts.estimate:PrivateEstimate",
    "tensor_components": "dpca.artifacts.tensor:TensorComponents",
    "moment": "dpca.artifacts.moment:PrivateMoment",
    "derived_model": "dpca.artifacts.derived:DerivedModel",
    "correlations": "dpca.artifacts.derived:Correlations",
}
"""The import path of each kind. The class is loaded when an artifact of the kind is read or written."""


def kind_named(name: str) -> type[Artifact]:
    """Load the class of a kind by its name in `KINDS`."""
    kind: type[Artifact] = resolve_name(KINDS[name])
    return kind


def kind_of(manifest: Mapping[str, Any]) -> type[Artifact]:
    """Return the kind of artifact stated in a manifest.

    Raises
    ------
    Invalid
        If the manifest has a later format, or a kind that this version does not support.
    LookupError, TypeError
        If the manifest states no format or kind, or is no mapping.
    """
    form, name = manifest["format"], str(manifest["kind"])
    if form != FORMAT or name not in KINDS:
        raise Invalid(
            f"artifact has format {in_short(form)} and kind {in_short(manifest['kind'])}; this version reads format "
            f"{FORMAT} and kind {', '.join(KINDS)}; upgrade dpca-pipeline"
        )
    return kind_named(name)


DESCRIPTION = "zarr.json"
"""The file that describes the content of a group or an array."""
MOST_DESCRIPTION = 1 << 16
#: The storage options of an array, such that no part of it is larger in memory than on disk.
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
    """The shape of a stored array and of its chunks, which divide only the first dimension."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @classmethod
    def parse(cls, payload: bytes, *, name: str, ndim: int) -> Self:
        """Read the description of an array.

        Raises
        ------
        AttributeError, LookupError, RecursionError, TypeError, ValueError
            If the description does not have the form in which artifacts are written.
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
        """Encode the description of an array, with the names of its dimensions."""
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
        """The size of a chunk's file in bytes."""
        return 8 * math.prod(self.chunk)

    @property
    def n_chunks(self) -> int:
        """The number of chunks."""
        return -(-self.shape[0] // self.chunk[0])

    def path(self, number: int) -> str:
        """Return the path of a chunk in the array's folder."""
        return f"c/{number}{'/0' * (len(self.shape) - 1)}"


def write_arrays(artifact: Artifact, *, chunk_values: int) -> dict[str, bytes]:
    """Return an artifact's arrays as files by path, in chunks of rows with at most `chunk_values` values or one row."""
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
    """Read the arrays of an artifact's kind that are present.

    Raises
    ------
    AttributeError, LookupError, RecursionError, TypeError, ValueError
        If the files do not have the form in which artifacts are written.
    """
    named = ((name, f"{kind.folder}/{name}", len(dimensions)) for name, dimensions in kind.dimensions.items())
    return {
        name: _array(files, name, folder, ndim) for name, folder, ndim in named if f"{folder}/{DESCRIPTION}" in files
    }


def _array(files: Mapping[str, bytes], name: str, folder: str, ndim: int) -> NDArray[np.float64]:
    """Read an array, whose files must have exactly the size of its declared shape."""
    stored = StoredArray.parse(files[f"{folder}/{DESCRIPTION}"], name=name, ndim=ndim)
    paths = [f"{folder}/{stored.path(number)}" for number in range(min(stored.n_chunks, len(files) + 1))]
    if any(len(files.get(path, b"")) != stored.chunk_bytes for path in paths):
        raise ValueError(f"the chunks of {name} are not of the size that its shape declares")
    parts = [np.frombuffer(files[path], "<f8").reshape(stored.chunk) for path in paths]
    found: NDArray[np.float64] = np.concatenate(parts)
    return found[: stored.shape[0]]


def _described(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=2).encode()


DIGEST = "[0-9a-f]{64}"

_MANIFEST = "manifest.json"
_CHUNK_VALUES = 2**23
_MOST_MANIFEST = 1 << 26
_SHOWN = 200
_known: ContextVar[dict[tuple[str, str], Artifact] | None] = ContextVar("known", default=None)
"""The remembered artifacts, by the address of their place and their digest; None outside `remembered_artifacts`."""
_BROKEN = (Invalid, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def write_artifact(artifact: Artifact, *, home: Path, place: Place | None = None) -> str:
    """Write an artifact to its address in the registry of a place.

    Parameters
    ----------
    artifact : Artifact
    home : Path
        The local home folder, in whose ``staging`` folder the files are prepared.
    place : Place, optional
        The place where the files are published; the home folder by default.

    Returns
    -------
    str
        The digest: SHA-256 over the sorted (path, size, sha256) of the files, in hex.

    Raises
    ------
    Corrupt
        If the address already holds an artifact that does not match its digest.
    Unavailable
        If `home` or `place` cannot be written, or the files read back differ.

    Guarantees
    ----------
    Equal input has an equal digest, on one machine with one lock file. The artifact appears whole or not at all. A
    killed writer leaves at most a folder in ``staging`` and objects without a manifest. Writing an artifact again
    changes nothing.
    """
    place = LocalPlace(home) if place is None else place
    files = _pack(artifact)
    digest = digest_files(files)
    staged = home / STAGING / uuid4().hex
    with writing(home):
        make_folder(staged.parent)
        try:
            _stage(files, staged, digest)
            reached("artifact.staged")
            is_new = place.publish(staged, _folder(digest), marker=_MANIFEST)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    reached("artifact.written")
    try:
        found = _files_of(place, digest)
    except Corrupt:
        if is_new:
            raise _unlike_written(place, digest) from None
        raise
    if found != files:
        raise _unlike_written(place, digest) if is_new else _other(place, digest, found)
    if (known := _known.get()) is not None:
        known[place.address, digest] = artifact
    return digest


@contextmanager
def remembered_artifacts() -> Iterator[None]:
    """Keep the artifacts that `write_artifact` writes within this context, for `known_artifact`."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def known_artifact(place: Place, digest: str) -> Any:
    """Return the artifact remembered under this digest, or read it as `read_artifact` does.

    A remembered artifact was read back from the same place and compared byte by byte when it was written.
    """
    known = (_known.get() or {}).get((place.address, digest))
    return read_artifact(place, digest) if known is None else known


def read_artifact(place: Place, digest: str) -> Any:
    """Read the artifact with this digest from the registry of a place, and return it as an object of its kind.

    Raises
    ------
    Corrupt
        If the artifact is missing, one of its files was changed, added or removed, or its form is not that of
        `write_artifact`.
    Invalid
        If it has a later format, or a kind that this version does not support.
    Unavailable
        If the place does not answer, this user lacks read permission, or the artifact does not fit into memory.

    Guarantees
    ----------
    Each file is read once, so the bytes returned are the bytes verified. This holds for files from any source: memory
    is bounded by a multiple of their size, which is known before they are read. No content is executed or decompressed.
    """
    files = _read_files(place, digest)
    address = place.at(_folder(digest))
    with _checking(address):
        manifest = _manifest(files)
    kind = kind_of(manifest)
    with _checking(address):
        return kind.build(read_arrays(files, kind), manifest)


def read_manifest(place: Place, digest: str) -> dict[str, Any]:
    """Read the manifest of an artifact without its arrays, and without checking its digest.

    Raises
    ------
    Corrupt
        If the manifest is missing, exceeds the size limit of a manifest, or is no JSON object.
    Unavailable
        If the place does not answer, or this user lacks read permission.
    """
    path = f"{_folder(digest)}/{_MANIFEST}"
    try:
        manifest = json.loads(place.read(path, most=_MOST_MANIFEST).payload)
    except (FileNotFoundError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise Corrupt(f"{place.at(path)} is missing or damaged; a published artifact never changes; restore it")
    return manifest


def _read_files(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files of an artifact, and check them against its digest."""
    files = _files_of(place, digest)
    if digest_files(files) != digest:
        raise _other(place, digest, files)
    return files


def _files_of(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files at the address of a digest, without checking them."""
    if not re.fullmatch(DIGEST, digest):
        raise Corrupt(
            f"{digest[:_SHOWN]!r} is not a digest; an artifact's name has 64 hex digits; correct the reference to it"
        )
    address = place.at(_folder(digest))
    try:
        return _all_files(place, digest)
    except Unavailable:
        raise
    except MemoryError:
        raise _too_large(address) from None
    except OSError as error:
        raise Corrupt(
            f"artifact {address} cannot be read ({error}); a published artifact never changes; restore that folder "
            "from a copy"
        ) from error


def _all_files(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files that a place lists, or, if it lists none, the files that an artifact of its kind has."""
    folder, most = _folder(digest), _most_bytes()
    if place.lists:
        return place.read_folder(folder, most=most)
    try:
        return read_unlisted(place, folder, manifest=_MANIFEST, most_manifest=_MOST_MANIFEST, most=most)
    except StorageError:
        raise
    except _BROKEN as error:
        found = in_short(error) or type(error).__name__
        raise Corrupt(
            f"artifact {place.at(folder)} is not valid ({found}); its files must be as they were published; correct "
            "the URL, or request a valid copy from its publisher"
        ) from None


def _stage(files: Mapping[str, bytes], staged: Path, digest: str) -> None:
    write_files(staged, files)
    if read_tree(staged) != files:
        raise Corrupt(
            f"artifact {digest} reads back differently from {staged}; "
            "a file must hold what was written; check the disk and run the same request again"
        )


def _folder(digest: str) -> str:
    return f"registry/artifacts/{digest}"


def _pack(artifact: Artifact) -> dict[str, bytes]:
    return {_MANIFEST: canonical_json(artifact.manifest), **write_arrays(artifact, chunk_values=_CHUNK_VALUES)}


def _manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Parse the manifest of untrusted files, whose digest is their only verified property."""
    if len(files[_MANIFEST]) > _MOST_MANIFEST:
        raise ValueError(f"{_MANIFEST} holds more than {_MOST_MANIFEST} bytes")
    manifest = json.loads(files[_MANIFEST])
    return {**manifest, "format": manifest["format"], "kind": manifest["kind"]}


@contextmanager
def _checking(address: str) -> Iterator[None]:
    """Turn every error caused by malformed files into `Corrupt` with a one-line message."""
    try:
        yield
    except MemoryError:
        raise _too_large(address) from None
    except _BROKEN as error:
        found = in_short(error) or type(error).__name__
        raise Corrupt(
            f"artifact {address} has the digest in its name, but is not a valid artifact ({found}); request a valid "
            "one from its publisher"
        ) from None


def _other(place: Place, digest: str, files: Mapping[str, bytes]) -> Corrupt:
    return Corrupt(
        f"artifact {place.at(_folder(digest))} has digest {digest_files(files)}, which must equal the folder's name; "
        "restore that folder from a copy"
    )


def _unlike_written(place: Place, digest: str) -> Unavailable:
    return Unavailable(
        f"artifact {place.at(_folder(digest))} does not read back as it was just written; a store must return what "
        "was written; check it, and run the same request again"
    )


def _too_large(address: str) -> Unavailable:
    return Unavailable(f"artifact {address} needs more memory than this process may use; load it on a larger machine")


def _most_bytes() -> int:
    """Return the size limit of a readable artifact in bytes; reading takes three times as much memory."""
    return min(MOST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


def read_unlisted(place: Place, folder: str, *, manifest: str, most_manifest: int, most: int) -> dict[str, bytes]:
    """Read the manifest of an artifact, and the files that its kind may have.

    Parameters
    ----------
    place : Place
    folder : str
        The folder of the artifact.
    manifest : str
        The name of the manifest's file.
    most_manifest, most : int
        The size limits of the manifest and of all files, in bytes.

    Returns
    -------
    dict
        The files by their paths.

    Raises
    ------
    FileNotFoundError
        If a file named by an earlier file is missing.
    Invalid
        As `kind_of`.
    Corrupt, Unavailable
        As `Place.read`, and `check_sizes`.
    AttributeError, LookupError, RecursionError, TypeError, ValueError
        If a file does not have the form in which artifacts are written.
    """
    files = {manifest: place.read(f"{folder}/{manifest}", most=most_manifest).payload}
    facts: dict[str, Any] = json.loads(files[manifest])
    return files | _arrays(place, folder, kind_of(facts), most=most)


def _arrays(place: Place, folder: str, kind: type[Artifact], *, most: int) -> dict[str, bytes]:
    """Read the descriptions of a group and its arrays, then the chunks that they declare."""
    group = f"{kind.folder}/{DESCRIPTION}"
    paths = {f"{kind.folder}/{name}/{DESCRIPTION}": name for name in kind.dimensions}

    def description(path: str) -> bytes | None:
        try:
            return place.read(f"{folder}/{path}", most=MOST_DESCRIPTION).payload
        except FileNotFoundError:
            if path == group:
                raise
            return None

    named = (group, *paths)
    described = dict(zip(named, each(description, named), strict=True))
    files = {path: payload for path, payload in described.items() if payload is not None}
    sizes: dict[str, int] = {}
    for path, name in paths.items():
        if path in files:
            stored = StoredArray.parse(files[path], name=name, ndim=len(kind.dimensions[name]))
            chunks = range(min(stored.n_chunks, MOST_FILES + 1))
            sizes |= {f"{kind.folder}/{name}/{stored.path(number)}": stored.chunk_bytes for number in chunks}
    check_sizes(place.at(folder), sizes.values(), most=most)
    payloads = each(lambda path: place.read(f"{folder}/{path}", most=sizes[path]).payload, sizes)
    return files | dict(zip(sizes, payloads, strict=True))
