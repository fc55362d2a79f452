"""The share of records that an ingest rejected, released before a mechanism.

The release has two parts, as that of `dpca_tasks.mechanisms.parts.quantile_clip`: one exact query of two counts, and
the mechanism. By basic composition their epsilons add up to that of the target.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from dpca_tasks.accounting import events
from dpca_tasks.accounting.pure import laplace_noise_multiplier
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.quantile_clip import first_epsilon, rest_of
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import Laplace, check_tail
from dpca_tasks.noise.grid import grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.rejected_records import RejectedRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedShare:
    """Release noisy counts of rejected and of accepted records, then run a mechanism.

    Parameters
    ----------
    mechanism : Mechanism

    Notes
    -----
    The counts have Laplace noise at `first_epsilon` and no delta, so that every mechanism can follow, also one with
    delta 0; the mechanism is planned for the rest of epsilon and all of delta. The share and its std, to first order in
    the noise, are post-processing; they become ``rejected_share`` and ``rejected_share_std`` of the outcome.
    """

    mechanism: Mechanism[Subspace]

    @property
    def name(self) -> str:
        """The name of the mechanism."""
        return self.mechanism.name

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Plan the mechanism with the rest of the target, after the counts."""
        noise = _noise(target)
        check_tail(noise, draws=_query(problem).layout.size, delta=target.delta)
        inner = self.mechanism.plan(problem, rest_of(target))
        return dataclasses.replace(inner, target=target, event=events.composed(noise.event, inner.event))

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the counts, and run the mechanism."""
        noise, query = _noise(plan.target), _query(plan.problem, target=plan.target)
        rejected, accepted = (float(count) for count in curator.release(query, noise))
        inner = dataclasses.replace(plan, target=rest_of(plan.target), event=plan.event["events"][1])
        found = self.mechanism.run(curator, inner)
        share = share_of_counts(rejected, accepted, std=counts_std(plan.problem, plan.target))
        return dataclasses.replace(found, outcome={**(found.outcome or {}), **share})


def counts_std(problem: Problem, target: PrivacyTarget) -> float:
    """Return the std of the noise of each count, in records."""
    return _noise(target).noise_multiplier * _query(problem).sensitivity("l1") * math.sqrt(2.0)


def share_of_counts(rejected: float, accepted: float, *, std: float) -> dict[str, Any]:
    """Return the share of rejected records between 0 and 1, and its std, from two noisy counts: post-processing.

    >>> share_of_counts(10.0, 90.0, std=1.0)["rejected_share"]
    0.1
    """
    whole = max(rejected + accepted, 1.0)
    share = min(max(rejected / whole, 0.0), 1.0)
    return {"rejected_share": share, "rejected_share_std": std / whole * math.hypot(share, 1.0 - share)}


def _noise(target: PrivacyTarget) -> Laplace:
    return Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=first_epsilon(target)))


def _query(problem: Problem, *, target: PrivacyTarget | None = None) -> RejectedRecords:
    query = RejectedRecords(n_features=problem.n_features, clip_norm=1.0, relation=problem.relation, bits=1)
    if target is None:
        return query
    return dataclasses.replace(query, bits=grid_bits(noise_std=counts_std(problem, target), degree=1))
