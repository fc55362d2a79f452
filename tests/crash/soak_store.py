"""Soak of a misbehaving object store: ingest, release, promote, load, back up and restore while the store lies.

Each lie has two worlds: one in which it is active a few times in each step, as in a store that recovers, and one in
which it is always active. A step that succeeded during the lie must prove correct when checked without lies. A step
that failed must have reported it in one line, and is repeated on an honest store. At the end there are one release, one
charge and one version, and the artifact has the digest of an undisturbed run.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, repeat
from pathlib import Path

import pytest

from dpca.backends import s3
from dpca.backends.local import open_place
from dpca.errors import Corrupt, NotFound, StorageError
from dpca.registry.reader import Registry
from dpca_tasks.errors import DpcaError
from storage.backups.copying import Target, create_backup, restore_backup
from storage.datasets import snapshot_reader
from storage.workspace import Workspace
from tests.crash.lying_store import LIES, LyingStore, lying_store
from tests.crash.recount import query
from tests.crash.world import DATASET, DELTA, POPULATION, World, attempt, ingest_rows, request_of
from tests.s3 import Server, serve

RUN = 0
NAME = request_of(RUN).publish
FEW, ALWAYS = 2, 1 << 30
"""Number of lies of a store that recovers, and of one that does not."""
_PATIENCE = "500ms"  # time limit of a client for one request to a lying store
_RETRIES = 1  # number of retries of a client at a lying store, fewer than its default


class Wrong(Exception):
    """Error: the product accepted a wrong answer of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One home with its ledger, the prefix that it uses in the object store, and the expected artifact digest."""

    world: World
    prefix: str
    expected: str | None
    tries: list[str] = field(default_factory=list)

    def ingest(self) -> None:
        """Ingest the rows."""
        ingest_rows(self.world.home)

    def ingested(self) -> None:
        """Read every block of the snapshot."""
        workspace = Workspace.open()
        workspace.catalog.verify(DATASET)
        workspace.ledger.open_budget(POPULATION, epsilon=10.0, delta=DELTA, failure_delta=0.0)

    def release(self) -> None:
        """Make the release request, always with the same noise key."""
        attempt(self.world, RUN, 0)

    def released(self) -> None:
        """Load the published artifact, and check that there are one release, one charge and one version."""
        found = Registry.open().verify(f"{NAME}@1")
        if self.expected not in (None, found.digest):
            raise Wrong(f"{found} differs from the artifact of an undisturbed run")
        for what, statement in _COUNTS.items():
            ((count,),) = query(self.world, statement)
            if count != 1:
                raise Wrong(f"expected 1 and found {count} {what}")

    def promote(self) -> None:
        """Move an alias."""
        Workspace.open().promote(NAME, version=1, alias="champion")

    def promoted(self) -> None:
        """Check that the alias resolves to the version."""
        if Registry.open().resolve(f"{NAME}@champion").version != 1:
            raise Wrong("the alias does not name the promoted version")

    def load(self) -> None:
        """Load the artifact as a consumer; the digest must be that of the published artifact."""
        found = Registry.open().verify(f"{NAME}@1")
        if found.digest != self.expected is not None:
            raise Wrong(f"a consumer loaded another artifact than the published one: {found.digest}")

    def back_up(self) -> None:
        """Back up everything, including rows."""
        self.start_over()
        if missing := create_backup(self._backup, datasets=True).missing:
            raise Corrupt(f"warning: {len(missing)} files or folders are lost or damaged")

    def backed_up(self) -> None:
        """Do nothing, because `restored` later reads the whole backup."""

    def restore(self) -> None:
        """Restore everything into an empty home and another prefix of the same store."""
        self.start_over(backup=False)
        restore_backup(self._backup, into=self._target)

    def restored(self) -> None:
        """Compare the restored files with the originals, file by file."""
        here, there = Workspace.open().store, self._target.place
        for folder in ("datasets", "registry"):
            if (paths := here.paths(folder)) != there.paths(folder):
                raise Wrong(f"{len(there.paths(folder))} of {len(paths)} files of {folder} were restored")
            for path in paths:
                if here.read(f"{folder}/{path}").payload != there.read(f"{folder}/{path}").payload:
                    raise Wrong(f"{folder}/{path} was restored with other content")

    def remove(self) -> None:
        """Remove the dataset; it may be missing already if an earlier attempt removed it and then failed."""
        with suppress(NotFound):
            Workspace.open().catalog.remove(DATASET, force=True)

    def removed(self) -> None:
        """Check that no rows of the dataset remain."""
        if left := Workspace.open().store.paths("datasets"):
            raise Wrong(f"{len(left)} files of a removed dataset remain")

    def start_over(self, *, backup: bool = True) -> None:
        """Follow the error messages: move away files of a failed attempt, and restore into an empty prefix."""
        if backup:
            shutil.rmtree(self._backup, ignore_errors=True)
        shutil.rmtree(self._target.home)
        self.tries.append("again")

    @property
    def _backup(self) -> Path:
        return self.world.home.with_name(f"{self.world.home.name}-backup")

    @property
    def _target(self) -> Target:
        home = self.world.home.with_name(f"{self.world.home.name}-restored")
        home.mkdir(mode=0o700, exist_ok=True)
        place = open_place(f"{self.prefix}-restored-{len(self.tries)}")
        return Target(home=home, database_url=f"sqlite:///{home / 'dpca.sqlite'}", keys=home / "keys", place=place)


_COUNTS = {
    "releases": "SELECT count(*) FROM release WHERE state = 'committed'",
    "charges": "SELECT count(*) FROM event WHERE name = 'release_reserved'",
    "versions": "SELECT count(*) FROM version",
}

type Step = tuple[str, Callable[[Scene], None], Callable[[Scene], None]]
STEPS: tuple[Step, ...] = (
    ("ingest", Scene.ingest, Scene.ingested),
    ("release", Scene.release, Scene.released),
    ("promote", Scene.promote, Scene.promoted),
    ("load", Scene.load, Scene.released),
    ("back up", Scene.back_up, Scene.backed_up),
    ("restore", Scene.restore, Scene.restored),
    ("remove", Scene.remove, Scene.removed),
)


@dataclass(kw_only=True)
class Report:
    """Counts of lies, and the error lines of the detected lies."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: dict[str, set[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def play(proxy: LyingStore, scene: Scene, lie: str, *, often: Iterable[int], report: Report) -> None:
    """Run every step while the store lies; repeat a step without lies if it failed, and check its result."""
    for (name, take, inspect), times in zip(STEPS, often, strict=False):
        what = f"{name} under {lie}, {'always' if times == ALWAYS else f'{times} times'}"
        snapshot_reader._open_handles.cache_clear()  # clear cached handles of open snapshots, as a new process has none
        with proxy.lying(lie, times=times), _impatient():
            try:
                take(scene)
                outcome = "harmless"
            except (StorageError, DpcaError) as error:
                outcome = "noticed"
                report.lines.setdefault(lie, set()).add(f"{name}: {error}")
                if "\n" in str(error):
                    report.wrong.append(f"{what}: more than one line: {error}")
            except Exception as error:  # noqa: BLE001 - every error is counted
                outcome = "wrong"
                report.wrong.append(f"{what}: {type(error).__name__}: {error}")
        report.counts["lies"] += proxy.lies_sent
        report.counts[outcome if proxy.lies_sent else "not told"] += 1
        try:
            snapshot_reader._open_handles.cache_clear()
            if outcome != "harmless":
                take(scene)
            inspect(scene)
        except Exception as error:  # noqa: BLE001
            report.wrong.append(f"{what} was {outcome}; then, honestly: {type(error).__name__}: {error}")
            return


