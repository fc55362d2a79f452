"""Cluster security: to which clusters rows may be sent, and what their workers must not do."""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from dpca.errors import Unavailable
from dpca.home import WORKERS
from dpca_tasks.errors import InvalidInput, Refused, WorkerFailed
from dpca_tasks.sums.cluster_sum import await_workers, gather
from flows.clusters import dask_clusters as subject
from flows.clusters.certificates import cluster_security
from flows.clusters.connecting import NO_CLUSTER, begin_cluster, check_address, connect, open_cluster, suffices_alone
from flows.clusters.dask_clusters import ALLOCATOR, WORKER_SETTINGS
from flows.reports.terminal import STDERR
from flows.settings import Settings, cluster_settings
from storage.datasets.catalog import Entry
from storage.datasets.staging import scratch_folder
from tests.web_server import Files, issue


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


@pytest.fixture
def spilling() -> Iterator[str]:
    """Yield the address of a cluster in this process whose workers may spill to disk, as in Dask's defaults."""
    with in_process(n_workers=1) as cluster:
        yield cluster.scheduler_address


def test_a_local_cluster_neither_spills_nor_profiles_nor_listens_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALLOCATOR:  # allocator settings of an earlier cluster of this process would take precedence
        monkeypatch.delenv(name, raising=False)

    def seen() -> dict[str, Any]:
        settings = {name: dask.config.get(name) for name in WORKER_SETTINGS}
        return settings | {name: os.environ.get(name) for name in ALLOCATOR}

    settings = Settings(cluster="local", workers=1)
    with open_cluster(settings, scratch=tmp_path / "scratch") as address:
        assert address.startswith("tls://127.0.0.1:")
        with connect(address) as client:
            assert client is not None
            assert list(client.run(seen).values()) == [{**WORKER_SETTINGS, **ALLOCATOR}]
            info = client.scheduler_info()
            assert all(worker.startswith("tls://127.0.0.1:") for worker in info["workers"])
            assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.address) == "127.0.0.1"
    assert dask.config.get("distributed.worker.memory.spill") == 0.7
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file() and path.stat().st_size] == []


def test_workers_that_do_not_start_are_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(**_: Any) -> None:
        raise RuntimeError("Nanny failed\nto start.")

    monkeypatch.setattr(subject, "LocalCluster", failing)
    expected = r"^no workers could be started here \(RuntimeError: Nanny failed to start\.\); check"
    with (
        pytest.raises(Unavailable, match=expected),
        open_cluster(Settings(cluster="local", workers=1), scratch=tmp_path / "scratch"),
    ):
        pass


def test_an_ingest_does_not_touch_the_folders_of_workers(tmp_path: Path) -> None:
    with open_cluster(Settings(cluster="local", workers=1), scratch=tmp_path / WORKERS) as address, connect(address):
        before = sorted((tmp_path / WORKERS).rglob("*"))
        with scratch_folder(tmp_path):
            assert sorted((tmp_path / WORKERS).rglob("*")) == before
    assert before


def test_without_a_cluster_this_process_computes(tmp_path: Path) -> None:
    with open_cluster(Settings(cluster="none"), scratch=tmp_path / "scratch") as address:
        assert address == NO_CLUSTER
        with connect(address) as client:
            assert client is None
    assert not (tmp_path / "scratch").exists()


def test_an_existing_cluster_that_may_spill_is_refused_unless_its_scratch_is_encrypted(
    spilling: str, tmp_path: Path
) -> None:
    undeclared, declared = Settings(cluster=spilling), Settings(cluster=spilling, encrypted_scratch=True)
    with open_cluster(undeclared, scratch=tmp_path) as address:
        assert address == spilling
        with pytest.raises(Refused, match="may spill rows to disk"), connect(address, undeclared):
            pass
        with connect(address, declared) as client:
            assert isinstance(client, Client)
        with dask.config.set(WORKER_SETTINGS), connect(address, undeclared) as client:
            assert isinstance(client, Client)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("somewhere", InvalidInput),
        ("http://127.0.0.1:8786", InvalidInput),
        ("tcp://", InvalidInput),
        ("tcp://192.0.2.1:8786", Refused),
        ("tcp://scheduler.example:8786", Refused),
        ("Kubernetes", InvalidInput),
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
        Settings(cluster="tcp://192.0.2.1:8786", allow_plaintext=True),
    ],
    ids=lambda settings: settings.cluster,
)
def test_loopback_tls_and_explicitly_allowed_addresses_may_be_used(settings: Settings) -> None:
    check_address(settings)


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path) -> None:
    settings = Settings(cluster="tcp://127.0.0.1:1")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        open_cluster(settings, scratch=tmp_path) as address,
        pytest.raises(Unavailable, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"),
        connect(address, settings),
    ):
        pass


