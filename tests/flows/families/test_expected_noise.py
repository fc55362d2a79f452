"""The forecast before spending: a dry run, a question, and a request that refuses noise."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from dpca_tasks.errors import Refused
from flows.families.stored import stored_request
from flows.fit import run_fit
from flows.releases import stages
from flows.releases.planning import plan_on
from flows.releases.preview import preview
from flows.reports.outcome import rounded_down
from flows.requests.subspace import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import Command
from tests.flows.releases.test_planning import ENTRY, LEDGER, REQUEST

NOISY: dict[str, Any] = {**REQUEST, "epsilon": 0.1, "delta": 0.0, "mechanism": "laplace"}
WORDS = (
    *("subspace", "fit", "people", "--components", "2", "--epsilon", "0.1", "--delta", "0"),
    *("--mechanism", "laplace", "--clip-norm", "1.5", "--publish", "sub"),
)


@pytest.fixture
def few(rows_file: Path, dpca: Command) -> None:
    """Sixty rows, declared as such, and a budget."""
    words = ("--name", "people", "--features", 6, "--records-at-most", 60, "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "3", "--delta", "1e-4").status == 0


def releases() -> list[Any]:
    return list(Workspace.read_only().ledger.history("people"))


@pytest.mark.usefixtures("few")
def test_a_dry_run_says_in_numbers_and_words_what_can_be_seen_and_with_what_the_last_could(dpca: Command) -> None:
    told = json.loads(dpca(*WORDS, "--dry-run", "--json").out)
    assert told["components_above_noise"] == 0
    assert told["forecast"].startswith(
        "expect noise: with records_at_most=60 all components will be noise; component 2"
    )
    assert f"epsilon {told['epsilon_needed']:.3g}" in told["forecast"]
    better = [str(told["epsilon_needed"] * 1.01) if word == "0.1" else word for word in WORDS]
    assert json.loads(dpca(*better, "--dry-run", "--json").out)["components_above_noise"] == 2
    declared = json.loads(dpca(*better, "--dry-run", "--json", "--spectrum", "0.9,0.02").out)
    assert declared["components_above_noise"] == 1
    assert declared["records_needed"] > 60


@pytest.mark.usefixtures("few")
def test_a_request_that_refuses_noise_charges_nothing_and_says_what_would_do(dpca: Command) -> None:
    complaint = dpca(*WORDS, "--on-noise", "refuse", "--direct", "--yes").err.splitlines()[-1]
    assert complaint.startswith("dpca: expect noise: with records_at_most=60")
    assert "on_noise=refuse" in complaint
    assert "nothing was charged" in complaint
    assert dpca(*WORDS, "--on-noise", "refuse", "--dry-run").status == 1
    assert releases() == []
    assert dpca(*WORDS, "--direct", "--yes").status == 0
    assert len(releases()) == 1
    assert dpca(*WORDS, "--on-noise", "refuse", "--direct", "--yes").status == 0  # paid for before
    assert len(releases()) == 1


@pytest.mark.usefixtures("few")
def test_a_job_that_nobody_watches_warns_in_its_log_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(stages, "log_event", lambda event, **facts: logged.append((event, facts)))
    with pytest.raises(Refused, match="on_noise=refuse"):
        run_fit(SubspaceRequest(**NOISY, on_noise="refuse"), direct=True)
    assert (logged, releases()) == ([], [])
    run_fit(SubspaceRequest(**NOISY), direct=True)
    assert logged[0][0] == "expects_noise"
    assert logged[0][1]["forecast"].startswith("expect noise: ")
    assert len(releases()) == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("answer", "made"), [(False, 0), (True, 1)])
def test_a_terminal_asks_whether_noise_is_wanted(
    monkeypatch: pytest.MonkeyPatch, dpca: Command, *, answer: bool, made: int
) -> None:
    asked: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(sys, "stdin", _Terminal())
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr(typer, "confirm", confirm)
    dpca(*WORDS, "--direct")
    assert len(asked) == 1
    assert asked[0].startswith("Expect noise: ")
    assert ". Still spend epsilon 0.1 at delta 0 of budget 'people', of which epsilon " in asked[0]
    assert len(releases()) == made


@pytest.mark.usefixtures("few")
def test_a_release_that_can_show_something_is_asked_for_as_before() -> None:
    seen = preview(SubspaceRequest(**{**NOISY, "epsilon": 2.9, "mechanism": "wishart"}))
    left = rounded_down(seen.remaining), rounded_down(seen.remaining_after)
    assert seen.question == (
        f"Spend epsilon 2.9 at delta 0 of budget 'people', of which epsilon {left[0]} is left now and {left[1]} after?"
    )
    assert 0.0 < seen.remaining_after < seen.remaining


@pytest.mark.parametrize("changes", [{"on_noise": "refuse"}, {"spectrum": "flat"}])
def test_forecasts_are_no_part_of_what_a_release_is(changes: dict[str, str]) -> None:
    one, other = (plan_on(LEDGER, ENTRY, SubspaceRequest(**REQUEST | more)) for more in ({}, changes))
    assert (one.fingerprint, one.run_key, one.plan.event) == (other.fingerprint, other.run_key, other.plan.event)
    assert stored_request(other).items() >= changes.items()


class _Terminal:
    """A stream that somebody sits at."""

    isatty: Callable[[], bool] = staticmethod(lambda: True)
    write: Callable[[str], int] = staticmethod(len)
    flush: Callable[[], None] = staticmethod(lambda: None)
