"""Checks of a remote ledger: a stored request must equal the values derived from dataset, budget and charge.

All families of releases are tested.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dpca.errors import Invalid, Refused
from flows.families.base import FAMILIES, stored_request
from flows.families.completion import COMPLETION
from flows.families.subspace import SUBSPACE
from flows.releases.stages import plan_on
from flows.remote_ledger.checks import check_family, check_price, check_request, check_spent
from flows.remote_ledger.messages import Requested
from flows.requests import CompletionRequest, Request, SubspaceRequest, TensorRequest
from storage.ledger.budgets import Budget
from tests.flows.releases.test_stages import ENTRY

COMMON: dict[str, Any] = {"dataset": "people", "publish": "it", "epsilon": 1.0, "delta": 1e-6}
SUBSPACES: dict[str, Any] = {**COMMON, "components": 2, "clip_norm": 1.5}
RATINGS: dict[str, Any] = {**COMMON, "rank": 2, "ratings_between": "1:5", "ratings_per_user": 4}
TOPICS: dict[str, Any] = {**COMMON, "model": "topics", "components": 2, "words_at_most": 5}
REQUESTS: list[Request] = [
    *(SubspaceRequest(**SUBSPACES, mechanism=name) for name in (*sorted(SUBSPACE.mechanisms), "auto")),
    SubspaceRequest(**SUBSPACES | {"clip_norm": "quantile:0.9", "components": "auto"}),
    SubspaceRequest(**SUBSPACES, center="private", row_policy="normalise"),
    SubspaceRequest(**SUBSPACES, mechanism="mod_sulq", settings={"calibration": "paper"}),
    *(CompletionRequest(**RATINGS, mechanism=name) for name in (*sorted(COMPLETION.mechanisms), "auto")),
    TensorRequest(**TOPICS),
    TensorRequest(**TOPICS | {"delta": 0.0, "mechanism": "avn"}),
]
BUDGET = Budget(
    population="people",
    epsilon=10.0,
    delta=1e-5,
    failure_delta=1e-6,
    relation="replace_one",
    filter="gdp",
    unit="row",
    rows_per_unit=1,
)
LEDGER: Any = SimpleNamespace(budget=lambda _: BUDGET)


def reservation(request: Request) -> Requested:
    """Return the facts of a reservation as a runner sends them."""
    planned = plan_on(LEDGER, ENTRY, request)
    return Requested(
        population="people",
        run_key=planned.run_key,
        fingerprint=planned.fingerprint,
        event=json.loads(json.dumps(planned.plan.event)),
        snapshot=planned.snapshot_id,
        epsilon=planned.plan.target.epsilon,
        delta=planned.plan.target.delta,
        request=json.loads(json.dumps(stored_request(planned))),
    )


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: f"{request.family}-{request.mechanism}")
def test_a_stored_request_equals_the_recomputed_one(request_: Request) -> None:
    requested = reservation(request_)
    plan = check_request(ENTRY, BUDGET, requested)
    check_spent(plan, requested, check_price(BUDGET, requested))


FORGED: dict[str, dict[str, Any]] = {
    "dataset": {"dataset": "others"},
    "guarantee": {"epsilon": 0.5},
    "mechanism": {"mechanism": "wishart"},
    "n_features of the plan": {"plan.problem": {"n_features": 5}},
    "clip_norm of the plan": {"plan.problem": {"clip_norm": 15.0}},
    "records_at_most of the plan": {"plan.problem": {"records_at_most": 10**9}},
    "records_declared of the plan": {"plan.problem": {"records_declared": False}},
    "relation of the plan": {"plan.problem": {"relation": "add_remove"}},
    "fingerprint": {"settings": {"calibration": "paper"}},
}


@pytest.mark.parametrize("field", FORGED)
def test_a_request_with_a_changed_field_is_refused(field: str) -> None:
    name = "mod_sulq" if field == "fingerprint" else "analyze_gauss"
    requested = reservation(SubspaceRequest(**SUBSPACES, mechanism=name))
    change = dict(FORGED[field])
    problem = change.pop("plan.problem", {})
    stored: dict[str, Any] = {**requested.request}
    plan = {**stored["plan"], "problem": {**stored["plan"]["problem"], **problem}}
    forged = requested.model_copy(update={"request": {**stored, **change, "plan": plan}})
    with pytest.raises(Refused, match=f"states another {field} than its dataset, budget and charge imply"):
        check_request(ENTRY, BUDGET, forged)


@pytest.mark.parametrize(
    "change",
    [
        {"plan": None},
        {"plan": {}},
        {"plan": []},
        {"plan": {"problem": 1}},
        {"more": 1},
        {"components": {}},
        {"settings": 3},
        {"mechanism": []},
    ],
    ids=str,
)
def test_an_unreadable_request_is_refused_in_one_line(change: dict[str, Any]) -> None:
    requested = reservation(SubspaceRequest(**SUBSPACES))
    with pytest.raises(
        (Invalid, Refused), match=r"cannot read the stored request|^(components|mechanism)=.* must be [^\n]*$"
    ):
        check_request(ENTRY, BUDGET, requested.model_copy(update={"request": {**requested.request, **change}}))


def test_a_fingerprint_is_derived_from_the_request() -> None:
    requested = reservation(SubspaceRequest(**SUBSPACES))
    with pytest.raises(Refused, match="another fingerprint"):
        check_request(ENTRY, BUDGET, requested.model_copy(update={"fingerprint": "0" * 64}))


def test_evaluations_are_refused_unread() -> None:
    served = {"subspace", "completion", "tensor", "moment"}
    assert served < set(FAMILIES)
    for name in FAMILIES:
        if name in served:
            check_family({"family": name})
        else:
            with pytest.raises(Refused, match="evaluations on the ledger's machine"):
                check_family({"family": name})
    strangers: tuple[Any, ...] = (None, [], "unheard of")
    for none in strangers:
        with pytest.raises(Refused):
            check_family({"family": none})
