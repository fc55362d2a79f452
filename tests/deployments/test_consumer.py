"""A consumer needs what the consumer's lock holds and nothing else, wherever the registry is."""

import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.utils import canonicalize_name

from storage.backends.opening import open_place
from tests.consumer.__main__ import ROOT, TAMPERED, make_subspace, published, refusals, use
from tests.deployments.lock import CONSUMER, consumer_lock, entries
from tests.s3 import Server

LOCKED = set(entries(CONSUMER))
UNWANTED = {"prefect", "dask", "distributed", "sqlalchemy", "alembic", "duckdb", "numba", "llvmlite", "pyarrow"}


def allowed() -> set[str]:
    """Name the packages of the locked distributions, and ours."""
    found = packages_distributions()
    return {"storage"} | {
        package for package, owners in found.items() if LOCKED & {canonicalize_name(owner) for owner in owners}
    }


def test_the_lock_is_the_part_of_ours_that_a_consumer_needs() -> None:
    assert CONSUMER.read_text(encoding="utf-8") == consumer_lock()
    assert not LOCKED & UNWANTED


def test_the_lock_names_no_host_and_every_version_carries_a_hash() -> None:
    text = CONSUMER.read_text(encoding="utf-8")
    assert not re.search(r"://|--index|file:", text)
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries(CONSUMER).values())


type Reached = tuple[dict[str, str], dict[str, str]]
"""The addresses of an artifact by the kind of place, and the variables by which they are reached."""


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory, s3_server: Server) -> Iterator[Reached]:
    """Publish an artifact in a folder, behind a web server and in an object store; yield addresses and variables."""
    with published(tmp_path_factory.mktemp("consumer"), s3_server) as (addresses, variables):
        yield addresses, {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables}


@pytest.mark.parametrize("kind", ["folder", "https", "s3"])
def test_a_consumer_needs_what_is_locked_and_imports_only_the_client_of_its_place(reached: Reached, kind: str) -> None:
    addresses, environment = reached
    found = use(sys.executable, addresses[kind], environment, "--only", ",".join(sorted(allowed())))
    scores = make_subspace().transform(np.linspace(-1.0, 1.0, 100).reshape(2, -1))
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-12)  # products are summed as the processor likes
    assert found["imported"] == ["storage"]
    clients = {"folder": set(), "https": {"httpx"}, "s3": {"obstore"}}
    assert {"httpx", "obstore"} & set(found["used"]) == clients[kind]


@pytest.mark.parametrize("kind", ["https", "s3"])
def test_under_a_pinned_key_what_was_tampered_with_is_refused_with_what_is_locked(
    tmp_path: Path, s3_server: Server, kind: str
) -> None:
    with published(tmp_path, s3_server) as (addresses, variables), pytest.MonkeyPatch.context() as patch:
        s3_server.enter(patch)
        environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables}
        place = open_place(addresses["s3" if kind == "s3" else "folder"])
        assert use(sys.executable, addresses[kind], environment)["artifact"] == "news@1"
        lines = refusals(sys.executable, addresses[kind], place, environment)
        assert {what: bool(line) and "\n" not in line for what, line in lines.items()} == dict.fromkeys(TAMPERED, True)


def test_that_check_fails_on_what_is_not_locked(reached: Reached) -> None:
    addresses, environment = reached
    with pytest.raises(AssertionError, match="No module named 'httpcore'"):
        use(sys.executable, addresses["https"], environment, "--only", ",".join(sorted(allowed() - {"httpcore"})))
