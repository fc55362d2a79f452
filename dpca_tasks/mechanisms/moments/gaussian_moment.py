"""A release of the noisy second moment itself, without eigenvectors; with ``center=private`` also of mean and count.

The noise is the same as in Analyze Gauss. `dpca.moments` computes statistics and models from the release.

>>> from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
>>> problem = Problem(n_features=3, clip_norm=1.0, center="private")
>>> plan = GaussianMoment().plan(problem, PrivacyTarget(epsilon=1.0, delta=1e-6))
>>> round(plan.moment_std, 3)
3.983
"""

from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, check_request
from dpca_tasks.mechanisms.released_moment import Moment, plan_moment, release_moment
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianMoment:
    """Release ``X^T X`` with isotropic Gaussian noise.

    Notes
    -----
    The release has one round only. Later rounds would weight the records, so every statistic would be a weighted one.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1, without the decomposition. Noise by Balle and
    Wang (2018), Theorem 8.
    """

    name: ClassVar[str] = "gaussian_moment"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one Gaussian release to the target."""
        check_request(problem, target, n_components=1)
        multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        return plan_moment(self.name, problem, target, Symmetric(noise_multiplier=multiplier), n_components=1)

    def run(self, curator: Curator, plan: Plan) -> Moment:
        """Release the noisy second moment once."""
        return release_moment(curator, plan, Symmetric(noise_multiplier=plan.noise_multiplier))
