"""Family of released moments: one noised second moment, with mean and count, from which models are derived later."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from dpca.artifacts.moment import PrivateMoment
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import AuditSubject, Neighbours, exact_answer, worst_neighbours
from dpca_tasks.layouts import pack_symmetric
from dpca_tasks.mechanisms.base import Center, Mechanism, Problem
from dpca_tasks.mechanisms.moments import MECHANISMS
from dpca_tasks.mechanisms.released_moment import Moment, moment_query
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.refinement.constrained_release import constrained_moment
from flows.families.base import (
    Family,
    PlannedRelease,
    build_mechanism,
    records_facts,
    release_facts,
    rows_by_policy,
)
from flows.families.columns import Columns
from flows.requests import MomentRequest
from storage.datasets.catalog import Entry

_AUDITED_BITS = 12


def build_audited(name: str) -> Mechanism[Moment]:
    """Build a mechanism for the audit."""
    mechanism: Mechanism[Moment] = MECHANISMS[name]()
    return mechanism


def audited_problem(relation: Relation) -> Problem:
    """Return a problem with two features; noise in more features would only hide the difference."""
    return Problem(n_features=2, clip_norm=1.0, relation=relation)


def neighbours_of(_name: str, problem: Problem) -> tuple[Neighbours, ...]:
    """Return the worst known pairs of neighbouring datasets for a second moment."""
    return worst_neighbours(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


def along_difference(pair: Neighbours, problem: Problem) -> Callable[[Moment], float]:
    """Return the statistic of the audit: the released matrix, projected on the difference of the exact matrices."""
    query = moment_query(problem, bits=_AUDITED_BITS)
    direction = exact_answer(pair.left, query) - exact_answer(pair.right, query)
    return lambda moment: float(np.vdot(direction, moment.matrix if moment.released is None else moment.released))


class MomentFamily(Family[MomentRequest, Moment]):
    """Release family whose artifacts are noised second moments."""

    name = MomentRequest.family
    request = MomentRequest
    terms = Problem
    mechanisms = MECHANISMS
    artifact = PrivateMoment
    audit = AuditSubject(
        names=tuple(MECHANISMS),
        build=build_audited,
        problem=audited_problem,
        neighbours=neighbours_of,
        published=along_difference,
    )

    def build(self, request: MomentRequest) -> Mechanism[Moment]:
        """Build the mechanism that a request names."""
        return build_mechanism(self, request.mechanism, request.settings)

    def problem(self, request: MomentRequest, snapshot: Entry, *, relation: Relation) -> Problem:
        """Return the public facts of a request on a snapshot."""
        return Problem(
            n_features=snapshot.n_features,
            clip_norm=request.clip_norm,
            center=cast(Center, request.center),
            relation=relation,
            **records_facts(snapshot),
        )

    def requested(self, request: MomentRequest) -> Sequence[Any]:
        """Return the options on rows that determine the release."""
        requested = [request.clip_norm, request.row_policy, request.center]
        return requested if request.schema_constraints else [*requested, "schema_constraints=false"]

    def source(self, planned: PlannedRelease[MomentRequest], rows: BlockSource) -> BlockSource:
        """Return the rows, all scaled to the clip norm if the request has ``row_policy=normalise``."""
        return rows_by_policy(rows, policy=planned.request.row_policy, clip_norm=planned.request.clip_norm)

    def facts(self, planned: PlannedRelease[MomentRequest]) -> Mapping[str, Any]:
        """Return the facts of a dry run, with the noise of the sum over rows, in squared data units."""
        plan, square = planned.plan, planned.request.clip_norm**2
        assert plan.moment_std is not None
        assert plan.noise_edge is not None
        noise = {"noise_std_expected": plan.moment_std * square, "noise_edge_expected": plan.noise_edge * square}
        return {"clip_norm": planned.request.clip_norm, **self.published_facts(planned), **noise}

    def published_facts(self, planned: PlannedRelease[MomentRequest]) -> Mapping[str, Any]:
        """Return ``row_policy`` and ``center``, which state how the rows were treated."""
        return {"row_policy": planned.request.row_policy, "center": planned.request.center}

    def state(
        self,
        planned: PlannedRelease[MomentRequest],
        result: Moment,
        *,
        release_id: str,
        columns: Columns,
    ) -> PrivateMoment:
        """Build the artifact of a moment with its public facts."""
        result = constrained_moment(result, columns.constraints if planned.request.schema_constraints else None)
        assert result.released is not None
        warnings = {"warnings": list(planned.plan.warnings)} if planned.plan.warnings else {}
        return PrivateMoment(
            matrix=pack_symmetric(result.released),
            manifest={
                **columns.named,
                **warnings,
                **release_facts(self, planned, release_id=release_id),
                "clip_norm": planned.request.clip_norm,
                "outcome": {"noise": result.noise},
            },
        )


MOMENT = MomentFamily()
