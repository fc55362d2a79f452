"""Trials of the fuzzer: one malformed input is created, ingested, checked and removed."""

import resource
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random

import sqlalchemy as sa

from dpca.backends.local import LocalPlace
from dpca.errors import BadSource, Conflict, Invalid, StorageError
from dpca_tasks.errors import DpcaError
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from tests.fuzz.mutations import mutate, mutate_json, rebuild
from tests.fuzz.pool import Verdict
from tests.fuzz.seeds import Seed, files_of

NAME = "fuzzed"
MOST_MEMORY = 1_500_000
"""Memory in KiB that one input may take, beside what the process used before."""

_TEXT = (".svm", ".mtx", ".csv", ".tsv")
_EXPECTED = (BadSource, Invalid, Conflict)


class World:
    """A folder with valid sources, and a home with a ledger that ingests mutations of them."""

    def __init__(self, folder: Path, seeds: Sequence[Seed]) -> None:
        self._folder, self._seeds = folder, seeds
        self._contents = [path.read_bytes() for seed in seeds for path in files_of(seed.path)]
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self._engine = connect(f"sqlite:///{folder / 'dpca.sqlite'}")
        sa.event.listen(self._engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        with transaction(self._engine) as connection:
            connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
        self.catalog = Catalog(self._engine, self.home, LocalPlace(self.home))

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def make(self, number: int, *, base: int) -> Seed:
        """Return input number `number`, which is the same in every run with the same base."""
        rng = Random(f"{base}/{number}")
        seed = self._seeds[number % len(self._seeds)]
        path = self._folder / "source" / seed.path.name
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        (shutil.copytree if seed.path.is_dir() else shutil.copyfile)(seed.path, path)
        declared = dict(seed.declared)
        if rng.random() < 0.25:
            declared["on_error"] = "quarantine"
        if rng.random() < 0.1:
            declared["dtype"] = rng.choice(("int8", "bool", "float32", "int64"))
        if path.suffix in (".npz", ".npy", ".parquet", ".h5ad") and rng.random() < 0.5:
            rebuild(path, rng)
        else:
            self._mutate(path, rng)
        return Seed(path=path, declared=declared)

    def _mutate(self, path: Path, rng: Random) -> None:
        target = rng.choice(files_of(path))
        content = target.read_bytes()
        if target.suffix == ".json" and rng.random() < 0.8:
            target.write_bytes(mutate_json(content, rng))
        elif path.is_dir() and rng.random() < 0.15:
            target.unlink()
        else:
            is_text = any(mark in path.name for mark in _TEXT)
            target.write_bytes(mutate(content, rng, self._contents, is_text=is_text))

    def judge(self, source: Seed) -> Verdict:
        """Ingest a source, check the result, and remove it."""
        limit = max(_peak_memory(), _memory() + MOST_MEMORY)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            verdict = self._ingest(source)
        if shown:
            verdict = Verdict(kind="other", detail=f"warns: {shown[0].message}")
        if (left := self._left()) or _peak_memory() > limit:
            verdict = Verdict(kind="partial" if left else "other", detail=left or "took too much memory")
            shutil.rmtree(self.home)
            self.home.mkdir()
        return verdict

    def _ingest(self, source: Seed) -> Verdict:
        try:
            report = ingest(
                source.path,
                name=NAME,
                home=self.home,
                engine=self.catalog.engine,
                place=self.catalog.place,
                options=IngestOptions(**source.declared),
            )
        except _EXPECTED as error:
            message = str(error)
            is_clear = message and len(message.splitlines()) == 1 and "Traceback" not in message
            return Verdict(kind="refused" if is_clear else "other", detail=message)
        except (StorageError, DpcaError) as error:
            return Verdict(kind="other", detail=f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - every error is counted
            return Verdict(kind="other", detail=_where(error))
        found = {path.name for path in (self.home / "datasets" / NAME).iterdir()}
        if not found <= {report.snapshot, f"{report.snapshot}.rejected.csv"}:
            return Verdict(kind="partial", detail=f"beside the snapshot: {sorted(found)}")
        try:
            is_whole = self.catalog.verify(NAME) == report.content_digest
            self.catalog.remove(NAME)
        except Exception as error:  # noqa: BLE001
            return Verdict(kind="partial", detail=_where(error))
        return Verdict(kind="accepted" if is_whole else "partial", detail="")

    def _left(self) -> str:
        """Return a description of what a removed dataset left behind, or an empty text."""
        table = tables.snapshot
        with transaction(self.catalog.engine) as connection:
            rows = connection.scalar(sa.select(sa.func.count()).where(table.c.removed_at.is_(None)))
        kept = [
            path
            for path in self.home.rglob("*")
            if (parts := path.relative_to(self.home).parts) not in _EMPTY and not _of_arrivals(parts)
        ]
        return f"left: {rows} rows, {[path.name for path in kept]}" if rows or kept else ""


def _peak_memory() -> int:
    """Return the maximum resident memory of this process so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _memory() -> int:
    """Return the resident memory of this process, in KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


_EMPTY = (("datasets",), ("scratch",), ("keys",))


def _of_arrivals(parts: tuple[str, ...]) -> bool:
    """Return whether a path is kept when a dataset is removed.

    Such files contain first-seen ids, or the key by which a population's ids are hashed.
    """
    return parts[0] == "arrivals" or (parts[0] == "keys" and parts[1].startswith(("arrivals-", "owners-")))


def _where(error: Exception) -> str:
    place = error.__traceback__
    trail = []
    while place is not None:
        trail.append(f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}")
        place = place.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} at {' '.join(trail[-4:])}"
