"""Queries over ratings, and the effect of a changed user on their sums in the joint norm."""

import math

import numpy as np

from dpca_tasks.layouts import unpack_stack, unpack_symmetric
from dpca_tasks.queries.item_statistics import ItemStatistics
from dpca_tasks.queries.ratings import ItemTotals, PredictionScores, RatingMoment, UserMeans
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

ITEMS, RANK, MOST = 7, 3, 4


def facts(relation):
    return {
        "n_features": ITEMS,
        "clip_norm": 1.0,
        "relation": relation,
        "low": 1.0,
        "high": 5.0,
        "ratings_per_user": MOST,
        "offsets": np.linspace(-0.5, 0.5, ITEMS),
        "centre": 3.0,
        "prior": 2.0,
    }


def totals(relation, **changes):
    return ItemTotals(**{**facts(relation), "bits": 12, "bound": 1.5, "count_share": 0.25, **changes})


def averages(relation, **changes):
    return UserMeans(**{**facts(relation), "bits": 12, "count_share": 0.25, **changes})


def statistics(relation, **changes):
    factors = np.random.default_rng(5).standard_normal((ITEMS, RANK))
    of_rounds = {
        "bits": 10,
        "factors": np.rint(factors * 2.0**24).astype(np.int64),
        "priorities": np.zeros(ITEMS),
        "unit": 2.0**-24,
        "ridge": 0.1,
        "rating_bound": 4.0,
        "user_norm": 0.7,
        "rating_clip": 1.3,
        "clip": "normalise",
        "outer_share": 0.5,
    }
    return ItemStatistics(**{**facts(relation), **of_rounds, **changes})


def moment(relation, **changes):
    directions = np.random.default_rng(6).standard_normal((ITEMS, 2))
    of_rows = {
        "bits": 10,
        "directions": np.rint(directions * 2.0**24).astype(np.int64),
        "gains": np.array([0.3, 0.1]),
        "unit": 2.0**-24,
        "rating_bound": 4.0,
        "row_norm": 1.5,
        "scaling": "clip",
    }
    return RatingMoment(**{**facts(relation), **of_rows, **changes})


def scores(relation, **changes):
    of_items = {
        "bits": 16,
        "count": 3,
        "factors": statistics(relation).factors,
        "factor_unit": 2.0**-24,
        "ridge": 0.5,
        "rating_bound": 4.0,
        "gains": np.empty(0),
        "row_norm": 2.0,
    }
    return PredictionScores(**{**facts(relation), **of_items, **changes})


def moved(query, left, right):
    """Return the distance of a sum between two datasets, in the joint norm, scaled so that the stated bound is 1."""
    change = exact_sum(ArrayBlocks(left), query) - exact_sum(ArrayBlocks(right), query)
    return joint_norm(query, change)


def joint_norm(query, change):
    squares = 0.0
    for name, packed in query.split(change).items():
        part = query.parts[name]
        values = packed / part.steps_per_unit
        if part.layout.kind == "stack":
            values = unpack_stack(values, part.layout.order)
        if part.layout.kind == "symmetric":
            values = unpack_symmetric(values, part.layout.order)
        squares += float((values**2).sum()) / part.scale**2
    return math.sqrt(squares)