@contextmanager
def _impatient() -> Iterator[None]:
    """Give clients opened in this context short timeouts.

    Other clients keep the default timeouts, because an honest store may be slow on a busy machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_TIMEOUT", _PATIENCE)
        patch.setattr(s3, "_MAX_RETRIES", _RETRIES)
        yield


@contextmanager
def scenes(root: Path, server: Server) -> Iterator[Callable[[str], Scene]]:
    """Yield a function that makes a new world; each must publish the artifact of the first, undisturbed world."""
    old = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(server.environment)
    expected: str | None = None

    def make(name: str) -> Scene:
        world = World(home=root / name)
        world.home.mkdir(mode=0o700)
        world.enter()
        prefix = os.environ["DPCA_STORE_URL"] = server.url(f"{root.name}/{name}")
        return Scene(world=world, prefix=prefix, expected=expected)

    try:
        calm = make("calm")
        for _, take, inspect in STEPS[:2]:
            take(calm)
            inspect(calm)
        expected = Registry.open().resolve(NAME).digest
        yield make
    finally:
        os.environ.clear()
        os.environ.update(old)


def soak(root: Path, server: Server, proxy: LyingStore, lies: Iterable[str], *, is_brief: bool) -> Report:
    """Run all steps under each lie in two worlds: with a few lies in one, and with the lie always active in the other.

    A brief soak has one world for each lie, and alternates between the two by step.
    """
    report, orders = Report(), ((FEW, ALWAYS), (ALWAYS, FEW))
    with scenes(root, server) as make:
        for number, lie in enumerate(lies):
            for which, often in enumerate([cycle(orders[number % 2])] if is_brief else [repeat(FEW), repeat(ALWAYS)]):
                began = time.monotonic()
                play(proxy, make(f"{lie}-{which}"), lie, often=often, report=report)
                report.seconds[f"{lie} {which}"] = time.monotonic() - began
    return report


def main() -> int:
    """Run the steps under every lie, print the results, and fail if a wrong answer of the store was accepted."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, help="folder for the test homes")
    options.add_argument("--lies", nargs="*", choices=[*LIES], default=[*LIES], help="lies to test; all by default")
    options.add_argument("--brief", action="store_true", help="use one world for each lie, not two")
    options.add_argument("--lines", action="store_true", help="print the error lines of each lie")
    given, began = options.parse_args(), time.monotonic()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpca-lies-", dir=given.folder)))
        proxy, server = stack.enter_context(lying_store(stack.enter_context(serve())))
        report = soak(root, server, proxy, given.lies, is_brief=given.brief)
    if given.lines:
        for lie, lines in report.lines.items():
            print(f"{lie}:", *sorted(lines), sep="\n  ")
        print(", ".join(f"{lie} {seconds:.0f} s" for lie, seconds in report.seconds.items()))
    for wrong in report.wrong:
        print(wrong, file=sys.stderr, flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(report.counts.items()))
    print(f"{len(given.lies)} lies: {counts}, {len(report.wrong)} believed; {time.monotonic() - began:.0f} s")
    return 1 if report.wrong or not report.counts["lies"] else 0


if __name__ == "__main__":
    sys.exit(main())
