"""``make bench-quick``: measure ten ratios again, and compare each with the results of `make bench` in `README.md`.

A ratio may be up to `SLACK` worse than in the table. The exit code is 1 if any ratio is worse than that.

>>> table = "| `gram/syn/scipy-product` | 10.00 | 9.00 | at least 3.5 | holds | 0.1 | 1 |"
>>> limited(table)["gram/syn/scipy-product"].line()
'gram/syn/scipy-product 10.00 8.5 holds'
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.ratios import Ratio
from benchmarks.table import README

SLACK = 0.15
"""The part by which a ratio may be worse than in the table, because timings vary from run to run."""
MEASURED = {
    "bench_kernels.py::bench_gram[a9a-like]": "gram/a9a-like/scipy-product",
    "bench_kernels.py::bench_dense_gram": "dense_gram/dsyrk",
    "bench_kernels.py::bench_packed_gram[uniform-20]": "packed_gram/uniform-20/loop",
    "bench_kernels.py::bench_moment_product[a9a-like-20]": "moment_product/a9a-like-20/scipy-products",
    "bench_noise.py::bench_normals[12m]": "normals/12m/numpy-pcg64",
    "bench_noise.py::bench_symmetric_noise[2000]": "symmetric_noise/2000/numpy-pcg64",
    "bench_reads.py::bench_read[a9a-like]": "read/a9a-like/anndata",
    "bench_spine.py::bench_ingest_svmlight[a9a-like]": "ingest_svmlight/a9a-like/sklearn-read",
    "bench_cluster.py::bench_over_numpy": "over_numpy/numpy-gram-eigh",
    "bench_cluster.py::bench_empty_round[product]": "empty_round/product/over-bare-dask",
}
"""The ten benchmarks, and the ratio of each that is compared."""


def limited(text: str) -> dict[str, Ratio]:
    """Return all ratios in a text with a Markdown table of results, by name; the bar of each is its limit."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    found = {}
    for row in (row for row in cells if len(row) in (6, 7) and row[1]):  # a column more if there was a loaded run
        name, value, at_most = row[0].strip("`"), float(row[1]), row[-4].startswith("at most")
        found[name] = Ratio(name=name, value=value, bar=value * (1 + SLACK if at_most else 1 - SLACK), at_most=at_most)
    return found


def main() -> int:
    """Run the ten benchmarks, print one line for each, and return the exit code."""
    table = limited(README.read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder:
        report = Path(folder, "ratios.json")
        nodes = [f"benchmarks/{node}" for node in MEASURED]
        command = [sys.executable, "-m", "pytest", *nodes, "-q", "--timeout=0", "--benchmark-columns=median,rounds"]
        ended = subprocess.run([*command, "--ratios", str(report)], check=False).returncode
        if ended:
            return ended
        found = {ratio["name"]: ratio["ratio"] for ratio in json.loads(report.read_text())["ratios"]}
    measured = [replace(table[name], value=found[name]) for name in MEASURED.values()]
    print(*(ratio.line() for ratio in measured), sep="\n")
    return 0 if all(ratio.holds for ratio in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
