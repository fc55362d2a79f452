"""Family of tensor decomposition, with the advice of its dry run.

A release consists of topics of documents, or of centres of a mixture of points. Its artifact holds the arrays, and its
public facts in its manifest. A dry run forecasts from public facts how many components can be above the noise.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from scipy import sparse

from dpca.artifacts.tensor import TensorComponents
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import AuditSubject, Neighbours
from dpca_tasks.forecast.tensor_forecast import Room, lengths_of, noise_of, room_for
from dpca_tasks.mechanisms.base import ComponentModel, Components, Mechanism
from dpca_tasks.mechanisms.tensors import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem, TensorReleases
from dpca_tasks.records.blocks import ArrayBlocks
from flows.families.base import Family, PlannedRelease, build_mechanism, records_facts, release_facts
from flows.families.columns import Columns
from flows.requests import TensorRequest
from storage.datasets.catalog import Entry


def state_components(
    result: Components, *, n_features: int, requested: int, warnings: Sequence[str], manifest: Mapping[str, Any]
) -> TensorComponents:
    """Build the artifact of components with their public facts.

    Parameters
    ----------
    result : Components
    n_features, requested : int
        Number of columns of a row, and number of requested components.
    warnings : sequence of str
        Warnings of the plan. Another warning is added if fewer components were found.
    manifest : mapping
        The other public facts.
    """
    found = len(result.components) > 0
    notes = [*warnings, *_found_less(result, requested=requested)]
    return TensorComponents(
        components=result.components if found else None,
        weights=result.weights if found else None,
        eigenvalues=result.eigenvalues if len(result.eigenvalues) else None,
        model=result.model,
        n_features=n_features,
        noise_variance=result.noise_variance,
        manifest={**({"warnings": notes} if notes else {}), **manifest, "outcome": dict(result.outcome)},
    )


def _found_less(result: Components, *, requested: int) -> tuple[str, ...]:
    """Return a warning if the release found fewer components than requested, because noise hides the others."""
    found = len(result.components)
    if found == requested:
        return ()
    return (
        f"{found} of the {requested} requested components are above the noise; the others are left "
        "out, and the charge stays the same.",
    )


def advice_facts(planned: PlannedRelease[TensorRequest]) -> Mapping[str, Any]:
    """Return how many components can be above the noise, with the numbers behind this forecast and a sentence.

    The result is empty for a reference, which has no noise.
    """
    if planned.plan.target.i_know_this_is_not_private:
        return {}
    found = _room(planned)
    if found is None:
        sentence = (
            "no number of records is declared, so no component can be compared with the noise; "
            "ingest with --records-at-most."
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
    """Return the forecast sentence if no component can be above the noise; None otherwise."""
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
    taken = f"{problem.records_at_most:,} records and components of equal weight and length {_length(planned):.3g}"
    basis = "declared" if request.component_length is not None else _ASSUMED[request.model]
    if not found.room:
        text = "expect noise: no component can be above the noise"
    elif found.room < request.components:
        text = f"{found.room} components can be above the noise, fewer than the {request.components} requested"
    else:
        text = f"all {request.components} requested components can be above the noise, and at most {found.room} could"
    return f"{text}, with {taken} ({basis})."


def _length(planned: PlannedRelease[TensorRequest]) -> float:
    return lengths_of(_releases(planned), declared=planned.request.component_length)(planned.request.components)


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


_ASSUMED = {
    "topics": "assumed: topics share the words evenly; --component-length states another length",
    "mixture": "assumed: centres at the largest distance that the clip norm allows; "
    "--component-length states another length",
}


_BOUNDS = ("words_at_most", "clip_norm", "noise_variance")


def build_audited(name: str) -> Mechanism[Components]:
    """Build a mechanism for the audit, with one component."""
    mechanism: Mechanism[Components] = MECHANISMS[name](components=1)
    return mechanism


def audited_problem(relation: Relation) -> TensorProblem:
    """Return a problem of documents over two words."""
    return TensorProblem(n_features=2, model="topics", words_at_most=4, relation=relation)


def neighbours_of(_name: str, problem: TensorProblem) -> tuple[Neighbours, ...]:
    """Return a pair of datasets; their differing document repeats one word more than ``words_at_most`` times."""
    bystander, mine = [[0.0, 3.0]], [[9.0, 0.0]]
    there = {"add_remove": [], "zero_out": [[0.0, 0.0]], "replace_one": [[0.0, 9.0]]}[problem.relation]

    def source(rows: list[list[float]]) -> ArrayBlocks:
        return ArrayBlocks(sparse.csr_array(np.array(bystander + rows)), block_records=1)

    return (Neighbours(name="one document", left=source(mine), right=source(there)),)


def of_word(_pair: Neighbours, problem: TensorProblem) -> Callable[[Components], float]:
    """Return the statistic of the audit: the part of the leading eigenvalue along the differing document's word."""

    def read(result: Components) -> float:
        if not len(result.components):
            return 0.0
        along = float(result.components[0, 0])
        value = float(result.eigenvalues[0])
        return value * (along - 0.5) if problem.relation == "replace_one" else value * along

    return read


