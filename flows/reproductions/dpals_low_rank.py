"""DPALS on the low-rank task of its paper: errors by users and epsilon, beside the one-shot baseline."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpca_tasks.mechanisms.results import ItemFactors
from flows.families.completion_advice import advised
from flows.reproductions.checks import Check, at_least, at_most
from flows.reproductions.completion_arms import Arm, Asked, Seen, held_out_error, request_of, true_epsilon
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.rating_makers import LOW_RANK_ITEMS, RANK, SplitRatings, expected_count, low_rank

type Tables = dict[str, list[dict[str, Any]]]

EPSILONS = (1.0, 5.0, 10.0, 20.0)
USERS = (5_000, 10_000, 20_000, 50_000)
AT_MOST: Mapping[int, tuple[float, ...]] = {
    20_000: (0.33, 0.105, 0.065, 0.043),
    50_000: (0.18, 0.066, 0.035, 0.020),
}
"""The median error of DPALS by users, at each of `EPSILONS`."""
ONE_SHOT_AT_MOST: Mapping[int, tuple[float, ...]] = {50_000: (0.09, 0.05, 0.032, 0.030)}
DPFW_BEATEN = (3.0, 7.0, 7.0, 7.0)
"""How many times the error of DPALS that of DPFW is, with exact noise for both, at the largest number of users."""
NON_PRIVATE = Arm(name="als", mechanism="als", settings={"ridge": 1e-3, "offsets": False, "user_means": False})
NON_PRIVATE_AT_MOST = 0.002
ADVISED, RIGHT = ("dpals", "one_shot", "item_means"), 13
ONE_SHOT_WINS = 5.0
"""Up to this epsilon the one-shot method has the smaller error on this task."""

_EXACT = {"offsets": False, "user_means": False}
"""Ratings without offsets of items or users."""
_TRACED, _TESTED = 20_000, 1_000


def arms(stated: int, draw: int, epsilon: float) -> tuple[Arm, ...]:
    """Return what is compared; the ridge of items is less than by default, since these ratings have no error.

    DPFW takes a moment of all pairs of items in each of its rounds, so it is run in the first draw alone, and with its
    printed noise for one number of users.
    """
    exact = {"sampling": "uniform", "user_ridge": 0.2, "item_ridge": 0.5 / epsilon**0.5}
    one_shot = Arm(name="one_shot", mechanism="one_shot", settings={**_EXACT, "user_ridge": 0.2, "spread": 1.0})
    dpals = Arm(name="dpals", mechanism="dpals", settings={**_EXACT, **exact})
    dpfw = Arm(name="dpfw", mechanism="dpfw", settings={**_EXACT, "spread": 1.0})
    printed = dpfw.with_settings("dpfw, printed noise", calibration="paper")
    means = Arm(name="item_means", mechanism="item_means", settings={"user_means": False})
    return (
        dpals,
        one_shot,
        means,
        *([dpfw] if draw == 0 else []),
        *([printed] if draw == 0 and stated == _TRACED else []),
    )


def low_rank_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check median errors, and fill the tables of Figure 4 and of errors by iteration.

    Notes
    -----
    Where no error is expected one draw is enough for the figure.
    """
    advice: list[bool] = []
    for stated in USERS:
        errors: dict[tuple[str, float], list[float]] = defaultdict(list)
        costs: dict[tuple[str, float], float] = {}
        for draw in range(scale.runs if stated in AT_MOST else 1):
            made = low_rank(n_users=scale.users(stated), n_items=scale.items(LOW_RANK_ITEMS), seed=draw)
            for epsilon in EPSILONS:
                for arm in arms(stated, draw, epsilon):
                    seen, asked = Seen(), Asked(rank=RANK, per_user=expected_count(made.n_users), epsilon=epsilon)
                    found = arm.run(made, asked, seed=draw, seen=seen)
                    errors[arm.name, epsilon].append(held_out_error(found, made, users=_TESTED))
                    if draw == 0:
                        costs[arm.name, epsilon] = true_epsilon(arm.plan(made, asked))
                        if stated == _TRACED and seen.rounds:
                            tables["iterations"] += list(_traced(found, seen, made, f"epsilon {epsilon:g}"))
        medians = {key: float(np.median(values)) for key, values in errors.items()}
        tables["figure4"] += [
            {
                "data": f"n={made.n_users}",
                "arm": arm,
                "true epsilon": costs[arm, epsilon],
                "asked epsilon": epsilon,
                "RMSE": median,
                "draws": len(errors[arm, epsilon]),
            }
            for (arm, epsilon), median in medians.items()
        ]
        advice += [_advice(made, epsilon) == _best(medians, epsilon) for epsilon in EPSILONS]
        yield from _compared(stated, f"n={made.n_users}", medians)
        if stated in AT_MOST:
            exact = Asked(rank=RANK, per_user=made.n_items, epsilon=math.inf)
            error = held_out_error(NON_PRIVATE.run(made, exact, seed=0), made, users=_TESTED)
            yield at_most(f"als n={made.n_users} without privacy: RMSE", NON_PRIVATE_AT_MOST, got=error)
    yield at_least(f"settings of {len(advice)} in which the dry run advises the best", RIGHT, got=sum(advice))


def _advice(made: SplitRatings, epsilon: float) -> str:
    """Return the mechanism that a dry run advises, of ratings that factors determine."""
    asked = Asked(rank=RANK, per_user=expected_count(made.n_users), epsilon=epsilon)
    return advised(*request_of(made, asked), rank=RANK, signal=1.0)[0].mechanism


def _best(medians: Mapping[tuple[str, float], float], epsilon: float) -> str:
    """Return which of the mechanisms that are advised has the least error."""
    return min(ADVISED, key=lambda name: medians[name, epsilon])


def _traced(found: ItemFactors, seen: Seen, made: SplitRatings, arm: str) -> Iterator[dict[str, Any]]:
    """Yield the error after each round."""
    for at, factors in enumerate([*(each.factors for each in seen.rounds[1:]), found.factors], start=1):
        error = held_out_error(replace(found, factors=factors), made, users=_TESTED)
        yield {"data": f"n={made.n_users}", "arm": arm, "round": at, "RMSE": error}


def _compared(stated: int, name: str, medians: Mapping[tuple[str, float], float]) -> Iterator[Check]:
    for arm, expected in (("dpals", AT_MOST), ("one_shot", ONE_SHOT_AT_MOST)):
        for epsilon, ceiling in zip(EPSILONS, expected.get(stated, ()), strict=False):
            yield at_most(f"{arm} {name} epsilon={epsilon:g}: median RMSE", ceiling, got=medians[arm, epsilon])
    if stated == 50_000:
        for epsilon, factor in zip(EPSILONS, DPFW_BEATEN, strict=True):
            ratio = medians["dpfw", epsilon] / medians["dpals", epsilon]
            yield at_least(f"{name} epsilon={epsilon:g}: RMSE of dpfw over that of dpals", factor, got=ratio)
    for epsilon in EPSILONS:
        if stated in ONE_SHOT_AT_MOST and epsilon <= ONE_SHOT_WINS:
            ratio = medians["one_shot", epsilon] / medians["dpals", epsilon]
            yield at_most(f"{name} epsilon={epsilon:g}: one_shot wins, its RMSE over that of dpals", 1.0, got=ratio)
