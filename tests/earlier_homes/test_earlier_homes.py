"""Homes that earlier versions wrote are read; releases under way in them cannot be finished."""

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from flows.families.restated_subspace import noise_edge_of, restate_subspace
from storage.artifacts.subspace import PrivateSubspace
from storage.datasets.catalog import Catalog
from storage.errors import Invalid
from storage.home import key_folder, store
from storage.registry.reader import Registry
from storage.registry.root_keys import init_root
from storage.registry.roots import Publisher
from storage.registry.signed_files import public_name
from storage.registry.signed_pointers import FOLDER as SIGNED_POINTERS
from storage.registry.signed_pointers import PUBLISHERS_KEY
from storage.registry.signing import read_key
from storage.workspace import Workspace
from tests.conftest import ON_POSTGRESQL
from tests.postgres import Server, find_programs
from tests.storage.registry.signed_registries import PINNED, ROOT_KEY

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.gz"))
READABLE = [path for path in ARCHIVES if ON_POSTGRESQL or "postgresql" not in path.name]


@dataclass(frozen=True)
class Earlier:
    """A home as it was left: its releases, and what they gave, or were going to give, in the version that wrote it."""

    cases: list[dict[str, Any]]
    expected: list[NDArray[np.float64]]


def name_of(path: Path) -> str:
    return path.name.removesuffix(".tar.gz")


@pytest.fixture(params=READABLE, ids=name_of)
def earlier(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Earlier]:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    for folder in ("home", "home/keys"):
        (tmp_path / folder).chmod(0o700)  # unpacking leaves these modes to the umask
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    cases = json.loads((tmp_path / "cases.json").read_text())
    with np.load(tmp_path / "expected.npz") as arrays:
        found = Earlier(cases=list(cases.values()), expected=[arrays[number] for number in cases])
    if not (tmp_path / "ledger.sql").exists():
        yield found
        return
    server: Server = request.getfixturevalue("postgres")
    programs = find_programs()
    assert programs is not None
    with server.database() as url:
        psql: list[str | Path] = [
            programs / "psql",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-f",
            tmp_path / "ledger.sql",
            url.replace("+psycopg", ""),
        ]
        subprocess.run(
            psql, check=True, capture_output=True, env=os.environ | {"PGOPTIONS": "-c client_min_messages=error"}
        )
        monkeypatch.setenv("DPCA_DATABASE_URL", url)
        yield found


def test_its_ledger_and_its_snapshots_are_whole(earlier: Earlier) -> None:
    ledger = Workspace.open().ledger
    assert ledger.verify() > len(earlier.cases)
    catalog = Catalog(ledger.engine, ledger.home, store())
    for dataset in ("people", "wards", "swaps"):
        catalog.verify(dataset)


def test_what_it_published_loads(earlier: Earlier) -> None:
    registry = Registry.open()
    finished = [(case, array) for case, array in zip(earlier.cases, earlier.expected, strict=True) if not case["stop"]]
    assert finished or "postgresql" in os.environ.get("DPCA_DATABASE_URL", "")
    for case, array in finished:
        assert np.array_equal(registry.load(f"{case['request']['publish']}@1").components, array)


def test_what_it_published_is_signed_on_request(earlier: Earlier) -> None:
    workspace = Workspace.open()
    finished = [(case, array) for case, array in zip(earlier.cases, earlier.expected, strict=True) if not case["stop"]]
    assert workspace.resign() >= len(finished)
    assert set(workspace.store.names(SIGNED_POINTERS)) == {f"{name}.json" for name in workspace.registry.names()}
    publisher = public_name(read_key(key_folder() / PUBLISHERS_KEY))
    init_root(workspace.store, [ROOT_KEY], publishers={publisher: Publisher()})
    pinned = Registry.open(trust=PINNED)
    for case, array in finished:
        assert np.array_equal(pinned.load(f"{case['request']['publish']}@1").components, array)


MATRICES = ("analyze_gauss", "mod_sulq", "wishart", "laplace")


def test_what_it_published_is_refined_as_far_as_it_allows_or_refused_in_one_line(earlier: Earlier) -> None:
    """All six pairs leave nothing to take off by refining: leading ones come back, and the artifact says so."""
    registry, refined = Registry.open(), 0
    finished = [case["request"] for case in earlier.cases if not case["stop"]]
    for request in finished:
        artifact = registry.load(f"{request['publish']}@1", PrivateSubspace)
        assert "refine" not in artifact.manifest["parameters"]
        if request["mechanism"] not in MATRICES:
            with pytest.raises((Refused, Invalid)) as refusal:
                restate_subspace(artifact, n_components=2, refine="eb", parent="x")
            assert "\n" not in str(refusal.value)
            continue
        for method in ("spikes", "all", "auto"):
            with pytest.raises(Refused, match="which this artifact did not keep"):
                restate_subspace(artifact, n_components=2, refine=method, parent="x")
        made = restate_subspace(artifact, n_components=2, refine="eb", parent="x")
        if artifact.further is None:  # an operator's: two pairs of six
            assert made.refined_by == "eb"
            assert made.manifest["warnings"][-1].startswith("refined from the 2 pairs that were kept")
        else:
            np.testing.assert_array_equal(made.components, artifact.components)
            assert made.refined_by == "none"
            assert made.manifest["warnings"][-1].startswith("there is nothing to refine in the 6 pairs")
        assert made.outcome["noise_std"] > 0.0
        assert made.outcome["cv"] is made.outcome["cv_low"] is None
        assert noise_edge_of(artifact) == made.outcome["noise_edge"]
        refined += 1
    assert refined or not finished
