"""Use of published releases by a consumer, who needs no credential.

A consumer transforms rows, recommends items and describes components. Files are read in this process and sent nowhere.
A dense ``.npy`` matrix needs only NumPy. `flows.scored_files` reads files of other formats, with the readers of
datasets.
"""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.backends.atomic_files import write_atomically, writing
from dpca.errors import BadSource, Invalid
from dpca.installed import needing
from dpca.registry.reader import Registry
from flows.reports.terminal import STDERR

if TYPE_CHECKING:
    import pyarrow as pa


def describe_components(reference: str, *, top_words: int) -> dict[str, Any]:
    """Return the components of a release by decreasing weight, each with its largest entries.

    Parameters
    ----------
    reference : str
        Published tensor components.
    top_words : int
        Number of entries for each component.
    """
    registry = Registry.open()
    resolved, release = registry.resolve(reference), registry.load(reference, TensorComponents)
    words = release.top_words(top_words)
    weights = [] if release.weights is None else release.weights.tolist()
    return {
        "artifact": str(resolved),
        "private": release.is_private,
        "model": release.model,
        "noise_variance": release.noise_variance,
        "components": [
            {"component": at, "weight": weight, "words": [{"word": word, "entry": entry} for word, entry in largest]}
            for at, (weight, largest) in enumerate(zip(weights, words, strict=True))
        ],
    }


_LARGEST = 1 << 24  # largest size of a file of one user's ratings, in bytes


def recommend_items(reference: str, source: Path, *, count: int) -> list[dict[str, Any]]:
    """Return the items with the highest predicted ratings of one user, best first.

    Parameters
    ----------
    reference : str
        Published item embeddings.
    source : Path
        The user's ratings: CSV with the columns item and rating; see `read_ratings`.
    count : int
        Number of items to return.
    """
    embeddings, items, ratings = _known_ratings(reference, source)
    found = embeddings.recommend(items, ratings, count=count)
    return [{"item": embeddings.id_of(item), "predicted": round(score, 6)} for item, score in found]


def predict_ratings(reference: str, source: Path) -> list[dict[str, Any]]:
    """Return the predicted rating of every item by the user whose ratings are in ``source``."""
    embeddings, items, ratings = _known_ratings(reference, source)
    scores = embeddings.predict(items, ratings).tolist()
    return [{"item": embeddings.id_of(item), "predicted": round(score, 6)} for item, score in enumerate(scores)]


def _known_ratings(reference: str, source: Path) -> tuple[ItemEmbeddings, NDArray[np.int64], list[float]]:
    """Load a release, and return it, the items of a user's file that the release contains, and their ratings.

    Items that the release does not contain are left out, with one warning.
    """
    ids, ratings = read_ratings(source)
    embeddings = Registry.open().load(reference, ItemEmbeddings)
    known = embeddings.known(ids)
    unknown = [item for item, is_known in zip(ids, known, strict=True) if not is_known]
    if len(unknown) == len(ids):
        raise Invalid(f"{source} rates no item of the release, which has {embeddings.n_items}; check the item ids")
    if unknown:
        some = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        STDERR.print(
            f"warning: {len(unknown)} of {len(ids)} rated items are unknown to the release and left out: {some}",
            style="yellow",
            markup=False,
        )
    kept = [(item, rating) for item, rating, is_known in zip(ids, ratings, known, strict=True) if is_known]
    return embeddings, embeddings.items_of([item for item, _ in kept]), [rating for _, rating in kept]


def read_ratings(source: Path) -> tuple[list[str], list[float]]:
    """Read the ratings of one user from CSV.

    The file has the columns item and rating, in any order. Other columns are ignored.

    Raises
    ------
    BadSource
        If the file cannot be read, is too large, lacks a column, holds no rating, holds a rating that is not a number,
        or rates an item twice.
    """
    try:
        if source.stat().st_size > _LARGEST:
            raise BadSource(f"{source} is larger than the ratings of one user can be; name another file")
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not text"
        raise BadSource(
            f"{source} cannot be read ({reason}); name a CSV file with the columns item and rating"
        ) from None
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        named = {"item", "rating"} <= set(rows.fieldnames or ())
        pairs = [(str(row["item"]).strip(), float(row["rating"])) for row in rows if named]
    except (csv.Error, ValueError, TypeError):
        raise BadSource(
            f"{source} has a rating that is not a number; give an item and its rating in each line"
        ) from None
    if not named:
        raise BadSource(f"{source} has no columns item and rating in its first line; name the columns item and rating")
    if not pairs:
        raise BadSource(f"{source} contains no rating; a prediction needs at least one")
    items = [item for item, _ in pairs]
    if len(set(items)) < len(items):
        raise BadSource(f"{source} rates one item twice; keep one line for each item")
    return items, [rating for _, rating in pairs]


