"""Program that makes a thousand releases in one home, and compares the cost of the first fifty and the last fifty.

After a thousand releases, a release must cost as much processor time and as many bytes as at the beginning. No release
may leave a temporary file, process or open file. Some releases start a cluster of processes; all are published under
five names. Only the pointer file of a name is documented to grow, by one line for each version.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from storage.workspace import Workspace
from tests.crash.recount import leftovers, query
from tests.crash.world import DELTA, POPULATION, World, attempt, ingest_rows

CLUSTER_EVERY = 100
"""One in this many releases starts a cluster, and is not timed."""
WARM = 3
"""Warm-up releases, made first so that everything is imported and compiled."""
SLOWER_AT_MOST, LARGER_AT_MOST = 1.5, 1.1
POINTER_LINE = 80
"""Maximum growth in bytes, for each version, of each of the two pointer files of its name."""
PARTS = {
    "database": ("dpca.sqlite",),
    "artifacts": ("registry/artifacts", "registry/signatures"),
    "pointers": ("registry/names", "registry/signed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measurements of the home and of this process after some releases.

    Attributes
    ----------
    seconds : float, median processor time of the releases since the previous sample
    sizes : mapping of part of the home to its size in bytes
    files, children, temporary : int, numbers of open files, child processes, and temporary files
    """

    seconds: float
    sizes: Mapping[str, int]
    files: int
    children: int
    temporary: int

    @classmethod
    def of(cls, world: World, seconds: float) -> "Sample":
        """Measure a home and this process."""
        gc.collect()
        sizes = {part: sum(map(_size, (world.home / path for path in paths))) for part, paths in PARTS.items()}
        sizes["witness"] = _size(world.state)
        sizes["rest"] = _size(world.home) - sum(sizes[part] for part in PARTS)
        tasks = Path("/proc/self/task")
        children = sum(len((task / "children").read_text().split()) for task in tasks.iterdir())
        files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only names are needed
        temporary = sum(1 for _ in Path(tempfile.gettempdir()).iterdir())
        return cls(seconds=seconds, sizes=sizes, files=files, children=children, temporary=temporary)


def soak(world: World, *, releases: int, few: int) -> list[Sample]:
    """Make the releases; return samples at the start, after the first few, before the last few, and at the end."""
    world.enter()
    ingest_rows(world.home)
    Workspace.open().ledger.open_budget(POPULATION, epsilon=100.0, delta=DELTA, failure_delta=0.0)
    for run in range(WARM):  # the first releases import and compile everything
        attempt(world, run, 0, cluster="none" if run else "local")
    samples: list[Sample] = []
    spent = [0.0]
    ends = (0, few, releases - few, releases)
    for done in range(releases):
        if done in ends:
            samples.append(Sample.of(world, median(spent)))
            spent.clear()
        is_timed = (done + 1) % CLUSTER_EVERY != 0
        began = time.process_time()
        attempt(world, WARM + done, 0, cluster="none" if is_timed else "local")
        if is_timed:
            spent.append(time.process_time() - began)
    return [*samples, Sample.of(world, median(spent))]


def found(world: World, samples: list[Sample], *, releases: int, few: int) -> list[str]:
    """Return a line for everything that grew or was left behind and must not."""
    start, first, before, last = samples
    wrong = []
    if last.seconds > SLOWER_AT_MOST * first.seconds:
        wrong.append(f"a release took {first.seconds:.3f} s at first and takes {last.seconds:.3f} s in the end")
    for part in last.sizes:
        grew, grows = first.sizes[part] - start.sizes[part], last.sizes[part] - before.sizes[part]
        # tolerance in bytes, because SQLite and the witness grow by whole pages
        more = 2 * POINTER_LINE * few if part == "pointers" else 1 << 16
        if grows > LARGER_AT_MOST * grew + more:
            wrong.append(f"{few} releases added {grew} bytes of {part} at first and add {grows} in the end")
    for what in ("files", "children", "temporary"):
        if getattr(last, what) > getattr(first, what):
            wrong.append(f"{what}: {getattr(first, what)} after {few} releases, {getattr(last, what)} in the end")
    wrong += [f"left: {path}" for path in leftovers(world.home)]
    counts = {name: query(world, statement)[0][0] for name, statement in _COUNTS.items()}
    if set(counts.values()) != {WARM + releases}:
        wrong.append(f"{counts} of {WARM + releases} requests")
    return wrong


_COUNTS = {
    "committed": "SELECT count(*) FROM release WHERE state = 'committed'",
    "charged": "SELECT count(*) FROM event WHERE name = 'release_reserved'",
    "published": "SELECT count(*) FROM version",
}


def _size(path: Path) -> int:
    paths = path.rglob("*") if path.is_dir() else [path]
    return sum(each.lstat().st_size for each in paths if each.is_file())


def main() -> int:
    """Make the releases, print the cost of the first and the last few, and fail if anything grew."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--releases", type=int, default=1_000)
    options.add_argument("--few", type=int, default=50, help="number of releases compared at the start and at the end")
    options.add_argument("--folder", type=Path, help="folder for the test home")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpca-home-", dir=given.folder) as root:
        tempfile.tempdir = f"{root}/tmp"
        Path(tempfile.tempdir).mkdir()
        world = World(home=Path(root) / "home")
        world.home.mkdir(mode=0o700)
        began = time.monotonic()
        samples = soak(world, releases=given.releases, few=given.few)
        wrong = found(world, samples, releases=given.releases, few=given.few)
        start, first, before, last = samples
        for name, one, other in (("first", start, first), ("last", before, last)):
            sizes = ", ".join(f"{(other.sizes[part] - one.sizes[part]) / given.few:.0f} {part}" for part in one.sizes)
            print(f"{name} {given.few}: {other.seconds * 1e3:.0f} ms of processor time and bytes for each: {sizes}")
        print(f"open files {first.files} and {last.files}, children {first.children} and {last.children}, "
              f"temporary files {first.temporary} and {last.temporary}")  # fmt: skip
        tempfile.tempdir = None
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"releases={given.releases} wrong={len(wrong)}; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
