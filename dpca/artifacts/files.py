"""Writing and reading the files of an artifact, in a folder named by the digest of these files.

The folder of an artifact contains ``manifest.json`` and a Zarr v3 group with the arrays, such as ``subspace.zarr``. Any
Zarr reader can open the group. Equal artifacts give equal bytes, and so the same digest and the same folder.

*Kinds.* A manifest states the kind of the artifact. `KINDS` maps each kind to its class, which `Registry.load` returns.

*Arrays.* Arrays are stored as uncompressed float64, in chunks of whole rows. This module encodes Zarr files itself, so
that the digest of equal arrays does not depend on the version of `zarr`. Files are treated as untrusted when they are
read.

*Places that cannot list files.* A web server cannot list the files of a folder. There the names of the files are found
by reading: first the manifest, then the description of each array, which states the number of chunks. None of these
files is trusted. The caller compares the digest of all files with the name of the folder. So a missing, changed or
unexpected file is detected.
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
    """Import the class of a kind of artifact, given the kind's name in `KINDS`."""
    kind: type[Artifact] = resolve_name(KINDS[name])
    return kind


def kind_of(manifest: Mapping[str, Any]) -> type[Artifact]:
    """Return the class of the kind of artifact that a manifest states.

    Raises
    ------
    Invalid
        If this version does not support the format or the kind that the manifest states.
    LookupError, TypeError
        If the manifest states no format or no kind, or is not a mapping.
    """
    form, name = manifest["format"], str(manifest["kind"])
    if form != FORMAT or name not in KINDS:
        raise Invalid(
            f"artifact has format {in_short(form)} and kind {in_short(manifest['kind'])}; this version reads format "
            f"{FORMAT} and the kinds {', '.join(KINDS)}; upgrade dpca-pipeline"
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
    """The shapes of a stored array and of its chunks. Chunks split only the first dimension of an array."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @classmethod
    def parse(cls, payload: bytes, *, name: str, ndim: int) -> Self:
        """Read the shapes of an array and of its chunks from the array's ``zarr.json``.

        Raises
        ------
        AttributeError, LookupError, RecursionError, TypeError, ValueError
            If ``zarr.json`` is not one that `StoredArray.describe` could have written for `ndim` dimensions.
        """
        if len(payload) > MOST_DESCRIPTION:
            raise ValueError(f"the description of array {name} holds more than {MOST_DESCRIPTION} bytes")
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
            raise ValueError(f"array {name} is not stored as uncompressed float64 in whole rows")
        return cls(shape=tuple(shape), chunk=tuple(chunk))

    def describe(self, dimensions: Sequence[str]) -> bytes:
        """Encode the array's ``zarr.json`` with its shape, its chunks and the names of its dimensions."""
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
        """The size of the file of one chunk, in bytes; all chunks have the same size."""
        return 8 * math.prod(self.chunk)

    @property
    def n_chunks(self) -> int:
        """The number of chunks of the array."""
        return -(-self.shape[0] // self.chunk[0])

    def path(self, number: int) -> str:
        """Return the path of chunk `number` within the folder of the array."""
        return f"c/{number}{'/0' * (len(self.shape) - 1)}"


def write_arrays(artifact: Artifact, *, chunk_values: int) -> dict[str, bytes]:
    """Encode an artifact's arrays as Zarr files, and return the files by path.

    Each chunk contains as many whole rows as fit into `chunk_values` values, but at least one row.
    """
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
    """Decode the arrays of an artifact from its files, by name; optional arrays without files are left out.

    Raises
    ------
    AttributeError, LookupError, RecursionError, TypeError, ValueError
        If the files do not have the form that `write_arrays` gives them.
    """
    named = ((name, f"{kind.folder}/{name}", len(dimensions)) for name, dimensions in kind.dimensions.items())
    return {
        name: _array(files, name, folder, ndim) for name, folder, ndim in named if f"{folder}/{DESCRIPTION}" in files
    }


def _array(files: Mapping[str, bytes], name: str, folder: str, ndim: int) -> NDArray[np.float64]:
    """Decode one array, and check that each of its chunk files has exactly the declared size."""
    stored = StoredArray.parse(files[f"{folder}/{DESCRIPTION}"], name=name, ndim=ndim)
    paths = [f"{folder}/{stored.path(number)}" for number in range(min(stored.n_chunks, len(files) + 1))]
    if any(len(files.get(path, b"")) != stored.chunk_bytes for path in paths):
        raise ValueError(f"the chunks of array {name} are not of the size that its shape declares")
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
    """Write an artifact into the registry of a place, in the folder named by the artifact's digest.

    Parameters
    ----------
    artifact : Artifact
    home : Path
        The local home folder. The files are prepared in its subfolder ``staging``.
    place : Place, optional
        The local folder or object store into which the files are published; the home folder by default.

    Returns
    -------
    str
        The digest: SHA-256 over the sorted (path, size, sha256) of the files, in hex.

    Raises
    ------
    Corrupt
        If the folder of this digest already exists, but its files do not have this digest.
    Unavailable
        If `home` or `place` cannot be written, or if the files read back differ from the files written.

    Guarantees
    ----------
    Equal artifacts have equal digests, on one machine with the same versions of all packages. The artifact becomes
    visible whole or not at all. A killed writer leaves at most a folder in ``staging`` and objects without a manifest.
    Writing an artifact again changes nothing.
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
    """Within this context, keep every artifact that `write_artifact` writes in memory, for `known_artifact`."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def known_artifact(place: Place, digest: str) -> Any:
    """Return an artifact from memory if `remembered_artifacts` kept it, or else read it with `read_artifact`.

    An artifact in memory is safe to use: `write_artifact` read its files back from the same place and compared them.
    """
    known = (_known.get() or {}).get((place.address, digest))
    return read_artifact(place, digest) if known is None else known


def read_artifact(place: Place, digest: str) -> Any:
    """Read the artifact with this digest from the registry of a place, and return an object of the artifact's kind.

    Raises
    ------
    Corrupt
        If the artifact is missing, if one of its files was changed, added or removed, or if the files do not have the
        form in which `write_artifact` writes them.
    Invalid
        If this version does not support the artifact's format or kind.
    Unavailable
        If the place does not answer, this user lacks read permission, or the artifact does not fit into memory.

    Guarantees
    ----------
    Each file is read once, so the returned arrays come from the bytes whose digest was checked. Files from any source
    may be read: no content is executed or decompressed, and memory is bounded by a multiple of the size of the files,
    which is known before they are read.
    """
    files = _read_files(place, digest)
    address = place.at(_folder(digest))
    with _checking(address):
        manifest = _manifest(files)
    kind = kind_of(manifest)
    with _checking(address):
        return kind.build(read_arrays(files, kind), manifest)


def read_manifest(place: Place, digest: str) -> dict[str, Any]:
    """Read the manifest of an artifact without reading the arrays and without checking the digest.

    Raises
    ------
    Corrupt
        If the manifest is missing, too large, or not a JSON object.
    Unavailable
        If the place does not answer, or this user lacks read permission.
    """
    path = f"{_folder(digest)}/{_MANIFEST}"
    try:
        manifest = json.loads(place.read(path, most=_MOST_MANIFEST).payload)
    except (FileNotFoundError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise Corrupt(
            f"manifest {place.at(path)} is missing or damaged; a published artifact never changes; restore this file "
            "from a copy"
        )
    return manifest


def _read_files(place: Place, digest: str) -> dict[str, bytes]:
    """Read all files of an artifact, and check that they have the given digest."""
    files = _files_of(place, digest)
    if digest_files(files) != digest:
        raise _other(place, digest, files)
    return files


def _files_of(place: Place, digest: str) -> dict[str, bytes]:
    """Read all files in the folder of a digest, without checking that they have this digest."""
    if not re.fullmatch(DIGEST, digest):
        raise Corrupt(
            f"{digest[:_SHOWN]!r} is not the digest of an artifact; a digest has 64 hex digits; correct the reference"
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
    """Read all files of an artifact.

    If the place cannot list a folder, read the manifest and then each file that the artifact's kind may have.
    """
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
            f"artifact {place.at(folder)} is not valid ({found}), so its files were changed or the URL is wrong; "
            "correct the URL, or request a valid copy from its publisher"
        ) from None


def _stage(files: Mapping[str, bytes], staged: Path, digest: str) -> None:
    write_files(staged, files)
    if read_tree(staged) != files:
        raise Corrupt(
            f"artifact {digest} reads back differently from {staged} than it was written; check the disk and run the "
            "same request again"
        )


def _folder(digest: str) -> str:
    return f"registry/artifacts/{digest}"


def _pack(artifact: Artifact) -> dict[str, bytes]:
    return {_MANIFEST: canonical_json(artifact.manifest), **write_arrays(artifact, chunk_values=_CHUNK_VALUES)}


def _manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Parse the manifest of an artifact whose digest was checked, but whose content is still untrusted."""
    if len(files[_MANIFEST]) > _MOST_MANIFEST:
        raise ValueError(f"{_MANIFEST} holds more than {_MOST_MANIFEST} bytes")
    manifest = json.loads(files[_MANIFEST])
    return {**manifest, "format": manifest["format"], "kind": manifest["kind"]}


@contextmanager
def _checking(address: str) -> Iterator[None]:
    """Convert every error that malformed files cause within this context into `Corrupt` with a one-line message."""
    try:
        yield
    except MemoryError:
        raise _too_large(address) from None
    except _BROKEN as error:
        found = in_short(error) or type(error).__name__
        raise Corrupt(
            f"the folder {address} has the digest in its name, but is not a valid artifact ({found}); request a valid "
            "artifact from its publisher"
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
    """Return the largest size, in bytes, of an artifact that may be read.

    The limit is at most a fourth of the machine's memory, because reading takes three times the size of the artifact.
    """
    return min(MOST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


def read_unlisted(place: Place, folder: str, *, manifest: str, most_manifest: int, most: int) -> dict[str, bytes]:
    """Read the files of an artifact from a place that cannot list a folder.

    The manifest states the kind of the artifact. The kind determines which arrays the artifact may have.

    Parameters
    ----------
    place : Place
    folder : str
        The path of the artifact's folder in the place.
    manifest : str
        The file name of the manifest.
    most_manifest, most : int
        The size limits of the manifest and of all other files together, in bytes.

    Returns
    -------
    dict
        The content of each file, by its path within `folder`.

    Raises
    ------
    FileNotFoundError
        If the manifest, the Zarr group, or a chunk of a described array is missing.
    Invalid
        If this version does not support the artifact's format or kind.
    Corrupt, Unavailable
        If a file cannot be read, or the files exceed the limits of `check_sizes`.
    AttributeError, LookupError, RecursionError, TypeError, ValueError
        If a file does not have the form that `write_artifact` gives it.
    """
    files = {manifest: place.read(f"{folder}/{manifest}", most=most_manifest).payload}
    facts: dict[str, Any] = json.loads(files[manifest])
    return files | _arrays(place, folder, kind_of(facts), most=most)


def _arrays(place: Place, folder: str, kind: type[Artifact], *, most: int) -> dict[str, bytes]:
    """Read the ``zarr.json`` of a group and of each of its arrays, and then the chunks that these files declare."""
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
