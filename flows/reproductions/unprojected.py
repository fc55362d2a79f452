"""Alternating least squares whose noisy matrices are not projected: what the projection is worth, and nothing else."""

import math

import numpy as np

from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.parts.factor_grid import UNIT, in_steps
from dpca_tasks.mechanisms.parts.item_update import orthonormal
from dpca_tasks.mechanisms.results import ItemFactors
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from flows.reproductions.completion_arms import Asked, request_of
from flows.reproductions.rating_makers import SplitRatings

ROUNDS, RIDGE = 3, 0.3
"""The ridge, in multiples of the spectral norm of the noise, is below it: above, it hides that H is indefinite."""


def unprojected(ratings: SplitRatings, asked: Asked, *, centre: float, seed: int) -> ItemFactors:
    """Release factors by ``(H + ridge I)^-1 w`` in every round, by uniform sampling and without offsets."""
    mechanism = _Unprojected(
        rank=asked.rank,
        rounds=ROUNDS,
        item_ridge=RIDGE,
        centre=centre,
        user_ridge=4.0,
        sampling="uniform",
        offsets=False,
    )
    plan = mechanism.plan(*request_of(ratings, asked))
    reservation = InMemoryReservation(event=plan.event, key=seed.to_bytes(32, "little"))
    return mechanism.run(Curator(ArrayBlocks(ratings.train), reservation), plan)


class _Unprojected(Dpals):
    """`Dpals` with the same queries and noise, solved as they are."""

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release every round, and solve it without a projection."""
        problem, centred = plan.problem, self._centring(plan.problem)
        factors = self._random_start(problem)
        for noise in self._noises(problem, plan.target).rounds:
            query = self._query(problem, plan.target, bits=plan.bits, centred=centred, factors=factors)
            parts, outer = curator.release_parts(query, noise), query.parts["outer"]
            ridge = self.item_ridge * outer.scale * outer.unit * noise.noise_multiplier * math.sqrt(2.0 * self.rank)
            weighted = parts["weighted"].reshape(problem.n_features, self.rank, 1)
            factors = orthonormal(np.linalg.solve(parts["outer"] + ridge * np.eye(self.rank), weighted)[:, :, 0])
        return ItemFactors(
            factors=np.asarray(in_steps(factors) * UNIT, np.float64),
            offsets=np.zeros(problem.n_features),
            user_step={
                **centred.facts,
                "ridge": self._ridge(problem),
                "rating_bound": problem.high - problem.low,
            },
        )
