"""Table 1 of the DPS-PCA paper: the time of each method where the covariance is given, and what that costs.

Processor time on one thread, and wall time beside it. Noise is that of a float generator, except PPCA's draws.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.parts.noisy_products import start_directions
from dpca_tasks.mechanisms.parts.row_truncation import completed, truncated, truncated_step
from dpca_tasks.mechanisms.subspace.dps_pca import FREE_STEPS
from dpca_tasks.noise.bingham import GibbsChain, Peeling
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.queries.base import SQRT_2_UP
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.threads import one_thread
from flows.reports.line_charts import LineChart
from flows.reproductions.checks import Check, at_least, at_most
from flows.reproductions.dps_pca_model import Model
from flows.reproductions.kept_rows import KeptRows

type Matrix = NDArray[np.float64]
type Row = dict[str, Any]

FEATURES, EPSILON, DELTA = (200, 400, 800), 1.0, 0.1
ROUNDS, SWEEPS, STEPS = 10, 100, 200
"""The paper's rounds of DPS-PCA and sweeps of its Gibbs chain; and the steps whose median time is taken."""
STEP_MILLISECONDS = 1.0
SCORES = 2.0
"""How far a replaced record moves a score."""

STEP, ALL_STEPS = "DPS-PCA, one step", f"DPS-PCA, {ROUNDS} steps"
MOD_SULQ, ANALYZE_GAUSS, SPARSE = "MOD-SULQ", "Analyze Gauss", "sparse Analyze Gauss"
PEELING, GIBBS = "PPCA by peeling", f"PPCA by Gibbs (not certified), {SWEEPS} times one sweep"
EXACT, FLOATS = "forming the covariance, exact integers", "forming the covariance, float32 BLAS"

PRINTED: dict[str, dict[int, str]] = {
    ALL_STEPS: dict.fromkeys(FEATURES, "< 1"),
    MOD_SULQ: {200: "8", 400: "21", 800: "97"},
    GIBBS: {200: "9820", 400: "37460", 800: "173780"},
}
"""The paper's milliseconds, on a processor of 3.4 GHz."""

CHART = LineChart(title="Table 1: processor time, covariance given", x="d", y="milliseconds", log_y=True)


class OneSweep(GibbsChain):
    """The chain of one sweep, whose time is taken."""

    sweeps: ClassVar[int] = 1


def table_1(n_records: int) -> Iterator[Row]:
    """Iterate over the milliseconds of each method at each number of features, and of forming the covariance."""
    for d in FEATURES:
        model = Model(n_features=d, n_records=n_records)
        rows, _ = model.draw(d)
        kept = KeptRows(source=ArrayBlocks(rows))
        with one_thread():
            yield _row(EXACT, d, milliseconds(kept.form_moment))
            yield _row(FLOATS, d, milliseconds(partial(np.matmul, rows.T, rows)))
            for method, work, repeats, times in _methods(kept.form_moment(), model):
                yield _row(method, d, milliseconds(work, repeats=repeats), times=times)


