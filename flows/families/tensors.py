"""The family of tensor decomposition: topics of documents, and centres of mixtures of points."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.neighbours import AuditSubject, Neighbours
from dpca_tasks.mechanisms.base import Components, Mechanism
from dpca_tasks.mechanisms.tensors import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.records.sources import ArrayBlocks
from flows.families.base import Family, PlannedRelease, build_mechanism, chosen, records_facts, release_facts
from flows.families.stated_components import state_components
from flows.families.tensor_advice import advice_facts, no_room
from flows.requests.tensor import TensorRequest
from storage.artifacts.tensor import TensorComponents
from storage.datasets.catalog import Entry

_BOUNDS = ("words_at_most", "clip_norm", "noise_variance")


def build_audited(name: str) -> Mechanism[Components]:
    """Build a mechanism for the audit, with one component."""
    mechanism: Mechanism[Components] = MECHANISMS[name](components=1)
    return mechanism


def audited_problem(relation: Relation) -> TensorProblem:
    """Return a problem of documents of two words."""
    return TensorProblem(n_features=2, model="topics", words_at_most=4, relation=relation)


def neighbours_of(_name: str, problem: TensorProblem) -> tuple[Neighbours, ...]:
    """Return a pair whose differing document has one word many times, more often than is counted."""
    bystander, mine = [[0.0, 3.0]], [[9.0, 0.0]]
    there = {"add_remove": [], "zero_out": [[0.0, 0.0]], "replace_one": [[0.0, 9.0]]}[problem.relation]

    def source(rows: list[list[float]]) -> ArrayBlocks:
        return ArrayBlocks(sparse.csr_array(np.array(bystander + rows)), block_records=1)

    return (Neighbours(name="one document", left=source(mine), right=source(there)),)


def of_word(_pair: Neighbours, problem: TensorProblem) -> Callable[[Components], float]:
    """Return a statistic: how much of the leading eigenvalue lies along the word of the differing document."""

    def read(result: Components) -> float:
        if not len(result.components):
            return 0.0
        along = float(result.components[0, 0])
        value = float(result.eigenvalues[0])
        return value * (along - 0.5) if problem.relation == "replace_one" else value * along

    return read


class TensorFamily(Family[TensorRequest, Components]):
    """Components of topics and of mixtures."""

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
        """Return the rule of points; a document of several rows is their sum."""
        if request.model == "topics":
            return None
        return "a mixture needs one row a point; ingest without --units and --unit-column."

    def build(self, request: TensorRequest) -> Mechanism[Components]:
        """Build the mechanism that a request names."""
        return build_mechanism(self, request.mechanism, request.settings, components=int(request.components))

    def problem(self, request: TensorRequest, snapshot: Entry, *, relation: Relation) -> TensorProblem:
        """Return the public facts of a request on a snapshot."""
        return TensorProblem(
            relation=relation,
            **records_facts(snapshot),
            n_features=snapshot.n_features,
            model=chosen(request, "model"),
            **{name: getattr(request, name) for name in _BOUNDS},
        )

    def asked(self, request: TensorRequest) -> Sequence[Any]:
        """Return the model with its public bounds."""
        return [request.model, *(getattr(request, name) for name in _BOUNDS)]

    def facts(self, planned: PlannedRelease[TensorRequest]) -> Mapping[str, Any]:
        """Return what a dry run shows of components, and how many of them the noise leaves room for."""
        return {**self.stated(planned), **advice_facts(planned)}

    def expected_noise(self, planned: PlannedRelease[TensorRequest]) -> str | None:
        """Say in a line that the noise leaves no room for a component."""
        return no_room(planned)

    def stated(self, planned: PlannedRelease[TensorRequest]) -> Mapping[str, Any]:
        """Return the model with its public bounds, and how many components were asked for."""
        return _asked_of_components(planned.request)

    def state(
        self,
        planned: PlannedRelease[TensorRequest],
        result: Components,
        *,
        release_id: str,
        feature_names: Sequence[str] | None,
    ) -> TensorComponents:
        """State components with their public facts."""
        facts = release_facts(self, planned, release_id=release_id)
        names = {} if feature_names is None else {"feature_names": list(feature_names)}
        return state_components(
            result,
            n_features=planned.plan.problem.n_features,
            asked=planned.request.components,
            warnings=planned.plan.warnings,
            manifest={**names, **facts},
        )


def _asked_of_components(request: TensorRequest) -> dict[str, Any]:
    bounds = {name: getattr(request, name) for name in _BOUNDS}
    stated = {name: value for name, value in bounds.items() if value is not None}
    return {"model": request.model, "components": request.components, **stated}


TENSORS = TensorFamily()
