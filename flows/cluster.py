"""The Dask cluster of a run, by one setting: a local one of processes, any scheduler address, or none at all."""

import ipaddress
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed import Client, LocalCluster

from dpca_tasks.errors import InvalidInput, Refused
from flows.settings import Settings
from storage.errors import Unavailable

LOCAL, NO_CLUSTER = "local", "none"
WAIT_FOR_WORKERS = 120.0  # seconds
WORKER_SETTINGS = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.deploy.lost-worker-timeout": "24 hours",  # a killed worker is restarted, not given up while it starts
    "distributed.admin.large-graph-warning-threshold": "1 GiB",
}


@contextmanager
def open_cluster(settings: Settings, *, scratch: Path) -> Iterator[str]:
    """Yield the address of a running scheduler, or ``none``.

    A local cluster keeps nothing on disk: workers never spill, do not profile, and have no dashboard. An existing
    cluster is refused when traffic would leave the machine in clear text, or when its workers may spill private rows
    to a disk that nobody declared encrypted.
    """
    if settings.cluster == NO_CLUSTER:
        yield NO_CLUSTER
        return
    if settings.cluster != LOCAL:
        check_address(settings)
        with _client(settings.cluster) as client:
            _refuse_spilling(client, settings)
        yield settings.cluster
        return
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        dask.config.set(WORKER_SETTINGS),
        LocalCluster(
            n_workers=settings.workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            local_directory=str(scratch),
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):
        yield cluster.scheduler_address


@contextmanager
def connect(address: str) -> Iterator[Client | None]:
    """Yield a client of a running scheduler; None when this process computes alone."""
    if address == NO_CLUSTER:
        yield None
        return
    with _client(address) as client:
        yield client


def check_address(settings: Settings) -> None:
    """Check where rows would go, before anything is charged for sending them there.

    Raises
    ------
    InvalidInput
        When the setting is no address.
    Refused
        When rows would leave this machine in clear text.
    """
    if settings.cluster in (LOCAL, NO_CLUSTER):
        return
    parts = urlsplit(settings.cluster)
    if parts.scheme not in ("tcp", "tls") or not parts.hostname:
        raise InvalidInput(
            f"DPCA_CLUSTER={settings.cluster!r} must be `local`, `none`, `tls://host:port` or `tcp://host:port`."
        )
    if parts.scheme == "tcp" and not _is_loopback(parts.hostname) and not settings.allow_plaintext:
        raise Refused(
            f"DPCA_CLUSTER={settings.cluster!r} would send rows in clear text; "
            "use tls://, or set DPCA_ALLOW_PLAINTEXT=true on a network that you trust."
        )


def _client(address: str) -> Client:
    try:
        client = Client(address, set_as_default=False)
    except OSError:
        raise Unavailable(
            f"no Dask scheduler answers at {address}; start it or mend DPCA_CLUSTER, and run the same request again."
        ) from None
    try:
        client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
    except TimeoutError:
        client.close()
        raise Unavailable(
            f"the Dask scheduler at {address} has no worker; start some and run the same request again."
        ) from None
    return client


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_spilling(client: Client, settings: Settings) -> None:
    answers = client.run(_may_spill)
    if any(answers.values()) and not settings.encrypted_scratch:
        raise Refused(
            "workers of the cluster may spill rows to disk; start them with "
            "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False and ...__TARGET=False, "
            "or set DPCA_ENCRYPTED_SCRATCH=true when their scratch folder is encrypted."
        )


def _may_spill() -> bool:
    keys = ("distributed.worker.memory.target", "distributed.worker.memory.spill")
    return any(dask.config.get(key) for key in keys)
