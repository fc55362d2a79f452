"""The Dask cluster of a run, by one setting: local processes, a scheduler's address, a launcher, or none at all.

Dask is loaded where a run has a cluster. `flows.clusters.dask_clusters` starts and reaches it.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flows.settings import Settings

if TYPE_CHECKING:
    from distributed import Client

NO_CLUSTER = "none"


def open_cluster(settings: Settings, *, scratch: Path) -> AbstractContextManager[str]:
    """Yield the address of a running scheduler, or ``none``.

    A local cluster keeps nothing on disk: workers never spill, do not profile, and have no dashboard. All of its
    processes speak TLS and turn away whoever lacks the certificate of this run, so no other user of this machine
    reaches them. Any other cluster is refused when traffic would leave the machine in clear text.

    Raises
    ------
    Unavailable
        When none could be started.
    """
    if settings.cluster == NO_CLUSTER:
        return nullcontext(NO_CLUSTER)
    from flows.clusters.dask_clusters import open_scheduler

    return open_scheduler(settings, scratch=scratch)


def connect(address: str, settings: Settings | None = None) -> AbstractContextManager["Client | None"]:
    """Yield a client of a running scheduler; None when this process computes alone.

    Raises
    ------
    Unavailable
        When it cannot be reached, has no worker, or was lost while work was under way.
    Refused
        When its workers may spill private rows to a disk that nobody declared encrypted.
    """
    if address == NO_CLUSTER:
        return nullcontext()
    from flows.clusters.dask_clusters import connect_client

    return connect_client(address, settings)


def check_address(settings: Settings) -> None:
    """Check where rows would go, before anything is charged for sending them there.

    Raises
    ------
    InvalidInput
        When the setting is no address and no launcher, its extra is not installed, or a certificate is missing.
    Refused
        When rows would travel in clear text.
    """
    if settings.cluster != NO_CLUSTER:
        from flows.clusters.dask_clusters import check_scheduler

        check_scheduler(settings)


def reach_cluster(settings: Settings) -> None:
    """Check that a cluster which runs already can be used, before anything is charged; others are started by a run.

    Raises
    ------
    Unavailable, Refused
        As `connect`.
    """
    if settings.cluster != NO_CLUSTER:
        from flows.clusters.dask_clusters import reach_scheduler

        reach_scheduler(settings)
