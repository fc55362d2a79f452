"""Smooth sensitivity: the leading directions themselves, with as little noise as their eigengap allows.

If the gap is large, one record hardly rotates the directions and little noise is added. The mechanism is then as
accurate as Analyze Gauss in O(d k) memory, without ever forming a d x d matrix. If the gap is small, the output is
noise, without a warning.
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
    """Add noise to the leading directions, scaled to a smooth bound of their rotation by one record.

    Parameters
    ----------
    noise : {"gaussian", "spherical_t", "cauchy"}
        Gaussian noise is (epsilon, delta)-DP; the others are pure for any requested delta, which may be 0.
    calibration : {"tight", "paper"}
        For Gaussian noise: the exact hockey-stick of two normals, or the constants of Nissim et al., for epsilon < 1,
        which are charged the epsilon of that hockey-stick. For Cauchy noise: the exact constants, or the printed ones,
        which cost and are charged a third of epsilon. For spherical t noise none are printed.
    n_components, passes, oversampling, allow_uncertified
        As of `OnEigenpairs`.

    Notes
    -----
    Let g be the eigengap. One record rotates exact directions by at most L(g). The largest of ``e^{-beta j} L(g - j)``
    over all j bounds L(g) and changes by a factor of at most ``e^beta`` (`dpca_tasks.accounting.smooth_sensitivity`).
    Directions are multiplied by a random rotation on the right before noise is added
    (`dpca_tasks.privacy.noised_directions`). Neither the gap nor the scale is ever published, so the quality of the
    components only shows in their use.

    Gonen and Gilad-Bachrach take C / g without naming C or its range, and without the minimum with the largest distance
    of two subspaces. They also rotate on the left. Their bound is not smooth and is not offered. ``paper`` here is the
    published noise for the bound above.

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
        """Calibrate shift and smoothness to the target."""
        solver = self.check(problem, target, pure=self.noise != "gaussian")
        if self.calibration == "paper":
            if self.noise == "spherical_t":
                raise InvalidInput(
                    "calibration=paper is for noise=gaussian or cauchy; spherical_t has one calibration, tight."
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
        """Release noised directions, around a mean if centred; orthonormalisation is post-processing."""
        first = self._first(plan.problem, plan.target)
        solver, noised = self.release(curator, plan.problem, self._noise(plan.problem, first.rest), first=first)
        return Subspace(components=as_components(noised, self.n_components), mean=mean_of(solver))

    def kept_lengths(self, plan: Plan, *, gap: float) -> list[float]:
        """Return the mean share of a noised direction's squared length that is the direction itself.

        Parameters
        ----------
        plan : Plan
        gap : float, records at the clip norm
            The eigengap after the components, from a declaration.

        Notes
        -----
        A noised direction is ``v + s z`` with ``s = U(gap) / shift``. Normals and spherical t noise of d coordinates
        have the squared length ``s^2 d``. Cauchy noise has ``s^2 d^2 L`` in the limit, L a Levy variate of scale
        ``2 / pi``; ``E 1 / (1 + s^2 d^2 L)`` is the closed form below.
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
            shift /= math.sqrt(size) * UP  # the l1 norm of a shift is at most as many times its l2 norm
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
