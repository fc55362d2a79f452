"""Refit: another number of components of a release, from what its artifact kept. No row is read, nothing is spent."""

from typing import Any

from flows.families.restated_subspace import restate_subspace
from flows.releases.publish import digest_of, release_facts
from storage.artifacts.files import write_artifact
from storage.artifacts.subspace import PrivateSubspace
from storage.registry.pointers import Pointer
from storage.registry.reader import Registry
from storage.registry.references import check_name
from storage.workspace import Workspace


def refit_release(reference: str, *, components: int | str, publish: str, refine: str | None = None) -> dict[str, Any]:
    """Publish a subspace of ``components`` directions of a published release under another name.

    Parameters
    ----------
    reference : str
        A published subspace; its digest becomes the new one's parent.
    components : int or "auto"
        At most the number of directions that the release kept.
    refine : str, optional
        How to refine them; as the release was refined by default.
    publish : str
        A release has one artifact under each name, so this is a name of its own for this number of components.

    Returns
    -------
    dict
        The public facts of what was published; ``reused`` when this name had it before.
    """
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
