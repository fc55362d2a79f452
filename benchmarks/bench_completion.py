"""Processor time of a round of private alternating least squares, and its growth with the number of ratings.

If the library `implicit` is installed, its alternating least squares is timed too. `implicit` is not in the lock file
of the compared libraries, so install it by hand.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.conftest import Measurement
from dpca_tasks.mechanisms.base import ItemFactors, PrivacyTarget
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks

USERS, ITEMS, RANK, RATED = 50_000, 2_000, 32, 50
TARGET = PrivacyTarget(epsilon=5.0, delta=1e-6)
TOY = 50
OVER_CG, OVER_CHOLESKY = 4.0, 1.0
LINEAR = 1.5
"""The limit on the processor time for ten times the ratings, divided by ten times the time for the ratings."""


def bench_completion_round(measure: Measurement, *, toy: bool) -> None:
    """Time one private round in this process: user factors, exact statistics, noise, projection, item factors."""
    users = USERS // TOY if toy else USERS
    rows = _ratings(users)
    _run(_ratings(100), rank=RANK)  # load the compiled loops before the measurement
    taken, result = _processor_seconds(lambda: _run(rows, rank=RANK))
    assert result.factors is not None
    assert result.factors.shape == (ITEMS, RANK)
    measure("seconds", taken)
    if importlib.util.find_spec("implicit") is not None:
        measure("over-implicit-cg", taken / _implicit_seconds(rows, use_cg=True), at_most=OVER_CG)
        measure("over-implicit-cholesky", taken / _implicit_seconds(rows, use_cg=False), at_most=OVER_CHOLESKY)


def bench_completion_growth(measure: Measurement, *, toy: bool) -> None:
    """Time rounds with 10^6 and 10^7 ratings, and subtract the time of a round without users from both.

    A round without users still draws noise and computes item factors, which does not depend on the number of ratings.
    """
    users = 1_000_000 // RATED // (TOY if toy else 1)
    _run(_ratings(100), rank=RANK)
    empty, _ = _processor_seconds(lambda: _run(_ratings(0), rank=RANK))
    few, many = _ratings(users), _ratings(10 * users)
    one, _ = _processor_seconds(lambda: _run(few, rank=RANK))
    ten, _ = _processor_seconds(lambda: _run(many, rank=RANK))
    measure("tenfold", (ten - empty) / max(one - empty, 1e-3) / 10.0, at_most=LINEAR)


def _ratings(users: int) -> sparse.csr_array:
    rng = np.random.default_rng(0)
    items: NDArray[np.int32] = np.sort(rng.integers(0, ITEMS, (users, RATED), dtype=np.int32), axis=1)
    stars = rng.integers(1, 6, items.size).astype(np.float32)
    rows = sparse.csr_array((stars, items.ravel(), np.arange(users + 1) * RATED), shape=(users, ITEMS))
    rows.sum_duplicates()
    return rows


def _run(rows: sparse.csr_array, *, rank: int) -> ItemFactors:
    mechanism = Dpals(rank=rank, rounds=1, sampling="uniform", offsets=False)
    problem = RatingsProblem(
        n_features=ITEMS, low=1.0, high=5.0, ratings_per_user=RATED, records_at_most=max(rows.shape[0], 1)
    )
    plan = mechanism.plan(problem, TARGET)
    return mechanism.run(Curator(ArrayBlocks(rows), InMemoryReservation(event=plan.event)), plan)


def _implicit_seconds(rows: sparse.csr_array, *, use_cg: bool) -> float:
    """Return the processor time of one iteration of implicit's alternating least squares, without privacy."""
    model: Any = importlib.import_module("implicit.cpu.als").AlternatingLeastSquares(
        factors=RANK, iterations=4, use_cg=use_cg, calculate_training_loss=False
    )
    seconds, _ = _processor_seconds(lambda: model.fit(sparse.csr_matrix(rows), show_progress=False))
    return seconds / 4


def _processor_seconds[T](work: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result
