"""The noisy power method: a fixed number of noised products, without ever forming a d x d matrix.

Analyze Gauss dominates it in accuracy (the power method is a post-processing of one symmetric release); use
it when d^2 is unaffordable. Each iteration is one durable step of the release.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dpca_tasks.blocks import grid_bits
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import (
    Plan,
    PrivacyTarget,
    Problem,
    Subspace,
    check_request,
    grid_warnings,
    signed,
)
from dpca_tasks.privacy import events
from dpca_tasks.privacy.calibration import gaussian_noise_multiplier
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.noise import Gaussian, check_tail
from dpca_tasks.queries.moment_product import MomentProduct, on_direction_grid

START_SEED = 20140109  # the start is public; the guarantee does not depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPower:
    """Iterate ``V <- orth(X^T X V + noise)`` and average the projectors of the second half.

    Parameters
    ----------
    n_components : int
        k.
    iterations : int
        L, fixed before any row is read; the noise multiplier grows like its square root.
    oversampling : int
        Extra directions carried along, p = k + oversampling.

    Notes
    -----
    Row-level privacy: noise is calibrated to a whole record's ``||X_u^T X_u V||_F <= 1``. The published
    entry-level noise ``||V||_max sqrt(4 p L ln(1/delta)) / epsilon`` protects one entry of the matrix and is
    not offered. The rotation to leading directions uses released matrices only.

    References
    ----------
    Hardt and Price (2014), Algorithm 1; exact composition of Gaussians by Dong, Roth and Su
    (2022), Corollary 3.3.
    """

    n_components: int
    iterations: int = 8
    oversampling: int = 3

    name: ClassVar[str] = "noisy_power"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Split the target over the iterations, exactly."""
        check_request(problem, target, n_components=self.n_components)
        if self.iterations < 1 or self.oversampling < 0:
            raise InvalidInput(
                f"iterations={self.iterations} must be at least 1, oversampling={self.oversampling} at least 0."
            )
        multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, releases=self.iterations)
        start = self._start(problem.n_features)
        coarse = _query(problem, bits=1, directions=start)
        law = Gaussian(noise_multiplier=multiplier)
        check_tail(law, draws=self.iterations * coarse.layout.size, delta=target.delta)
        bits = min(14, grid_bits(noise_std=multiplier * coarse.sensitivity("l2"), degree=coarse.degree))
        event = events.self_composed(law.event, self.iterations)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=multiplier,
            bits=bits,
            event=event,
            warnings=grid_warnings(problem, bits=bits),
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Ask for L noisy products; the rest is post-processing."""
        law = Gaussian(noise_multiplier=plan.noise_multiplier)
        d = plan.problem.n_features
        directions, projectors = self._start(d), []
        for iteration in range(self.iterations):
            query = curator.settled(_query(plan.problem, bits=plan.bits, directions=directions))
            noisy = curator.release(query, law).reshape(d, -1)
            directions = _orthonormal(noisy)
            if 2 * (iteration + 1) > self.iterations:
                projectors.append(directions)
        with threadpool_limits(1):
            left, _, _ = np.linalg.svd(np.hstack(projectors), full_matrices=False)
            used = query.directions / 2.0**24
            values = np.einsum("ij,ij->j", left[:, : used.shape[1]], noisy @ (used.T @ left[:, : used.shape[1]]))
            order = np.argsort(-values[: self.n_components], kind="stable")
        spectrum = values[: self.n_components][order]
        components = signed(left.T[: self.n_components][order])
        return Subspace(components=components, eigenvalues=spectrum, spectrum=spectrum)

    def _start(self, n_features: int) -> NDArray[np.float64]:
        width = min(n_features, self.n_components + self.oversampling)
        return _orthonormal(np.random.default_rng(START_SEED).standard_normal((n_features, width)))


def _orthonormal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    with threadpool_limits(1):
        q, r = np.linalg.qr(matrix)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def _query(problem: Problem, *, bits: int, directions: NDArray[np.float64]) -> MomentProduct:
    return MomentProduct(
        n_features=problem.n_features,
        clip_norm=problem.clip_norm,
        relation=problem.relation,
        bits=bits,
        directions=on_direction_grid(directions),
    )
