"""Masks cancel to the bit, hide what they cover, and never come twice. Seeds are fixed."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.sites.masks import Address, deal_masks, gaussian_masks, masked
from tests.dpca_tasks.sites.rosters import roster_of

FALSE_ALARM = 1e-3
"""Over all keys, the chance that a statistical test here fails without cause."""
FIRST = Address(round=0)


def masks_of(roster, address=FIRST, *, size=50, secret=bytes(32)):
    dealt = deal_masks(roster, secret=secret)
    return {name: dealt[name].mask(address, roster=roster, size=size) for name in roster.names}


def byte_test(words):
    """The least p-value of a chi-square test of each byte, times their number."""
    table = words.view(np.uint8).reshape(-1, 8)
    return 8 * min(stats.chisquare(np.bincount(table[:, at], minlength=256)).pvalue for at in range(8))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_masks_add_up_to_zero_over_their_roster_and_over_no_part_of_it(size):
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
    """Whatever they cover: here zeros, and one site's sum, which an unmasked message would show."""
    roster = roster_of(3)
    integers = np.arange(1_000_000) - 500_000
    words = masked(integers, masks_of(roster, size=integers.size)["b"])
    assert byte_test(words) > FALSE_ALARM
    assert byte_test(masks_of(roster, size=integers.size)["a"]) > FALSE_ALARM
    assert byte_test(integers.view(np.uint64)) < 1e-100


def test_masks_of_two_sites_are_unrelated_beside_their_sum():
    masks = masks_of(roster_of(3), size=200_000)
    assert byte_test(masks["a"] - masks["b"]) > FALSE_ALARM
    assert byte_test(masks["a"] + masks["b"]) > FALSE_ALARM  # the third one, with its sign


def test_a_site_without_a_seed_or_outside_the_roster_has_no_mask():
    dealt = deal_masks(roster_of(3))
    with pytest.raises(InvalidInput, match="shares no seed with d"):
        dealt["a"].mask(FIRST, roster=roster_of(4), size=1)
    with pytest.raises(InvalidInput, match="not in the roster"):
        dealt["a"].mask(FIRST, roster=roster_of(3).without("a"), size=1)


def test_nothing_shows_a_seed():
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
