"""The closed loop: each file that arrives becomes one release, and the alias moves where the gate lets it."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient

from flows import refresh as subject
from flows.releases import running
from flows.reports.pacing_facts import pacing_facts, written_share
from storage.database import tables
from storage.database.engine import transaction
from storage.datasets.inbox import Inbox
from storage.errors import BudgetExhausted, NotFound, Unavailable
from storage.workspace import Workspace
from tests.flows.arriving import (
    DATASET,
    DELTA,
    NAME,
    OPTIONS,
    Webhook,
    champion,
    drop,
    listening,
    open_budget,
    refresh,
    request,
    states,
)
from tests.flows.conftest import kept_by


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An empty inbox."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """A webhook to which this test's notices go."""
    with listening() as found:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", found.url)
        yield found


def moves() -> list[dict[str, Any]]:
    with transaction(Workspace.read_only().ledger.engine) as connection:
        table = tables.event
        found = connection.execute(table.select().where(table.c.name == "alias_moved").order_by(table.c.seq))
        return [json.loads(row.detail) for row in found]


def test_a_file_moves_the_champion_and_a_second_run_does_nothing(inbox: Path, hook: Webhook) -> None:
    open_budget()
    with pytest.raises(NotFound):
        champion()
    drop(inbox, "monday.npy", seed=1)
    found = refresh(inbox)
    assert [made["decision"] for made in found["decisions"]] == ["promoted"]
    assert champion() == 1
    assert refresh(inbox)["decisions"] == []
    drop(inbox, "tuesday.npy", seed=2)
    refresh(inbox)
    assert champion() == 2
    assert states() == ["committed"] * 2
    assert [told for told in hook.events() if told != "dpca.budget.low"] == ["dpca.release.promoted"] * 2
    first, second = moves()
    assert (first["to"], second["from"], second["to"]) == (1, 1, 2)
    assert first["why"]["reason"] == "the first version that passes"
    assert "above the noise" in second["why"]["verdict"]
    assert 0 <= second["why"]["drift"] < 0.1
    Workspace.open().ledger.verify()


def test_a_release_of_noise_is_held_with_a_notice(inbox: Path, hook: Webhook) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    drop(inbox, "tuesday.npy", seed=2)
    found = refresh(inbox, epsilon=1e-4)
    assert [made["decision"] for made in found["decisions"]] == ["held"]
    assert found["decisions"][0]["reason"] == "no component stands above the noise"
    assert champion() == 1
    assert hook.events()[-1] == "dpca.release.held"
    assert hook.told[-1]["artifact"] == f"{NAME}@2"


def test_a_first_release_of_noise_is_held_too_and_the_next_is_judged_by_its_verdict_alone(inbox: Path) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox, epsilon=1e-4)
    with pytest.raises(NotFound):
        champion()
    drop(inbox, "tuesday.npy", seed=2)
    refresh(inbox)
    assert champion() == 2


def test_a_release_that_turned_away_from_the_champion_is_held(inbox: Path) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    drop(inbox, "tuesday.npy", seed=2, turned=3)
    (held,) = refresh(inbox)["decisions"]
    assert held["decision"] == "held"
    assert held["drift"] > 0.9
    assert champion() == 1


