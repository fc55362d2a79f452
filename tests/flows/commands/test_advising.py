"""``dpca mechanism advise, list, explain`` and ``--mechanism auto``: from public facts, and kept once planned."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpca_tasks import advisor
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms import completion, tensors
from dpca_tasks.mechanisms.subspace import MECHANISMS
from flows.families import subspace
from flows.families.stored import stored_request
from flows.releases.planning import plan_on
from flows.requests.subspace import SubspaceRequest
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command
from tests.flows.releases.test_planning import ENTRY, LEDGER, REQUEST

ADVISE = ("mechanism", "advise", "--features", 40, "--components", 3, "--delta", 0)
AUTO: dict[str, Any] = {**REQUEST, "mechanism": "auto", "delta": 0.0}


def test_advice_is_ranked_and_says_what_to_use(dpca: Command) -> None:
    words = ("--records-at-most", 50_000, "--epsilon", 1, "--spectrum", "decay:1")
    told = json.loads(dpca(*ADVISE, *words, "--json").out)
    lows = [row["captured_variance_from"] for row in told["ranked"]]
    assert told["advice"].startswith(f"use {told['ranked'][0]['mechanism']}: ")
    assert told["expect_noise"] is False
    assert lows[0] >= max(lows) - 0.02
    assert set(told["refused"]) == set(MECHANISMS) - {row["mechanism"] for row in told["ranked"]}
    shown = dpca(*ADVISE, *words)
    assert shown.status == 0
    assert told["advice"] in shown.out


def test_noise_is_announced_with_the_records_and_the_epsilon_that_would_do(dpca: Command) -> None:
    words = ("--records-at-most", 50, "--spectrum", "decay:1")
    told = json.loads(dpca(*ADVISE, *words, "--epsilon", 0.1, "--json").out)
    assert told["expect_noise"] is True
    assert told["advice"].startswith("expect noise: no mechanism")
    epsilon = told["ranked"][0]["epsilon_needed"]
    assert f"epsilon {min(row['epsilon_needed'] for row in told['ranked']):.3g}" in told["advice"]
    better = json.loads(dpca(*ADVISE, *words, "--epsilon", epsilon, "--json").out)
    assert better["expect_noise"] is False


def test_a_schedule_shares_the_budget(dpca: Command) -> None:
    words = ("--records-at-most", 50_000, "--epsilon", 1, "--releases", 4, "--json")
    told = json.loads(dpca(*ADVISE, *words).out)
    assert (told["releases"], told["epsilon_each_other"]) == (4, 0.25)
    assert told["ranked"][0]["epsilon"] == 0.25


def test_every_mechanism_is_listed_and_explains_itself(dpca: Command) -> None:
    listed = json.loads(dpca("mechanism", "list", "--json").out)
    for family, known in (
        ("subspace", MECHANISMS),
        ("completion", completion.MECHANISMS),
        ("tensor", tensors.MECHANISMS),
    ):
        assert [row["mechanism"] for row in listed if row["family"] == family] == sorted(known)
    pure = {row["mechanism"] for row in listed if row["guarantee"].startswith("epsilon alone")}
    assert pure == {"avn", "exponential", "laplace", "wishart"}
    for name in ("analyze_gauss", "smooth_sensitivity"):
        told = json.loads(dpca("mechanism", "explain", name, "--json").out)
        assert all(told[key] for key in ("what", "does", "when", "guarantee", "cost", "source"))
    for name, command in (("dpals", "dpca completion fit"), ("avn", "dpca tensor fit")):
        told = json.loads(dpca("mechanism", "explain", name, "--json").out)
        assert told["command"] == command
        assert all(told[key] for key in ("what", "does", "guarantee", "source"))
    assert "nosuch" in dpca("mechanism", "explain", "nosuch").complaint(1)


def test_auto_names_a_mechanism_at_planning_and_that_name_is_stored() -> None:
    planned = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO))
    name = planned.plan.mechanism
    assert name in {"wishart", "exponential", "laplace"}
    assert planned.request.mechanism == stored_request(planned)["mechanism"] == name
    assert planned.plan == plan_on(LEDGER, ENTRY, SubspaceRequest(**{**AUTO, "mechanism": name})).plan


def test_a_plan_of_auto_stays_the_same_release_whatever_would_be_chosen_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO))
    monkeypatch.setattr(subspace, "advise", lambda *words, **more: advisor.advise(*words, **more, only=["laplace"]))
    after = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO))
    assert after.plan.mechanism == "laplace"
    assert (after.run_key, after.fingerprint) == (before.run_key, before.fingerprint)
    other = plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO, spectrum="decay:1"))
    assert other.fingerprint != before.fingerprint


def test_auto_takes_no_settings_and_says_when_nothing_accepts_a_request() -> None:
    with pytest.raises(InvalidInput, match="mechanism=auto takes no settings"):
        plan_on(LEDGER, ENTRY, SubspaceRequest(**AUTO, settings={"calibration": "tight"}))
    with pytest.raises(Refused, match="mechanism=auto found none"):
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
