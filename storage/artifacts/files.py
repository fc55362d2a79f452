"""Write and read the files of an artifact, addressed by the digest of its content.

An artifact is a folder named by the digest of its files: ``manifest.json``, and the arrays of its kind as a Zarr v3
group that any reader opens (``subspace.zarr``). Equal input gives equal bytes, so equal input gives the same address.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import uuid4

from storage.artifacts.base import Artifact
from storage.artifacts.kinds import kind_of
from storage.artifacts.manifest import canonical_json, in_short
from storage.artifacts.stored_arrays import read_arrays, write_arrays
from storage.artifacts.unlisted import read_unlisted
from storage.backends.atomic_files import MOST_BYTES, make_folder, write_files, writing
from storage.backends.base import Place
from storage.backends.crash_points import reached
from storage.backends.digests import digest_files, read_tree
from storage.backends.local import LocalPlace
from storage.errors import Corrupt, Invalid, StorageError, Unavailable
from storage.home import STAGING

DIGEST = "[0-9a-f]{64}"

_MANIFEST = "manifest.json"
_CHUNK_VALUES = 2**23
_MOST_MANIFEST = 1 << 26
_SHOWN = 200
_known: ContextVar[dict[tuple[str, str], Artifact] | None] = ContextVar("known", default=None)
"""The artifacts that are remembered, by the address of their place and their digest; None where none are."""
_BROKEN = (Invalid, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def write_artifact(artifact: Artifact, *, home: Path, place: Place | None = None) -> str:
    """Write an artifact to its address in the registry of a place.

    Parameters
    ----------
    artifact : Artifact
    home : Path
        The local home folder, in whose ``staging`` the files are made.
    place : Place, optional
        Where they appear; the home folder by default.

    Returns
    -------
    str
        The digest: SHA-256 over the sorted (path, size, sha256) of the files, in hex.

    Raises
    ------
    Corrupt
        If an artifact stands at the address that does not match its digest.
    Unavailable
        If `home` or `place` cannot be written, or the files read back differ.

    Guarantees
    ----------
    Equal input has an equal digest, on one machine and lock. The artifact appears whole or not at all; a
    killed writer leaves at most a folder in ``staging``, and objects without a manifest. Writing again changes
    nothing.
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
    """Remember the artifacts that `write_artifact` writes inside, until the end, for `known_artifact`."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def known_artifact(place: Place, digest: str) -> Any:
    """Return the artifact that is remembered under this digest, or else read it as `read_artifact` does.

    One that is remembered was read back from the same place, byte by byte, when it was written.
    """
    known = (_known.get() or {}).get((place.address, digest))
    return read_artifact(place, digest) if known is None else known


def read_artifact(place: Place, digest: str) -> Any:
    """Read the artifact with this digest from the registry of a place: an object of its kind's class.

    Raises
    ------
    Corrupt
        If it is missing, any file of it was changed, added or taken away, or it is not what `write_artifact` writes.
    Invalid
        If it is of a later format, or of a kind that this version does not know.
    Unavailable
        If the place does not answer, this user may not read it, or it does not fit into memory.

    Guarantees
    ----------
    The bytes that were verified are the bytes that are returned: each file is read once. Whoever made the files, memory
    is bounded by a multiple of their size, which is known before they are read, and nothing in them is run or unpacked.
    """
    files = _read_files(place, digest)
    address = place.at(_folder(digest))
    with _checking(address):
        manifest = _manifest(files)
    kind = kind_of(manifest)
    with _checking(address):
        return kind.build(read_arrays(files, kind), manifest)


def read_manifest(place: Place, digest: str) -> dict[str, Any]:
    """Read the manifest of an artifact, without its arrays; its digest is not checked.

    Raises
    ------
    Corrupt
        If it is missing, larger than manifests are, or no JSON object.
    Unavailable
        If the place does not answer, or this user may not read it.
    """
    path = f"{_folder(digest)}/{_MANIFEST}"
    try:
        manifest = json.loads(place.read(path, most=_MOST_MANIFEST).payload)
    except (FileNotFoundError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise Corrupt(f"{place.at(path)} is missing or damaged; a published artifact stays whole; restore it")
    return manifest


def _read_files(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files of an artifact, and check them against its digest."""
    files = _files_of(place, digest)
    if digest_files(files) != digest:
        raise _other(place, digest, files)
    return files


def _files_of(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files at the address of a digest."""
    if not re.fullmatch(DIGEST, digest):
        raise Corrupt(
            f"{digest[:_SHOWN]!r} is no digest; an artifact is named by 64 hex digits; correct what points to it"
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
            f"artifact {address} cannot be read ({error}); a published artifact stays whole; "
            "restore that folder from a copy"
        ) from error


def _all_files(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files that a place lists, or else those that an artifact of its kind has."""
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
            f"artifact {place.at(folder)} is none ({found}); its files must be as they were published; correct the "
            "URL, or ask its publisher for a sound copy"
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
    """Read the public facts of untrusted files, of which only the digest is known."""
    if len(files[_MANIFEST]) > _MOST_MANIFEST:
        raise ValueError(f"{_MANIFEST} holds more than {_MOST_MANIFEST} bytes")
    manifest = json.loads(files[_MANIFEST])
    return {**manifest, "format": manifest["format"], "kind": manifest["kind"]}


@contextmanager
def _checking(address: str) -> Iterator[None]:
    """Turn every error that malformed files cause into `Corrupt`, in one line."""
    try:
        yield
    except MemoryError:
        raise _too_large(address) from None
    except _BROKEN as error:
        found = in_short(error) or type(error).__name__
        raise Corrupt(
            f"artifact {address} has the digest of its name and is no artifact all the same ({found}); "
            "ask its publisher for one that is"
        ) from None


def _other(place: Place, digest: str, files: Mapping[str, bytes]) -> Corrupt:
    return Corrupt(
        f"artifact {place.at(_folder(digest))} has digest {digest_files(files)}; it must be the folder's name; restore "
        "that folder from a copy"
    )


def _unlike_written(place: Place, digest: str) -> Unavailable:
    return Unavailable(
        f"artifact {place.at(_folder(digest))} does not read back as it was written just now; a store must return what "
        "it was given; check it, and run the same request again"
    )


def _too_large(address: str) -> Unavailable:
    return Unavailable(f"artifact {address} needs more memory than this process may have; load it on a larger machine")


def _most_bytes() -> int:
    """Return the bytes that a readable artifact may hold; reading takes three times as much memory."""
    return min(MOST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
