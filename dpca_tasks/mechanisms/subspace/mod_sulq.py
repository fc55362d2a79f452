"""MOD-SULQ: a baseline with independent Gaussian noise on the upper triangle of the second moment.

The noise off the diagonal is ``sqrt 2`` times the noise of Analyze Gauss. The published std is about d times the std
that privacy requires, since its proof uses a union bound over the entries.
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
    """Release ``X^T X`` with independent Gaussian noise on its upper triangle, and return its leading eigenpairs.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    calibration : {"tight", "paper"}
        ``tight``: the least std that is (epsilon, delta)-DP; ``paper``: the published std, for replace_one.

    Notes
    -----
    The published std is for ``X^T X / n`` with a public number n of records. For ``X^T X`` the std is multiplied by n:
    ``(d + 1) / epsilon * sqrt(2 ln((d^2 + d) / (2 delta sqrt(2 pi)))) + 1 / sqrt(epsilon)``. The logarithm is positive
    for every d of at least 2. If the published std is smaller than the least std that privacy requires, the request is
    refused.

    References
    ----------
    Chaudhuri, Sarwate, Sinha (2013), A near-optimal algorithm for differentially-private principal components,
    Algorithm 1.
    """

    n_components: int
    calibration: Calibration = "tight"

    name: ClassVar[str] = "mod_sulq"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of one Gaussian release, to the target or by the published formula."""
        check_request(problem, target, n_components=self.n_components)
        exact = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        if self.calibration == "tight":
            return self._plan(problem, target, exact)
        multiplier = _paper_std(problem, target) / SQRT_2_UP
        if multiplier < exact:
            raise Refused(
                f"calibration=paper has the published std {multiplier * SQRT_2_UP:.4g}, and this epsilon and delta "
                f"require at least {exact * SQRT_2_UP:.4g}; use calibration=tight."
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
    """Return the published std of the noise on ``X^T X``, in squared clip norms."""
    if problem.center != "none":
        raise Refused(
            f"center={problem.center} releases mean and count too, for which no noise is published; use "
            "calibration=tight, or center=none."
        )
    requested = Settings(
        epsilon=target.epsilon, delta=target.delta, relation=problem.relation, n_features=problem.n_features
    )
    return published_noise("mod_sulq", requested)
