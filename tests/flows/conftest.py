"""Fixtures: homes in several states, the ``dpca`` command called in this process, and one Prefect server.

Helpers run a command in a separate process, and return which modules it loaded.
"""

import hashlib
import importlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, PREFECT_SERVER_ANALYTICS_ENABLED, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from dpca.registry.reader import Registry
from flows.cli import PREFECT_DEFAULTS, main
from flows.reports import activity
from tests.flows.arriving import Webhook, listening
from tests.web_server import Files, issue

# prefect.main sets up logging when imported; inside a test, that would close the captured output
importlib.import_module("prefect.main")

ROWS, FEATURES = 60, 6
FIT = (
    *("subspace", "fit", "people", "--components", "2", "--epsilon", "1", "--delta", "1e-6"),
    *("--clip-norm", "1.5", "--publish", "sub"),
)

Facts = tuple[dict[str, str], dict[str, list[tuple[Any, ...]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Exit status and output of a ``dpca`` command."""

    status: int
    out: str
    err: str

    def complaint(self, status: int) -> str:
        """Check that a command failed with the expected status and one line; return the line."""
        assert (self.status, self.out) == (status, ""), self
        lines = self.err.splitlines()
        assert len(lines) == 1, self
        assert lines[0].startswith("dpca: "), self
        assert "unexpected" not in self.err, self
        return lines[0]


Command = Callable[..., Ending]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the files of a certificate authority and of a certificate that it signed."""
    return issue(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, home=tmp_path / "home")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the path of this test's home, which does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def dpca(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the ``dpca`` command and returns its exit status and output."""

    def call(*words: str | Path | float) -> Ending:
        capsys.readouterr()
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return Ending(status=status, out=printed.out, err=printed.err)

    return call


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a svmlight file of 60 rows and 6 columns."""
    path = tmp_path_factory.mktemp("source") / "people.svm"
    path.write_text("".join(f"1 1:{1 + row % 3} 3:0.5 6:{row % 2}.25\n" for row in range(ROWS)))
    return path


@pytest.fixture(scope="session")
def ready_home(tmp_path_factory: pytest.TempPathFactory, rows_file: Path) -> Path:
    """Return a home with dataset and population ``people``, and a budget of epsilon 2 at delta 1e-6."""
    place = tmp_path_factory.mktemp("ready")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        ingest = ["dataset", "ingest", str(rows_file), "--name", "people", "--features", str(FEATURES), "--direct"]
        assert main(ingest) == 0
        assert main(["budget", "open", "people", "--epsilon", "2", "--delta", "1e-6"]) == 0
    return place


@pytest.fixture(scope="session")
def released_home(tmp_path_factory: pytest.TempPathFactory, ready_home: Path) -> Path:
    """Return a copy of the ready home with one release, published as ``sub@1``."""
    place = tmp_path_factory.mktemp("released")
    shutil.copytree(ready_home, place, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        assert main([*FIT, "--direct", "--yes"]) == 0
    return place


@pytest.fixture
def ready(ready_home: Path, home: Path) -> Path:
    """Return a separate copy of the home with data and budget, set as the current home."""
    shutil.copytree(ready_home, home)
    return home


@pytest.fixture
def released(released_home: Path, home: Path) -> Path:
    """Return a separate copy of the home with a release, set as the current home."""
    shutil.copytree(released_home, home)
    return home


@pytest.fixture(scope="session")
def _prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    kept = {PREFECT_LOCAL_STORAGE_PATH: tmp_path_factory.mktemp("prefect"), PREFECT_SERVER_ANALYTICS_ENABLED: False}
    with temporary_settings(kept), prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def prefect(_prefect_server: None) -> Iterator[SyncPrefectClient]:
    """Yield a client of a Prefect server that serves this test session only."""
    with get_client(sync_client=True) as client:
        yield client


def newest_run(prefect: SyncPrefectClient, flow: str) -> FlowRun:
    """Return the last run of a flow, as stored by the server."""
    wanted = FlowFilter(name=FlowFilterName(any_=[flow]))
    runs = prefect.read_flow_runs(flow_filter=wanted, sort=FlowRunSort.START_TIME_DESC)
    return max(runs, key=lambda run: run.created or datetime.min.replace(tzinfo=UTC))


def kept_by(prefect: SyncPrefectClient) -> str:
    """Return everything that the Prefect server stores about runs as text, including runs of other tests.

    Runs have random names made of English words, such as "secret". Search the text only for words that occur in no run
    name.
    """
    reads: tuple[Callable[..., list[Any]], ...] = (
        prefect.read_flow_runs,
        prefect.read_task_runs,
        prefect.read_artifacts,
    )
    return "\n".join(item.model_dump_json() for read in reads for item in _pages(read))


def _pages(read: Callable[..., list[Any]]) -> Iterator[Any]:
    """Yield all items that a read function of the Prefect server returns in pages of 200."""
    seen = 0
    while page := read(offset=seen):
        yield from page
        seen += len(page)


def isolate(patch: pytest.MonkeyPatch, *, home: Path) -> None:
    """Remove the machine's settings from the environment of a test, and compute in the test process."""
    for name in [name for name in os.environ if name.startswith("DPCA_")]:
        patch.delenv(name)
    for name, value in PREFECT_DEFAULTS.items():
        patch.setenv(name, value)
    patch.setenv("DPCA_HOME", str(home))
    patch.setenv("DPCA_STATE_FOLDER", f"{home}-state")
    patch.setenv("DPCA_CLUSTER", "none")
    # so rarely that even a slow machine adds no progress lines to the output that a test reads
    patch.setattr(activity, "PLAIN_EVERY", 3600.0)


def damage(reference: str) -> None:
    """Change the last byte of the largest file of an artifact."""
    digest = Registry.open().resolve(reference).digest
    (folder,) = (path for path in (Path(os.environ["DPCA_HOME"]) / "registry").rglob(digest) if path.is_dir())
    file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def facts_of(home: Path) -> Facts:
    """Return the observable state of a home: hashes of its files, and the rows of its database."""
    files, rows = {}, {}
    for path in home.rglob("*"):
        if path.is_file() and not path.name.startswith("dpca.sqlite"):
            files[path.relative_to(home).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    if (home / "dpca.sqlite").exists():
        connection = sqlite3.connect(home / "dpca.sqlite")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {table: connection.execute(f'SELECT * FROM "{table}"').fetchall() for table in tables}
        connection.close()
    return files, rows


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Return an empty inbox folder."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """Yield a webhook that receives this test's notices."""
    with listening() as found:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", found.url)
        yield found


_ALL = """
import json, sys
from flows.cli import main
status = main(sys.argv[1:])
print(json.dumps({name: str(getattr(sys.modules[name], "__file__", None)) for name in [*sys.modules]}), file=sys.stderr)
sys.exit(status)
"""
_CHILD = """
import json, sys
from flows.cli import main
heavy = sys.argv[1].split()
status = main(sys.argv[2:])
print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
sys.exit(status)
"""


def loaded_by(*words: str | float, heavy: Iterable[str]) -> tuple[str, list[str]]:
    """Run a command that must succeed; return its output, and which of the ``heavy`` modules it loaded."""
    command = [sys.executable, "-c", _CHILD, " ".join(heavy), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def all_loaded_by(*words: str | float) -> tuple[str, set[str], set[str]]:
    """Run a command that must succeed; return its output, the loaded modules, and packages of other distributions."""
    command = [sys.executable, "-c", _ALL, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stderr.splitlines()[-1])
    tops = {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}
    return done.stdout, set(files), {top for top in tops if not top.startswith("_")}
