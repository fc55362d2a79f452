"""AVN: topics or the means of a mixture with pure epsilon-DP, from moments with noise of separately drawn norm."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from dpca_tasks.accounting.events import float_down, float_up
from dpca_tasks.mechanisms.base import Components, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.tensors.tensor_releases import (
    POINT_FACTOR,
    SCORE_FACTOR,
    TensorProblem,
    TensorReleases,
    checked_split,
    plan_releases,
    run_releases,
)
from dpca_tasks.noise.pure_matrices import CubeRadial, SymmetricRadial
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Avn:
    """Release the second moment and the core of the third moment with pure epsilon-DP, and decompose the core.

    Parameters
    ----------
    components : int
        The number K of components, below the number of features. If noise hides some components, the result has fewer
        components and states this.
    split : float
        The share of epsilon for the second moment.
    point_factor, score_factor : float
        As for `dpca_tasks.mechanisms.tensors.agn.Agn`.

    Notes
    -----
    The mechanism is pure epsilon-DP for any requested delta, which may be 0. The l2 sensitivities are the same as for
    `dpca_tasks.mechanisms.tensors.agn.Agn`. The noise b has a density proportional to ``exp(-|b| / s)``. For p
    coordinates it is about ``sqrt(p)`` times as long as Gaussian noise. The notes of `dpca_tasks.noise.pure_matrices`
    state the limits of a sampler in floating point.

    References
    ----------
    Imtiaz and Sarwate (2018), Improved algorithms for differentially private orthogonal tensor decomposition.
    """

    components: int
    split: float = field(default=0.5, metadata={"gt": 0, "lt": 1})
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})

    name: ClassVar[str] = "avn"

    def plan(self, problem: TensorProblem, target: PrivacyTarget) -> Plan:
        """Divide epsilon exactly between the second moment and the core."""
        releases = self._releases(problem)
        releases.check()
        check_target(problem, target, pure=True)
        return plan_releases(self.name, releases, target, self._noises(target))

    def run(self, curator: Curator, plan: Plan) -> Components:
        """Release the second moment and the core of the third moment; the rest is post-processing."""
        return run_releases(curator, plan, self._releases(plan.problem), self._noises(plan.target))

    def _releases(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )

    def _noises(self, target: PrivacyTarget) -> tuple[SymmetricRadial, CubeRadial]:
        whole = Fraction(target.epsilon)
        of_moment = Fraction(float_down(checked_split(self.split) * whole))
        of_core = Fraction(float_down(whole - of_moment))
        moment, core = (float_up(1 / epsilon) for epsilon in (of_moment, of_core))
        return SymmetricRadial(noise_multiplier=moment), CubeRadial(noise_multiplier=core)
