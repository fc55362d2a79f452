"""Program that ingests 10,000 malformed inputs: ``python -m tests.fuzz.run``. The last output line is the verdict.

Input number n is the same in every run with the same ``--base``; ``--only n`` shows the outcome of one. Each worker is
a separate process, so a worker that hangs, dies or exhausts memory affects no other input.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.pool import Judge, run
from tests.fuzz.seeds import Seed, write_seeds
from tests.fuzz.trial import World

BASE = 20_261_121
MOST_ADDRESSES = 6 << 30
"""Bytes of address space that a worker may allocate beyond its initial ones, so that no huge shape is trusted."""
KINDS = ("refused", "accepted", "other", "partial", "hung")


def main() -> int:
    """Test all inputs, print each failed one, and end with the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, metavar="N")
    parser.add_argument("--base", type=int, default=BASE, metavar="SEED")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--only", type=int, metavar="N", help="test this input alone, and keep it in ./fuzzed")
    requested = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpca-fuzz-", dir=_fast_folder()) as folder:
        seeds = write_seeds(Path(folder) / "seeds")
        if requested.only is not None:
            world = World(Path("fuzzed"), seeds)
            source = world.make(requested.only, base=requested.base)
            print(source, world.judge(source), sep="\n")
            return 0
        numbers = range(requested.inputs)
        verdicts: Counter[str] = Counter()
        for number, verdict in run(numbers, in_world, (Path(folder), seeds, requested.base), workers=requested.workers):
            verdicts[verdict.kind] += 1
            if verdict.kind not in ("refused", "accepted"):
                print(f"input {number}: {verdict.kind}: {verdict.detail}", flush=True)
    print(f"{time.monotonic() - started:.0f} s")
    print(f"inputs={verdicts.total()}", *(f"{kind}={verdicts[kind]}" for kind in KINDS))
    is_clean = verdicts["refused"] + verdicts["accepted"] == requested.inputs
    return 0 if is_clean and verdicts["refused"] and verdicts["accepted"] else 1


def in_world(folder: Path, seeds: list[Seed], base: int) -> Iterator[Judge]:
    """Yield a function that tests inputs in this process, with limited memory and without disk synchronization."""
    os.fsync = _do_not_wait
    world = World(Path(tempfile.mkdtemp(dir=folder)), seeds)
    world.judge(Seed(path=seeds[0].path, declared=seeds[0].declared))  # triggers all compilation
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    yield lambda number: world.judge(world.make(number, base=base))


def _do_not_wait(fd: Any) -> None:
    """Do nothing, as a replacement for ``os.fsync``."""


def _fast_folder() -> str | None:
    """Return a folder in memory if there is one; the fuzzer tests readers and not disks."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
