"""Events are plain data, and their steps can be counted, found and walked without a list of them."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.accounting.events import (
    Event,
    approximate,
    composed,
    count_steps,
    gaussian,
    laplace,
    poisson_sampled,
    self_composed,
    step_at,
    steps,
)
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


def test_no_steps_are_no_event() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        composed()


def test_names_outside_the_table_are_refused() -> None:
    stranger = {"name": "uniform"}
    for read in (count_steps, composed, lambda event: next(steps(event)), lambda event: step_at(event, 0)):
        with pytest.raises(InvalidInput, match="not known"):
            read(stranger)
