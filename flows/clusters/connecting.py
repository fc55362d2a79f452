"""The Dask cluster of a run, by one setting: local processes, a scheduler's address, a launcher, or none at all."""

import gc
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError
from distributed.security import Security

from dpca_tasks.addresses import is_loopback
from dpca_tasks.errors import InvalidInput, Refused
from flows.clusters.certificates import cluster_security, temporary_security
from flows.clusters.launchers import GATEWAY, LAUNCHERS, LOCAL_SETTINGS, check_launcher, gateway_client
from flows.reports.activity import begin_step
from flows.reports.terminal import STDERR
from flows.settings import Settings, cluster_settings
from storage.backends.atomic_files import make_folder
from storage.errors import Unavailable

LOCAL, NO_CLUSTER = "local", "none"
WAIT_FOR_WORKERS = 120.0  # seconds
_LOST = (CancelledError, CommClosedError, KilledWorker, NoValidWorkerError)

_started_here: dict[str, Security] = {}
"""The certificates of the local clusters that this process started, by address; nobody else has them."""


_dashboards: set[str] = set()
"""The dashboards that this process has shown."""


@contextmanager
def open_cluster(settings: Settings, *, scratch: Path) -> Iterator[str]:
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
        yield NO_CLUSTER
        return
    begin_step("starting the cluster")
    if settings.cluster != LOCAL:
        check_address(settings)
        with _launched(settings) as address:
            yield address
        return
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
                f"no workers could be started here ({_reason(error)}); see whether memory and processes are left, and "
                "run the same request again."
            ) from None
        address = cluster.scheduler_address
        _started_here[address] = security
        try:
            yield address
        finally:
            del _started_here[address]


@contextmanager
def connect(address: str, settings: Settings | None = None) -> Iterator[Client | None]:
    """Yield a client of a running scheduler; None when this process computes alone.

    Raises
    ------
    Unavailable
        When it cannot be reached, has no worker, or was lost while work was under way.
    Refused
        When its workers may spill private rows to a disk that nobody declared encrypted.
    """
    if address == NO_CLUSTER:
        yield None
        return
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


def check_address(settings: Settings) -> None:
    """Check where rows would go, before anything is charged for sending them there.

    Raises
    ------
    InvalidInput
        When the setting is no address and no launcher, its extra is not installed, or a certificate is missing.
    Refused
        When rows would travel in clear text.
    """
    if settings.cluster in (LOCAL, NO_CLUSTER):
        return
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
            f"DPCA_CLUSTER={settings.cluster!r} would send rows in clear text; "
            "use tls://, or set DPCA_ALLOW_PLAINTEXT=true on a network that you trust."
        )


def reach_cluster(settings: Settings) -> None:
    """Check that a cluster which runs already can be used, before anything is charged; others are started by a run.

    Raises
    ------
    Unavailable, Refused
        As `connect`.
    """
    if settings.cluster not in (LOCAL, NO_CLUSTER, *LAUNCHERS):
        with connect(settings.cluster, settings):
            pass


@contextmanager
def _launched(settings: Settings) -> Iterator[str]:
    """Yield the address of a cluster that runs already, or of one that is started and stopped here."""
    if settings.cluster not in LAUNCHERS:
        yield settings.cluster
        return
    with ExitStack() as stack:
        try:
            address = stack.enter_context(LAUNCHERS[settings.cluster](settings))
        except Exception as error:  # noqa: BLE001 - whatever the library, the queue or the network says
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
            gc.collect()  # what was refused closes itself when it is found, and blocks if that is while another starts
            raise Unavailable(
                f"no Dask scheduler answers at {address}, or it does not take this certificate; start it, or fix "
                "DPCA_CLUSTER or DPCA_TLS_*, and run the same request again."
            )
        yield client


def _security(address: str, settings: Settings) -> Security | None:
    """Return what to show a scheduler: the certificate of a cluster started here, or the one that settings name."""
    if address in _started_here:
        return _started_here[address]
    return cluster_security(settings) if address.startswith("tls://") else None


def _close(client: Client) -> None:
    """Close a client; an error about a lost cluster changes nothing of what was computed."""
    try:
        client.close()
    except Exception:  # noqa: BLE001 - whatever its reader of messages died of, and would raise again each time
        client._handle_report_task = None
        with suppress(Exception):
            client.close()


def _is_loss(error: Exception) -> bool:
    """Return whether an error is a lost connection; under TLS, Tornado may call one that ends early a wrong value."""
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
    """Say once where a cluster shows its work, to whoever waits at this terminal, and to no log and no record."""
    try:
        link = client.dashboard_link
    except (KeyError, AttributeError):  # it has none
        return
    if link and STDERR.is_terminal and link not in _dashboards:
        _dashboards.add(link)
        STDERR.print(f"the cluster shows its work at {link}", markup=False)


def _may_spill() -> bool:
    keys = ("distributed.worker.memory.target", "distributed.worker.memory.spill")
    return any(dask.config.get(key) for key in keys)
