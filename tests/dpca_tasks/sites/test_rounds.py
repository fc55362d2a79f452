"""A round asks one roster again without charge, then a smaller one with fresh noise, and opens no void attempt."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from dpca_tasks.errors import Refused, SiteSilent
from dpca_tasks.sites.masks import Address, MaskSeeds, Message, deal_masks, masked
from dpca_tasks.sites.rounds import open_round
from tests.dpca_tasks.sites.rosters import roster_of


@dataclass
class Scripted:
    """Answers with its integer, fresh for each roster, unless the script says that it is silent."""

    name: str
    seeds: MaskSeeds
    silent_at: tuple[int, ...] = ()
    stored: str | None = None
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def message(self, query, *, roster, address):
        self.asked.append((query, roster.size, address.attempt))
        if len(self.asked) - 1 in self.silent_at:
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
    assert [site.asked for site in sites] == [[("query", 3, 0)]] * 3


def test_a_site_that_comes_back_costs_no_attempt():
    roster = roster_of(3)
    sites = parties(roster, b=((0,),))
    assert open_round(sites, "query", roster=roster, index=0).total.tolist() == [3, 9]
    assert [site.asked for site in sites] == [[("query", 3, 0), ("query", 3, 1)]] * 3


def test_a_site_that_stays_away_is_left_out_of_a_charged_attempt():
    roster = roster_of(4, attempts=2)
    sites = parties(roster, b=((0, 1),))
    opened = open_round(sites, "query", roster=roster, index=0)
    assert (opened.total.tolist(), opened.roster) == ([3, 9], roster.without("b"))
    assert sites[0].asked == [("query", 4, 0), ("query", 4, 1), ("query", 3, 2)]
    assert sites[1].asked == [("query", 4, 0), ("query", 4, 1)]


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


def test_a_resumed_round_asks_with_the_stored_inputs_of_any_site():
    roster = roster_of(3)
    sites = parties(roster, a=((0,),), c=((), "stored query"))
    opened = open_round(sites, "query", roster=roster, index=0)
    assert opened.query == "stored query"
    assert {query for site in sites for query, _, _ in site.asked} == {"stored query"}


def test_a_round_may_be_opened_otherwise_by_the_same_rules():
    """Who is named as silent in two attempts is left out of the next roster, and who was lost since of the answer."""
    roster, asked = roster_of(4, attempts=2), []

    def sum_over(query, *, roster, address):
        asked.append((roster.size, address))
        if len(asked) < 3:
            raise SiteSilent("site b did not stay; begin another attempt.", names=("b",))
        return np.array([7]), roster.without("c")

    opened = open_round(parties(roster), "query", roster=roster, index=2, sum_over=sum_over)
    assert (opened.total.tolist(), opened.roster) == ([7], roster.without("b", "c"))
    assert asked == [(size, Address(round=2, attempt=at)) for size, at in ((4, 0), (4, 1), (3, 2))]
