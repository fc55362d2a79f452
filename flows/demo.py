"""Demos of the whole pipeline and of a federation on one machine.

The first demo runs the whole pipeline on the a9a census data that ships with the package, through the real flows. The
second starts several sites, and the helper that assists their sums, as processes on loopback. Each has its own key and
home folder.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]
from numpy.typing import NDArray
from platformdirs import user_data_path

from dpca.errors import Unavailable
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.sites import METHODS, OVER_ROSTER
from dpca_tasks.metrics import subspace_distance
from flows.parties.certificates import make_identity
from flows.requests import SitesRequest
from flows.sites.roster import HELPER

NAME = "a9a"
FEATURES = 123
CLIP_NORM = 14.0**0.5  # sqrt(14): each encoded row has at most 14 entries, all 1
COMPONENTS, EPSILON, DELTA = 10, 1.0, 1e-6
BUDGET_EPSILON, RECORDS_AT_MOST = 4.0, 40_000
SUBSPACE, ALIAS = "a9a-subspace", "champion"
_ELSEWHERE = ("DPCA_HOME", "DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER")


@contextmanager
def own_home(folder: Path | None) -> Iterator[Path]:
    """Inside the context, use a separate home folder and ignore ``DPCA_HOME``; no real ledger is touched."""
    chosen = user_data_path("dpca-demo") if folder is None else folder.expanduser().absolute()
    kept = {name: os.environ.pop(name) for name in _ELSEWHERE if name in os.environ}
    os.environ["DPCA_HOME"] = str(chosen)
    try:
        yield chosen
    finally:
        del os.environ["DPCA_HOME"]
        os.environ.update(kept)


def prepare(announce: Callable[[str], None]) -> None:
    """Ingest the shipped data, unless an earlier demo did, and open its budget."""
    from dpca.home import home, writable_home
    from flows.jobs import run_ingest
    from storage.datasets.ingest_options import IngestOptions
    from storage.workspace import Workspace

    try:
        writable_home()
    except Unavailable:
        raise Unavailable(f"{home()} is not a writable folder; name one for the demo with --home") from None
    workspace = Workspace.open()
    if NAME in (entry.name for entry in workspace.catalog.entries()):
        announce(f"dataset {NAME} exists already: its snapshot is reused")
    else:
        with as_file(files("flows") / "data" / "a9a.svm.gz") as source:
            options = IngestOptions(features=FEATURES, records_at_most=RECORDS_AT_MOST)
            report = run_ingest(str(source), name=NAME, options=options)
        announce(
            f"ingested {NAME}: {report['records']:,} records x {report['features']} features (for the curator only)"
        )
    workspace.ledger.open_budget(NAME, epsilon=BUDGET_EPSILON, delta=DELTA)
    announce(f"budget of population {NAME}: epsilon {BUDGET_EPSILON:g} at delta {DELTA:g}")


def release() -> dict[str, Any]:
    """Release ten components at epsilon 1, publish them and promote the version."""
    from flows.jobs import run_release
    from flows.releases.stages import promote_version
    from flows.requests import SubspaceRequest

    request = SubspaceRequest(
        dataset=NAME,
        components=COMPONENTS,
        epsilon=EPSILON,
        delta=DELTA,
        clip_norm=CLIP_NORM,
        publish=SUBSPACE,
    )
    report = run_release(request)
    promote_version(report["artifact"], ALIAS)
    return report


FEDERATION_DELTA, BUDGET = 1e-5, 100.0
FEDERATION_CLIP_NORM = 1.0
START = "from flows.cli import main; import sys; sys.exit(main())"
SEED = 20181109  # seed of the synthetic rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """A federation of sites on this machine: its folder, the rows of each site, and its running processes."""

    folder: Path
    names: tuple[str, ...]
    rows: Mapping[str, Any] = field(repr=False)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict, repr=False)

    @property
    def roster(self) -> Path:
        """The roster file."""
        return self.folder / "roster.yaml"

    @property
    def key(self) -> Path:
        """The aggregator's key."""
        return self.folder / "aggregator.key"

    @property
    def services(self) -> tuple[str, ...]:
        """The names of the parties that run as processes: the helper, if there is one, then the sites."""
        helper = ("helper",) if self.config("helper").exists() else ()
        return (*helper, *self.names)

    def config(self, name: str) -> Path:
        """Return the configuration of a party."""
        return self.folder / f"{name}.yaml"

    def home(self, name: str) -> Path:
        """Return the home of a party."""
        return self.folder / "homes" / name


def unit_rows(rng: np.random.Generator, records: int, features: int) -> Callable[[], NDArray[np.float64]]:
    """Return a function that draws the rows of one site.

    The rows have norm at most 1. They vary most along up to three directions, which all sites share.
    """
    scales = np.r_[np.geomspace(3.0, 2.0, min(3, features)), np.full(max(0, features - 3), 0.3)]
    basis = np.linalg.qr(rng.standard_normal((features, features)))[0]

    def draw() -> NDArray[np.float64]:
        drawn = rng.standard_normal((records, features)) * scales @ basis.T
        return np.asarray(drawn / np.maximum(np.linalg.norm(drawn, axis=1, keepdims=True), 1.0))

    return draw


