"""Checks of a remote ledger: a stored request must equal the values derived from dataset, budget and charge.

All families of releases are tested.

Larger events than the ledger's limits are refused before any computation.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dpca.errors import Invalid, Refused
from dpca_tasks.accounting import events, prices
from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.filters import PrivacyFilter
from flows.families.base import FAMILIES, stored_request
from flows.families.completion import COMPLETION
from flows.families.subspace import SUBSPACE
from flows.releases.stages import plan_on, plan_request
from flows.remote_ledger import checks
from flows.remote_ledger.checks import (
    MOST_PARTS,
    MOST_PLACES,
    check_bounds,
    check_family,
    check_price,
    check_request,
    check_spent,
)
from flows.remote_ledger.messages import LONGEST_REQUEST, Priced, Requested
from flows.remote_ledger.workspaces import open_workspace
from flows.requests import CompletionRequest, Request, SubspaceRequest, TensorRequest
from storage.ledger.budgets import Budget
from tests.flows.releases.test_stages import ENTRY
from tests.flows.remote_ledger.conftest import PEOPLE, RemoteHome

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


REQUEST = SubspaceRequest(dataset=PEOPLE, components=2, epsilon=1.0, delta=1e-6, clip_norm=1.5, publish="sub")


def sampled(multiplier: float, rate: float = 0.01, count: int = 1) -> Event:
    return events.self_composed(events.poisson_sampled(events.gaussian(multiplier), rate), count)


def nested(event: Event, times: int) -> Event:
    for _ in range(times):
        event = events.self_composed(event, 10**6)
    return event


COSTLY: dict[str, Event] = {
    "many steps": events.self_composed(events.gaussian(5.0), 10**9),
    "many steps of steps": nested(events.gaussian(5.0), 12),
    "many sampled steps": sampled(5.0, count=10**6),
    "losses that reach far": sampled(0.3, rate=0.5, count=50_000),
    "a small sampled multiplier": sampled(1e-3),
    "a small multiplier": events.gaussian(1e-9),
    "a huge multiplier": events.gaussian(1e300),
    "a tiny rate": sampled(5.0, rate=1e-300),
    "many different steps": events.composed(*(sampled(5.0 + at / 64) for at in range(MOST_PARTS + 1))),
    "many places": events.composed(*[events.gaussian(5.0)] * (MOST_PLACES + 1)),
    "a huge epsilon": events.approximate(1e300, 0.0),
    "a tiny delta of a step": events.approximate(0.1, 5e-324),
    "little Laplace noise": events.laplace(1e-300),
}


@pytest.fixture
def requested(remote: RemoteHome) -> dict[str, Any]:
    """Return the facts of a reservation request as the runner sends them."""
    planned = plan_request(open_workspace(), REQUEST)
    return {
        **{"population": PEOPLE, "run_key": planned.run_key, "fingerprint": planned.fingerprint},
        **{"event": dict(planned.plan.event), "epsilon": 1.0, "delta": 1e-6, "snapshot": planned.snapshot_id},
        "request": json.loads(json.dumps(stored_request(planned))),
    }


@pytest.mark.parametrize("costly", COSTLY)
def test_an_event_that_is_too_expensive_to_price_is_refused_before_pricing(
    remote: RemoteHome, requested: dict[str, Any], monkeypatch: pytest.MonkeyPatch, costly: str
) -> None:
    begun = requested | {"run_key": "standing"}
    remote.call("reserve", **begun)
    before = remote.reported(), remote.journal()

    def priced(*_: object, **__: object) -> None:
        raise AssertionError("priced")

    monkeypatch.setattr(checks, "own_price", priced)
    monkeypatch.setattr(PrivacyFilter, "charge_after", priced)
    event = dict(COSTLY[costly])
    declared = {name: requested[name] for name in ("population", "epsilon", "delta")}
    for route, facts in {"quote": declared, "reserve": requested}.items():
        with pytest.raises(Invalid, match="a remote ledger accepts") as refused:
            remote.call(route, **facts | {"event": event})
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 300
    # the limit on events also applies to an existing run key
    with pytest.raises(Invalid, match="a remote ledger accepts"):
        remote.call("reserve", **begun | {"event": event})
    assert (remote.reported(), remote.journal()) == before


def test_a_delta_below_the_limit_of_the_search_is_refused(remote: RemoteHome, requested: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"^delta is .* accepts at least"):
        remote.call("quote", population=PEOPLE, event=requested["event"], epsilon=1.0, delta=5e-324)


def test_a_request_is_of_bounded_length(remote: RemoteHome, requested: dict[str, Any]) -> None:
    before = remote.reported()
    with pytest.raises(Invalid, match=f"at most {LONGEST_REQUEST} bytes"):
        remote.call("reserve", **requested | {"request": requested["request"] | {"more": "a" * LONGEST_REQUEST}})
    assert remote.reported() == before


def test_events_of_all_planned_mechanisms_are_within_the_limits() -> None:
    several: tuple[events.Event, ...] = (
        events.gaussian(4.0),
        sampled(0.35, rate=1e-3, count=1000),
        sampled(1.2, rate=1e-5, count=100_000),
        events.composed(events.laplace(10.0), *[events.gaussian(40.0), sampled(3.0, count=20)] * 1000),
    )
    for event in several:
        requested = Priced(population=PEOPLE, event=dict(event), epsilon=1.0, delta=1e-6)
        check_bounds(requested, replaced=False)
        check_bounds(requested, replaced=True)


def test_a_delta_close_to_1_does_not_cause_an_endless_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Price an event at a delta close to 1, where epsilon is tiny: the grid step must have a lower limit.

    A step relative to epsilon alone would have none.
    """
    requested: list[float] = []

    def noted(priced: events.Parts, *, interval: float) -> Any:
        requested.append(interval)
        return events.composed_losses(priced, interval=max(interval, 1e-5))

    monkeypatch.setattr(prices, "composed_losses", noted)
    least = prices.loss_epsilon(events.Parts(sampled={(1e-2, 1.0): 1}), delta=3.8292e-3)
    assert 0 < least < 1e-4
    assert min(requested) >= 1e-6
