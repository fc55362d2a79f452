"""AGN: topics or the means of a mixture, from a second and a third moment with Gaussian noise.

The second moment is released in full, the third moment only along the leading eigenvectors of the first answer. These
``K^3`` numbers have the same noise law as noise on all ``D^3`` numbers, projected on these directions.
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
    """Release the second moment and the core of the third with isometric Gaussian noise, and decompose the core.

    Parameters
    ----------
    components : int
        K, below the number of features. If noise hides some components, fewer are found, as the result states.
    split : float
        The share of the squared loss for the second moment.
    point_factor : float
        For a mixture: ``clip_norm`` over the root mean square of points, ``sqrt(m^2 + D s2)`` for means of norm m and
        noise of variance s2. It determines m publicly.
    score_factor : float
        For a mixture: the bound of a point's K scores over their root mean square, ``sqrt(m^2 + K s2)``. A smaller
        value clips points, a larger value adds noise.
    calibration : {"tight", "paper"}
        ``tight``: the least noise for the target; ``paper``: ``sqrt(2 ln(1.25 / (delta / 2))) / (epsilon / 2)`` in each
        release, on the upper triangle of the second moment as printed; the plan states its true epsilon, which is
        charged, and a violated condition of its theorem.

    Notes
    -----
    The paper adds noise of one std to all ``D^3`` numbers of the third moment and projects them. Here the printed std
    applies to the core, which gives the same law. The paper clips points to norm 1; here they are clipped to
    ``clip_norm``. Noise is added to the third moment before whitening, since whitening may scale a record without
    bound.

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
        """Split the target over both releases, exactly or as printed."""
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
        """Release both moments; the rest is post-processing."""
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
