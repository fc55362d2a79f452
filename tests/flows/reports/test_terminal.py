"""Terminal: output streams, consent to spending, and log lines.

Results go to stdout, all other lines to stderr. Only a user at a terminal or the option ``--yes`` consents to spending.
A run logs one line per event, with the release that it concerns. The first and last lines of a spending command are
checked.
"""

import io
import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from dpca.errors import BudgetExhausted
from dpca_tasks.errors import Refused
from dpca_tasks.privacy import curator
from flows.cli import PREFECT_DEFAULTS
from flows.releases.stages import reserve_release
from flows.reports.terminal import (
    RefreshOutcome,
    about,
    configure_logs,
    confirm,
    joint_line,
    log_event,
    outcome_line,
    print_facts,
    print_rows,
    rounded_down,
    spending,
    stream_line,
)
from flows.requests import SubspaceRequest
from tests.flows.conftest import FEATURES, FIT, ROWS, Command, kept_by, newest_run


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_facts_are_lines_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"name": "sub@1", "epsilon": 1.0, "aliases": ["a", "b"], "none": None, "event": {"name": "gaussian"}}
    print_facts(facts, as_json=True)
    assert json.loads(capsys.readouterr().out) == facts
    print_facts(facts, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "name     sub@1",
        "epsilon  1",
        "aliases  a, b",
        "none     -",
        'event    {"name": "gaussian"}',
    ]


def test_rows_are_printed_as_a_table_or_a_json_list_and_no_rows_as_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"artifact": "sub@1", "digest": "d" * 64}, {"artifact": "sub@2", "digest": "e" * 64}]
    print_rows(rows, ("artifact", "digest"), as_json=True, empty="nothing")
    assert json.loads(capsys.readouterr().out) == rows
    print_rows(rows, ("artifact", "digest"), as_json=False, empty="nothing")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed] == [["artifact", "digest"], *([*row.values()] for row in rows)]
    print_rows([], ("artifact",), as_json=False, empty="nothing")
    assert capsys.readouterr().out == "nothing\n"
    print_rows([], ("artifact",), as_json=True, empty="nothing")
    assert json.loads(capsys.readouterr().out) == []


def test_consent_is_given_by_option_or_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("Spend?", yes=True)
    with pytest.raises(Refused, match=r"\(Spend\?\); pass --yes"):
        confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr(sys, "stdin", _Terminal("y\n"))
    confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stdin", _Terminal("n\n"))
    with pytest.raises(Refused, match="not confirmed; nothing was charged"):
        confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stdin", _Terminal("\n"))
    with pytest.raises(Refused, match="not confirmed; nothing was charged"):
        confirm("Spend?", yes=False)  # no by default


@pytest.fixture
def quiet() -> Iterator[None]:
    yield
    configure_logs("off")


@pytest.mark.usefixtures("quiet")
def test_json_log_lines_contain_the_context_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    with about(run_key="slot 1", release="ab"):
        log_event("summing", partitions=8)
        logging.getLogger("dpca.storage").error("step 3 was computed twice")
    log_event("done")
    summing, twice, done = map(json.loads, capsys.readouterr().err.splitlines())
    assert {"time", "level"} <= summing.keys()
    assert summing["event"] == "summing"
    assert (summing["run_key"], summing["release"], summing["partitions"]) == ("slot 1", "ab", 8)
    assert (twice["level"], twice["event"], twice["release"]) == ("error", "step 3 was computed twice", "ab")
    assert "release" not in done


@pytest.mark.usefixtures("quiet")
def test_text_log_lines_contain_the_context_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text")
    configure_logs("text")
    with about(release="ab"):
        log_event("published", artifact="map@1")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("info published release=ab artifact=map@1")


@pytest.mark.usefixtures("quiet")
def test_no_log_line_is_printed_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    configure_logs("off")
    log_event("published")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quiet")
def test_a_release_logs_its_steps_with_its_identity(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "json")
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    ending = dpca(*FIT, "--direct", "--yes", "--run-key", "slot 7")
    text = [json.loads(line) for line in ending.err.splitlines() if line.startswith("{")]
    events = [line["event"] for line in text if line["event"] != "warned"]  # some draws of the noise give a warning
    assert events == ["reserved", "began", "computed", "published"]
    assert len({line["release"] for line in text}) == 1
    assert {line["run_key"] for line in text[:3]} == {"slot 7"}
    assert text[-1]["artifact"] == "sub@1"


