"""Operations on published releases that charge nothing.

`diagnose` computes exact diagnostics for the curator, without noise. `refit_release` publishes another number of
components, and reads no row.
"""

from typing import Any

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.home import WORKERS, home
from dpca.registry.pointers import Pointer, check_name
from dpca.registry.reader import Registry
from dpca_tasks.accounting.events import non_private
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.families.base import family_of
from flows.families.evaluation import EvaluationFamily
from flows.releases.running import summing
from flows.releases.stages import digest_of, release_facts
from flows.requests import EvaluationRequest
from flows.settings import cluster_settings
from storage.workspace import Workspace

NOTICE = (
    "computed without noise: these numbers are NOT private. They are only for the curator "
    "and must not be published; --release charges for an estimate that may be published."
)


def diagnose(request: EvaluationRequest, *, workers: int | None = None) -> dict[str, Any]:
    """Compute the quality of a release on the newest snapshot of a dataset, without noise.

    Nothing is charged and no result is stored: no artifact, ledger, log or Prefect run contains it. The returned values
    must stay inside the trust boundary.

    Parameters
    ----------
    request : EvaluationRequest
        Names the release, by any reference, and a dataset with the same columns. Its epsilon and delta are not used.
    workers : int, optional
    """
    settings, workspace, family = cluster_settings(workers), Workspace.read_only(), family_of(request)
    check_address(settings)
    assert isinstance(family, EvaluationFamily)
    evaluated, snapshot = family.evaluated(request), workspace.catalog.current(request.dataset)
    rows, compute = family.diagnosis(request, evaluated, workspace, snapshot)
    with open_cluster(settings, scratch=home() / WORKERS) as address, connect(address) as client:

        def new_curator() -> DisclosingCurator:
            reservation = InMemoryReservation(event=non_private())
            return DisclosingCurator(
                rows, reservation, i_know_this_is_not_private=True, client=client, progress=summing()
            )

        found = compute(new_curator)
    about = {"evaluated": str(evaluated.version), "dataset": request.dataset, "snapshot": snapshot.snapshot}
    return {"private": False, "notice": NOTICE, **about, **found}


def refit_release(reference: str, *, components: int | str, publish: str, refine: str | None = None) -> dict[str, Any]:
    """Publish a subspace of ``components`` directions of a published release under another name.

    Parameters
    ----------
    reference : str
        A published subspace. Its digest becomes the parent of the new artifact.
    components : int or "auto"
        At most the number of directions that the release kept.
    refine : str, optional
        How to refine the components. By default they are refined as in the release.
    publish : str
        The name to publish under. A release has one artifact under each name, so every number of components needs a
        separate name.

    Returns
    -------
    dict
        The public facts of the published version, with ``reused`` if the name already had this version.
    """
    from flows.families.restated_subspace import restate_subspace

    check_name(publish)
    registry = Registry.open()
    resolved, subspace = registry.resolve(reference), registry.load(reference, PrivateSubspace)
    made = restate_subspace(subspace, n_components=components, refine=refine, parent=resolved.digest)
    workspace = Workspace.open()
    digest = write_artifact(made, home=workspace.home, place=workspace.store)
    release_id = str(made.manifest["release"])
    before = Pointer.read(registry.place, publish).versions if publish in registry.names() else {}
    artifact_digest = digest_of(workspace.ledger, release_id)
    number = workspace.publish(release_id, name=publish, artifact_digest=artifact_digest, made=digest)
    return release_facts(workspace, f"{publish}@{number}", reused=number in before)
