"""The noisy power method: a fixed number of noisy products with directions, without ever forming a d x d matrix.

Analyze Gauss is at least as accurate, since a power method can be applied to its single noisy matrix without further
noise. Use the noisy power method if d^2 numbers do not fit in memory. The noisy product of each iteration is stored as
one step of the release, so an interrupted release can be resumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, refusal
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.noise_level import product_edge
from dpca_tasks.mechanisms.noisy_products import (
    leading_of_projectors,
    mean_noise,
    mean_share,
    on_grid,
    orthonormal,
    plan_products,
    product_noise,
    product_query,
    ranked,
    release_centre,
    start_directions,
)
from dpca_tasks.noise.distributions import Gaussian
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPower:
    """Iterate ``V <- orth(X^T X V + noise)``, and average the directions of the second half of the iterations.

    Parameters
    ----------
    n_components : int
        The number k of components.
    iterations : int
        The number L of noisy products, fixed before any row is read; the noise multiplier grows with the square root of
        L.
    oversampling : int
        The number of directions in the iteration beyond k, ``p = k + oversampling``.
    averaging : {"projectors", "last"}
        ``projectors``: the leading directions of the averaged projectors of the second half of the iterations;
        ``last``: the directions of the last product alone, as published.
    calibration : {"tight", "paper"}
        Only ``tight``; ``paper`` is refused, because the published formula protects one entry of the matrix instead of
        a record.

    Notes
    -----
    The noise protects a whole record: one record with rows ``X_u`` changes the product by ``||X_u^T X_u V||_F <= 1``.
    The published noise ``||V||_max sqrt(4 p L ln(1/delta)) / epsilon`` only covers a change of 1 in one entry of
    ``X^T X``. It is too small for a record: one row changes the product by up to 1, while ``||V||_max`` may be about
    ``sqrt(ln(d) / d)``. The final ranking of the directions uses released numbers only.

    References
    ----------
    Hardt and Price (2014), Algorithm 1; exact composition of Gaussians by Dong, Roth and Su
    (2022), Corollary 3.3.
    """

    n_components: int
    iterations: int = field(default=8, metadata={"ge": 1})
    oversampling: int = field(default=3, metadata={"ge": 0})
    averaging: Literal["projectors", "last"] = "projectors"
    calibration: Calibration = "tight"

    name: ClassVar[str] = "noisy_power"
    audited_with: ClassVar[Mapping[str, Any]] = {"iterations": 2}

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of all iterations together, and of the mean if the problem is centred."""
        check_request(problem, target, n_components=self.n_components)
        if self.iterations < 1 or self.oversampling < 0:
            raise InvalidInput(
                f"iterations={self.iterations} must be at least 1, oversampling={self.oversampling} at least 0; "
                "correct them."
            )
        if self.calibration == "paper":
            raise refusal(self.name, Settings(epsilon=target.epsilon, delta=target.delta))
        multiplier = gaussian_noise_multiplier(
            epsilon=target.epsilon, delta=target.delta, releases=self.iterations, share=1 - mean_share(problem)
        )
        noise = Gaussian(noise_multiplier=multiplier)
        width = self._width(problem)
        level = product_edge(problem.n_features, width, std=product_noise(problem, noise, width=width, rate=1.0))
        return plan_products(
            self.name,
            problem,
            target,
            width=width,
            noises=[(noise, 1.0)],
            releases=self.iterations,
            event=events.self_composed(noise.event, self.iterations),
            n_components=self.n_components,
            level=level,
            edge=level / 2.0,  # the average over iterations contains little noise of each single iteration
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the mean if the problem is centred, then the planned noisy products; the rest is post-processing."""
        noise, problem = Gaussian(noise_multiplier=plan.noise_multiplier), plan.problem
        centre = release_centre(curator, problem, mean_noise(problem, plan.target))
        directions = start_directions(problem.n_features, self._width(problem))
        iterates = []
        for _ in range(self.iterations):
            query = curator.with_stored_inputs(product_query(problem, bits=plan.bits, directions=directions))
            product = curator.release(query, noise).reshape(problem.n_features, -1)
            if centre is not None:
                product = centre.shifted(product, on_grid(query))
            directions = orthonormal(product)
            iterates.append(directions)
        kept = [product] if self.averaging == "last" else iterates[self.iterations // 2 :]
        basis = leading_of_projectors(kept, directions.shape[1])
        values = np.einsum("ij,ij->j", basis, product @ (on_grid(query).T @ basis))
        components, eigenvalues = ranked(basis, values, self.n_components)
        return Subspace(
            components=components,
            eigenvalues=eigenvalues,
            spectrum=eigenvalues,
            mean=None if centre is None else centre.mean,
        )

    def _width(self, problem: Problem) -> int:
        return min(problem.n_features, self.n_components + self.oversampling)
