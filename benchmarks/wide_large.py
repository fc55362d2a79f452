"""Release a subspace of 50,000 columns, and project the cost at 100,000 columns from the measured parts.

``python -m benchmarks.wide_large [FEATURES]`` runs on two local workers. Noise that does not fit in the memory of the
workers is drawn again for every product. The projection uses the measured time to draw and to apply one coordinate of
noise.
"""

import sys
import time
from collections.abc import Callable

import dask
import numpy as np
from distributed import Client, LocalCluster
from numpy.typing import NDArray

from benchmarks.gauges import peak_bytes
from benchmarks.inputs import text_rows
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.eigenpairs import block_width
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.tiled_noise import NoiseOperator, Panel, draw_panel, multiply
from dpca_tasks.records.blocks import ArrayBlocks
from flows.clusters.dask_clusters import LOCAL_SETTINGS

WORKERS = 2
N_ROWS = 300_000
COMPONENTS = 10
TARGET = PrivacyTarget(epsilon=4.0, delta=1e-6)
PROJECTED = 100_000
SAMPLE = 1 << 24  # number of noise coordinates on which the time per coordinate is measured


def main(features: int = 50_000) -> None:
    """Release a subspace, and print its cost, the measured time per coordinate, and the cost at `PROJECTED` columns."""
    rows = text_rows(N_ROWS, n_features=features)
    problem = Problem(n_features=features, clip_norm=1.0, records_at_most=N_ROWS)
    mechanism = AnalyzeGauss(n_components=COMPONENTS, form="operator")
    plan = mechanism.plan(problem, TARGET)
    products: list[float] = []
    begin = NoiseOperator.begin

    def timed(self: NoiseOperator, directions: NDArray[np.integer]) -> Callable[[], NDArray[np.int64]]:
        products.append(time.perf_counter())
        return begin(self, directions)

    NoiseOperator.begin = timed  # type: ignore[method-assign]
    with (
        dask.config.set(LOCAL_SETTINGS),
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        curator = Curator(
            ArrayBlocks(rows, block_records=50_000),
            InMemoryReservation(event=plan.event, relation=plan.problem.relation),
            client=client,
        )
        start = time.perf_counter()
        found = mechanism.run(curator, plan)
        seconds = time.perf_counter() - start
        peak = max(client.run(peak_bytes).values()) / 1e9
    assert found.components.shape == (COMPONENTS, features)
    normal, entry = _constants(plan.noise_multiplier, block_width(features, COMPONENTS))
    print(
        f"wide-large d={features} k={COMPONENTS}: {seconds:.0f} s, {len(products)} products, "
        f"{seconds / len(products):.1f} s each, worker peak {peak:.2f} GB"
    )
    print(f"one core: {1e9 * normal:.1f} ns per normal deviate, {1e9 * entry:.2f} ns per entry and product")
    each = PROJECTED * (PROJECTED + 1) / 2 * (normal + entry) / WORKERS
    print(f"projected d={PROJECTED}: {each:.0f} s a product, {each * len(products):.0f} s for {len(products)}")


def _constants(multiplier: float, width: int) -> tuple[float, float]:
    """Measure the seconds of one core to draw a noise coordinate, and to multiply it by ``width`` directions."""
    key, law = subkey(bytes(32), label="benchmark", info=b"wide"), Symmetric(noise_multiplier=multiplier)
    panel = Panel(distribution=law, key=key, order=PROJECTED, scale_in_steps=2.0**26, first=0, last=SAMPLE // PROJECTED)
    directions = np.ones((PROJECTED, width), np.int64)
    start = time.perf_counter()
    drawn = draw_panel(panel)
    between = time.perf_counter()
    multiply(drawn, directions)
    return (between - start) / SAMPLE, (time.perf_counter() - between) / SAMPLE


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
