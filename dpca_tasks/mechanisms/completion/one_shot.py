"""Analyze Gauss on the users' rating rows: the leading eigenvectors of one noisy second moment are the item factors.

It is the best choice if nearly all pairs of items are rated by many common users, because a mechanism in several rounds
would have less budget for each round. If few items are much more popular than others, missing ratings bias the moment.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dpca_tasks.mechanisms.base import ItemFactors, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.ratings import OneMoment, RatingsProblem, centring, spread_of
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot:
    """Release ``X^T X`` of the users' rating rows with isotropic noise; its leading eigenvectors are the item factors.

    A user's factor is later computed by a regression of the user's ratings on the item factors.

    Parameters
    ----------
    rank : int
        The rank r of the factors, below the number of items.
    scaling : {"normalise", "clip"}
        Whether every user's row is scaled to the same norm, or only longer rows are scaled down to ``row_norm``.
    row_norm : float
        The norm L to which a user's row is clipped, in multiples of ``spread sqrt(K)`` for at most K counted ratings of
        a user. With ``scaling=normalise`` it has no effect.
    spread : float, optional
        The publicly known std of centred ratings; a quarter of the range of ratings by default.
    diagonal_passes : int
        The number of corrections, after the release, that replace the diagonal of the noisy moment with the diagonal of
        its approximation of rank ``rank``.
    offsets : bool
        Whether noisy offsets of items are subtracted from the ratings first.
    totals_share : float
        The share of the budget mu^2 for item counts and offsets.
    user_ridge : float
        The ridge in the regressions of users, in multiples of rank / items.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.

    References
    ----------
    Dwork, Talwar, Thakurta and Zhang (2014), Analyze Gauss, applied to rows of ratings. The paper on DPALS (see
    `dpca_tasks.mechanisms.completion.dpals.Dpals`) does not evaluate this baseline.
    """

    rank: int
    scaling: Literal["normalise", "clip"] = "normalise"
    row_norm: float = field(default=1.0, metadata={"gt": 0})
    spread: float | None = field(default=None, metadata={"gt": 0})
    diagonal_passes: int = field(default=3, metadata={"ge": 0})
    offsets: bool = True
    totals_share: float = field(default=0.1, metadata={"gt": 0, "lt": 1})
    user_ridge: float = field(default=1.0, metadata={"gt": 0})
    centre: float | None = None
    user_means: bool = True
    user_prior: float = field(default=5.0, metadata={"ge": 0})

    name: ClassVar[str] = "one_shot"
    audited_with: ClassVar[Mapping[str, Any]] = {"user_means": False, "offsets": False, "diagonal_passes": 0}

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
            scaling=self.scaling,
            row_norm=self.row_norm * spread_of(problem, self.spread) * math.sqrt(problem.most),
            totals_share=self.totals_share if self.offsets else None,
            diagonal_passes=self.diagonal_passes,
            ridge=self.user_ridge * self.rank / problem.n_features,
        )
