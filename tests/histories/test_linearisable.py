"""The search for an order that explains the answers of a budget."""

import pytest

from tests.histories.linearisable import Answer, Charge, is_explained


def _charge(start: int, end: int | None, key: str, answer: Answer) -> Charge:
    return Charge(start=start, end=end, keys=frozenset({key}), answer=answer)


def _explained(*asked: Charge, room: int, charged: str = "") -> bool:
    return is_explained(asked, charged=frozenset(charged), fits=lambda keys: len(keys) <= room)


def test_answers_of_one_after_another_are_explained() -> None:
    assert _explained(_charge(0, 1, "a", "new"), _charge(2, 3, "a", "found"), _charge(4, 5, "b", "refused"), room=1)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param([_charge(0, 1, "a", "new"), _charge(2, 3, "b", "new")], id="more-than-the-budget-holds"),
        pytest.param([_charge(0, 1, "a", "new"), _charge(2, 3, "a", "new")], id="one-key-charged-twice"),
        pytest.param([_charge(0, 1, "a", "found"), _charge(2, 3, "a", "new")], id="found-before-it-was-charged"),
        pytest.param([_charge(0, 1, "b", "refused"), _charge(2, 3, "a", "new")], id="refused-while-there-was-room"),
        pytest.param([_charge(0, 1, "a", "new"), _charge(0, 1, "a", "refused")], id="refused-though-it-stands"),
    ],
)
def test_answers_that_no_order_gives_are_not_explained(asked: list[Charge]) -> None:
    assert not _explained(*asked, room=1)


def test_answers_at_once_are_explained_by_either_order() -> None:
    assert _explained(_charge(0, 9, "b", "refused"), _charge(1, 8, "a", "new"), room=1)


def test_a_request_without_an_answer_may_or_may_not_have_been_charged() -> None:
    dead = _charge(0, None, "a", None)
    assert _explained(dead, _charge(1, 2, "b", "refused"), room=1)
    assert _explained(dead, _charge(1, 2, "b", "new"), room=1)
    assert not _explained(dead, _charge(1, 2, "b", "new"), _charge(3, 4, "a", "found"), room=1)


def test_nothing_is_charged_before_it_is_asked() -> None:
    assert not _explained(_charge(0, 1, "b", "refused"), _charge(5, None, "a", None), room=1)


def test_what_a_copy_charges_and_an_acceptance_enters_takes_room() -> None:
    entered = Charge(start=0, end=3, keys=frozenset({"a"}), answer="entered")
    assert _explained(entered, _charge(4, 5, "b", "refused"), room=1)
    assert _explained(_charge(4, 5, "b", "refused"), room=1, charged="a")
    assert not _explained(entered, _charge(4, 5, "b", "new"), room=1)
