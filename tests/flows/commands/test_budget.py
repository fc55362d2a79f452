"""Commands ``dpca budget open`` and ``show``: default terms, stated exclusions, and refusal of large deltas.

``dpca budget list`` has one row for each budget, with every release that was charged or may still be.
"""

import getpass
import json
from pathlib import Path

import pytest

from flows.reports.budget_facts import balances
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command
from tests.storage.releasing import EPSILON, POPULATION, begin, commit, open_budget, reserve
from tests.storage.releasing import open_budget as open_people

OPEN = ("budget", "open", "patients", "--epsilon", "4", "--delta", "1e-6")


def test_default_terms_exclude_no_kind_of_release(dpca: Command) -> None:
    opened = dpca(*OPEN)
    assert opened.status == 0
    assert "warning" not in opened.err
    assert "failure_delta  1e-07" in opened.out
    for words in (opened.out, dpca("budget", "show", "patients").out):
        assert "excludes       none: all mechanisms are still allowed. After the first Gaussian release, dp_s" in words
        assert "share delta 1e-07" in words


def test_budgets_are_listed_with_their_unit_and_remainder(dpca: Command) -> None:
    assert "dpca budget open POPULATION" in dpca("budget", "list").out
    dpca(*OPEN)
    dpca("budget", "open", "members", "--epsilon", "2", "--delta", "1e-7", "--unit", "member_id", "--rows-per-unit", 3)
    rows = json.loads(dpca("budget", "list", "--json").out)
    assert [(row["population"], row["unit"], row["rows_per_unit"], row["releases"]) for row in rows] == [
        ("members", "member_id", 3, 0),
        ("patients", "row", 1, 0),
    ]
    assert "member_id" in dpca("budget", "list").out


def test_the_user_of_each_release_is_shown_with_the_budget(home: Path, dpca: Command) -> None:
    ledger = Workspace.open().ledger
    open_people(ledger)
    ledger.begin(reserve(ledger).release_id)
    for verb in ("show", "history"):
        assert getpass.getuser() in dpca("budget", verb, POPULATION).out.splitlines()[-1]


def test_the_verdict_on_a_trail_states_the_comparisons(home: Path, dpca: Command, tmp_path: Path) -> None:
    ledger = Workspace.open().ledger
    open_people(ledger)
    ledger.begin(reserve(ledger).release_id)
    trail = tmp_path / "trail.json"
    dpca("budget", "export", POPULATION, "--output", trail)
    facts = json.loads(dpca("audit", "verify", trail, "--json").out)
    assert facts["verdict"] == "valid"
    assert "the key in the file (give --key to verify the signer)" in facts["checked"]
    assert facts["actors"] == [getpass.getuser()]
    assert "the key that was given" in dpca("audit", "verify", trail, "--key", facts["key"]).out
    assert dpca("audit", "verify", trail, "--key", "0" * 64).complaint(1).startswith("dpca: not valid: ")


@pytest.mark.parametrize(
    ("terms", "sampled"),
    [
        ((), True),
        (("--filter", "renyi"), False),
        (("--filter", "renyi", "--relation", "replace_one"), True),
    ],
    ids=str,
)
def test_a_budget_without_failure_delta_states_what_it_excludes(
    dpca: Command, terms: tuple[str, ...], *, sampled: bool
) -> None:
    opened = dpca(*OPEN, "--failure-delta", "0", *terms, "--json")
    text = json.loads(opened.out)["excludes"]
    assert text == json.loads(dpca("budget", "show", "patients", "--json").out)["excludes"]
    assert "excludes mechanisms with a failure probability" in opened.err
    assert text.startswith("after the first Gaussian release, because failure_delta is 0: ")
    assert "propose_test_release" in text
    assert ("dp_spca" in text) == sampled


def test_a_nightly_script_of_an_earlier_version_continues(dpca: Command) -> None:
    Workspace.open().ledger.open_budget("patients", epsilon=4.0, delta=1e-6, failure_delta=0.0)
    again = dpca(*OPEN)
    assert again.status == 0
    assert "failure_delta  0" in again.out
    assert dpca(*OPEN, "--failure-delta", "0").status == 0
    assert "its terms never change" in dpca(*OPEN, "--failure-delta", "1e-7").complaint(1)


def test_a_large_delta_requires_an_explicit_option(dpca: Command, ready: Path) -> None:
    words = ("budget", "open", "others", "--epsilon", "1", "--delta", "1e-3")
    line = dpca(*words).complaint(1)
    assert line.startswith("dpca: delta=0.001 is not below 1/records_at_most=1e-05")
    assert line.endswith("or open it anyway with --allow-large-delta.")
    assert dpca(*words, "--allow-large-delta").status == 0
    assert dpca(*words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "2", "--delta", "1e-6").status == 0


