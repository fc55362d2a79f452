"""Prediction quality of released item factors and offsets, measured on hidden ratings.

A part of each user's ratings is hidden and predicted from the user's other ratings and the released factors. The
quality is estimated privately, from four noisy sums that are released as one event. For the person who holds the
ratings, the same numbers can be computed without noise.

>>> import numpy as np
>>> estimated_scores(np.array([4.0, 30.0, 20.0, 100.0]), std=0.0, width=5.0)["rmse"]
1.0
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Estimate, Plan, PrivacyTarget, Terms, check_target
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.queries.ratings import SCORES, PredictionScores

type Array = NDArray[np.float64]

FINEST = 20
_FACTOR_BITS = 24
_VISIBLE = 2.0  # means are stated only if the noisy number of users exceeds 0 by this many standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTerms(Terms):
    """Public facts of a request to evaluate predictions of ratings; ``count`` is the k of Recall@k and NDCG@k."""

    n_features: int
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionError:
    """Release four noisy sums over users, from which the quality of predicted ratings is estimated.

    The first sum is over the users' mean squared errors, divided by the squared range of ratings. The second and third
    sums are over the users' Recall and NDCG. The fourth is the number of users.

    Parameters
    ----------
    offsets : float64 array of shape (n_items,)
        The released offsets of the items.
    factors : float64 array of shape (n_items, rank), optional
        The released factors of the items.
    user_step : dict
        The public numbers with which a user's own factor and offset are computed, as stored in the artifact.
    """

    offsets: Array
    factors: Array | None
    user_step: dict[str, Any]

    name: ClassVar[str] = "prediction_error"

    def plan(self, problem: PredictionTerms, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the single step, which releases four sums over users."""
        check_target(problem, target)
        multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        check_tail(Gaussian(noise_multiplier=multiplier), draws=SCORES, delta=target.delta)
        noise, part = JointGaussian(noise_multiplier=multiplier), self._query(problem, bits=1).parts["scores"]
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=multiplier,
            bits=min(FINEST, grid_bits(noise_std=multiplier * part.scale, degree=PredictionScores.degree)),
            event=noise.event,
        )

    def run(self, curator: Curator, plan: Plan) -> Estimate:
        """Release the four noisy sums over users, and estimate the scores from them."""
        noise = JointGaussian(noise_multiplier=plan.noise_multiplier)
        query = curator.with_stored_inputs(self._query(plan.problem, bits=plan.bits))
        sums = curator.release_parts(query, noise)["scores"]
        width = plan.problem.high - plan.problem.low
        return Estimate(sums=sums, outcome=estimated_scores(sums, std=self.noise_std(plan), width=width))

    def noise_std(self, plan: Plan) -> float:
        """Return the std of the noise in each of the four sums; the unit is one user."""
        return plan.noise_multiplier * self._query(plan.problem, bits=plan.bits).parts["scores"].scale

    def diagnose(self, curator: DisclosingCurator, problem: PredictionTerms) -> dict[str, float | None]:
        """Compute RMSE, Recall and NDCG of the predictions without noise.

        The numbers are not private. They are only for the person who holds the ratings, and are never exported.
        """
        sums = curator.disclose_parts(self._query(problem, bits=FINEST))["scores"]
        found = estimated_scores(sums, std=0.0, width=problem.high - problem.low)
        return {name: value for name, value in found.items() if not name.endswith("_std")}

    def _query(self, problem: PredictionTerms, *, bits: int) -> PredictionScores:
        if problem.n_features != len(self.offsets):
            raise InvalidInput(
                f"the prediction has {len(self.offsets)} items and the data has {problem.n_features}; evaluate on data "
                "with the items of the prediction."
            )
        step, factors = self.user_step, np.zeros((problem.n_features, 0)) if self.factors is None else self.factors
        largest = float(np.abs(factors).max(initial=0.0))
        unit = 2.0 ** (math.ceil(math.log2(largest)) - _FACTOR_BITS) if largest > 0.0 else 1.0
        prior = step["prior"]
        return PredictionScores(
            n_features=problem.n_features,
            clip_norm=1.0,
            relation=problem.relation,
            bits=bits,
            low=problem.low,
            high=problem.high,
            ratings_per_user=problem.n_features,
            offsets=np.asarray(self.offsets, dtype=np.float64),
            centre=float(step["centre"]),
            prior=math.inf if prior is None else float(prior),
            count=problem.count,
            factors=np.rint(factors / unit).astype(np.int64),
            factor_unit=unit,
            ridge=float(step.get("ridge", 1.0)),
            rating_bound=float(step.get("rating_bound", problem.high - problem.low)),
            gains=np.array(step.get("gains", []), dtype=np.float64),
            row_norm=float(step.get("row_norm", 1.0)),
            unobserved=float(step["unobserved"]) * (factors.T @ factors) if "unobserved" in step else None,
        )


def estimated_scores(sums: Array, *, std: float, width: float) -> dict[str, float | None]:
    """Estimate RMSE, Recall and NDCG from four noisy sums over users; this is post-processing.

    Parameters
    ----------
    sums : array of shape (4,)
        The noisy sums of the users' mean squared errors (divided by ``width^2``), Recall and NDCG, and the noisy number
        of users.
    std : float
        The std of the noise in each sum.
    width : float
        The width of the range of ratings.

    Returns
    -------
    dict
        ``rmse`` is the square root of the average of the users' mean squared errors. ``recall`` and ``ndcg`` are
        averages over users. Each has a std to first order in the noise, ``rmse_std`` and so on. All six are None if the
        number of users cannot be distinguished from noise. ``rmse_std`` is also None if the noisy mean squared error is
        not positive. ``users`` is the noisy number of users, and ``users_std`` its std.
    """
    errors, recall, ndcg, users = (float(each) for each in sums)
    found: dict[str, float | None] = dict.fromkeys(("rmse", "rmse_std", "recall", "recall_std", "ndcg", "ndcg_std"))
    if users > _VISIBLE * std:
        square = min(max(errors / users, 0.0), 1.0)
        found["rmse"] = width * math.sqrt(square)
        if square > 0.0:
            found["rmse_std"] = width * std * math.hypot(1.0, square) / users / (2.0 * math.sqrt(square))
        for name, total in (("recall", recall), ("ndcg", ndcg)):
            mean = min(max(total / users, 0.0), 1.0)
            found[name], found[f"{name}_std"] = mean, std * math.hypot(1.0, mean) / users
    return {**found, "users": users, "users_std": std}
