"""The columns of a dataset on which a release is evaluated, compared with those of the release."""

from dpca_tasks.errors import InvalidInput
from storage.artifacts.base import Artifact
from storage.datasets.catalog import Entry
from storage.registry.pointers import Resolved
from storage.schemas.matching import meaning
from storage.workspace import Workspace


def check_columns(
    workspace: Workspace, snapshot: Entry, *, version: Resolved, artifact: Artifact, n_columns: int
) -> None:
    """Refuse a dataset of other columns than those of a release.

    Raises
    ------
    InvalidInput
        When their number differs, or the declared names or schemas do.
    """
    if snapshot.n_features != n_columns:
        raise InvalidInput(
            f"dataset {snapshot.name!r} has {snapshot.n_features} columns and {version} {n_columns}; "
            "evaluate it on a dataset of its own columns."
        )
    rows = workspace.catalog.open(snapshot)
    names, others = artifact.manifest.get("feature_names"), rows.feature_names()
    if names is not None and others is not None and list(names) != list(others):
        raise InvalidInput(
            f"the columns of dataset {snapshot.name!r} have other names than those of {version}; "
            "evaluate it on a dataset of its own columns."
        )
    if meaning(artifact.manifest.get("encoder")) != meaning(rows.encoder()):
        raise InvalidInput(
            f"the columns of dataset {snapshot.name!r} were encoded by another schema than those of {version}; "
            "evaluate it on a dataset of the same --table-schema."
        )
