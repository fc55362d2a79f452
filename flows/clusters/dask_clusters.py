"""Dask clusters that are local, started by a launcher, or running already; see `flows.clusters.connecting`.

The properties of a launched cluster (image, namespace, queue, memory, address of the gateway) are set in the Dask
configuration of its library. This module adds only the rules of this project: workers never spill, and rows travel
encrypted. The libraries are extras and are imported at use.
"""

import atexit
import gc
import importlib
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError
from distributed.security import Security

from dpca.backends.atomic_files import make_folder
from dpca.errors import Unavailable
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.threads import is_loopback
from flows.clusters.certificates import cluster_security, is_configured, temporary_security
from flows.reports.activity import begin_step
from flows.reports.terminal import STDERR
from flows.settings import LOCAL, Settings, cluster_settings

WORKER_SETTINGS: Mapping[str, Any] = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.deploy.lost-worker-timeout": "24 hours",  # how long Dask waits for a killed worker to restart
    "distributed.admin.large-graph-warning-threshold": "1 GiB",
}
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 26)}
"""Environment variables by which glibc reuses freed memory instead of returning it to the operating system.

Without this reuse, getting memory for each block takes a third as long as summing a block of dense rows.
"""
LOCAL_SETTINGS = {
    **WORKER_SETTINGS,
    **{f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in ALLOCATOR.items()},
    **{f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker")},  # these routes have no TLS
}
"""Dask settings of workers that this process starts."""
WORKER_ENVIRONMENT = ALLOCATOR | {
    "DASK_" + name.upper().replace(".", "__").replace("-", "_"): str(value) for name, value in WORKER_SETTINGS.items()
}
"""The settings of workers and allocator as environment variables, for workers that a launcher starts."""

GATEWAY = "gateway:"
"""Prefix of the address of a gateway's cluster, before the cluster's name."""

_MODULES = {"kubernetes": "dask_kubernetes.operator", "gateway": "dask_gateway", "slurm": "dask_jobqueue"}


@contextmanager
def _kubernetes(settings: Settings) -> Iterator[str]:
    """Start a cluster of the dask-kubernetes operator. Its pods use TCP without TLS."""
    standing = dask.config.get("kubernetes.env", None) or {}
    ours = [{"name": name, "value": value} for name, value in WORKER_ENVIRONMENT.items()]
    listed = standing if isinstance(standing, list) else [{"name": key, "value": standing[key]} for key in standing]
    with library("kubernetes").KubeCluster(n_workers=settings.workers, env=[*listed, *ours]) as cluster:
        yield cluster.scheduler_address


@contextmanager
def _gateway(settings: Settings) -> Iterator[str]:
    """Start a cluster behind a Dask gateway, which issues the certificates and configures the workers."""
    with library("gateway").Gateway() as gateway, gateway.new_cluster(shutdown_on_close=True) as cluster:
        cluster.scale(settings.workers)
        yield f"{GATEWAY}{cluster.name}"


@contextmanager
def _slurm(settings: Settings) -> Iterator[str]:
    """Start a scheduler in this process, with Slurm jobs as workers."""
    encrypted = is_configured(settings)
    standing = dask.config.get("jobqueue.slurm.job-script-prologue", None) or []
    ours = [f"export {name}={shlex.quote(value)}" for name, value in WORKER_ENVIRONMENT.items()]
    with library("slurm").SLURMCluster(
        n_workers=settings.workers,
        protocol="tls://" if encrypted else "tcp://",
        security=cluster_security(settings) if encrypted else None,
        job_script_prologue=[*standing, *ours],
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
    ) as cluster:
        yield cluster.scheduler_address


LAUNCHERS: Mapping[str, Callable[[Settings], AbstractContextManager[str]]] = {
    "kubernetes": _kubernetes,
    "gateway": _gateway,
    "slurm": _slurm,
}


def check_launcher(settings: Settings) -> None:
    """Check that a cluster can be started and will not carry rows in clear text; nothing is started.

    Raises
    ------
    InvalidInput
        When the extra is not installed, or a certificate is missing.
    Refused
        When rows would travel in clear text.
    """
    kind = settings.cluster
    library(kind)
    if kind == "slurm" and is_configured(settings):
        cluster_security(settings)
    elif kind != "gateway" and not settings.allow_plaintext:
        secure = (
            "run a scheduler and workers under TLS and give its tls:// address"
            if kind == "kubernetes"
            else "set DPCA_TLS_CA, DPCA_TLS_CERT and DPCA_TLS_KEY to files that the workers' nodes share"
        )
        raise Refused(
            f"DPCA_CLUSTER={kind!r} would send rows unencrypted; {secure}, or set "
            "DPCA_ALLOW_PLAINTEXT=true on a trusted network."
        )


@contextmanager
def gateway_client(address: str) -> Iterator[Client]:
    """Yield a client of a gateway's cluster. The caller closes the client; the cluster continues to run."""
    with library("gateway").Gateway() as gateway, gateway.connect(address.removeprefix(GATEWAY)) as cluster:
        yield cluster.get_client(set_as_default=False)


def library(kind: str) -> Any:
    """Import the library of a kind of cluster.

    Raises
    ------
    InvalidInput
        When its extra is not installed.
    """
    try:
        return importlib.import_module(_MODULES[kind])
    except ImportError:
        raise InvalidInput(
            f"DPCA_CLUSTER={kind!r} needs the extra `{kind}`; install it: pip install 'dpca-pipeline[{kind}]'."
        ) from None


WAIT_FOR_WORKERS = 120.0  # seconds
_LOST = (CancelledError, CommClosedError, KilledWorker, NoValidWorkerError)

_started_here: dict[str, Security] = {}
"""Certificates of the local clusters that this process started, by address; no other process has them."""


_dashboards: set[str] = set()
"""Links of the dashboards that this process has shown."""


@contextmanager
def open_scheduler(settings: Settings, *, scratch: Path) -> Iterator[str]:
    """Yield the address of a running scheduler, as `flows.clusters.connecting.open_cluster` does."""
    begin_step("starting the cluster")
    if settings.cluster != LOCAL:
        check_scheduler(settings)
        with _launched(settings) as address:
            yield address
        return
    begun = _begun.pop(settings) if settings in _begun else _Begun(settings, scratch)
    try:
        yield begun.address()
    finally:
        begun.close()


def begin_scheduler(settings: Settings, *, scratch: Path) -> None:
    """Start a local cluster in the background, as `flows.clusters.connecting.begin_cluster` does."""
    if settings not in _begun:
        _begun[settings] = begun = _Begun(settings, scratch)
        atexit.register(begun.close)


class _Begun:
    """A local cluster that starts in a thread."""

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self._stack, self._starter = ExitStack(), ThreadPoolExecutor(1)
        self._address = self._starter.submit(self._stack.enter_context, _local(settings, scratch))

    def address(self) -> str:
        """Return the address of the scheduler when its workers have started."""
        return self._address.result()

    def close(self) -> None:
        """Stop the cluster, after its start."""
        self._starter.shutdown()
        self._stack.close()


_begun: dict[Settings, _Begun] = {}
"""Local clusters whose start has begun, and which no run uses yet."""


@contextmanager
def _local(settings: Settings, scratch: Path) -> Iterator[str]:
    """Start worker processes on this machine."""
    make_folder(scratch)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    security = temporary_security()
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**LOCAL_SETTINGS, "temporary-directory": str(scratch)}))
        try:
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=settings.workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    protocol="tls://",
                    security=security,
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                    local_directory=str(scratch),
                    silence_logs=logging.CRITICAL,
                )
            )
        except (RuntimeError, OSError) as error:
            raise Unavailable(
                f"no workers could be started here ({_reason(error)}); check that memory and processes "
                "are available, and run the same request again."
            ) from None
        address = cluster.scheduler_address
        _started_here[address] = security
        try:
            yield address
        finally:
            del _started_here[address]


