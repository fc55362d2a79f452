"""The workspace that a release is made in: of this process, or with a remote ledger, loaded where one is set."""

from typing import TYPE_CHECKING

from flows.settings import cluster_settings
from storage.workspace import Workspace

if TYPE_CHECKING:
    from flows.remote_ledger.remote_workspace import RemoteWorkspace

type ReleaseWorkspace = Workspace | RemoteWorkspace
"""What a release is made in; both have the same operations."""


def open_workspace() -> ReleaseWorkspace:
    """Open the workspace to release in it: with the ledger of ``DPCA_LEDGER_URL``, or all of this process.

    Raises
    ------
    Unavailable
        When the remote ledger does not answer; or as `storage.workspace.Workspace.open`.
    Refused
        When it does not know this process; or as there.
    """
    if cluster_settings().ledger_url is None:
        return Workspace.open()
    from flows.remote_ledger.remote_workspace import open_remote

    return open_remote()


def read_workspace() -> ReleaseWorkspace:
    """Open the same to read it; see `open_workspace` and `storage.workspace.Workspace.read_only`."""
    if cluster_settings().ledger_url is None:
        return Workspace.read_only()
    from flows.remote_ledger.remote_workspace import read_remote

    return read_remote()
