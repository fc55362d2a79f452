"""The whole way with ``DPCA_STORE_URL``: rows in, workers that read the store, a release that S3 alone serves."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage.registry.reader import Registry
from tests.flows.conftest import FEATURES, FIT, Command
from tests.s3 import ACCESS_KEY, SECRET_KEY, Server, serve

CONSUMER = """
import sys
from storage.registry.reader import Registry
subspace = Registry.open().load("sub@champion")
print(subspace.components.tolist())
assert not {"sqlalchemy", "dask", "prefect", "flows"} & set(sys.modules)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A store for this test, by the one setting."""
    with serve() as server:
        server.enter(monkeypatch)
        monkeypatch.setenv("DPCA_STORE_URL", server.url("some/prefix"))
        yield server


def test_a_release_is_made_from_and_served_by_an_object_store(
    server: Server, home: Path, rows_file: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingested = dpca(
        *("dataset", "ingest", rows_file, "--name", "people", "--features", FEATURES),
        *("--block-nnz", FEATURES, "--direct", "--json"),
    )
    assert ingested.status == 0, ingested
    snapshot = json.loads(ingested.out)
    assert snapshot["blocks"] > 10
    assert snapshot["path"].startswith("s3://a-bucket/some/prefix/datasets/people/")
    assert dpca("budget", "open", "people", "--epsilon", 2, "--delta", 1e-6).status == 0
    monkeypatch.setenv("DPCA_CLUSTER", "local")
    fitted = dpca(*FIT, "--direct", "--yes", "--json")
    assert fitted.status == 0, fitted
    assert dpca("registry", "promote", "sub@1", "champion").status == 0
    assert not [path for path in home.rglob("*") if path.name in ("zarr.json", "manifest.json", "sub.json")]

    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path / "nobody"),
    }
    environment |= {"DPCA_STORE_URL": server.url("some/prefix"), **server.environment}
    consumed = subprocess.run(
        [sys.executable, "-c", CONSUMER], env=environment, capture_output=True, text=True, check=False
    )
    assert consumed.returncode == 0, consumed.stderr
    assert not (tmp_path / "nobody").exists()
    np.testing.assert_array_equal(json.loads(consumed.stdout), Registry.open().load("sub").components)

    assert json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)["reused"] is True
    for path in home.rglob("*"):
        if path.is_file():
            assert SECRET_KEY.encode() not in path.read_bytes()
            assert ACCESS_KEY.encode() not in path.read_bytes()


def test_commands_say_in_one_line_what_is_wrong_with_a_store(
    server: Server, ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no snapshot at s3://a-bucket/some/prefix" in dpca("dataset", "verify", "people").complaint(1)
    monkeypatch.setenv("DPCA_STORE_URL", "s3://no-such-bucket/x")
    for words in (("dataset", "verify", "people"), ("registry", "list"), (*FIT, "--direct", "--yes")):
        assert "s3://no-such-bucket/x" in (line := dpca(*words).complaint(1))
        assert "cannot be used: there is no such bucket; create it" in line
    monkeypatch.setenv("DPCA_STORE_URL", "https://example.org/x")
    assert "DPCA_STORE_URL must be s3://bucket/prefix" in dpca("registry", "list").complaint(1)
    monkeypatch.setenv("DPCA_STORE_URL", server.url("x"))
    server.check_credentials()
    assert "the credentials are not accepted" in dpca("registry", "list").complaint(1)