@contextmanager
def connect_client(address: str, settings: Settings | None = None) -> Iterator[Client]:
    """Yield a client of a running scheduler, as `flows.clusters.connecting.connect` does."""
    settings = settings or cluster_settings()
    with _client(address, settings) as client:
        try:
            _await_worker(client, address)
            _refuse_spilling(client, settings)
            if address not in _started_here:
                _show_dashboard(client)
            yield client
        except Exception as error:
            if client.status == "running" and not _is_loss(error):
                raise
            raise Unavailable(
                f"the Dask cluster at {address} was lost; start it again, and run the same request."
            ) from None


def check_scheduler(settings: Settings) -> None:
    """Check the cluster to which rows would be sent, as `flows.clusters.connecting.check_address` does."""
    if settings.cluster in LAUNCHERS:
        check_launcher(settings)
        return
    parts = urlsplit(settings.cluster)
    if parts.scheme not in ("tcp", "tls") or not parts.hostname:
        raise InvalidInput(
            f"DPCA_CLUSTER={settings.cluster!r} must be `local`, `none`, `tls://host:port`, `tcp://host:port`, "
            f"`{'`, `'.join(LAUNCHERS)}`; set it to one of these."
        )
    if parts.scheme == "tls":
        _security(settings.cluster, settings)
    elif not is_loopback(parts.hostname) and not settings.allow_plaintext:
        raise Refused(
            f"DPCA_CLUSTER={settings.cluster!r} would send rows unencrypted; use tls://, or set "
            "DPCA_ALLOW_PLAINTEXT=true on a trusted network."
        )


