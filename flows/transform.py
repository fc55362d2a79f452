"""Transform a file of rows with a published release: what a consumer may do without any credential."""

import io
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import sparse

from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents
from storage.backends.atomic_files import write_atomically, writing
from storage.errors import BadSource, Invalid
from storage.formats.broken import reading
from storage.formats.declared import Declared
from storage.formats.files import locate
from storage.formats.groups import GroupReader
from storage.formats.registry import named
from storage.formats.rejects import Rejects
from storage.formats.sources import format_of, open_file
from storage.registry.reader import Registry
from storage.schemas.encoder import Encoder
from storage.schemas.matching import match_names

type Transformer = PrivateSubspace | TensorComponents
"""A kind of artifact that makes one row of numbers of each row, one number a component."""

_STORES = ("zarr", "h5ad")


class _Scores(NamedTuple):
    """What a release makes of a file's rows.

    Attributes
    ----------
    values : float64 array of shape (n_rows, n_components)
    ids : Arrow array of n_rows ids, or None where the rows have none
    notes : dict of str to str, what became of the columns, where it is not plain
    """

    values: NDArray[np.float64]
    ids: pa.Array | None
    notes: dict[str, str]


def transform_file(
    reference: str,
    source: Path,
    output: Path,
    *,
    kind: type[PrivateSubspace] | type[TensorComponents] = PrivateSubspace,
    format: str | None = None,  # noqa: A002, the word users know
    header: bool | None = None,
    id_column: str | None = None,
    drop_others: bool = False,
    watch: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write what a release makes of a file's rows as .npy or Parquet, and report where.

    Parameters
    ----------
    reference : str
        A published release of that kind.
    source : Path
        A dense ``.npy`` matrix, or any other file of whole rows that can be ingested: ``.npz``, svmlight, ... Where
        file and release both name their columns, these are matched by name. CSV, TSV and Parquet are raw tables where
        the release has an encoder.
    output : Path
        The file of scores, or of posterior weights, float64, written whole or not at all: ``.npy`` of shape (n_rows,
        n_components), or ``.parquet`` with the columns ``component0``, ``component1``, ..., and ``id`` before them
        where the rows have ids.
    kind : type
        What it has to be.
    format : str or None
        One of `storage.formats.registry.FORMATS`; None goes by the name of the file.
    header : bool or None
        Whether CSV and TSV begin with the names of the columns; None refuses a first line that looks like a row.
    id_column : str or None
        The column of a table with the id of each row, which is none of its features. An AnnData store has the names of
        its rows instead, and a raw table the column that the schema declares.
    drop_others : bool
        Whether columns that the release does not know are left out; else they are refused.
    watch : callable, optional
        Called with the number of rows done.
    """
    if output.suffix not in _WRITERS or output.is_dir() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a .npy file or .parquet in an existing folder; name such a file.")
    registry = Registry.open()
    resolved, release = registry.resolve(reference), registry.load(reference, kind)
    declared = Declared(format=format, header=header, unit_column=id_column, drop_others=drop_others)
    try:
        scores = _score(release, source, declared, watch)
    except BadSource as error:
        raise BadSource(f"{source}: {error}") from None
    with writing(output.parent):
        write_atomically(output, _WRITERS[output.suffix](scores))
    rows, components = scores.values.shape
    return {
        "artifact": str(resolved),
        "rows": rows,
        "components": components,
        "output": str(output),
        **scores.notes,
    }


def _score(
    release: Transformer, source: Path, declared: Declared, watch: Callable[[int], None] | None = None
) -> _Scores:
    """Read a file by its format, and score its rows."""
    kind = declared.format or ("npy" if source.suffix == ".npy" else format_of(locate(source)))
    if declared.unit_column is not None and not named(kind).is_table:
        raise Invalid(f"{kind} has no columns to take ids from; leave out --id-column, or give CSV, TSV or Parquet.")
    if kind == "npy":
        return _Scores(release.transform(_dense(source)), None, {})
    names, raw = release.manifest.get("feature_names"), release.encoder if named(kind).is_table else None
    if raw is not None and declared.header is not None:
        raise Invalid("the schema of this release says whether a header is there; leave out --header and --no-header.")
    with closing(open_file(source, _with_width(declared, kind, release, names, raw))) as reader:
        if reader.scattered:
            raise BadSource("rows come in pieces; ingest the file, or give one whole row a line")
        order, ids, done = None, [], 0
        if isinstance(reader, GroupReader) and reader.names is not None and names is not None:
            order = match_names(reader.names, names, noun=release.noun, drop_others=declared.drop_others)
        parts = [np.empty((0, release.n_components))]
        for batch in reader.batches(Rejects()):
            shape = (batch.row_ptr.size - 1, reader.n_features)
            rows = sparse.csr_array((batch.values, batch.indices, batch.row_ptr), shape=shape)
            rows = rows if order is None else rows[:, order]
            rows.sort_indices()  # so that sums do not depend on the order of the file's columns
            parts.append(release.transform(rows))
            ids += [] if batch.unit_ids is None else [batch.unit_ids]
            done += len(parts[-1])
            if watch is not None:
                watch(done)
        found = reader.names if isinstance(reader, GroupReader) else getattr(reader, "found_names", None)
        return _Scores(np.vstack(parts), _ids_of(reader, ids), _notes(found or (), names or (), raw))


def _with_width(
    declared: Declared, kind: str, release: Transformer, names: Sequence[str] | None, raw: Encoder | None
) -> Declared:
    """Declare the columns of a release: by its schema, by name where the format has names, or by their number."""
    if raw is not None:
        return replace(declared, schema=raw.schema)
    if kind in _STORES:
        return Declared(format=declared.format, n_features=None if names is not None else release.n_features)
    if named(kind).is_table and names is not None:
        return replace(declared, names=tuple(names))
    return replace(declared, n_features=release.n_features)


def _ids_of(reader: Any, ids: list[pa.Array]) -> pa.Array | None:
    """Return the ids of all rows, of the type that they have in the file."""
    if isinstance(reader, GroupReader):
        names = reader.row_names()
        return None if names is None else pa.array(names, pa.string())
    return pa.concat_arrays(ids).cast(reader.unit_type) if ids else None


def _notes(found: Sequence[str], names: Sequence[str], raw: Encoder | None) -> dict[str, str]:
    """Say which columns were left out, and where the first one stood in another place than in the release."""
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


def _npy(scores: _Scores) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, scores.values, allow_pickle=False)
    return buffer.getvalue()


def _parquet(scores: _Scores) -> bytes:
    columns = {f"component{number}": pa.array(column) for number, column in enumerate(scores.values.T)}
    buffer = io.BytesIO()
    pq.write_table(pa.table({**({} if scores.ids is None else {"id": scores.ids}), **columns}), buffer)
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[_Scores], bytes]] = {".npy": _npy, ".parquet": _parquet}


def _dense(source: Path) -> NDArray[Any]:
    if not source.exists():
        raise BadSource("no such file; correct the path")
    try:
        if source.is_file():  # a pipe would keep us waiting
            with reading(".npy matrix"):
                return np.lib.format.open_memmap(source, mode="r")
    except (BadSource, OSError):
        pass
    raise BadSource("not a .npy matrix; write one with numpy.save")
