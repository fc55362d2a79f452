"""DP-SPCA: noisy stochastic gradient ascent on Poisson mini-batches, with averaged projectors.

Sampling saves compute, not privacy noise: Analyze Gauss is more accurate on the same budget wherever d^2 numbers can
be held. Each batch step is one durable step of the release; the form of one row a step is a single one, of which
the averaged iterates alone leave.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import grid_bits
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import (
    Calibration,
    Plan,
    PrivacyTarget,
    Problem,
    Subspace,
    check_request,
    grid_warnings,
)
from dpca_tasks.mechanisms.iteration import (
    FINEST,
    Iterate,
    averaged,
    is_averaged,
    mean_share,
    on_grid,
    orthonormal,
    product_query,
    release_centre,
    start_directions,
    with_mean,
)
from dpca_tasks.privacy import events
from dpca_tasks.privacy.calibration_cache import cached_sampled_multiplier
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.noise import Gaussian, check_tail
from dpca_tasks.queries.poisson_sampled import sampled
from dpca_tasks.queries.sampled_passes import SampledPasses


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSpca:
    """Iterate ``V <- orth(V + eta / (q n_ref) (X_B^T X_B V + noise))`` and average the second half's projectors.

    Parameters
    ----------
    n_components : int
        k.
    rate : float
        q, the probability with which a record is in a batch.
    steps : int
        T.
    integrated_time : float
        ``T eta``, with the step size eta on the second moment over n_ref squared clip norms; ``inf`` replaces V by
        the product in every step. Times the relative gap it should pass ``ln d`` by a few units.
    form : {"batches", "one_row"}
        ``one_row`` is the paper's: ``q = 1 / n_ref`` and ``T = n_ref``, whatever `rate` and `steps` say, so that a
        batch has one row on average, none or several at times.
    calibration : {"tight", "paper"}
        ``paper`` is refused.

    Notes
    -----
    With the gradient ``-x (x^T V)`` of half the squared projection and V orthonormal before each step, one record moves
    a batch's sum by at most 1, however large V is elsewhere. The multiplier is calibrated on the privacy loss
    distribution of ``T`` sampled Gaussians.

    The printed noise ``20 T alpha G^2 / (n^2 epsilon mu)`` rests on ``epsilon <= T / n^2``, which is about 1e-5 at
    ``T = n``, and omits the condition on the order alpha of its subsampling lemma.

    References
    ----------
    Shang et al., DP-SPCA, Algorithm 1, with the accounting of Zhu, Dong and Wang (2022) by dp-accounting.
    """

    n_components: int
    rate: float = 0.1
    steps: int = 100
    integrated_time: float = 1000.0
    form: Literal["batches", "one_row"] = "batches"
    calibration: Calibration = "tight"

    name: ClassVar[str] = "dp_spca"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate all steps together."""
        check_request(problem, target, n_components=self.n_components, centers=self.form == "batches")
        rate, steps = self._schedule(problem)
        if self.calibration == "paper":
            raise Refused(
                f"epsilon={target.epsilon} is above T / n^2 = {steps / problem.records_at_most**2:.2g}, which the "
                "theorem of calibration=paper needs, and its lemma's condition on the order is not stated; "
                "use calibration=tight."
            )
        if steps < 1 or not self.integrated_time > 0:
            raise InvalidInput(
                f"steps={steps} must be at least 1, integrated_time={self.integrated_time} positive; mend them."
            )
        if self.form == "one_row" and math.isinf(self.integrated_time):
            raise InvalidInput("integrated_time=inf needs whole batches; state a finite one for form=one_row.")
        start = start_directions(problem.n_features, self.n_components)
        coarse = sampled(product_query(problem, bits=1, directions=start), rate=rate)
        multiplier = cached_sampled_multiplier(
            epsilon=target.epsilon, delta=target.delta, rate=rate, steps=steps, besides=mean_share(problem)
        )
        law = Gaussian(noise_multiplier=multiplier)
        check_tail(law, draws=steps * coarse.layout.size + problem.n_features + 1, delta=target.delta)
        bits = min(FINEST, grid_bits(noise_std=multiplier * coarse.sensitivity("l2"), degree=2))
        step = law.event if rate == 1 else events.poisson_sampled(law.event, rate)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=multiplier,
            bits=bits,
            event=with_mean(problem, target, events.self_composed(step, steps)),
            warnings=grid_warnings(problem, bits=bits),
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Run the steps; all but the planned releases is post-processing."""
        return self._run_batches(curator, plan) if self.form == "batches" else self._run_one_row(curator, plan)

    def _run_batches(self, curator: Curator, plan: Plan) -> Subspace:
        law, problem = Gaussian(noise_multiplier=plan.noise_multiplier), plan.problem
        centre = release_centre(curator, problem, plan.target)
        directions, iterates = start_directions(problem.n_features, self.n_components), []
        for step in range(self.steps):
            query = curator.settled(product_query(problem, bits=plan.bits, directions=directions))
            product = curator.release(sampled(query, rate=self.rate), law).reshape(directions.shape) / self.rate
            if centre is not None:
                product = centre.shifted(product, on_grid(query))
            if is_averaged(step, self.steps):
                iterates.append(Iterate(directions=on_grid(query), product=product))
            directions = self._ascended(directions, product, problem)
        mean = None if centre is None else centre.mean
        return averaged(iterates, self.n_components, mean=mean)

    def _run_one_row(self, curator: Curator, plan: Plan) -> Subspace:
        problem = plan.problem
        rate, steps = self._schedule(problem)
        query = sampled(
            product_query(problem, bits=plan.bits, directions=start_directions(problem.n_features, self.n_components)),
            rate=rate,
        )
        marks = (steps // 2, *(step + 1 for step in range(steps) if is_averaged(step, steps)))
        passes = SampledPasses(
            query=query,
            steps=steps,
            factor=self.integrated_time / (steps * rate * problem.records_at_most),
            snapshots=marks,
        )
        states = curator.sequential(passes, Gaussian(noise_multiplier=plan.noise_multiplier))
        iterates = []
        for state in states[1:]:
            directions, seen = state[: problem.n_features], state[problem.n_features :]
            estimate = seen * (problem.clip_norm**2 / rate)
            iterates.append(Iterate(directions=directions, product=directions @ estimate))
        return averaged(iterates, self.n_components)

    def _schedule(self, problem: Problem) -> tuple[float, int]:
        if self.form == "batches":
            return self.rate, self.steps
        return 1.0 / problem.records_at_most, problem.records_at_most

    def _ascended(
        self, directions: NDArray[np.float64], product: NDArray[np.float64], problem: Problem
    ) -> NDArray[np.float64]:
        if math.isinf(self.integrated_time):
            return orthonormal(product)
        step_size = self.integrated_time / self.steps
        return orthonormal(directions + product * (step_size / (problem.records_at_most * problem.clip_norm**2)))