@pytest.mark.usefixtures("ready")
def test_a_refused_pure_fit_after_a_gaussian_one_states_the_possible_requests(dpca: Command) -> None:
    assert dpca(*FIT, "--direct", "--yes").status == 0
    pure = [*FIT[:5], "--epsilon", "1", "--delta", "0", *FIT[9:], "--mechanism", "laplace"]
    for words in (("--dry-run",), ("--direct", "--yes")):
        ending = dpca(*pure, *words)
        assert ending.status == 3
        assert (
            "each event that is not Gaussian is charged as the Gaussian that dominates it: a request of epsilon 1"
            in ending.err
        )
        assert "at delta 0 would take epsilon 6.2073" in ending.err
        assert "use a Gaussian mechanism such as analyze_gauss, or request at most --epsilon 0." in ending.err


def test_an_exported_trail_is_verified_and_a_changed_one_is_not(dpca: Command, ready: Path, tmp_path: Path) -> None:
    file = tmp_path / "trail.json"
    made = json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)
    written = json.loads(dpca("budget", "export", "people", "--output", file, "--json").out)
    verified = json.loads(dpca("audit", "verify", file, "--key", written["key"], "--earlier", file, "--json").out)
    assert verified["spent"] == made["spent"]
    assert verified["pinned"]
    file.write_text(file.read_text().replace('"actor": "', '"actor": "not ', 1))
    assert "get the export again from the curator" in dpca("audit", "verify", file).complaint(1)
    assert "cannot be read" in dpca("audit", "verify", tmp_path / "none.json").complaint(1)
    assert "no-such" in dpca("budget", "export", "no-such", "--output", file).complaint(1)


@pytest.mark.usefixtures("released")
def test_the_history_is_drawn_release_by_release(dpca: Command, tmp_path: Path) -> None:
    plot = tmp_path / "budget.svg"
    rows = json.loads(dpca("budget", "history", "people", "--plot", plot, "--json").out)
    shown = json.loads(dpca("budget", "show", "people", "--json").out)["releases"]
    assert [row["remaining"] for row in shown] == [row["remaining"] for row in rows]
    assert "after 1 release</title>" in plot.read_text()
    assert ">sub@1  " in plot.read_text()


def test_the_newest_releases_are_shown_and_earlier_ones_counted(dpca: Command) -> None:
    ledger = Workspace.open().ledger
    open_people(ledger)
    ids = [reserve(ledger, f"run {number}").release_id for number in range(5)]
    whole = json.loads(dpca("budget", "show", POPULATION, "--limit", "0", "--json").out)
    assert [row["release"] for row in whole["releases"]] == ids
    shown = dpca("budget", "show", POPULATION, "--limit", "2")
    assert [number in shown.out for number in ids] == [False] * 3 + [True] * 2
    assert "3 earlier releases are not shown; --limit 0 shows all." in shown.err
    part = json.loads(dpca("budget", "show", POPULATION, "--limit", "2", "--json").out)
    assert part == whole | {"earlier": 3, "releases": whole["releases"][3:]}
    history = json.loads(dpca("budget", "history", POPULATION, "--json").out)
    newest = dpca("budget", "history", POPULATION, "--limit", "2", "--json")
    assert json.loads(newest.out) == history[3:]
    assert "more earlier releases are not shown" in newest.err
    for enough in ("show", "history"):
        assert "earlier" not in dpca("budget", enough, POPULATION).err


def test_every_release_that_was_not_abandoned_is_counted(home: Path) -> None:
    ledger = Workspace.open().ledger
    open_budget(ledger, "people")
    open_budget(ledger, "films")
    reserve(ledger, "waiting", population="people")
    begin(ledger, "begun", population="people")
    commit(ledger, begin(ledger, "committed", population="people").release_id)
    ledger.close(begin(ledger, "closed", population="people").release_id)
    ledger.abandon(reserve(ledger, "given up", population="people").release_id)
    films, people = balances(ledger)
    assert [(row["population"], row["releases"]) for row in (films, people)] == [("films", 0), ("people", 4)]
    assert (films["spent"], films["remaining"]) == (0.0, pytest.approx(EPSILON, rel=1e-6))
    assert 0.0 < people["spent"] < EPSILON
    assert people["remaining"] < films["remaining"]
    assert home.is_dir()
