"""Alternating least squares without privacy, as references for the private mechanisms that release item factors.

`Als` is for explicit ratings. `Ials` is for implicit data, in which a user chooses items: every pair of a user and an
item counts, and chosen pairs count more. The lowest rating of the range means no choice.

These references are not in the table of private mechanisms. They claim no guarantee and are not audited. A release
requires the option ``--i-know-this-is-not-private``. Ratings are counted as in the private mechanisms, so that results
differ only by the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, ItemFactors, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.ratings import (
    SPREAD,
    UNIT,
    Centring,
    RatingsProblem,
    centring,
    check_ratings,
    in_steps,
    on_grid,
    random_start,
    shrunk_offsets,
    solve_items,
    totals_on_grid,
    user_options,
)
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.queries.item_statistics import ItemStatistics

BITS = 14
_LONGEST = 40.0
"""The bound on the norm of a user's factor, in stds of ratings; usual factors have a norm of about ten stds."""


def check_exact(
    name: str, problem: RatingsProblem, target: PrivacyTarget, *, rank: int, rounds: int, positive: Sequence[float]
) -> None:
    """Refuse invalid facts and settings of a mechanism without noise, and any privacy target except `NO_GUARANTEE`.

    Raises
    ------
    InvalidInput
        When a fact or a setting is outside its domain.
    Refused
        When the target differs from `NO_GUARANTEE`, so the user has not acknowledged that the result is not private.
    """
    check_ratings(problem, rank=rank)
    if target != NO_GUARANTEE:
        raise Refused(
            f"{name} gives no privacy guarantee: its result is marked as not private and voids the budget of its "
            "population; insist with --i-know-this-is-not-private, or choose another mechanism."
        )
    if rounds < 1 or not all(0 < value < math.inf for value in positive):
        raise InvalidInput(f"rounds={rounds} must be at least 1, ridges and weights positive and finite; correct them.")


def exact_plan(name: str, problem: RatingsProblem, target: PrivacyTarget, *, steps: int) -> Plan:
    """Plan a release of ``steps`` exact answers, without noise and without a guarantee."""
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
    """Return the curator if it can answer without noise.

    Raises
    ------
    Refused
        When the curator is not a `DisclosingCurator`.
    """
    if not isinstance(curator, DisclosingCurator):
        raise Refused(f"{name} needs exact answers, and this curator gives only noisy ones; use a DisclosingCurator.")
    return curator


