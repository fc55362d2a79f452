"""Item offsets without factors: a baseline for matrix factorization, and the better choice if there are few users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from dpca_tasks.mechanisms.base import ItemFactors, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.completion.ratings import (
    Centring,
    RatingsProblem,
    centring,
    check_ratings,
    joint_noise,
    release_totals,
    totals_query,
)
from dpca_tasks.noise.distributions import Gaussian, check_tail
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemMeans:
    """Release one offset for each item, the noisy mean of its centred ratings, shrunk toward 0.

    Parameters
    ----------
    rank : int
        Not used, because the mechanism releases no factors. The rank must nevertheless be below the number of items.
    centre : float, optional
        The publicly known average rating; the middle of the range by default.
    user_means : bool
        Whether each user's mean rating is subtracted from the user's ratings.
    user_prior : float
        The number of fictitious ratings, equal to the centre, that are added to each user's mean.
    """

    rank: int
    centre: float | None = None
    user_means: bool = True
    user_prior: float = field(default=5.0, metadata={"ge": 0})

    name: ClassVar[str] = "item_means"
    audited_with: ClassVar[Mapping[str, Any]] = {"user_means": False}

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the single step, which releases rating sums and counts of all items."""
        check_ratings(problem, rank=self.rank)
        check_target(problem, target)
        noise = joint_noise(target, Fraction(1))
        query = totals_query(problem, self._centring(problem), noise)
        check_tail(Gaussian(noise_multiplier=1.0), draws=query.layout.size, delta=target.delta)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=query.bits,
            event=noise.event,
        )

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release noisy rating sums and counts of all items, and compute the offsets from them."""
        centred, noise = self._centring(plan.problem), joint_noise(plan.target, Fraction(1))
        offsets, counts = release_totals(curator, plan.problem, centred, noise)
        return ItemFactors(offsets=offsets, counts=counts, user_step=centred.facts)

    def _centring(self, problem: RatingsProblem) -> Centring:
        return centring(problem, centre=self.centre, user_means=self.user_means, prior=self.user_prior)
