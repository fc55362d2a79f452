"""Private singular vectors of the ratings, with zeros for missing ratings and down-weighted frequent users.

A baseline: the moment of centred rows, each divided by the square root of its number of ratings, as published. The
noise protects a whole user rather than one rating.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpca_tasks.mechanisms.base import ItemFactors, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.ratings import OneMoment, RatingsProblem, centring, spread_of
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpsvd:
    """Release the moment of weighted rows with isometric noise, and fold users in to its leading eigenvectors.

    Parameters
    ----------
    rank : int
        r, below the number of items.
    row_norm : float
        The norm L to which weighted rows are clipped, in multiples of ``spread``.
    spread : float, optional
        The public std of centred ratings; a quarter of their range by default.
    offsets : bool
        Whether noisy offsets of items are subtracted first.
    totals_share : float
        The share of the squared loss for counts and offsets.
    user_ridge : float
        The ridge of users' regressions, in multiples of rank / items.
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
        """Split the target exactly between the totals, if offsets are used, and the moment."""
        return self._release(problem).plan(self.name, problem, target)

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release the totals, if offsets are used, and the moment; the rest is post-processing."""
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