def make_federation(
    folder: Path,
    sites: int,
    *,
    features: int = 20,
    records: int = 2000,
    seed: int = SEED,
    rows_of: Callable[..., Callable[[], NDArray[np.float64]]] = unit_rows,
    **facts: Any,
) -> Federation:
    """Write the keys, configurations and home folders of all parties, ingest the rows, and write the roster.

    The roster is the file that lists the parties; ``facts`` are added to it.
    """
    from flows.ingest import ingest_directly
    from storage.datasets.ingest_options import IngestOptions
    from storage.workspace import Workspace

    names = tuple(f"site-{at}" for at in range(sites))
    draw = rows_of(np.random.default_rng(seed), records, features)
    rows: dict[str, Any] = {}
    ports = free_ports(sites + 1)
    for name in ("aggregator", "helper", *names):
        make_identity(name, folder)
    for at, name in enumerate(names):
        rows[name] = draw()
        source = folder / f"{name}.npy"
        np.save(source, rows[name])
        with own_home(folder / "homes" / name):
            options = IngestOptions(records_at_most=records)
            ingest_directly(str(source), name="rows", options=options)
            Workspace.open().ledger.open_budget("rows", epsilon=BUDGET, delta=FEDERATION_DELTA, relation="replace_one")
        _write(
            folder / f"{name}.yaml",
            {
                **{"name": name, "roster": "roster.yaml", "key": f"{name}.key", "dataset": "rows"},
                "listen": f"127.0.0.1:{ports[at]}",
                "limits": {"epsilon": BUDGET, "delta": FEDERATION_DELTA, "methods": sorted(OVER_ROSTER)},
            },
        )
    parties: dict[str, Any] = {"aggregator": {"certificate": "aggregator.pem"}}
    if facts.get("masks", HELPER) == HELPER:
        listen = f"127.0.0.1:{ports[-1]}"
        own = {"name": "helper", "roster": "roster.yaml", "key": "helper.key", "listen": listen}
        _write(folder / "helper.yaml", own)
        parties["helper"] = {"address": f"https://{listen}", "certificate": "helper.pem"}
    listed = [
        {"name": name, "address": f"https://127.0.0.1:{ports[at]}", "certificate": f"{name}.pem", "records": records}
        for at, name in enumerate(names)
    ]
    _write(
        folder / "roster.yaml",
        {"features": features, "relation": "replace_one", **facts, **parties, "sites": listed},
    )
    return Federation(folder=folder, names=names, rows=rows)


def start(federation: Federation, name: str) -> subprocess.Popen[str]:
    """Start one party as a process, without waiting until it listens."""
    home = federation.home(name)
    settings = {"DPCA_HOME": str(home), "DPCA_STATE_FOLDER": str(federation.folder / "states" / name)}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DPCA_")}
    command = [sys.executable, "-c", START, "site", "helper" if name == "helper" else "serve", "--config"]
    with (federation.folder / f"{name}.log").open("a") as errors:
        return subprocess.Popen(
            [*command, str(federation.config(name))],
            env={**kept, **settings, "DPCA_CLUSTER": "none", "DPCA_LOG": "text"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def await_listening(federation: Federation, name: str, process: subprocess.Popen[str]) -> None:
    """Wait until a party listens.

    Raises
    ------
    Unavailable
        If the party's process ended before it listened.
    """
    assert process.stdout is not None
    if not process.stdout.readline().startswith("listening"):
        log = (federation.folder / f"{name}.log").read_text().strip()
        raise Unavailable(f"the process of {name} ended: {log[-300:] or 'without a message'}; see its log.")


def stop(process: subprocess.Popen[str]) -> None:
    """End a party's process."""
    process.terminate()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def running(federation: Federation) -> Iterator[None]:
    """Run the helper and all sites as processes inside the context, which begins when all listen."""
    processes = federation.processes
    try:
        for name in federation.services:
            processes[name] = start(federation, name)
        for name, process in processes.items():
            await_listening(federation, name, process)
        yield
    finally:
        while processes:
            stop(processes.popitem()[1])


def run_demo(
    sites: int,
    *,
    method: str,
    masks: str,
    features: int,
    records: int,
    components: int,
    epsilon: float,
    folder: Path | None,
) -> dict[str, Any]:
    """Start a federation, release a subspace of its sites' rows, and return a report.

    The report includes the distance of the release from the exact subspace of all rows.
    """
    from dpca.registry.reader import Registry
    from flows.sites.releases import fit_sites_directly

    if method not in METHODS:
        raise InvalidInput(f"method={method!r} releases no subspace; choose one of {', '.join(sorted(METHODS))}.")
    place = Path(tempfile.mkdtemp(prefix="dpca-sites-")) if folder is None else folder.absolute()
    try:
        federation = make_federation(place, sites, features=features, records=records, masks=masks)
        with running(federation):
            request = SitesRequest(
                roster=str(federation.roster),
                publish="demo",
                method=method,
                components=components,
                clip_norm=FEDERATION_CLIP_NORM,
                epsilon=epsilon,
                delta=FEDERATION_DELTA,
            )
            with aggregator(federation):
                report = fit_sites_directly(request)
                found = Registry.open().load("demo").components
        rows = np.vstack(list(federation.rows.values()))
        exact = np.linalg.eigh(rows.T @ rows)[1][:, -components:].T
        distance = subspace_distance(found, exact)
        return {**report, "distance_to_all_rows": round(float(distance), 6), "folder": str(place) if folder else None}
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def aggregator(federation: Federation) -> Iterator[None]:
    """Inside the context, make this process the federation's aggregator, with the aggregator's own home folder."""
    settings = {
        "DPCA_STATE_FOLDER": str(federation.folder / "states" / "aggregator"),
        "DPCA_SITES_KEY": str(federation.key),
    }
    before = {name: os.environ.get(name) for name in settings}
    with own_home(federation.home("aggregator")):
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False))


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free now, below the range that outgoing connections use."""
    found: set[int] = set()
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)
