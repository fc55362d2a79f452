"""Search for the settings of a completion mechanism on synthetic ratings.

The synthetic ratings have a declared size, and no private row is read. A choice of settings on private rows would cost
one release for each setting tried, while synthetic ratings cost nothing. `TASKS` holds the generators; the user decides
which of them resembles the private ratings.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import ItemFactors, PrivacyTarget, check_target
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.metrics import rmse
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.records.made_ratings import SplitRatings, low_rank, ratings_of, skewed
from flows.families.base import build_mechanism
from flows.families.completion import COMPLETION

TASKS: Mapping[str, Callable[..., SplitRatings]] = {"skewed": skewed, "low-rank": low_rank}
"""Generators of ratings: star ratings with errors and skewed popularity of items, or an exact matrix of rank 5."""
GRIDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "dpals": {"user_ridge": ("1", "3"), "item_ridge": ("0.5", "1"), "rounds": ("3", "4")},
    "one_shot": {"user_ridge": ("1", "3", "10")},
    "dpsvd": {"user_ridge": ("1", "3", "10"), "row_norm": ("0.7", "1")},
    "dpfw": {"rounds": ("8", "16"), "nuclear_norm": ("0.5", "0.7", "1")},
    "item_means": {"user_prior": ("2", "5", "10")},
}
"""The values tried for each mechanism by default."""
MOST = 200
_TESTED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for a mechanism's settings on synthetic ratings of a given size, under a given guarantee.

    Parameters
    ----------
    task : {"skewed", "low-rank"}
    users, items, rank, ratings_per_user : int
    epsilon, delta : float
    mechanism : str
    tried : mapping of str to sequences of str
        The values of each setting, as text; every combination is tried. If empty, `GRIDS` provides the values.
    draws : int
        Number of synthetic data sets on which each combination is run.
    """

    task: str
    users: int
    items: int
    rank: int
    ratings_per_user: int
    epsilon: float
    delta: float
    mechanism: str
    tried: Mapping[str, Sequence[str]]
    draws: int = 1

    @property
    def combinations(self) -> list[dict[str, str]]:
        """All combinations of the values to try."""
        grid = self.tried or GRIDS.get(self.mechanism, {})
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def search(requested: Search, *, progress: Callable[[int, int], None] = lambda *_: None) -> list[dict[str, Any]]:
    """Return one table row for each combination of settings, sorted by increasing mean RMSE on held-out ratings.

    Raises
    ------
    InvalidInput
        If the task or the mechanism is unknown, a setting is refused, or there are too many runs.
    """
    if requested.task not in TASKS:
        raise InvalidInput(f"task={requested.task!r} is unknown; choose one of {', '.join(TASKS)}.")
    if requested.mechanism not in COMPLETION.mechanisms:
        raise InvalidInput(
            f"mechanism={requested.mechanism!r} is unknown; choose one of {', '.join(COMPLETION.mechanisms)}."
        )
    combinations = requested.combinations
    if len(combinations) * requested.draws > MOST:
        raise InvalidInput(
            f"{len(combinations) * requested.draws} runs exceed the limit of {MOST}; try fewer values or draws."
        )
    errors: list[list[float]] = [[] for _ in combinations]
    for draw in range(requested.draws):
        made = TASKS[requested.task](n_users=requested.users, n_items=requested.items, seed=draw)
        for at, settings in enumerate(combinations):
            errors[at].append(_error(requested, settings, made, seed=draw))
            progress(draw * len(combinations) + at + 1, len(combinations) * requested.draws)
    rows = [
        {"settings": " ".join(f"{name}={value}" for name, value in settings.items()), "rmse": float(np.mean(found))}
        for settings, found in zip(combinations, errors, strict=True)
    ]
    return sorted(rows, key=lambda row: row["rmse"])


def held_out_error(found: ItemFactors, ratings: SplitRatings, *, users: int) -> float:
    """Return the RMSE on the held-out ratings of the first ``users`` users that have held-out ratings."""
    items, tested = embeddings_of(found, ratings), ratings.tested(users)
    predicted = [items.predict(*ratings_of(ratings.train, user))[ratings_of(ratings.held, user)[0]] for user in tested]
    return rmse(np.concatenate(predicted), np.concatenate([ratings_of(ratings.held, user)[1] for user in tested]))


def embeddings_of(found: ItemFactors, ratings: SplitRatings) -> ItemEmbeddings:
    """Return item factors as an artifact, so that the search predicts ratings exactly as users of a release do."""
    return ItemEmbeddings(
        factors=found.factors,
        offsets=found.offsets,
        counts=found.counts,
        low=ratings.low,
        high=ratings.high,
        manifest={"user_step": dict(found.user_step)},
    )


def refuse_private_rows(requested: Search) -> None:
    """Refuse a search on private rows, and report what it would cost.

    Raises
    ------
    Refused
        Always: every run of a combination is a release, and Gaussian releases compose by their squared losses.
    """
    check_target(
        RatingsProblem(**_facts(requested, 0.0, 1.0)), PrivacyTarget(epsilon=requested.epsilon, delta=requested.delta)
    )
    runs = len(requested.combinations) * requested.draws
    multiplier = gaussian_noise_multiplier(epsilon=requested.epsilon, delta=requested.delta)
    spent = gaussian_epsilon(noise_multiplier=multiplier / math.sqrt(runs), delta=requested.delta)
    raise Refused(
        f"settings are not searched on private rows: {runs} runs at epsilon {requested.epsilon:g} "
        f"are {runs} releases and cost epsilon {spent:.3g} in total at delta {requested.delta:g}, and releasing "
        "their errors costs more; leave DATASET out, to search on synthetic ratings of the declared size."
    )


def _facts(requested: Search, low: float, high: float) -> dict[str, Any]:
    return {
        "n_features": requested.items,
        "low": low,
        "high": high,
        "ratings_per_user": requested.ratings_per_user,
        "records_at_most": requested.users,
    }


def _error(requested: Search, settings: Mapping[str, str], made: SplitRatings, *, seed: int) -> float:
    mechanism = build_mechanism(COMPLETION, requested.mechanism, settings, rank=requested.rank)
    problem = RatingsProblem(**_facts(requested, made.low, made.high))
    plan = mechanism.plan(problem, PrivacyTarget(epsilon=requested.epsilon, delta=requested.delta))
    reservation = InMemoryReservation(event=plan.event, key=seed.to_bytes(32, "little"))
    found = mechanism.run(Curator(ArrayBlocks(made.train), reservation), plan)
    return held_out_error(found, made, users=_TESTED)


def values_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse the values to try for each setting, written as ``KEY=V1,V2``.

    Raises
    ------
    InvalidInput
        If a text does not have that form, or a key is given twice.
    """
    found = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (name and sign and all(values.split(","))) or name in found:
            raise InvalidInput(f"{text!r} is not a setting with values; write --try KEY=V1,V2, with each key once.")
        found[name] = values.split(",")
    return found
