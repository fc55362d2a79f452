"""The estimate of a release in rounds among the moments that a schema allows.

`dpca_tasks.refinement.rounds.combined` minimises a quadratic function of S, whose minimum S_0 need not be in the linear
space L of `dpca_tasks.refinement.schema_constraints`. With P the projection onto L, the minimum in L satisfies
``P(sum_j H_j S H_j / s_j^2) = P(sum_j H_j S_0 H_j / s_j^2)``, for ``H = T^T T``. Conjugate gradients solve this in L.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.refinement.conjugate_gradients import Operator, conjugate_gradients
from dpca_tasks.refinement.rounds import Answer, Estimate, Round, begun, combined, weights_of
from dpca_tasks.refinement.schema_constraints import Constraints

type Matrix = NDArray[np.float64]

STEPS, NEGLIGIBLE = 40, 1e-12
"""Conjugate gradient steps, and the squared residual, relative to the right side, at which they stop."""


def constrained(estimate: Estimate, first: Answer, constraints: Constraints) -> Estimate:
    """Return an estimate that satisfies the constraints of a schema, and has less noise.

    Parameters
    ----------
    estimate : Estimate
        The estimate from all rounds.
    first : Answer
        The answer of the first round. If it is centred and has no map, all constraints hold before centring.
    constraints : Constraints

    Returns
    -------
    Estimate
        Around a mean only the null vectors hold, also for the mean of a noisy answer: all records have them.
    """
    rounds, found, centred = estimate.rounds, estimate.matrix, estimate.mean is not None
    project = constraints.project_centred if centred else constraints.project
    ratio = constraints.ratio(centred=centred)
    if centred and not first.map.width:
        better = begun(replace(first, released=constraints.project(first.released)), centred=True)
        rounds = (better.rounds[0], *rounds[1:])
        found = combined(rounds, found)
    matrix = project(found)
    if any(each.map.width for each in rounds):
        matrix = _nearest(rounds, found, project, start=matrix)
    return replace(estimate, matrix=matrix, noise_std=estimate.noise_std * ratio, rounds=rounds)


def _nearest(rounds: Sequence[Round], best: Matrix, project: Operator, *, start: Matrix) -> Matrix:
    """Return the matrix of L that is nearest to the best one without constraints, in the norm of the rounds."""
    weights, conditioned = weights_of(rounds), _preconditioner(rounds)

    def image(moment: Matrix) -> Matrix:
        terms = (each.map.transposed_around(each.map.around(moment)) for each in rounds)
        return project(sum(weight * term for weight, term in zip(weights, terms, strict=True)))  # type: ignore[arg-type]

    wanted = image(best)
    found = conjugate_gradients(
        image,
        wanted,
        start=start,
        steps=STEPS,
        enough=NEGLIGIBLE * float(np.square(wanted).sum()),
        conditioned=lambda residual: project(conditioned(residual)),
    )
    return (found + found.T) / 2.0


def _preconditioner(rounds: Sequence[Round]) -> Operator:
    """Return the inverse of the left side if only the last round has a map, which is exact for two rounds."""
    *others, weight = weights_of(rounds)
    rest, last = sum(others), rounds[-1].map
    whole = rest + weight
    basis = np.linalg.qr(np.hstack([last.basis, last.reduced]))[0]
    values, turn = np.linalg.eigh(last.gram(basis))
    basis = basis @ turn
    outside = 1.0 / (rest + weight * values) - 1.0 / whole
    inside = 1.0 / (rest + weight * np.multiply.outer(values, values)) - 1.0 / whole

    def conditioned(moment: Matrix) -> Matrix:
        across = basis.T @ moment
        inner = across @ basis
        change = basis @ (outside[:, None] * (across - inner @ basis.T) + (inside * inner) @ basis.T / 2.0)
        return np.asarray(moment / whole + (change + change.T))

    return conditioned
