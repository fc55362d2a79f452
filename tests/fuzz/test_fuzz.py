"""Malformed inputs are refused in one line or are rows after all; and the fuzzer sees what is neither."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from storage.datasets.ingest import ingest
from storage.errors import BadSource, Unavailable
from storage.formats import dense
from tests.fuzz import trial
from tests.fuzz.run import BASE
from tests.fuzz.seeds import Seed, write_seeds
from tests.fuzz.trial import World

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
    """Write a source that is ingested."""
    np.save(world.home.with_name("x.npy"), np.eye(3))
    return Seed(path=world.home.with_name("x.npy"))


def test_every_seed_is_ingested(world: World, seeds: list[Seed]) -> None:
    assert {seed.path.name: world.judge(seed).kind for seed in seeds} == dict.fromkeys(
        (seed.path.name for seed in seeds), "accepted"
    )


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
