"""Commands ``dpca mechanism`` and ``dpca audit``: they use public facts alone, without a home or data.

The option ``--mechanism auto`` plans once.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from dpca.registry.reader import Registry
from dpca_tasks import advisor
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms import completion, tensors
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.noise.distributions import Gaussian
from flows.cli import main
from flows.families import subspace
from flows.families.base import stored_request
from flows.releases.stages import plan_on
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command
from tests.flows.releases.test_stages import ENTRY, LEDGER, REQUEST
from tests.storage.trail.forging import EDITS, exported, two_populations


def test_the_table_of_true_epsilons_as_json(dpca: Command) -> None:
    ending = dpca("mechanism", "truth", "--formula", "wishart", "--formula", "smooth_cauchy", "--json")
    rows = json.loads(ending.out)
    assert ending.status == 0
    assert {row["formula"] for row in rows} == {"wishart", "smooth_cauchy"}
    assert all(row["agrees"] and row["source"] and row["noise"] > 0 for row in rows)
    wishart = [row for row in rows if row["formula"] == "wishart"]
    assert [row["true_epsilon_at_least"] for row in wishart] == [None, None], "no epsilon without delta"
    assert all("support" in row["condition_broken"] for row in wishart)
    cauchy = next(row for row in rows if row["formula"] == "smooth_cauchy" and row["claimed_epsilon"] == 0.1)
    assert 0.033 < cauchy["true_epsilon_at_least"] < cauchy["true_epsilon_at_most"] < 0.0334
    assert cauchy["condition_broken"] is None


def test_the_table_of_true_epsilons_as_text(dpca: Command) -> None:
    out = dpca("mechanism", "truth", "--formula", "wishart", "--formula", "mod_sulq").out
    assert "no epsilon at this delta" in out
    assert "holds, by delta alone" in out


def test_an_unknown_formula_is_refused_in_one_line(dpca: Command) -> None:
    ending = dpca("mechanism", "truth", "--formula", "sparkle")
    assert ending.status == 1
    assert "use one of analyze_gauss" in ending.err


ADVISE = ("mechanism", "advise", "--features", 40, "--components", 3, "--delta", 0)
AUTO: dict[str, Any] = {**REQUEST, "mechanism": "auto", "delta": 0.0}


def test_advice_is_ranked_and_names_the_mechanism_to_use(dpca: Command) -> None:
    words = ("--records-at-most", 50_000, "--epsilon", 1, "--spectrum", "decay:1")
    reported = json.loads(dpca(*ADVISE, *words, "--json").out)
    lows = [row["captured_variance_from"] for row in reported["ranked"]]
    assert reported["advice"].startswith(f"use {reported['ranked'][0]['mechanism']}: ")
    assert reported["expect_noise"] is False
    assert lows[0] >= max(lows) - 0.02
    assert set(reported["refused"]) == set(MECHANISMS) - {row["mechanism"] for row in reported["ranked"]}
    shown = dpca(*ADVISE, *words)
    assert shown.status == 0
    assert reported["advice"] in shown.out


def test_a_forecast_of_noise_states_the_sufficient_records_and_epsilon(dpca: Command) -> None:
    words = ("--records-at-most", 50, "--spectrum", "decay:1")
    reported = json.loads(dpca(*ADVISE, *words, "--epsilon", 0.1, "--json").out)
    assert reported["expect_noise"] is True
    assert reported["advice"].startswith("expect noise: no mechanism")
    epsilon = reported["ranked"][0]["epsilon_needed"]
    assert f"epsilon {min(row['epsilon_needed'] for row in reported['ranked']):.3g}" in reported["advice"]
    better = json.loads(dpca(*ADVISE, *words, "--epsilon", epsilon, "--json").out)
    assert better["expect_noise"] is False


def test_advice_for_a_schedule_divides_the_budget(dpca: Command) -> None:
    words = ("--records-at-most", 50_000, "--epsilon", 1, "--releases", 4, "--json")
    reported = json.loads(dpca(*ADVISE, *words).out)
    assert (reported["releases"], reported["epsilon_each_other"]) == (4, 0.25)
    assert reported["ranked"][0]["epsilon"] == 0.25


def test_every_mechanism_is_listed_and_explained(dpca: Command) -> None:
    listed = json.loads(dpca("mechanism", "list", "--json").out)
    for family, known in (
        ("subspace", MECHANISMS),
        ("completion", completion.MECHANISMS),
        ("tensor", tensors.MECHANISMS),
    ):
        assert [row["mechanism"] for row in listed if row["family"] == family] == sorted(known)
    pure = {row["mechanism"] for row in listed if row["guarantee"].startswith("pure epsilon")}
    assert pure == {"avn", "exponential", "laplace", "wishart"}
    for name in ("analyze_gauss", "smooth_sensitivity"):
        reported = json.loads(dpca("mechanism", "explain", name, "--json").out)
        assert all(reported[key] for key in ("what", "does", "when", "guarantee", "cost", "source"))
    for name, command in (("dpals", "dpca completion fit"), ("avn", "dpca tensor fit")):
        reported = json.loads(dpca("mechanism", "explain", name, "--json").out)
        assert reported["command"] == command
        assert all(reported[key] for key in ("what", "does", "guarantee", "source"))
    assert "nosuch" in dpca("mechanism", "explain", "nosuch").complaint(1)


def test_auto_selects_a_mechanism_at_planning_and_stores_its_name() -> None:
    planned = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO))
    name = planned.plan.mechanism
    assert name in {"wishart", "exponential", "laplace"}
    assert planned.request.mechanism == stored_request(planned)["mechanism"] == name
    assert planned.plan == plan_on(LEDGER, ENTRY, SubspaceRequest(**{**AUTO, "mechanism": name})).plan


def test_a_stored_plan_of_auto_keeps_its_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO))
    monkeypatch.setattr(subspace, "advise", lambda *words, **more: advisor.advise(*words, **more, only=["laplace"]))
    after = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO))
    assert after.plan.mechanism == "laplace"
    assert (after.run_key, after.fingerprint) == (before.run_key, before.fingerprint)
    other = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO, spectrum="decay:1"))
    assert other.fingerprint != before.fingerprint


def test_auto_refuses_settings_and_requests_that_no_mechanism_accepts() -> None:
    with pytest.raises(InvalidInput, match="mechanism=auto accepts no settings"):
        plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO, settings={"calibration": "tight"}))
    with pytest.raises(Refused, match="mechanism=auto found no mechanism"):
        plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO, refine="spikes"))


@pytest.mark.usefixtures("ready")
def test_a_release_of_auto_is_charged_once_and_published_by_its_name(dpca: Command, home: Path) -> None:
    words = (*FIT, "--mechanism", "auto", "--direct", "--yes", "--json")
    first, again = (json.loads(dpca(*words).out) for _ in range(2))
    assert (first["reused"], again["reused"]) == (False, True)
    assert first["mechanism"] == Registry.open().show("sub@1")["manifest"]["mechanism"]
    assert first["mechanism"] in MECHANISMS
    assert len(list(Workspace.read_only().ledger.history("people"))) == 1
    assert home.is_dir()


def audit(capsys, *options):
    status = main(["audit", "--mechanism", "analyze_gauss", "--trials", "100", *options])
    return status, capsys.readouterr().out


def test_an_audit_prints_a_row_for_each_relation_and_succeeds(capsys):
    status, printed = audit(capsys, "--json")
    rows = json.loads(printed)
    assert status == 0
    assert [row["relation"] for row in rows] == ["add_remove", "zero_out", "replace_one"]
    assert all(row["verdict"] == "passed" and row["bound"] <= row["epsilon"] for row in rows)


def test_an_audit_fails_if_a_bound_exceeds_the_claim(capsys, monkeypatch):
    draw = Gaussian.draw

    def faint(self, key, order, *, scale_in_steps, **piece):
        return draw(self, key, order, scale_in_steps=scale_in_steps / 4, **piece)

    monkeypatch.setattr(Gaussian, "draw", faint)
    status, printed = audit(capsys)
    assert status == 1
    assert printed.count("FAILED") == 3


@pytest.mark.parametrize("options", [["--mechanism", "sulq"], ["--confidence", "1.5"]])
def test_an_impossible_audit_is_refused_in_one_line(capsys, options):
    assert main(["audit", *options]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


@pytest.fixture(scope="module")
def trail(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(tmp_path_factory.mktemp("trail") / "home"))
        workspace = two_populations()
        return exported(workspace), workspace.ledger.statement("patients").spent


def test_a_trail_is_verified_without_a_home_and_every_edit_is_refused(trail, tmp_path, capsys, monkeypatch):
    export, spent = trail
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "absent"))
    file = tmp_path / "trail.json"
    file.write_text(json.dumps(export))
    assert main(["audit", "verify", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spent"] == spent
    assert len(EDITS) >= 10
    for edit in EDITS.values():
        edited = copy.deepcopy(export)
        edit(edited)
        file.write_text(json.dumps(edited))
        assert main(["audit", "verify", str(file)]) == 1
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert not (tmp_path / "absent").exists()
