"""Fixtures: small Dask clusters of processes for the tests that need one."""

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from dpca_tasks import errors
from dpca_tasks.sums import cluster_sum


@pytest.fixture
def client(two_workers):
    """Return a client of a cluster with two worker processes.

    Workers killed by an earlier test are replaced first, so that no worker joins during a test.
    """
    two_workers.wait_for_workers(2, timeout=60)
    return two_workers


@pytest.fixture(scope="package")
def two_workers():
    """Yield a client of a cluster of two worker processes, closed after the last test of this folder."""
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            host="127.0.0.1",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def alone(monkeypatch):
    """Yield a client of a cluster with one worker process, which is restarted whenever it is killed."""
    monkeypatch.setattr(cluster_sum, "HEARTBEAT", 0.2)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            host="127.0.0.1",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


FOLDER = str(Path(inspect.getfile(errors)).parent)


def concrete(base):
    """Return the subclasses of ``base`` in dpca_tasks that are public and not abstract."""
    for module in pkgutil.walk_packages([FOLDER], "dpca_tasks."):
        importlib.import_module(module.name)
    found, left = [], [base]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        # for a dataclass with slots, Python creates a second class; the first one is skipped
        stands = getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
        if stands and kind.__module__.startswith("dpca_tasks.") and not inspect.isabstract(kind):
            found.append(kind)
    # dict.fromkeys removes duplicates of classes with several bases
    return [kind for kind in dict.fromkeys(found) if not kind.__name__.startswith("_")]
