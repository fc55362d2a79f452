"""Rosters, masks and opened totals: rosters are checked once, masks cancel exactly, and totals are exact sums.

A roster is public and has one digest. Masks hide each site's integers, and are never reused; seeds are fixed. An opened
total is the sum of the sites' integers in any order, or it is refused.

Shares of noise must add up to the noise that every site's mu needs, and no more; keys are fixed. A round repeats a
request to the same roster without charge, then uses a smaller roster with fresh noise, and never opens a void attempt.
"""

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpca_tasks.accounting.calibration import shares_mu
from dpca_tasks.accounting.closed_brackets import least_noise
from dpca_tasks.errors import IncompleteSum, InvalidInput, Refused, SiteSilent
from dpca_tasks.noise.discrete_gaussian import WIDEST
from dpca_tasks.noise.distributions import cube_weights, symmetric_weights
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.sites.roster import (
    Address,
    MaskSeeds,
    Member,
    Message,
    check_room,
    deal_masks,
    gaussian_masks,
    masked,
    open_total,
)
from dpca_tasks.sites.rounds import SHARES, CubeShare, SymmetricShare, VectorShare, open_round, share_bits
from tests.dpca_tasks.sites.secure_sum.scenes import roster_of


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


members = st.builds(
    Member,
    name=st.text(min_size=1),
    records=st.integers(1, 10**6),
    noise_multiplier=st.floats(0.2, 100),
    weight=st.integers(1, 20),
)


@settings(deadline=None)
@given(
    found=st.lists(members, min_size=2, max_size=8, unique_by=lambda member: member.name),
    lost=st.floats(0, 0.99),
    sensitivity=st.floats(0.1, 1000),
    kind=st.sampled_from(tuple(SHARES.values())),
)
def test_every_site_has_its_mu_and_the_strictest_site_determines_the_noise(found, lost, sensitivity, kind):
    roster = roster_of(2, members=tuple(found), colluders=int(lost * (len(found) - 1)))
    terms = {"shares": roster.honest, "least_weight": kind.least_weight}
    scale = kind(roster=roster, site=found[0].name).squared_scale(sensitivity)
    mus = [shares_mu(sensitivity=one.weight * sensitivity, squared_scale=scale, **terms) for one in found]
    needed = [1 / one.noise_multiplier for one in found]
    assert all(mu <= most for mu, most in zip(mus, needed, strict=True))
    least = least_noise(weights=[one.weight for one in found], sensitivities=[sensitivity] * len(found), mus=needed)
    rounding = 16 / kind.least_weight**2
    assert scale <= max((least + rounding) / roster.honest, rounding) * (1 + 1e-5) + 4 + kind.parts
    assert scale * kind.least_weight**2 >= 16 * (1 - 1e-12)


def noise_of(share, order, *, squared_scale, weights, stds):
    """Draw a share of noise; its coordinates of each relative std must have the variance that follows from the std."""
    noise = share.draw(subkey(bytes(32), label="noise", info=b""), order, squared_scale=squared_scale)
    for std in stds:
        part = noise[np.isclose(weights, std)] / (std * math.sqrt(squared_scale))
        miss = stats.norm.isf(0.5e-3) * math.sqrt(2 / part.size)
        assert abs(np.mean(part**2) - 1) < miss
    return noise


