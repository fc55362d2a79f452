"""Rosters, masks and opened totals: rosters are checked once, masks cancel exactly, and totals are exact sums.

A roster is public and has one digest. Masks hide each site's integers, and are never reused; seeds are fixed. An opened
total is the sum of the sites' integers in any order, or it is refused.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpca_tasks.errors import IncompleteSum, InvalidInput, Refused
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.sites.roster import Address, Member, Message, check_room, deal_masks, gaussian_masks, masked, open_total
from tests.dpca_tasks.sites.rosters import roster_of


@pytest.mark.parametrize(
    ("size", "facts", "found"),
    [
        (1, {}, "the roster has 1 sites"),
        (4, {"colluders": 4}, "colluders=4"),
        (4, {"colluders": 2, "dropouts": 2}, "dropouts=2"),
        (4, {"colluders": -1}, "colluders=-1"),
        (3, {"attempts": 0}, "attempts=0"),
        (3, {"session": ""}, "session=''"),
        (3, {"members": roster_of(3).members + roster_of(2).members}, "sites a, b are named twice"),
    ],
    ids=["one site", "all collude", "nobody honest", "negative", "no attempt", "no session", "equal names"],
)
def test_a_roster_without_protection_is_refused_in_one_line(size, facts, found):
    with pytest.raises(InvalidInput, match=found) as refused:
        roster_of(size, **facts)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "facts",
    [
        {"name": ""},
        {"records": 0},
        {"weight": 0},
        {"weight": 1.5},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": float("inf")},
    ],
    ids=str,
)
def test_a_member_with_a_fact_outside_its_domain_is_refused(facts):
    with pytest.raises(InvalidInput):
        Member(**{"name": "a", "records": 1, "noise_multiplier": 1.0, **facts})


def test_the_digest_has_every_fact_and_not_the_order():
    roster = roster_of(4, colluders=1)
    assert dataclasses.replace(roster, members=roster.members[::-1]).digest == roster.digest
    first, *others = roster.members
    changes = {"name": "x", "records": 999, "noise_multiplier": 3.0, "weight": 2}
    changed = [
        dataclasses.replace(roster, members=(dataclasses.replace(first, **{name: value}), *others))
        for name, value in changes.items()
    ]
    changed += [
        dataclasses.replace(roster, **{name: value})
        for name, value in {"session": "autumn", "colluders": 0, "dropouts": 1, "attempts": 2}.items()
    ]
    assert len({one.digest for one in (*changed, roster.without("a"), roster)}) == len(changed) + 2


def test_a_smaller_roster_keeps_its_colluders_and_uses_up_its_dropouts():
    roster = roster_of(10, colluders=3, dropouts=1)
    assert [roster.honest, roster.without("a").honest, roster.without("a", "b").honest] == [6, 6, 5]
    assert roster.without("a").names == roster.names[1:]
    with pytest.raises(Refused, match="3 sites are left, of which 3 may collude"):
        roster.without(*"abcdefg")


def test_an_unknown_site_is_not_a_member():
    assert roster_of(3).member("b").name == "b"
    with pytest.raises(InvalidInput, match="'x' is not in the roster"):
        roster_of(3).member("x")


FALSE_ALARM = 1e-3
"""The probability, over all keys, that a statistical test here raises a false alarm."""
FIRST = Address(round=0)


def masks_of(roster, address=FIRST, *, size=50, secret=bytes(32)):
    dealt = deal_masks(roster, secret=secret)
    return {name: dealt[name].mask(address, roster=roster, size=size) for name in roster.names}


def byte_test(words):
    """Return the smallest p-value of chi-square tests of all byte positions, times the number of tests."""
    table = words.view(np.uint8).reshape(-1, 8)
    return 8 * min(stats.chisquare(np.bincount(table[:, at], minlength=256)).pvalue for at in range(8))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_masks_sum_to_zero_over_their_roster_and_over_no_subset(size):
    masks = masks_of(roster_of(size))
    assert not np.any(sum(masks.values()))
    for name in masks:
        assert np.any(sum(mask for other, mask in masks.items() if other != name))


def test_masks_differ_by_round_attempt_roster_session_and_dealing():
    roster = roster_of(4, colluders=1)
    variants = [
        masks_of(roster),
        masks_of(roster, Address(round=1)),
        masks_of(roster, Address(round=0, attempt=1)),
        masks_of(roster.without("d")),
        masks_of(dataclasses.replace(roster, session="autumn")),
        masks_of(roster, secret=bytes(31) + b"\1"),
        masks_of(roster, secret=None),
        masks_of(roster, secret=None),
    ]
    seen = np.concatenate([mask for masks in variants for mask in masks.values()])
    assert np.unique(seen).size == seen.size
    np.testing.assert_array_equal(masks_of(roster)["a"], variants[0]["a"])


def test_a_million_masked_words_are_uniform():
    """Test masked words for uniformity, for two sets of masked values: zeros, and one site's sum.

    An unmasked message would reveal that sum.
    """
    roster = roster_of(3)
    integers = np.arange(1_000_000) - 500_000
    words = masked(integers, masks_of(roster, size=integers.size)["b"])
    assert byte_test(words) > FALSE_ALARM
    assert byte_test(masks_of(roster, size=integers.size)["a"]) > FALSE_ALARM
    assert byte_test(integers.view(np.uint64)) < 1e-100


def test_masks_of_two_sites_are_unrelated_next_to_their_sum():
    masks = masks_of(roster_of(3), size=200_000)
    assert byte_test(masks["a"] - masks["b"]) > FALSE_ALARM
    # the sum of two sites' masks is the negative mask of the third site
    assert byte_test(masks["a"] + masks["b"]) > FALSE_ALARM


def test_a_site_without_a_seed_or_outside_the_roster_has_no_mask():
    dealt = deal_masks(roster_of(3))
    with pytest.raises(InvalidInput, match="shares no seed with d"):
        dealt["a"].mask(FIRST, roster=roster_of(4), size=1)
    with pytest.raises(InvalidInput, match="not in the roster"):
        dealt["a"].mask(FIRST, roster=roster_of(3).without("a"), size=1)


def test_seeds_are_never_printed():
    dealt = deal_masks(roster_of(3))
    assert all(str(key.secret) not in repr(dealt) for seeds in dealt.values() for key in seeds.shared.values())


def test_printed_masks_have_the_covariance_that_the_joint_view_is_computed_from():
    sites, size, variance = 5, 40_000, 7.0
    masks = gaussian_masks(subkey(bytes(32), label="mask", info=b""), sites=sites, size=size, variance=variance)
    np.testing.assert_allclose(masks.sum(axis=0), 0, atol=1e-12)
    found = masks @ masks.T / size
    expected = variance * (np.eye(sites) - 1 / sites)
    limit = stats.norm.isf(FALSE_ALARM / (sites * (sites + 1))) * variance * np.sqrt(2 / size)
    assert np.abs(found - expected).max() < limit


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
        ([first, second], "2 messages"),
        ([first, second, second], "3 sites"),
        ([first, second, third, third], "4 messages"),
        ([first, second, later[2]], "another attempt or roster"),
        ([first, second, messages_of(parts, other)[2]], "another attempt or roster"),
        ([first, second, dataclasses.replace(third, words=third.words[:3])], "different lengths"),
    ]:
        with pytest.raises(IncompleteSum, match=found):
            open_total(messages, roster=ROSTER, address=ADDRESS)


def test_a_sum_without_one_message_is_far_from_any_total():
    messages = messages_of(np.ones((3, 1000), np.int64))
    left = messages[0].words + messages[1].words
    assert np.abs(left.view(np.int64) >> 48).mean() > 1000


def test_the_repr_of_a_message_reveals_nothing():
    assert "words" not in repr(messages_of(np.ones((3, 2), np.int64))[0])


def test_a_total_that_could_overflow_is_refused_from_public_facts():
    large = dataclasses.replace(ROSTER.members[0], records=2**33, weight=2)
    roster = dataclasses.replace(ROSTER, members=(large, *ROSTER.members[1:]))
    check_room(roster, steps_per_unit=2**28)
    with pytest.raises(InvalidInput, match="more than 2\\^63"):
        check_room(roster, steps_per_unit=2**29)
    with pytest.raises(InvalidInput, match="at least 0"):
        Address(round=-1)