def transform_file(
    reference: str,
    source: Path,
    output: Path,
    *,
    format: str | None = None,  # noqa: A002, the word users know
    header: bool | None = None,
    id_column: str | None = None,
    drop_others: bool = False,
    watch: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Transform a file's rows with a release, write the scores as .npy or Parquet, and return a report of the output.

    Parameters
    ----------
    reference : str
        A published subspace or published tensor components. With tensor components, the scores are posterior weights.
    source : Path
        A dense ``.npy`` matrix, or any other file of whole rows that can be ingested: ``.npz``, svmlight, ... If the
        file and the release both name their columns, the columns are matched by name. If the release has an encoder,
        CSV, TSV and Parquet files are read as raw tables.
    output : Path
        The file of scores or posterior weights, float64, written completely or not at all. A ``.npy`` file has shape
        (n_rows, n_components). A ``.parquet`` file has the columns ``component0``, ``component1``, ..., preceded by
        ``id`` if the rows have ids.
    format : str or None
        One of `storage.formats.registry.FORMATS`; None takes the format from the name of the file.
    header : bool or None
        Whether CSV and TSV begin with the names of the columns; None refuses a first line that looks like a row.
    id_column : str or None
        The column of a table with the id of each row, which is not a feature. An AnnData store uses the names of its
        rows instead, and a raw table uses the column that the schema declares.
    drop_others : bool
        Whether to leave out columns that the release does not contain; otherwise they are refused.
    watch : callable, optional
        Called with the number of rows done.
    """
    if output.suffix not in (".npy", ".parquet") or output.is_dir() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a .npy file or .parquet in an existing folder; name such a file.")
    registry = Registry.open()
    resolved, release = registry.resolve(reference), registry.load(reference)
    if not isinstance(release, PrivateSubspace | TensorComponents):
        raise Invalid(f"{resolved} is a {release.noun}, which transforms no rows; name a subspace or tensor components")
    ids, notes = None, dict[str, str]()
    try:
        if (format or source.suffix.removeprefix(".")) == "npy":
            if id_column is not None:
                raise Invalid("npy files have no columns of ids; leave out --id-column, or give a table.")
            values = release.transform(_dense(source))
        else:
            with needing("a file that is not .npy"):
                from flows.scored_files import score_file
                from storage.formats.declared import Declared

            declared = Declared(format=format, header=header, unit_column=id_column, drop_others=drop_others)
            values, ids, notes = score_file(release, source, declared, watch)
    except BadSource as error:
        raise BadSource(f"{source}: {error}") from None
    made = _npy(values) if output.suffix == ".npy" else _parquet(values, ids)
    with writing(output.parent):
        write_atomically(output, made)
    rows, components = values.shape
    return {
        "artifact": str(resolved),
        "rows": rows,
        "components": components,
        "output": str(output),
        **notes,
    }


def _npy(values: NDArray[np.float64]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _parquet(values: NDArray[np.float64], ids: "pa.Array | None") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {f"component{number}": pa.array(column) for number, column in enumerate(values.T)}
    buffer = io.BytesIO()
    pq.write_table(pa.table({**({} if ids is None else {"id": ids}), **columns}), buffer)
    return buffer.getvalue()


def _dense(source: Path) -> NDArray[Any]:
    if not source.exists():
        raise BadSource("no such file; correct the path")
    try:
        if source.is_file():  # opening a pipe would block
            return np.lib.format.open_memmap(source, mode="r")
    except (OSError, ValueError, EOFError):
        pass
    raise BadSource("not a .npy matrix; write one with numpy.save")
