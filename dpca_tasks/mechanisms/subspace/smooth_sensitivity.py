"""Smooth sensitivity: the exact leading directions, with as little noise as their eigengap permits.

If the eigengap is large, one record hardly rotates the directions, so little noise is added. The mechanism is then as
accurate as Analyze Gauss, needs O(d k) memory, and never forms a d x d matrix. If the eigengap is small, the output is
noise, and nothing in the release indicates this.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import erfcx

from dpca_tasks.accounting.published import FORMULAS, Settings, refusal
from dpca_tasks.accounting.smooth_sensitivity import (
    UP,
    gap_movement,
    gaussian_pair_epsilon,
    gaussian_shift,
    smooth_cauchy_shift,
    smooth_gaussian_shift,
    tailed_shift,
    useful_gap,
)
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.noisy_products import MeanFirst, mean_first, mean_of
from dpca_tasks.mechanisms.subspace.computed_directions import OnEigenpairs, as_components
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigenpairs
from dpca_tasks.privacy.noised_directions import Shape, SmoothNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothSensitivity(OnEigenpairs):
    """Add noise to the leading directions, scaled to a smooth bound on their rotation by one record.

    Parameters
    ----------
    noise : {"gaussian", "spherical_t", "cauchy"}
        The shape of the noise: ``gaussian`` is (epsilon, delta)-DP; ``spherical_t`` and ``cauchy`` are pure epsilon-DP
        for any requested delta, which may be 0.
    calibration : {"tight", "paper"}
        ``tight``: the exact privacy loss of the noise's shape; ``paper``: the constants of Nissim et al., which exist
        for ``gaussian`` (with epsilon below 1) and for ``cauchy``. The published constants are charged by their true
        epsilon, which for ``cauchy`` is a third of the requested epsilon.
    n_components, passes, oversampling, allow_uncertified
        As of `OnEigenpairs`.

    Notes
    -----
    Let g be the eigengap. One record rotates the exact directions by at most L(g). The noise is proportional to the
    maximum of ``e^{-beta j} L(g - j)`` over all j. This maximum is at least L(g), and one record changes it by a factor
    of at most ``e^beta`` (`dpca_tasks.accounting.smooth_sensitivity`). Before noise is added, the matrix of directions
    is multiplied on the right by a random rotation (`dpca_tasks.privacy.noised_directions`). Neither the eigengap nor
    the scale of the noise is ever published. So the release does not show how accurate the components are.

    Gonen and Gilad-Bachrach use the bound C / g, and state neither C nor the range in which it holds. They do not limit
    the bound to the largest distance between two subspaces, and they rotate on the left. Their bound is not smooth, so
    it is not available here. ``calibration=paper`` is the published noise of Nissim et al. for the bound above.

    References
    ----------
    Nissim, Raskhodnikova and Smith (2007), Smooth sensitivity and sampling in private data analysis. Gonen and
    Gilad-Bachrach (2018), Smooth sensitivity based approach for differentially private PCA.
    """

    noise: Shape = "gaussian"
    calibration: Calibration = "tight"
    name: ClassVar[str] = "smooth_sensitivity"
    needs_gap: ClassVar[bool] = True

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise to the target: the shift of directions that it hides, and the smoothness beta."""
        solver = self.check(problem, target, pure=self.noise != "gaussian")
        if self.calibration == "paper":
            if self.noise == "spherical_t":
                raise InvalidInput(
                    "calibration=paper exists for noise=gaussian and noise=cauchy only; use calibration=tight with "
                    "noise=spherical_t."
                )
            requested, printed = Settings(epsilon=target.epsilon, delta=target.delta), f"smooth_{self.noise}"
            if FORMULAS[printed].broken(requested):
                raise refusal(printed, requested)
        first = self._first(problem, target)
        noise = self._noise(problem, first.rest)
        return self.plan_directions(
            problem,
            target,
            noise,
            first=first,
            mechanism=self.name,
            noise_multiplier=1.0 / noise.shift,
            needs=max(
                useful_gap(
                    smoothness=noise.smoothness,
                    relation=solver.effective_relation,
                    n_components=self.n_components,
                    n_features=problem.n_features,
                ),
                gap_movement(solver.effective_relation) * math.sqrt(problem.n_features) / noise.shift,
            ),
            printed=self.calibration == "paper",
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noised directions, after a mean if the problem is centred; the rest is post-processing."""
        first = self._first(plan.problem, plan.target)
        solver, noised = self.release(curator, plan.problem, self._noise(plan.problem, first.rest), first=first)
        return Subspace(components=as_components(noised, self.n_components), mean=mean_of(solver))

    def kept_lengths(self, plan: Plan, *, gap: float) -> list[float]:
        """Return the mean share of the exact direction in a noised direction's squared length, as a list of one number.

        Parameters
        ----------
        plan : Plan
            The plan of the release.
        gap : float, squared clip norms
            The assumed eigengap after the components, from a declared spectrum.

        Notes
        -----
        A noised direction is ``v + s z`` with the exact direction v, noise z of d coordinates, and ``s = U(gap) /
        shift`` for the smooth bound U. For Gaussian and spherical t noise, ``s z`` has about the squared length
        ``s^2 d``. For Cauchy noise and large d, the squared length is distributed as ``s^2 d^2 L``, where L has the
        Levy distribution of scale ``2 / pi``. The code uses a closed form of the mean of ``1 / (1 + s^2 d^2 L)``.
        """
        problem = plan.problem
        noise, size = self._noise(problem, self._first(problem, plan.target).rest), problem.n_features
        solver = self.solver(problem)
        std = noise.scale(solver, Eigenpairs(directions=np.zeros((size, 0)), gap=max(gap, 0.0)))
        if self.noise != "cauchy":
            return [1.0 / (1.0 + std**2 * size)]
        half = (std * size) ** 2 / math.pi
        return [1.0 - math.sqrt(math.pi * half) * float(erfcx(math.sqrt(half)))]

    def _first(self, problem: Problem, target: PrivacyTarget) -> MeanFirst:
        return mean_first(problem, target, pure=self.noise != "gaussian")

    def _noise(self, problem: Problem, target: PrivacyTarget) -> SmoothNoise:
        size = problem.n_features * self.n_components
        epsilon = target.epsilon
        if self.noise == "cauchy" and self.calibration == "paper":
            shift, smoothness = smooth_cauchy_shift(epsilon=epsilon, size=size)
            epsilon = FORMULAS["smooth_cauchy"].event(Settings(epsilon=epsilon))["epsilon"]
            shift /= math.sqrt(size) * UP  # the l1 norm of a vector is at most sqrt(size) times its l2 norm
        elif self.noise != "gaussian":
            shift, smoothness = tailed_shift(epsilon=target.epsilon, size=size)
        else:
            calibrate = gaussian_shift if self.calibration == "tight" else smooth_gaussian_shift
            shift, smoothness = calibrate(epsilon=target.epsilon, delta=target.delta, size=size)
            if self.calibration == "paper":
                epsilon = gaussian_pair_epsilon(shift, smoothness, delta=target.delta, size=size, at_most=epsilon)
        return SmoothNoise(
            shape=self.noise,
            shift=shift,
            smoothness=smoothness,
            epsilon=epsilon,
            delta=target.delta if self.noise == "gaussian" else 0.0,
        )
