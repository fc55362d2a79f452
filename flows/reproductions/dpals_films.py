"""DPALS on films: a made folder in each format of MovieLens, a folder of the user, and ml-100k."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flows.reproductions.checks import Check, at_most, near
from flows.reproductions.completion_arms import Arm, Asked, held_out_error, recall
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.movielens import FORMATS, FilmRatings, read_movielens, write_movielens
from flows.reproductions.rating_makers import SKEWED_ITEMS, skewed, split

type Tables = dict[str, list[dict[str, Any]]]

FOLDER_USERS, MOST_RATED = 8_000, 400
EPSILON, RANK, PER_USER = 10.0, 8, 50

_SEED, _TESTED = 20210721, 4_000


def film_arms(low: float) -> tuple[Arm, ...]:
    """Return what is compared on films, for the middle of a range that begins at ``low``."""
    stars = {"centre": 3.5 if low == 0.5 else 3.0}
    return (
        Arm(name="dpals", mechanism="dpals", settings={**stars, "user_ridge": 4.0}),
        Arm(name="one_shot", mechanism="one_shot", settings={**stars, "user_ridge": 4.0}),
        Arm(name="item_means", mechanism="item_means", settings=stars),
    )


def folder_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Write made ratings in every format, read them, and compare methods on the 400 most rated items."""
    made = skewed(n_users=scale.users(FOLDER_USERS), n_items=scale.items(SKEWED_ITEMS), seed=_SEED)
    whole = made.train + made.held
    with tempfile.TemporaryDirectory() as scratch:
        for size in FORMATS:
            films = read_movielens(write_movielens(whole, Path(scratch) / size, size=size))
            yield near(f"made folder like {size}: ratings that are read", whole.nnz, 0.0, got=films.ratings.nnz)
            yield from _compared(f"made folder like {size}", films, tables, draw=0)


def movielens_checks(folder: str | None, tables: Tables) -> Iterator[Check]:
    """Compare methods on the 400 most rated items of a folder of the user."""
    if folder is not None:
        yield from _compared(Path(folder).name, read_movielens(Path(folder)), tables, draw=0)


def _compared(name: str, films: FilmRatings, tables: Tables, *, draw: int) -> Iterator[Check]:
    some = films.most_rated(MOST_RATED)
    ratings = split(some.ratings, low=some.low, high=some.high, rng=np.random.default_rng([_SEED, draw]))
    errors = {}
    for arm in film_arms(some.low):
        found = arm.run(ratings, Asked(rank=RANK, per_user=PER_USER, epsilon=EPSILON), seed=draw)
        errors[arm.name] = held_out_error(found, ratings, users=_TESTED)
        share = recall(found, ratings, users=_TESTED)
        row = {"data": name, "arm": arm.name, "epsilon": EPSILON, "RMSE": errors[arm.name], "Recall@20": share}
        tables["films"].append({**row, "users": ratings.n_users, "items": ratings.n_items})
    for other in errors:
        if other != "dpals":
            gap = errors["dpals"] / errors[other]
            yield at_most(
                f"{name}, {MOST_RATED} items, epsilon={EPSILON:g}: RMSE of dpals over {other}'s", 1.0, got=gap
            )
