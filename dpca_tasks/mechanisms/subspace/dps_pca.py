"""DPS-PCA: noisy truncated orthogonal iteration, for leading directions that involve few features.

Each round releases a noisy product of the second moment with public directions in which few features are nonzero. The
product has d k numbers instead of the d^2 numbers of the moment. The form ``one_round`` instead releases the noisy
second moment once, and truncates its leading directions to few features without further noise.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, product_distance, published_noise
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noise_level import product_edge
from dpca_tasks.mechanisms.noisy_products import (
    Iterate,
    check_rounds,
    iterate_truncated,
    mean_noise,
    mean_share,
    on_grid,
    ordered,
    plan_products,
    product_noise,
    product_query,
    release_centre,
    truncated_step,
)
from dpca_tasks.mechanisms.released_moment import plan_moment, release_moment
from dpca_tasks.noise.distributions import Gaussian, Symmetric
from dpca_tasks.privacy.curator import Curator

FREE_STEPS = 10
"""The number of truncated iterations on a released moment in ``form=one_round``; they cost no privacy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DpsPca:
    """Iterate ``Q <- orth(truncate(orth(K + noise)))``, where K sums the clipped messages ``x clip(Q^T x)^T``.

    A message is the contribution of one record x to the product ``X^T X Q``. Truncation sets all rows of a matrix to
    zero except the ``rows_kept`` longest.

    Parameters
    ----------
    n_components : int
        The number k of components.
    rows_kept : int
        The public number of features that may be nonzero in the components; at most the number of all features.
    form : {"rounds", "one_round"}
        ``rounds``: a noisy product of d k numbers in each round; ``one_round``: sparse Analyze Gauss, which releases
        one noisy second moment of d^2 numbers, and truncates its leading directions by `FREE_STEPS` iterations without
        noise.
    iterations : int
        The number T of noisy products.
    burn_in : int
        The number of initial products that do not enter the average of directions. With T - 1 or more, only the last
        product is used, as published.
    message_clip : float
        The bound on the norm of a record's message, in squared clip norms; 1 clips nothing. With ``center=private`` the
        bound is always 1, because messages are centred afterwards and must not be clipped.
    calibration : {"tight", "paper"}
        ``tight``: the least noise for the exact composition of T Gaussian steps; ``paper``: the published std
        ``2 T sqrt(2 ln(2 T / delta)) / epsilon`` for rows of norm 1, proved for epsilon below T, but charged by its
        exact privacy loss.

    Notes
    -----
    The T noisy products are the only access to the data. The start directions are public, and use all features: random
    directions truncated to few features would miss the right features. Truncation, orthonormalisation and the average
    are post-processing, so the set of features with nonzero entries is public. For Gaussian rows of covariance
    ``Sigma``, clipping changes the expected product from ``Sigma Q`` to ``Sigma Q M`` with a positive definite M. So
    clipping does not change the span of the product. Clipping works best if all rows have the same norm. The option
    ``row_policy=normalise`` achieves this, and preserves the eigenvectors of elliptical distributions. The components
    are ordered by the released products, and have no eigenvalues.

    References
    ----------
    Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA in distributed systems, Algorithm 1.
    Exact composition by Dong, Roth and Su (2022), Corollary 3.3. The clipping, the average over rounds and the start
    directions differ from the paper.
    """

    n_components: int
    rows_kept: int = field(default=50, metadata={"ge": 1})
    form: Literal["rounds", "one_round"] = "rounds"
    iterations: int = field(default=8, metadata={"ge": 1})
    burn_in: int = field(default=3, metadata={"ge": 0})
    message_clip: float = field(default=0.25, metadata={"gt": 0, "le": 1})
    calibration: Calibration = "tight"

    name: ClassVar[str] = "dps_pca"
    audited_with: ClassVar[Mapping[str, Any]] = {"iterations": 2}

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of all rounds, or of the single release of ``form=one_round``, to the target."""
        check_request(problem, target, n_components=self.n_components)
        self._check(problem)
        return self._plan_rounds(problem, target) if self.form == "rounds" else self._plan_one(problem, target)

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the planned products, or the second moment for ``form=one_round``; the rest is post-processing."""
        return self._run_rounds(curator, plan) if self.form == "rounds" else self._run_one(curator, plan)

    def _check(self, problem: Problem) -> None:
        check_rounds(
            n_components=self.n_components,
            rows_kept=self.rows_kept,
            iterations=self.iterations,
            burn_in=self.burn_in,
            message_clip=self.message_clip,
        )
        if self.calibration == "paper" and (
            self.form != "rounds" or self.message_clip != 1 or problem.center != "none"
        ):
            raise InvalidInput(
                "calibration=paper is published for unclipped messages of uncentred rows, with one product per round; "
                "use form=rounds, message_clip=1 and center=none with it."
            )

    def _plan_rounds(self, problem: Problem, target: PrivacyTarget) -> Plan:
        clip = self._clip(problem)
        if self.calibration == "paper":
            requested = Settings(
                epsilon=target.epsilon,
                delta=target.delta,
                relation=problem.relation,
                n_components=self.n_components,
                steps=self.iterations,
            )
            multiplier = published_noise("dps_pca_of_one_owner", requested) / product_distance(
                problem.relation, n_components=self.n_components
            )
        else:
            multiplier = gaussian_noise_multiplier(
                epsilon=target.epsilon, delta=target.delta, releases=self.iterations, share=1 - mean_share(problem)
            )
        noise = Gaussian(noise_multiplier=multiplier)
        std = product_noise(problem, noise, width=self.n_components, rate=1.0, message_clip=clip)
        return plan_products(
            self.name,
            problem,
            target,
            width=self.n_components,
            noises=[(noise, 1.0)],
            releases=self.iterations,
            event=events.self_composed(noise.event, self.iterations),
            n_components=self.n_components,
            level=product_edge(problem.n_features, self.n_components, std=std) / clip,
            edge=None,
            message_clip=clip,
            printed=self.calibration == "paper",
        )

    def _run_rounds(self, curator: Curator, plan: Plan) -> Subspace:
        noise, problem = Gaussian(noise_multiplier=plan.noise_multiplier), plan.problem
        centre, clip = release_centre(curator, problem, mean_noise(problem, plan.target)), self._clip(problem)

        def answer(directions: NDArray[np.float64]) -> Iterate:
            query = curator.with_stored_inputs(
                product_query(problem, bits=plan.bits, directions=directions, message_clip=clip)
            )
            product = curator.release(query, noise).reshape(problem.n_features, -1)
            if centre is not None:
                product = centre.shifted(product, on_grid(query))
            return Iterate(directions=on_grid(query), product=product)

        components = iterate_truncated(
            answer,
            n_features=problem.n_features,
            n_components=self.n_components,
            iterations=self.iterations,
            burn_in=self.burn_in,
            rows_kept=self._rows_kept(problem),
        )
        return Subspace(components=components, mean=None if centre is None else centre.mean)

    def _plan_one(self, problem: Problem, target: PrivacyTarget) -> Plan:
        multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        noise = Symmetric(noise_multiplier=multiplier)
        plan = plan_moment(self.name, problem, target, noise, n_components=self.n_components)
        return dataclasses.replace(plan, noise_edge=None, moment_noise=None, moment_std=None)

    def _run_one(self, curator: Curator, plan: Plan) -> Subspace:
        moment = release_moment(curator, plan, Symmetric(noise_multiplier=plan.noise_multiplier))
        _, rows = leading_eigenpairs(moment.matrix, self.n_components)
        directions = np.ascontiguousarray(rows.T)
        for _ in range(FREE_STEPS):
            directions = truncated_step(moment.matrix, directions, rows_kept=self._rows_kept(plan.problem))
        last = Iterate(directions=directions, product=moment.matrix @ directions)
        return Subspace(components=ordered(directions, [last]), mean=moment.mean)

    def _rows_kept(self, problem: Problem) -> int:
        return min(self.rows_kept, problem.n_features)

    def _clip(self, problem: Problem) -> float:
        return self.message_clip if problem.center == "none" else 1.0
