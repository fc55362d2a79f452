"""What a command that spends says first and last."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reports.outcome import RefreshOutcome, joint_line, outcome_line, rounded_down, spending, stream_line

REPORT = {"artifact": "sub@3", "reused": False, "private": True, "remaining": 3.79811, "population": "people"}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "released sub@3; epsilon 3.798 of budget 'people' is left."),
        (
            {"verdict": "2 of 2 stand; fine."},
            "released sub@3; 2 of 2 stand; fine; epsilon 3.798 of budget 'people' is left.",
        ),
        ({"reused": True}, "released before, nothing spent: sub@3; epsilon 3.798 of budget 'people' is left."),
        ({"failed": True}, "released sub@3; FAILED; epsilon 3.798 of budget 'people' is left."),
        ({"private": False, "remaining": 0.0}, "released sub@3, NOT PRIVATE; epsilon 0 of budget 'people' is left."),
    ],
)
def test_the_outcome_is_one_line(facts: dict[str, object], line: str) -> None:
    assert outcome_line(REPORT | facts) == line


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_what_is_left_is_told_in_four_digits_and_never_more_than_it_is(epsilon: float) -> None:
    assert epsilon * 0.9989 <= float(rounded_down(epsilon)) <= epsilon * (1.0 + 1e-11)


def test_what_is_left_is_told_of_any_budget() -> None:
    assert [rounded_down(left) for left in (0.0, -1.0, 4.0, math.inf)] == ["0", "0", "4", "inf"]


def test_a_question_says_what_is_left_before_and_after() -> None:
    said = spending("epsilon 1 of budget 'people'", remaining=4.0, after=3.79811)
    assert said == "epsilon 1 of budget 'people', of which epsilon 4 is left now and 3.798 after"


def test_a_joint_outcome_tells_what_is_left_of_each_budget_of_this_ledger() -> None:
    sites = [{"population": "north", "remaining": 2.0}, {"site": "south"}]
    report = {"artifact": "sub@3", "reused": False, "verdict": "2 of 2 stand.", "sites": sites}
    assert joint_line(report) == "released sub@3; 2 of 2 stand; epsilon 2 of budget 'north' is left."
    assert joint_line({**report, "reused": True, "sites": []}).startswith("released before, nothing spent: sub@3; ")


def test_the_outcome_of_a_stream_is_what_is_paid_for_and_what_is_left() -> None:
    facts = {"stream": "nightly", "ticks": 30, "left": 28, "remaining": 3.79811, "population": "people"}
    assert stream_line(facts) == (
        "30 ticks of 'nightly' are paid for, 28 to come; epsilon 3.798 of budget 'people' is left."
    )


def test_an_arrival_that_ended_is_counted_and_the_others_are_left() -> None:
    run = RefreshOutcome(published="map", left=4)
    run.end("set_aside")
    run.end("set_aside")
    run.end("kept_back")
    run.decisions.append({"decision": "promoted"})
    facts = run.report()
    assert next(iter(facts.items())) == ("outcome", "1 promoted, 1 kept back, 2 set aside, 1 left")
    assert {name: facts[name] for name in ("promoted", "held", "kept_back", "refused", "set_aside", "left")} == {
        **{"promoted": 1, "held": 0, "kept_back": 1, "refused": 0, "set_aside": 2, "left": 1}
    }


def test_a_run_without_arrivals_says_so() -> None:
    assert RefreshOutcome(published="map").report()["outcome"] == "nothing arrived"
