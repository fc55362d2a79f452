"""Prediction quality of item embeddings on ratings that were held out.

The estimate is exact for the curator, or private, from four noisy sums that are released as one event.

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
_VISIBLE = 2.0  # standard deviations by which the number of users must exceed 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTerms(Terms):
    """Public facts of an evaluation of item embeddings; ``count`` is the k of Recall@k and NDCG@k."""

    n_features: int
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionError:
    """Release four sums over users.

    The sums are the users' mean squared errors, Recall, NDCG, and the number of users.

    Parameters
    ----------
    offsets : float64 array of shape (n_items,)
        Released offsets.
    factors : float64 array of shape (n_items, rank), optional
        Released factors.
    user_step : dict
        Public numbers with which a user computes a factor and an offset, as in the artifact.
    """

    offsets: Array
    factors: Array | None
    user_step: dict[str, Any]

    name: ClassVar[str] = "prediction_error"

    def plan(self, problem: PredictionTerms, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the single step."""
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
        """Release the sums."""
        noise = JointGaussian(noise_multiplier=plan.noise_multiplier)
        query = curator.with_stored_inputs(self._query(plan.problem, bits=plan.bits))
        sums = curator.release_parts(query, noise)["scores"]
        width = plan.problem.high - plan.problem.low
        return Estimate(sums=sums, outcome=estimated_scores(sums, std=self.noise_std(plan), width=width))

    def noise_std(self, plan: Plan) -> float:
        """Return the std of the noise of each sum, in users."""
        return plan.noise_multiplier * self._query(plan.problem, bits=plan.bits).parts["scores"].scale

    def diagnose(self, curator: DisclosingCurator, problem: PredictionTerms) -> dict[str, float | None]:
        """Compute the same scores without noise; they are only for the curator and are never exported."""
        sums = curator.disclose_parts(self._query(problem, bits=FINEST))["scores"]
        found = estimated_scores(sums, std=0.0, width=problem.high - problem.low)
        return {name: value for name, value in found.items() if not name.endswith("_std")}

    def _query(self, problem: PredictionTerms, *, bits: int) -> PredictionScores:
        if problem.n_features != len(self.offsets):
            raise InvalidInput(
                f"the prediction has {len(self.offsets)} items and the data {problem.n_features}; evaluate on the same "
                "items."
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
    """Estimate the means over users from four noisy sums; this is post-processing.

    Parameters
    ----------
    sums : array of shape (4,)
    std : float
        The std of the noise of each sum.
    width : float
        The width of the range of ratings.

    Returns
    -------
    dict
        ``rmse`` is the root of the mean over users of their mean squared errors. ``rmse``, ``recall`` and ``ndcg`` each
        have a ``..._std`` to first order in the noise. They are None if the number of users cannot be distinguished
        from noise. ``rmse_std`` is also None if the noisy mean squared error is not positive. ``users`` is the noisy
        number of users, with ``users_std``.
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
