"""Laplace noise on the second moment: the simplest mechanism with pure epsilon-DP, as a baseline.

The l1 sensitivity of the upper triangle is ``(d + 1) / 2``, so the noise is about ``sqrt d`` times the noise of the
symmetrised Wishart mechanism. For delta = 0, use the symmetrised Wishart mechanism instead.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting.calibration import laplace_noise_multiplier
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.released_moment import decompose, plan_moment, release_moment
from dpca_tasks.noise.distributions import SymmetricLaplace
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceMoment:
    """Release ``X^T X`` with Laplace noise on its upper triangle, and return the noisy matrix's leading eigenpairs.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.

    Notes
    -----
    The mechanism is pure epsilon-DP for any requested delta, which may be 0. The sampler uses finitely many random
    bits. Its distribution differs from the Laplace distribution by at most
    `dpca_tasks.noise.distributions.PURE_TAIL` in total variation.

    References
    ----------
    Dwork, McSherry, Nissim, Smith (2006), Calibrating noise to sensitivity in private data analysis.
    """

    n_components: int

    name: ClassVar[str] = "laplace"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one Laplace release to epsilon."""
        check_request(problem, target, n_components=self.n_components, pure=True)
        noise = SymmetricLaplace(noise_multiplier=laplace_noise_multiplier(epsilon=target.epsilon))
        return plan_moment(self.name, problem, target, noise, n_components=self.n_components, spread=math.sqrt(2.0))

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noisy second moment once; the rest is post-processing."""
        moment = release_moment(curator, plan, SymmetricLaplace(noise_multiplier=plan.noise_multiplier))
        return decompose(moment, n_components=self.n_components)
