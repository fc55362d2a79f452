"""DP-VRPCA, repaired: variance-reduced noisy gradient ascent, with one full product per epoch and sampled corrections.

The published algorithm uses the full product without noise in every inner step, so it is not private. Here the full
product is released with noise once per epoch. Sampled products correct it for the movement of the directions within the
epoch. The noise of a correction is proportional to the public distance that the directions have moved since the start
of the epoch. DP-SPCA is more accurate on the same budget, because the sampling error is small compared with the noise,
and DP-VRPCA divides the budget between full products and corrections.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, refusal
from dpca_tasks.accounting.subsampled import cached_sampled_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.noise_level import product_edge
from dpca_tasks.mechanisms.noisy_products import (
    Iterate,
    averaged,
    event_of_all,
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
from dpca_tasks.queries.poisson_sampled import sampled
from dpca_tasks.threads import one_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class DpVrpca:
    """Release one noisy full product per epoch, correct it by noisy sampled products, and average the last epoch.

    Parameters
    ----------
    n_components : int
        The number k of components.
    epochs : int
        The number of epochs, each with one noisy full product.
    inner_steps : int
        The number of steps in an epoch. Except in the first epoch, the first step needs no correction, because the
        directions have not yet moved.
    rate : float
        The probability q with which a record is sampled for a correction.
    share : float
        The share of the full products in the mu^2 that remains after the release of the mean, in (0, 1).
    integrated_time : float
        The total number of inner steps times the step size, for a second moment divided by n_ref squared clip norms,
        where n_ref is ``records_at_most``.
    calibration : {"tight", "paper"}
        Only ``tight``; ``paper`` is refused, because the published mechanism is not private.

    Notes
    -----
    *Sensitivity.* Let ``V~`` be the directions at the start of the epoch, V the current directions, and Q the rotation
    that brings ``V~`` nearest to V. Let D be the spectral norm of ``V - V~ Q``. One record changes the sum of
    ``x x^T (V - V~ Q)`` by at most D. The query requests the product with ``(V - V~ Q) / D``, which has sensitivity 1,
    and the answer is multiplied by the public number D.

    *Replaced records.* Under replace_one, a replacement is accounted as two changes, through an empty record. The mean,
    the full products and the corrections all have noise that is calibrated to one of these changes, and their events
    state this.

    *Centring.* With the released sum s and count n of the rows, the product of ``s s^T / n`` with the directions is
    subtracted from full products and from corrections. This is linear in the directions, and public.

    *Noise level.* All steps of an epoch use the noise of the same full product. In an epoch the directions move by at
    most the epoch's integrated time multiplied by that noise, and by at most the distance of two orthogonal subspaces.
    The corrections have noise for this distance, and it is averaged over half of the steps.

    The published noise for an inner step neither contains D nor satisfies the sampling condition of its lemma, and the
    published full product has no noise at all. The published guarantee holds only if the directions never move.

    References
    ----------
    Shang et al., DP-VRPCA, Algorithm 2, repaired: the full product has noise, and the noise of a correction is
    proportional to D.
    """

    n_components: int
    epochs: int = field(default=5, metadata={"ge": 1})
    inner_steps: int = field(default=10, metadata={"ge": 2})
    rate: float = field(default=0.1, metadata={"gt": 0, "le": 1})
    share: float = field(default=0.6, metadata={"gt": 0, "lt": 1})
    integrated_time: float = field(default=150.0, metadata={"gt": 0})
    calibration: Calibration = "tight"

    name: ClassVar[str] = "dp_vrpca"
    audited_with: ClassVar[Mapping[str, Any]] = {"epochs": 1, "inner_steps": 2, "rate": 0.5}

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the full products and of the sampled corrections.

        The full products get their exact share of mu^2. The corrections get the rest, by their privacy loss
        distribution.
        """
        check_request(problem, target, n_components=self.n_components)
        if self.calibration == "paper":
            raise refusal(self.name, Settings(epsilon=target.epsilon, delta=target.delta))
        if self.epochs < 1 or self.inner_steps < 2 or not 0 < self.share < 1 or not 0 < self.integrated_time < math.inf:
            raise InvalidInput(
                f"epochs={self.epochs} must be at least 1, inner_steps={self.inner_steps} at least 2, "
                f"share={self.share} in (0, 1), integrated_time={self.integrated_time} positive; correct the settings."
            )
        corrections = self.epochs * self.inner_steps - (self.epochs - 1)
        inner = inner_target(problem, target, rate=self.rate)
        full = self._full_noise(problem, inner)
        multiplier = cached_sampled_multiplier(
            epsilon=inner.epsilon,
            delta=inner.delta,
            rate=self.rate,
            steps=corrections,
            besides=mean_share(problem) + self._full_share(problem),
        )
        noise = Gaussian(noise_multiplier=multiplier)
        correction = noise.event if self.rate == 1 else events.poisson_sampled(noise.event, self.rate)
        whole = event_of_all(full, halved=is_halved(problem, rate=self.rate))
        first = [whole, events.self_composed(correction, self.inner_steps)]
        later = [whole, events.self_composed(correction, self.inner_steps - 1)] * (self.epochs - 1)
        level = self._noise_level(problem, full, noise)
        return plan_products(
            self.name,
            problem,
            target,
            width=self.n_components,
            noises=[(full, 1.0), (noise, self.rate)],
            releases=self.epochs + corrections,
            event=events.composed(*first, *later),
            n_components=self.n_components,
            level=level,
            edge=level,
            inner=inner,
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Run all epochs, and average the last; everything except the planned releases is post-processing."""
        problem = plan.problem
        full, noise = self.noises(plan)
        halved = is_halved(problem, rate=self.rate)
        inner = inner_target(problem, plan.target, rate=self.rate)
        centre = release_centre(curator, problem, mean_noise(problem, inner), halved=halved)

        def product(directions: NDArray[np.float64], noise: Gaussian, rate: float) -> NDArray[np.float64]:
            query = product_query(problem, bits=plan.bits, directions=directions, halved=halved)
            query = curator.with_stored_inputs(query)
            found = curator.release(sampled(query, rate=rate, halved=halved and rate == 1), noise)
            answer = found.reshape(directions.shape) / rate
            return answer if centre is None else centre.shifted(answer, on_grid(query))

        iterates = self.iterates(
            start_directions(problem.n_features, self.n_components),
            problem.records_at_most * problem.clip_norm**2,
            full=lambda directions: product(directions, full, 1.0),
            correction=lambda moved: product(moved, noise, self.rate),
        )
        return averaged(iterates, self.n_components, mean=None if centre is None else centre.mean)

    def noises(self, plan: Plan) -> tuple[Gaussian, Gaussian]:
        """Return the planned noise of a full product, and the planned noise of a sampled correction."""
        inner = inner_target(plan.problem, plan.target, rate=self.rate)
        return self._full_noise(plan.problem, inner), Gaussian(noise_multiplier=plan.noise_multiplier)

    def iterates(
        self,
        directions: NDArray[np.float64],
        size: float,
        *,
        full: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        correction: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    ) -> list[Iterate]:
        """Run all epochs from public start directions, and return the iterates that are averaged.

        Parameters
        ----------
        directions : array of shape (d, k)
            The start directions.
        size : float, in the units of the products
            ``records_at_most`` squared clip norms. The integrated time is for a second moment divided by this number.
        full : callable
            Returns the noisy product of the second moment with an epoch's first directions.
        correction : callable
            Returns the noisy product of the second moment with directions of spectral norm 1.
        """
        step_size = self.integrated_time / (self.epochs * self.inner_steps * size)
        found = []
        for epoch in range(self.epochs):
            start = directions
            product = full(start)
            if epoch == 0:
                directions = orthonormal(product)
            for step in range(self.inner_steps):
                rotation, moved, distance = _moved(start, directions)
                estimate = product @ rotation
                if epoch == 0 or step > 0:
                    estimate = estimate + correction(moved) * distance
                if epoch == self.epochs - 1 and is_averaged(step, self.inner_steps):
                    found.append(Iterate(directions=directions, product=estimate))
                directions = orthonormal(directions + step_size * estimate)
        return found

    def _noise_level(self, problem: Problem, full: Gaussian, correction: Gaussian) -> float:
        """Return the noise level of an epoch's directions, from the noise of its full product and its corrections."""
        width, halved = self.n_components, is_halved(problem, rate=self.rate)
        stds = (
            product_noise(problem, noise, width=width, rate=rate, halved=halved)
            for noise, rate in ((full, 1.0), (correction, self.rate))
        )
        edges = [product_edge(problem.n_features, width, std=std) for std in stds]
        moved = self.integrated_time / self.epochs * edges[0] / problem.records_at_most
        return math.hypot(edges[0], min(moved, math.sqrt(2.0)) * edges[1] / math.sqrt(self.inner_steps / 2.0))

    def _full_noise(self, problem: Problem, target: PrivacyTarget) -> Gaussian:
        multiplier = gaussian_noise_multiplier(
            epsilon=target.epsilon, delta=target.delta, releases=self.epochs, share=self._full_share(problem)
        )
        return Gaussian(noise_multiplier=multiplier)

    def _full_share(self, problem: Problem) -> Fraction:
        return Fraction(self.share) * (1 - mean_share(problem))


def _moved(
    start: NDArray[np.float64], directions: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Compare the current directions with the directions at the start of the epoch.

    Returns the rotation Q that brings ``start @ Q`` nearest to ``directions``, the difference divided by its spectral
    norm, and this norm.
    """
    with one_thread():
        left, _, right = np.linalg.svd(start.T @ directions)
        rotation = left @ right
        difference = directions - start @ rotation
        distance = float(np.linalg.norm(difference, 2))
    return rotation, difference / distance if distance > 0 else difference, distance
