"""Opening of the workspace, with a remote ledger if ``DPCA_LEDGER_URL`` is set, else with the local ledger.

The code of remote ledgers is loaded only if it is needed.
"""

from typing import TYPE_CHECKING

from flows.settings import cluster_settings
from storage.workspace import Workspace

if TYPE_CHECKING:
    from flows.remote_ledger.remote_workspace import RemoteWorkspace

type ReleaseWorkspace = Workspace | RemoteWorkspace
"""Workspace of a release; both kinds have the same operations."""


def open_workspace() -> ReleaseWorkspace:
    """Open the workspace for releases, with the ledger of ``DPCA_LEDGER_URL`` if it is set.

    Raises
    ------
    Unavailable
        When the remote ledger does not answer; for a local ledger, see `storage.workspace.Workspace.open`.
    Refused
        When the remote ledger refuses this process; for a local ledger, see `storage.workspace.Workspace.open`.
    """
    if cluster_settings().ledger_url is None:
        return Workspace.open()
    from flows.remote_ledger.remote_workspace import open_remote

    return open_remote()


def read_workspace() -> ReleaseWorkspace:
    """Open the workspace of `open_workspace` for reading; see `storage.workspace.Workspace.read_only`."""
    if cluster_settings().ledger_url is None:
        return Workspace.read_only()
    from flows.remote_ledger.remote_workspace import read_remote

    return read_remote()
