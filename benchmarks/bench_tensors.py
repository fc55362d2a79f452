"""Time and memory of a release of topics, and the growth of its time with the number of documents.

Each release runs in a separate process with fresh local workers, so the measured memory belongs to this release alone.
The time covers everything from opening the store to the published artifact.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks.conftest import Measurement
from benchmarks.homes import own_ledger
from benchmarks.topics_child import released
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger

DOCUMENTS, WORDS, VOCABULARY, TOPICS = 1_000_000, 50, 2_000, 20
TOY = 500
SIZES = (1, 2, 4)
"""The numbers of released documents, as multiples of the smallest number, which is a quarter of all documents."""
SECONDS, WORKER_MB, CLIENT_MB, LINEAR = 180.0, 2_000.0, 1_000.0, 1.2
PIECE, WARM = 100_000, "few"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder."""
    with own_ledger(tmp_path_factory.mktemp("home")) as opened:
        yield opened


def bench_topics(ledger: Ledger, tmp_path: Path, measure: Measurement, *, toy: bool) -> None:
    """Release twenty topics from a million documents of fifty words, from half a million and from a quarter million."""
    vocabulary = VOCABULARY // (TOY // 10 if toy else 1)
    _ingested(WARM, DOCUMENTS // TOY, vocabulary, ledger, tmp_path)
    if toy:
        measure("seconds", released(WARM)["seconds"])
        return
    processor = {}
    for times in SIZES:
        name = f"documents-{times}"
        _ingested(name, DOCUMENTS * times // SIZES[-1], vocabulary, ledger, tmp_path)
        found = _released_separately(name, tmp_path)
        assert found["components"] == TOPICS
        processor[times] = found["processor"]
        of_all = times == SIZES[-1]
        measure(f"seconds-at-{times}n", found["seconds"], at_most=SECONDS if of_all else None)
        measure(f"processor-seconds-at-{times}n", found["processor"])
        measure(f"worker-MB-at-{times}n", found["worker"] / 1e6, at_most=WORKER_MB if of_all else None)
        measure(f"client-MB-at-{times}n", found["client"] / 1e6, at_most=CLIENT_MB if of_all else None)
    # Differences of times cancel fixed costs, such as noise and eigenvectors, which do not grow with the documents.
    grown = (processor[4] - processor[2]) / (processor[2] - processor[1]) / 2.0
    measure("processor-time-of-2n-more-over-twice-n-more", grown, at_most=LINEAR)


def _ingested(name: str, documents: int, vocabulary: int, ledger: Ledger, folder: Path) -> None:
    source = folder / "documents.npz"
    sparse.save_npz(source, documents_of(documents, vocabulary), compressed=False)
    options = IngestOptions(features=vocabulary, records_at_most=documents)
    ingest(source, name=name, home=ledger.home, engine=ledger.engine, options=options)
    source.unlink()
    ledger.open_budget(name, epsilon=100.0, delta=1e-9)


def _released_separately(name: str, scratch: Path) -> dict[str, float]:
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.topics_child", WARM, name, str(scratch)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return found


def documents_of(count: int, vocabulary: int) -> sparse.csr_array:
    """Generate documents of one topic each, as rows of word counts.

    Each topic has a twentieth of the words, which no other topic uses. The j-th word of a topic has a frequency
    proportional to 1/j.
    """
    rng, width = np.random.default_rng(0), vocabulary // TOPICS
    ends = np.cumsum(1.0 / np.arange(1, width + 1))
    pieces = []
    for first in range(0, count, PIECE):
        size = min(PIECE, count - first)
        ranks = np.searchsorted(ends[:-1] / ends[-1], rng.random((size, WORDS)), side="right").astype(np.int32)
        words = np.sort(ranks + width * rng.integers(0, TOPICS, (size, 1), dtype=np.int32), axis=1)
        rows = sparse.csr_array(
            (np.ones(words.size, np.float32), words.ravel(), np.arange(size + 1) * WORDS), shape=(size, vocabulary)
        )
        rows.sum_duplicates()
        pieces.append(rows)
    return sparse.csr_array(sparse.vstack(pieces, format="csr"))
