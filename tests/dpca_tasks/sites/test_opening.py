"""An opened total is the sum of the sites' integers, whatever the order, or it is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import IncompleteSum, InvalidInput
from dpca_tasks.sites.masks import Address, Message, check_room, deal_masks, masked, open_total
from tests.dpca_tasks.sites.rosters import roster_of

ROSTER = roster_of(3)
ADDRESS = Address(round=2, attempt=1)


def messages_of(parts, roster=ROSTER, address=ADDRESS):
    dealt = deal_masks(roster)
    return [
        Message(
            site=name,
            address=address,
            roster_digest=roster.digest,
            words=masked(part, dealt[name].mask(address, roster=roster, size=part.size)),
        )
        for name, part in zip(roster.names, parts, strict=True)
    ]


@given(
    parts=st.lists(st.lists(st.integers(-(2**60), 2**60), min_size=4, max_size=4), min_size=3, max_size=3),
    order=st.permutations(range(3)),
)
def test_the_total_is_the_exact_sum_in_any_order(parts, order):
    parts = np.array(parts, np.int64)
    messages = messages_of(parts)
    opened = open_total([messages[at] for at in order], roster=ROSTER, address=ADDRESS)
    np.testing.assert_array_equal(opened, parts.sum(axis=0))


def test_messages_that_are_not_those_of_one_attempt_are_not_opened():
    parts = np.arange(12).reshape(3, 4)
    first, second, third = messages_of(parts)
    later = messages_of(parts, address=Address(round=2, attempt=2))
    other = dataclasses.replace(ROSTER, session="autumn")
    for messages, found in [
        ([first, second], "2 sites"),
        ([first, second, second], "3 sites"),
        ([first, second, third, third], "4 sites"),
        ([first, second, later[2]], "another attempt or roster"),
        ([first, second, messages_of(parts, other)[2]], "another attempt or roster"),
        ([first, second, dataclasses.replace(third, words=third.words[:3])], "unlike lengths"),
    ]:
        with pytest.raises(IncompleteSum, match=found):
            open_total(messages, roster=ROSTER, address=ADDRESS)


def test_a_sum_without_one_message_is_far_from_any_total():
    messages = messages_of(np.ones((3, 1000), np.int64))
    left = messages[0].words + messages[1].words
    assert np.abs(left.view(np.int64) >> 48).mean() > 1000


def test_a_message_shows_nothing_by_its_repr():
    assert "words" not in repr(messages_of(np.ones((3, 2), np.int64))[0])


def test_a_total_that_could_wrap_is_refused_from_public_facts():
    large = dataclasses.replace(ROSTER.members[0], records=2**33, weight=2)
    roster = dataclasses.replace(ROSTER, members=(large, *ROSTER.members[1:]))
    check_room(roster, steps_per_unit=2**28)
    with pytest.raises(InvalidInput, match="more than 2\\^63"):
        check_room(roster, steps_per_unit=2**29)
    with pytest.raises(InvalidInput, match="at least 0"):
        Address(round=-1)
