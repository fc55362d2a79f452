"""The projection of a release onto the constraints of a schema, which removes noise and no signal."""

import dataclasses

from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.released_moment import Moment, around_mean, decompose
from dpca_tasks.refinement.refined_rounds import Rounds
from dpca_tasks.refinement.schema_constraints import Constraints


def constrained_release(released: Subspace, constraints: Constraints | None) -> Subspace:
    """Return a release whose second moment satisfies the constraints of a schema.

    Parameters
    ----------
    released : Subspace
        The result of a mechanism. It is returned unchanged if it contains no second moment with isometric noise.
    constraints : Constraints, optional
        Without constraints the release is returned unchanged.

    Notes
    -----
    The noise facts of the result keep the standard deviation before the projection, and state the constraints.
    """
    count = len(released.components)
    if constraints is None:
        return released
    if released.rounds is not None:
        rounds: Rounds = dataclasses.replace(released.rounds, constraints=constraints)
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
    """Return a released second moment that satisfies constraints, if its noise is isometric; else the moment itself."""
    noise = moment.noise
    if constraints is None or moment.released is None or not noise or noise["law"] != "isometric":
        return moment
    facts = {**noise, "constraints": constraints.facts()}
    return around_mean(constraints.project(moment.released), constant=noise["constant"], noise=facts)
