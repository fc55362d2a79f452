"""What a run says: one line an event, with the release it is about."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from dpca_tasks.privacy import curator
from flows.cli import PREFECT_DEFAULTS
from flows.releases.stages import reserve_release
from flows.reports.logs import about, configure_logs, log_event
from flows.requests.subspace import SubspaceRequest
from storage.errors import BudgetExhausted
from tests.flows.conftest import FEATURES, FIT, ROWS, Command, kept_by, newest_run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    configure_logs("off")


def test_json_lines_carry_what_the_run_is_about(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_text_lines_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text")
    configure_logs("text")
    with about(release="ab"):
        log_event("published", artifact="map@1")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("info published release=ab artifact=map@1")


def test_nothing_is_said_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    configure_logs("off")
    log_event("published")
    assert capsys.readouterr().err == ""


def test_a_release_says_what_it_did_and_about_which(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "json")
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    ending = dpca(*FIT, "--direct", "--yes", "--run-key", "slot 7")
    said = [json.loads(line) for line in ending.err.splitlines() if line.startswith("{")]
    assert [line["event"] for line in said] == ["reserved", "began", "computed", "published"]
    assert len({line["release"] for line in said}) == 1
    assert {line["run_key"] for line in said[:3]} == {"slot 7"}
    assert said[-1]["artifact"] == "sub@1"


def test_a_refusal_says_what_is_left_and_of_which_request(
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
    (said,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (said["event"], said["run_key"], said["remaining"]) == ("refused", "slot 8", left)


def test_an_ingest_says_rows_and_rates_in_a_line_marked_private_and_tells_prefect_nothing(
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


def test_a_fit_that_breaks_under_prefect_is_one_line_and_prefect_keeps_no_log(
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


def test_a_release_says_neither_rows_nor_bytes_nor_rates(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "json")
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    said = [json.loads(line) for line in dpca(*FIT, "--direct", "--yes").err.splitlines() if line.startswith("{")]
    public = {"time", "level", "event", "run_key", "release", "population", "mechanism", "state", "seconds"}
    assert {name for line in said for name in line} == public | {"artifact", "reused", "spent", "remaining"}


def test_a_log_format_that_is_none_is_refused_before_anything_is_charged(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "xml")
    assert "DPCA_LOG='xml'" in dpca(*FIT, "--direct", "--yes").err
    monkeypatch.delenv("DPCA_LOG")
    assert json.loads(dpca("budget", "show", "people", "--json").out)["spent"] == 0