@pytest.mark.usefixtures("quiet")
def test_a_logged_refusal_states_the_request_and_the_remaining_budget(
    ready: Path, dpca: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    left = json.loads(dpca("budget", "show", "people", "--json").out)["remaining"]
    configure_logs("json")
    with pytest.raises(BudgetExhausted):
        reserve_release(
            SubspaceRequest(
                dataset="people", components=2, epsilon=9.0, delta=1e-6, clip_norm=1.5, publish="sub", run_key="slot 8"
            )
        )
    (text,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (text["event"], text["run_key"], text["remaining"]) == ("refused", "slot 8", left)


@pytest.mark.usefixtures("quiet")
def test_an_ingest_logs_rows_and_rates_as_private_and_not_to_prefect(
    rows_file: Path, dpca: Command, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "json")
    ending = dpca("dataset", "ingest", rows_file, "--name", "people", "--features", FEATURES, "--json")
    begun, done = (json.loads(line) for line in ending.err.splitlines() if line.startswith("{"))
    assert (begun["event"], done["event"], done["private"]) == ("ingesting", "ingested", True)
    assert done["snapshot"] == json.loads(ending.out)["snapshot"]
    assert (done["rows"], done["source_bytes"]) == (ROWS, rows_file.stat().st_size)
    assert done["rows_per_second"] == pytest.approx(ROWS / done["seconds"], rel=0.2)
    assert done["bytes_per_second"] == pytest.approx(done["source_bytes"] / done["seconds"], rel=0.2)
    kept = kept_by(prefect) + "".join(log.model_dump_json() for log in prefect.read_logs())
    assert str(newest_run(prefect, "ingest-dataset").id) in kept
    assert not [word for word in ("ingested", "per_second", "source_bytes") if word in kept]


@pytest.mark.usefixtures("quiet")
def test_a_failed_fit_under_prefect_is_one_line_without_a_stored_log(
    ready: Path, dpca: Command, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("sums 0.7390517264")

    monkeypatch.setattr(curator, "exact_sum", breaks)
    shipped = PREFECT_DEFAULTS["PREFECT_LOGGING_TO_API_ENABLED"] == "true"
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: shipped}):
        ending = dpca(*FIT, "--yes", "--json")
    assert (ending.status, ending.out) == (1, "")
    (line,) = ending.err.splitlines()
    assert line.startswith("dpca: unexpected RuntimeError at ")
    run = newest_run(prefect, "fit-subspace")
    assert run.state_name == "StageFailed"
    assert [log for log in prefect.read_logs() if log.flow_run_id == run.id] == []
    assert "7390517264" not in line + kept_by(prefect)


@pytest.mark.usefixtures("quiet")
def test_a_release_logs_neither_rows_nor_bytes_nor_rates(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "json")
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    text = [json.loads(line) for line in dpca(*FIT, "--direct", "--yes").err.splitlines() if line.startswith("{")]
    public = {"time", "level", "event", "run_key", "release", "population", "mechanism", "state", "seconds"}
    assert {name for line in text for name in line} == public | {"artifact", "reused", "spent", "remaining"}


@pytest.mark.usefixtures("quiet")
def test_an_unknown_log_format_is_refused_before_a_charge(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "xml")
    assert "DPCA_LOG='xml'" in dpca(*FIT, "--direct", "--yes").err
    monkeypatch.delenv("DPCA_LOG")
    assert json.loads(dpca("budget", "show", "people", "--json").out)["spent"] == 0


REPORT = {"artifact": "sub@3", "reused": False, "private": True, "remaining": 3.79811, "population": "people"}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "released sub@3; epsilon 3.798 of budget 'people' is left."),
        (
            {"verdict": "2 of 2 stand; fine."},
            "released sub@3; 2 of 2 stand; fine; epsilon 3.798 of budget 'people' is left.",
        ),
        ({"reused": True}, "released before, nothing spent: sub@3; epsilon 3.798 of budget 'people' is left."),
        ({"failed": True}, "released sub@3; FAILED; epsilon 3.798 of budget 'people' is left."),
        ({"private": False, "remaining": 0.0}, "released sub@3, NOT PRIVATE; epsilon 0 of budget 'people' is left."),
    ],
)
def test_the_outcome_is_one_line(facts: dict[str, object], line: str) -> None:
    assert outcome_line(REPORT | facts) == line


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_the_remaining_budget_is_rounded_down_to_four_digits(epsilon: float) -> None:
    assert epsilon * 0.9989 <= float(rounded_down(epsilon)) <= epsilon * (1.0 + 1e-11)


def test_the_remaining_budget_is_rounded_down_for_any_budget() -> None:
    assert [rounded_down(left) for left in (0.0, -1.0, 4.0, math.inf)] == ["0", "0", "4", "inf"]


def test_a_confirmation_states_the_remaining_budget_before_and_after() -> None:
    text = spending("epsilon 1 of budget 'people'", remaining=4.0, after=3.79811)
    assert text == "epsilon 1 of budget 'people', with epsilon 4 left before and 3.798 after"


def test_a_joint_outcome_states_the_remainder_of_each_budget_of_this_ledger() -> None:
    sites = [{"population": "north", "remaining": 2.0}, {"site": "south"}]
    report = {"artifact": "sub@3", "reused": False, "verdict": "2 of 2 stand.", "sites": sites}
    assert joint_line(report) == "released sub@3; 2 of 2 stand; epsilon 2 of budget 'north' is left."
    assert joint_line({**report, "reused": True, "sites": []}).startswith("released before, nothing spent: sub@3; ")


def test_the_outcome_of_a_stream_states_paid_ticks_and_remaining_budget() -> None:
    facts = {"stream": "nightly", "ticks": 30, "left": 28, "remaining": 3.79811, "population": "people"}
    assert stream_line(facts) == (
        "30 ticks of 'nightly' are charged, 28 remain; epsilon 3.798 of budget 'people' is left."
    )


def test_finished_and_waiting_arrivals_are_counted() -> None:
    run = RefreshOutcome(published="map", left=4)
    run.end("set_aside")
    run.end("set_aside")
    run.end("kept_back")
    run.decisions.append({"decision": "promoted"})
    facts = run.report()
    assert next(iter(facts.items())) == ("outcome", "1 promoted, 1 kept back, 2 set aside, 1 left")
    assert {name: facts[name] for name in ("promoted", "held", "kept_back", "refused", "set_aside", "left")} == {
        **{"promoted": 1, "held": 0, "kept_back": 1, "refused": 0, "set_aside": 2, "left": 1}
    }


def test_a_run_without_arrivals_reports_this() -> None:
    assert RefreshOutcome(published="map").report()["outcome"] == "nothing arrived"
