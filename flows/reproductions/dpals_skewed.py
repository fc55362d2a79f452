"""DPALS on ratings of skewed popularity: what tail sampling, offsets and the projection are worth, and figures."""

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from dpca_tasks.kernels.user_factors import chosen_ratings
from dpca_tasks.mechanisms.results import ItemFactors
from flows.families.completion_advice import advised
from flows.reproductions.checks import Check, at_least
from flows.reproductions.completion_arms import (
    Arm,
    Asked,
    held_out_error,
    request_of,
    true_epsilon,
    user_means,
)
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.rating_makers import SKEWED_ITEMS, SKEWED_USERS, SplitRatings, skewed
from flows.reproductions.unprojected import unprojected

type Tables = dict[str, list[dict[str, Any]]]

RANK, PER_USER, EPSILON, CENTRE = 8, 50, 10.0, 3.5
GAINS = {"tail sampling": 0.006, "offsets": 0.005, "tail sampling over item means": 0.02}
FEW_USERS, FEW_EPSILON = 8_000, 1.0

_SEED, _TESTED = 20210720, 6_000
_STARS = {"centre": CENTRE, "user_ridge": 4.0, "item_ridge": 0.7, "pooled": 1}
MEANS = Arm(name="item_means", mechanism="item_means", settings={"centre": CENTRE})
OFFSETS = Arm(name="dpals, tail and offsets", mechanism="dpals", settings=_STARS)
TAIL = OFFSETS.with_settings("dpals, tail", offsets=False, totals_share=0.03)
UNIFORM = TAIL.with_settings("dpals, uniform", sampling="uniform")
"""Counts alone need less of the budget than counts and offsets; without either nothing is spent on them."""
ONE_SHOT = Arm(name="one_shot", mechanism="one_shot", settings={"centre": CENTRE, "user_ridge": 4.0})
NON_PRIVATE = Arm(name="als without privacy", mechanism="als", settings={"centre": CENTRE, "ridge": 8.0})
_WORST_FIRST = ("user mean", MEANS.name, UNIFORM.name, TAIL.name, OFFSETS.name)


