"""Predict a user's ratings from a file of that user's own: what a consumer may do without any credential."""

import csv
import io
from pathlib import Path
from typing import Any

from storage.artifacts.embeddings import ItemEmbeddings
from storage.errors import BadSource
from storage.registry.reader import Registry

_LARGEST = 1 << 24  # bytes of a file of one user's ratings


def recommend_items(reference: str, source: Path, *, count: int) -> list[dict[str, Any]]:
    """Return the items that a user who rated these would rate highest, best first.

    Parameters
    ----------
    reference : str
        Published item embeddings.
    source : Path
        CSV with the columns item and rating; see `read_ratings`.
    count : int
    """
    ids, ratings = read_ratings(source)
    embeddings = Registry.open().load(reference, ItemEmbeddings)
    found = embeddings.recommend(embeddings.items_of(ids), ratings, count=count)
    return [{"item": embeddings.id_of(item), "predicted": round(score, 6)} for item, score in found]


def predict_ratings(reference: str, source: Path) -> list[dict[str, Any]]:
    """Return the predicted rating of every item, by a user who rated these."""
    ids, ratings = read_ratings(source)
    embeddings = Registry.open().load(reference, ItemEmbeddings)
    scores = embeddings.predict(embeddings.items_of(ids), ratings).tolist()
    return [{"item": embeddings.id_of(item), "predicted": round(score, 6)} for item, score in enumerate(scores)]


def read_ratings(source: Path) -> tuple[list[str], list[float]]:
    """Read the ratings of one user: CSV with the columns item and rating, in any order, others ignored.

    Raises
    ------
    BadSource
        If the file cannot be read, has other columns, holds no rating, or one that is no number.
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
        raise BadSource(f"{source} has a rating that is no number; give each line an item and its rating") from None
    if not named:
        raise BadSource(f"{source} has no columns item and rating in its first line; name the columns so")
    if not pairs:
        raise BadSource(f"{source} holds no rating; a prediction needs at least one")
    items = [item for item, _ in pairs]
    if len(set(items)) < len(items):
        raise BadSource(f"{source} rates one item twice; keep one line of each item")
    return items, [rating for _, rating in pairs]