def reach_scheduler(settings: Settings) -> None:
    """Check that an already running cluster can be used."""
    if settings.cluster not in LAUNCHERS:
        with connect_client(settings.cluster, settings):
            pass


@contextmanager
def _launched(settings: Settings) -> Iterator[str]:
    """Yield the address of an already running cluster, or of a cluster that is started and stopped here."""
    if settings.cluster not in LAUNCHERS:
        yield settings.cluster
        return
    with ExitStack() as stack:
        try:
            address = stack.enter_context(LAUNCHERS[settings.cluster](settings))
        except Exception as error:  # noqa: BLE001 - any error of the library, the queue or the network
            raise Unavailable(
                f"no {settings.cluster} cluster could be started ({_reason(error)}); fix its Dask configuration, and "
                "run the same request again."
            ) from None
        yield address


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextmanager
def _client(address: str, settings: Settings) -> Iterator[Client]:
    with ExitStack() as stack:
        client: Client | None = None
        try:
            if address.startswith(GATEWAY):
                client = stack.enter_context(gateway_client(address))
            else:
                client = Client(address, security=_security(address, settings), set_as_default=False)
            stack.callback(_close, client)
        except Exception as error:
            if not isinstance(error, OSError) and not _is_loss(error):
                raise
        if client is None:
            gc.collect()  # closes the rejected client now; closed later, it could delay another client's start
            raise Unavailable(
                f"no Dask scheduler answers at {address}, or it rejects this certificate; start it, or "
                "fix DPCA_CLUSTER or DPCA_TLS_*, and run the same request again."
            )
        yield client


def _security(address: str, settings: Settings) -> Security | None:
    """Return the TLS configuration for a scheduler, from the local cluster or from the settings."""
    if address in _started_here:
        return _started_here[address]
    return cluster_security(settings) if address.startswith("tls://") else None


def _close(client: Client) -> None:
    """Close a client; ignore errors about a lost cluster, which do not change the computed result."""
    try:
        client.close()
    except Exception:  # noqa: BLE001 - while this task is set, a second `close` raises the same error
        client._handle_report_task = None
        with suppress(Exception):
            client.close()


def _is_loss(error: Exception) -> bool:
    """Return whether an error is a lost connection, which under TLS may be a ValueError of Tornado."""
    return isinstance(error, _LOST) or (isinstance(error, ValueError) and "IOStream" in str(error))


def _await_worker(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
    except TimeoutError:
        raise Unavailable(
            f"the Dask scheduler at {address} has no worker; start some and run the same request again."
        ) from None


def _refuse_spilling(client: Client, settings: Settings) -> None:
    if not settings.encrypted_scratch and any(client.run(_may_spill).values()):
        raise Refused(
            "workers of the cluster may spill rows to disk; start them with "
            "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False and ...__TARGET=False, "
            "or set DPCA_ENCRYPTED_SCRATCH=true when their scratch folder is encrypted."
        )


def _show_dashboard(client: Client) -> None:
    """Print the link of a cluster's dashboard once, to an interactive terminal only and never to a log."""
    try:
        link = client.dashboard_link
    except (KeyError, AttributeError):  # the cluster has no dashboard
        return
    if link and STDERR.is_terminal and link not in _dashboards:
        _dashboards.add(link)
        STDERR.print(f"progress of the cluster: {link}", markup=False)


def _may_spill() -> bool:
    keys = ("distributed.worker.memory.target", "distributed.worker.memory.spill")
    return any(dask.config.get(key) for key in keys)
