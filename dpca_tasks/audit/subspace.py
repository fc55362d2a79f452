"""The audit of subspace mechanisms: settings, neighbours, and a statistic of the published directions."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.attacks import exact_answer
from dpca_tasks.audit.neighbours import AuditSubject, Neighbours, gapped_neighbours, worst_neighbours
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Problem, Subspace
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.queries.second_moment import SecondMoment

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dp_spca": {"steps": 2, "rate": 0.5},
    "dp_vrpca": {"epochs": 1, "inner_steps": 2, "rate": 0.5},
    "dps_pca": {"iterations": 2},
    "noisy_power": {"iterations": 2},
}
"""Settings of audited mechanisms whose defaults only cost time."""

GAPPED = frozenset({"propose_test_release", "smooth_sensitivity"})
"""Mechanisms whose noise follows the eigengap: without a gap they return noise, and no pair shows a difference."""

_BITS = 12


def build_audited(name: str) -> Mechanism[Subspace]:
    """Build a registered mechanism for the audit, with one component and few steps.

    Raises
    ------
    InvalidInput
        When no mechanism has the name.
    """
    if name not in MECHANISMS:
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(sorted(MECHANISMS))}.")
    mechanism: Mechanism[Subspace] = MECHANISMS[name](n_components=1, **SETTINGS.get(name, {}))
    return mechanism


def audited_problem(relation: Relation) -> Problem:
    """Return a problem with two features; the noise of further ones would only hide the difference."""
    return Problem(n_features=2, clip_norm=1.0, relation=relation)


def neighbours_of(name: str, problem: Problem) -> tuple[Neighbours, ...]:
    """Return the worst pairs known for a mechanism."""
    known = gapped_neighbours if name in GAPPED else worst_neighbours
    return known(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


def along_difference(pair: Neighbours, problem: Problem) -> Callable[[Subspace], float]:
    """Return a statistic: the second moment, reconstructed from a subspace, projected on the difference of a pair."""
    moment = SecondMoment(
        n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=_BITS
    )
    direction = exact_answer(pair.left, moment) - exact_answer(pair.right, moment)

    def project(published: Subspace) -> float:
        rows, k = published.components, len(published.components)
        if published.eigenvalues is None or published.spectrum is None:
            return float(np.vdot(direction, rows.T @ rows))
        rest = published.spectrum[k:].mean() if published.spectrum.size > k else 0.0
        rebuilt = (rows.T * (published.eigenvalues - rest)) @ rows + rest * np.eye(rows.shape[1])
        return float(np.vdot(direction, rebuilt))

    return project


SUBSPACE_AUDIT = AuditSubject(
    names=tuple(MECHANISMS),
    build=build_audited,
    problem=audited_problem,
    neighbours=neighbours_of,
    published=along_difference,
)
