"""Stored file paths and columns of each dataset, for its next ingest.

The paths of each dataset's last source and inbox are stored in the home folder. A run then names a reference, which is
``@`` followed by the name of the dataset, instead of private files. Prefect stores and shows only this reference, so
paths of private files stay on this machine. A scheduled run ingests again from the same files.

Each new snapshot of a dataset must have the same columns as the current snapshot. Named columns are matched by name,
never by position.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dpca.backends.atomic_files import make_folder, write_atomically, writing
from dpca.errors import BadSource, Invalid, NotFound, StorageError
from dpca.schemas.frames import changed_columns, meaning
from dpca.schemas.schema import Schema
from storage.datasets.catalog import Catalog, check_name
from storage.datasets.ingest_options import IngestOptions
from storage.options import options_of

_SHOWN = 3
_END = "ingest it under another name, or remove the dataset first"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedColumns:
    """The columns of the current snapshot of a dataset.

    Attributes
    ----------
    dataset : str, the name of the dataset
    n_features : int
    names : tuple of str, or None if the columns have no names
    encoder : dict or None, the schema by which the raw columns were encoded
    """

    dataset: str
    n_features: int
    names: tuple[str, ...] | None
    encoder: dict[str, Any] | None

    @classmethod
    def of(cls, catalog: Catalog, name: str) -> Self | None:
        """Return the columns of a dataset's current snapshot, or None if there is none or its files cannot be read."""
        try:
            entry = catalog.current(name)
            rows = catalog.open(entry)
            return cls(dataset=name, n_features=entry.n_features, names=rows.feature_names(), encoder=rows.encoder())
        except StorageError:  # if the dataset has no readable snapshot, there are no columns to compare with
            return None

    def ordered(self, schema: Schema | None) -> Schema | None:
        """Return the declared schema, with its columns in the order of the current snapshot.

        Raises
        ------
        Invalid
            If the schema has other columns than the current snapshot, or declares a column differently.
        """
        if self.encoder is None and schema is None:
            return None
        if self.encoder is None:
            raise Invalid(f"dataset {self.dataset!r} was ingested without a schema, but a schema is given; {_END}")
        if schema is None:
            raise Invalid(
                f"dataset {self.dataset!r} was ingested with a schema, but none is given; give the schema, or {_END}"
            )
        facts = schema.facts()
        if meaning(facts) == meaning(self.encoder):
            return schema
        if changed := changed_columns(self.encoder, facts):
            raise Invalid(
                f"the schema of dataset {self.dataset!r} changes the declaration of {_listed(changed)}; restore the "
                f"earlier declaration, or {_END}"
            )
        if sorted(facts["missing_texts"]) != sorted(self.encoder["missing_texts"]):
            raise Invalid(
                f"the schema of dataset {self.dataset!r} changes missing_texts; restore the earlier texts, or {_END}"
            )
        if not schema.text.header:
            raise Invalid(
                f"the schema of dataset {self.dataset!r} lists its columns in another order, but columns without a "
                f"header are matched by position; restore the order, or {_END}"
            )
        places = {column["name"]: place for place, column in enumerate(self.encoder["columns"])}
        columns = sorted(schema.columns, key=lambda column: places.get(column.name, len(places)))
        return schema.model_copy(update={"columns": tuple(columns)})

    def is_permuted(self, names: Sequence[str] | None) -> bool:
        """Return whether `names` are the dataset's column names in a different order."""
        return (
            names is not None
            and self.names is not None
            and self.names != tuple(names)
            and (sorted(self.names) == sorted(names))
        )

    def check(self, names: Sequence[str] | None, *, n_features: int, scattered: bool) -> None:
        """Refuse a source whose columns differ from the columns of the current snapshot.

        A source of triplets (`scattered`) without column names may have a different number of columns.

        Raises
        ------
        BadSource
            If the number, names or order of the columns differ.
        """
        if self.names is None:
            if n_features != self.n_features and not scattered:
                raise BadSource(
                    f"there are {n_features} features, and dataset {self.dataset!r} has {self.n_features}; {_END}"
                )
            return
        if names is None:
            raise BadSource(
                f"the columns have no names, but those of dataset {self.dataset!r} have names; declare the "
                f"feature names, or {_END}"
            )
        if tuple(names) == self.names:
            return
        missing, others = set(self.names) - set(names), set(names) - set(self.names)
        found = " and ".join(
            f"{_listed(sorted(some))} {what}" for some, what in ((missing, "missing"), (others, "new")) if some
        )
        raise BadSource(
            f"the columns differ from the columns of dataset {self.dataset!r}: {found or 'they have another order'}; "
            f"restore the names and order, or {_END}"
        )


def _listed(names: Sequence[str]) -> str:
    """Return the first few column names as text for a message, with the number of the other names."""
    shown, more = ", ".join(map(repr, names[:_SHOWN])), len(names) - _SHOWN
    return f"{'column' if len(names) == 1 else 'columns'} {shown}{f' and {more} more' if more > 0 else ''}"


_SIGN = "@"
SOURCES, INBOXES = "sources", "inboxes"
"""Folders in the home that store the paths of each dataset's source and of its inbox."""
FILES = ("source", *(option.name for option in options_of(IngestOptions) if option.handling.is_file))
"""Names of the arguments of an ingest that are paths of files."""

_ONCE_REFRESHED = "run `dpca subspace refresh` once by hand"

type Files = Mapping[str, str | list[str] | None]


def is_reference(source: object) -> bool:
    """Return whether a source is a reference (``@`` and the name of a dataset) rather than files."""
    return isinstance(source, str) and source.startswith(_SIGN)


def reference_to(name: str) -> str:
    """Return the reference to a dataset's stored source: ``@`` and the name of the dataset."""
    return f"{_SIGN}{name}"


def keep_source(home: Path, name: str, files: Files, kind: str = SOURCES) -> None:
    """Store the file paths of a dataset's source (or inbox, by `kind`) in a file that only its owner can read.

    Raises
    ------
    Invalid
        If `name` is not an allowed name of a dataset.
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
    """Return the file paths stored under a reference, by the names of the ingest's arguments.

    Raises
    ------
    NotFound
        If no paths are stored under this reference.
    """
    name = check_name(reference.removeprefix(_SIGN))
    try:
        kept: dict[str, Any] = json.loads((home / kind / f"{name}.json").read_text())
    except FileNotFoundError:
        once = f"ingest {name} once with `dpca dataset ingest`" if kind == SOURCES else _ONCE_REFRESHED
        raise NotFound(f"no source is stored as {reference!r} in this home; {once}, or give the files.") from None
    return {what: kept.get(what) for what in FILES}


def _absolute(files: Any) -> Any:
    if files is None:
        return None
    if isinstance(files, list):
        return [_absolute(one) for one in files]
    return files if "://" in str(files) else os.path.abspath(files)  # noqa: PTH100 - a file pattern may not be a path
