"""Propose-test-release: the leading directions, with noise that fits a privately tested lower bound on the eigengap.

Use this mechanism for wide sparse rows for which d^2 numbers do not fit in memory. It needs O(d k) memory, and the
threshold of its test does not grow with d. A fifth of epsilon pays for the released lower bound on the eigengap. If the
bound is too small, the test fails: the budget is spent, the components are random, and the artifact states the failure.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.noisy_products import mean_first, mean_of
from dpca_tasks.mechanisms.subspace.computed_directions import OnEigenpairs, as_components
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.noised_directions import ProposedGap

GAP_SHARE = 0.2
"""The share of epsilon for the test of the eigengap, which also takes half of delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeTestRelease(OnEigenpairs):
    """Release a lower bound on the eigengap, then the leading directions with Gaussian noise that fits this bound.

    Parameters
    ----------
    n_components, passes, oversampling, allow_uncertified
        As of `OnEigenpairs`.

    Notes
    -----
    The proof is in the notes of `dpca_tasks.privacy.noised_directions.ProposedGap`. The bound and the directions are
    charged together, as one (epsilon, delta). The reason is that the noise on the directions is sufficient only if the
    bound is below the true eigengap. The bound exceeds the eigengap with a probability of at most half of delta.

    The artifact publishes whether the test failed, the bound on the eigengap, and the std of the noise that follows
    from the bound.

    References
    ----------
    Dwork and Lei (2009), Differential privacy and robust statistics, section 3, for the eigengap.
    """

    name: ClassVar[str] = "propose_test_release"
    needs_gap: ClassVar[bool] = True

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Divide the target between the bound on the eigengap and the noise on the directions."""
        solver = self.check(problem, target)
        first = mean_first(problem, target)
        noise = _noise(first.rest)
        return self.plan_directions(
            problem,
            target,
            noise,
            first=first,
            mechanism=self.name,
            noise_multiplier=noise.noise_multiplier,
            needs=_needed(noise, solver) + 2.0 * noise.margin(solver),
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the bound on the eigengap and the noised directions, after a mean if the problem is centred.

        Whether the test failed, and the std of the noise, follow from the released bound.
        """
        first = mean_first(plan.problem, plan.target)
        noise = _noise(first.rest)
        solver, answer = self.release(curator, plan.problem, noise, first=first)
        bound, noised = float(answer[0]), answer[1:]
        failed = bound <= _needed(noise, solver)
        outcome: dict[str, Any] = {"failed": failed, "eigengap_bound": bound * plan.problem.clip_norm**2}
        if bound > noise.threshold(solver):
            outcome["noise_std"] = noise.noise_std(bound, solver)
        components = as_components(noised, self.n_components)
        return Subspace(components=components, mean=mean_of(solver), outcome=outcome)

    def kept_lengths(self, plan: Plan, *, gap: float) -> list[float]:
        """Return the share of the exact direction in a noised direction's squared length, for two possible bounds.

        For an eigengap ``gap``, the released bound on the eigengap is random. The two results are for its tenth and its
        ninetieth percentile. If the bound is at or below the threshold of the test, the result is 0: noise alone.
        """
        noise, solver = _noise(mean_first(plan.problem, plan.target).rest), self.solver(plan.problem)
        middle, spread = gap - noise.margin(solver), math.log(5.0) * noise.gap_scale(solver)
        return [
            1.0 / (1.0 + noise.noise_std(bound, solver) ** 2 * solver.n_features)
            if bound > noise.threshold(solver)
            else 0.0
            for bound in (middle - spread, middle + spread)
        ]


def _needed(noise: ProposedGap, solver: Eigensolver) -> float:
    """Return the largest bound on the eigengap for which the test fails.

    For smaller bounds the release contains noise alone, or noise that is at least as long as the directions. Directions
    have length 1. Noise of std s has length ``s sqrt d`` for d features, and s falls as the bound grows.
    """
    least = noise.threshold(solver)
    strength = math.sqrt(solver.n_features)
    if noise.noise_std(least, solver) * strength <= 1.0:
        return least
    above = 2.0 * least
    while noise.noise_std(above, solver) * strength > 1.0:
        least, above = above, 2.0 * above
    while above - least > 1e-3 * above:
        middle = (least + above) / 2.0
        least, above = (middle, above) if noise.noise_std(middle, solver) * strength > 1.0 else (least, middle)
    return above


def _noise(target: PrivacyTarget) -> ProposedGap:
    gap_epsilon, half = GAP_SHARE * target.epsilon, target.delta / 2.0
    rest = math.nextafter(target.epsilon - gap_epsilon, 0.0)
    return ProposedGap(
        gap_epsilon=gap_epsilon,
        gap_delta=half,
        noise_multiplier=gaussian_noise_multiplier(epsilon=rest, delta=half),
        epsilon=target.epsilon,
        delta=target.delta,
    )
