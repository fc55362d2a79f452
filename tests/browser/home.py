"""A curator's home after several monthly releases, identical in every run, from rows that contain a canary.

Keys and times are fixed, so that pages look alike in each run; the rows are drawn with a fixed seed. No page may
contain the canary record, the exact sums of all rows, or anything that identifies the home or its secrets.

`dpca serve` runs as a separate process, with a token, for the duration of a check.
"""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from flows.cli import PREFECT_DEFAULTS, main
from storage.ledger import journal, releases
from tests.flows.web.conftest import SITES, Maker, items, subspace, topics
from tests.leaks.guessing import RECORD, SMALLEST_TOTAL, Canaries, canaries_of

FEATURES = (
    *("age", "blood pressure", "body mass", "cholesterol", "glucose", "heart rate", "iron", "kidney function"),
    *("lung volume", "oxygen", "pain", "sleep", "steps a day", "stress", "temperature", "weight change"),
)
CLIP_NORM, MONTHS = 40.0, 3
POPULATION, NAME = "patients", "visits-map"
_BEGAN = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Secrets that no response may contain: exact numbers, and texts such as keys and paths."""

    canaries: Canaries
    texts: tuple[bytes, ...]


def rows_of(month: int) -> NDArray[np.float64]:
    """Draw the rows of one month; the last row is the canary record.

    The rows have three strong directions, one of which rotates from month to month.
    """
    stream = np.random.default_rng(20260100 + month)
    directions = np.linalg.qr(np.random.default_rng(7).normal(size=(len(FEATURES), len(FEATURES))))[0].T
    turned = np.cos(0.2 * month) * directions[2] + np.sin(0.2 * month) * directions[3]
    basis = np.vstack([directions[:2], turned])
    rows = stream.normal(size=(1500, 3)) * (9.0, 6.0, 4.0) @ basis + 0.3 * stream.normal(size=(1500, len(FEATURES)))
    return np.vstack([rows, [[*RECORD, *[0.0] * (len(FEATURES) - len(RECORD))]]])


@contextmanager
def environment(root: Path) -> Iterator[None]:
    """Set the environment variables that make ``dpca`` use only the home in a folder, inside the context."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DPCA_")}
    places = {"DPCA_HOME": str(root / "home"), "DPCA_STATE_FOLDER": str(root / "state"), "DPCA_CLUSTER": "none"}
    with patch.dict(os.environ, {**ours, **PREFECT_DEFAULTS, **places}, clear=True):
        yield


def make_home(root: Path) -> Secrets:
    """Create the home with its releases, in the context of `environment`; return the home's secrets."""
    keys, seconds = count(), count()

    def key() -> bytes:
        return hashlib.sha256(f"key {next(keys)}".encode()).digest()

    def now() -> str:
        at = _BEGAN + timedelta(days=28 * month, seconds=next(seconds))
        return at.isoformat(timespec="microseconds")

    month, all_rows = 0, [rows_of(number) for number in range(MONTHS)]
    (root / "names.txt").write_text("".join(f"{name}\n" for name in FEATURES))
    with patch.object(releases, "new_key", key), patch.object(journal, "now", now):
        for month, rows in enumerate(all_rows):
            np.save(root / "visits.npy", rows)
            source = (str(root / "visits.npy"), "--name", "visits", "--population", POPULATION)
            _run("dataset", "ingest", *source, "--feature-names", str(root / "names.txt"), "--records-at-most", "50000")
            if not month:
                _run("budget", "open", POPULATION, "--epsilon", "4", "--delta", "1e-6")
            requested = ("--components", "4", "--epsilon", "0.8", "--delta", "1e-7", "--clip-norm", str(CLIP_NORM))
            _run("subspace", "fit", "visits", *requested, "--publish", NAME, "--yes")
            _run("registry", "promote", f"{NAME}@{month + 1}", "champion", direct=False)
        _run("registry", "promote", f"{NAME}@2", "champion", direct=False)
        _run("registry", "promote", f"{NAME}@3", "challenger", direct=False)
        _publish_others()
    return Secrets(canaries=_canaries(all_rows), texts=_texts(root, next(keys)))


def _run(*words: str, direct: bool = True) -> None:
    flags = ("--direct",) if direct and words[:2] != ("budget", "open") else ()
    with Path(os.devnull).open("w") as nowhere, patch("sys.stdout", nowhere):
        status = main([*words, *flags])
    if status:
        raise RuntimeError(f"dpca {' '.join(words[:2])} returned exit status {status}")


def _publish_others() -> None:
    """Publish made-up versions of the other families of releases, and one joint release of several sites."""
    maker = Maker()
    maker.workspace.ledger.open_budget("readers", epsilon=8.0, delta=1e-6, failure_delta=0.0)
    named: Mapping[str, Any] = {"report-topics": topics, "taste": items}
    for name, make in named.items():
        for seed in (1, 2):
            maker.publish(name, lambda make=make, seed=seed, **facts: make(seed=seed, **facts), population="readers")
    joint = "joint-" + 32 * "a"
    made = subspace(seed=4, release=joint, plan={"sites": SITES}, privacy={"epsilon": 1.0, "delta": 1e-6})
    maker.workspace.publish_joint(joint, name="joint-map", artifact_digest=maker.written(made), sites=SITES)


def _canaries(all_rows: list[NDArray[np.float64]]) -> Canaries:
    upper = np.triu_indices(len(FEATURES))
    moments = [rows.T @ rows for rows in all_rows]
    values = [number for moment in moments for number in moment[upper].tolist()]
    exact = [number for moment in moments for number in np.linalg.eigvalsh(moment).tolist()]
    sums = [number for rows in all_rows for number in rows.sum(axis=0).tolist()]
    totals = [round(number * 2**20) for number in values]
    return canaries_of([*RECORD, *values, *exact, *sums], [total for total in totals if total >= SMALLEST_TOTAL])


def _texts(root: Path, keys: int) -> tuple[bytes, ...]:
    """Return private texts: the path of the home, its keys, and the ledger's snapshot ids, digests and run keys."""
    connection = sqlite3.connect(root / "home" / "dpca.sqlite")
    queries = [
        *("SELECT id FROM snapshot", "SELECT content_digest FROM snapshot", "SELECT path FROM snapshot"),
        *("SELECT run_key FROM release", "SELECT fingerprint FROM release WHERE length(fingerprint) > 20"),
        *("SELECT digest FROM step", "SELECT snapshot_id FROM release"),
    ]
    kept = [text for query in queries for (text,) in connection.execute(query)]
    connection.close()
    made = [hashlib.sha256(f"key {number}".encode()) for number in range(keys)]
    files = [path for path in (root / "home" / "keys").rglob("*") if path.is_file() and path.suffix == ".key"]
    words = [text.encode() for text in (str(root), *kept, *(key.hexdigest() for key in made))]
    return tuple({*words, *(key.digest() for key in made), *(path.read_bytes() for path in files)})


TOKEN = "browser-0123456789abcdef"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the current home; yield the server's address. Any other output of the server is an error."""
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    command = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main(sys.argv[1:]))"]
    words = [*command, "serve", "--port", "0", "--curator", "--token-file", str(token)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening at ").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("", ""), err
