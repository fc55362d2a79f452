"""Which films people rate, not how: Recall@20 of private factors and of private popularity on the skewed task's pairs.

In this maker a user takes items by their popularity alone, whatever the user likes. So the order of popularity is the
best list for everybody, and that a factorisation beats it, with privacy or without, cannot be shown on these pairs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse.linalg import svds

from dpca_tasks.mechanisms.results import ItemFactors
from flows.reproductions.checks import Check, at_least, at_most, near
from flows.reproductions.completion_arms import Arm, Asked, popularity, recall
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.rating_makers import SKEWED_ITEMS, SKEWED_USERS, SplitRatings, pairs, skewed

RANK, PER_USER = 8, 50
KEPT, EPSILON, LEAST_EPSILON = 0.85, 5.0, 1.0

_SEED, _TESTED, _RIDGE = 20210722, 2_000, 10.0  # far above V^T V = I: scores are x V V^T, as of singular vectors
_ONES = {"centre": 0.0, "user_means": False}
COUNTS = Arm(name="item_means", mechanism="item_means", settings=_ONES)


def pair_checks(scale: Scale, tables: dict[str, list[dict[str, Any]]]) -> Iterator[Check]:
    """Check what is kept of Recall@20 with privacy, and that the popularity that made the pairs is the best list."""
    made = pairs(skewed(n_users=scale.users(SKEWED_USERS), n_items=scale.items(SKEWED_ITEMS), seed=_SEED))
    # Items are numbered by their popularity in the maker.
    found = {
        "popularity in the maker": recall(-np.arange(made.n_items, dtype=np.float64), made, users=_TESTED),
        "counts": recall(popularity(made), made, users=_TESTED),
        "factors": recall(_leading(made), made, users=_TESTED),
    }
    tables["pairs"] += [{"data": "pairs", "arm": f"{name}, not private", "Recall@20": of} for name, of in found.items()]
    settings = {**_ONES, "offsets": False, "spread": 1.0, "user_ridge": _RIDGE * made.n_items / RANK}
    factors = Arm(name="one_shot", mechanism="one_shot", settings=settings)
    for epsilon in (LEAST_EPSILON, EPSILON):
        asked = Asked(rank=RANK, per_user=PER_USER, epsilon=epsilon)
        private, counts = factors.run(made, asked, seed=0), COUNTS.run(made, asked, seed=0).counts
        assert counts is not None
        found[f"factors {epsilon:g}"] = recall(private, made, users=_TESTED)
        found[f"counts {epsilon:g}"] = recall(counts, made, users=_TESTED)
        for arm, name in ((factors.name, "factors"), ("private counts", "counts")):
            row = {"data": "pairs", "arm": arm, "true epsilon": epsilon, "Recall@20": found[f"{name} {epsilon:g}"]}
            tables["pairs"].append(row)
    name = f"pairs n={made.n_users}"
    best = found["popularity in the maker"]
    yield near(
        f"{name}: Recall@20 of counts over that of the popularity that made them", 1.0, 0.02, got=found["counts"] / best
    )
    yield at_most(
        f"{name}: Recall@20 of exact factors over that of counts, so none can pass popularity here",
        1.0,
        got=found["factors"] / found["counts"],
    )
    kept = found[f"factors {EPSILON:g}"] / found["factors"]
    yield at_least(f"{name} epsilon={EPSILON:g}: Recall@20 of one_shot over that of exact factors", KEPT, got=kept)
    kept = found[f"counts {LEAST_EPSILON:g}"] / found["counts"]
    yield at_least(f"{name} epsilon={LEAST_EPSILON:g}: Recall@20 of private counts over that of counts", KEPT, got=kept)


def _leading(made: SplitRatings) -> ItemFactors:
    """Return leading singular vectors of the pairs without noise."""
    start = np.ones(made.n_items) / np.sqrt(made.n_items)
    factors = svds(made.train, k=RANK, v0=start, return_singular_vectors="vh", solver="arpack")[2].T
    step = {"centre": 0.0, "prior": None, "ridge": _RIDGE, "rating_bound": 1.0}
    return ItemFactors(factors=np.ascontiguousarray(factors), offsets=np.zeros(made.n_items), user_step=step)
