"""The family of private subspaces: k orthonormal directions of the rows, of the rows around their mean, or of units."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.subspace import SUBSPACE_AUDIT
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Problem
from dpca_tasks.mechanisms.parts.noise_level import release_warnings
from dpca_tasks.mechanisms.parts.quantile_clip import QuantileClip, histogram_epsilon
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.sources import NormalisedBlocks
from flows.families.base import Family, PlannedRelease, build_mechanism, chosen, release_facts
from flows.requests.subspace import SubspaceRequest
from storage.artifacts.subspace import PrivateSubspace
from storage.datasets.catalog import Entry
from storage.ledger.budgets import RECORDS_AT_MOST


class SubspaceFamily(Family[SubspaceRequest, Subspace]):
    """Private subspaces."""

    name = SubspaceRequest.family
    request = SubspaceRequest
    terms = Problem
    mechanisms = MECHANISMS
    references = REFERENCES
    artifact = PrivateSubspace
    audit = SUBSPACE_AUDIT

    def build(self, request: SubspaceRequest) -> Mechanism[Subspace]:
        """Build the mechanism of a request, behind a private choice of the clip norm where it asks for one."""
        mechanism = build_mechanism(self, request.mechanism, request.settings, n_components=request.components)
        if request.mechanism in REFERENCES and isinstance(request.clip_norm, str):
            raise InvalidInput(
                f"clip_norm={request.clip_norm!r} is chosen by a private histogram; {request.mechanism} takes a number."
            )
        _, quantile = _clip_norm(request)
        return mechanism if quantile is None else QuantileClip(mechanism=mechanism, quantile=quantile)

    def problem(self, request: SubspaceRequest, snapshot: Entry, *, relation: Relation) -> Problem:
        """Return the public facts of a request on a snapshot."""
        chosen(request, "row_policy")
        return Problem(
            n_features=snapshot.n_features,
            clip_norm=_clip_norm(request)[0],
            center=chosen(request, "center"),
            relation=relation,
            records_at_most=snapshot.records_at_most or RECORDS_AT_MOST,
            records_declared=snapshot.records_at_most is not None,
        )

    def asked(self, request: SubspaceRequest) -> Sequence[Any]:
        """Return what a request says of the rows."""
        return [request.clip_norm, request.row_policy, request.center]

    def parameters(self, mechanism: Mechanism[Subspace]) -> Mapping[str, Any]:
        """Return the parameters of the mechanism itself, without the choice of its clip norm."""
        return super().parameters(mechanism.mechanism if isinstance(mechanism, QuantileClip) else mechanism)

    def source(self, planned: PlannedRelease[SubspaceRequest], rows: BlockSource) -> BlockSource:
        """Return the rows, all scaled to the clip norm where the request says so."""
        if planned.request.row_policy == "normalise":
            return NormalisedBlocks(rows, length=_problem_of(planned).clip_norm)
        return rows

    def facts(self, planned: PlannedRelease[SubspaceRequest]) -> Mapping[str, Any]:
        """Return what a dry run shows of the rows."""
        request = planned.request
        return {"clip_norm": request.clip_norm, "row_policy": request.row_policy, "center": request.center}

    def state(
        self,
        planned: PlannedRelease[SubspaceRequest],
        result: Subspace,
        *,
        release_id: str,
        feature_names: Sequence[str] | None,
    ) -> PrivateSubspace:
        """State a subspace with its public facts."""
        plan, mechanism, problem = planned.plan, planned.mechanism, _problem_of(planned)
        noise: dict[str, Any] = {"row_policy": planned.request.row_policy, "center": problem.center}
        if isinstance(mechanism, QuantileClip):
            noise |= {"clip_quantile": mechanism.quantile, "clip_epsilon": histogram_epsilon(plan.target)}
        facts = {
            "total_variance": result.total_variance,
            "outcome": result.outcome,
            "feature_names": None if feature_names is None else list(feature_names),
            "warnings": list(release_warnings(plan, result)) or None,
        }
        return PrivateSubspace(
            components=result.components,
            eigenvalues=result.eigenvalues,
            spectrum=result.spectrum,
            further=result.further,
            mean=result.mean,
            manifest={
                **{name: fact for name, fact in facts.items() if fact is not None},
                "clip_norm": problem.clip_norm if result.clip_norm is None else result.clip_norm,
                **release_facts(self, planned, release_id=release_id, plan=noise),
            },
        )


SUBSPACE = SubspaceFamily()


def _problem_of(planned: PlannedRelease[SubspaceRequest]) -> Problem:
    problem = planned.plan.problem
    assert isinstance(problem, Problem)
    return problem


def _clip_norm(request: SubspaceRequest) -> tuple[float, float | None]:
    """Return the clip norm, or 1 and the quantile at which to choose it."""
    if isinstance(request.clip_norm, (int, float)):
        return float(request.clip_norm), None
    kind, _, text = request.clip_norm.partition(":")
    try:
        quantile = float(text) if kind == "quantile" else float("nan")
    except ValueError:
        quantile = float("nan")
    if not 0 < quantile < 1:
        raise InvalidInput(f"clip_norm={request.clip_norm!r} must be a number or quantile:Q, Q in (0, 1); correct it.")
    if request.row_policy == "normalise":
        raise InvalidInput("row_policy=normalise gives all records one norm, without quantiles; state a clip_norm.")
    return 1.0, quantile
