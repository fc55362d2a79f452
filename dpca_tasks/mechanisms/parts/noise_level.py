"""Warnings from a comparison of the largest possible signal with the level of directions that noise alone makes.

Both are in units of records at the clip norm, so they are public. At most n records have a second moment of trace at
most n, so each of k equally strong directions has at most n / k. Each mechanism computes the level of its noise in its
plan; directions below this level would look the same without any data.

>>> round(semicircle_edge(400, std=3.0), 1)
122.2
>>> from dpca_tasks.mechanisms.base import Problem
>>> level_warnings(Problem(n_features=400, clip_norm=1.0, records_at_most=5_000), n_components=10, level=122.2)
()
>>> level_warnings(Problem(n_features=400, clip_norm=1.0, records_at_most=100), n_components=1, level=122.2)
('noise alone makes directions as strong as 122 records at the clip norm, and records_at_most=100: all components \
will be noise; spend more epsilon, use more records, or choose another mechanism.',)

References
----------
Tracy and Widom (1996), On orthogonal and symplectic matrix ensembles, for the edge; Baik, Ben Arous and Peche (2005)
for signals hidden below it.
"""

import math

from dpca_tasks.mechanisms.base import Plan, Problem
from dpca_tasks.mechanisms.results import Subspace

FAILED = (
    "FAILED: the eigengap did not pass its test: noise outweighs the components, which may be random; do not use them; "
    "the budget is spent."
)
UNDECLARED_SHARE = 0.1
"""The share of the default number of records that is assumed when none is declared."""

_WISHART_EDGE = 3.330


def semicircle_edge(order: int, *, std: float) -> float:
    """Return the 99 % quantile of the largest eigenvalue of a symmetric noise matrix.

    ``std`` is that of the entries off the diagonal: the edge is ``2 std sqrt(order)``, and the quantile of the largest
    eigenvalue ``2.02 std order^(-1/6)`` above it.
    """
    return std * (2.0 * math.sqrt(order) + 2.02 * math.pow(order, -1 / 6))


def wishart_edge(order: int) -> float:
    """Return the largest eigenvalue of ``A^T A - B^T B`` for standard normal A and B with one more row than columns."""
    return _WISHART_EDGE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def product_edge(order: int, width: int, *, std: float) -> float:
    """Return the spectral norm of a noise matrix of ``order`` rows and ``width`` columns."""
    return std * (math.sqrt(order) + math.sqrt(width))


def level_warnings(problem: Problem, *, n_components: int, level: float, together: bool = False) -> tuple[str, ...]:
    """Warn if the components cannot all be above a level of noise, from public facts.

    Parameters
    ----------
    problem, n_components
        The request.
    level : float, records at the clip norm
        The level up to which directions are noise.
    together : bool
        Whether the components are above the noise together or not at all.
    """
    found = f"noise alone makes directions as strong as {level:,.0f} records at the clip norm, and "
    most = problem.records_at_most
    if not problem.records_declared:
        if UNDECLARED_SHARE * most >= n_components * level:
            return ()
        return (
            f"{found}no number of records is declared: unless there are well over {n_components * level:,.0f}, "
            f"components are noise; ingest with --records-at-most to have this checked, and spend more epsilon or ask "
            "for fewer components where there are fewer.",
        )
    standing = 0 if together and most < n_components * level else int(most / level)
    if standing >= n_components:
        return ()
    if not standing:
        return (
            f"{found}records_at_most={most}: all components will be noise; spend more epsilon, use more records, or "
            "choose another mechanism.",
        )
    return (
        f"{found}records_at_most={most}: at most {standing} of {n_components} components can be more than noise; "
        "spend more epsilon, use more records, or ask for fewer components.",
    )


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