def time_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check processor times at the most features; times by the clock stand in the table alone."""
    most = max(row["d"] for row in rows)
    taken = {row["arm"]: row["milliseconds"] for row in rows if row["d"] == most}
    yield at_most(f"milliseconds of processor time of a step, d={most}", STEP_MILLISECONDS, got=taken[STEP])
    steps = f"over that of {ROUNDS} steps, d={most}"
    least = min(taken[name] for name in (MOD_SULQ, PEELING, GIBBS))
    yield at_least(f"processor time of MOD-SULQ or PPCA, the least, {steps}", 1.0, got=least / taken[ALL_STEPS])
    formed = min(taken[EXACT], taken[FLOATS])
    yield at_least(f"processor time of forming the covariance {steps}", 10.0, got=formed / taken[ALL_STEPS])


def time_note(rows: Sequence[Row]) -> str:
    """Return a sentence with both times of a step at the most features, and of forming the covariance."""
    most = max(row["d"] for row in rows)
    taken = {row["arm"]: row for row in rows if row["d"] == most}
    step, exact, floats = (taken[name] for name in (STEP, EXACT, FLOATS))
    return (
        f"A step at d={most} takes {step['milliseconds']:.2f} ms of processor time ({step['wall milliseconds']:.2f} ms "
        f"by the clock), given a covariance that took {exact['milliseconds']:.0f} ms in exact integers, or "
        f"{floats['milliseconds']:.0f} ms in float32."
    )


def milliseconds(work: Callable[[], object], *, repeats: int = 1) -> tuple[float, float]:
    """Return the median milliseconds of a call: of processor time, and by the clock on the wall."""
    processor, wall = [], []
    for _ in range(repeats):
        began, began_wall = time.process_time(), time.perf_counter()
        work()
        processor.append(time.process_time() - began)
        wall.append(time.perf_counter() - began_wall)
    return 1e3 * float(np.median(processor)), 1e3 * float(np.median(wall))


def noisy_step(moment: Matrix, directions: Matrix, *, std: float, rows_kept: int, rng: np.random.Generator) -> Matrix:
    """Multiply row-sparse directions by a covariance, add noise, orthonormalise and truncate."""
    rows = np.flatnonzero(directions.any(axis=1))
    with one_thread():
        product = moment[rows].T @ directions[rows]
    return truncated(completed(product + std * rng.standard_normal(product.shape)), rows_kept=rows_kept)


def _methods(moment: Matrix, model: Model) -> Iterator[tuple[str, Callable[[], object], int, int]]:
    """Iterate over methods: the name, the work, how often it is repeated, and by how much its time is multiplied."""
    d, k, kept, rng = model.n_features, model.n_components, model.rows_kept, np.random.default_rng(model.n_features)
    rounds = SQRT_2_UP * gaussian_noise_multiplier(epsilon=EPSILON, delta=DELTA, releases=ROUNDS)
    once = SQRT_2_UP * gaussian_noise_multiplier(epsilon=EPSILON, delta=DELTA)
    start = start_directions(d, k)
    sparse = truncated(start, rows_kept=kept)

    def step(directions: Matrix) -> Matrix:
        return noisy_step(moment, directions, std=rounds, rows_kept=kept, rng=rng)

    def steps() -> Matrix:
        directions = start
        for _ in range(ROUNDS):
            directions = step(directions)
        return directions

    def triangle() -> Matrix:
        upper = np.triu(rng.standard_normal((d, d)))
        return leading_eigenpairs(moment + once * (upper + np.triu(upper, 1).T), k)[1]

    def released() -> Matrix:
        noise = rng.standard_normal((d, d))
        return moment + once * (noise + noise.T) / 2

    def one_round() -> Matrix:
        noisy = released()
        directions = np.ascontiguousarray(leading_eigenpairs(noisy, k)[1].T)
        for _ in range(FREE_STEPS):
            directions = truncated_step(noisy, directions, rows_kept=kept)
        return directions

    yield STEP, lambda: step(sparse), STEPS, 1
    yield ALL_STEPS, steps, STEPS // ROUNDS, 1
    yield MOD_SULQ, triangle, 3, 1
    yield ANALYZE_GAUSS, lambda: leading_eigenpairs(released(), k), 3, 1
    yield SPARSE, one_round, 3, 1
    for name, kind, times in ((PEELING, Peeling, 1), (GIBBS, OneSweep, SWEEPS)):
        mechanism = kind(n_components=k, epsilon=EPSILON, delta=DELTA)
        scale = SCORES * mechanism.noise_multiplier
        yield name, partial(mechanism.draw, _key(d), moment, scale=scale), 1, times


def _key(d: int) -> SecretKey:
    return subkey(d.to_bytes(32, "little"), label="noise", info=b"")


def _row(method: str, d: int, taken: tuple[float, float], *, times: int = 1) -> Row:
    return {
        "data": "one thread",
        "arm": method,
        "d": d,
        "milliseconds": times * taken[0],
        "wall milliseconds": times * taken[1],
        "printed milliseconds": PRINTED.get(method, {}).get(d, ""),
    }
