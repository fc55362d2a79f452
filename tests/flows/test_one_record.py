"""Refresh loop: no single record decides how a run ends in public; a private report names the faulty row.

A second run on equal rows and one on rows with one row changed have the same versions, charges and journal entries.
"""

import dataclasses
import json
import os
import re
import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.errors import BadSource, NotFound
from dpca.registry.reader import Registry
from flows import ingest, jobs
from flows.cli import main
from flows.ingest import FILE_FAULT
from flows.orchestration.stage_calls import directly
from flows.refresh import refresh_directly
from flows.releases import running
from flows.releases.stages import make_release, release_directly
from flows.releases.streams import make_tick
from flows.reports.snapshot_facts import REPORTS
from flows.requests import SitesRequest, SubspaceRequest
from flows.settings import Settings
from flows.sites.releases import fit_sites_directly
from storage.database import tables
from storage.datasets.ingest import ingest as neighbours_ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import releases
from storage.ledger.releases import KEY_BYTES
from storage.workspace import Workspace
from tests.flows.arriving import Webhook
from tests.flows.conftest import FIT, Command, isolate

PEOPLE, BOUND = 400, 400
REFRESH = (
    *(
        "--components",
        "2",
        "--epsilon",
        "8",
        "--delta",
        "1e-6",
        "--clip-norm",
        "2",
        "--publish",
        "map",
        "--features",
        "4",
    ),
    *("--records-at-most", str(BOUND), "--settled", "0", "--direct", "--yes", "--json"),
)
WIDE = ("--unit-column", "who", "--max-rows-per-unit", "2")
TRIPLETS = ("--columns", "row=who,column=item,value=rating", "--duplicates", "refuse")


def wide(seed: int = 1) -> list[str]:
    """Return the lines of a CSV table, one row per person, with most of the variance in two columns."""
    rows = np.random.default_rng(seed).normal(size=(PEOPLE, 4)) * [1.0, 0.7, 0.02, 0.02]
    return [
        "who,a,b,c,d",
        *(f"p{number}," + ",".join(f"{cell:.4f}" for cell in row) for number, row in enumerate(rows)),
    ]


def triplets() -> list[str]:
    """Return the lines of the same rows as triplets, four lines per person."""
    lines = [line.split(",") for line in wide()[1:]]
    return ["who,item,rating", *(f"{who},{item},{cell}" for who, *cells in lines for item, cell in enumerate(cells))]


def edited(at: int, edit: Callable[[str], str]) -> Callable[[list[str]], list[str]]:
    return lambda lines: [edit(line) if number == at else line for number, line in enumerate(lines)]


def added(*more: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines, *more]


NEIGHBOURS: dict[str, tuple[tuple[str, ...], Callable[[list[str]], list[str]], str]] = {
    "a value that is NaN": (WIDE, edited(5, lambda line: line.rpartition(",")[0] + ",nan"), "line,6"),
    "one row too many": (WIDE, added("q,1,0,0,0"), f"line,{PEOPLE + 2}"),
    "one person with too many rows": (WIDE, added(*["p3,1,0,0,0"] * 9), f"line,{PEOPLE + 3}"),
    "one open quote": (WIDE, edited(5, lambda line: f'"{line}'), "line,6"),
    "one duplicate rating": (TRIPLETS, edited(10, lambda line: line.replace(",1,", ",2,")), "line,12"),
    "one item out of range": (TRIPLETS, edited(10, lambda line: line.replace(",1,", ",7,")), "line,11"),
}


def play(
    patch: pytest.MonkeyPatch, home: Path, lines: list[str], options: tuple[str, ...], hook: Webhook, *more: str
) -> dict[str, Any]:
    """Run the refresh loop once in a new home; return everything that the run makes public."""
    isolate(patch, home=home)
    patch.setenv("DPCA_WEBHOOK_URL", hook.url)
    patch.setenv("DPCA_LOG", "json")
    numbers = count(1)  # noise keys from a counter give the same noise in every home
    patch.setattr(releases, "new_key", lambda: next(numbers).to_bytes(KEY_BYTES))
    shown, before = list[Any](), len(hook.reported)
    patch.setattr(running, "emit_public_event", lambda event, **facts: shown.append((event, facts)))
    inbox = home.with_name(f"{home.name}-inbox")
    inbox.mkdir()
    (inbox / "monday.csv").write_text("\n".join(lines) + "\n", encoding="latin-1")
    unit = ["--unit", "who", "--rows-per-unit", "2"] if options == WIDE else []
    assert main(["budget", "open", "people", "--epsilon", "20", "--delta", "1e-6", *unit]) == 0
    ended = main(["subspace", "refresh", str(inbox), "people", *REFRESH, *options, *more])
    workspace = Workspace.read_only()
    return {
        "exit": ended,
        "notices": masked(hook.reported[before:]),
        "events": masked(shown),
        "states": [row.state for row in workspace.ledger.statement("people").releases],
        "versions": [version_of(name) for name in Registry.open().names()],
    }


