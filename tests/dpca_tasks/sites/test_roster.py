"""A roster is public, checked once, and has one digest."""

import dataclasses

import pytest

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.sites.roster import Member
from tests.dpca_tasks.sites.rosters import roster_of


@pytest.mark.parametrize(
    ("size", "facts", "found"),
    [
        (1, {}, "a roster of 1 sites"),
        (4, {"colluders": 4}, "colluders=4"),
        (4, {"colluders": 2, "dropouts": 2}, "dropouts=2"),
        (4, {"colluders": -1}, "colluders=-1"),
        (3, {"attempts": 0}, "attempts=0"),
        (3, {"session": ""}, "session=''"),
        (3, {"members": roster_of(3).members + roster_of(2).members}, "sites a, b are named twice"),
    ],
    ids=["one site", "all collude", "nobody honest", "negative", "no attempt", "no session", "equal names"],
)
def test_a_roster_that_protects_nobody_is_refused_in_one_line(size, facts, found):
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


def test_a_stranger_is_no_member():
    assert roster_of(3).member("b").name == "b"
    with pytest.raises(InvalidInput, match="'x' is not in the roster"):
        roster_of(3).member("x")
