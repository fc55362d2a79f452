"""The Markdown tables that `benchmarks.projection` writes into ``docs/scaling.md``.

The tables contain the measured constants, predicted and measured times of rounds, projected times on a cluster, and
estimates for published experiments.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.inputs import A9A_LIKE, DENSE, SYN
from benchmarks.projected_costs import (
    CORES,
    HUGE_ROWS,
    KINDS,
    MACHINES,
    MEMORY,
    PASSES,
    ROWS,
    WIDTH,
    WORKERS,
    Costs,
)
from benchmarks.scaling_model import Machine
from dpca_tasks.sums.partial_sums import SHARE

PAGE = Path(__file__).parent.parent / "docs/scaling.md"
DOLLARS = 0.768
"""The price in dollars of an hour of a machine with 16 virtual cores and 64 GiB: m5.4xlarge of Amazon EC2 in us-east-1,
Linux, on demand."""
SPARK_SHAPE = (94_000_000, 4_000, 17.0)  # rows, columns and stored values per row of a published Spark experiment
SYN_VALUES = 20.0  # stored values per row
CELLS_SHAPE = (982_490, 5_002)
HUGE_SECONDS = 98.0
"""The seconds of the release of `HUGE_ROWS` rows in `benchmarks.huge`, as stated in `PAGE`."""


def tables(machine: Machine, costs: Sequence[Costs], *, under: str) -> str:
    """Return all tables of the projection as Markdown: constants, predicted and measured rounds, projected costs.

    ``under`` is the first line, which states the machine and the versions.
    """
    named = {one.name: one for one in costs}
    return (
        "\n\n".join(
            "\n".join(lines)
            for lines in (
                _warning(under),
                _constants(machine, costs),
                _held_against(machine, costs),
                _huge(machine, named[A9A_LIKE.name]),
                _projection(machine, costs),
                _published(named),
            )
        )
        + "\n"
    )


def _warning(under: str) -> Iterator[str]:
    yield under
    yield ""
    yield (
        "The constants are valid for this machine, this load and these versions. For a different machine, measure them "
        "again with `python -m benchmarks.projection`."
    )


def _constants(machine: Machine, costs: Sequence[Costs]) -> Iterator[str]:
    touch, add, move = (f"{1e12 * each:.0f} us" for each in (machine.touch, machine.add, machine.move))
    yield (
        f"A round takes {1e3 * machine.start:.1f} ms, plus {1e3 * machine.task:.2f} ms for each task. A megabyte of a "
        f"partial sum takes {touch} to allocate, {add} to add and {move} to transfer to the client."
    )
    yield ""
    yield f"| rows | bytes | cores | read, us | grid, us | moment, us | product with {WIDTH}, us | the same, kept, us |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for one in costs:
        for busy, row in one.rows.items():
            numbers = " | ".join(
                f"{1e6 * each:.2f}" for each in (row.read, row.grid, row.moment, row.product, row.kept)
            )
            yield f"| `{one.name}`, {one.n_features} columns | {one.stored:.0f} | {busy} | {numbers} |"


def _held_against(machine: Machine, costs: Sequence[Costs]) -> Iterator[str]:
    yield "| round over | workers | " + " | ".join(f"{kind}, s | predicted over measured" for kind in KINDS) + " |"
    yield "|---|--:|" + "--:|" * 2 * len(KINDS)
    for one in costs:
        off = one.off(machine)
        for workers in WORKERS:
            cells = " | ".join(f"{one.measured[kind, workers]:.3f} | {off[kind, workers]:.2f}" for kind in KINDS)
            yield f"| `{one.name}` | {workers} | {cells} |"


def _huge(machine: Machine, one: Costs) -> Iterator[str]:
    predicted = one.huge(machine)
    yield (
        f"`make bench-huge` released {HUGE_ROWS:,} `{one.name}` rows on {max(WORKERS)} local workers in "
        f"{HUGE_SECONDS:.0f} s; the prediction is {predicted:.0f} s, or {predicted / HUGE_SECONDS:.2f} of it. This run "
        "was made separately, possibly on a different machine, so the ratio is not checked."
    )


def _projection(machine: Machine, costs: Sequence[Costs]) -> Iterator[str]:
    workers = MACHINES * CORES
    yield (
        f"{workers} workers declare {MEMORY // CORES >> 30} GiB of memory each. They keep gridded rows in memory "
        f"between products if these take at most {SHARE * MEMORY * MACHINES / 1e9:.0f} GB, {100 * SHARE:.0f} % of the "
        "declared memory. Otherwise each product reads the rows and rounds them to the grid again."
    )
    yield ""
    yield (
        f"| {ROWS:,} rows | GB | release by its moment, s | core-hours | dollars | "
        f"{PASSES} products, s | core-hours | dollars | rows between products |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for one in costs:
        formed = one.projected(machine, "moment") + one.noise + one.eigenpairs
        cells = " | ".join(_priced(seconds) for seconds in (formed, one.passes(machine)))
        between = "kept" if one.rows_remain else "read each time"
        yield f"| `{one.name}` | {ROWS * one.stored / 1e9:,.0f} | {cells} | {between} |"


def _priced(seconds: float) -> str:
    hours = seconds * MACHINES / 3_600
    return f"{seconds:,.1f} | {hours * CORES:.2f} | {hours * DOLLARS:.3f}"


def _published(costs: Mapping[str, Costs]) -> Iterator[str]:
    """Yield a table that estimates the time of dpca for the sizes of published experiments, in seconds of a core."""
    syn, dense = costs[SYN.name], costs[DENSE.name]
    rows, _, values = SPARK_SHAPE
    sparse_row, share = syn.rows[max(WORKERS)], values / SYN_VALUES
    spark = rows * (share * (sparse_row.read + sparse_row.grid) + share**2 * sparse_row.moment)
    cells, genes = CELLS_SHAPE
    full_row, wider = dense.rows[max(WORKERS)], genes / dense.n_features
    single = cells * (wider * (full_row.read + full_row.grid) + wider**2 * full_row.moment)
    yield "| published | size | figure | our constants, s of a core |"
    yield "|---|---|---|--:|"
    yield (
        "| Spark's `computeSVD`, 5 vectors ([Bosagh Zadeh et al. 2016](https://arxiv.org/abs/1509.02256), "
        "table of runtimes) | 94,000,000 x 4,000, 1.6*10^9 values | 50 s on 68 executors, 3,400 s of an executor "
        f"| {spark:,.0f} |"
    )
    yield (
        "| scanpy's PCA, 100 components, and that of rapids-singlecell ([runtimes of its authors]"
        "(https://github.com/theislab/rapids_singlecell-reproducibility/blob/main/benchmarks/speed/"
        "runtime_1Mcells.csv)) | 982,490 x 5,002, dense | 141 s on 48 threads; 18.1 s on an L40S, 1.98 s on an H200 "
        f"| {single:,.0f} |"
    )