def skewed_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check the order of methods and what each part is worth, and fill the tables of the figures."""
    errors: dict[str, list[float]] = defaultdict(list)
    full = Asked(rank=RANK, per_user=PER_USER, epsilon=EPSILON)
    for draw in range(scale.few):
        made = _made(scale, SKEWED_USERS, draw)
        errors["user mean"].append(_error(user_means(made, centre=CENTRE), made, scale))
        for arm in (MEANS, UNIFORM, TAIL, OFFSETS):
            errors[arm.name].append(_error(_run(arm, made, draw), made, scale))
        errors["without projection"].append(_error(unprojected(made, full, centre=CENTRE, seed=draw), made, scale))
        if draw == 0:
            _sampled(made, tables)
            _draw_figures(made, scale, tables)
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    name = f"skewed n={scale.users(SKEWED_USERS)} epsilon={EPSILON:g}"
    for worse, better in pairwise(_WORST_FIRST):
        yield at_least(f"{name}: RMSE of {worse} less that of {better}", 0.0, got=means[worse] - means[better])
    gained = {
        "tail sampling": means[UNIFORM.name] - means[TAIL.name],
        "offsets": means[TAIL.name] - means[OFFSETS.name],
        "tail sampling over item means": means[MEANS.name] - means[TAIL.name],
    }
    for part, gain in gained.items():
        yield at_least(f"{name}: RMSE gained by {part}", GAINS[part], got=gain)
    lost = means["without projection"] - means["user mean"]
    yield at_least(f"{name}: RMSE without the projection less that of the user mean", 0.0, got=lost)
    few = _made(scale, FEW_USERS, 0)
    means_error, factors_error = (
        _error(_run(arm, few, 0, epsilon=FEW_EPSILON), few, scale) for arm in (MEANS, OFFSETS)
    )
    name = f"skewed n={few.n_users} epsilon={FEW_EPSILON:g}"
    yield at_least(f"{name}: item_means is best, RMSE of dpals less its own", 0.0, got=factors_error - means_error)
    request = request_of(few, Asked(rank=RANK, per_user=PER_USER, epsilon=FEW_EPSILON))
    right = advised(*request, rank=RANK)[0].mechanism == "item_means"
    yield at_least(f"{name}: the dry run advises item_means", 1.0, got=float(right))


def _made(scale: Scale, users: int, draw: int) -> SplitRatings:
    return skewed(n_users=scale.users(users), n_items=scale.items(SKEWED_ITEMS), seed=draw)


def _run(arm: Arm, made: SplitRatings, draw: int, *, epsilon: float = EPSILON, rank: int = RANK) -> ItemFactors:
    return arm.run(made, Asked(rank=rank, per_user=PER_USER, epsilon=epsilon), seed=draw)


def _error(found: ItemFactors, made: SplitRatings, scale: Scale) -> float:
    return held_out_error(found, made, users=scale.users(_TESTED))


def _sampled(made: SplitRatings, tables: Tables) -> None:
    """Fill Figure 2: the share of ratings that the most rated items have, before and after sampling."""
    rng = np.random.default_rng(_SEED)
    train = made.train
    counts = np.bincount(train.indices, minlength=made.n_items).astype(np.float64)
    coins = rng.integers(0, 2**63, made.n_users).astype(np.uint64)
    for name, priorities in (("all ratings", None), ("uniform", np.zeros(made.n_items)), ("tail", counts)):
        kept = (
            np.ones(train.nnz, bool)
            if priorities is None
            else chosen_ratings(train.indices, train.indptr, priorities, PER_USER, coins)
        )
        order = np.sort(np.bincount(train.indices[kept], minlength=made.n_items))[::-1]
        shares = np.cumsum(order) / order.sum()
        for part in np.linspace(0.05, 1.0, 20):
            at = max(1, round(part * made.n_items))
            point = {"share of items": float(part), "share of ratings": float(shares[at - 1])}
            tables["figure2"].append({"data": "skewed", "arm": name, **point})


def _draw_figures(made: SplitRatings, scale: Scale, tables: Tables) -> None:
    """Fill Figures 3 and 5, and errors by rank, ridge and share of users, each from one draw."""
    for epsilon in (1.0, 3.0, 5.0, 10.0, 20.0):
        for arm in (MEANS, UNIFORM, TAIL, OFFSETS, ONE_SHOT):
            cost = true_epsilon(arm.plan(made, Asked(rank=RANK, per_user=PER_USER, epsilon=epsilon)))
            error = _error(_run(arm, made, 0, epsilon=epsilon), made, scale)
            tables["figure3"].append(
                {"data": "skewed", "arm": arm.name, "true epsilon": cost, "asked epsilon": epsilon, "RMSE": error}
            )
    level = _error(user_means(made, centre=CENTRE), made, scale)
    exact = _run(NON_PRIVATE, made, 0, epsilon=math.inf)
    tables["figure3"] += [
        {"data": "skewed", "arm": "user mean", "RMSE": level},
        {"data": "skewed", "arm": NON_PRIVATE.name, "RMSE": _error(exact, made, scale)},
    ]
    for arm in (UNIFORM, TAIL, OFFSETS):
        for frequent in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
            some = arm.with_settings(arm.name, frequent=frequent)
            _add(tables, "figure5", arm, {"share of items": frequent}, _error(_run(some, made, 0), made, scale))
    for rank in (2, 4, 8, 16, 32):
        _add(tables, "ranks", OFFSETS, {"rank": rank}, _error(_run(OFFSETS, made, 0, rank=rank), made, scale))
    for ridge in (0.1, 0.3, 1.0, 2.0, 4.0):
        some = OFFSETS.with_settings(OFFSETS.name, item_ridge=ridge)
        _add(tables, "ridges", OFFSETS, {"item ridge": ridge}, _error(_run(some, made, 0), made, scale))
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        users = round(share * made.n_users)
        part = SplitRatings(train=made.train[:users], held=made.held[:users], low=made.low, high=made.high)
        for arm in (MEANS, OFFSETS, ONE_SHOT):
            _add(tables, "users", arm, {"share of users": share}, _error(_run(arm, part, 0), part, scale))


def _add(tables: Tables, table: str, arm: Arm, place: dict[str, float], error: float) -> None:
    tables[table].append({"data": f"skewed, epsilon {EPSILON:g}", "arm": arm.name, **place, "RMSE": error})
