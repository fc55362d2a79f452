"""Levels of noise: the largest eigenvalues and singular values that it makes alone, and warnings of a release by them.

What can stand above them is forecast in `dpca_tasks.mechanisms.parts.noise_forecast`, before anything is spent.

>>> round(semicircle_edge(400, std=3.0), 1)
122.2

References
----------
Tracy and Widom (1996), On orthogonal and symplectic matrix ensembles, for the edge; Baik, Ben Arous and Peche (2005)
for signals hidden below it.
"""

import math

from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.results import Subspace

FAILED = (
    "FAILED: the eigengap did not pass its test: noise outweighs the components, which may be random; do not use them; "
    "the budget is spent."
)
_WISHART_EDGE = 3.330
_WISHART_VISIBLE = math.sqrt(2.0 + math.sqrt(5.0))  # where ``(x - 1)^2 = 2 (x + 1)`` for its square x


def semicircle_edge(order: int, *, std: float) -> float:
    """Return the 99 % quantile of the largest eigenvalue of a symmetric noise matrix.

    ``std`` is that of the entries off the diagonal: the edge is ``2 std sqrt(order)``, and the quantile of the largest
    eigenvalue ``2.02 std order^(-1/6)`` above it.
    """
    return std * (2.0 * math.sqrt(order) + 2.02 * math.pow(order, -1 / 6))


def wishart_edge(order: int) -> float:
    """Return the largest eigenvalue of ``A^T A - B^T B`` for standard normal A and B with one more row than columns."""
    return _WISHART_EDGE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def wishart_visible(order: int) -> float:
    """Return the least strength of a signal that leaves the spectrum of such a difference.

    A signal of strength theta shows as ``theta + 2 b^2 theta / (theta^2 - b^2)``, b the order plus 1. That is least
    where the direction that is found has nothing in common with the signal's, at 2.06 b.
    """
    return _WISHART_VISIBLE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def product_edge(order: int, width: int, *, std: float) -> float:
    """Return the spectral norm of a noise matrix of ``order`` rows and ``width`` columns."""
    return std * (math.sqrt(order) + math.sqrt(width))


def release_warnings(plan: Plan, subspace: Subspace) -> tuple[str, ...]:
    """Return the warnings about the utility of a release: those of its plan, and one if its result looks like noise.

    Only released numbers are used, so this is post-processing.
    """
    outcome = subspace.outcome or {}
    if outcome.get("failed"):
        return (*plan.warnings, FAILED)
    if plan.noise_edge is None or subspace.eigenvalues is None:
        return plan.warnings
    clip_norm = plan.problem.clip_norm if subspace.clip_norm is None else subspace.clip_norm
    edge = plan.noise_edge * clip_norm**2
    if subspace.eigenvalues[0] > edge:
        return plan.warnings
    return (
        *plan.warnings,
        f"none of the {len(subspace.eigenvalues)} released eigenvalues is above {edge:.6g}, which noise alone reaches: "
        "the components cannot be told from random ones; do not use them, and spend more epsilon or use more records "
        "in another release.",
    )
