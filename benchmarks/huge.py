"""Ingest and release many a9a-like rows on two local workers, and check that time grows linearly with the rows.

``python -m benchmarks.huge [ROWS]`` writes the rows as shards (compressed Zarr stores) into a temporary folder, which
is removed at the end. It refuses more rows than fit on the disk. A quarter, a half and all of the shards are ingested
and released in turn, each on fresh workers.

The benchmark fails if the time per row differs too much between the three sizes. This is checked for ingest and release
together, and for the release alone. The benchmark also fails if the peak memory of a worker grows with the rows.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from benchmarks.gauges import peak_bytes, seconds_of
from benchmarks.homes import own_ledger
from benchmarks.inputs import A9A_LIKE, SEED, one_hot_rows
from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from flows.clusters.connecting import connect, open_cluster
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import SubspaceRequest
from flows.settings import Settings
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger

ROWS = 200_000_000
SHARD_ROWS = 1_000_000
SHARES = (4, 2, 1)  # the benchmark runs on a quarter, a half and all of the rows
LEFT_FREE = 15_000_000_000  # bytes of the disk that remain free
COPIES = 2.2  # needed disk space, as a multiple of the size of the shards; a snapshot is at most as large as these
TOLERANCE = 0.1
"""The allowed relative difference in time per row between sizes, of ingest and release together, and of the release."""

FLAT = 1.25
"""The largest allowed ratio of worker peaks between sizes; 450, 409 and 410 MB were measured, a factor of 1.10."""

WORKERS, COMPONENTS = 2, 10
EPSILON, DELTA = 1.0, 1e-12
WARM = "warm"
_CHUNK = 1 << 18
_LZ4 = BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of ingest and release at one number of rows: wall and processor seconds, and a worker's peak bytes."""

    rows: int
    ingest: float
    ingest_processor: float
    release: float
    release_processor: float
    peak: int

    def line(self) -> str:
        """Return the cost as one printable line, with times per ten million rows."""
        each = 1e7 / self.rows
        return (
            f"{self.rows:>13,} rows; per 10^7: ingest {each * self.ingest:.2f} s, of processors "
            f"{each * self.ingest_processor:.2f} s; release {each * self.release:.2f} s, of processors "
            f"{each * self.release_processor:.2f} s; worker peak {self.peak / 1e6:.0f} MB"
        )


