"""Family of private estimates of how well item embeddings predict; each estimate charges four noisy sums over users."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.registry.pointers import Resolved
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import AuditSubject, Neighbours
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Estimate, Mechanism
from dpca_tasks.mechanisms.evaluation import COMPLETION_MECHANISMS
from dpca_tasks.mechanisms.evaluation.prediction_error import PredictionError, PredictionTerms
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.records.blocks import ArrayBlocks, BlockSource
from flows.families.base import PlannedRelease, check_ratings, one_row_a_user, records_facts
from flows.families.evaluation import Diagnosis, EvaluationFamily, check_columns, check_private
from flows.requests import CompletionEvaluationRequest
from storage.datasets.catalog import Entry
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluatedItems:
    """Item embeddings with their version."""

    version: Resolved
    embeddings: ItemEmbeddings

    @classmethod
    def of(cls, workspace: Workspace, reference: str) -> "EvaluatedItems":
        """Load item embeddings by any reference.

        Raises
        ------
        NotFound, Invalid
            When the reference does not exist, or is not a release of item embeddings.
        """
        version = workspace.registry.resolve(reference)
        found = workspace.registry.load(f"{version.name}@sha256:{version.digest}", ItemEmbeddings)
        return cls(version=version, embeddings=found)

    @property
    def is_private(self) -> bool:
        """True if the embeddings have a privacy guarantee."""
        return self.embeddings.is_private

    @property
    def mechanism(self) -> PredictionError:
        """Mechanism that estimates the prediction error of these embeddings."""
        found = self.embeddings
        step = dict(found.manifest["user_step"])
        return PredictionError(offsets=found.offsets, factors=found.factors, user_step=step)

    @property
    def baselines(self) -> dict[str, PredictionError]:
        """The same estimate for two simpler predictions: the released mean of each item, and one constant."""
        constant = {**self.embeddings.manifest["user_step"], "prior": None}
        offsets = self.embeddings.offsets
        return {
            "item_means": PredictionError(offsets=offsets, factors=None, user_step=constant),
            "global_mean": PredictionError(offsets=np.zeros_like(offsets), factors=None, user_step=constant),
        }

    def terms(
        self, workspace: Workspace, snapshot: Entry, *, count: int, relation: Relation = "add_remove"
    ) -> PredictionTerms:
        """Return the public facts of an evaluation on a snapshot.

        Raises
        ------
        InvalidInput
            When the dataset has other items, its records may have several rows, or its values may differ from the
            ratings that users gave. Also when ``count`` is below 1.
        """
        found = self.embeddings
        check_columns(workspace, snapshot, version=self.version, artifact=found, n_columns=found.n_items)
        if snapshot.rows_per_unit != 1:
            raise InvalidInput(
                f"a record of dataset {snapshot.name!r} may have several rows, but an evaluation needs "
                "one row for each user; ingest triplets with --columns row=USER,column=ITEM,value=RATING."
            )
        check_ratings(workspace.catalog.open(snapshot).manifest, found.low, found.high)
        if count < 1:
            raise InvalidInput(f"count={count} must be at least 1; recommend at least one item.")
        return PredictionTerms(
            relation=relation,
            **records_facts(snapshot),
            n_features=snapshot.n_features,
            low=found.low,
            high=found.high,
            count=min(count, found.n_items),
        )


def build_audited(name: str) -> Mechanism[Estimate]:
    """Build a mechanism for the audit that predicts the lowest possible ratings."""
    step = {"centre": 1.0, "prior": None}
    mechanism: Mechanism[Estimate] = COMPLETION_MECHANISMS[name](offsets=np.zeros(2), factors=None, user_step=step)
    return mechanism


def audited_problem(relation: Relation) -> PredictionTerms:
    """Return a problem with two items."""
    return PredictionTerms(n_features=2, low=1.0, high=5.0, count=2, relation=relation)


def neighbours_of(_name: str, problem: PredictionTerms) -> tuple[Neighbours, ...]:
    """Return a pair of datasets that differ in one user.

    The user rates both items above the range in one dataset, and is absent or has no ratings in the other.
    """
    mine, nothing = [[9.0, 9.0]], [[0.0, 0.0]]
    there = [] if problem.relation == "add_remove" else nothing

    def source(rows: list[list[float]]) -> ArrayBlocks:
        return ArrayBlocks(sparse.csr_array(np.array([[3.0, 2.0], *rows])), block_records=1)

    return (Neighbours(name="one user", left=source(mine), right=source(there)),)


def in_sum(_pair: Neighbours, _problem: PredictionTerms) -> Callable[[Estimate], float]:
    """Return the statistic of the audit: the total of the four sums, because the differing user raises each of them."""
    return lambda result: float(result.sums.sum())


class CompletionEvaluationFamily(EvaluationFamily[CompletionEvaluationRequest, EvaluatedItems]):
    """Release family whose artifacts are private estimates of how well item embeddings predict."""

    name = CompletionEvaluationRequest.family
    request = CompletionEvaluationRequest
    terms = PredictionTerms
    mechanisms = COMPLETION_MECHANISMS
    audit = AuditSubject(
        names=tuple(COMPLETION_MECHANISMS),
        build=build_audited,
        problem=audited_problem,
        neighbours=neighbours_of,
        published=in_sum,
    )

    def one_row_rule(self, request: CompletionEvaluationRequest) -> str | None:
        """Return the message that ratings need one row for each user."""
        return one_row_a_user(request)

    def evaluated(self, request: CompletionEvaluationRequest) -> EvaluatedItems:
        """Load the evaluated item embeddings."""
        return EvaluatedItems.of(Workspace.read_only(), request.artifact)

    def diagnosis(
        self,
        request: CompletionEvaluationRequest,
        evaluated: EvaluatedItems,
        workspace: Workspace,
        snapshot: Entry,
    ) -> tuple[BlockSource, Diagnosis]:
        """Return the rows, and a function that compares predictions with held-out ratings of the users."""
        problem = evaluated.terms(workspace, snapshot, count=request.count)

        def compute(new_curator: Callable[[], DisclosingCurator]) -> dict[str, Any]:
            found = evaluated.mechanism.diagnose(new_curator(), problem)
            baselines = {
                f"{name}_of_{words}": value
                for words, baseline in evaluated.baselines.items()
                for name, value in baseline.diagnose(new_curator(), problem).items()
                if name != "users"
            }
            return {"count": problem.count, **found, **baselines}

        return workspace.catalog.open(snapshot), compute

    def problem(self, request: CompletionEvaluationRequest, snapshot: Entry, *, relation: Relation) -> PredictionTerms:
        """Return the public facts of an evaluation on a snapshot with the same items."""
        evaluated = self.evaluated(request)
        terms = evaluated.terms(Workspace.read_only(), snapshot, count=request.count, relation=relation)
        check_private(evaluated)
        return terms

    def requested(self, request: CompletionEvaluationRequest) -> Sequence[Any]:
        """Return the digest of the evaluated release, and the length of the recommended lists."""
        return [*super().requested(request), request.count]

    def about(self, planned: PlannedRelease[CompletionEvaluationRequest]) -> Mapping[str, Any]:
        """Return the length of the recommended lists."""
        return {"count": planned.plan.problem.count}

    def facts(self, planned: PlannedRelease[CompletionEvaluationRequest]) -> Mapping[str, Any]:
        """Return the facts of a dry run, with the std of each noisy sum, in units of users."""
        mechanism, problem = planned.mechanism, planned.plan.problem
        assert isinstance(mechanism, PredictionError)
        noise = {"noise_std": mechanism.noise_std(planned.plan)}
        return {"evaluated": planned.request.artifact, "count": problem.count, **noise}


COMPLETION_EVALUATION = CompletionEvaluationFamily()
