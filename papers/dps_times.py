"""Repeat Table 1 of the DPS-PCA paper: the time of each method, for a given covariance matrix.

The table has processor time on one thread, and wall time. It also has the time to form the covariance matrix, which the
paper leaves out. Noise comes from a floating-point generator, except for the draws of PPCA. Rows come from seeds, so
nothing is charged. Times depend on the machine, so only ratios of times are checked.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noisy_products import start_directions, truncated, truncated_step
from dpca_tasks.mechanisms.subspace.dps_pca import FREE_STEPS
from dpca_tasks.noise.bingham import GibbsChain, Peeling
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.queries.base import SQRT_2_UP
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.threads import one_thread
from papers.lib.claims import Claim, sentence
from papers.lib.experiments import (
    Check,
    Matrix,
    OutFolder,
    Report,
    at_least,
    isotropic,
    report,
    upper_noise,
)
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.kept_rows import KeptRows
from papers.lib.sparse_model import PAPER, Model, Records, noisy_step

type Row = dict[str, Any]

FEATURES, EPSILON, DELTA = (200, 400, 800), 1.0, 0.1
ROUNDS, SWEEPS, STEPS = 10, 100, 200
"""The numbers of rounds of DPS-PCA and of sweeps of the Gibbs chain in the paper, and the number of steps timed."""
STEP_MILLISECONDS = 1.0
SCORES = 2.0
"""The largest change of PPCA's score of a direction when one record is replaced."""
STEP, ALL_STEPS = "DPS-PCA, one step", f"DPS-PCA, {ROUNDS} steps"
TIMED_SULQ, TIMED_GAUSS, TIMED_SPARSE = "MOD-SULQ", "Analyze Gauss", "sparse Analyze Gauss"
PEELING, GIBBS = "PPCA by peeling", f"PPCA by Gibbs (not certified), {SWEEPS} times one sweep"
EXACT, FLOATS = "forming the covariance, exact integers", "forming the covariance, float32 BLAS"
PRINTED_TIMES: dict[str, dict[int, str]] = {
    ALL_STEPS: dict.fromkeys(FEATURES, "< 1"),
    TIMED_SULQ: {200: "8", 400: "21", 800: "97"},
    GIBBS: {200: "9820", 400: "37460", 800: "173780"},
}
"""The paper's times in milliseconds, on a 3.4 GHz processor."""


CHART = LineChart(
    title="Table 1: processor time on one thread, with a given covariance",
    x="d",
    y="milliseconds",
    log_y=True,
    x_label="number of features",
    arms=(ALL_STEPS, TIMED_SULQ, TIMED_GAUSS, TIMED_SPARSE, PEELING, GIBBS, EXACT, FLOATS),
)


def reproduce(*, records: Records = PAPER.n_records, out: OutFolder = None) -> Report:
    """Measure the time of DPS-PCA, MOD-SULQ, Analyze Gauss and PPCA with a given covariance, and of forming it.

    The rows are synthetic, so no budget is spent. PPCA by Gibbs sampling is timed for one sweep and multiplied.

    Returns
    -------
    Report
        With ``claims``, ``notes``, ``files`` and the table ``table1``.
    """
    rows = list(table_1(records))
    found = report(time_checks(rows), tables={"table1": rows})
    claims = list(time_claims(rows))
    return found | {
        "claims": [each.row() for each in claims],
        "notes": [sentence(each) for each in claims],
        "files": write_line_charts({"table1": rows}, {"table1": CHART}, out),
    }


class OneSweep(GibbsChain):
    """PPCA by Gibbs sampling with one sweep, to measure the time of a sweep."""

    sweeps: ClassVar[int] = 1


def table_1(n_records: int) -> Iterator[Row]:
    """For each number of features, yield the milliseconds of each method and of forming the covariance matrix."""
    for d in FEATURES:
        model = Model(n_features=d, n_records=n_records)
        rows, _ = model.draw(d)
        kept = KeptRows(source=ArrayBlocks(rows))
        with one_thread():
            yield _time_row(EXACT, d, milliseconds(kept.form_moment))
            yield _time_row(FLOATS, d, milliseconds(partial(np.matmul, rows.T, rows)))
            for method, work, repeats, times in _methods(kept.form_moment(), model):
                yield _time_row(method, d, milliseconds(work, repeats=repeats), times=times)


