"""Digests of files and folders: a tree is known by the digest of its names, sizes and contents."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from storage.backends.atomic_files import MOST_BYTES, check_sizes, read_file


def relative_paths(root: Path) -> list[str]:
    """List the files under `root`, by relative POSIX path; anything but files and folders is an ``OSError``."""
    # A link would let the same digest name bytes that live, and change, somewhere else.
    found, folders = [], [""]
    while folders:
        below = folders.pop()
        with os.scandir(f"{root}/{below}") as entries:  # no path objects: each takes as long as a look
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{below}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    found.append(f"{below}{entry.name}")
                else:
                    raise OSError(f"{entry.path} is neither a file nor a folder; a digest covers only those; remove it")
    return found


def is_hidden(path: str) -> bool:
    """Tell whether a file, or a folder that it lies in, has a name that begins with a dot."""
    return any(name.startswith(".") for name in path.split("/"))


def read_tree(root: Path, *, most: int = MOST_BYTES) -> dict[str, bytes]:
    """Read every file under `root` into memory, by its relative POSIX path.

    Raises
    ------
    Corrupt, Unavailable
        As `check_sizes`, before anything is read.
    """
    sizes = {relative: os.lstat(f"{root}/{relative}").st_size for relative in relative_paths(root)}
    check_sizes(str(root), sizes.values(), most=most)
    return {relative: read_file(f"{root}/{relative}", most=size) for relative, size in sizes.items()}


def digest_files(files: Mapping[str, bytes]) -> str:
    """Digest files held in memory: SHA-256 of the sorted list of (path, size, sha256), in hex."""
    return _digest((path, len(payload), hashlib.sha256(payload).hexdigest()) for path, payload in files.items())


def digest_tree(root: Path) -> str:
    """Digest every file under `root` as `digest_files` does, reading one piece at a time."""
    return _digest(_entry(root, relative) for relative in relative_paths(root))


def _entry(root: Path, relative: str) -> tuple[str, int, str]:
    with (root / relative).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return relative, file.tell(), sha256


def _digest(entries: Iterable[tuple[str, int, str]]) -> str:
    canonical = json.dumps(sorted(entries), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
