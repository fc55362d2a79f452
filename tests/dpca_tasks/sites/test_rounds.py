"""Shares of noise, and rounds of a joint release.

Shares must add up to the noise that every site's mu needs, and no more; keys are fixed. A round repeats a request to
the same roster without charge, then uses a smaller roster with fresh noise, and never opens a void attempt.
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
from dpca_tasks.errors import InvalidInput, Refused, SiteSilent
from dpca_tasks.noise.discrete_gaussian import WIDEST
from dpca_tasks.noise.distributions import cube_weights, symmetric_weights
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.sites.roster import Address, MaskSeeds, Member, Message, deal_masks, masked
from dpca_tasks.sites.rounds import SHARES, CubeShare, SymmetricShare, VectorShare, open_round, share_bits
from tests.dpca_tasks.sites.rosters import roster_of

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


@pytest.mark.parametrize("squared_scale", [32, 1 << 30])
def test_a_symmetric_share_has_half_the_variance_off_the_diagonal(squared_scale):
    order = 600
    share = SymmetricShare(roster=roster_of(2), site="a")
    noise = share.draw(subkey(bytes(32), label="noise", info=b""), order, squared_scale=squared_scale)
    weights = symmetric_weights(order, start=0, stop=noise.size)
    for weight in (1.0, math.sqrt(0.5)):
        part = noise[weights == weight] / (weight * math.sqrt(squared_scale))
        miss = stats.norm.isf(0.5e-3) * math.sqrt(2 / part.size)
        assert abs(np.mean(part**2) - 1) < miss
    assert not np.array_equal(noise[weights == 1], noise[weights < 1][:order])


@pytest.mark.parametrize("squared_scale", [96, 3 << 30])
def test_a_share_of_a_cube_has_less_variance_where_indices_differ(squared_scale):
    order = 45
    share = CubeShare(roster=roster_of(2), site="a")
    noise = share.draw(subkey(bytes(32), label="noise", info=b""), order, squared_scale=squared_scale)
    weights = cube_weights(order, start=0, stop=noise.size)
    for weight in (1.0, math.sqrt(1 / 3), math.sqrt(1 / 6)):
        part = noise[np.isclose(weights, weight)] / (weight * math.sqrt(squared_scale))
        miss = stats.norm.isf(0.5e-3) * math.sqrt(2 / part.size)
        assert abs(np.mean(part**2) - 1) < miss
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
