"""Evaluate a release: the curator's own diagnostics, without noise, and a private estimate, which is charged."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.accounting.events import non_private
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.evaluation.subspace_diagnostics import diagnose
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import BlockSource
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.families.completion_evaluation import EvaluatedItems
from flows.families.evaluated_subspace import EvaluatedSubspace
from flows.options import DryRun, Workers, form_field, with_options
from flows.releases.partitions import summing
from flows.releases.stages import Caller, release_in_flow, run_release
from flows.requests.base import NO_FORM_ASKS
from flows.requests.evaluation import CompletionEvaluationRequest, SubspaceEvaluationRequest
from flows.settings import Settings, cluster_settings
from storage.home import WORKERS, home
from storage.workspace import Workspace

NOTICE = (
    "computed without noise: these numbers are NOT private. They are for the curator alone and must not be published; "
    "--release buys an estimate that may be."
)


def diagnose_subspace(artifact: str, dataset: str, *, workers: int | None = None) -> dict[str, Any]:
    """Compare a subspace with the best one of the newest snapshot of a dataset, without noise.

    Nothing is charged, and nothing of it is stored: no artifact, ledger, log or Prefect run sees it. What is returned
    belongs inside the trust boundary.

    Parameters
    ----------
    artifact : str
        Any reference to a subspace.
    dataset : str
        Of the same columns.
    workers : int, optional
    """
    settings, workspace = cluster_settings(workers), Workspace.read_only()
    check_address(settings)
    evaluated = EvaluatedSubspace.of(workspace, artifact)
    snapshot = workspace.catalog.current(dataset)
    evaluated.check_columns(workspace, snapshot)
    subspace, rows = evaluated.subspace, evaluated.source(workspace.catalog.open(snapshot))
    problem = Problem(
        n_features=subspace.n_features,
        clip_norm=evaluated.clip_norm,
        center="none" if subspace.mean is None else "private",
    )
    with _disclosing(settings, rows) as curator:
        found = diagnose(curator, problem, subspace.components, mean=subspace.mean)
    about = {"evaluated": str(evaluated.version), "dataset": dataset, "snapshot": snapshot.snapshot}
    error = {"reconstruction_error_per_record": found["reconstruction_error"] / max(rows.n_records, 1)}
    return {"private": False, "notice": NOTICE, **about, **found, **error}


def diagnose_completion(
    artifact: str,
    dataset: str,
    *,
    count: int,
    workers: int | None = None,
) -> dict[str, Any]:
    """Compare what item embeddings predict with what users of the newest snapshot of a dataset hide, without noise.

    Parameters and limits are those of `diagnose_subspace`; ``count`` is the k of Recall@k and NDCG@k.
    """
    settings, workspace = cluster_settings(workers), Workspace.read_only()
    check_address(settings)
    evaluated = EvaluatedItems.of(workspace, artifact)
    snapshot = workspace.catalog.current(dataset)
    problem = evaluated.terms(workspace, snapshot, count=count)
    with _disclosing(settings, workspace.catalog.open(snapshot)) as curator:
        found = evaluated.mechanism.diagnose(curator, problem)
    about = {"evaluated": str(evaluated.version), "dataset": dataset, "snapshot": snapshot.snapshot}
    return {"private": False, "notice": NOTICE, **about, "count": problem.count, **found}


def run_subspace_evaluation(
    request: SubspaceEvaluationRequest,
    *,
    workers: int | None = None,
    direct: bool = False,
    caller: Caller | None = None,
) -> dict[str, Any]:
    """Run a private evaluation from this process: as a Prefect flow, or directly."""
    return run_release(request, evaluate_subspace, workers=workers, direct=direct, caller=caller)


@flow(name="evaluate-subspace", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(SubspaceEvaluationRequest, annotation=form_field, without=NO_FORM_ASKS)
def evaluate_subspace(
    *, dry_run: DryRun = False, workers: Workers = None, **request: Any
) -> dict[str, Any] | State[Any]:
    """Release a private estimate of the variance that a subspace holds, as a new version of a name.

    `flows.requests.evaluation.SubspaceEvaluationRequest` declares the parameters beside dry_run and workers.
    """
    return release_in_flow(SubspaceEvaluationRequest, request, workers=workers, dry_run=dry_run)


def run_completion_evaluation(
    request: CompletionEvaluationRequest,
    *,
    workers: int | None = None,
    direct: bool = False,
    caller: Caller | None = None,
) -> dict[str, Any]:
    """Run a private evaluation from this process: as a Prefect flow, or directly."""
    return run_release(request, evaluate_completion, workers=workers, direct=direct, caller=caller)


@flow(name="evaluate-completion", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(CompletionEvaluationRequest, annotation=form_field, without=NO_FORM_ASKS)
def evaluate_completion(
    *, dry_run: DryRun = False, workers: Workers = None, **request: Any
) -> dict[str, Any] | State[Any]:
    """Release a private estimate of how well item embeddings predict, as a new version of a name.

    `flows.requests.evaluation.CompletionEvaluationRequest` declares the parameters beside dry_run and workers.
    """
    return release_in_flow(CompletionEvaluationRequest, request, workers=workers, dry_run=dry_run)


@contextmanager
def _disclosing(settings: Settings, rows: BlockSource) -> Iterator[DisclosingCurator]:
    """Yield a curator that answers without noise, of no ledger: what it answers stays with the curator."""
    with open_cluster(settings, scratch=home() / WORKERS) as address, connect(address) as client:
        reservation = InMemoryReservation(event=non_private())
        yield DisclosingCurator(rows, reservation, i_know_this_is_not_private=True, client=client, progress=summing())
