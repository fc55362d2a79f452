"""AGN: topics or the means of a mixture, from a second and a third moment with Gaussian noise.

The second moment is released in full. The third moment is released only along the K leading eigenvectors of the noisy
second moment: its core, of ``K^3`` numbers. The noise of the core has the same distribution as noise on all ``D^3``
numbers of the third moment that is projected on the eigenvectors.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.mechanisms.base import Calibration, Components, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.tensors.tensor_releases import (
    POINT_FACTOR,
    SCORE_FACTOR,
    TensorProblem,
    TensorReleases,
    checked_split,
    plan_releases,
    run_releases,
)
from dpca_tasks.noise.distributions import Cube, Symmetric, UpperTriangle
from dpca_tasks.privacy.curator import Curator

_FORMULA = {"topics": "agn_of_topics", "mixture": "agn_of_mixtures"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agn:
    """Release the second moment and the core of the third moment with isotropic Gaussian noise, and decompose the core.

    Parameters
    ----------
    components : int
        The number K of components, below the number of features. If noise hides some components, the result has fewer
        components and states this.
    split : float
        The share of the budget mu^2 for the second moment.
    point_factor : float
        For a mixture: ``clip_norm`` divided by the root mean square norm of points. This norm is ``sqrt(m^2 + D s2)``
        for means of norm m and noise of variance s2. So the factor determines m from public numbers.
    score_factor : float
        For a mixture: the bound on the norm of a point's K scores (coordinates along the eigenvectors), divided by the
        root mean square of this norm, ``sqrt(m^2 + K s2)``. A smaller factor clips more points, and a larger factor
        adds more noise.
    calibration : {"tight", "paper"}
        ``tight``: the least noise for the target; ``paper``: the published noise multiplier
        ``sqrt(2 ln(1.25 / (delta / 2))) / (epsilon / 2)`` for each of the two releases. The published noise has equal
        std in the whole upper triangle of the second moment. The plan states and charges its true epsilon, and states
        if a condition of the published theorem is violated.

    Notes
    -----
    The paper adds noise of equal std to all ``D^3`` numbers of the third moment, and then projects them. Here noise of
    the published std is added to the core, which gives the same distribution. The paper clips points to norm 1; here
    points are clipped to ``clip_norm``. Noise is added to the third moment before whitening, because whitening may
    magnify the contribution of a record without bound.

    References
    ----------
    Imtiaz and Sarwate (2018), Improved algorithms for differentially private orthogonal tensor decomposition;
    Anandkumar et al. (2014), Tensor decompositions for learning latent variable models.
    """

    components: int
    split: float = field(default=0.5, metadata={"gt": 0, "lt": 1})
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})
    calibration: Calibration = "tight"

    name: ClassVar[str] = "agn"

    def plan(self, problem: TensorProblem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the second moment and of the core, to the target or by the published formula."""
        releases = self._releases(problem)
        releases.check()
        check_target(problem, target)
        noises = self._noises(problem, target)
        if self.calibration == "tight":
            return plan_releases(self.name, releases, target, noises)
        broken = FORMULAS[_FORMULA[problem.model]].broken(_settings(problem, target))
        notes = () if broken is None else (f"{broken}; use calibration=tight.",)
        return plan_releases(self.name, releases, target, noises, notes=notes, printed=True)

    def run(self, curator: Curator, plan: Plan) -> Components:
        """Release the second moment and the core of the third moment; the rest is post-processing."""
        return run_releases(curator, plan, self._releases(plan.problem), self._noises(plan.problem, plan.target))

    def _releases(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )

    def _noises(self, problem: TensorProblem, target: PrivacyTarget) -> tuple[Symmetric, Cube]:
        share = checked_split(self.split)
        if self.calibration == "paper":
            printed = FORMULAS[_FORMULA[problem.model]].event(_settings(problem, target))
            moment, core = (float(step["noise_multiplier"]) for step in events.steps(printed))
            return UpperTriangle(noise_multiplier=moment), Cube(noise_multiplier=core)
        moment, core = (
            gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=part)
            for part in (share, 1 - share)
        )
        return Symmetric(noise_multiplier=moment), Cube(noise_multiplier=core)


def _settings(problem: TensorProblem, target: PrivacyTarget) -> Settings:
    return Settings(
        epsilon=target.epsilon, delta=target.delta, relation=problem.relation, n_features=problem.n_features
    )
