"""MOD-SULQ: independent noise on the upper triangle of the second moment, a baseline.

The noise off the diagonal is ``sqrt 2`` times the noise of Analyze Gauss. The printed std is about d times the std that
privacy requires, since it comes from a union bound over the entries.
"""

from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, published_noise
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.released_moment import decompose, plan_moment, release_moment
from dpca_tasks.noise.distributions import UpperTriangle
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import SQRT_2_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class ModSulq:
    """Release ``X^T X`` with independent Gaussian noise on its upper triangle and keep its leading eigenpairs.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    calibration : {"tight", "paper"}
        ``tight``: the least std that is (epsilon, delta)-DP; ``paper``: the printed std, for replace_one.

    Notes
    -----
    The printed std applies to ``X^T X / n`` with n public. Times n it is ``(d + 1) / epsilon * sqrt(2 ln((d^2 + d) /
    (2 delta sqrt(2 pi)))) + 1 / sqrt(epsilon)``. The logarithm is positive for every d of at least 2. A printed std
    below the exact one is refused.

    References
    ----------
    Chaudhuri, Sarwate, Sinha (2013), A near-optimal algorithm for differentially-private principal components,
    Algorithm 1.
    """

    n_components: int
    calibration: Calibration = "tight"

    name: ClassVar[str] = "mod_sulq"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one Gaussian release to the target, exactly or as printed."""
        check_request(problem, target, n_components=self.n_components)
        exact = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        if self.calibration == "tight":
            return self._plan(problem, target, exact)
        multiplier = _paper_std(problem, target) / SQRT_2_UP
        if multiplier < exact:
            raise Refused(
                f"calibration=paper prints a std of {multiplier * SQRT_2_UP:.4g} where "
                f"{exact * SQRT_2_UP:.4g} is needed at these parameters; use calibration=tight."
            )
        return self._plan(problem, target, multiplier)

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noisy second moment once; the rest is post-processing."""
        moment = release_moment(curator, plan, UpperTriangle(noise_multiplier=plan.noise_multiplier))
        return decompose(moment, n_components=self.n_components)

    def _plan(self, problem: Problem, target: PrivacyTarget, multiplier: float) -> Plan:
        return plan_moment(
            self.name,
            problem,
            target,
            UpperTriangle(noise_multiplier=multiplier),
            n_components=self.n_components,
            printed=self.calibration == "paper",
        )


def _paper_std(problem: Problem, target: PrivacyTarget) -> float:
    """Return the printed std, for ``X^T X`` in squared clip norms."""
    if problem.center != "none":
        raise Refused(
            f"center={problem.center} releases mean and count too, for which calibration=paper prints no noise; "
            "use calibration=tight, or center=none."
        )
    requested = Settings(
        epsilon=target.epsilon, delta=target.delta, relation=problem.relation, n_features=problem.n_features
    )
    return published_noise("mod_sulq", requested)
