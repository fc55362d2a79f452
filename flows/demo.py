"""The demo: the whole job on the a9a census data that ships with the package, through the real flows."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from storage.errors import Unavailable

NAME = "a9a"
FEATURES = 123
CLIP_NORM = 14.0**0.5  # a row has at most 14 ones, by how the data is encoded
COMPONENTS, EPSILON, DELTA = 10, 1.0, 1e-6
BUDGET_EPSILON, RECORDS_AT_MOST = 4.0, 40_000
SUBSPACE, ALIAS = "a9a-subspace", "champion"
_ELSEWHERE = ("DPCA_HOME", "DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER")


@contextmanager
def own_home(folder: Path | None) -> Iterator[Path]:
    """Let everything inside happen in a folder of the demo's own, whatever the settings: no real ledger hears of it."""
    chosen = user_data_path("dpca-demo") if folder is None else folder.expanduser().absolute()
    kept = {name: os.environ.pop(name) for name in _ELSEWHERE if name in os.environ}
    os.environ["DPCA_HOME"] = str(chosen)
    try:
        yield chosen
    finally:
        del os.environ["DPCA_HOME"]
        os.environ.update(kept)


def prepare(say: Callable[[str], None]) -> None:
    """Ingest the shipped data and open its budget, unless an earlier demo did."""
    from flows.ingest import run_ingest
    from storage.datasets.ingest_options import IngestOptions
    from storage.home import home, writable_home
    from storage.workspace import Workspace

    try:
        writable_home()
    except Unavailable:
        raise Unavailable(f"{home()} is not a writable folder; name one for the demo with --home") from None
    workspace = Workspace.open()
    if NAME in (entry.name for entry in workspace.catalog.entries()):
        say(f"dataset {NAME} is here already: its snapshot is reused")
    else:
        with as_file(files("flows") / "data" / "a9a.svm.gz") as source:
            options = IngestOptions(features=FEATURES, records_at_most=RECORDS_AT_MOST)
            report = run_ingest(str(source), name=NAME, options=options)
        say(f"ingested {NAME}: {report['records']:,} records x {report['features']} features (curator's eyes only)")
    workspace.ledger.open_budget(NAME, epsilon=BUDGET_EPSILON, delta=DELTA)
    say(f"budget of population {NAME}: epsilon {BUDGET_EPSILON:g} at delta {DELTA:g}")


def release() -> dict[str, Any]:
    """Release ten components at epsilon 1, publish them and promote the version."""
    from flows.fit import run_fit
    from flows.releases.publish import promote_version
    from flows.requests.subspace import SubspaceRequest

    request = SubspaceRequest(
        dataset=NAME,
        components=COMPONENTS,
        epsilon=EPSILON,
        delta=DELTA,
        clip_norm=CLIP_NORM,
        publish=SUBSPACE,
    )
    report = run_fit(request)
    promote_version(report["artifact"], ALIAS)
    return report
