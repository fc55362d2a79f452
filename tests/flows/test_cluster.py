"""Where rows are allowed to go, and what workers are not allowed to do with them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import dask
import pytest
from distributed import Client, LocalCluster

from dpca_tasks.cluster_sum import await_workers
from dpca_tasks.errors import InvalidInput, Refused, WorkerFailed
from flows import cluster as subject
from flows.certificates import cluster_security
from flows.cluster import NO_CLUSTER, check_address, connect, open_cluster
from flows.launchers import ALLOCATOR, LAUNCHERS, WORKER_SETTINGS
from flows.settings import Settings, cluster_settings
from storage.errors import Unavailable
from tests.certificates import Files, issue


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
        settings = {name: dask.config.get(name) for name in WORKER_SETTINGS}
        return settings | {name: os.environ.get(name) for name in ALLOCATOR}

    settings = Settings(cluster="local", workers=1)
    with open_cluster(settings, scratch=tmp_path / "scratch") as address:
        assert address.startswith("tcp://127.0.0.1:")
        with connect(address) as client:
            assert client is not None
            assert list(client.run(seen).values()) == [{**WORKER_SETTINGS, **ALLOCATOR}]
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """An authority and a certificate."""
    return issue(tmp_path_factory.mktemp("tls") / "ours")


def _under_tls(address: str, files: Files, **others: Any) -> Settings:
    return Settings(cluster=address, tls_ca=files.ca, tls_cert=files.cert, tls_key=files.key, **others)


@pytest.fixture
def encrypted(files: Files) -> Iterator[str]:
    """The address of a cluster that asks for certificates."""
    settings = _under_tls("tls://127.0.0.1:0", files)
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
    for name, value in files.settings.items():
        monkeypatch.setenv(name, value)
    with (
        dask.config.set(WORKER_SETTINGS),
        open_cluster(Settings(cluster=encrypted), scratch=tmp_path) as address,
        connect(address) as client,
    ):
        assert client is not None
        assert client.submit(sum, [1, 2], pure=False).result() == 3


def test_dasks_own_configuration_names_certificates_too(files: Files) -> None:
    named = {"ca-file": str(files.ca), "client.cert": str(files.cert), "client.key": str(files.key)}
    with dask.config.set({f"distributed.comm.tls.{name}": path for name, path in named.items()}):
        check_address(Settings(cluster="tls://scheduler.example:8786"))
        assert cluster_security(Settings()).require_encryption is True


def test_without_the_authoritys_certificate_nobody_joins(encrypted: str, tmp_path: Path) -> None:
    stranger = issue(tmp_path / "theirs")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
        pytest.raises(Unavailable, match="does not take this certificate"),
        connect(encrypted, _under_tls(encrypted, stranger)),
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
    for path, complaint in ((None, "is not set; set DPCA_TLS_CA"), (tmp_path / "none.pem", "is no file that can be")):
        settings = Settings(cluster="tls://scheduler.example:8786", **{**whole, missing: path})
        with pytest.raises(InvalidInput, match=rf"{missing.upper().replace('TLS', 'DPCA_TLS')}.*{complaint}"):
            check_address(settings)


@pytest.mark.parametrize("wrong", ["tls_ca", "tls_cert", "tls_key"])
def test_files_that_are_no_certificate_and_its_key_are_refused_before_anything_starts(
    files: Files, wrong: str, tmp_path: Path
) -> None:
    whole: dict[str, Any] = {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}
    (tmp_path / "junk").write_text("junk")
    for path in (tmp_path / "junk", *([issue(tmp_path / "others").key] if wrong == "tls_key" else [])):
        with pytest.raises(InvalidInput, match=r"must name, in PEM, .*; give three files that belong together"):
            check_address(Settings(cluster="tls://scheduler.example:8786", **{**whole, wrong: path}))


def test_a_cluster_that_is_lost_under_way_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dask.config.config["distributed"]["comm"]["timeouts"], "connect", "1s")

    def lose(address: str) -> None:
        with connect(address, Settings()) as client:
            assert client is not None
            assert client.scheduler is not None
            waiting = client.submit(time.sleep, 60)
            client.sync(client.scheduler.terminate)
            waiting.result(timeout=30)

    with _in_process(n_workers=1) as cluster, pytest.raises(Unavailable, match="was lost; start it again"):
        lose(cluster.scheduler_address)


@pytest.mark.parametrize(("lost", "error"), [(True, Unavailable), (False, KeyError)])
def test_whatever_a_lost_cluster_makes_of_it_is_the_loss(lost: bool, error: type[Exception]) -> None:  # noqa: FBT001
    def fail(address: str) -> None:
        with connect(address, Settings()) as client:
            assert client is not None
            if lost:
                client.close()
            raise KeyError("workers")

    with _in_process(n_workers=1) as cluster, pytest.raises(error, match="workers" if not lost else "was lost"):
        fail(cluster.scheduler_address)


def test_a_sum_does_not_wait_for_the_workers_of_a_lost_scheduler() -> None:
    with _in_process(n_workers=1) as cluster:
        client = Client(cluster, set_as_default=False)
        assert await_workers(client)
        client.close()
        with pytest.raises(WorkerFailed, match="scheduler is lost"):
            await_workers(client)


class _Started:
    """A stand-in for a cluster of any library: real workers in this process, and what it was asked for."""

    asked: ClassVar[dict[str, Any]] = {}
    name = "a-cluster"
    stopped = False

    def __init__(self, **asked: Any) -> None:
        type(self).asked, type(self).stopped = asked, False
        self._cluster = _in_process(n_workers=1)
        self.scheduler_address = self._cluster.scheduler_address

    def __enter__(self) -> "_Started":
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()
        type(self).stopped = True

    def scale(self, n: int) -> None:
        type(self).asked = {"n_workers": n}

    def get_client(self, *, set_as_default: bool) -> Client:
        return Client(self.scheduler_address, set_as_default=set_as_default)


class _Gateway:
    """A stand-in for a gateway of one cluster."""

    standing: _Started

    def __enter__(self) -> "_Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def new_cluster(self, *, shutdown_on_close: bool) -> _Started:
        assert shutdown_on_close
        type(self).standing = _Started()
        return self.standing

    @contextmanager
    def connect(self, name: str) -> Iterator[_Started]:
        assert name == self.standing.name
        yield self.standing


FAKES = {
    "kubernetes": ("dask_kubernetes.operator", SimpleNamespace(KubeCluster=_Started)),
    "gateway": ("dask_gateway", SimpleNamespace(Gateway=_Gateway)),
    "slurm": ("dask_jobqueue", SimpleNamespace(SLURMCluster=_Started)),
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every library of launchers, in effigy."""
    for module, fake in FAKES.values():
        monkeypatch.setitem(sys.modules, module.partition(".")[0], ModuleType(module))
        monkeypatch.setitem(sys.modules, module, fake)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_a_launched_cluster_serves_one_run_and_ends_with_it(kind: str, tmp_path: Path) -> None:
    settings = Settings(cluster=kind, workers=3, allow_plaintext=True)
    with dask.config.set(WORKER_SETTINGS):
        with open_cluster(settings, scratch=tmp_path) as address, connect(address, settings) as client:
            assert client is not None
            assert client.submit(sum, [1, 2], pure=False).result() == 3
        assert _Started.asked["n_workers"] == 3
        assert _Started.stopped


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_a_launched_cluster_whose_workers_may_spill_is_stopped_and_refused(kind: str, tmp_path: Path) -> None:
    settings = Settings(cluster=kind, allow_plaintext=True)
    with pytest.raises(Refused, match="may spill"), open_cluster(settings, scratch=tmp_path):
        pass
    assert _Started.stopped