@pytest.mark.parametrize("squared_scale", [32, 1 << 30])
def test_a_symmetric_share_has_half_the_variance_off_the_diagonal(squared_scale):
    order = 600
    share = SymmetricShare(roster=roster_of(2), site="a")
    weights = symmetric_weights(order, start=0, stop=order * (order + 1) // 2)
    noise = noise_of(share, order, squared_scale=squared_scale, weights=weights, stds=(1.0, math.sqrt(0.5)))
    assert not np.array_equal(noise[weights == 1], noise[weights < 1][:order])


@pytest.mark.parametrize("squared_scale", [96, 3 << 30])
def test_a_share_of_a_cube_has_less_variance_where_indices_differ(squared_scale):
    order = 45
    share = CubeShare(roster=roster_of(2), site="a")
    weights = cube_weights(order, start=0, stop=order * (order + 1) * (order + 2) // 6)
    stds = (1.0, math.sqrt(1 / 3), math.sqrt(1 / 6))
    noise_of(share, order, squared_scale=squared_scale, weights=weights, stds=stds)
    assert np.unique(weights.round(3), return_counts=True)[1].tolist() == [14190, 1980, 45]


def test_the_event_is_that_of_all_honest_shares_and_not_of_one_share():
    roster = roster_of(10, colluders=3)
    share = VectorShare(roster=roster, site="a")
    assert share.event == {"name": "gaussian", "noise_multiplier": 4.0}
    alone = shares_mu(sensitivity=100.0, shares=1, squared_scale=share.squared_scale(100.0))
    assert alone == pytest.approx(math.sqrt(7) / 4.0, rel=0.001)


def test_the_grid_is_the_finest_that_holds_noise_and_total():
    roster = roster_of(10, colluders=3, multiplier=10.0)
    bits = share_bits(roster, sensitivity=math.sqrt(2), degree=2)
    share = SymmetricShare(roster=roster, site="a")
    assert share.squared_scale(math.sqrt(2) * 4**bits) <= WIDEST[2]
    with pytest.raises(InvalidInput):
        share.squared_scale(math.sqrt(2) * 4 ** (bits + 1))
    of_cubes = share_bits(roster, sensitivity=math.sqrt(2), degree=1, layout="cube")
    CubeShare(roster=roster, site="a").squared_scale(math.sqrt(2) * 2**of_cubes)
    with pytest.raises(InvalidInput):
        CubeShare(roster=roster, site="a").squared_scale(math.sqrt(2) * 2 ** (of_cubes + 1))
    large = dataclasses.replace(roster.members[0], records=2**43)
    crowded = dataclasses.replace(roster, members=(large, *roster.members[1:]))
    assert share_bits(crowded, sensitivity=math.sqrt(2), degree=2) == 9
    with pytest.raises(InvalidInput, match="too large for integers"):
        share_bits(roster_of(2, multiplier=1e9), sensitivity=1.0, degree=2)


@dataclass
class Scripted:
    """A site whose answer depends on the roster; it does not answer the requests with numbers in ``silent_at``."""

    name: str
    seeds: MaskSeeds
    silent_at: tuple[int, ...] = ()
    stored: str | None = None
    requested: list[tuple[str, int, int]] = field(default_factory=list)

    def message(self, query, *, roster, address):
        self.requested.append((query, roster.size, address.attempt))
        if len(self.requested) - 1 in self.silent_at:
            raise SiteSilent
        integers = np.array([1, roster.size])
        words = masked(integers, self.seeds.mask(address, roster=roster, size=2))
        return Message(site=self.name, address=address, roster_digest=roster.digest, words=words)

    def with_stored_inputs(self, query, *, roster, index):
        if 0 in self.silent_at:
            raise SiteSilent
        return self.stored or query


def parties(roster, **scripts):
    dealt = deal_masks(roster)
    return [Scripted(name, dealt[name], *scripts.get(name, ())) for name in roster.names]


def test_all_sites_answer_once():
    roster = roster_of(3)
    sites = parties(roster)
    opened = open_round(sites[::-1], "query", roster=roster, index=4)
    assert (opened.total.tolist(), opened.query, opened.roster) == ([3, 9], "query", roster)
    assert [site.requested for site in sites] == [[("query", 3, 0)]] * 3


def test_a_site_that_answers_again_uses_no_attempt():
    roster = roster_of(3)
    sites = parties(roster, b=((0,),))
    assert open_round(sites, "query", roster=roster, index=0).total.tolist() == [3, 9]
    assert [site.requested for site in sites] == [[("query", 3, 0), ("query", 3, 1)]] * 3


def test_a_site_that_stays_silent_is_omitted_from_a_charged_attempt():
    roster = roster_of(4, attempts=2)
    sites = parties(roster, b=((0, 1),))
    opened = open_round(sites, "query", roster=roster, index=0)
    assert (opened.total.tolist(), opened.roster) == ([3, 9], roster.without("b"))
    assert sites[0].requested == [("query", 4, 0), ("query", 4, 1), ("query", 3, 2)]
    assert sites[1].requested == [("query", 4, 0), ("query", 4, 1)]


@pytest.mark.parametrize(
    ("facts", "found"),
    [({"attempts": 1}, "1 charged attempts, and sites c"), ({"attempts": 2, "colluders": 2}, "2 sites are left")],
    ids=["no attempt is left", "nobody honest is left"],
)
def test_a_round_that_cannot_be_finished_is_refused(facts, found):
    roster = roster_of(3, **facts)
    sites = parties(roster, c=(tuple(range(9)),))
    with pytest.raises(Refused, match=found):
        open_round(sites, "query", roster=roster, index=0)


def test_a_resumed_round_uses_the_stored_inputs_of_any_site():
    roster = roster_of(3)
    sites = parties(roster, a=((0,),), c=((), "stored query"))
    opened = open_round(sites, "query", roster=roster, index=0)
    assert opened.query == "stored query"
    assert {query for site in sites for query, _, _ in site.requested} == {"stored query"}


def test_a_round_opened_by_another_method_follows_the_same_rules():
    """Open a round with another way to sum: a site silent in two attempts is omitted from the next roster.

    A site that is lost later is missing from the answer.
    """
    roster, requested = roster_of(4, attempts=2), []

    def sum_over(query, *, roster, address):
        requested.append((roster.size, address))
        if len(requested) < 3:
            raise SiteSilent("site b left the attempt; begin another attempt.", names=("b",))
        return np.array([7]), roster.without("c")

    opened = open_round(parties(roster), "query", roster=roster, index=2, sum_over=sum_over)
    assert (opened.total.tolist(), opened.roster) == ([7], roster.without("b", "c"))
    assert requested == [(size, Address(round=2, attempt=at)) for size, at in ((4, 0), (4, 1), (3, 2))]
