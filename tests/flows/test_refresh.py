"""Refresh loop: each file that arrives becomes one release, and the alias moves if the gate permits."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dpca.errors import BudgetExhausted, NotFound, Refused
from dpca.registry.reader import Registry
from flows import refresh as subject
from flows.releases import arrival_ends, running, stages
from flows.releases.arrival_ends import judge
from flows.reports.budget_facts import pacing_facts, written_share
from flows.requests import Request
from storage.database import tables
from storage.database.engine import transaction
from storage.workspace import Workspace
from tests.flows.arriving import (
    DATASET,
    DELTA,
    NAME,
    OPTIONS,
    Webhook,
    champion,
    drop,
    open_budget,
    refresh,
    request,
    states,
)
from tests.flows.conftest import Command


def moves() -> list[dict[str, Any]]:
    with transaction(Workspace.read_only().ledger.engine) as connection:
        table = tables.event
        found = connection.execute(table.select().where(table.c.name == "alias_moved").order_by(table.c.seq))
        return [json.loads(row.detail) for row in found]


def test_a_file_changes_the_champion_and_a_second_run_does_nothing(inbox: Path, hook: Webhook) -> None:
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
    assert [shown for shown in hook.events() if shown != "dpca.budget.low"] == ["dpca.release.promoted"] * 2
    first, second = moves()
    assert (first["to"], second["from"], second["to"]) == (1, 1, 2)
    assert first["why"]["reason"] == "the first version that passes"
    assert "above the noise" in second["why"]["verdict"]
    assert 0 <= second["why"]["drift"] < 0.1
    Workspace.open().ledger.verify()


def test_a_release_of_noise_is_withheld_with_a_notice(inbox: Path, hook: Webhook) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    drop(inbox, "tuesday.npy", seed=2)
    found = refresh(inbox, epsilon=1e-4)
    assert [made["decision"] for made in found["decisions"]] == ["held"]
    assert found["decisions"][0]["reason"] == "no component is above the noise"
    assert champion() == 1
    assert hook.events()[-1] == "dpca.release.held"
    assert hook.reported[-1]["artifact"] == f"{NAME}@2"


def test_a_first_release_of_noise_is_withheld_and_the_next_is_judged_by_its_verdict_alone(inbox: Path) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox, epsilon=1e-4)
    with pytest.raises(NotFound):
        champion()
    drop(inbox, "tuesday.npy", seed=2)
    refresh(inbox)
    assert champion() == 2


def test_a_release_far_from_the_champion_is_withheld(inbox: Path) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    drop(inbox, "tuesday.npy", seed=2, turned=3)
    (held,) = refresh(inbox)["decisions"]
    assert held["decision"] == "held"
    assert held["drift"] > 0.9
    assert champion() == 1


@pytest.mark.parametrize(
    "stage", ["take_next", "reserve_arrival", "make_reserved", "decide_release"], ids=lambda stage: stage
)
def test_a_killed_run_continues_and_the_arrival_is_charged_once(
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
    # another release in between changes the remaining budget, but must not change an already charged share
    ledger.reserve(
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


def test_paced_releases_get_equal_shares_with_alerts_until_the_budget_is_spent(inbox: Path, hook: Webhook) -> None:
    ledger = open_budget(6.0)
    share = written_share(pacing_facts(ledger, DATASET, runs=4, delta=DELTA)["epsilon_each"])
    for number in range(4):
        drop(inbox, f"{number}.npy", seed=number)
        refresh(inbox, epsilon=None, releases=4)
    made = [row.epsilon for row in ledger.statement(DATASET).releases]
    assert made == pytest.approx([share] * 4, rel=1e-7)
    assert ledger.statement(DATASET).remaining < 1e-3
    low = [shown["percent_left"] for shown in hook.reported if shown["event"] == "dpca.budget.low"]
    assert low == [50, 20, 5]
    drop(inbox, "last.npy", seed=9)
    with pytest.raises(BudgetExhausted, match="all 4 planned releases of budget"):
        refresh(inbox, epsilon=None, releases=4)
    assert hook.events()[-1] == "dpca.release.refused"
    assert refresh(inbox, epsilon=None, releases=4)["decisions"] == []


def test_the_confirmation_states_cost_and_remaining_budget_of_a_file(inbox: Path) -> None:
    open_budget(8.0)
    requested = request()
    first = subject.question_of(requested, OPTIONS, releases=None)
    assert first == "Spend budget 'people', with epsilon 8 left, on each arrived file?"
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    left = r"of budget 'people', with epsilon [\d.]+ left before and [\d.]+ after the first\?"
    one = r"Spend, for each arrived file, epsilon 4 at delta 1e-06 "
    assert re.fullmatch(one + left, subject.question_of(requested, OPTIONS, releases=None))
    shared = subject.question_of(dataclasses.replace(requested, epsilon=None), OPTIONS, releases=4)
    assert re.fullmatch(r"Spend, for each arrived file, epsilon [\d.]+ at delta 1e-06 " + left, shared)
    refused = subject.question_of(dataclasses.replace(requested, epsilon=7.9), OPTIONS, releases=None)
    assert refused.endswith("left, on each arrived file?")
    assert states() == ["committed"]


def test_a_loop_needs_an_epsilon_or_a_number_of_releases(inbox: Path) -> None:
    open_budget()
    for epsilon, releases in ((None, None), (1.0, 5)):
        with pytest.raises(ValueError, match="both determine the charge of a run"):
            refresh(inbox, epsilon=epsilon, releases=releases)


def test_an_alert_lost_with_a_killed_run_is_sent_by_the_next_run(
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
    assert [shown["percent_left"] for shown in hook.reported if shown["event"] == "dpca.budget.low"] == [50, 20, 5]


def test_a_temporary_refusal_keeps_the_arrival_for_the_next_run_at_no_new_charge(
    inbox: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)

    def busy(release_id: str, digest: str, _: Request) -> str:
        Workspace.open().ledger.commit(release_id, artifact_digest=digest, record=lambda _: None)
        raise Refused("another ledger publishes there for now")

    with monkeypatch.context() as patch:
        patch.setattr(stages, "publish_release", busy)
        with pytest.raises(Refused, match="for now"):
            refresh(inbox)
    assert states() == ["committed"]
    assert "dpca.release.held" not in hook.events()
    assert refresh(inbox)["outcome"] == "1 promoted"
    assert states() == ["committed"]


def test_a_release_withheld_by_its_request_ends_its_arrival_once(inbox: Path, hook: Webhook) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    assert refresh(inbox, require_share=1.0)["outcome"] == "1 kept back"
    assert "require_share=1.0" in hook.reported[-1]["reason"]
    assert refresh(inbox)["outcome"] == "nothing arrived"
    assert states() == ["committed"]
    assert Registry.open().names() == []


def test_a_charged_arrival_is_finished_under_its_original_terms(
    inbox: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = open_budget()
    drop(inbox, "monday.npy", seed=1)

    def dies(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subject, "make_reserved", dies)
        with pytest.raises(KeyboardInterrupt):
            refresh(inbox)
    (made,) = refresh(inbox, publish="another-map", epsilon=1.0, components=3, refine="none")["decisions"]
    assert made["artifact"] == f"{NAME}@1"
    assert [row.epsilon for row in ledger.statement(DATASET).releases] == [4.0]
    assert Registry.open().names() == [NAME]
    assert f"was charged as {NAME} before" in caplog.text


def test_a_manual_rollback_during_a_killed_run_is_kept(
    inbox: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    drop(inbox, "tuesday.npy", seed=2)

    def dies(*_: Any, **__: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(arrival_ends, "give_notice", dies)
        with pytest.raises(KeyboardInterrupt):
            refresh(inbox)
    assert champion() == 2
    Workspace.open().promote(NAME, version=1, alias="champion")
    (made,) = refresh(inbox)["decisions"]
    assert (made["decision"], made["champion_before"]) == ("promoted", f"{NAME}@1")
    assert champion() == 1
    assert [(move["from"], move["to"]) for move in moves()] == [(None, 1), (1, 2), (2, 1)]
    assert hook.events().count("dpca.release.promoted") == 2


def test_a_release_is_judged_again_if_the_alias_moves_meanwhile(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_budget()
    for number in (1, 2):
        drop(inbox, f"{number}.npy", seed=number)
        refresh(inbox)
    others = [1]

    def slow(*releases: Any, **gate: Any) -> Any:
        """Let an operator move the alias while the release is judged."""
        if others:
            Workspace.open().promote(NAME, version=others.pop(), alias="champion")
        return judge(*releases, **gate)

    monkeypatch.setattr(arrival_ends, "judge", slow)
    drop(inbox, "3.npy", seed=3)
    (made,) = refresh(inbox)["decisions"]
    assert (made["decision"], made["champion_before"]) == ("promoted", f"{NAME}@1")


def test_the_outcome_is_printed_first_even_if_the_run_then_fails(inbox: Path, dpca: Command) -> None:
    open_budget(5.0)
    for number in (1, 2):
        os.utime(drop(inbox, f"{number}.npy", seed=number), (number, number))
    options = ("--components", "2", "--epsilon", "4", "--delta", DELTA, "--clip-norm", "2", "--publish", NAME)
    requested = ("subspace", "refresh", inbox, DATASET, *options, "--records-at-most", "4000", "--direct", "--yes")
    ended = dpca(*requested, "--json")
    assert ended.status == 3
    shown = json.loads(ended.out)
    assert next(iter(shown.items())) == ("outcome", "1 promoted, 1 refused")
    assert [made["artifact"] for made in shown["decisions"]] == [f"{NAME}@1"]
    assert ended.err.splitlines()[-1].startswith("dpca: ")
    assert dpca(*requested).out == "nothing arrived.\n"
