"""Events as plain data: traversal, counting and validation of their parts.

Steps are counted, found and traversed without expanding them into a list. Events outside the closed table are refused,
and parts are counted at any depth of nesting.
"""

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.accounting import events as core
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.accounting.events import (
    KINDS,
    Event,
    Parts,
    approximate,
    composed,
    count_steps,
    gaussian,
    laplace,
    loss_event,
    parts_of,
    poisson_sampled,
    self_composed,
    step_at,
    steps,
)
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.errors import InvalidInput, StepMismatch

multipliers = st.floats(min_value=1e-3, max_value=1e3)
additive = st.builds(gaussian, multipliers) | st.builds(laplace, multipliers)
single = (
    additive
    | st.builds(approximate, st.floats(min_value=0, max_value=10), st.floats(min_value=0, max_value=0.5))
    | st.builds(poisson_sampled, additive, st.floats(min_value=1e-6, max_value=1))
)
any_event = st.recursive(
    single,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda events: composed(*events))
        | st.builds(self_composed, inner, st.integers(min_value=1, max_value=3))
    ),
    max_leaves=6,
)


def test_events_have_the_names_and_fields_of_the_ledger() -> None:
    event = composed(self_composed(poisson_sampled(gaussian(1.5), 0.25), 7), laplace(2), approximate(1, 0), gaussian(4))
    assert event == {
        "name": "composed",
        "events": [
            {
                "name": "self_composed",
                "event": {
                    "name": "poisson_sampled",
                    "rate": 0.25,
                    "event": {"name": "gaussian", "noise_multiplier": 1.5},
                },
                "count": 7,
            },
            {"name": "laplace", "noise_multiplier": 2.0},
            {"name": "approximate", "epsilon": 1.0, "delta": 0.0},
            {"name": "gaussian", "noise_multiplier": 4.0},
        ],
    }


@given(any_event)
def test_events_go_through_json_unchanged(event: Event) -> None:
    assert json.loads(json.dumps(event)) == event


@given(any_event)
def test_counting_finding_and_walking_agree(event: Event) -> None:
    walked = list(steps(event))
    assert count_steps(event) == len(walked)
    assert [step_at(event, index) for index in range(len(walked))] == walked
    assert all(step["name"] not in ("composed", "self_composed") for step in walked)


def test_huge_counts_are_never_listed() -> None:
    event = composed(self_composed(composed(gaussian(1.0), gaussian(2.0)), 10**15), laplace(3.0))
    assert count_steps(event) == 2 * 10**15 + 1
    assert list(itertools.islice(steps(event), 3)) == [gaussian(1.0), gaussian(2.0), gaussian(1.0)]
    assert step_at(event, 2 * 10**15 - 1) == gaussian(2.0)
    assert step_at(event, 2 * 10**15) == laplace(3.0)


@pytest.mark.parametrize("index", [-1, 3, 10**9])
def test_a_step_that_was_not_reserved_is_refused(index: int) -> None:
    with pytest.raises(StepMismatch, match="must be one of the 3 steps"):
        step_at(self_composed(gaussian(1.0), 3), index)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_multiplier_is_positive_and_finite(value: float) -> None:
    for build in (gaussian, laplace):
        with pytest.raises(InvalidInput, match="noise_multiplier="):
            build(value)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-1, 0), (math.nan, 0), (math.inf, 0), (1, -1e-9), (1, 1), (1, math.nan)]
)
def test_a_guarantee_is_in_its_domain(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput, match=r"epsilon=|delta="):
        approximate(epsilon, delta)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_a_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate="):
        poisson_sampled(gaussian(1.0), rate)


@pytest.mark.parametrize("inner", [approximate(1, 0), composed(gaussian(1)), poisson_sampled(gaussian(1), 0.5)])
def test_only_additive_noise_is_sampled(inner: Event) -> None:
    with pytest.raises(InvalidInput, match="no known cost"):
        poisson_sampled(inner, 0.5)


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_a_count_is_a_positive_integer(count: int) -> None:
    with pytest.raises(InvalidInput, match="count="):
        self_composed(gaussian(1.0), count)


def test_an_event_has_at_least_one_step() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        composed()


def test_names_outside_the_table_are_refused() -> None:
    stranger = {"name": "uniform"}
    for read in (count_steps, composed, lambda event: next(steps(event)), lambda event: step_at(event, 0)):
        with pytest.raises(InvalidInput, match="not known"):
            read(stranger)


GAUSSIAN = {"name": "gaussian", "noise_multiplier": 2.0}
SAMPLED = {"name": "poisson_sampled", "rate": 0.5, "event": GAUSSIAN}

multipliers_of_parts = st.floats(1e-3, 1e6)
leaves = st.one_of(
    multipliers_of_parts.map(core.gaussian),
    multipliers_of_parts.map(core.laplace),
    st.builds(core.approximate, st.floats(0, 50), st.floats(0, 0.5)),
    st.builds(lambda z, rate: core.poisson_sampled(core.gaussian(z), rate), multipliers_of_parts, st.floats(1e-6, 1)),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda events: core.composed(*events)),
        st.builds(core.self_composed, inner, st.integers(1, 1000)),
    ),
    max_leaves=6,
)


@given(nested)
def test_every_step_that_the_core_plans_is_counted_once(event: core.Event) -> None:
    parts = parts_of(json.loads(json.dumps(event)))
    counted = sum(sum(table.values()) for table in (parts.gaussians, parts.sampled, parts.approximate))
    assert counted == core.count_steps(event)