class TensorFamily(Family[TensorRequest, Components]):
    """Release family whose artifacts are components of topic models or of mixtures."""

    name = TensorRequest.family
    request = TensorRequest
    terms = TensorProblem
    mechanisms = MECHANISMS
    references = REFERENCES
    artifact = TensorComponents
    audit = AuditSubject(
        names=tuple(MECHANISMS),
        build=build_audited,
        problem=audited_problem,
        neighbours=neighbours_of,
        published=of_word,
    )

    def one_row_rule(self, request: TensorRequest) -> str | None:
        """Return the message that a mixture needs one row for each point; None for topics, whose rows are summed."""
        if request.model == "topics":
            return None
        return "a mixture needs one row for each point; ingest without --units and --unit-column."

    def build(self, request: TensorRequest) -> Mechanism[Components]:
        """Build the mechanism that a request names."""
        return build_mechanism(self, request.mechanism, request.settings, components=int(request.components))

    def problem(self, request: TensorRequest, snapshot: Entry, *, relation: Relation) -> TensorProblem:
        """Return the public facts of a request on a snapshot."""
        return TensorProblem(
            relation=relation,
            **records_facts(snapshot),
            n_features=snapshot.n_features,
            model=cast(ComponentModel, request.model),
            **{name: getattr(request, name) for name in _BOUNDS},
        )

    def requested(self, request: TensorRequest) -> Sequence[Any]:
        """Return the model and its public bounds."""
        return [request.model, *(getattr(request, name) for name in _BOUNDS)]

    def facts(self, planned: PlannedRelease[TensorRequest]) -> Mapping[str, Any]:
        """Return the facts of a dry run, with the number of components that can be above the noise."""
        return {**self.published_facts(planned), **advice_facts(planned)}

    def expected_noise(self, planned: PlannedRelease[TensorRequest]) -> str | None:
        """Return a warning if no component can be above the noise; None otherwise."""
        return no_room(planned)

    def published_facts(self, planned: PlannedRelease[TensorRequest]) -> Mapping[str, Any]:
        """Return the model, its public bounds and the number of requested components."""
        return _component_facts(planned.request)

    def state(
        self,
        planned: PlannedRelease[TensorRequest],
        result: Components,
        *,
        release_id: str,
        columns: Columns,
    ) -> TensorComponents:
        """Build the artifact of components with their public facts."""
        facts = release_facts(self, planned, release_id=release_id)
        return state_components(
            result,
            n_features=planned.plan.problem.n_features,
            requested=planned.request.components,
            warnings=planned.plan.warnings,
            manifest={**columns.named, **facts},
        )


def _component_facts(request: TensorRequest) -> dict[str, Any]:
    bounds = {name: getattr(request, name) for name in _BOUNDS}
    public = {name: value for name, value in bounds.items() if value is not None}
    return {"model": request.model, "components": request.components, **public}


TENSORS = TensorFamily()
