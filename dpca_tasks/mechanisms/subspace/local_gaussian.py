"""Local Gaussian: noise is added to the second moment of each single record, as in local differential privacy.

The noisy moment of a record is called a report. The sum of n reports has ``sqrt(2 n)`` times the noise of Analyze
Gauss. Use this mechanism only if there is no trusted aggregator.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, published_noise
from dpca_tasks.errors import Refused
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request, grid_warnings
from dpca_tasks.mechanisms.noise_level import least_visible, semicircle_edge
from dpca_tasks.mechanisms.released_moment import decompose, moment_from, moment_query
from dpca_tasks.noise.distributions import Symmetric, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import SQRT_2_UP
from dpca_tasks.queries.locally_noised import LocallyNoised

CAPACITY = 1 << 33
"""The largest number of records that exact sums can add, so a bound for this number of reports holds for all data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGaussian:
    """Sum the records' noisy second moments (reports), and return the leading eigenpairs of the sum.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    calibration : {"tight", "paper"}
        ``tight``: the least noise for which a report is (epsilon, delta)-DP; ``paper``: the published std
        ``sqrt(2 ln(1.25 / delta)) / epsilon`` on the diagonal, proved for epsilon below 1, and this std divided by
        ``sqrt 2`` off the diagonal, which gives the same privacy, but charged by its exact privacy loss.

    Notes
    -----
    Each report is (epsilon, delta)-DP for any two possible records of one person. For every relation, its std is
    ``sqrt 2`` times the exact noise multiplier. The released sum of all reports has more noise than the charged event
    states. With ``center=private``, a public constant is appended to each record, and the sum of the reports is centred
    by post-processing (`dpca_tasks.mechanisms.released_moment`).

    The guarantee does not depend on ``records_at_most``, which a dataset may exceed: delta is large enough for the
    noise draws of `CAPACITY` reports. The bound ``records_at_most`` only determines the grid and the forecast.

    References
    ----------
    Wang and Xu (2019), Principal component analysis in the local differential privacy model, with the sensitivity
    ``sqrt 2`` of any two unit rows, and exact noise in place of ``sqrt(2 ln(1.25/delta)) / epsilon``.
    """

    n_components: int
    calibration: Calibration = "tight"

    name: ClassVar[str] = "local_gaussian"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of each record's report to the target.

        The grid is the finest that the noise in a sum of ``records_at_most`` reports permits.
        """
        check_request(problem, target, n_components=self.n_components)
        if self.calibration == "tight":
            multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        else:
            requested = Settings(epsilon=target.epsilon, delta=target.delta, relation=problem.relation)
            multiplier = published_noise(self.name, requested) / SQRT_2_UP
            real = gaussian_epsilon(noise_multiplier=multiplier, delta=target.delta)
            if real > target.epsilon:
                raise Refused(
                    f"calibration=paper really gives epsilon {real:.4g} at delta={target.delta:g}, more than the "
                    f"requested epsilon={target.epsilon:g}, because the moments of two records differ by up to sqrt 2; "
                    "use calibration=tight."
                )
        noise = Symmetric(noise_multiplier=multiplier)
        coarse = _query(problem, bits=1)
        check_tail(noise, draws=coarse.layout.size * CAPACITY, delta=target.delta)
        everyone = math.sqrt(problem.records_at_most)
        bits = grid_bits(noise_std=noise.noise_multiplier * SQRT_2_UP * everyone, degree=coarse.degree)
        std = noise.noise_multiplier * coarse.sensitivity("l2") * everyone * coarse.unit / problem.clip_norm**2
        level = std * noise.off_diagonal * least_visible(problem.n_features)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=bits,
            event=noise.event,
            notes=forecast(problem, n_components=self.n_components, level=level).warnings()
            + grid_warnings(problem, bits=bits),
            noise_edge=semicircle_edge(problem.n_features, std=std * noise.off_diagonal),
            level=level,
            printed=self.calibration == "paper",
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the sum of the noisy second moments of all records; the rest is post-processing."""
        noise = Symmetric(noise_multiplier=plan.noise_multiplier)
        reports = curator.release(_query(plan.problem, bits=plan.bits), noise)
        # The result omits the facts about its noise, because the std of the summed noise reveals the number of records.
        return decompose(moment_from(reports, plan.problem), n_components=self.n_components)


def _query(problem: Problem, *, bits: int) -> LocallyNoised:
    return LocallyNoised.of(moment_query(problem, bits=bits))
