"""The closed loop: each file that arrives becomes one release, and the alias moves where the gate lets it."""

import dataclasses
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient

from flows import refresh as subject
from flows.families.release_gate import judge
from flows.ingest import ingest_source
from flows.releases import arrival_ends, running, stages
from flows.reports.pacing_facts import pacing_facts, written_share
from flows.requests.base import NO_LOOP_ASKS, Request
from storage.database import tables
from storage.database.engine import transaction
from storage.datasets.ingest_options import IngestOptions
from storage.errors import BudgetExhausted, Conflict, NotFound, Refused
from storage.formats.files import LocalFile
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.arriving import (
    DATASET,
    DELTA,
    FEATURES,
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
from tests.flows.conftest import Command, kept_by, newest_run
from tests.s3 import Server


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


def test_the_question_says_what_a_file_costs_and_what_is_left_now_and_after(inbox: Path) -> None:
    open_budget(8.0)
    asked = request()
    first = subject.question_of(asked, OPTIONS, releases=None)
    assert first == "Spend budget 'people', of which epsilon 8 is left, on each file that arrived?"
    drop(inbox, "monday.npy", seed=1)
    refresh(inbox)
    left = r"of budget 'people', of which epsilon [\d.]+ is left now and [\d.]+ after the first\?"
    one = r"Spend on each file that arrived epsilon 4 at delta 1e-06 "
    assert re.fullmatch(one + left, subject.question_of(asked, OPTIONS, releases=None))
    shared = subject.question_of(dataclasses.replace(asked, epsilon=None), OPTIONS, releases=4)
    assert re.fullmatch(r"Spend on each file that arrived epsilon [\d.]+ at delta 1e-06 " + left, shared)
    refused = subject.question_of(dataclasses.replace(asked, epsilon=7.9), OPTIONS, releases=None)
    assert refused.endswith("is left, on each file that arrived?")
    assert states() == ["committed"]


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
    run = newest_run(prefect, "refresh-subspace")
    assert (run.state_name, run.parameters["inbox"]) == ("Completed", f"@{DATASET}")
    kept = kept_by(prefect)
    assert str(run.id) in kept
    for private in ("of-mr-miller", str(inbox.parent)):
        assert private not in kept


def test_a_schedule_finds_the_inbox_and_files_of_the_last_refresh_by_hand(
    inbox: Path, prefect: SyncPrefectClient, tmp_path: Path
) -> None:
    open_budget()
    scale = tmp_path / "palmyra-scale.txt"
    scale.write_text("1.0\n" * FEATURES)
    options = dataclasses.replace(OPTIONS, scale=str(scale))
    flow: Any = subject.refresh_subspace
    given = {item.name: getattr(request(), item.name) for item in dataclasses.fields(request())}
    given = {name: value for name, value in given.items() if name not in NO_LOOP_ASKS}
    asked = {**given, "records_at_most": OPTIONS.records_at_most, "settled": 0.0}
    assert flow(f"@{DATASET}", **asked, return_state=True).name == "Refused"
    subject.run_refresh(str(inbox), request(), options, settled=0.0)
    drop(inbox, "next.npy", seed=2)
    assert flow(f"@{DATASET}", **asked, return_state=True).name == "Completed"
    assert len(states()) == 1
    assert "palmyra-scale" not in kept_by(prefect)
    (kept,) = (Workspace.read_only().home / "inboxes").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


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


def test_options_that_fit_no_file_end_the_run_in_one_line_and_all_files_wait_on(
    inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_budget()
    drop(inbox, "a.npy", seed=1)
    drop(inbox, "b.npy", seed=2)
    for wrong, reason in (
        (IngestOptions(features=5), "do not fit any of the 2 files that wait, so none is set aside"),
        (IngestOptions(format="parquet"), "do not fit any of the 2 files that wait"),
        (IngestOptions(dtype="float99"), "float99"),
    ):
        with pytest.raises(ValueError, match=reason) as refused:
            subject.run_refresh(str(inbox), request(), wrong, direct=True, settled=0.0)
        assert "\n" not in str(refused.value)
    Workspace.open().catalog.admit(name=DATASET, population=DATASET)
    assert not list(inbox.parent.rglob("*.end"))
    assert "set aside" not in caplog.text
    assert len(refresh(inbox)["decisions"]) == 2
    with pytest.raises(Conflict, match="population"):
        subject.run_refresh(str(inbox), request(), IngestOptions(population="others"), direct=True, settled=0.0)


def test_a_malformed_file_that_waits_alone_is_set_aside_with_its_reason(
    inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_budget()
    (inbox / "a\nb.npy").write_bytes(b"no array")
    assert refresh(inbox)["outcome"] == "1 set aside"
    (line,) = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert "a?b.npy" in line
    assert line.count("b.npy") == 1


def test_a_refusal_that_may_pass_ends_no_arrival_and_the_next_run_publishes_it_at_no_charge(
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


def test_a_release_that_its_own_request_keeps_back_ends_its_arrival_once(inbox: Path, hook: Webhook) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    assert refresh(inbox, require_share=1.0)["outcome"] == "1 kept back"
    assert "require_share=1.0" in hook.told[-1]["reason"]
    assert refresh(inbox)["outcome"] == "nothing arrived"
    assert states() == ["committed"]
    assert Registry.open().names() == []


def test_an_arrival_that_was_charged_is_finished_under_its_own_terms(
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


def test_a_rollback_between_a_promotion_and_the_end_of_its_arrival_stands(
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


def test_an_alias_that_moves_while_a_release_is_judged_has_it_judged_again(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    for number in (1, 2):
        drop(inbox, f"{number}.npy", seed=number)
        refresh(inbox)
    others = [1]

    def slow(*releases: Any, **gate: Any) -> Any:
        """Let an operator move the alias in the meantime."""
        if others:
            Workspace.open().promote(NAME, version=others.pop(), alias="champion")
        return judge(*releases, **gate)

    monkeypatch.setattr(arrival_ends, "judge", slow)
    drop(inbox, "3.npy", seed=3)
    (made,) = refresh(inbox)["decisions"]
    assert (made["decision"], made["champion_before"]) == ("promoted", f"{NAME}@1")


def test_a_file_that_is_replaced_while_it_is_ingested_is_charged_once_as_what_it_is_then(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    path = drop(inbox, "monday.npy", seed=1)

    def replaced(*asked: Any) -> str:
        made = ingest_source(*asked)
        os.utime(drop(inbox, path.name, seed=2), (1, 1))
        return made

    with monkeypatch.context() as patch:
        patch.setattr(subject, "ingest_source", replaced)
        assert refresh(inbox)["outcome"] == "1 set aside"
    assert states() == []
    assert refresh(inbox)["outcome"] == "1 promoted"
    assert states() == ["committed"]


def test_a_file_that_may_not_be_read_waits_and_the_others_have_their_turn(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    os.utime(drop(inbox, "closed.npy", seed=1), (1, 1))
    drop(inbox, "open.npy", seed=2)
    opened = LocalFile.open

    def guarded(file: LocalFile) -> Any:
        if file.name == "closed.npy":
            raise PermissionError
        return opened(file)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "open", guarded)
        assert refresh(inbox)["outcome"] == "1 promoted, 1 left"
    assert refresh(inbox)["outcome"] == "1 promoted"


def test_the_outcome_comes_first_also_where_the_run_then_fails(inbox: Path, dpca: Command) -> None:
    open_budget(5.0)
    for number in (1, 2):
        os.utime(drop(inbox, f"{number}.npy", seed=number), (number, number))
    options = ("--components", "2", "--epsilon", "4", "--delta", DELTA, "--clip-norm", "2", "--publish", NAME)
    asked = ("subspace", "refresh", inbox, DATASET, *options, "--records-at-most", "4000", "--direct", "--yes")
    ended = dpca(*asked, "--json")
    assert ended.status == 3
    told = json.loads(ended.out)
    assert next(iter(told.items())) == ("outcome", "1 promoted, 1 refused")
    assert [made["artifact"] for made in told["decisions"]] == [f"{NAME}@1"]
    assert ended.err.splitlines()[-1].startswith("dpca: ")
    assert dpca(*asked).out == "nothing arrived.\n"


def test_an_inbox_in_an_object_store_is_released_once_each_and_a_replaced_object_anew(
    tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    prefix = s3_server.url(tmp_path.name)
    open_budget()

    def put(name: str, seed: int) -> None:
        payload = drop(tmp_path / "local", "rows.npy", seed=seed).read_bytes()
        s3_server.ask("PUT", f"{prefix.removeprefix('s3://')}/{name}", payload)

    def looked() -> str:
        report = subject.run_refresh(f"{prefix}/", request(), OPTIONS, direct=True, settled=3_600.0)
        return str(report["outcome"])

    put("monday.npy", 1)
    assert (looked(), looked()) == ("1 promoted", "nothing arrived")
    put("monday.npy", 2)
    assert (looked(), champion(), states()) == ("1 promoted", 2, ["committed"] * 2)
