"""A clip norm chosen privately: a noisy histogram of record norms, then any mechanism with a quantile as clip norm.

The release has two parts. The first is one exact query of sensitivity 1 over a public geometric grid; the second has
the released clip norm among its public inputs. By basic composition their epsilons add up to that of the target.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.pure import laplace_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import Laplace, check_tail
from dpca_tasks.noise.grid import grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.norm_histogram import NormHistogram, norm_grid

SHARE, MOST = 1 / 32, 1 / 16
"""The share of epsilon that a step before a mechanism takes, and the largest epsilon that it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileClip:
    """Run a mechanism with a clip norm at a quantile of the record norms.

    Parameters
    ----------
    mechanism : Mechanism
    quantile : float
        The share of the non-empty records that is not clipped, in (0, 1); up to noise and the width of a bin
        (a fourth of an octave, rounded up).

    Notes
    -----
    The histogram has Laplace noise at ``min(epsilon / 32, 1 / 16)`` and no delta; the mechanism is planned for the
    rest of epsilon and all of delta. Basic composition holds for every mechanism, also if the second part depends on
    the answer of the first. `plan` accepts a problem with any clip norm: no plan depends on it.
    """

    mechanism: Mechanism[Subspace]
    quantile: float

    @property
    def name(self) -> str:
        """The name of the mechanism."""
        return self.mechanism.name

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Plan the mechanism with the rest of the target, after the histogram."""
        if not 0 < self.quantile < 1:
            raise InvalidInput(f"quantile={self.quantile} must be in (0, 1); 0.9 clips one record in ten.")
        noise = _noise(target)
        query = _query(problem, scale=noise.noise_multiplier)  # refused here where it has no grid
        check_tail(noise, draws=query.layout.size, delta=target.delta)
        inner = self.mechanism.plan(problem, rest_of(target))
        return dataclasses.replace(inner, target=target, event=events.composed(noise.event, inner.event))

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the histogram, compute the clip norm from it, and run the mechanism."""
        noise = _noise(plan.target)
        counts = curator.release(_query(plan.problem, scale=noise.noise_multiplier), noise)
        clip_norm = norm_quantile(counts, norm_grid(), quantile=self.quantile)
        problem = dataclasses.replace(plan.problem, clip_norm=clip_norm)
        inner = dataclasses.replace(plan, problem=problem, target=rest_of(plan.target), event=plan.event["events"][1])
        return dataclasses.replace(self.mechanism.run(curator, inner), clip_norm=clip_norm)


def main_mechanism(mechanism: Any) -> Any:
    """Return the mechanism itself, without what is released before it, such as the choice of its clip norm."""
    while hasattr(mechanism, "mechanism"):
        mechanism = mechanism.mechanism
    return mechanism


def first_epsilon(target: PrivacyTarget) -> float:
    """Return the epsilon of a step that is released before a mechanism, such as the histogram."""
    return min(target.epsilon * SHARE, MOST)


def norm_quantile(counts: NDArray[np.float64], edges: NDArray[np.float64], *, quantile: float) -> float:
    """Return the upper edge of the first bin at which the cumulative noisy histogram reaches the quantile."""
    below = np.cumsum(counts)
    return float(edges[int(np.argmax(below >= quantile * below[-1]))])


def rest_of(target: PrivacyTarget) -> PrivacyTarget:
    """Return the target of the mechanism behind such a step."""
    return dataclasses.replace(target, epsilon=math.nextafter(target.epsilon - first_epsilon(target), 0.0))


def _noise(target: PrivacyTarget) -> Laplace:
    return Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=first_epsilon(target)))


def _query(problem: Problem, *, scale: float) -> NormHistogram:
    query = NormHistogram(
        n_features=problem.n_features, clip_norm=1.0, relation=problem.relation, bits=1, edges=norm_grid()
    )
    bits = grid_bits(noise_std=scale * query.sensitivity("l1") * math.sqrt(2.0), degree=1)
    return dataclasses.replace(query, bits=bits)