def disclose_offsets(
    curator: DisclosingCurator, problem: RatingsProblem, centred: Centring
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Disclose the exact rating sums and counts of all items; return the items' offsets and counts.

    The offsets are shrunk as in a private release, for noise of std 0.
    """
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
    """Return item factors after ``rounds`` rounds of exact alternating least squares, from public random factors.

    With a positive ``unobserved``, every pair of a user and an item also enters with this weight and a rating of 0.
    """
    factors = on_grid(random_start(problem.n_features, rank, is_orthonormal=False))
    for _ in range(rounds):
        every: dict[str, Any] = (
            {"unobserved": unobserved * (factors.T @ factors), "gram_share": 0.2} if unobserved else {}
        )
        requested = ItemStatistics(
            **user_options(problem, centred),
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
        parts = curator.disclose_parts(curator.with_stored_inputs(requested))
        weighted = parts["weighted"].reshape(problem.n_features, rank)
        shared = unobserved * parts["gram"] if unobserved else None
        factors = on_grid(solve_items(parts["outer"], weighted, ridge=ridge, shared=shared))
    return factors


def longest_user(problem: RatingsProblem, *, ridge: float) -> float:
    """Return a bound on the norm of users' factors.

    It is the largest norm that a regression with this ridge can give, but at most `_LONGEST` stds of ratings.
    """
    spread = SPREAD * (problem.high - problem.low)
    longest = math.sqrt(problem.n_features) * (problem.high - problem.low) / (2.0 * math.sqrt(ridge))
    return min(longest, _LONGEST * spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Als:
    """Alternating least squares without noise: fit user factors u_i and item factors v_j to the counted ratings m_ij.

    Minimise ``sum (m_ij - u_i . v_j)^2 + ridge (sum |u_i|^2 + sum |v_j|^2)``.

    Parameters
    ----------
    rank : int
        The rank r of the factors, below the number of items.
    rounds : int
        The number of rounds, each of which solves all item factors once.
    ridge : float
        The ridge (regularization) in the regressions of users and of items.
    offsets : bool
        Whether offsets of items are subtracted from the ratings first.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.

    Notes
    -----
    The event of every step is ``non_private``. The notes of `dpca_tasks.mechanisms.subspace.non_private.NonPrivate`
    describe its effect on a budget. If the factor of a user is longer than a public norm, the factor and the user's
    ratings are scaled down, so that sums remain exact on a grid. This norm is far above the norms that ratings in the
    range require.
    """

    rank: int
    rounds: int = field(default=10, metadata={"ge": 1})
    ridge: float = 5.0
    offsets: bool = True
    centre: float | None = None
    user_means: bool = True
    user_prior: float = field(default=5.0, metadata={"ge": 0})

    name: ClassVar[str] = "als"

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Plan the answers without noise.

        Raises
        ------
        Refused
            When the target is anything but `dpca_tasks.mechanisms.base.NO_GUARANTEE`.
        """
        check_exact(self.name, problem, target, rank=self.rank, rounds=self.rounds, positive=(self.ridge,))
        self._centring(problem)
        return exact_plan(self.name, problem, target, steps=self.rounds + self.offsets)

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Disclose the statistics of every round, and compute the item factors from them.

        Raises
        ------
        Refused
            When the curator is not a `DisclosingCurator`.
        """
        problem, centred, answers = plan.problem, self._centring(plan.problem), disclosing(curator, self.name)
        offsets, counts = np.zeros(problem.n_features), None
        if self.offsets:
            offsets, counts = disclose_offsets(answers, problem, centred)
        factors = alternate(
            answers, problem, centred, rank=self.rank, rounds=self.rounds, ridge=self.ridge, offsets=offsets
        )
        return ItemFactors(
            factors=factors,
            offsets=offsets,
            counts=counts,
            user_step={**centred.facts, "ridge": self.ridge, "rating_bound": problem.high - problem.low},
        )

    def _centring(self, problem: RatingsProblem) -> Centring:
        return centring(problem, centre=self.centre, user_means=self.user_means, prior=self.user_prior)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ials:
    """Implicit alternating least squares without noise: fit user factors u_i and item factors v_j to choices of items.

    Minimise ``sum_counted (m_ij - u_i . v_j)^2 + unobserved sum_all (u_i . v_j)^2`` plus a ridge. The second sum is
    over all pairs of a user and an item. ``m_ij`` is the rating minus the lowest rating of the range, so it is 1 for a
    choice if the range is ``0:1``.

    Parameters
    ----------
    rank : int
        The rank r of the factors, below the number of items.
    rounds : int
        The number of rounds, each of which solves all item factors once.
    ridge : float
        The ridge (regularization) in the regressions of users and of items.
    unobserved : float
        The weight of every pair of a user and an item, relative to a chosen pair.

    Notes
    -----
    The event of every step is ``non_private``, as for `Als`. The original method gives chosen pairs the confidence
    ``1 + alpha``, and other pairs the confidence 1. Up to constants, this is the weight ``1 / alpha`` for all pairs.

    References
    ----------
    Hu, Koren and Volinsky (2008), Collaborative filtering for implicit feedback datasets.
    """

    rank: int
    rounds: int = field(default=10, metadata={"ge": 1})
    ridge: float = 5.0
    unobserved: float = field(default=0.1, metadata={"ge": 0})

    name: ClassVar[str] = "ials"

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Plan the answers without noise.

        Raises
        ------
        Refused
            When the target is anything but `dpca_tasks.mechanisms.base.NO_GUARANTEE`.
        """
        positive = (self.ridge, self.unobserved)
        check_exact(self.name, problem, target, rank=self.rank, rounds=self.rounds, positive=positive)
        return exact_plan(self.name, problem, target, steps=self.rounds)

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Disclose the statistics of every round, and compute the item factors from them.

        Raises
        ------
        Refused
            When the curator is not a `DisclosingCurator`.
        """
        problem, offsets = plan.problem, np.zeros(plan.problem.n_features)
        centred = centring(problem, centre=problem.low, user_means=False, prior=0.0)
        factors = alternate(
            disclosing(curator, self.name),
            problem,
            centred,
            rank=self.rank,
            rounds=self.rounds,
            ridge=self.ridge,
            offsets=offsets,
            unobserved=self.unobserved,
        )
        return ItemFactors(
            factors=factors,
            offsets=offsets,
            user_step={
                **centred.facts,
                "ridge": self.ridge,
                "rating_bound": problem.high - problem.low,
                "unobserved": self.unobserved,
            },
        )
