"""Selection of the Dask cluster of a run.

One setting selects local processes, the address of a scheduler, a launcher, or no cluster. Dask is loaded only if a
run has a cluster. `flows.clusters.dask_clusters` starts the cluster and connects to it.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flows.settings import LOCAL, Settings
from storage.datasets.catalog import Entry

if TYPE_CHECKING:
    from distributed import Client

NO_CLUSTER = "none"
MOST_ALONE = 1e9
"""The most operations in a sum for which one process is as fast as a cluster, whose start takes about two seconds."""
_LEAST_EACH = 20.0  # a stored value counts as at least this many operations, because reading it takes time


def suffices_alone(entry: Entry, *, density: float | None) -> bool:
    """Return whether the declared facts of a snapshot imply that one process sums its rows without delay.

    The facts are the bounds on records and on rows of a record, the number of columns, and the density, which is None
    if it is not declared. If a bound is not declared, the result is False. It never depends on rows or their number.

    Guarantees
    ----------
    Released bits do not depend on the decision, because sums are exact.
    """
    if entry.records_at_most is None or entry.rows_per_unit is None:
        return False
    each = entry.n_features * (1.0 if density is None else density)
    return entry.records_at_most * entry.rows_per_unit * each * max(each, _LEAST_EACH) <= MOST_ALONE


def begin_cluster(settings: Settings, *, scratch: Path) -> None:
    """Start a requested local cluster in the background, so that its workers load while the release is planned.

    `open_cluster` with the same settings returns the address of this cluster. A cluster that is never opened is closed
    when the process ends.
    """
    if settings.names_cluster and settings.cluster == LOCAL:
        from flows.clusters.dask_clusters import begin_scheduler

        begin_scheduler(settings, scratch=scratch)


def open_cluster(settings: Settings, *, scratch: Path) -> AbstractContextManager[str]:
    """Yield the address of a running scheduler, or ``none``.

    A local cluster keeps nothing on disk: workers never spill, do not profile, and have no dashboard. All of its
    processes use TLS and reject connections without the certificate of this run, so no other user of this machine
    reaches them. Any other cluster is refused when traffic would leave the machine in clear text.

    Raises
    ------
    Unavailable
        When no cluster could be started.
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
        When the cluster cannot be reached, has no worker, or was lost during the work.
    Refused
        When its workers may spill private rows to a disk that is not declared as encrypted.
    """
    if address == NO_CLUSTER:
        return nullcontext()
    from flows.clusters.dask_clusters import connect_client

    return connect_client(address, settings)


def check_address(settings: Settings) -> None:
    """Check the cluster to which rows would be sent, before anything is charged.

    Raises
    ------
    InvalidInput
        When the setting is neither an address nor a launcher, its extra is not installed, or a certificate is missing.
    Refused
        When rows would travel in clear text.
    """
    if settings.cluster not in (NO_CLUSTER, LOCAL):
        from flows.clusters.dask_clusters import check_scheduler

        check_scheduler(settings)


def reach_cluster(settings: Settings) -> None:
    """Check that an already running cluster can be used, before anything is charged.

    Other clusters are started by the run and are not checked here.

    Raises
    ------
    Unavailable, Refused
        As in `connect`.
    """
    if settings.cluster not in (NO_CLUSTER, LOCAL):
        from flows.clusters.dask_clusters import reach_scheduler

        reach_scheduler(settings)
