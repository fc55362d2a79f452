"""Small private releases before a mechanism: the choice of a clip norm, and the share of rejected records.

*Clip norm*: `QuantileClip` first releases a noisy histogram of the record norms, whose public bin edges are in
geometric progression. It computes a quantile of the norms from the histogram. Then it runs any subspace mechanism, for
which this quantile is a public clip norm. By basic composition, the epsilons of the two parts add up to the target's
epsilon.

*Rejected share*: `RejectedShare` first releases noisy counts of the records that an ingest rejected and accepted. Then
it runs any subspace mechanism. By basic composition, the epsilons of the two parts add up to the target's epsilon.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import laplace_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.noise.distributions import Laplace, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.counts import NormHistogram, RejectedRecords, norm_grid

SHARE, MOST = 1 / 32, 1 / 16
"""A small release before a mechanism takes the share ``SHARE`` of epsilon, but at most the epsilon ``MOST``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileClip:
    """Run a mechanism with a privately chosen clip norm, a quantile of the record norms.

    Parameters
    ----------
    mechanism : Mechanism
        The subspace mechanism to run.
    quantile : float
        The share of the non-empty records that is not clipped, in (0, 1). It is accurate up to noise and to the
        interpolation inside a bin of the histogram. The upper edge of a bin is ``2^(1/4)`` times the lower edge.

    Notes
    -----
    The histogram has Laplace noise at ``min(epsilon / 32, 1 / 16)`` and no delta. The mechanism is planned for the rest
    of epsilon and all of delta. Basic composition holds for every mechanism, even if the second part depends on the
    answer of the first. `plan` accepts a problem with any clip norm, because no plan depends on the clip norm.
    """

    mechanism: Mechanism[Subspace]
    quantile: float

    @property
    def name(self) -> str:
        """The name of the wrapped mechanism."""
        return self.mechanism.name

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Plan the histogram of record norms, and the wrapped mechanism with the rest of the target."""
        if not 0 < self.quantile < 1:
            raise InvalidInput(f"quantile={self.quantile} must be in (0, 1); 0.9 clips one record in ten.")
        noise = _noise(target)
        query = _query(problem, scale=noise.noise_multiplier)  # raises if the noise is too large for any grid
        check_tail(noise, draws=query.layout.size, delta=target.delta)
        inner = self.mechanism.plan(problem, rest_of(target))
        return dataclasses.replace(inner, target=target, event=events.composed(noise.event, inner.event))

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the histogram, compute the clip norm from the histogram, and run the wrapped mechanism."""
        noise = _noise(plan.target)
        query = _query(plan.problem, scale=noise.noise_multiplier)
        counts = curator.release(query, noise)
        scale = noise.noise_multiplier * query.sensitivity("l1")
        clip_norm = norm_quantile(counts, norm_grid(), quantile=self.quantile, scale=scale)
        problem = dataclasses.replace(plan.problem, clip_norm=clip_norm)
        inner = dataclasses.replace(plan, problem=problem, target=rest_of(plan.target), event=plan.event["events"][1])
        return dataclasses.replace(self.mechanism.run(curator, inner), clip_norm=clip_norm)


def main_mechanism(mechanism: Any) -> Any:
    """Return the mechanism inside any wrappers, such as `QuantileClip`, that release something before the mechanism."""
    while hasattr(mechanism, "mechanism"):
        mechanism = mechanism.mechanism
    return mechanism


def first_epsilon(target: PrivacyTarget) -> float:
    """Return the epsilon of a small release before a mechanism, such as a histogram of record norms."""
    return min(target.epsilon * SHARE, MOST)


def norm_quantile(
    counts: NDArray[np.float64], edges: NDArray[np.float64], *, quantile: float, scale: float = 0.0
) -> float:
    """Estimate a quantile of the record norms from a histogram with Laplace noise; this is post-processing.

    Parameters
    ----------
    counts : array of shape (n_bins,)
        The noisy counts of the bins.
    edges : array of shape (n_bins,), data units
        Upper edges of the bins, increasing.
    quantile : float
        The quantile to estimate, in (0, 1).
    scale : float, records
        The scale b of the Laplace noise of each count.

    Returns
    -------
    float, data units
        The quantile, interpolated geometrically inside the bin in which the cumulative histogram reaches it.

    Notes
    -----
    Counts up to ``b ln(100 n_bins)`` are set to 0. If all counts are then 0, the bin with the largest count is used.
    Without this threshold, the noise of the many empty bins would accumulate, and the quantile would often fall into a
    distant empty bin. The count of an empty bin exceeds the threshold with probability ``exp(-ln(100 n_bins)) / 2``. So
    all empty bins become 0 with probability at least .995.
    """
    kept = np.where(counts > scale * math.log(100.0 * len(counts)), counts, 0.0)
    if not kept.any():
        kept[int(np.argmax(counts))] = 1.0
    below = np.cumsum(kept)
    wanted = quantile * below[-1]
    at = int(np.argmax(below >= wanted))
    if at == 0:
        return float(edges[0])
    part = (wanted - below[at - 1]) / kept[at]
    return float(edges[at - 1] * (edges[at] / edges[at - 1]) ** part)


