"""Make a home with everything that a version of the program writes: snapshots, budgets, versions, releases under way.

``python -m tests.earlier_homes.make_home NAME`` writes ``NAME-sqlite.tar.gz`` and ``NAME-postgresql.tar.gz`` beside
this file: a home, its ledger as PostgreSQL dumps it, the requests, and what each of them gave when this version
finished a copy. A version is kept by running this once, in its own checkout; what is kept is never made again.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from zarr.core.sync import cleanup_resources

from flows.ingest import ingest_source
from flows.orchestration.prefect_stages import directly
from flows.releases.stages import make_release
from flows.requests.subspace import SubspaceRequest
from flows.settings import Settings
from storage.backends import crash_points
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import secret_keys
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.postgres import find_programs, running_server

RELATIONS = {"people": "add_remove", "wards": "zero_out", "swaps": "replace_one"}
FEATURES = 6
SAMPLED = {"steps": "2", "rate": "0.2"}
OPERATOR = {"form": "operator"}
ONE_ROW = SAMPLED | {"form": "one_row"}
MECHANISMS: dict[str, dict[str, str]] = {
    "analyze_gauss": {},
    "mod_sulq": {},
    "wishart": {},
    "laplace": {},
    "noisy_power": {"iterations": "2"},
    "dp_spca": SAMPLED,
    "dp_vrpca": {"epochs": "1", "inner_steps": "2", "rate": "0.2"},
    "exponential": {},
    "smooth_sensitivity": {},
    "propose_test_release": {},
    "local_gaussian": {},
}
RESERVED, BEGUN, KEPT, WRITTEN, COMMITTED = (
    "reserve.row_committed",
    "begin.row_committed",
    "keep.row_committed",
    "artifact.written",
    "commit.row_committed",
)

type Case = dict[str, Any]


def cases() -> list[Case]:
    """Return every release of the home: its request, and the crash point where it is stopped, or None."""
    made: list[Case] = []

    def add(dataset: str, mechanism: str, settings: dict[str, str], *stops: str | None, **others: str) -> None:
        for stop in stops:
            request = {
                "dataset": dataset,
                "components": 2,
                "epsilon": 1.0,
                "delta": 0.0 if mechanism in ("wishart", "laplace") else 1e-7,
                "clip_norm": 1.0 + len(made) / 64,
                "publish": f"{mechanism.replace('_', '-')}-{len(made)}",
                "mechanism": mechanism,
                "settings": settings,
                **others,
            }
            made.append({"request": request, "stop": stop})

    for mechanism, settings in MECHANISMS.items():
        dataset = "wards" if mechanism == "local_gaussian" else "people"
        add(dataset, mechanism, settings, None, BEGUN, KEPT)
    add("people", "analyze_gauss", OPERATOR, None, BEGUN, KEPT)
    add("people", "dp_spca", ONE_ROW, BEGUN, KEPT)
    add("people", "analyze_gauss", {}, RESERVED, WRITTEN, COMMITTED)
    for mechanism in ("analyze_gauss", "noisy_power", "dp_spca", "dp_vrpca", "exponential"):
        for dataset in ("wards", "swaps"):
            if (mechanism, dataset) != ("analyze_gauss", "swaps"):
                add(dataset, mechanism, MECHANISMS[mechanism], RESERVED, BEGUN, KEPT)
    for mechanism in ("analyze_gauss", "noisy_power", "exponential", "smooth_sensitivity"):
        for dataset in ("people", "wards"):
            add(dataset, mechanism, MECHANISMS[mechanism], None, RESERVED, BEGUN, KEPT, center="private")
    add("people", "analyze_gauss", {}, KEPT, clip_norm="quantile:0.9")
    add("people", "analyze_gauss", {}, KEPT, row_policy="normalise")
    return made


def chosen(*, few: bool) -> list[tuple[int, Case]]:
    """Return numbered cases: all, or some that use every way out."""
    numbered = list(enumerate(cases()))
    plain = [(n, c) for n, c in numbered if c["request"]["dataset"] == "people" and "center" not in c["request"]]
    return [(n, c) for n, c in plain if n % 3 == 2 or n > 30] if few else numbered


def found_home() -> None:
    """Open the budgets and ingest the datasets of a new home."""
    rows = np.random.default_rng(11).normal(size=(300, FEATURES)) * np.geomspace(1.0, 0.1, FEATURES)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.npz"
        for population, relation in RELATIONS.items():
            rows[0, 0] += 0.5
            sparse.save_npz(source, sparse.csr_array(rows))
            ingest_source(str(source), population, IngestOptions(records_at_most=10_000, block_nnz=600))
            Workspace.open().ledger.open_budget(
                population, epsilon=60.0, delta=1e-5, relation=relation, failure_delta=5e-6
            )
        Workspace.open().ledger.open_budget("plain", epsilon=4.0, delta=1e-6)


def make_releases(*, few: bool, finish: bool) -> None:
    """Make every release in a process of its own, forked from this one, up to its stop or to its end."""
    for number, case in chosen(few=few):
        cleanup_resources()  # no thread may be running when this process forks
        child = os.fork()
        if child == 0:
            os._exit(_make_release(number, case["request"], None if finish else case["stop"]))
        if status := os.waitpid(child, 0)[1]:
            raise RuntimeError(f"case {number} ended with status {status}: {case}")


def _make_release(number: int, request: Case, stop: str | None) -> int:
    def halt(point: str) -> None:
        if point == stop:
            os._exit(0)

    vars(secret_keys)["new_key"] = lambda: hashlib.sha256(f"release {number}".encode()).digest()
    crash_points.hook = halt
    make_release(directly, SubspaceRequest(**request), Settings(cluster="none"))
    return 0 if stop is None else 3


def save_results(target: str, *, few: bool) -> None:
    """Save the components that every release published, once all are finished."""
    registry = Registry.open()
    names = {str(number): case["request"]["publish"] for number, case in chosen(few=few)}
    arrays: dict[str, Any] = {number: registry.load(name).components for number, name in names.items()}
    np.savez_compressed(target, **arrays)


def make_archive(target: Path, *, url: str = "") -> None:
    """Make a home with its ledger at a URL, or in SQLite, and pack it with what its finished copy published."""
    words = ["few"] if url else []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for step in ("found", "make"):
            _run(root / "home", url, step, *words)
        shutil.rmtree(root / "home" / "scratch", ignore_errors=True)
        if url:
            programs = find_programs()
            assert programs is not None
            dump: list[str | Path] = [programs / "pg_dump", "--no-owner", "--inserts", url.replace("+psycopg", "")]
            (root / "ledger.sql").write_bytes(subprocess.run(dump, capture_output=True, check=True).stdout)
        shutil.copytree(root / "home", root / "finished")
        _run(root / "finished", url, "finish", *words)
        _run(root / "finished", url, "save", str(root / "expected.npz"), *words)
        (root / "cases.json").write_text(json.dumps(dict(chosen(few=bool(url))), indent=1))
        with tarfile.open(target, "w:gz") as archive:
            for member in ("home", "ledger.sql", "expected.npz", "cases.json"):
                if (root / member).exists():
                    archive.add(root / member, arcname=member)


def _run(home: Path, url: str, *words: str) -> None:
    environment = (
        os.environ | {"DPCA_HOME": str(home), "DPCA_CLUSTER": "none"} | ({"DPCA_DATABASE_URL": url} if url else {})
    )
    subprocess.run([sys.executable, "-m", "tests.earlier_homes.make_home", *words], env=environment, check=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["found", *_]:
            found_home()
        case ["make" | "finish" as step, *rest]:
            make_releases(few="few" in rest, finish=step == "finish")
        case ["save", target, *rest]:
            save_results(target, few="few" in rest)
        case [name]:
            make_archive(Path(__file__).with_name(f"{name}-sqlite.tar.gz"))
            with running_server() as server, server.database() as url:
                make_archive(Path(__file__).with_name(f"{name}-postgresql.tar.gz"), url=url)