def test_a_malformed_file_is_set_aside_and_the_next_one_has_its_turn(
    inbox: Path, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    open_budget()
    bad = inbox / "a.npy"
    bad.write_bytes(b"no array, but 271828182 of somebody")
    os.utime(bad, (1, 1))
    drop(inbox, "b.npy", seed=1)
    assert refresh(inbox)["set_aside"] == 1
    assert champion() == 1
    (line,) = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert "a.npy" in line
    assert "\n" not in line
    assert "271828182" not in line
    aside = next(told for told in hook.told if told["event"] == "dpca.arrival.set_aside")
    assert "a.npy" not in json.dumps(hook.told)
    assert aside["dataset"] == DATASET
    assert refresh(inbox)["set_aside"] == 0
    drop(inbox, "a.npy", seed=3)
    refresh(inbox)
    assert champion() == 2


def test_only_whole_files_are_taken(inbox: Path) -> None:
    open_budget()
    drop(inbox, "rows.npy", seed=1).rename(inbox / "rows.npy.part")
    (inbox / ".hidden.npy").write_bytes(b"")
    assert Inbox(Workspace.open().home, DATASET).waiting(str(inbox), settled=0.0) == []
    ready = (inbox / "rows.npy.part").rename(inbox / "rows.npy")
    os.utime(ready, (time.time(), time.time()))
    home = Workspace.open().home
    assert Inbox(home, DATASET).waiting(str(inbox), settled=3600.0) == []
    assert len(Inbox(home, DATASET).waiting(str(inbox), settled=0.0)) == 1
    with pytest.raises(Unavailable, match="no such folder"):
        Inbox(home, DATASET).waiting(str(inbox / "elsewhere" / "deep"), settled=0.0)


@pytest.mark.parametrize(
    "stage", ["take_arrival", "reserve_arrival", "make_reserved", "decide_release"], ids=lambda stage: stage
)
def test_a_run_that_died_goes_on_and_the_arrival_is_charged_once(
    inbox: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    ledger = open_budget()
    drop(inbox, "monday.npy", seed=1)
    done = getattr(subject, stage)

    def dies(*words: Any, **named: Any) -> Any:
        done(*words, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subject, stage, dies)
        with pytest.raises(KeyboardInterrupt):
            refresh(inbox, epsilon=None, releases=10)
    ledger.reserve(  # another release in between moves what is left, and no share that was charged
        DATASET,
        run_key="another",
        fingerprint="f",
        event={"name": "gaussian", "noise_multiplier": 8.0},
        epsilon=0.5,
        delta=DELTA,
        snapshot_id="s" * 32,
        request={},
    )
    refresh(inbox, epsilon=None, releases=10)
    assert champion() == 1
    assert states().count("committed") == 1
    assert len(states()) == 2
    assert hook.events().count("dpca.release.promoted") == 1


def test_paced_releases_take_equal_shares_with_alerts_until_all_are_made(inbox: Path, hook: Webhook) -> None:
    ledger = open_budget(6.0)
    share = written_share(pacing_facts(ledger, DATASET, runs=4, delta=DELTA)["epsilon_each"])
    for number in range(4):
        drop(inbox, f"{number}.npy", seed=number)
        refresh(inbox, epsilon=None, releases=4)
    made = [row.epsilon for row in ledger.statement(DATASET).releases]
    assert made == pytest.approx([share] * 4, rel=1e-7)
    assert ledger.statement(DATASET).remaining < 1e-3
    low = [told["percent_left"] for told in hook.told if told["event"] == "dpca.budget.low"]
    assert low == [50, 20, 5]
    drop(inbox, "last.npy", seed=9)
    with pytest.raises(BudgetExhausted, match="all 4 releases that were to share"):
        refresh(inbox, epsilon=None, releases=4)
    assert hook.events()[-1] == "dpca.release.refused"
    assert refresh(inbox, epsilon=None, releases=4)["decisions"] == []


def test_a_loop_needs_an_epsilon_or_a_number_of_releases(inbox: Path) -> None:
    open_budget()
    for epsilon, releases in ((None, None), (1.0, 5)):
        with pytest.raises(ValueError, match="one of them says what a run spends"):
            refresh(inbox, epsilon=epsilon, releases=releases)


def test_prefect_is_told_no_file_and_the_run_ends_with_its_decision(inbox: Path, prefect: SyncPrefectClient) -> None:
    open_budget()
    drop(inbox, "of-mr-miller.npy", seed=1)
    found = refresh(inbox, direct=False)
    assert [made["decision"] for made in found["decisions"]] == ["promoted"]
    assert champion() == 1
    kept = kept_by(prefect)
    assert "of-mr-miller" not in kept
    assert "refresh-subspace" in kept or "decide-release" in kept


def test_an_alert_is_told_by_the_next_run_where_the_one_that_charged_died_before_it_told(
    inbox: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(6.0)
    drop(inbox, "monday.npy", seed=1)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "warn_of_budget", dies)
        with pytest.raises(KeyboardInterrupt):
            refresh(inbox, epsilon=None, releases=1)
    assert states() == ["reserved"]
    refresh(inbox, epsilon=None, releases=1)
    assert [told["percent_left"] for told in hook.told if told["event"] == "dpca.budget.low"] == [50, 20, 5]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"dataset": "../../elsewhere"}, "must be a letter or digit"),
        ({"alias": "latest"}, "reserved"),
        ({"alias": "The Best"}, "not allowed"),
        ({"drift_at_most": float("nan")}, "between 0 and 1"),
        ({"settled": float("nan")}, "number of seconds"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_a_loop_cannot_do_is_refused_before_a_file_is_touched(
    inbox: Path, asked: dict[str, Any], reason: str
) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    loop = {"settled": 0.0} | {name: value for name, value in asked.items() if name != "dataset"}
    others = {name: value for name, value in asked.items() if name == "dataset"}
    with pytest.raises(ValueError, match=reason):
        subject.run_refresh(str(inbox), request(**others), OPTIONS, direct=True, **loop)
    assert states() == []
    assert not list(inbox.parent.rglob("*.arrival"))
