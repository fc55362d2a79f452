"""Ingest a generated svmlight file in a child process, and report the child's peak memory.

``python -m benchmarks.ingest_large [GIGABYTES]`` works in a temporary folder, which is removed at the end.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

N_FEATURES = 20_000
ROW_NNZ = 40
PIECE_ROWS = 20_000
BOUND_MB = 1000

_INGEST = """
import sys
from pathlib import Path
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.workspace import Workspace
ledger = Workspace.open().ledger
options = IngestOptions(features=int(sys.argv[2]))
report = ingest(sys.argv[1], name="large", home=ledger.home, engine=ledger.engine, options=options)
print(report.rows, report.nnz)
"""


def write_rows(path: Path, size: int) -> tuple[int, int]:
    """Write a file of svmlight text with at least `size` bytes; return its numbers of rows and of stored values."""
    rng = np.random.default_rng(0)
    step = N_FEATURES // ROW_NNZ  # draw one column from each range of `step` columns, so that columns increase in a row
    columns = rng.integers(step, size=(PIECE_ROWS, ROW_NNZ)) + np.arange(ROW_NNZ) * step + 1
    values = np.round(rng.gamma(2.0, 0.5, (PIECE_ROWS, ROW_NNZ)) + 1e-3, 6)
    lines = (
        "1 " + " ".join(f"{column}:{value}" for column, value in zip(*row, strict=True))
        for row in zip(columns.tolist(), values.tolist(), strict=True)
    )
    piece = ("\n".join(lines) + "\n").encode()
    pieces = -(-size // len(piece))
    with path.open("wb") as file:
        for _ in range(pieces):
            file.write(piece)
    return pieces * PIECE_ROWS, pieces * PIECE_ROWS * ROW_NNZ


def main(gigabytes: float = 5.0) -> int:
    """Ingest a generated file, print the result, and return 1 if the child's peak memory reached its bound."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.svm"
        expected = write_rows(path, int(gigabytes * 1e9))
        size = path.stat().st_size
        start = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-c", _INGEST, str(path), str(N_FEATURES)],
            env={"DPCA_HOME": str(Path(folder) / "home"), "DPCA_STATE_FOLDER": str(Path(folder) / "state")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    assert tuple(map(int, child.stdout.split())) == expected
    verdict = "holds" if peak < BOUND_MB else "falls short"
    print(
        f"bench-ingest {size / 1e9:.2f} GB svmlight, {seconds:.0f} s, {size / 1e6 / seconds:.0f} MB/s, "
        f"peak RSS {peak:.0f} MB, bound {BOUND_MB} MB {verdict}"
    )
    return int(peak >= BOUND_MB)


if __name__ == "__main__":
    raise SystemExit(main(*map(float, sys.argv[1:])))
