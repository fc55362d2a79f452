"""A release by the exponential mechanism from rows in memory, compared with two libraries that use rejection sampling.

The two libraries (diffprivlib and OpenDP) divide the acceptance ratio by a power by which they should multiply it. So
they accept almost no draw. Each library is stopped after thirty seconds. The bar of dpca is five seconds for the whole
release.
"""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from benchmarks.conftest import Comparison, Measurement
from benchmarks.inputs import WIDE, Input
from benchmarks.peers.caller import PYTHON, PeerFailed, Peers, PeerTooSlow
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks

COMPONENTS, EPSILON = 5, 1.0
SECONDS, PEER_SECONDS = 5.0, 30.0


def draw(rows: sparse.csr_array, drawn: Input) -> NDArray[np.float64]:
    """Plan and run the exponential mechanism with delta 0, and return the released directions."""
    mechanism = Exponential(n_components=COMPONENTS)
    problem = Problem(n_features=drawn.n_features, clip_norm=drawn.clip_norm)
    plan = mechanism.plan(problem, PrivacyTarget(epsilon=EPSILON, delta=0.0))
    return mechanism.run(
        Curator(ArrayBlocks(rows), InMemoryReservation(event=plan.event, relation=plan.problem.relation)), plan
    ).components


def eigenvectors(rows: sparse.csr_array) -> NDArray[np.float64]:
    """Return as many leading eigenvectors as the release has components, without privacy."""
    order = rows.shape[1]
    moment = (rows.T @ rows).toarray()
    return np.asarray(linalg.eigh(moment, subset_by_index=[order - COMPONENTS, order - 1])[1].T)


@pytest.mark.parametrize("drawn", [WIDE], ids=lambda drawn: drawn.name)
def bench_exponential(drawn: Input, compare: Comparison, measure: Measurement, *, toy: bool) -> None:
    rows = drawn.rows(toy=toy)
    with threadpool_limits(limits=1):
        results = compare(partial(draw, rows, drawn), {"scipy-eigenvectors": partial(eigenvectors, rows)})
        start = time.perf_counter()
        draw(rows, drawn)
        measure("seconds-of-a-release", time.perf_counter() - start, at_most=SECONDS)
    for directions in results.values():
        np.testing.assert_allclose(directions @ directions.T, np.eye(COMPONENTS), atol=1e-10)


@pytest.mark.parametrize("drawn", [WIDE], ids=lambda drawn: drawn.name)
@pytest.mark.parametrize("peer", ["diffprivlib-pca", "opendp-pca"])
def bench_exponential_peers(peer: str, drawn: Input, measure: Measurement, tmp_path: Path, *, toy: bool) -> None:
    rows = drawn.rows(toy=toy)
    start = time.perf_counter()
    draw(rows, drawn)
    ours = time.perf_counter() - start
    measure("seconds-of-ours", ours)
    if toy or not PYTHON.is_file():
        return
    sparse.save_npz(tmp_path / "rows.npz", rows)
    requested = {"rows": tmp_path / "rows.npz", "k": COMPONENTS, "epsilon": EPSILON, "clip_norm": drawn.clip_norm}
    with Peers(workers=1) as peers:
        try:
            theirs = peers.call(peer, limit=PEER_SECONDS, **requested).seconds
        except PeerTooSlow:
            measure("did-not-finish-in-times-ours", PEER_SECONDS / ours)
        except PeerFailed:  # both libraries overflow for many columns and close eigenvalues
            measure("ended-in-an-error", 1.0)
        else:
            measure("times-ours", theirs / ours)
