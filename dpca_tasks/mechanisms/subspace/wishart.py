"""The symmetrised Wishart mechanism: the default without a delta.

A difference of two independent Wishart matrices has a density whose logarithm changes by at most ``t / 2c`` when
the sum changes by nuclear norm t. The proof is in `dpca_tasks.noise.pure_matrices`.
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
    """Release ``X^T X`` with a symmetrised Wishart matrix and keep its leading eigenpairs.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    calibration : {"tight", "paper"}
        ``paper`` is refused: the published mechanism is not private.

    Notes
    -----
    Pure epsilon-DP for any requested delta, which may be 0. The noise is sampled in floating point;
    `dpca_tasks.noise.pure_matrices` describes the remaining gap. `laplace` has an exact sampler.

    The published mechanism adds one Wishart matrix W, which is positive semi-definite. So an output Y with ``Y - S``
    semi-definite but ``Y - S - x x^T`` not has density zero for one of two neighbours. At ``d + 1`` degrees of freedom
    and scale ``3 / 2 epsilon`` this happens with probability ``1 - exp(-epsilon / 3)``, which no epsilon covers.
    Subtracting an independent copy of W fixes this with less noise.

    References
    ----------
    Jiang, Xie, Zhang (2016), Wishart mechanism for differentially private principal components analysis, Theorem 4,
    as repaired here.
    """

    n_components: int
    calibration: Calibration = "tight"

    name: ClassVar[str] = "wishart"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one release to epsilon."""
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
