"""Private evaluation of releases, and the family that estimates what a subspace captures.

`EvaluationFamily` is the common base. It loads a release by any reference, builds the mechanism from it, and states
which version was evaluated. `check_columns` compares the columns of a dataset with the columns of the release.

`SubspaceEvaluationFamily` evaluates a subspace on a dataset by a few noisy sums over records, which are charged.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpca.artifacts.base import Artifact
from dpca.artifacts.estimate import PrivateEstimate
from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.pointers import Resolved
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import AuditSubject, Neighbours, worst_neighbours
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Estimate, Mechanism, PrivacyTarget, Problem
from dpca_tasks.mechanisms.evaluation import SUBSPACE_MECHANISMS
from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare, SubspaceTerms, diagnose
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.records.blocks import BlockSource
from flows.families.base import Family, PlannedRelease, records_facts, release_facts, rows_by_policy
from flows.families.columns import Columns, check_same_columns
from flows.requests import EvaluationRequest, SubspaceEvaluationRequest
from storage.datasets.catalog import Entry
from storage.workspace import Workspace

type Diagnosis = Callable[[Callable[[], DisclosingCurator]], dict[str, Any]]
"""Function that computes numbers without noise, which are not private. Its argument returns a curator for each pass."""


class EvaluatedRelease(Protocol):
    """A loaded release for evaluation."""

    @property
    def version(self) -> Resolved: ...  # noqa: D102
    @property
    def is_private(self) -> bool: ...  # noqa: D102
    @property
    def mechanism(self) -> Mechanism[Estimate]: ...  # noqa: D102


class EvaluationFamily[R: EvaluationRequest, E: EvaluatedRelease](Family[R, Estimate]):
    """Base of the release families whose artifacts are private estimates of the quality of releases."""

    artifact = PrivateEstimate

    @abstractmethod
    def evaluated(self, request: R) -> E:
        """Load the release that a request evaluates."""

    @abstractmethod
    def diagnosis(
        self, request: R, evaluated: E, workspace: Workspace, snapshot: Entry
    ) -> tuple[BlockSource, Diagnosis]:
        """Return the rows in the form that the release used, and a function that measures its quality on these rows.

        Raises
        ------
        InvalidInput
            When the columns of the snapshot differ from the columns of the release.
        """

    def about(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return the facts of the request that an estimate states in addition to the evaluated release."""
        return {}

    def build(self, request: R) -> Mechanism[Estimate]:
        """Build the mechanism from the evaluated release."""
        if request.settings:
            raise InvalidInput(f"{request.mechanism} has no setting {next(iter(request.settings))!r}; remove it.")
        return self.evaluated(request).mechanism

    def resolved(self, request: R, snapshot: Entry, *, relation: Relation, target: PrivacyTarget) -> R:
        """Return a request with its alias replaced by the version that the alias points to now."""
        return dataclasses.replace(request, artifact=str(self.evaluated(request).version))

    def requested(self, request: R) -> Sequence[Any]:
        """Return the digest of the evaluated release, which is the same for all references to it."""
        return [self.evaluated(request).version.digest]

    def parameters(self, mechanism: Mechanism[Estimate]) -> Mapping[str, Any]:
        """Return no parameters, because the arrays of the mechanism are in the evaluated release already."""
        return {}

    def published_facts(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return the version and digest of the evaluated release."""
        version = self.evaluated(planned.request).version
        return {"evaluated": str(version), "evaluated_digest": version.digest, **self.about(planned)}

    def state(
        self, planned: PlannedRelease[R], result: Estimate, *, release_id: str, columns: Columns
    ) -> PrivateEstimate:
        """Build the artifact of the noisy sums and estimates, with the evaluated version."""
        facts = release_facts(self, planned, release_id=release_id)
        return PrivateEstimate(sums=result.sums, manifest={**facts, "outcome": dict(result.outcome)})


def check_private(evaluated: EvaluatedRelease) -> None:
    """Refuse a release that is not private, since no estimate about it would be private.

    Raises
    ------
    Refused
        When the release comes from a reference mechanism without a guarantee.
    """
    if not evaluated.is_private:
        raise Refused(
            f"{evaluated.version} is not private, so an estimate of its quality would not be "
            "private either; evaluate a private release, or leave out --release."
        )


def check_columns(
    workspace: Workspace, snapshot: Entry, *, version: Resolved, artifact: Artifact, n_columns: int
) -> None:
    """Refuse a dataset whose columns differ from the columns of a release.

    Raises
    ------
    InvalidInput
        When the numbers of columns, the declared names or the schemas differ.
    """
    released = Columns(
        table=str(version),
        n_features=n_columns,
        names=artifact.manifest.get("feature_names"),
        encoder=artifact.manifest.get("encoder"),
    )
    found = Columns.of(workspace.catalog.open(snapshot))
    check_same_columns(found, released, rule="evaluate it on a dataset with the same columns and --table-schema")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluatedSubspace:
    """A subspace with its version."""

    version: Resolved
    subspace: PrivateSubspace

    @classmethod
    def of(cls, workspace: Workspace, reference: str) -> "EvaluatedSubspace":
        """Load a subspace by any reference.

        Raises
        ------
        NotFound, Invalid
            When the reference does not exist, or is not a subspace.
        InvalidInput
            When the manifest states no clip norm, so that the rows of the release cannot be reconstructed.
        """
        version = workspace.registry.resolve(reference)
        subspace = workspace.registry.load(f"{version.name}@sha256:{version.digest}", PrivateSubspace)
        if subspace.manifest.get("clip_norm") is None:
            raise InvalidInput(
                f"{version} states no clip_norm, so its records cannot be reconstructed; evaluate another release."
            )
        return cls(version=version, subspace=subspace)

    @property
    def is_private(self) -> bool:
        """True if the subspace has a privacy guarantee."""
        return self.subspace.is_private

    @property
    def mechanism(self) -> CapturedShare:
        """Mechanism that estimates the share captured by the components, around the mean of the subspace."""
        return CapturedShare(components=self.subspace.components, mean=self.subspace.mean)

    @property
    def clip_norm(self) -> float:
        """The clip norm of the release."""
        return float(self.subspace.manifest["clip_norm"])

    def check_columns(self, workspace: Workspace, snapshot: Entry) -> None:
        """Refuse a dataset whose columns differ from the columns of the subspace.

        Raises
        ------
        InvalidInput
            When the numbers of columns, the declared names or the schemas differ.
        """
        check_columns(
            workspace, snapshot, version=self.version, artifact=self.subspace, n_columns=self.subspace.n_features
        )

    def source(self, rows: BlockSource) -> BlockSource:
        """Return rows in the form that the release used, scaled to the clip norm if its row policy requires it."""
        policy = self.subspace.manifest.get("plan", {}).get("row_policy", "clip")
        return rows_by_policy(rows, policy=policy, clip_norm=self.clip_norm)


def build_audited(name: str) -> Mechanism[Estimate]:
    """Build a mechanism for the audit that evaluates the first axis."""
    mechanism: Mechanism[Estimate] = SUBSPACE_MECHANISMS[name](components=np.eye(2)[:1])
    return mechanism


def audited_problem(relation: Relation) -> SubspaceTerms:
    """Return a problem with two columns."""
    return SubspaceTerms(n_features=2, clip_norm=1.0, n_components=1, centred=False, relation=relation)


def neighbours_of(_name: str, problem: SubspaceTerms) -> tuple[Neighbours, ...]:
    """Return pairs of datasets that differ in one record, along the first axis or orthogonal to it."""
    return worst_neighbours(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


def along_first(_pair: Neighbours, problem: SubspaceTerms) -> Callable[[Estimate], float]:
    """Return the statistic of the audit: the sum along the first axis; for replace_one, minus the orthogonal sum."""
    off = 1.0 if problem.relation == "replace_one" else 0.0
    return lambda result: float(result.sums[0] - off * result.sums[2])


class SubspaceEvaluationFamily(EvaluationFamily[SubspaceEvaluationRequest, EvaluatedSubspace]):
    """Release family whose artifacts are private estimates of the variance that subspaces capture."""

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
        """Load the evaluated subspace."""
        return EvaluatedSubspace.of(Workspace.read_only(), request.artifact)

    def diagnosis(
        self,
        request: SubspaceEvaluationRequest,
        evaluated: EvaluatedSubspace,
        workspace: Workspace,
        snapshot: Entry,
    ) -> tuple[BlockSource, Diagnosis]:
        """Return the rows, and a function that compares the subspace with the best subspace of these rows."""
        evaluated.check_columns(workspace, snapshot)
        subspace, rows = evaluated.subspace, evaluated.source(workspace.catalog.open(snapshot))
        problem = Problem(
            n_features=subspace.n_features,
            clip_norm=evaluated.clip_norm,
            center="none" if subspace.mean is None else "private",
        )

        def compute(new_curator: Callable[[], DisclosingCurator]) -> dict[str, Any]:
            found = diagnose(new_curator(), problem, subspace.components, mean=subspace.mean)
            per_record = found["reconstruction_error"] / max(rows.n_records, 1)
            return {**found, "reconstruction_error_per_record": per_record}

        return rows, compute

    def problem(self, request: SubspaceEvaluationRequest, snapshot: Entry, *, relation: Relation) -> SubspaceTerms:
        """Return the public facts of an evaluation on a snapshot with the same columns."""
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
        """Return the rows in the form that the evaluated release used."""
        return self.evaluated(planned.request).source(rows)

    def facts(self, planned: PlannedRelease[SubspaceEvaluationRequest]) -> Mapping[str, Any]:
        """Return the facts of a dry run, with the std of each noisy sum in squared data units."""
        mechanism, problem = planned.mechanism, planned.plan.problem
        assert isinstance(mechanism, CapturedShare)
        return {
            "evaluated": planned.request.artifact,
            "n_components": problem.n_components,
            "clip_norm": problem.clip_norm,
            "noise_std": mechanism.noise_std(planned.plan),
        }


SUBSPACE_EVALUATION = SubspaceEvaluationFamily()
