"""A fit plans once: what was agreed to is charged, what was charged is stored, and what is stored is computed."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from flows.families.stored import read_planned, stored_request
from flows.families.subspace import SUBSPACE
from flows.families.table import FAMILIES
from flows.fit import run_fit
from flows.releases import running
from flows.releases.planning import plan_on
from flows.requests.subspace import SubspaceRequest
from storage.datasets.catalog import Entry
from storage.errors import Unavailable
from storage.ledger.budgets import Budget
from tests.flows.conftest import FIT, Command

REQUEST: dict[str, Any] = {
    **{"dataset": "people", "components": 2, "epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.5, "publish": "sub"}
}
VARIANTS: list[dict[str, Any]] = [
    *({"mechanism": name} for name in sorted(SUBSPACE.mechanisms)),
    {"clip_norm": "quantile:0.9"},
    {"row_policy": "normalise", "center": "private"},
    {"mechanism": "mod_sulq", "settings": {"calibration": "paper"}},
    {"mechanism": "non_private", "epsilon": None, "delta": None, "i_know_this_is_not_private": True},
]
ENTRY = Entry(
    snapshot="s" * 12,
    name="people",
    population="people",
    n_features=6,
    records_at_most=900,
    path="datasets/s",
    content_digest="0" * 64,
    created_at="2026-01-01T00:00:00+00:00",
)
FINGERPRINTS = {
    "analyze_gauss": "9ced0ed16cc3f6b9",
    "dp_spca": "3a8c9ef5669a7bae",
    "dp_vrpca": "2af08f0b1a102bbb",
    "exponential": "9becdc85f78e8840",
    "laplace": "1dfdb4dafb96eee9",
    "local_gaussian": "89c40d283b59c7ea",
    "mod_sulq": "863e347152486020",
    "noisy_power": "2fef9c1a9fd4499b",
    "propose_test_release": "a4e1f3a6ac00847b",
    "smooth_sensitivity": "5d1cbb0de1046df6",
    "wishart": "5fae633681e229a2",
}
"""The first digits of the digest of `REQUEST` under each mechanism: a charged release is found by it."""
BUDGET = Budget(
    population="people",
    epsilon=9.0,
    delta=1e-5,
    failure_delta=0.0,
    relation="replace_one",
    filter="gdp",
    unit="row",
    rows_per_unit=1,
)
LEDGER: Any = SimpleNamespace(budget=lambda _population: BUDGET)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every problem that a mechanism planned for."""
    seen: list[Any] = []
    plan: Callable[..., Any] = AnalyzeGauss.plan

    def counted(self: AnalyzeGauss, problem: Any, target: Any) -> Any:
        seen.append(problem)
        return plan(self, problem, target)

    monkeypatch.setattr(AnalyzeGauss, "plan", counted)
    return seen


@pytest.mark.parametrize("asked", VARIANTS, ids=lambda asked: "-".join(map(str, asked.values())))
def test_the_stored_plan_is_the_plan_to_the_bit(asked: dict[str, Any]) -> None:
    planned = plan_on(LEDGER, ENTRY, SubspaceRequest(**REQUEST | asked))
    row: Any = SimpleNamespace(
        request=json.loads(json.dumps(stored_request(planned), allow_nan=False)),
        event=json.loads(json.dumps(planned.plan.event)),
        population=planned.population,
        snapshot_id=planned.snapshot_id,
        run_key=planned.run_key,
        fingerprint=planned.fingerprint,
    )
    assert read_planned(row, unit=planned.unit) == planned


@pytest.mark.parametrize(("mechanism", "began"), FINGERPRINTS.items())
def test_a_request_keeps_its_digest(mechanism: str, began: str) -> None:
    planned = plan_on(LEDGER, ENTRY, SubspaceRequest(**{**REQUEST, "mechanism": mechanism}))
    assert planned.fingerprint.startswith(began)


def test_another_calibration_is_another_request() -> None:
    asked = {**REQUEST, "components": 1, "mechanism": "exponential"}
    found = [
        plan_on(LEDGER, ENTRY, SubspaceRequest(**asked, settings=settings)).fingerprint
        for settings in ({}, {"calibration": "tight"}, {"calibration": "paper"})
    ]
    assert found[0] == found[1] != found[2]


def test_mechanisms_of_all_families_have_names_of_their_own() -> None:
    names = [name for family in FAMILIES.values() for name in {**family.mechanisms, **family.references}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("way", [("--direct",), ()], ids=["direct", "prefect"])
@pytest.mark.usefixtures("prefect")
def test_a_command_plans_once(ready: Path, dpca: Command, plans: list[Any], way: tuple[str, ...]) -> None:
    assert dpca(*FIT, *way, "--yes", "--json").status == 0, ready
    assert len(plans) == 1


def test_a_resumed_release_goes_on_from_the_plan_that_was_charged(
    ready: Path, dpca: Command, plans: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise Unavailable("the disk is full; make room.")

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_artifact", full)
        assert "the disk is full" in dpca(*FIT, "--direct", "--yes").complaint(1), ready
    plans.clear()
    report = run_fit(SubspaceRequest(**REQUEST), direct=True)
    assert len(plans) == 1  # to find the release by its request
    assert (report["artifact"], report["reused"]) == ("sub@1", False)