def main(rows: int = ROWS) -> int:
    """Print one line per number of rows, and the verdict.

    Return 1 if the time is not linear in the rows or the memory grows, and 0 otherwise.
    """
    shard_rows = min(SHARD_ROWS, rows // max(SHARES))
    with tempfile.TemporaryDirectory() as folder, own_ledger(Path(folder) / "home") as ledger:
        first = Path(folder) / "shard-0.zarr"
        write_shard(first, shard_rows, seed=SEED)
        fitting = int((shutil.disk_usage(folder).free - LEFT_FREE) / (COPIES * _stored(first))) * shard_rows
        print(f"{_stored(first) / shard_rows:.1f} bytes a row in shards; the disk holds {fitting:,} rows", flush=True)
        if rows > fitting:
            print(f"{rows:,} rows do not fit; use at most {fitting:,}")
            return 1
        shards = [first]
        start = time.perf_counter()
        for number in range(1, rows // shard_rows):
            shards.append(Path(folder) / f"shard-{number}.zarr")
            write_shard(shards[-1], shard_rows, seed=SEED + number)
        print(f"{len(shards)} shards of {shard_rows:,} rows written in {time.perf_counter() - start:.0f} s", flush=True)
        warm = Path(folder) / "warm.zarr"
        write_shard(warm, max(shard_rows // 10, 1), seed=0)
        _ingest([warm], WARM, ledger)
        costs = []
        for share in SHARES:
            costs.append(measured(shards[: len(shards) // share], f"share-{share}", ledger, shard_rows=shard_rows))
            print(costs[-1].line(), flush=True)
    line, holds = verdict(costs)
    print(line)
    return int(not holds)


def verdict(costs: Sequence[Cost]) -> tuple[str, bool]:
    """Return the summary line, and whether total time, release time and worker memory meet their tolerances."""
    linear = _growth((cost.ingest + cost.release) / cost.rows for cost in costs)
    processor = _growth((cost.ingest_processor + cost.release_processor) / cost.rows for cost in costs)
    release = _growth(cost.release / cost.rows for cost in costs)
    peaks = _growth(cost.peak for cost in costs)
    line = (
        f"rows={costs[-1].rows} linear={linear:.3f} linear_of_processors={processor:.3f} "
        f"peak_mb={max(cost.peak for cost in costs) / 1e6:.0f} linear_of_release={release:.3f} flat={peaks:.3f}"
    )
    return line, max(linear, release) <= 1 + TOLERANCE and peaks <= FLAT


def _growth(times: Iterable[float]) -> float:
    taken = [*times]
    return max(taken) / min(taken)


def write_shard(path: Path, n_rows: int, *, seed: int) -> None:
    """Write a9a-like rows to a compressed Zarr group in CSR format."""
    rows = one_hot_rows(n_rows, seed=seed)
    group = zarr.create_group(path, attributes={"encoding-type": "csr_matrix", "shape": [*rows.shape]})
    arrays = {
        "data": rows.data.astype(np.uint8),
        "indices": rows.indices.astype(np.uint8),
        "indptr": rows.indptr.astype(np.int32),
    }
    for name, items in arrays.items():
        group.create_array(name, data=items, chunks=(_CHUNK,), compressors=_LZ4)


def measured(shards: list[Path], name: str, ledger: Ledger, *, shard_rows: int) -> Cost:
    """Ingest shards as one dataset, release a subspace of it on fresh workers, and remove the dataset.

    The workers first make a small release, so that all code is loaded before the measurement.
    """
    ingest_processor = time.process_time()
    ingest_seconds = seconds_of(lambda: _ingest(shards, name, ledger))
    ingest_processor = time.process_time() - ingest_processor
    scratch = ledger.home / "workers"
    with (
        open_cluster(Settings(cluster="local", workers=WORKERS), scratch=scratch) as address,
        connect(address) as client,
    ):
        assert client is not None
        client.wait_for_workers(WORKERS)

        def processor() -> float:
            return time.process_time() + float(sum(client.run(time.process_time).values()))

        _release(WARM, f"{WARM} before {name}", address)
        before = processor()
        seconds = seconds_of(lambda: _release(name, name, address))
        taken, peak = processor() - before, max(client.run(peak_bytes).values())
    Catalog(ledger.engine, ledger.home).remove(name, force=True)
    return Cost(
        rows=len(shards) * shard_rows,
        ingest=ingest_seconds,
        ingest_processor=ingest_processor,
        release=seconds,
        release_processor=taken,
        peak=peak,
    )


def _ingest(shards: list[Path], name: str, ledger: Ledger) -> None:
    options = IngestOptions(features=A9A_LIKE.n_features, density=A9A_LIKE.density)
    ingest(shards, name=name, home=ledger.home, engine=ledger.engine, options=options)
    ledger.open_budget(name, epsilon=100.0, delta=1e-6)


def _release(name: str, run_key: str, cluster: str) -> None:
    request = SubspaceRequest(
        dataset=name,
        components=COMPONENTS,
        epsilon=EPSILON,
        delta=DELTA,
        clip_norm=A9A_LIKE.clip_norm,
        publish="directions",
        run_key=run_key,
    )
    artifact = make_release(directly, request, Settings(cluster=cluster))["artifact"]
    assert Registry.open().load(artifact, PrivateSubspace).components.shape == (COMPONENTS, A9A_LIKE.n_features)


def _stored(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    raise SystemExit(main(*(int(float(argument)) for argument in sys.argv[1:])))
