"""Clusters that others start: one for a run, that neither spills nor talks in clear text, and ends with it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import dask
import pytest
from distributed import Client

from dpca_tasks.errors import InvalidInput, Refused
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.clusters.launchers import ALLOCATOR, LAUNCHERS, WORKER_SETTINGS
from flows.settings import Settings
from storage.errors import Unavailable
from tests.certificates import Files
from tests.flows.clusters.local_clusters import in_process, under_tls


class _Started:
    """A stand-in for a cluster of any library: real workers in this process, and what it was asked for."""

    asked: ClassVar[dict[str, Any]] = {}
    name = "a-cluster"
    stopped = False

    def __init__(self, **asked: Any) -> None:
        type(self).asked, type(self).stopped = asked, False
        self._cluster = in_process(n_workers=1)
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
    with (
        pytest.raises(Refused, match="may spill"),
        open_cluster(settings, scratch=tmp_path) as address,
        connect(address, settings),
    ):
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
    settings = under_tls("slurm", files)
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