def rest_of(target: PrivacyTarget) -> PrivacyTarget:
    """Return the privacy target that is left for a mechanism after a first release with epsilon `first_epsilon`."""
    return dataclasses.replace(target, epsilon=math.nextafter(target.epsilon - first_epsilon(target), 0.0))


def _noise(target: PrivacyTarget) -> Laplace:
    return Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=first_epsilon(target)))


def _query(problem: Problem, *, scale: float) -> NormHistogram:
    query = NormHistogram(
        n_features=problem.n_features, clip_norm=1.0, relation=problem.relation, bits=1, edges=norm_grid()
    )
    bits = grid_bits(noise_std=scale * query.sensitivity("l1") * math.sqrt(2.0), degree=1)
    return dataclasses.replace(query, bits=bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedShare:
    """Release noisy counts of the records that an ingest rejected and accepted, then run a mechanism.

    Parameters
    ----------
    mechanism : Mechanism
        The subspace mechanism to run.

    Notes
    -----
    The counts have Laplace noise of epsilon `first_epsilon`, and use no delta. So any mechanism can follow, even for a
    target with delta 0. The mechanism is planned for the rest of epsilon and all of delta. The share of rejected
    records and its std, to first order in the noise, are computed from the noisy counts by post-processing. They are
    ``rejected_share`` and ``rejected_share_std`` in the ``outcome`` of the result.
    """

    mechanism: Mechanism[Subspace]

    @property
    def name(self) -> str:
        """The name of the wrapped mechanism."""
        return self.mechanism.name

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Plan the counts of rejected and accepted records, and the wrapped mechanism with the rest of the target."""
        noise = _noise(target)
        check_tail(noise, draws=_rejection_query(problem).layout.size, delta=target.delta)
        inner = self.mechanism.plan(problem, rest_of(target))
        return dataclasses.replace(inner, target=target, event=events.composed(noise.event, inner.event))

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the counts of rejected and accepted records, then run the wrapped mechanism."""
        noise, query = _noise(plan.target), _rejection_query(plan.problem, target=plan.target)
        rejected, accepted = (float(count) for count in curator.release(query, noise))
        inner = dataclasses.replace(plan, target=rest_of(plan.target), event=plan.event["events"][1])
        found = self.mechanism.run(curator, inner)
        share = share_of_counts(rejected, accepted, std=counts_std(plan.problem, plan.target))
        return dataclasses.replace(found, outcome={**(found.outcome or {}), **share})


def counts_std(problem: Problem, target: PrivacyTarget) -> float:
    """Return the std of the noise in the counts of rejected and of accepted records, in records."""
    return _noise(target).noise_multiplier * _rejection_query(problem).sensitivity("l1") * math.sqrt(2.0)


def share_of_counts(rejected: float, accepted: float, *, std: float) -> dict[str, Any]:
    """Estimate the share of rejected records from the two noisy counts; this is post-processing.

    The result holds the share, from 0 to 1, and its std to first order in the noise.

    >>> share_of_counts(10.0, 90.0, std=1.0)["rejected_share"]
    0.1
    """
    whole = max(rejected + accepted, 1.0)
    share = min(max(rejected / whole, 0.0), 1.0)
    return {"rejected_share": share, "rejected_share_std": std / whole * math.hypot(share, 1.0 - share)}


def _rejection_query(problem: Problem, *, target: PrivacyTarget | None = None) -> RejectedRecords:
    query = RejectedRecords(n_features=problem.n_features, clip_norm=1.0, relation=problem.relation, bits=1)
    if target is None:
        return query
    return dataclasses.replace(query, bits=grid_bits(noise_std=counts_std(problem, target), degree=1))