def version_of(name: str) -> tuple[str, int | None]:
    try:
        return name, Registry.open().resolve(f"{name}@champion").version
    except NotFound:
        return name, None


def masked(shown: Any) -> str:
    """Return public output as text, with ids, times, durations and noised numbers replaced by ``#``."""
    text = shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True)
    return re.sub(r"[0-9a-f]{32,64}|\d+-\d\d-\d\dT[\d:.+]*|\d*\.\d+|\d+\.?", "#", text)


def report_of(home: Path) -> list[str]:
    (path,) = home.rglob("*.rejected.csv")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text().splitlines()[1:]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the loop on the base data and returns its public results.

    The results are computed once for each set of options.
    """
    known: dict[tuple[str, ...], dict[str, Any]] = {}

    def base(options: tuple[str, ...], hook: Webhook, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        if options not in known:
            with pytest.MonkeyPatch.context() as patch:
                home = tmp_path_factory.mktemp("calm") / "home"
                known[options] = play(patch, home, wide() if options == WIDE else triplets(), options, hook)
                known[options]["printed"] = [masked(each) for each in capsys.readouterr()]
                assert report_of(home) == []
        return known[options]

    return base


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_the_public_result_of_the_loop_does_not_depend_on_one_record(
    neighbour: str,
    calm: Callable[..., dict[str, Any]],
    hook: Webhook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, change, place = NEIGHBOURS[neighbour]
    expected = calm(options, hook, capsys)
    lines = change(wide() if options == WIDE else triplets())
    found = play(monkeypatch, tmp_path / "home", lines, options, hook)
    found["printed"] = [masked(each) for each in capsys.readouterr()]
    assert found == expected
    assert found["exit"] == 0
    assert found["versions"] == [("map", 1)]
    assert f",{place}," in "\n".join(report_of(tmp_path / "home")), report_of(tmp_path / "home")


def test_an_empty_file_ends_like_a_file_of_one_record(
    hook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = []
    for number, lines in enumerate((wide()[:2], wide()[:1])):
        ends.append(play(monkeypatch, tmp_path / f"home{number}", lines, WIDE, hook))
        ends[-1]["printed"] = [masked(each) for each in capsys.readouterr()]
    assert ends[0] == ends[1]
    assert (ends[0]["exit"], ends[0]["versions"]) == (0, [("map", None)])


@pytest.mark.parametrize(("allowed", "version"), [("0.05", None), ("0.95", 1)])
def test_a_release_with_many_rejected_records_is_withheld_by_a_charged_count(
    allowed: str, version: int | None, hook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reject half of the records: a noisy, charged count decides whether the release is withheld.

    The released fraction has a std of 0.04, so each case fails in fewer than one of 10^6 runs.
    """
    lines = [line if number % 2 else f"{line},9" for number, line in enumerate(wide(), start=1)]
    found = play(monkeypatch, tmp_path / "home", lines, WIDE, hook, "--hold-if-rejected", allowed)
    assert (found["exit"], found["versions"]) == (0, [("map", version)])
    (shown,) = [each for each in hook.reported if each["event"].startswith("dpca.release")]
    assert ("rejected records" in shown["reason"]) is (version is None)
    (row,) = Workspace.read_only().ledger.statement("people").releases
    assert row.event["events"][0]["name"] == "laplace"
    outcome = Registry.open().show("map@1")["manifest"]["outcome"]
    assert 0 < outcome["rejected_share_std"] < 0.2


