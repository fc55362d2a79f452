"""Command ``dpca stream``: one charge for all ticks, and one version per slot after repeats, crashes and losses."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient

from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends import atomic_files
from dpca.errors import Unavailable
from dpca.registry.reader import Registry
from flows.cli import main
from flows.commands.subspace import _agreed
from flows.doctor import examine
from flows.orchestration.stage_calls import directly
from flows.releases.streams import make_tick, offer_extension
from flows.settings import Settings
from storage.ledger import releases
from storage.registry.agreement import compare_artifacts
from storage.workspace import Workspace
from tests.flows.conftest import Command, isolate, kept_by, newest_run

D, K = 6, 2
DIRECTIONS = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0][:K]
OPEN = (
    *("stream", "open", "people", "--population", "people", "--epsilon", "1", "--delta", "1e-6"),
    *("--clip-norm", "8", "--components", str(K), "--publish", "nightly"),
)


def write_rows(path: Path, *, night: int, directions: Any = DIRECTIONS, count: int = 3_000) -> Path:
    """Write rows with most of their variance along two directions."""
    rng = np.random.default_rng(night)
    strong = rng.normal(size=(count, K)) * [3.0, 2.0] @ directions
    np.save(path, strong + 0.1 * rng.normal(size=(count, D)))
    return path


@pytest.fixture(scope="module")
def opened_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with a dataset, a budget of epsilon 2, and a stream of 20 ticks."""
    place = tmp_path_factory.mktemp("streams") / "home"
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        source = write_rows(place.with_name("first.npy"), night=1)
        assert main(["dataset", "ingest", str(source), "--name", "people", "--direct"]) == 0
        assert main(["budget", "open", "people", "--epsilon", "2", "--delta", "1e-6"]) == 0
        assert main([*OPEN, "--ticks", "20", "--yes"]) == 0
    return place


@pytest.fixture
def opened(opened_home: Path, home: Path) -> Path:
    """Return a separate copy of the home with an open stream, set as the current home."""
    shutil.copytree(opened_home, home)
    return home


def tick(slot: str, **facts: Any) -> dict[str, Any]:
    return make_tick(directly, "nightly", Settings(cluster="none"), slot=slot, **facts)


def ingest(home: Path, *, night: int, **facts: Any) -> str:
    source = write_rows(home.with_name(f"{night}.npy"), night=night, **facts)
    assert main(["dataset", "ingest", str(source), "--name", "people", "--direct"]) == 0
    return Workspace.read_only().catalog.current("people").snapshot


def spent() -> float:
    return Workspace.read_only().ledger.statement("people").spent


