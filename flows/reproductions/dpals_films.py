"""DPALS on films: a made folder in each format of MovieLens, a folder of the user, and ml-100k."""

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flows.reproductions.checks import Check, at_least, at_most, near
from flows.reproductions.completion_arms import Arm, Asked, held_out_error, recall, user_means
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.movielens import FETCHED, FORMATS, FilmRatings, read_movielens, write_movielens
from flows.reproductions.rating_makers import SKEWED_ITEMS, skewed, split

type Tables = dict[str, list[dict[str, Any]]]

FOLDER_USERS, MOST_RATED = 8_000, 400
EPSILON, RANK, PER_USER = 10.0, 8, 50

ML_100K_RANK, ML_100K_EPSILONS, ML_100K_RATINGS = 4, (1.0, 5.0, 10.0, 20.0), 1_682
ML_100K_EXACT, ML_100K_MEAN, ML_100K_BESIDE = 0.925, 1.044, 0.06
"""The error without privacy at most, that of user means, and how near to it private errors are."""

_BEATEN = ("dpfw", "dpsvd")
_SEED, _TESTED = 20210721, 4_000


def film_arms(low: float) -> tuple[Arm, ...]:
    """Return what is compared on films, for the middle of a range that begins at ``low``."""
    stars = {"centre": 3.5 if low == 0.5 else 3.0}
    return (
        Arm(name="dpals", mechanism="dpals", settings={**stars, "user_ridge": 4.0}),
        Arm(name="one_shot", mechanism="one_shot", settings={**stars, "user_ridge": 4.0}),
        Arm(name="item_means", mechanism="item_means", settings=stars),
        Arm(name="dpfw", mechanism="dpfw", settings=stars),
        Arm(name="dpsvd", mechanism="dpsvd", settings={**stars, "user_ridge": 4.0}),
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


def ml_100k_checks(scale: Scale, data: Path, tables: Tables) -> Iterator[Check]:
    """Compare errors of private and of exact factors of ml-100k with user means: it has too few users for privacy."""
    if not (data / FETCHED).is_dir():
        return
    films = read_movielens(data / FETCHED)
    errors: dict[str, list[float]] = defaultdict(list)
    private, means, warned = Arm(name="dpals", mechanism="dpals", settings={"user_ridge": 4.0}), film_arms(1.0)[2], []
    exact = Arm(name="als without privacy", mechanism="als", settings={"ridge": 5.0, "offsets": False})
    for draw in range(scale.few):
        rng = np.random.default_rng([_SEED, draw])
        ratings = split(films.ratings, low=films.low, high=films.high, rng=rng)
        plain = user_means(ratings, centre=3.5, prior=0.0)
        errors["user mean"].append(held_out_error(plain, ratings, users=ratings.n_users))
        asked = Asked(rank=ML_100K_RANK, per_user=ML_100K_RATINGS, epsilon=math.inf)
        found = exact.run(ratings, asked, seed=draw)
        errors[exact.name].append(held_out_error(found, ratings, users=ratings.n_users))
        for epsilon in ML_100K_EPSILONS:
            for arm in (private, means):
                asked = Asked(rank=ML_100K_RANK, per_user=PER_USER, epsilon=epsilon)
                found = arm.run(ratings, asked, seed=draw)
                errors[f"{arm.name} {epsilon:g}"].append(held_out_error(found, ratings, users=ratings.n_users))
            warned.append(any("users are too few" in said for said in private.plan(ratings, asked).warnings))
    mean = {name: float(np.mean(values)) for name, values in errors.items()}
    yield at_most(f"ml-100k rank={ML_100K_RANK} without privacy: RMSE", ML_100K_EXACT, got=mean[exact.name])
    yield near("ml-100k: RMSE of user means", ML_100K_MEAN, 0.01, got=mean["user mean"])
    for epsilon in ML_100K_EPSILONS:
        gap = mean[f"dpals {epsilon:g}"] - mean["user mean"]
        yield near(f"ml-100k epsilon={epsilon:g}: RMSE of dpals less that of user means", 0.0, ML_100K_BESIDE, got=gap)
        for arm in (private, means):
            row = {"data": "ml-100k", "arm": arm.name, "true epsilon": epsilon, "RMSE": mean[f"{arm.name} {epsilon:g}"]}
            tables["ml-100k"].append(row)
    for name in ("user mean", exact.name):
        tables["ml-100k"].append({"data": "ml-100k", "arm": name, "RMSE": mean[name]})
    share = float(np.mean(warned))
    yield at_least("ml-100k: share of dry runs that say that its users are too few", 1.0, got=share)


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
        if other in _BEATEN:
            gap = errors["dpals"] / errors[other]
            yield at_most(
                f"{name}, {MOST_RATED} items, epsilon={EPSILON:g}: RMSE of dpals over {other}'s", 1.0, got=gap
            )
