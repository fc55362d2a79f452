"""Analyze Gauss: one noised second moment, then its leading eigenvectors.

The default for (epsilon, delta). The noise is isometric on symmetric matrices: standard deviation s on the
diagonal and ``s / sqrt 2`` off it. In the orthonormal basis of symmetric matrices an off-diagonal coordinate
counts ``sqrt 2`` times, so this is isotropic noise for the Frobenius sensitivity; the published
upper-triangle draw adds ``sqrt 2`` too much off the diagonal.
"""

from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.blocks import grid_bits
from dpca_tasks.mechanisms.base import (
    Plan,
    PrivacyTarget,
    Problem,
    Subspace,
    check_request,
    grid_warnings,
    leading_eigenpairs,
)
from dpca_tasks.privacy.calibration import gaussian_noise_multiplier
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.noise import Symmetric, check_tail
from dpca_tasks.queries.second_moment import SecondMoment

SPECTRUM = 64  # released eigenvalues beyond k are free post-processing; a public number of them suffices to plot


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeGauss:
    """Release ``X^T X`` with isometric Gaussian noise and keep its k leading eigenpairs.

    Parameters
    ----------
    n_components : int
        k, below the number of features.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1. Noise by Balle and Wang
    (2018), Theorem 8, exact for every epsilon, in place of the printed ``sqrt(2 ln(1.25/delta)) / epsilon``.
    """

    n_components: int

    name: ClassVar[str] = "analyze_gauss"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one Gaussian release to the target, exactly."""
        check_request(problem, target, n_components=self.n_components)
        multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        law = Symmetric(noise_multiplier=multiplier)
        coarse = _query(problem, bits=1)
        check_tail(law, draws=coarse.layout.size, delta=target.delta)
        bits = grid_bits(noise_std=multiplier * coarse.sensitivity("l2"), degree=coarse.degree)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=multiplier,
            bits=bits,
            event=law.event,
            warnings=grid_warnings(problem, bits=bits),
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noisy second moment once; everything after it is post-processing."""
        law = Symmetric(noise_multiplier=plan.noise_multiplier)
        noisy = curator.release(_query(plan.problem, bits=plan.bits), law)
        count = min(plan.problem.n_features, max(self.n_components, SPECTRUM))
        spectrum, rows = leading_eigenpairs(noisy, count)
        k = self.n_components
        return Subspace(components=rows[:k], eigenvalues=spectrum[:k], spectrum=spectrum)


def _query(problem: Problem, *, bits: int) -> SecondMoment:
    return SecondMoment(
        n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=bits
    )