def test_a_scheduler_without_workers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "WAIT_FOR_WORKERS", 0.2)
    with (
        in_process(n_workers=0) as cluster,
        pytest.raises(Unavailable, match="has no worker; start some"),
        connect(cluster.scheduler_address),
    ):
        pass


@pytest.fixture
def encrypted(files: Files) -> Iterator[str]:
    """Yield the address of a cluster that requires certificates."""
    settings = under_tls("tls://127.0.0.1:0", files)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tls://",
            host="127.0.0.1",
            security=cluster_security(settings),
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
    ):
        yield cluster.scheduler_address


def test_a_cluster_under_tls_is_joined_with_its_certificate(
    encrypted: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert encrypted.startswith("tls://")
    for name, value in {**files.settings, "DPCA_CLUSTER": encrypted}.items():
        monkeypatch.setenv(name, value)
    with (
        dask.config.set(WORKER_SETTINGS),
        open_cluster(cluster_settings(), scratch=tmp_path) as address,
        connect(address) as client,
    ):
        assert client is not None
        assert client.submit(sum, [1, 2], pure=False).result() == 3


def test_dasks_own_configuration_names_certificates_too(files: Files) -> None:
    named = {"ca-file": str(files.ca), "client.cert": str(files.cert), "client.key": str(files.key)}
    with dask.config.set({f"distributed.comm.tls.{name}": path for name, path in named.items()}):
        check_address(Settings(cluster="tls://scheduler.example:8786"))
        assert cluster_security(Settings()).require_encryption is True


def test_nobody_connects_without_a_certificate_of_the_authority(encrypted: str, tmp_path: Path) -> None:
    stranger = issue(tmp_path / "theirs")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
        pytest.raises(Unavailable, match="rejects this certificate"),
        connect(encrypted, under_tls(encrypted, stranger)),
    ):
        pass
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
        pytest.raises(Unavailable, match="no Dask scheduler answers"),
        connect(encrypted.replace("tls://", "tcp://"), Settings()),
    ):
        pass


@pytest.mark.parametrize("missing", ["tls_ca", "tls_cert", "tls_key"])
def test_a_missing_or_unreadable_certificate_is_named_before_anything_starts(
    files: Files, missing: str, tmp_path: Path
) -> None:
    whole: dict[str, Any] = {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}
    for path, complaint in ((None, "is not set; set DPCA_TLS_CA"), (tmp_path / "none.pem", "is not a readable file")):
        settings = Settings(cluster="tls://scheduler.example:8786", **{**whole, missing: path})
        with pytest.raises(InvalidInput, match=rf"{missing.upper().replace('TLS', 'DPCA_TLS')}.*{complaint}"):
            check_address(settings)


@pytest.mark.parametrize("wrong", ["tls_ca", "tls_cert", "tls_key"])
def test_invalid_certificates_and_keys_are_refused_before_anything_starts(
    files: Files, wrong: str, tmp_path: Path
) -> None:
    whole: dict[str, Any] = {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}
    (tmp_path / "junk").write_text("junk")
    for path in (tmp_path / "junk", *([issue(tmp_path / "others").key] if wrong == "tls_key" else [])):
        with pytest.raises(InvalidInput, match=r"must be PEM files: .*; give three matching files"):
            check_address(Settings(cluster="tls://scheduler.example:8786", **{**whole, wrong: path}))


def test_a_cluster_lost_during_a_sum_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dask.config.config["distributed"]["comm"]["timeouts"], "connect", "1s")

    def lose(address: str) -> None:
        with connect(address, Settings(encrypted_scratch=True)) as client:
            assert client is not None
            assert client.scheduler is not None
            waiting = client.submit(time.sleep, 60)
            client.sync(client.scheduler.terminate)
            waiting.result(timeout=5)

    with in_process(n_workers=1) as cluster, pytest.raises(Unavailable, match="was lost; start it again"):
        lose(cluster.scheduler_address)


def test_a_client_that_fails_to_reconnect_ends_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dask.config.config["distributed"]["comm"]["timeouts"], "connect", "1s")

    async def die(*_: object, **__: object) -> None:
        # Tornado reports an early disconnection in these words
        raise ValueError("IOStream is not idle; cannot convert to SSL")

    def lose(address: str) -> None:
        with connect(address, Settings(encrypted_scratch=True)) as client:
            assert client is not None
            assert client.scheduler is not None
            monkeypatch.setattr(Client, "_ensure_connected", die)
            client.sync(client.scheduler.terminate)
            while client.status == "running":
                time.sleep(0.01)
            gather(client, [client.submit(time.sleep, 0)], home_of={})

    with in_process(n_workers=1) as cluster, pytest.raises(Unavailable, match="was lost; start it again"):
        lose(cluster.scheduler_address)


