"""Implicit alternating least squares without privacy, as a reference for private factors of what users chose.

Of all pairs of a user and an item every one counts, those that were chosen more: a rating is a choice, and the lowest
of the range is none. As for `als`, every check on its way requires an acknowledgement.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpca_tasks.mechanisms.base import Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.exact_rounds import alternate, check_exact, disclosing, exact_plan
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem, centring
from dpca_tasks.mechanisms.results import ItemFactors
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Ials:
    """Minimise ``sum_counted (m_ij - u_i . v_j)^2 + unobserved sum_all (u_i . v_j)^2`` plus a ridge, exactly.

    ``m_ij`` is the rating above the lowest of the range: 1 for a choice in the range ``0:1``.

    Parameters
    ----------
    rank : int
        r, below the number of items.
    rounds : int
        How often items are solved for.
    ridge : float
        Of users' and of items' regressions.
    unobserved : float
        The weight of every pair of a user and an item.

    Notes
    -----
    See `dpca_tasks.mechanisms.completion.als.Als` for what it costs. A confidence ``1 + alpha`` of chosen pairs, as
    the method is first written, is a weight ``1 / alpha`` of all pairs but for constants.

    References
    ----------
    Hu, Koren and Volinsky (2008), Collaborative filtering for implicit feedback datasets.
    """

    rank: int
    rounds: int = 10
    ridge: float = 5.0
    unobserved: float = 0.1

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
        """Disclose the statistics of every round, and solve them.

        Raises
        ------
        Refused
            When the curator is not one that discloses.
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
