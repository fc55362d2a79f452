"""One small Dask cluster of processes for the tests that need a real one."""

import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="session")
def client():
    with (
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
