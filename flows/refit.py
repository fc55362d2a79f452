"""Refit: another number of components of a release, from what its artifact kept. No row is read, nothing is spent."""

from typing import Any

from flows.releases.publish import released_digest, report_release
from storage.artifacts.files import write_artifact
from storage.artifacts.subspace import PrivateSubspace
from storage.home import home, store
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, rebuild_pointers
from storage.registry.reader import Registry
from storage.registry.references import check_name


def refit_release(reference: str, *, components: int, publish: str) -> dict[str, Any]:
    """Publish a subspace of ``components`` directions of a published release under another name.

    Parameters
    ----------
    reference : str
        A published subspace; its digest becomes the new one's parent.
    components : int
        At most the number of directions that the release kept.
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
    made = subspace.refit(components, parent=resolved.digest)
    digest = write_artifact(made, home=home(), place=store())
    release_id = str(made.manifest["release"])
    ledger = Ledger.open()  # which makes the pointers say what its rows say
    before = {row.version for row in registry.list() if row.name == publish}
    number = ledger.commit(
        release_id,
        artifact_digest=released_digest(release_id),
        record=lambda connection: add_version(connection, name=publish, digest=digest, release_id=release_id),
    )
    with ledger.transaction() as connection:
        rebuild_pointers(connection, store(), name=publish)
    return report_release(f"{publish}@{number}", reused=number in before)