def time_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check ratios of the processor times of methods at the largest number of features."""
    taken = _at_most_features(rows)
    steps = f"divided by that of {ROUNDS} steps, d={max(row['d'] for row in rows)}"
    least = min(taken[name] for name in (TIMED_SULQ, PEELING, GIBBS))
    yield at_least(f"smallest processor time of MOD-SULQ and PPCA {steps}", 1.0, got=least / taken[ALL_STEPS])
    formed = min(taken[EXACT], taken[FLOATS])
    yield at_least(f"processor time of forming the covariance {steps}", 10.0, got=formed / taken[ALL_STEPS])


def time_claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """Compare the claims of the paper on Table 1 with the measurements: which method is faster, and growth with d."""
    taken, most = _at_most_features(rows), max(row["d"] for row in rows)
    yield Claim(
        item="Table 1, DPS-PCA",
        states="less than 1 ms at d = 800",
        measured=f"{taken[ALL_STEPS]:.1f} ms at d = {most}, and {taken[FLOATS]:.0f} ms for the covariance",
        holds=taken[ALL_STEPS] < STEP_MILLISECONDS,
    )
    order = [taken[ALL_STEPS], taken[TIMED_SULQ], taken[GIBBS]]
    yield Claim(
        item="Table 1, order",
        states="DPS-PCA is faster than MOD-SULQ, which is faster than PPCA",
        measured=" < ".join(f"{each:.1f} ms" for each in sorted(order)),
        holds=order == sorted(order),
    )


def _at_most_features(rows: Sequence[Row]) -> dict[str, float]:
    most = max(row["d"] for row in rows)
    return {row["arm"]: row["milliseconds"] for row in rows if row["d"] == most}


def milliseconds(work: Callable[[], object], *, repeats: int = 1) -> tuple[float, float]:
    """Return the median milliseconds of a call, in processor time and in wall time."""
    processor, wall = [], []
    for _ in range(repeats):
        began, began_wall = time.process_time(), time.perf_counter()
        work()
        processor.append(time.process_time() - began)
        wall.append(time.perf_counter() - began_wall)
    return 1e3 * float(np.median(processor)), 1e3 * float(np.median(wall))


def _methods(moment: Matrix, model: Model) -> Iterator[tuple[str, Callable[[], object], int, int]]:
    """Yield each method as (name, function, number of repetitions, factor by which the measured time is multiplied)."""
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
        return leading_eigenpairs(moment + once * upper_noise(rng, d), k)[1]

    def released() -> Matrix:
        return moment + once * isotropic(rng, d)

    def one_round() -> Matrix:
        noisy = released()
        directions = np.ascontiguousarray(leading_eigenpairs(noisy, k)[1].T)
        for _ in range(FREE_STEPS):
            directions = truncated_step(noisy, directions, rows_kept=kept)
        return directions

    yield STEP, lambda: step(sparse), STEPS, 1
    yield ALL_STEPS, steps, STEPS // ROUNDS, 1
    yield TIMED_SULQ, triangle, 3, 1
    yield TIMED_GAUSS, lambda: leading_eigenpairs(released(), k), 3, 1
    yield TIMED_SPARSE, one_round, 3, 1
    for name, kind, times in ((PEELING, Peeling, 1), (GIBBS, OneSweep, SWEEPS)):
        mechanism = kind(n_components=k, epsilon=EPSILON, delta=DELTA)
        scale = SCORES * mechanism.noise_multiplier
        key = subkey(d.to_bytes(32, "little"), label="noise", info=b"")
        yield name, partial(mechanism.draw, key, moment, scale=scale), 1, times


def _time_row(method: str, d: int, taken: tuple[float, float], *, times: int = 1) -> Row:
    return {
        "data": "one thread",
        "arm": method,
        "d": d,
        "milliseconds": times * taken[0],
        "wall milliseconds": times * taken[1],
        "printed milliseconds": PRINTED_TIMES.get(method, {}).get(d, ""),
    }
