"""The soak of restores in small, and the proof that its count sees what is planted."""

from collections import Counter
from pathlib import Path

import pytest

from storage.ledger import witness
from storage.registry import restored
from tests.crash.restored_history import Place, live
from tests.crash.soak_restore import COMBINATIONS, History, soak, spread

STEPS, POINT = 13, 6


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Live a short history on SQLite, once."""
    folder = tmp_path_factory.mktemp("history")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.setenv(name, "")  # what it was comes back afterwards
        truth = live(Place(root=folder / "world"), folder / "copies", steps=STEPS)
    return History(end=Place(root=folder / "world"), copies=folder / "copies", truth=truth)


def counted(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *these: tuple[str, ...]) -> Counter[str]:
    for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
        monkeypatch.setenv(name, "")
    return soak(history, points=[POINT], work=tmp_path / "work", new_database=str, these=these)


def test_no_restore_loses_what_was_spent_or_changes_a_version(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    these = (("database",), ("registry",), ("database", "registry"), ("whole home",))
    assert set(these) <= set(COMBINATIONS)
    assert len(COMBINATIONS) == 8
    counts = counted(history, tmp_path, monkeypatch, *these)
    assert {name: count for name, count in counts.items() if count} == {"restores": 8, "locked": 6}
    assert set(history.truth.spent) == {"people", "others"}
    assert {("map", 1), ("other", 2), ("nightly", 1)} <= history.truth.versions.keys()


def test_a_witness_that_is_not_asked_is_found(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(witness.Witness, "check", lambda *_, **__: None)
    monkeypatch.setattr(witness, "_require", lambda *_: None)
    assert counted(history, tmp_path, monkeypatch, ("whole home",))["overspent"] > 0
    assert "overspent: whole home" in capsys.readouterr().err


def test_an_operator_who_accepts_and_charges_nothing_is_found(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = vars(restored)["_enter"]

    def for_free(connection: object, row: dict[str, object], **facts: object) -> object:
        faint = {"name": "gaussian", "noise_multiplier": 1e6}
        return enter(connection, {**row, "event": faint, "charge": None}, **facts)

    monkeypatch.setattr(restored, "_enter", for_free)
    assert counted(history, tmp_path, monkeypatch, ("database",))["overspent"] > 0


def test_versions_that_are_forgotten_and_numbered_again_are_found(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = witness.Witnesses.noted
    monkeypatch.setattr(
        witness.Witnesses, "noted", lambda self: [note for note in noted(self) if "version" not in note]
    )
    counts = counted(history, tmp_path, monkeypatch, ("database", "registry"))
    assert (counts["renumbered"] > 0, counts["overspent"]) == (True, 0)


def test_points_are_spread_over_the_history() -> None:
    assert spread(56, 50)[::49] == [0, 55]
    assert len(spread(56, 50)) == 50
    assert spread(9, 1) == [0]
