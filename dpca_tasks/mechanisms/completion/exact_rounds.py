"""What references without privacy share: the acknowledgement, the plan of exact answers, and exact offsets of items."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.item_factors import UNIT, in_steps, on_grid, solve_items
from dpca_tasks.mechanisms.completion.rating_moment import random_start
from dpca_tasks.mechanisms.completion.ratings import (
    SPREAD,
    Centring,
    RatingsProblem,
    asked_of_users,
    check_ratings,
    shrunk_offsets,
    totals_on_grid,
)
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.queries.item_statistics import ItemStatistics

BITS = 14
_LONGEST = 40.0
"""The bound of a user's factor in stds of ratings: with a start of std 0.1 they have about ten."""


def check_exact(
    name: str, problem: RatingsProblem, target: PrivacyTarget, *, rank: int, rounds: int, positive: Sequence[float]
) -> None:
    """Refuse facts and settings out of their domain, and any target but the one that promises nothing.

    Raises
    ------
    InvalidInput, Refused
    """
    check_ratings(problem, rank=rank)
    if target != NO_GUARANTEE:
        raise Refused(
            f"{name} keeps no guarantee: its result is not private, is marked so for ever, and voids the budget of its "
            "population; insist with --i-know-this-is-not-private, or choose another mechanism."
        )
    if rounds < 1 or not all(0 < value < math.inf for value in positive):
        raise InvalidInput(f"rounds={rounds} must be at least 1, ridges and weights positive and finite; correct them.")


def exact_plan(name: str, problem: RatingsProblem, target: PrivacyTarget, *, steps: int) -> Plan:
    """Plan some answers without noise."""
    return Plan(
        mechanism=name,
        problem=problem,
        target=target,
        noise_multiplier=0.0,
        bits=BITS,
        event=events.self_composed(events.non_private(), steps),
        notes=("the result is not private: it has no noise, and voids the budget of its population.",),
        uncertified=True,
    )


def disclosing(curator: Curator, name: str) -> DisclosingCurator:
    """Return the curator as one that discloses.

    Raises
    ------
    Refused
        When it is not.
    """
    if not isinstance(curator, DisclosingCurator):
        raise Refused(f"this curator answers with noise alone; {name} needs a DisclosingCurator.")
    return curator


def disclose_offsets(
    curator: DisclosingCurator, problem: RatingsProblem, centred: Centring
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Disclose totals of items; return offsets, shrunk as if of noise 0, and numbers of counted ratings."""
    parts = curator.disclose_parts(totals_on_grid(problem, centred, bits=BITS))
    counts = np.maximum(parts["counts"], 1.0)
    return shrunk_offsets(parts["sums"], counts, problem, noise_std=0.0), counts


def alternate(
    curator: DisclosingCurator,
    problem: RatingsProblem,
    centred: Centring,
    *,
    rank: int,
    rounds: int,
    ridge: float,
    offsets: NDArray[np.float64],
    unobserved: float = 0.0,
) -> NDArray[np.float64]:
    """Return the factors of items after some rounds of exact regressions, from a public random start.

    Every pair of a user and an item has the weight ``unobserved``, and a rating of 0, besides.
    """
    factors = on_grid(random_start(problem.n_features, rank, is_orthonormal=False))
    for _ in range(rounds):
        every: dict[str, Any] = (
            {"unobserved": unobserved * (factors.T @ factors), "gram_share": 0.2} if unobserved else {}
        )
        asked = ItemStatistics(
            **asked_of_users(problem, centred),
            bits=BITS,
            offsets=offsets,
            factors=in_steps(factors),
            priorities=np.zeros(problem.n_features),
            unit=UNIT,
            ridge=ridge,
            rating_bound=problem.high - problem.low,
            user_norm=longest_user(problem, ridge=ridge),
            rating_clip=problem.high - problem.low,
            clip="weight",
            outer_share=0.5,
            **every,
        )
        parts = curator.disclose_parts(curator.with_stored_inputs(asked))
        weighted = parts["weighted"].reshape(problem.n_features, rank)
        shared = unobserved * parts["gram"] if unobserved else None
        factors = on_grid(solve_items(parts["outer"], weighted, ridge=ridge, shared=shared))
    return factors


def longest_user(problem: RatingsProblem, *, ridge: float) -> float:
    """Return a bound of users' factors: of any regression, or `_LONGEST` stds of ratings if that is less."""
    spread = SPREAD * (problem.high - problem.low)
    longest = math.sqrt(problem.n_features) * (problem.high - problem.low) / (2.0 * math.sqrt(ridge))
    return min(longest, _LONGEST * spread)
