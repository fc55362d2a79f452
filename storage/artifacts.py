"""Write and read the files of a release: an artifact, addressed by the digest of what it holds.

An artifact is a folder named by the digest of its files: ``subspace.zarr`` (a Zarr v3 group that any reader
opens) and ``manifest.json``. Equal input gives equal bytes, so equal input gives the same address.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from storage.crashpoints import reached
from storage.durable import digest_files, digest_tree, make_folder, writing
from storage.errors import Corrupt, Invalid, Unavailable
from storage.places import LocalPlace, Place
from storage.subspace import ARRAYS, FORMAT, KIND, PrivateSubspace, canonical_json

_MANIFEST = "manifest.json"
_ZARR = "subspace.zarr"
_CHUNK_VALUES = 2**23


def write_artifact(subspace: PrivateSubspace, *, home: Path, place: Place | None = None) -> str:
    """Write a subspace to its address in the registry of a place.

    Parameters
    ----------
    subspace : PrivateSubspace
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
        If the files read back differ, or an artifact stands at the address that does not match its digest.
    Unavailable
        If `home` or `place` cannot be written. Nothing appeared at the address.

    Guarantees
    ----------
    Equal input has an equal digest, on one machine and lock. The artifact appears whole or not at all; a
    killed writer leaves at most a folder in ``staging``, and objects without a manifest. Writing again changes
    nothing.
    """
    place = LocalPlace(home) if place is None else place
    files = _pack(subspace)
    digest = digest_files(files)
    staged = home / "staging" / uuid4().hex
    with writing(home):
        make_folder(staged.parent, mode=0o700)
        try:
            _stage(files, staged, digest)
            reached("artifact.staged")
            place.publish(staged, _folder(digest), marker=_MANIFEST)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    reached("artifact.written")
    _read_files(place, digest)
    return digest


def read_artifact(place: Place, digest: str) -> PrivateSubspace:
    """Read the artifact with this digest from the registry of a place.

    Raises
    ------
    Corrupt
        If it is missing, or any file of it was changed, added or taken away.
    Unavailable
        If the place does not answer, or this user may not read it.

    Guarantees
    ----------
    The bytes that were verified are the bytes that are returned: each file is read once.
    """
    return _unpack(_read_files(place, digest))


def _read_files(place: Place, digest: str) -> dict[str, bytes]:
    """Read the files of an artifact, and check them against its digest."""
    address = place.at(_folder(digest))
    try:
        files = place.read_folder(_folder(digest))
    except Unavailable:
        raise
    except OSError as error:
        raise Corrupt(
            f"artifact {address} cannot be read ({error}); a published artifact stays whole; "
            "restore that folder from a copy"
        ) from error
    found = digest_files(files)
    if found != digest:
        raise Corrupt(
            f"artifact {address} has digest {found}; it must be the folder's name; restore that folder from a copy"
        )
    return files


def _stage(files: Mapping[str, bytes], staged: Path, digest: str) -> None:
    for relative, payload in files.items():
        path = staged / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    if digest_tree(staged) != digest:
        raise Corrupt(
            f"artifact {digest} reads back differently from {staged}; "
            "a file must hold what was written; check the disk and run the same request again"
        )


def _folder(digest: str) -> str:
    return f"registry/artifacts/{digest}"


def _pack(subspace: PrivateSubspace) -> dict[str, bytes]:
    import zarr  # at use: whoever only transforms rows does not pay for it
    from zarr.codecs import BytesCodec
    from zarr.storage import MemoryStore

    stored: dict[str, Any] = {}
    # Everything that shapes the bytes is pinned here, against the user's zarr settings and newer defaults.
    with zarr.config.set({"json_indent": 2}):
        group = zarr.create_group(MemoryStore(stored), zarr_format=3)
        for name, values in subspace.arrays().items():
            per_row = values[:1].size
            group.create_array(
                name,
                data=values,
                chunks=(min(len(values), max(1, _CHUNK_VALUES // per_row)), *values.shape[1:]),
                shards=None,
                filters=None,
                compressors=None,
                serializer=BytesCodec(endian="little"),
                fill_value=0.0,
                dimension_names=ARRAYS[name],
                config={"write_empty_chunks": True},
            )
    files = {f"{_ZARR}/{path}": buffer.to_bytes() for path, buffer in stored.items()}
    return {_MANIFEST: canonical_json(subspace.manifest), **files}


def _unpack(files: Mapping[str, bytes]) -> PrivateSubspace:
    import zarr
    from zarr.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    manifest = json.loads(files[_MANIFEST])
    if (manifest["format"], manifest["kind"]) != (FORMAT, KIND):
        raise Invalid(
            f"artifact has format {manifest['format']} and kind {manifest['kind']}; this version reads "
            f"format {FORMAT} and kind {KIND}; upgrade dpca-pipeline"
        )
    prefix = f"{_ZARR}/"
    stored: dict[str, Any] = {
        path.removeprefix(prefix): Buffer.from_bytes(files[path]) for path in files if path.startswith(prefix)
    }
    store = MemoryStore(stored, read_only=True)

    def values(name: str) -> Any:
        return zarr.open_array(store, path=name, mode="r")[...] if f"{name}/zarr.json" in stored else None

    return PrivateSubspace(
        components=values("components"),
        eigenvalues=values("eigenvalues"),
        spectrum=values("spectrum"),
        further=values("further"),
        mean=values("mean"),
        manifest=manifest,
    )
