"""Projection of released second moments onto the constraints of a schema.

The exact second moment satisfies the constraints, so the projection removes noise and no signal. A single answer is
projected by `dpca_tasks.refinement.schema_constraints`. For several rounds, the estimate is computed as follows.

`dpca_tasks.refinement.rounds.combined` minimises a quadratic function of S over all symmetric matrices. The minimum S_0
need not be in the linear space L of matrices that satisfy the constraints. Let P be the orthogonal projection onto L,
T_j the map of round j, s_j the std of its noise, and ``H_j = T_j^T T_j``. Then the minimum over L satisfies
``P(sum_j H_j S H_j / s_j^2) = P(sum_j H_j S_0 H_j / s_j^2)``. Conjugate gradients solve this equation in L.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.released_moment import Moment, around_mean, decompose
from dpca_tasks.refinement.conjugate_gradients import Operator, conjugate_gradients
from dpca_tasks.refinement.rounds import Answer, Estimate, Round, begun, combined, weights_of
from dpca_tasks.refinement.schema_constraints import Constraints

type Matrix = NDArray[np.float64]

STEPS, NEGLIGIBLE = 40, 1e-12
"""The largest number of conjugate gradient steps, and the relative squared residual norm at which the steps stop."""


def constrained_release(released: Subspace, constraints: Constraints | None) -> Subspace:
    """Return a release whose second moment is projected onto the constraints of a schema.

    Parameters
    ----------
    released : Subspace
        The result of a mechanism. It is returned unchanged if it has no second moment with isotropic normal noise.
    constraints : Constraints, optional
        Without constraints the release is returned unchanged.

    Notes
    -----
    The ``noise`` of the result still holds the standard deviation before the projection, and also the constraints.
    """
    count = len(released.components)
    if constraints is None:
        return released
    if released.rounds is not None:
        rounds = dataclasses.replace(released.rounds, constraints=constraints)
        estimate = Moment(matrix=rounds.estimate.matrix * rounds.unit, mean=released.mean)
        facts = {**(released.outcome or {})}
        facts["rounds"] = {**facts["rounds"], "constraints": constraints.facts()}
        return dataclasses.replace(
            decompose(estimate, n_components=count), rounds=rounds, outcome=facts, clip_norm=released.clip_norm
        )
    if released.released is None:
        return released
    before = Moment(matrix=released.released, released=released.released, noise=dict(released.noise or {}))
    moment = constrained_moment(before, constraints)
    if moment is before:
        return released
    return dataclasses.replace(
        decompose(moment, n_components=count), outcome=released.outcome, clip_norm=released.clip_norm
    )


def constrained_moment(moment: Moment, constraints: Constraints | None) -> Moment:
    """Project a released second moment onto constraints if its noise is isotropic; else return it unchanged."""
    noise = moment.noise
    if constraints is None or moment.released is None or not noise or noise["law"] != "isometric":
        return moment
    facts = {**noise, "constraints": constraints.facts()}
    return around_mean(constraints.project(moment.released), constant=noise["constant"], noise=facts)


def constrained(estimate: Estimate, first: Answer, constraints: Constraints) -> Estimate:
    """Return the estimate under the constraints of a schema; it has less noise than the given estimate.

    Parameters
    ----------
    estimate : Estimate
        The estimate from all rounds.
    first : Answer
        The answer of the first round. In a centred release without a map in round 1, this answer is projected onto all
        constraints before it is centred.
    constraints : Constraints

    Returns
    -------
    Estimate
        Without centring, the estimate satisfies all constraints. Around a mean, it satisfies only the equations
        ``S (1_g - 1_h) = 0``, not the zeros within groups; 1_g is the indicator of a filled group g. The equations also
        hold around the mean of a noisy answer, because ``x^T (1_g - 1_h) = 0`` for all records x.
    """
    rounds, found, centred = estimate.rounds, estimate.matrix, estimate.mean is not None
    project = constraints.project_centred if centred else constraints.project
    ratio = constraints.ratio(centred=centred)
    if centred and not first.map.width:
        better = begun(dataclasses.replace(first, released=constraints.project(first.released)), centred=True)
        rounds = (better.rounds[0], *rounds[1:])
        found = combined(rounds, found)
    matrix = project(found)
    if any(each.map.width for each in rounds):
        matrix = _nearest(rounds, found, project, start=matrix)
    return dataclasses.replace(estimate, matrix=matrix, noise_std=estimate.noise_std * ratio, rounds=rounds)


def _nearest(rounds: Sequence[Round], best: Matrix, project: Operator, *, start: Matrix) -> Matrix:
    """Return the matrix in L that minimises the objective of `combined`.

    L is the space of matrices that satisfy the constraints, and ``project`` projects onto L. ``best`` is the minimum
    over all symmetric matrices. The conjugate gradients begin at ``start``.
    """
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
    """Return an approximate inverse of the operator ``S -> sum_j H_j S H_j / s_j^2`` over the rounds j.

    Here ``H_j = T_j^T T_j`` for the map T_j of a round, and s_j is the std of its noise. The inverse is exact if only
    the last round has a map, as in a release of two rounds.
    """
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
