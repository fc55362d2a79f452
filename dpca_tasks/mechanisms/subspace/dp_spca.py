"""DP-SPCA: noisy stochastic gradient ascent on Poisson-sampled mini-batches, with averaged projectors.

Sampling saves computation, not privacy noise. If d^2 numbers fit in memory, Analyze Gauss is more accurate on the same
budget. With ``form=batches``, the noisy product of every batch is released and stored, so an interrupted release can be
resumed. With ``form=one_row``, thousands of steps run as one computation, which releases only the iterates that enter
the average.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.accounting.published import Settings, dp_spca_bound, published_noise
from dpca_tasks.accounting.subsampled import cached_sampled_multiplier, sampled_gaussian_is_private
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.noise_level import product_edge
from dpca_tasks.mechanisms.noisy_products import (
    Iterate,
    averaged,
    inner_target,
    is_averaged,
    is_halved,
    mean_noise,
    mean_share,
    on_grid,
    orthonormal,
    plan_products,
    product_noise,
    product_query,
    release_centre,
    start_directions,
)
from dpca_tasks.noise.distributions import Gaussian
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.poisson_sampled import SampledPasses, sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSpca:
    """Iterate ``V <- orth(V + eta / (q n_ref) (X_B^T X_B V + noise))`` and average the second half's projectors.

    Parameters
    ----------
    n_components : int
        The number k of components.
    rate : float
        The probability q with which a record is in a batch.
    steps : int
        The total number T of batches.
    integrated_time : float
        The number of steps times the step size, ``T eta``, for a second moment divided by n_ref squared clip norms. The
        bound n_ref is ``records_at_most``. With ``inf``, each step replaces V by the noisy product. Otherwise the
        integrated time multiplied by the relative eigengap should exceed ``ln d`` by a few units.
    form : {"batches", "one_row"}
        ``one_row`` is the published form: ``q = 1 / n_ref`` and ``T = n_ref`` replace `rate` and `steps`, so that a
        batch has one row on average, sometimes none or several.
    calibration : {"tight", "paper"}
        ``tight``: the least noise that keeps the guarantee, by numerical accounting; ``paper``: the published noise,
        for ``form=one_row``, if its lemma covers the request and numerical accounting confirms the guarantee.
    mu : float, optional
        The free parameter mu of the published noise, in (0, 1), for ``calibration=paper``. The default is the mu with
        the least noise.

    Notes
    -----
    The gradient of a record x is ``-x (x^T V)``, and V is orthonormal before each step. So one record of norm at most 1
    changes a batch's sum by at most 1. The noise multiplier is calibrated on the privacy loss distribution of T sampled
    Gaussian steps. For replace_one, the replacement of a record is accounted as two changes, through an empty record.

    *Noise level.* Let a direction have the strength of v records at the clip norm. The error of earlier steps decays
    within ``n_ref T / (integrated_time v)`` steps. So the noise of that many steps is averaged, and the squared angle
    to the direction is half of this averaged squared noise divided by ``v^2``. The noise level is the strength v for
    which the squared angle is 1. It is at least the noise averaged over all steps, and at most the noise of one step.

    *Published noise.* The published variance is ``20 T alpha G^2 / (n^2 epsilon mu)``, with ``G = 1`` here and
    ``alpha = ln(1/delta) / ((1 - mu) epsilon) + 1``. The paper does not state the free parameter mu in (0, 1). The
    published noise is refused unless all of the following conditions hold:

    - (b) a fourth of the variance, ``s``, is at least 1.5;
    - (c) the order alpha satisfies a condition of the underlying subsampling lemma, which the paper omits: ``alpha <=
      ln(n / (1 + s))`` or ``alpha - 1 <= 2/3 s ln(n / (alpha (1 + s)))``;
    - the privacy loss distribution of the executed Poisson-sampled steps gives at most epsilon.

    Unless mu is set, it is chosen from a public grid: the value with the least noise of those that satisfy (b) and (c).
    The theorem itself requires the condition (a) ``epsilon <= T / n^2``, which is about 1e-5 for ``T = n`` and fails
    for every usable epsilon. A violation of (a) is only a warning, because the guarantee is proved by the privacy loss
    distribution.

    References
    ----------
    Shang et al., DP-SPCA, Algorithm 1, with the accounting of Zhu, Dong and Wang (2022) by dp-accounting.
    """

    n_components: int
    rate: float = field(default=0.1, metadata={"gt": 0, "le": 1})
    steps: int = field(default=100, metadata={"ge": 1})
    integrated_time: float = field(default=1000.0, metadata={"gt": 0})
    form: Literal["batches", "one_row"] = "batches"
    calibration: Calibration = "tight"
    mu: float | None = field(default=None, metadata={"gt": 0, "lt": 1})

    name: ClassVar[str] = "dp_spca"
    audited_with: ClassVar[Mapping[str, Any]] = {"steps": 2, "rate": 0.5}

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of all steps together, to the target or by the published formula."""
        check_request(problem, target, n_components=self.n_components)
        rate, steps = self._schedule(problem)
        if steps < 1 or not self.integrated_time > 0:
            raise InvalidInput(
                f"steps={steps} must be at least 1, integrated_time={self.integrated_time} positive; correct them."
            )
        if self.form == "one_row" and problem.center != "none":
            raise Refused(
                f"center={problem.center} subtracts a mean from released products, and form=one_row releases no "
                "products; use form=batches, or center=none."
            )
        if self.form == "one_row" and math.isinf(self.integrated_time):
            raise InvalidInput(
                "integrated_time=inf needs form=batches; state a finite integrated_time for form=one_row."
            )
        if self.mu is not None and not (self.calibration == "paper" and 0 < self.mu < 1):
            raise InvalidInput(
                f"mu={self.mu} must be between 0 and 1, and is used only with calibration=paper; omit mu, or use "
                "calibration=paper."
            )
        inner = inner_target(problem, target, rate=rate)
        notes: tuple[str, ...] = ()
        if self.calibration == "paper":
            multiplier = self._published_multiplier(inner, steps)
            notes = _checked_noise(multiplier, target, inner, steps)
        else:
            multiplier = cached_sampled_multiplier(
                epsilon=inner.epsilon, delta=inner.delta, rate=rate, steps=steps, besides=mean_share(problem)
            )
        noise = Gaussian(noise_multiplier=multiplier)
        halved = is_halved(problem, rate=rate)
        std = product_noise(problem, noise, width=self.n_components, rate=rate, halved=halved)
        edge = product_edge(problem.n_features, self.n_components, std=std)
        level = self._averaged_level(problem, edge, steps)
        step = noise.event if rate == 1 else events.poisson_sampled(noise.event, rate)
        return plan_products(
            self.name,
            problem,
            target,
            width=self.n_components,
            noises=[(noise, rate)],
            releases=steps,
            event=events.self_composed(step, steps),
            n_components=self.n_components,
            level=level,
            edge=max(level / 2.0, edge / math.sqrt(steps / 2.0)),  # the result averages the second half of the steps
            inner=inner,
            notes=notes,
            printed=self.calibration == "paper",
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Run all steps, and average their directions; everything except the planned releases is post-processing."""
        return self._run_batches(curator, plan) if self.form == "batches" else self._run_one_row(curator, plan)

    def _run_batches(self, curator: Curator, plan: Plan) -> Subspace:
        noise, problem = Gaussian(noise_multiplier=plan.noise_multiplier), plan.problem
        inner = inner_target(problem, plan.target, rate=self.rate)
        halved = is_halved(problem, rate=self.rate)
        centre = release_centre(curator, problem, mean_noise(problem, inner), halved=halved)
        directions, iterates = start_directions(problem.n_features, self.n_components), []
        for step in range(self.steps):
            query = curator.with_stored_inputs(
                product_query(problem, bits=plan.bits, directions=directions, halved=halved)
            )
            product = curator.release(sampled(query, rate=self.rate), noise).reshape(directions.shape) / self.rate
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
        start, halved = start_directions(problem.n_features, self.n_components), is_halved(problem, rate=rate)
        query = sampled(product_query(problem, bits=plan.bits, directions=start, halved=halved), rate=rate)
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

    def _published_multiplier(self, target: PrivacyTarget, steps: int) -> float:
        """Return the least published noise multiplier for which the lemma of the paper covers the request.

        The request has ``steps`` steps of one sampled row each, on ``steps`` records.
        """
        if self.form != "one_row":
            raise Refused(
                "calibration=paper is stated for one row per step; set form=one_row, or use calibration=tight."
            )
        requested = Settings(epsilon=target.epsilon, delta=target.delta, n_records=steps, steps=steps, mix=self.mu)
        return published_noise(self.name, requested)

    def _schedule(self, problem: Problem) -> tuple[float, int]:
        if self.form == "batches":
            return self.rate, self.steps
        return 1.0 / problem.records_at_most, problem.records_at_most

    def _averaged_level(self, problem: Problem, edge: float, steps: int) -> float:
        """Return the noise level of the averaged result, from noise of spectral norm ``edge`` in each step."""
        forgetting = edge**2 * self.integrated_time / (2.0 * steps * problem.records_at_most)
        return max(edge / math.sqrt(steps), min(forgetting, edge))

    def _ascended(
        self, directions: NDArray[np.float64], product: NDArray[np.float64], problem: Problem
    ) -> NDArray[np.float64]:
        if math.isinf(self.integrated_time):
            return orthonormal(product)
        step_size = self.integrated_time / self.steps
        return orthonormal(directions + product * (step_size / (problem.records_at_most * problem.clip_norm**2)))


def _checked_noise(multiplier: float, target: PrivacyTarget, inner: PrivacyTarget, steps: int) -> tuple[str, ...]:
    """Return warnings about noise by the published formula; refuse it if its true epsilon exceeds the requested one."""
    step = events.poisson_sampled(events.gaussian(multiplier), 1 / steps)
    found = epsilon_bracket(events.self_composed(step, steps), delta=inner.delta).upper
    if found > inner.epsilon and not sampled_gaussian_is_private(
        multiplier, epsilon=inner.epsilon, delta=inner.delta, rate=1 / steps, steps=steps
    ):
        halves = round(target.epsilon / inner.epsilon)  # 2 for replace_one, which is accounted as two changes; else 1
        raise Refused(
            f"calibration=paper: its noise multiplier {multiplier:.4g} really gives up to epsilon {halves * found:.4g} "
            f"at delta={target.delta:g}, more than the requested epsilon={target.epsilon:g}; use calibration=tight."
        )
    bound = dp_spca_bound(Settings(epsilon=target.epsilon, n_records=steps, steps=steps))
    if target.epsilon <= bound:
        return ()
    return (
        f"calibration=paper: condition (a) of the published theorem, epsilon <= T / n^2 = {bound:.2g}, does not hold.",
    )
