"""Alternating least squares without privacy, as a reference for private factors.

It is not in the table of mechanisms: it makes no claim, so it is not audited, and every check on its way requires an
acknowledgement. Ratings are counted as for the others, so that only the noise differs.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpca_tasks.mechanisms.base import Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion.exact_rounds import (
    alternate,
    check_exact,
    disclose_offsets,
    disclosing,
    exact_plan,
)
from dpca_tasks.mechanisms.completion.ratings import Centring, RatingsProblem, centring
from dpca_tasks.mechanisms.results import ItemFactors
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Als:
    """Minimise ``sum (m_ij - u_i . v_j)^2 + ridge (sum |u_i|^2 + sum |v_j|^2)`` over counted ratings, exactly.

    Parameters
    ----------
    rank : int
        r, below the number of items.
    rounds : int
        How often items are solved for.
    ridge : float
        Of users' and of items' regressions.
    offsets : bool
        Whether offsets of items are taken off before.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.

    Notes
    -----
    Its event is ``non_private`` in every step: see `dpca_tasks.mechanisms.subspace.non_private.NonPrivate` for what
    that does to a budget. A user's factor longer than a public norm, far beyond what ratings of the range call for, is
    weighed down with its ratings, so that sums stay exact on a grid.
    """

    rank: int
    rounds: int = 10
    ridge: float = 5.0
    offsets: bool = True
    centre: float | None = None
    user_means: bool = True
    user_prior: float = 5.0

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
        """Disclose the statistics of every round, and solve them.

        Raises
        ------
        Refused
            When the curator is not one that discloses.
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
