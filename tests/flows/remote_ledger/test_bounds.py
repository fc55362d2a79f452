"""Limits of a remote ledger on the events that it prices: larger requests are refused before any computation."""

import json
from typing import Any

import pytest

from dpca.errors import Invalid
from dpca_tasks.accounting import events, prices
from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.filters import PrivacyFilter
from flows.families.base import stored_request
from flows.releases.stages import plan_request
from flows.remote_ledger import checks
from flows.remote_ledger.checks import MOST_PARTS, MOST_PLACES, check_bounds
from flows.remote_ledger.messages import LONGEST_REQUEST, Priced
from flows.remote_ledger.workspaces import open_workspace
from flows.requests import SubspaceRequest
from tests.flows.remote_ledger.remote_home import PEOPLE, RemoteHome

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