def test_equal_parts_are_counted_together() -> None:
    thrice = {"name": "self_composed", "event": GAUSSIAN, "count": 3}
    event = {"name": "composed", "events": [thrice, GAUSSIAN, {"name": "self_composed", "event": thrice, "count": 2}]}
    assert parts_of(event) == Parts(gaussians={2.0: 10})


def test_a_sample_of_all_records_is_charged_as_unsampled() -> None:
    assert parts_of({**SAMPLED, "rate": 1.0}) == parts_of(GAUSSIAN)


def test_a_sample_of_all_replaced_records_is_charged_as_sampled() -> None:
    """Charge a sampled Gaussian of rate 1 for replaced records as sampled, not as a plain Gaussian.

    The noise multiplier is calibrated for a record replaced by an empty one, so the plain charge would be too small.
    """
    ((rate, _),) = parts_of({**SAMPLED, "rate": 1.0}, replaced=True).sampled
    assert rate == 1.0
    event = {"name": "poisson_sampled", "rate": 1.0, "event": core.gaussian(10.0)}
    whole, plain = (
        build_filter("gdp", epsilon=1.0, delta=1e-6, failure_delta=5e-7, replaced=True).charge(event, delta=1e-7)
        for event in (event, core.gaussian(10.0))
    )
    # replacing a record is two steps of mu 1 / 10, together 2 / 10; the standalone charge is even higher
    assert whole[2] > 3.9 * plain[2]


def test_laplace_noise_is_pure_and_its_epsilon_not_rounded_down() -> None:
    ((epsilon, delta),) = parts_of({"name": "laplace", "noise_multiplier": 3.0}).approximate
    assert 1 / 3 < epsilon < 1 / 3 + 1e-15
    assert delta == 0


def test_sampled_parts_are_composed_as_dp_accounting_does() -> None:
    import dp_accounting as dp

    event = {"name": "self_composed", "event": SAMPLED, "count": 7}
    once = dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(2.0))
    assert loss_event(parts_of(event)) == dp.ComposedDpEvent([dp.SelfComposedDpEvent(once, 7)])


BAD: list[Any] = [
    *(None, 3, [], {}, {"name": "gaussian"}, {"name": "secret", "noise_multiplier": 1.0}, {"name": ["gaussian"]}),
    {**GAUSSIAN, "comment": "more"},
    *({"name": name, "noise_multiplier": z} for name in ("gaussian", "laplace") for z in (0, -1.0, float("nan"))),
    *({"name": "gaussian", "noise_multiplier": z} for z in (float("inf"), "2", True, None, 10**400)),
    *({"name": "approximate", "epsilon": e, "delta": 0.0} for e in (-1.0, float("inf"), float("nan"), "1")),
    *({"name": "approximate", "epsilon": 1.0, "delta": d} for d in (-1e-9, 1.0, float("nan"), "0", None)),
    *({**SAMPLED, "rate": rate} for rate in (0.0, -0.1, 1.1, float("nan"), "0.5")),
    {**SAMPLED, "event": {"name": "laplace", "noise_multiplier": 1.0}},
    {**SAMPLED, "event": {**GAUSSIAN, "comment": "more"}},
    *({"name": "composed", "events": events} for events in ([], None, [GAUSSIAN, {}])),
    *({"name": "self_composed", "event": GAUSSIAN, "count": count} for count in (0, -1, 1.0, True, None)),
]


@pytest.mark.parametrize("event", BAD, ids=str)
def test_events_outside_the_table_are_refused(event: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        parts_of(event)
    assert all(name in str(refused.value) for name in KINDS)


EXAMPLES: dict[str, core.Event] = {
    "gaussian": core.gaussian(2),
    "laplace": core.laplace(3.0),
    "approximate": core.approximate(1, 1e-6),
    "poisson_sampled": core.poisson_sampled(core.gaussian(2.0), 0.5),
    "stream_tick": core.stream_tick("a" * 32, 3, 2.0),
    "non_private": core.non_private(),
    "composed": core.composed(core.gaussian(2.0), core.laplace(1.0)),
    "self_composed": core.self_composed(core.gaussian(2.0), 3),
}


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_every_built_event_is_accepted_by_the_reader(name: str) -> None:
    event = json.loads(json.dumps(EXAMPLES[name]))
    assert event["name"] == name
    assert set(event) == {"name", *KINDS[name].fields}
    assert core.checked(event) == event


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_events_inside_or_is_accounted_for_as_a_step(name: str) -> None:
    assert (KINDS[name].inside is None) == (KINDS[name].part is not None)
    assert epsilon_bracket(EXAMPLES[name], delta=1e-3).upper > 0, "its loss is known too"


@pytest.mark.parametrize("field", ["noise_multiplier", "epsilon", "delta", "rate", "count"])
def test_builder_and_reader_refuse_the_same_numbers(field: str) -> None:
    for name, event in EXAMPLES.items():
        if field in KINDS[name].fields:
            for bad in (-1.0, float("nan"), float("inf"), True):
                fields = {**{key: event[key] for key in KINDS[name].fields}, field: bad}
                with pytest.raises(InvalidInput, match=f"{field}="):
                    KINDS[name].build(**fields)
                with pytest.raises(InvalidInput, match="record one of these"):
                    parts_of({"name": name, **fields})