@contextmanager
def drawn_keys(name: str = "key") -> Iterator[None]:
    """Draw keys from a counter, so that two homes draw the same keys."""
    drawn = 0

    def draw() -> bytes:
        nonlocal drawn
        drawn += 1
        return sha256(f"{name} {drawn}".encode()).digest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releases, "new_key", draw)
        yield


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """Interrupt the body of the context when it first reaches a crash point."""

    def die(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(atomic_files, "hook", die)
        yield


class TestTicks:
    def test_each_tick_publishes_a_version_without_charge_and_states_its_origin(self, opened: Path) -> None:
        before = spent()
        first, again, second = tick("2026-11-01"), tick("2026-11-01"), tick("2026-11-02")
        assert spent() == before
        assert [found["artifact"] for found in (first, again, second)] == ["nightly@1", "nightly@1", "nightly@2"]
        assert (again["reused"], again["digest"]) == (True, first["digest"])
        found = Registry.open().load("nightly@2", PrivateSubspace)
        reported = found.manifest["plan"]["stream"]
        assert (reported["tick"], reported["ticks"], reported["slot"], reported["missing"]) == (2, 20, "2026-11-02", [])
        assert found.manifest["privacy"]["event"]["name"] == "stream_tick"
        assert found.manifest["privacy"]["unit"] == "row of one night"
        text = "(1, 1e-6)-differential privacy when one row of one night is added or removed"
        assert found.manifest["privacy"]["statement"] == text
        assert "row of one night" in found.manifest["warnings"][0]
        captured = np.linalg.norm(found.components @ DIRECTIONS.T) ** 2 / K
        assert captured > 0.99  # the noise is far smaller than the variance along both directions
        workspace = Workspace.open()
        assert not [path for path in (opened / "keys").iterdir() if not re.match(r"\.?(witness|publisher)", path.name)]
        assert workspace.ledger.verify() > 0
        with workspace.ledger.transaction() as connection:
            assert compare_artifacts(connection, workspace.store) == 2

    @pytest.mark.parametrize("point", ["tick.row_committed", "answer.row_committed"])
    def test_interrupted_ticks_give_equal_bits_after_later_ingests(
        self, opened: Path, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        other = opened.with_name("other")
        shutil.copytree(opened, other)
        with drawn_keys():
            tick("2026-11-01")
            with dying_at(point):
                tick("2026-11-02")
            ingest(opened, night=2)
            cut = tick("2026-11-02")
        isolate(monkeypatch, home=other)
        with drawn_keys():
            tick("2026-11-01")
            whole = tick("2026-11-02")
        assert cut["digest"] == whole["digest"]

    def test_ticks_whose_stored_answer_was_removed_fail_in_one_line_and_repeat_with_equal_bits(
        self, opened: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = opened.with_name("other")
        shutil.copytree(opened, other)

        def sweep(reached: str) -> None:
            if reached == "keep.row_committed":
                for folder in (opened / "staging").iterdir():
                    shutil.rmtree(folder)

        with drawn_keys():
            monkeypatch.setattr(atomic_files, "hook", sweep)
            with pytest.raises(Unavailable, match="removed while in use"):
                tick("2026-11-01")
            monkeypatch.setattr(atomic_files, "hook", lambda reached: None)
            again = tick("2026-11-01")
        isolate(monkeypatch, home=other)
        with drawn_keys():
            assert tick("2026-11-01")["digest"] == again["digest"]

    def test_ticks_left_by_a_crash_are_finished_by_the_next_slot(self, opened: Path) -> None:
        with dying_at("keep.row_committed"):
            tick("2026-11-01")
        assert tick("2026-11-02")["tick"] == 2
        assert [row.version for row in Registry.open().list()] == [1, 2]

    def test_an_existing_tick_refuses_newer_data_and_the_next_tick_uses_it(self, opened: Path) -> None:
        tick("2026-11-01")
        turned = np.linalg.qr(np.random.default_rng(2).normal(size=(D, D)))[0][:K]
        snapshot = ingest(opened, night=2, directions=turned, count=30_000)
        with pytest.raises(Exception, match="the next tick includes corrected data"):
            tick("2026-11-01", snapshot=snapshot)
        assert tick("2026-11-02", snapshot=snapshot)["tick"] == 2
        found = Registry.open().load("nightly@2", PrivateSubspace)
        assert np.linalg.norm(found.components @ turned.T) ** 2 / K > 0.95

    def test_closed_ticks_and_ticks_without_answer_do_not_affect_others(self, opened: Path, dpca: Command) -> None:
        tick("2026-11-01")
        with dying_at("tick.row_committed"):
            tick("2026-11-02")
        reported = json.loads(dpca("stream", "close", "nightly", "--tick", "2", "--json").out)
        assert (reported["closed_ticks"], reported["used"], reported["live"]) == ([2], 2, True)
        with pytest.raises(Exception, match="was closed, and a slot has one tick"):
            tick("2026-11-02")
        assert tick("2026-11-03")["tick"] == 3
        next((opened / "streams").glob("*/000001-*.npy")).unlink()
        report = tick("2026-11-04")
        assert any("answers of 2 ticks are missing" in warning for warning in report["warnings"])
        assert json.loads(dpca("stream", "show", "nightly", "--json").out)["missing_answers"] == [1, 2]
        (seen,) = (finding for finding in examine() if finding.check == "streams")
        assert (seen.verdict, seen.found) == ("note", "nightly: 4 of 20 ticks used")
        assert seen.advice.startswith("noisy answers of ticks 1 are not in")
        found = Registry.open().load("nightly", PrivateSubspace)
        assert np.linalg.norm(found.components @ DIRECTIONS.T) ** 2 / K > 0.95

    def test_ticks_on_data_with_other_columns_are_refused(self, opened: Path) -> None:
        np.save(opened.with_name("wide.npy"), np.ones((50, D + 1)))
        again = ["dataset", "ingest", str(opened.with_name("wide.npy")), "--name", "people", "--direct"]
        assert main(again) == 1  # every snapshot of a dataset must have the same columns
        assert main(["dataset", "remove", "people"]) == 0
        assert main(again) == 0
        with pytest.raises(Exception, match="columns of 'people' differ from those"):
            tick("2026-11-01")

    def test_ticks_on_data_with_another_unit_are_refused(self, opened: Path) -> None:
        np.save(opened.with_name("ids.npy"), np.arange(3_000) // 2)
        rows, ids = (str(opened.with_name(name)) for name in ("1.npy", "ids.npy"))
        write_rows(Path(rows), night=1)
        again = ["dataset", "ingest", rows, "--name", "people", "--units", ids, "--direct"]
        assert main(again) == 1  # every snapshot of a dataset must have the same privacy unit
        assert main(["dataset", "remove", "people"]) == 0
        assert main(again) == 0
        with pytest.raises(
            Exception, match="individuals of 'people' are identified by 'unit', but the stream was opened"
        ):
            tick("2026-11-01")

    def test_ticks_count_a_removed_and_readmitted_person_correctly(self, opened: Path) -> None:
        """Remove a person on night 2 and admit the same id again on night 3."""
        nights = ((0, 1, 2, 3), (1, 2, 3), (0, 1, 2, 3, 4))
        for night, people in enumerate(nights, start=1):
            np.save(opened.with_name("ids.npy"), np.repeat(people, 500))
            np.save(opened.with_name("rows.npy"), np.ones((500 * len(people), D)) * night)
            rows, ids = (str(opened.with_name(name)) for name in ("rows.npy", "ids.npy"))
            requested = ["dataset", "ingest", rows, "--name", "guests", "--units", ids]
            assert main([*requested, "--direct"]) == 0
            if night == 1:
                budget = ["budget", "open", "guests", "--epsilon", "2", "--delta", "1e-6", "--unit", "unit"]
                assert main(budget) == 0
                stream = ["stream", "open", "guests", "--population", "guests", *OPEN[5:], "--publish", "guests"]
                assert main([*stream, "--ticks", "9", "--yes"]) == 0
            report = make_tick(directly, "guests", Settings(cluster="none"), slot=f"2026-11-{night:02}")
            assert (report["unit"], report["warnings"][1:]) == ("unit", [])
            assert report["statement"].endswith("-differential privacy when one unit (`unit`) is added or removed")
        workspace = Workspace.open()
        ticks = workspace.ledger.streams.show("guests")[1]
        assert len({each.arrivals for each in ticks} - {"unknown"}) == 1
        snapshot = workspace.catalog.open(workspace.catalog.current("guests"))
        found = {block.first_seen: len(block.record_ptr) - 1 for block in map(snapshot.read, range(snapshot.n_blocks))}
        assert found == {ticks[0].number: 4, ticks[2].number: 1}

    def test_ticks_of_a_removed_snapshot_must_be_closed(self, opened: Path) -> None:
        with dying_at("tick.row_committed"):
            tick("2026-11-01")
        Workspace.open().catalog.remove("people", force=True)
        with pytest.raises(Exception, match=r"removed.*close the tick"):
            tick("2026-11-01")

    def test_ticks_are_aligned_and_tested_for_drift(self, opened: Path) -> None:
        reports = [tick(f"2026-11-{number:02}") for number in range(1, 9)]
        assert "drift_p" not in reports[6]
        assert reports[7]["least_cosine"] > 0.99
        before, found = (Registry.open().load(f"nightly@{number}", PrivateSubspace) for number in (7, 8))
        reported = found.outcome["alignment"]
        assert reported["with"] == before.manifest["release"]
        rotation = np.array(reported["rotation"])
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(K), atol=1e-12)
        assert np.linalg.norm(found.components - before.components) < 0.1
        drift = found.outcome["drift"]
        assert 1e-3 < drift["p"] < 1 - 1e-3, "the probability of a false alarm is 0.002"


def _fire(_: int) -> str:
    return str(tick("2026-11-01")["digest"])


def test_two_schedulers_that_run_the_same_slot_give_one_tick(opened: Path) -> None:
    with get_context("fork").Pool(3) as pool:
        assert len(set(pool.map(_fire, range(3), chunksize=1))) == 1
    stream, ticks = Workspace.read_only().ledger.streams.show("nightly")
    assert (len(stream.charges), len(ticks), len(Registry.open().list())) == (1, 1, 1)


class TestCommands:
    def test_warnings_of_a_plan_precede_the_confirmation(self, capsys: pytest.CaptureFixture[str]) -> None:
        terms = SimpleNamespace(plan=SimpleNamespace(warnings=("little is left",)))
        offer = SimpleNamespace(terms=terms, refusal=None, standing=False, question="Open it?")
        assert _agreed(offer, dry_run=False, yes=True, as_json=False)
        assert "warning: little is left" in capsys.readouterr().err

    def test_a_slot_is_the_day_on_which_it_was_planned(self, opened: Path, prefect: SyncPrefectClient) -> None:
        assert main(["stream", "tick", "nightly", "--json"]) == 0
        (found,) = Workspace.read_only().ledger.streams.show("nightly")[1]
        assert len(found.slot.split("-")) == 3
        assert newest_run(prefect, "tick-stream").state_name == "Completed"
        digest = Workspace.read_only().catalog.current("people").content_digest
        assert digest not in kept_by(prefect)

    def test_opening_again_is_free_and_an_extension_costs_the_difference(self, opened: Path, dpca: Command) -> None:
        again = json.loads(dpca(*OPEN, "--ticks", "20", "--yes", "--json").out)
        assert (again["ticks"], again["spent"]) == (20, 1.0)
        for answer in ("--yes", "--dry-run"):
            assert "other terms" in dpca(*OPEN, "--ticks", "30", answer).complaint(1)
        shown = json.loads(dpca("stream", "show", "nightly", "--json").out)
        (priced, _) = shown["extending"]
        assert priced["ticks"] == 40
        offered = json.loads(dpca("stream", "extend", "nightly", "--ticks", "40", "--dry-run", "--json").out)
        assert offered["epsilon"] == priced["epsilon"]
        requested = offer_extension("nightly", ticks=40).question
        assert requested.startswith("Spend once, for 20 ticks of 'nightly', epsilon ")
        assert re.search(r"of budget 'people', with epsilon [\d.]+ left before and [\d.]+ after\?$", requested)
        # the charge of each tick is rounded up separately
        assert offered["spent_after"] == pytest.approx(priced["in_all"], rel=1e-12)
        extended = json.loads(dpca("stream", "extend", "nightly", "--ticks", "40", "--yes", "--json").out)
        assert (extended["ticks"], extended["spent"]) == (40, offered["spent_after"])
        assert json.loads(dpca("stream", "extend", "nightly", "--ticks", "30", "--yes", "--json").out)["ticks"] == 40

    def test_instalments_add_up_to_the_total_cost(self, opened: Path, dpca: Command) -> None:
        main(["stream", "close", "nightly"])
        before = Workspace.read_only().ledger.statement("people")
        parts = ("--ticks", "20", "--instalment", "5", "--publish", "parts", "--yes", "--json")
        first = json.loads(dpca(*OPEN, *parts).out)
        assert (first["ticks"], first["live"]) == (5, True)
        assert before.spent < first["spent"]
        assert first["epsilon_charged"] < first["epsilon"]
        extended = json.loads(dpca("stream", "extend", "parts", "--ticks", "20", "--yes", "--json").out)
        assert (extended["ticks"], extended["epsilon_charged"]) == (20, extended["epsilon"])
        rows = [row for row in Workspace.read_only().ledger.statement("people").releases if row.state == "noising"]
        whole = 1 / before.releases[0].event["noise_multiplier"] ** 2
        squares = [1 / row.event["noise_multiplier"] ** 2 for row in rows]
        assert sum(squares) == pytest.approx(whole, rel=1e-12)
        assert sum(squares) >= whole

    def test_a_stream_of_one_tick_is_shown_without_a_price_for_extension(self, opened: Path, dpca: Command) -> None:
        report = json.loads(dpca(*OPEN, "--publish", "one", "--ticks", "1", "--yes", "--json").out)
        assert (report["ticks"], report["left"], report["extending"]) == (1, 1, [])
        charged = spent()
        assert "open another stream" in dpca("stream", "extend", "one", "--ticks", "2", "--yes").complaint(1)
        assert spent() == charged

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("--half-life", "1e300"), "at most 36500 ticks"),
            (("--window", "1000000000", "--strategy", "window"), "at most 36500 ticks"),
            (("--ticks", "1000000000"), "at most 36500 ticks"),
            (("--population", "others"), "belongs to population 'people'"),
            (("--strategy", "sqrt"), "needs a number of ticks"),
            (("--strategy", "decay"), "needs --window or --half-life"),
            (("--window", "7", "--half-life", "3"), "two different estimates"),
            (("--instalment", "3"), "whose charge depends on the number of ticks"),
            (("--epsilon", "9", "--ticks", "3", "--yes"), "nothing was charged"),
        ],
    )
    def test_an_impossible_request_is_refused_in_one_line(
        self, opened: Path, dpca: Command, words: tuple[str, ...], text: str
    ) -> None:
        ending = dpca(*OPEN, "--publish", "other", *words)
        assert text in ending.complaint(3 if "nothing was charged" in text else 1)
        assert spent() == 1.0

    @pytest.mark.parametrize(
        ("words", "strategy", "estimate"),
        [
            ((), "power", "prefix"),
            (("--half-life", "3"), "decay", "decay"),
            (("--window", "7"), "decay", "window"),
            (("--window", "7", "--strategy", "window"), "window", "window"),
        ],
    )
    def test_the_strategy_follows_from_what_is_requested(
        self, opened: Path, dpca: Command, words: tuple[str, ...], strategy: str, estimate: str
    ) -> None:
        report = json.loads(dpca(*OPEN, "--publish", "other", *words, "--epsilon", "0.5", "--yes", "--json").out)
        assert (report["strategy"], report["estimate"]) == (strategy, estimate)
        assert report["factor_at_the_end"] < report["factor_of_independent_releases"]
        listed = json.loads(dpca("stream", "list", "--json").out)
        assert [row["stream"] for row in listed] == ["nightly", "other"]


def test_budget_alerts_of_a_stream_and_its_extensions_are_sent_once_per_level(
    opened_home: Path, tmp_path: Path
) -> None:
    place = tmp_path / "home"
    shutil.copytree(opened_home, place)

    def reported() -> int:
        return len([*(place / "notices").glob("*.delivered")])

    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        assert reported() == 0
        assert main([*OPEN[:-1], "weekly", "--ticks", "20", "--yes"]) == 0
        assert reported() == 1
        for name in ("nightly", "weekly"):
            assert main(["stream", "extend", name, "--ticks", "200", "--yes"]) == 0
        ledger = Workspace.read_only().ledger
        charges = [charge.release_id for stream in ledger.streams.all() for charge in stream.charges]
        reached = [level for release_id in charges for level in ledger.alerts(release_id)]
        assert sorted(reached) == [20, 50]
        assert reported() == 2
