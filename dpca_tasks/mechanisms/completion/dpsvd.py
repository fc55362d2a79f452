"""DPSVD, a baseline: item factors from the singular vectors of the rating matrix, with zeros for missing ratings.

One noisy second moment of the users' centred rows is released. As published, each row is divided by the square root of
the user's number of ratings, so that frequent users have less weight. Here the noise protects a whole user, not only
one rating.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpca_tasks.mechanisms.base import ItemFactors, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.ratings import OneMoment, RatingsProblem, centring, spread_of
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpsvd:
    """Release the second moment of the users' weighted rows with isotropic noise; its eigenvectors are item factors.

    A user's factor is later computed by a regression of the user's ratings on the item factors.

    Parameters
    ----------
    rank : int
        The rank r of the factors, below the number of items.
    row_norm : float
        The norm L to which the weighted rows of users are clipped, in multiples of ``spread``.
    spread : float, optional
        The publicly known std of centred ratings; a quarter of the range of ratings by default.
    offsets : bool
        Whether noisy offsets of items are subtracted from the ratings first.
    totals_share : float
        The share of the budget mu^2 for item counts and offsets.
    user_ridge : float
        The ridge in the regressions of users, in multiples of rank / items.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.

    Notes
    -----
    The published noise protects one rating, and the published method clips entries. Here the norm of a user's weighted
    row is bounded by L, so the sensitivity is ``L^2`` and the noise protects the user (`dpca_tasks.queries.ratings`).

    References
    ----------
    McSherry and Mironov (2009), Differentially private recommender systems.
    """

    rank: int
    row_norm: float = field(default=1.0, metadata={"gt": 0})
    spread: float | None = field(default=None, metadata={"gt": 0})
    offsets: bool = True
    totals_share: float = field(default=0.1, metadata={"gt": 0, "lt": 1})
    user_ridge: float = field(default=1.0, metadata={"gt": 0})
    centre: float | None = None
    user_means: bool = True
    user_prior: float = field(default=5.0, metadata={"ge": 0})

    name: ClassVar[str] = "dpsvd"
    audited_with: ClassVar[Mapping[str, Any]] = {"user_means": False, "offsets": False}

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Divide the target exactly between the item totals, if offsets are used, and the second moment."""
        return self._release(problem).plan(self.name, problem, target)

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release the item totals, if offsets are used, and the second moment; the rest is post-processing."""
        return self._release(plan.problem).run(curator, plan)

    def _release(self, problem: RatingsProblem) -> OneMoment:
        return OneMoment(
            rank=self.rank,
            centred=centring(problem, centre=self.centre, user_means=self.user_means, prior=self.user_prior),
            scaling="by_count",
            row_norm=self.row_norm * spread_of(problem, self.spread),
            totals_share=self.totals_share if self.offsets else None,
            diagonal_passes=0,
            ridge=self.user_ridge * self.rank / problem.n_features,
        )
