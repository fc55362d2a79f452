"""The fuzzer, its pool of workers, and broken schemas.

- Malformed inputs are refused in one line, or are valid rows; the fuzzer detects all other outcomes.
- Every input gets a verdict, even if its worker dies.
- Every command that reads a schema refuses a broken one in one line, and leaves nothing behind.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpca.errors import BadSource, Unavailable
from storage.datasets.ingest import ingest
from storage.formats import dense
from tests.flows.conftest import Command, facts_of, isolate
from tests.flows.conftest import dpca as dpca  # a fixture
from tests.fuzz import trial
from tests.fuzz.pool import Judge, Verdict, run
from tests.fuzz.run import BASE
from tests.fuzz.seeds import Seed, write_seeds
from tests.fuzz.trial import World
from tests.raw_tables import TABLES

INPUTS = 84


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Seed]:
    return write_seeds(tmp_path_factory.mktemp("fuzz") / "seeds")


@pytest.fixture
def world(tmp_path: Path, seeds: list[Seed], monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    opened = World(tmp_path / "world", seeds)
    yield opened
    opened.close()


@pytest.fixture
def rows(world: World) -> Seed:
    """Return a valid source of rows for a command."""
    np.save(world.home.with_name("x.npy"), np.eye(3))
    return Seed(path=world.home.with_name("x.npy"))


def test_every_seed_is_ingested(world: World, seeds: list[Seed]) -> None:
    assert {seed.path.name: world.judge(seed).kind for seed in seeds} == dict.fromkeys(
        (seed.path.name for seed in seeds), "accepted"
    )


@pytest.mark.parametrize(
    ("before", "resident", "after", "kind"),
    [
        (3_000_000, 300_000, 3_000_000, "accepted"),
        (3_000_000, 2_900_000, 3_100_000, "accepted"),
        (3_000_000, 300_000, 3_000_001, "other"),
        (300_000, 300_000, 1_800_001, "other"),
    ],
)
def test_memory_of_earlier_tests_is_not_blamed_on_an_input(
    world: World, seeds: list[Seed], monkeypatch: pytest.MonkeyPatch, before: int, resident: int, after: int, kind: str
) -> None:
    peaks = iter([before, after])
    monkeypatch.setattr(trial, "_peak_memory", lambda: next(peaks))
    monkeypatch.setattr(trial, "_memory", lambda: resident)
    assert world.judge(seeds[0]).kind == kind


def test_malformed_inputs_are_refused_in_one_line_or_are_rows_after_all(world: World) -> None:
    verdicts = [world.judge(world.make(number, base=BASE)) for number in range(INPUTS)]
    assert [verdict for verdict in verdicts if verdict.kind not in ("refused", "accepted")] == []
    assert {verdict.kind for verdict in verdicts} == {"refused", "accepted"}


def test_an_input_is_the_same_in_every_run(world: World) -> None:
    for number in (0, 4, 8, 12):
        path = world.make(number, base=1).path
        first = path.read_bytes()
        assert world.make(number, base=1).path.read_bytes() == first


@pytest.mark.parametrize(
    "error", [KeyError("x"), Unavailable("the disk is full"), BadSource("two\nlines"), BadSource("")]
)
def test_any_other_error_is_seen(world: World, rows: Seed, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trial, "ingest", fail)
    assert world.judge(rows).kind == "other"


def test_a_warning_is_seen(world: World, rows: Seed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "sparse_rows", lambda *_, **__: np.float64(1) / np.float64(0))
    assert world.judge(rows).kind == "other"


@pytest.mark.parametrize("left", ["datasets/fuzzed/.x.partial", "scratch/x", "datasets/fuzzed/y.rejected.csv"])
def test_what_is_left_behind_is_seen(world: World, rows: Seed, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    def leave(*_: object, **__: object) -> None:
        (world.home / left).mkdir(parents=True)
        raise BadSource("refused")

    monkeypatch.setattr(trial, "ingest", leave)
    verdict = world.judge(rows)
    assert verdict.kind == "partial"
    assert Path(left).name in verdict.detail


def test_a_snapshot_that_does_not_verify_is_seen(world: World, rows: Seed, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(*arguments: object, **options: object) -> SimpleNamespace:
        report = ingest(*arguments, **options)  # type: ignore[arg-type]
        return SimpleNamespace(snapshot=report.snapshot, content_digest="another")

    monkeypatch.setattr(trial, "ingest", lie)
    assert world.judge(rows).kind == "partial"


def fates() -> Iterator[Judge]:
    """Yield a test function that kills its process on input 2 and hangs on input 4."""

    def judge(number: int) -> Verdict:
        if number == 2:
            os._exit(1)
        if number == 4:
            time.sleep(600)
        return Verdict(kind="refused", detail=str(number))

    yield judge


@pytest.mark.audit_only
def test_a_worker_that_hangs_or_dies_takes_one_input_with_it() -> None:
    verdicts = dict(run(range(7), fates, (), workers=2, seconds=2.0))
    kinds = {number: verdict.kind for number, verdict in verdicts.items()}
    assert kinds == {0: "refused", 1: "refused", 2: "other", 3: "refused", 4: "hung", 5: "refused", 6: "refused"}
    assert all(verdict.detail == str(number) for number, verdict in verdicts.items() if verdict.kind == "refused")


SCHEMAS_INPUTS = 60
WORDS = (
    "null",
    "-1",
    "1e400",
    "[]",
    "{}",
    "true",
    "'",
    '"',
    ": ",
    "- ",
    "&a",
    "*a",
    "!!set",
    "\t",
    "\x00",
    "💥",
    "TO_DECLARE",
)


def broken(text: str, rng: random.Random) -> bytes:
    """Return a schema text damaged in one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(text))
        end = min(len(text), at + rng.randint(0, 12))
        match rng.randrange(4):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + rng.choice(WORDS) + text[end:]
            case 2:
                lines = text.split("\n")
                lines.insert(rng.randrange(len(lines)), rng.choice(lines))
                text = "\n".join(lines)
            case _:
                words = text.split(" ")
                first, second = rng.randrange(len(words)), rng.randrange(len(words))
                words[first], words[second] = words[second], words[first]
                text = " ".join(words)
    raw = text.encode()
    return (
        raw if rng.random() < 0.95 else raw[: len(raw) // 2] + bytes([rng.randrange(128, 256)]) + raw[len(raw) // 2 :]
    )


def test_a_broken_schema_is_one_line_or_a_schema_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpca: Command
) -> None:
    rng = random.Random("schemas")
    isolate(monkeypatch, home=tmp_path / "home")
    path, endings = tmp_path / "schema.yaml", []
    for name in SCHEMAS_INPUTS // len(TABLES) * list(TABLES):
        path.write_bytes(broken(TABLES[name].schema, rng))
        ending = dpca("schema", "show", path)
        endings.append(ending.status)
        if ending.status:
            ending.complaint(1)
    assert {0, 1} == set(endings)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["census", "nested"])
def test_a_table_whose_schema_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpca: Command, name: str
) -> None:
    rng, table = random.Random(f"ingests {name}"), TABLES[name]
    isolate(monkeypatch, home=tmp_path / "home")
    source = table.write(tmp_path)
    assert dpca("budget", "open", "others", "--epsilon", 1, "--delta", 1e-6).status == 0
    before = facts_of(tmp_path / "home")
    path, refused = tmp_path / "schema.yaml", 0
    for _ in range(12):
        path.write_bytes(broken(table.schema, rng))
        ending = dpca("dataset", "ingest", source, "--name", "d", "--table-schema", path, "--direct")
        if ending.status:
            line = ending.complaint(1)
            assert "SECRET" not in line
            assert facts_of(tmp_path / "home") == before
            refused += 1
        else:
            assert dpca("dataset", "verify", "d").status == 0
            assert dpca("dataset", "remove", "d").status == 0
            before = facts_of(tmp_path / "home")
    assert refused
