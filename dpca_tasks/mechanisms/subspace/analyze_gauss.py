"""Analyze Gauss: one noised second moment, then its leading eigenvectors; formed, or as an operator where d is large.

The default for (epsilon, delta). The noise is isometric on symmetric matrices: standard deviation s on the
diagonal and ``s / sqrt 2`` off it. In the orthonormal basis of symmetric matrices an off-diagonal coordinate
counts ``sqrt 2`` times, so this is isotropic noise for the Frobenius sensitivity; the published
upper-triangle draw adds ``sqrt 2`` too much off the diagonal.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, published_noise
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, check_request
from dpca_tasks.mechanisms.parts.matrix_free import decompose_unformed
from dpca_tasks.mechanisms.parts.released_moment import decompose, plan_moment, release_moment
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import Symmetric, UpperTriangle
from dpca_tasks.privacy.curator import Curator

WIDE = 5_000
"""Features beyond which the matrix is not formed, unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeGauss:
    """Release ``X^T X`` with isometric Gaussian noise and keep its leading eigenpairs.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    calibration : {"tight", "paper"}
        ``tight``: the least noise that is (epsilon, delta)-DP. ``paper``: the upper-triangle draw with std
        ``sqrt(2 ln(1.25 / delta)) / epsilon``, proved for epsilon below 1 and one row more or less; the event is
        that of the Gaussian which it is.
    form : {"auto", "dense", "operator"}
        Whether ``X^T X`` plus noise is formed: d^2 numbers, and all eigenpairs at hand; or only applied to directions:
        d k numbers, and k eigenpairs, right to about 1e-3. Either way it is one release of the same noisy matrix.
        ``auto`` forms it up to `WIDE` features.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1. Noise by Balle and Wang
    (2018), Theorem 8, exact for every epsilon, in place of the printed ``sqrt(2 ln(1.25/delta)) / epsilon``.
    """

    n_components: int
    calibration: Calibration = "tight"
    form: Literal["auto", "dense", "operator"] = "auto"

    name: ClassVar[str] = "analyze_gauss"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one Gaussian release to the target, exactly or as printed."""
        check_request(problem, target, n_components=self.n_components)
        if self.calibration == "tight":
            multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
            return self._plan(problem, target, multiplier)
        asked = Settings(epsilon=target.epsilon, delta=target.delta, relation=problem.relation)
        multiplier = published_noise(self.name, asked)
        return self._plan(problem, target, multiplier)

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noisy second moment once; everything after it is post-processing."""
        noise = self._noise(plan.noise_multiplier)
        if not self._forms(plan.problem):
            return decompose_unformed(curator, plan, noise, n_components=self.n_components)
        return decompose(release_moment(curator, plan, noise), n_components=self.n_components)

    def _plan(self, problem: Problem, target: PrivacyTarget, multiplier: float) -> Plan:
        noise = self._noise(multiplier)
        plan = plan_moment(
            self.name,
            problem,
            target,
            noise,
            n_components=self.n_components,
            printed=self.calibration == "paper",
        )
        return dataclasses.replace(plan, moment_formed=self._forms(problem))

    def _forms(self, problem: Problem) -> bool:
        return self.form == "dense" or (self.form == "auto" and problem.n_features <= WIDE)

    def _noise(self, multiplier: float) -> Symmetric:
        return (Symmetric if self.calibration == "tight" else UpperTriangle)(noise_multiplier=multiplier)
