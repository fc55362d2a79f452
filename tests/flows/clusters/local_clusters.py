"""Dask clusters in the test process, and settings that name a cluster."""

from typing import Any

from distributed import LocalCluster

from flows.settings import Settings
from tests.web_server import Files


def in_process(*, n_workers: int) -> LocalCluster:
    """Start a Dask cluster whose workers are threads of this process."""
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    )


def under_tls(address: str, files: Files, **others: Any) -> Settings:
    """Return settings that name a cluster, with the certificate that a client presents to it."""
    return Settings(cluster=address, tls_ca=files.ca, tls_cert=files.cert, tls_key=files.key, **others)
