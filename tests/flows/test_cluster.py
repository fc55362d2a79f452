"""Where rows are allowed to go, and what workers are not allowed to do with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from dpca_tasks.errors import InvalidInput, Refused
from flows import cluster as subject
from flows.cluster import NO_CLUSTER, WORKER_SETTINGS, check_address, connect, open_cluster
from flows.settings import Settings, cluster_settings
from storage.errors import Unavailable


@pytest.fixture
def spilling() -> Iterator[str]:
    """The address of a cluster in this process whose workers may spill, as Dask's defaults have it."""
    with _in_process(n_workers=1) as cluster:
        yield cluster.scheduler_address


def _in_process(*, n_workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    )


def test_a_local_cluster_neither_spills_nor_profiles_nor_listens_outside(tmp_path: Path) -> None:
    def seen() -> dict[str, Any]:
        return {name: dask.config.get(name) for name in WORKER_SETTINGS}

    settings = Settings(cluster="local", workers=1)
    with open_cluster(settings, scratch=tmp_path / "scratch") as address:
        assert address.startswith("tcp://127.0.0.1:")
        with connect(address) as client:
            assert client is not None
            assert list(client.run(seen).values()) == [WORKER_SETTINGS]
            info = client.scheduler_info()
            assert all(worker.startswith("tcp://127.0.0.1:") for worker in info["workers"])
            assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.address) == "127.0.0.1"
    assert dask.config.get("distributed.worker.memory.spill") == 0.7
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file() and path.stat().st_size] == []


def test_no_cluster_is_this_process(tmp_path: Path) -> None:
    with open_cluster(Settings(cluster="none"), scratch=tmp_path / "scratch") as address:
        assert address == NO_CLUSTER
        with connect(address) as client:
            assert client is None
    assert not (tmp_path / "scratch").exists()


def test_an_existing_cluster_that_may_spill_is_refused_unless_its_scratch_is_encrypted(
    spilling: str, tmp_path: Path
) -> None:
    undeclared = Settings(cluster=spilling)
    with pytest.raises(Refused, match="may spill rows to disk"), open_cluster(undeclared, scratch=tmp_path):
        pass
    with open_cluster(Settings(cluster=spilling, encrypted_scratch=True), scratch=tmp_path) as address:
        assert address == spilling
    with (
        dask.config.set(WORKER_SETTINGS),
        open_cluster(undeclared, scratch=tmp_path) as address,
        connect(address) as client,
    ):
        assert isinstance(client, Client)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("somewhere", InvalidInput),
        ("http://127.0.0.1:8786", InvalidInput),
        ("tcp://", InvalidInput),
        ("tcp://192.0.2.1:8786", Refused),
        ("tcp://scheduler.example:8786", Refused),
    ],
)
def test_an_address_in_clear_text_or_of_another_kind_is_refused(address: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="DPCA_CLUSTER"):
        check_address(Settings(cluster=address))


@pytest.mark.parametrize(
    "settings",
    [
        Settings(cluster="local"),
        Settings(cluster="none"),
        Settings(cluster="tcp://127.0.0.1:8786"),
        Settings(cluster="tcp://localhost:8786"),
        Settings(cluster="tcp://[::1]:8786"),
        Settings(cluster="tls://scheduler.example:8786"),
        Settings(cluster="tcp://192.0.2.1:8786", allow_plaintext=True),
    ],
    ids=lambda settings: settings.cluster,
)
def test_loopback_tls_and_what_was_allowed_may_be_used(settings: Settings) -> None:
    check_address(settings)


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path) -> None:
    settings = Settings(cluster="tcp://127.0.0.1:1")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(Unavailable, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"),
        open_cluster(settings, scratch=tmp_path),
    ):
        pass


def test_a_scheduler_without_workers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "WAIT_FOR_WORKERS", 0.2)
    with (
        _in_process(n_workers=0) as cluster,
        pytest.raises(Unavailable, match="has no worker; start some"),
        connect(cluster.scheduler_address),
    ):
        pass


def test_settings_come_from_the_environment_and_a_number_of_workers_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_WORKERS", "3")
    assert (cluster_settings().workers, cluster_settings(5).workers) == (3, 5)
    assert cluster_settings().cluster == "none"
    with pytest.raises(InvalidInput, match="DPCA_WORKERS=0 is refused"):
        cluster_settings(0)
