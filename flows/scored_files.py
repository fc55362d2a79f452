"""Scores (coordinates along the components) of a file's rows under a release, for files of any dataset format."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.errors import BadSource, Invalid
from dpca.schemas.encoder import Encoder
from dpca.schemas.frames import match_names
from storage.formats.batch import Rejects
from storage.formats.declared import Declared
from storage.formats.files import locate
from storage.formats.groups import GroupReader
from storage.formats.registry import named
from storage.formats.sources import format_of, open_file

_STORES = ("zarr", "h5ad")

type Transformer = PrivateSubspace | TensorComponents
"""An artifact that maps each row to one number for each component."""


class Scores(NamedTuple):
    """The scores of a file's rows under a release.

    Attributes
    ----------
    values : float64 array of shape (n_rows, n_components)
    ids : Arrow array of n_rows ids, or None if the rows have no ids
    notes : dict of str to str, which columns were ``permuted`` or ``left_out``, if any were
    """

    values: NDArray[np.float64]
    ids: pa.Array | None
    notes: dict[str, str]


def score_file(
    release: Transformer, source: Path, declared: Declared, watch: Callable[[int], None] | None = None
) -> Scores:
    """Read a file by its format and score its rows; the parameters are as in `flows.transform.transform_file`."""
    kind = declared.format or format_of(locate(source))
    if declared.unit_column is not None and not named(kind).is_table:
        raise Invalid(f"{kind} has no columns of ids; leave out --id-column, or give CSV, TSV or Parquet.")
    names, raw = release.manifest.get("feature_names"), release.encoder if named(kind).is_table else None
    if raw is not None and declared.header is not None:
        raise Invalid(
            "the schema of this release determines whether a header is present; leave out --header and --no-header."
        )
    with closing(open_file(source, _with_width(declared, kind, release, names, raw))) as reader:
        if reader.scattered:
            raise BadSource(
                "rows are split over several lines; ingest the file, or give one complete row for each line"
            )
        order, ids, done = None, [], 0
        if isinstance(reader, GroupReader) and reader.names is not None and names is not None:
            order = match_names(reader.names, names, noun=release.noun, drop_others=declared.drop_others)
        parts = [np.empty((0, release.n_components))]
        for batch in reader.batches(Rejects()):
            shape = (batch.row_ptr.size - 1, reader.n_features)
            rows = sparse.csr_array((batch.values, batch.indices, batch.row_ptr), shape=shape)
            rows = rows if order is None else rows[:, order]
            rows.sort_indices()  # scores then do not depend on the order of the file's columns
            parts.append(release.transform(rows))
            ids += [] if batch.unit_ids is None else [batch.unit_ids]
            done += len(parts[-1])
            if watch is not None:
                watch(done)
        found = reader.names if isinstance(reader, GroupReader) else getattr(reader, "found_names", None)
        return Scores(np.vstack(parts), _ids_of(reader, ids), _notes(found or (), names or (), raw))


def _with_width(
    declared: Declared, kind: str, release: Transformer, names: Sequence[str] | None, raw: Encoder | None
) -> Declared:
    """Declare the columns of a release: by its schema, else by name if the file has names, else by number."""
    if raw is not None:
        return replace(declared, schema=raw.schema)
    if kind in _STORES:
        return Declared(format=declared.format, n_features=None if names is not None else release.n_features)
    if named(kind).is_table and names is not None:
        return replace(declared, names=tuple(names))
    return replace(declared, n_features=release.n_features)


def _ids_of(reader: Any, ids: list[pa.Array]) -> pa.Array | None:
    """Return the ids of all rows, with their type in the file, or None if the rows have no ids."""
    if isinstance(reader, GroupReader):
        names = reader.row_names()
        return None if names is None else pa.array(names, pa.string())
    return pa.concat_arrays(ids).cast(reader.unit_type) if ids else None


def _notes(found: Sequence[str], names: Sequence[str], raw: Encoder | None) -> dict[str, str]:
    """Return notes on the columns that were left out, and on the first column whose position differs in the release."""
    if not found or not names:
        return {}
    names, dropped = (names, ()) if raw is None else ([one.name for one in raw.columns], raw.dropped(found))
    known = set(names)
    kept = [name for name in found if name in known]
    others = [name for name in found if name not in known and name not in dropped]
    moved = [name for name, other in zip(kept, names, strict=False) if name != other]
    return {
        **({"permuted": f"from column {moved[0]!r} on; matched by name"} if moved else {}),
        **({"left_out": ", ".join(others)} if others else {}),
    }
