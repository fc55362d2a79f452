"""What a run says: one line an event, with the release it is about."""

import json
import logging
from collections.abc import Iterator

import pytest

from flows.logs import about, configure_logs, log_event


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
