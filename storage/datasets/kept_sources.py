"""The last source and inbox of each dataset, kept in the home folder: runs name a dataset and not its private files.

A reference is ``@`` and a dataset's name. Paths of private files stay on this machine: an orchestrator stores and shows
only the reference, and a schedule ingests again from the same files.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.datasets.catalog import check_name
from storage.datasets.ingest_options import IngestOptions
from storage.errors import NotFound
from storage.options import options_of

_SIGN = "@"
SOURCES, INBOXES = "sources", "inboxes"
"""Where the files of a dataset's ingest are kept, and where those of its closed loop."""
FILES = ("source", *(option.name for option in options_of(IngestOptions) if option.handling.is_file))
"""The arguments of an ingest that name files."""

_ONCE_REFRESHED = "run `dpca subspace refresh` once by hand"

type Files = Mapping[str, str | list[str] | None]


def is_reference(source: object) -> bool:
    """Return whether a source is a reference and not files."""
    return isinstance(source, str) and source.startswith(_SIGN)


def reference_to(name: str) -> str:
    """Return the reference to a dataset's source."""
    return f"{_SIGN}{name}"


def keep_source(home: Path, name: str, files: Files, kind: str = SOURCES) -> None:
    """Store the files of a dataset's source, readable by their owner alone.

    Raises
    ------
    Invalid
        If the name is not one of a dataset.
    Unavailable
        If the home folder cannot be written.
    """
    folder = home / kind
    kept = {what: _absolute(files.get(what)) for what in FILES}
    path = folder / f"{check_name(name)}.json"
    with writing(folder):
        make_folder(folder)
        write_atomically(path, json.dumps(kept).encode())


def find_source(home: Path, reference: str, kind: str = SOURCES) -> dict[str, Any]:
    """Return the files stored under a reference, by the names in `FILES`.

    Raises
    ------
    NotFound
        If none are stored.
    """
    name = check_name(reference.removeprefix(_SIGN))
    try:
        kept: dict[str, Any] = json.loads((home / kind / f"{name}.json").read_text())
    except FileNotFoundError:
        once = f"ingest {name} once with `dpca dataset ingest`" if kind == SOURCES else _ONCE_REFRESHED
        raise NotFound(
            f"no source is kept as {reference!r} in this home; {once}, or give the files themselves."
        ) from None
    return {what: kept.get(what) for what in FILES}


def _absolute(files: Any) -> Any:
    if files is None:
        return None
    if isinstance(files, list):
        return [_absolute(one) for one in files]
    return files if "://" in str(files) else os.path.abspath(files)  # noqa: PTH100 - a pattern may be no path
