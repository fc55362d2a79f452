"""The advice of a dry run on components: for how many the noise leaves room, from public facts."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dpca_tasks.forecast.tensor_forecast import Room, lengths_of, noise_of, room_for
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorReleases
from flows.families.base import PlannedRelease
from flows.requests.tensor import TensorRequest


def advice_facts(planned: PlannedRelease[TensorRequest]) -> Mapping[str, Any]:
    """Return the room with its numbers and a sentence; nothing of a reference, which has no noise."""
    if planned.plan.target.i_know_this_is_not_private:
        return {}
    found = _room(planned)
    if found is None:
        sentence = (
            "no number of records is declared, so no component can be compared with the noise; ingest with "
            "--records-at-most."
        )
        return {"room": None, "forecast": sentence}
    return {
        "room": found.room,
        "expected_eigenvalue": _short(found.eigenvalue),
        "noise_edge": _short(found.edge),
        "expected_value": _short(found.value),
        "value_edge": _short(found.core_edge),
        "forecast": _sentence(planned, found),
    }


def no_room(planned: PlannedRelease[TensorRequest]) -> str | None:
    """Return the sentence of a release that leaves no room for any component; None of another one."""
    if planned.plan.target.i_know_this_is_not_private:
        return None
    found = _room(planned)
    return _sentence(planned, found).rstrip(".") if found is not None and not found.room else None


def _room(planned: PlannedRelease[TensorRequest]) -> Room | None:
    problem = planned.plan.problem
    if not problem.records_declared:
        return None
    releases = _releases(planned)
    length = lengths_of(releases, declared=planned.request.component_length)
    noise = noise_of(planned.plan, releases, length=length)
    return room_for(
        planned.request.components,
        n_records=problem.records_at_most,
        n_features=problem.n_features,
        length=length,
        moment_std=noise.moment_std,
        core_std=noise.core_std,
    )


def _releases(planned: PlannedRelease[TensorRequest]) -> TensorReleases:
    settings = dataclasses.asdict(planned.mechanism)  # type: ignore[call-overload]
    factors = {name: settings[name] for name in ("point_factor", "score_factor")}
    return TensorReleases(problem=planned.plan.problem, components=planned.request.components, **factors)


def _sentence(planned: PlannedRelease[TensorRequest], found: Room) -> str:
    request, problem = planned.request, planned.plan.problem
    taken = f"{problem.records_at_most:,} records of components of equal weight and length {_length(planned):.3g}"
    basis = "declared" if request.component_length is not None else _ASSUMED[request.model]
    if not found.room:
        said = "expect noise: there is room for no component"
    elif found.room < request.components:
        said = f"there is room for {found.room} components, fewer than the {request.components} asked for"
    else:
        said = f"there is room for the {request.components} components asked for, and up to {found.room}"
    return f"{said}, with {taken} ({basis})."


def _length(planned: PlannedRelease[TensorRequest]) -> float:
    return lengths_of(_releases(planned), declared=planned.request.component_length)(planned.request.components)


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


_ASSUMED = {
    "topics": "assumed: topics share the words evenly; --component-length states another",
    "mixture": "assumed: centres as far out as the clip norm allows for; --component-length states another",
}