def test_a_dry_run_shows_the_noise_of_the_count(
    dpca: Command, ready_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_HOME", str(ready_home))
    found = dpca(*FIT, "--hold-if-rejected", "0.05", "--dry-run", "--json")
    facts = json.loads(found.out)
    assert facts["hold_if_rejected"] == 0.05
    assert facts["rejected_count_std"] == pytest.approx(32 * 2**0.5)


def test_an_unattended_ingest_ends_at_a_fault_of_the_file_with_one_constant_line(
    dpca: Command, home: Path, tmp_path: Path
) -> None:
    complaints = set()
    for number, content in enumerate((b"", b"who,a\nu1,1\n", b"\x1f\x8b\x08 cut short", b"a,a,b,c\n1,2,3,4\n")):
        source = tmp_path / f"{number}.csv"
        source.write_bytes(content)
        words = ("dataset", "ingest", source, "--name", "people", "--features", 4, "--unattended", "--direct")
        complaints.add(dpca(*words).complaint(1))
    assert complaints == {f"dpca: {FILE_FAULT}"}
    report = home / REPORTS / "people.txt"
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert [f"{number}.csv" in line for number, line in enumerate(report.read_text().splitlines())] == [True] * 4


def test_a_loop_refuses_the_option_to_stop_at_a_bad_row(dpca: Command, inbox: Path) -> None:
    assert dpca("budget", "open", "people", "--epsilon", 20, "--delta", 1e-6).status == 0
    requested = ("subspace", "refresh", inbox, "people", *REFRESH, *WIDE, "--on-error", "fail")
    assert "outcome of an unattended run is public" in dpca(*requested).complaint(1)


def test_a_deployments_ingest_is_unattended(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n1,x\n")
    source = str(tmp_path / "rows.csv")
    requested = IngestOptions(features=2)
    with pytest.raises(BadSource, match="line 3"):
        ingest.ingest_source(source, "people", requested)
    monkeypatch.setattr(jobs, "is_deployed", lambda: True)
    monkeypatch.setattr(jobs, "in_flow", lambda body: body(directly))
    snapshot = jobs.ingest_dataset.fn(source, "people", **dataclasses.asdict(requested))
    workspace = Workspace.read_only()
    assert workspace.catalog.open(workspace.catalog.entry(str(snapshot))).n_records == 2


ROWS = np.round(np.random.default_rng(3).normal(size=(60, 6)) / 4, 6)
CHANGED = ROWS.copy()
CHANGED[17] = 0.25
NEIGHBOURS_PEOPLE = ("people", "north", "south")
NEIGHBOURS_FIT = SubspaceRequest(dataset="people", components=2, epsilon=0.5, delta=1e-6, clip_norm=1.5, publish="sub")
SITES = SitesRequest(
    datasets="north,south", method="conv", components=2, clip_norm=2.0, epsilon=0.5, delta=1e-6, publish="joint"
)
COMPUTED_HERE = Settings(cluster="none")


def store(rows: np.ndarray, name: str) -> None:
    """Ingest rows as a dataset; the site south gets the negated rows.

    Two populations with equal rows would be refused.
    """
    workspace, source = Workspace.open(), Workspace.open().home / "source.npy"
    np.save(source, -rows if name == "south" else rows)
    neighbours_ingest(source, name=name, home=workspace.home, engine=workspace.ledger.engine)


def fit(rows: np.ndarray, number: int) -> Any:
    store(rows, "people")
    return release_directly(NEIGHBOURS_FIT)["artifact"]


def scheduled_fit(rows: np.ndarray, number: int) -> Any:
    """Fit the same slot in each call, so that the second call repeats the first."""
    store(rows, "people")
    return make_release(directly, NEIGHBOURS_FIT, COMPUTED_HERE, slot="night")["artifact"]


def tick(rows: np.ndarray, number: int) -> Any:
    store(rows, "people")
    if number == 0:
        from flows.cli import main

        terms = ("--epsilon", "0.5", "--delta", "1e-6", "--clip-norm", "2", "--components", "2", "--ticks", "4")
        words = ("stream", "open", "people", "--population", "people", *terms, "--publish", "nightly", "--yes")
        assert main([*words]) == 0
    return make_tick(directly, "nightly", COMPUTED_HERE, slot=f"2026-11-{number + 1:02}")["artifact"]


def sites(rows: np.ndarray, number: int) -> Any:
    store(rows, "north")
    store(ROWS, "south")
    return fit_sites_directly(SITES)["artifact"]


def refresh(rows: np.ndarray, number: int) -> Any:
    """Put a file of the same name into an inbox again, and run the loop; the file time depends only on the number."""
    inbox = Workspace.open().home / "inbox-of-people"
    inbox.mkdir(exist_ok=True)
    np.save(inbox / "rows.npy", rows)
    os.utime(inbox / "rows.npy", (1_000_000 + number, 1_000_000 + number))
    report = refresh_directly(str(inbox), NEIGHBOURS_FIT, IngestOptions())
    return [each["artifact"] for each in report["decisions"]]


def public_facts(act: Callable[[np.ndarray, int], Any], second: np.ndarray, home: Path) -> list[Any]:
    """Run ``act`` on base rows and then on ``second``; return versions, budget statements, and journal entry names.

    Moves of aliases are omitted, because they follow from noised answers.
    """
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=home)
        for population in NEIGHBOURS_PEOPLE:
            Workspace.open().ledger.open_budget(population, epsilon=4.0, delta=5e-6)
        published = [act(rows, number) for number, rows in enumerate((ROWS, second))]
        workspace = Workspace.read_only()
        statements = [workspace.ledger.statement(population) for population in NEIGHBOURS_PEOPLE]
        with workspace.ledger.transaction() as connection:
            event = tables.event.c
            written = connection.scalars(sa.select(event.name).order_by(event.seq))
            entries = [name for name in written if not name.startswith("alias")]
    states = [[(release.state, release.charge) for release in each.releases] for each in statements]
    names = sorted(workspace.registry.names())
    return [published, [(each.spent, each.remaining) for each in statements], states, names, entries]


@pytest.mark.parametrize("act", [fit, scheduled_fit, tick, sites, refresh])
def test_public_facts_do_not_depend_on_whether_repeated_rows_are_equal(
    act: Callable[[np.ndarray, int], Any], tmp_path: Path
) -> None:
    same, changed = (public_facts(act, rows, tmp_path / name) for name, rows in (("same", ROWS), ("changed", CHANGED)))
    assert same == changed
    assert any(spent > 0 for spent, _ in same[1])
