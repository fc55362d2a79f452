"""The symmetrised Wishart mechanism: the default for pure epsilon-DP (delta = 0).

The noise is the difference of two independent Wishart matrices of scale c. If the sum of the records changes by nuclear
norm t, the logarithm of the output's density changes by at most ``t / 2c``. The proof is in
`dpca_tasks.noise.pure_matrices`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting.published import Settings, refusal
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.released_moment import decompose, moment_query, plan_moment, release_moment
from dpca_tasks.noise.pure_matrices import WishartDifference
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishart:
    """Release ``X^T X`` plus the difference of two Wishart matrices, and return the leading eigenpairs.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    calibration : {"tight", "paper"}
        Only ``tight``; ``paper`` is refused, because the published mechanism is not private.

    Notes
    -----
    The mechanism is pure epsilon-DP for any requested delta, which may be 0. The noise is sampled in floating point;
    `dpca_tasks.noise.pure_matrices` describes how this differs from the proof. The mechanism `laplace` has an exact
    sampler.

    The published mechanism adds one Wishart matrix W to the second moment S. W is positive semi-definite, so every
    output Y has a positive semi-definite ``Y - S``. For a neighbour with the additional record x, every output has a
    positive semi-definite ``Y - S - x x^T``. An output that satisfies only the first condition is impossible for the
    neighbour. With ``d + 1`` degrees of freedom and scale ``3 / 2 epsilon``, the probability of such outputs is
    ``1 - exp(-epsilon / 3)``, so the mechanism is not epsilon-DP for any epsilon. Subtracting an independent copy of W
    repairs the mechanism, and needs less noise.

    References
    ----------
    Jiang, Xie, Zhang (2016), Wishart mechanism for differentially private principal components analysis, Theorem 4,
    as repaired here.
    """

    n_components: int
    calibration: Calibration = "tight"

    name: ClassVar[str] = "wishart"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the single release to epsilon."""
        check_request(problem, target, n_components=self.n_components, pure=True)
        if self.calibration == "paper":
            raise refusal(self.name, Settings(epsilon=target.epsilon))
        order = moment_query(problem, bits=1).layout.order
        noise = WishartDifference(epsilon=target.epsilon)
        return plan_moment(
            self.name,
            problem,
            target,
            noise,
            n_components=self.n_components,
            spread=2.0 * math.sqrt(order + 1.0),
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noisy second moment once; the rest is post-processing."""
        moment = release_moment(curator, plan, WishartDifference(epsilon=plan.target.epsilon))
        return decompose(moment, n_components=self.n_components)
