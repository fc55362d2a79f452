"""Read the files of an artifact from a place that cannot list them: each is named by what was read before it.

Nothing that is read here is believed: the files must have the digest of the artifact, which whoever asked checks, and
that fails when one is missing, changed, or not among those of its kind.
"""

import json
from typing import Any

from storage.artifacts.base import Artifact
from storage.artifacts.kinds import kind_of
from storage.artifacts.stored_arrays import DESCRIPTION, MOST_DESCRIPTION, StoredArray
from storage.backends.atomic_files import MOST_FILES, check_sizes
from storage.backends.base import Place
from storage.backends.side_by_side import each


def read_unlisted(place: Place, folder: str, *, manifest: str, most_manifest: int, most: int) -> dict[str, bytes]:
    """Read the manifest of an artifact, and the files that its kind may have.

    Parameters
    ----------
    place : Place
    folder : str
        Of the artifact.
    manifest : str
        The name of its manifest.
    most_manifest, most : int
        Bytes of the manifest, and of all files, at most.

    Returns
    -------
    dict
        The files by their paths.

    Raises
    ------
    FileNotFoundError
        When a file is missing that was named.
    Invalid
        As `kind_of`.
    Corrupt, Unavailable
        As `Place.read`, and `check_sizes`.
    AttributeError, LookupError, RecursionError, TypeError, ValueError
        When a file is not in the form that artifacts are written in.
    """
    files = {manifest: place.read(f"{folder}/{manifest}", most=most_manifest).payload}
    facts: dict[str, Any] = json.loads(files[manifest])
    return files | _arrays(place, folder, kind_of(facts), most=most)


def _arrays(place: Place, folder: str, kind: type[Artifact], *, most: int) -> dict[str, bytes]:
    """Read the descriptions of a group and of its arrays, then the chunks that they declare."""
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