@pytest.mark.parametrize(("lost", "error"), [(True, Unavailable), (False, KeyError)])
def test_every_error_caused_by_a_lost_cluster_is_reported_as_its_loss(lost: bool, error: type[Exception]) -> None:  # noqa: FBT001
    def fail(address: str) -> None:
        with connect(address, Settings(encrypted_scratch=True)) as client:
            assert client is not None
            if lost:
                client.close()
            raise KeyError("workers")

    with in_process(n_workers=1) as cluster, pytest.raises(error, match="workers" if not lost else "was lost"):
        fail(cluster.scheduler_address)


def test_a_sum_does_not_wait_for_the_workers_of_a_lost_scheduler() -> None:
    with in_process(n_workers=1) as cluster:
        client = Client(cluster, set_as_default=False)
        assert await_workers(client)
        client.close()
        with pytest.raises(WorkerFailed, match="scheduler is lost"):
            await_workers(client)


def test_a_number_of_workers_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_WORKERS", "3")
    assert (cluster_settings().workers, cluster_settings(5).workers) == (3, 5)
    assert cluster_settings().cluster == "none"
    with pytest.raises(InvalidInput, match="DPCA_WORKERS=0 is refused"):
        cluster_settings(0)


class _Shown:
    """Stub of a cluster client that has only a dashboard link."""

    def __init__(self, link: str | None) -> None:
        self._link = link

    @property
    def dashboard_link(self) -> str:
        if self._link is None:
            raise KeyError("dashboard")
        return self._link


@pytest.mark.parametrize(("link", "terminal", "shown"), [("http://s:8787", True, 1), (None, True, 0), ("h", False, 0)])
def test_the_dashboard_of_a_cluster_is_shown_once_at_a_terminal_alone(
    *, link: str | None, terminal: bool, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    message: list[str] = []
    monkeypatch.setattr(subject, "_dashboards", set())
    monkeypatch.setattr(STDERR, "_force_terminal", terminal)
    monkeypatch.setattr(STDERR, "print", lambda text, **_: message.append(text))
    client: Any = _Shown(link)
    subject._show_dashboard(client)
    subject._show_dashboard(client)
    assert message == [f"progress of the cluster: {link}"] * shown


@pytest.mark.parametrize(
    ("records", "rows_each", "features", "density", "suffices"),
    [
        (40_000, 1, 123, None, True),
        (200_000, 1, 123, None, False),
        (200_000, 1, 123, 0.12, True),
        (200_000, 100, 123, 0.12, False),
        (10**9, 1, 1, None, False),
        (None, 1, 2, 0.01, False),
        (100, None, 2, 0.01, False),
    ],
)
def test_declared_facts_alone_decide_whether_one_process_suffices(
    records: int | None, rows_each: int | None, features: int, density: float | None, *, suffices: bool
) -> None:
    entry = Entry(
        snapshot="s" * 32,
        name="people",
        population="people",
        n_features=features,
        records_at_most=records,
        path="datasets/people/s",
        content_digest="c" * 64,
        created_at="2026-11-01T00:00:00+00:00",
        rows_per_unit=rows_each,
    )
    assert suffices_alone(entry, density=density) is suffices


@pytest.mark.parametrize(
    ("given", "names"), [({}, False), ({"log": "text"}, False), ({"cluster": "local"}, True), ({"workers": 2}, True)]
)
def test_a_cluster_or_a_number_of_workers_is_a_request_for_a_cluster(given: dict[str, Any], *, names: bool) -> None:
    assert Settings(**given).names_cluster is names


def test_a_cluster_is_opened_once_and_only_if_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Settings] = []

    def local(settings: Settings, _scratch: Path) -> AbstractContextManager[str]:
        begun.append(settings)
        return nullcontext("tls://here")

    monkeypatch.setattr(subject, "_begun", {})
    monkeypatch.setattr(subject, "_local", local)
    requested = Settings(cluster="local", workers=1)
    for settings in (Settings(), Settings(cluster="none"), Settings(cluster="tcp://127.0.0.1:1")):
        begin_cluster(settings, scratch=tmp_path)
    assert begun == []
    begin_cluster(requested, scratch=tmp_path)
    for count in (1, 2):
        with open_cluster(requested, scratch=tmp_path) as address:
            assert (address, begun) == ("tls://here", [requested] * count)
