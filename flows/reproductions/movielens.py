"""Ratings of MovieLens in each of its published formats, read from a folder of the user, and written like it.

What there is: ``u.data`` of 100K, separated by tabs; ``ratings.dat`` of 1M, and of 10M with half stars, separated by
``::``; ``ratings.csv`` of 20M and 25M, with a header; and ``ml-100k.inter``, what ``make data`` fetches, which has the
ratings of 100K under a header. Each line has a user, an item, a rating and a time.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv
from scipy import sparse

from storage.errors import BadSource, Invalid

FETCHED = "ml-100k"
"""Where ``make data`` puts the ratings of 100K, from the folder of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A published format: its file, what separates fields, a header if there is one, and the range of ratings.

    ``beside`` is another file of the same folder, which tells a format from one whose file has the same name.
    """

    file: str
    separator: str
    header: str = ""
    low: float = 1.0
    beside: str | None = None


FORMATS = {
    "100K": Format(file="u.data", separator="\t"),
    "1M": Format(file="ratings.dat", separator="::", beside="users.dat"),
    "10M": Format(file="ratings.dat", separator="::", low=0.5),
    "20M": Format(file="ratings.csv", separator=",", header="userId,movieId,rating,timestamp", low=0.5),
    "25M": Format(file="ratings.csv", separator=",", header="userId,movieId,rating,timestamp", low=0.5),
    "100K, fetched": Format(
        file="ml-100k.inter", separator="\t", header="user_id:token\titem_id:token\trating:float\ttimestamp:float"
    ),
}
"""By size; the first that fits a folder is taken. A ``ratings.dat`` without ``users.dat`` may have half stars."""
HIGH = 5.0

_TIME = "964982703"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilmRatings:
    """Ratings of a folder.

    Attributes
    ----------
    ratings : csr_array of shape (n_users, n_items)
        Of a user's several ratings of an item the last in the file.
    users, items : int64 arrays
        Their ids, ascending: the rows and the columns.
    low, high : float
        The range of ratings of the format.
    """

    ratings: sparse.csr_array
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    low: float
    high: float = HIGH

    def most_rated(self, count: int) -> "FilmRatings":
        """Return the ratings of the items that have most of them, ties by id; users without any are left out."""
        rated = np.bincount(self.ratings.indices, minlength=self.items.size)
        kept = np.sort(np.argsort(-rated, kind="stable")[:count])
        ratings = sparse.csr_array(self.ratings[:, kept])
        active = np.flatnonzero(np.diff(ratings.indptr))
        return FilmRatings(
            ratings=sparse.csr_array(ratings[active]),
            users=self.users[active],
            items=self.items[kept],
            low=self.low,
            high=self.high,
        )


def read_movielens(folder: Path) -> FilmRatings:
    """Read the ratings of a folder, whichever format they have.

    Raises
    ------
    Invalid, BadSource
        If there is no file of ratings, or one that is not of its format.
    """
    found = next((form for form in FORMATS.values() if _fits(form, folder)), None)
    if found is None:
        names = ", ".join(dict.fromkeys(form.file for form in FORMATS.values()))
        raise Invalid(f"{folder} has none of {names}, and MovieLens comes in one of these; name its folder.")
    place = folder / found.file
    users, items, values = _columns(place, found)
    if not values.size:
        raise BadSource(f"{place} holds no rating, and MovieLens has many; name another folder.")
    if not (values.min() >= found.low and values.max() <= HIGH):
        raise BadSource(
            f"{place} has ratings outside {found.low:g} to {HIGH:g}, the range of its format; name another folder."
        )
    user_ids, rows = np.unique(users, return_inverse=True)
    item_ids, columns = np.unique(items, return_inverse=True)
    places = rows * item_ids.size + columns
    last = np.append(np.argsort(places, kind="stable"), -1)
    order = places[last[:-1]]
    last = last[:-1][np.append(order[1:] != order[:-1], True)]
    matrix = sparse.coo_array((values[last], (rows[last], columns[last])), shape=(user_ids.size, item_ids.size))
    return FilmRatings(ratings=matrix.tocsr(), users=user_ids, items=item_ids, low=found.low)


def write_movielens(ratings: sparse.csr_array, folder: Path, *, size: str) -> Path:
    """Write ratings as a folder of a format of `FORMATS`; rows and columns are numbered from 1, times are made up."""
    form = FORMATS[size]
    folder.mkdir(parents=True, exist_ok=True)
    rows = 1 + np.repeat(np.arange(ratings.shape[0]), np.diff(ratings.indptr))
    values = np.maximum(1.0, np.rint(ratings.data)) if form.low == 1.0 else ratings.data
    entries = zip(rows.tolist(), (1 + ratings.indices).tolist(), values.tolist(), strict=True)
    lines = [form.separator.join((str(user), str(item), f"{value:g}", _TIME)) for user, item, value in entries]
    if form.beside is not None:
        (folder / form.beside).write_text("", encoding="utf-8")
    text = "\n".join([*([form.header] if form.header else []), *lines, ""])
    (folder / form.file).write_text(text, encoding="utf-8")
    return folder


def _fits(form: Format, folder: Path) -> bool:
    return (folder / form.file).is_file() and (form.beside is None or (folder / form.beside).is_file())


def _columns(place: Path, form: Format) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Read users, items and ratings; a double separator leaves an empty column after each."""
    step = len(form.separator)
    wanted = [f"f{step * at}" for at in range(3)]
    names = [f"f{at}" for at in range(3 * step + 1)]
    content = place.read_bytes()
    if form.header:
        first, _, content = content.partition(b"\n")
        if first.decode("utf-8", "replace").strip() != form.header:
            raise BadSource(f"{place} begins without {form.header!r}, the header of its format; name another folder.")
    if not content.strip():
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    try:
        table = csv.read_csv(
            io.BytesIO(content),
            read_options=csv.ReadOptions(column_names=names),
            parse_options=csv.ParseOptions(delimiter=form.separator[0]),
            convert_options=csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict(zip(wanted, (pa.int64(), pa.int64(), pa.float64()), strict=True)),
            ),
        )
    except pa.ArrowInvalid as error:
        said = str(error).splitlines()[0]
        raise BadSource(f"{place} cannot be read: {said}; each line is a user, an item, a rating, a time.") from None
    if any(column.null_count for column in table.columns):
        raise BadSource(f"{place} has a line without a user, an item or a rating; fix the line.")
    users, items, values = (column.to_numpy() for column in table.columns)
    return users, items, values
