"""Clusters that are started for one run and end with it: on Kubernetes, behind a Dask gateway, on Slurm.

How each looks (image, namespace, queue, memory, address of the gateway) is the business of its library's own Dask
configuration; here stand only the rules of this project: workers never spill, and rows travel encrypted. The libraries
are extras, imported at use.
"""

import importlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dask
from distributed import Client

from dpca_tasks.errors import InvalidInput, Refused
from flows.clusters.certificates import cluster_security, is_configured
from flows.settings import Settings

WORKER_SETTINGS: Mapping[str, Any] = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.deploy.lost-worker-timeout": "24 hours",  # a killed worker is restarted, not given up while it starts
    "distributed.admin.large-graph-warning-threshold": "1 GiB",
}
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 26)}
"""Memory of a block that glibc keeps for the next one: fresh pages cost as much as a third of a sum of dense rows."""
LOCAL_SETTINGS = {
    **WORKER_SETTINGS,
    **{f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in ALLOCATOR.items()},
    **{f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker")},  # HTTP asks nobody for a certificate
}
"""Settings of workers that this process starts."""
WORKER_ENVIRONMENT = ALLOCATOR | {
    "DASK_" + name.upper().replace(".", "__").replace("-", "_"): str(value) for name, value in WORKER_SETTINGS.items()
}
"""The same, as variables of processes that are started elsewhere."""

GATEWAY = "gateway:"
"""What the address of a gateway's cluster begins with; its name follows."""

_MODULES = {"kubernetes": "dask_kubernetes.operator", "gateway": "dask_gateway", "slurm": "dask_jobqueue"}


@contextmanager
def _kubernetes(settings: Settings) -> Iterator[str]:
    """Start a cluster of the dask-kubernetes operator. Its pods speak tcp."""
    standing = dask.config.get("kubernetes.env", None) or {}
    ours = [{"name": name, "value": value} for name, value in WORKER_ENVIRONMENT.items()]
    listed = standing if isinstance(standing, list) else [{"name": key, "value": standing[key]} for key in standing]
    with library("kubernetes").KubeCluster(n_workers=settings.workers, env=[*listed, *ours]) as cluster:
        yield cluster.scheduler_address


@contextmanager
def _gateway(settings: Settings) -> Iterator[str]:
    """Start a cluster behind a Dask gateway, which makes its certificates. Its workers' settings are the server's."""
    with library("gateway").Gateway() as gateway, gateway.new_cluster(shutdown_on_close=True) as cluster:
        cluster.scale(settings.workers)
        yield f"{GATEWAY}{cluster.name}"


@contextmanager
def _slurm(settings: Settings) -> Iterator[str]:
    """Start a scheduler in this process, whose workers are Slurm jobs."""
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
            f"DPCA_CLUSTER={kind!r} would send rows in clear text; {secure}, or set DPCA_ALLOW_PLAINTEXT=true on a "
            "network that you trust."
        )


@contextmanager
def gateway_client(address: str) -> Iterator[Client]:
    """Yield a client of a gateway's cluster, to be closed by the caller; the cluster goes on."""
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