@pytest.mark.usefixtures("installed")
def test_workers_that_others_start_are_told_not_to_spill(tmp_path: Path) -> None:
    with (
        dask.config.set({**WORKER_SETTINGS, "kubernetes.env": {"AWS_REGION": "here"}}),
        open_cluster(Settings(cluster="kubernetes", allow_plaintext=True), scratch=tmp_path),
    ):
        told = {item["name"]: item["value"] for item in _Started.asked["env"]}
    assert told["AWS_REGION"] == "here"
    assert dask.config.collect_env(told)["distributed"]["worker"]["memory"]["spill"] is False
    with (
        dask.config.set({**WORKER_SETTINGS, "jobqueue.slurm.job-script-prologue": ["module load python"]}),
        open_cluster(Settings(cluster="slurm", allow_plaintext=True), scratch=tmp_path),
    ):
        first, *exports = _Started.asked["job_script_prologue"]
        assert _Started.asked["protocol"] == "tcp://"
    assert first == "module load python"
    script = "; ".join([*exports, "env"])
    shown = subprocess.check_output(["/bin/sh", "-c", script], env={"PATH": os.environ["PATH"]}, text=True)
    seen = dict(line.partition("=")[::2] for line in shown.splitlines())
    assert ALLOCATOR.items() <= seen.items()
    seen = dask.config.collect_env({name: value for name, value in seen.items() if name.startswith("DASK_")})
    assert {name: dask.config.get(name, config=seen) for name in WORKER_SETTINGS} == dict(WORKER_SETTINGS)


@pytest.mark.usefixtures("installed")
def test_slurm_uses_the_certificate_where_there_is_one(files: Files) -> None:
    settings = _under_tls("slurm", files)
    check_address(settings)
    with LAUNCHERS["slurm"](settings):
        assert _Started.asked["protocol"] == "tls://"
        assert _Started.asked["security"].get_tls_config_for_role("worker")["cert"] == str(files.cert)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["kubernetes", "slurm"])
def test_a_launched_cluster_in_clear_text_is_refused(kind: str) -> None:
    with pytest.raises(Refused, match=r"clear text; .*DPCA_ALLOW_PLAINTEXT"):
        check_address(Settings(cluster=kind))


@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_a_missing_extra_is_one_clear_line(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, FAKES[kind][0], None)
    with pytest.raises(InvalidInput, match=rf"needs the extra `{kind}`; install it"):
        check_address(Settings(cluster=kind, allow_plaintext=True))


@pytest.mark.usefixtures("installed")
def test_a_cluster_that_cannot_be_started_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("you must\nset cores")

    monkeypatch.setattr(FAKES["slurm"][1], "SLURMCluster", refuse)
    complaint = r"no slurm cluster could be started \(ValueError: you must set cores\)"
    with (
        pytest.raises(Unavailable, match=complaint),
        open_cluster(Settings(cluster="slurm", allow_plaintext=True), scratch=tmp_path),
    ):
        pass


def test_settings_come_from_the_environment_and_a_number_of_workers_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_WORKERS", "3")
    assert (cluster_settings().workers, cluster_settings(5).workers) == (3, 5)
    assert cluster_settings().cluster == "none"
    with pytest.raises(InvalidInput, match="DPCA_WORKERS=0 is refused"):
        cluster_settings(0)
