"""Local Gaussian: every record gets noise before it leaves its block, without a trusted aggregator.

The sum of n reports has ``sqrt(2 n)`` times the noise of Analyze Gauss. Use this mechanism only if there is no trusted
aggregator.
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
"""The capacity of exact sums, in records: no dataset has more, so a bound on this many draws holds for every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGaussian:
    """Sum locally noised second moments and keep their leading eigenpairs.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    calibration : {"tight", "paper"}
        ``tight``: the least noise that is (epsilon, delta)-DP; ``paper``: the printed std ``sqrt(2 ln(1.25 / delta)) /
        epsilon`` on the diagonal, proved for epsilon below 1, and that std over ``sqrt 2`` off the diagonal, which
        gives the same privacy; the charged event is the exact event of this Gaussian.

    Notes
    -----
    Each report is (epsilon, delta)-DP for any two inputs of one person: its std is ``sqrt 2`` times the exact
    multiplier, whatever the relation. The released sum has more noise than that event states. With centring, a report
    is the moment of a record that is extended by a public constant, and centring is post-processing of the sum
    (`dpca_tasks.mechanisms.released_moment`).

    The guarantee does not use the declared bound on the number of records, which a dataset may exceed: delta covers the
    draws of `CAPACITY` reports. The bound only selects the grid and the forecast.

    References
    ----------
    Wang and Xu (2019), Principal component analysis in the local differential privacy model, with the sensitivity
    ``sqrt 2`` of any two unit rows, and exact noise in place of ``sqrt(2 ln(1.25/delta)) / epsilon``.
    """

    n_components: int
    calibration: Calibration = "tight"

    name: ClassVar[str] = "local_gaussian"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate one report to the target; the grid fits the noise of the public number of records."""
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
                    f"epsilon={target.epsilon:g} of its reports: two reports differ by up to sqrt 2; use "
                    "calibration=tight."
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
        """Collect the reports; the rest is post-processing."""
        noise = Symmetric(noise_multiplier=plan.noise_multiplier)
        reports = curator.release(_query(plan.problem, bits=plan.bits), noise)
        # The std of the summed noise would reveal the number of records, so the noise is not stated.
        return decompose(moment_from(reports, plan.problem), n_components=self.n_components)


def _query(problem: Problem, *, bits: int) -> LocallyNoised:
    return LocallyNoised.of(moment_query(problem, bits=bits))
