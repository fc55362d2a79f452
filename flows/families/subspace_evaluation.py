"""The family of private estimates of what subspaces capture: a few noisy sums over records, charged."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.neighbours import AuditSubject, Neighbours, worst_neighbours
from dpca_tasks.mechanisms.base import Estimate, Mechanism
from dpca_tasks.mechanisms.evaluation import SUBSPACE_MECHANISMS
from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare, SubspaceTerms
from dpca_tasks.records.blocks import BlockSource
from flows.families.base import PlannedRelease, records_facts
from flows.families.evaluated_subspace import EvaluatedSubspace
from flows.families.evaluation import EvaluationFamily, check_private
from flows.requests.evaluation import SubspaceEvaluationRequest
from storage.datasets.catalog import Entry
from storage.workspace import Workspace


def build_audited(name: str) -> Mechanism[Estimate]:
    """Build a mechanism for the audit, of the first axis."""
    mechanism: Mechanism[Estimate] = SUBSPACE_MECHANISMS[name](components=np.eye(2)[:1])
    return mechanism


def audited_problem(relation: Relation) -> SubspaceTerms:
    """Return a problem of two columns."""
    return SubspaceTerms(n_features=2, clip_norm=1.0, n_components=1, centred=False, relation=relation)


def neighbours_of(_name: str, problem: SubspaceTerms) -> tuple[Neighbours, ...]:
    """Return pairs that differ in a record along the axis, or off it."""
    return worst_neighbours(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


def along_first(_pair: Neighbours, problem: SubspaceTerms) -> Callable[[Estimate], float]:
    """Return a statistic: what lies along the axis, less, for replaced records, what lies off it."""
    off = 1.0 if problem.relation == "replace_one" else 0.0
    return lambda result: float(result.sums[0] - off * result.sums[2])


class SubspaceEvaluationFamily(EvaluationFamily[SubspaceEvaluationRequest, EvaluatedSubspace]):
    """Private estimates of what subspaces capture."""

    name = SubspaceEvaluationRequest.family
    request = SubspaceEvaluationRequest
    terms = SubspaceTerms
    mechanisms = SUBSPACE_MECHANISMS
    audit = AuditSubject(
        names=tuple(SUBSPACE_MECHANISMS),
        build=build_audited,
        problem=audited_problem,
        neighbours=neighbours_of,
        published=along_first,
    )

    def evaluated(self, request: SubspaceEvaluationRequest) -> EvaluatedSubspace:
        """Load the subspace."""
        return EvaluatedSubspace.of(Workspace.read_only(), request.artifact)

    def problem(self, request: SubspaceEvaluationRequest, snapshot: Entry, *, relation: Relation) -> SubspaceTerms:
        """Return the public facts of an evaluation on a snapshot of the same columns."""
        evaluated = self.evaluated(request)
        evaluated.check_columns(Workspace.read_only(), snapshot)
        check_private(evaluated)
        return SubspaceTerms(
            relation=relation,
            **records_facts(snapshot),
            n_features=snapshot.n_features,
            clip_norm=evaluated.clip_norm,
            n_components=evaluated.subspace.n_components,
            centred=evaluated.subspace.mean is not None,
        )

    def source(self, planned: PlannedRelease[SubspaceEvaluationRequest], rows: BlockSource) -> BlockSource:
        """Return the rows as the evaluated release had them."""
        return self.evaluated(planned.request).source(rows)

    def facts(self, planned: PlannedRelease[SubspaceEvaluationRequest]) -> Mapping[str, Any]:
        """Return what a dry run shows of the evaluation, and the std of each noisy sum in data units squared."""
        mechanism, problem = planned.mechanism, planned.plan.problem
        assert isinstance(mechanism, CapturedShare)
        return {
            "evaluated": planned.request.artifact,
            "n_components": problem.n_components,
            "clip_norm": problem.clip_norm,
            "noise_std": mechanism.noise_std(planned.plan),
        }


SUBSPACE_EVALUATION = SubspaceEvaluationFamily()
