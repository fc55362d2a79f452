"""A participants is refused where one site could stand for two, or a lying server could have two sums opened."""

import dataclasses

import pytest

from dpca_tasks.errors import InvalidInput, MessageRefused
from dpca_tasks.sites.secure_sum.participants import Participants
from dpca_tasks.sites.secure_sum.session import SiteSession
from tests.dpca_tasks.sites.rosters import roster_of
from tests.dpca_tasks.sites.secure_sum.scenes import Remembered, circle_of, identity_of, scene_of


def one_line(found):
    text = str(found.value)
    return "\n" not in text and len(text) < 300


@pytest.mark.parametrize(
    ("size", "facts", "said"),
    [
        (1, {}, "a roster of 1 sites must have at least 2"),
        (3, {"colluders": 3}, "colluders=3 and dropouts=0"),
        (3, {"colluders": 4}, "colluders=4 and dropouts=0"),
        (3, {"colluders": 1, "dropouts": 1}, "2 (S - D) > S + C; tolerate fewer, such as 0 dropouts"),
        (10, {"colluders": 3, "dropouts": 4}, "tolerate fewer, such as 3 dropouts"),
    ],
    ids=["alone", "all collude", "more collude", "two sums of three", "two sums of ten"],
)
def test_rosters_that_protect_nobody_are_refused_in_one_line(size, facts, said):
    with pytest.raises(InvalidInput) as found:
        circle_of(size, **facts)
    assert said in str(found.value)
    assert one_line(found)


def test_equal_names_are_refused():
    roster = roster_of(3)
    with pytest.raises(InvalidInput, match="sites a are named twice"):
        dataclasses.replace(roster, members=(*roster.members, roster.members[0]))


def test_equal_short_lacking_and_foreign_keys_are_refused():
    roster = roster_of(3)
    keys = {name: identity_of(name).public for name in roster.names}
    for wrong, said in (
        (keys | {"b": keys["a"]}, "sites a, b have the same identity key"),
        (keys | {"b": keys["b"][:31]}, "of site 'b' has 31 bytes"),
        ({"a": keys["a"], "b": keys["b"]}, "sites c are in the roster or among the identity keys alone"),
        (keys | {"d": bytes(32)}, "sites d are in the roster or among the identity keys alone"),
    ):
        with pytest.raises(InvalidInput) as found:
            Participants(roster=roster, keys=wrong)
        assert said in str(found.value)
        assert one_line(found)


@pytest.mark.parametrize("size", range(2, 12))
def test_the_threshold_lets_honest_sites_open_one_set_alone(size):
    """By the number of honest sites: two sets of t signatures or shares each have a common honest signer."""
    for colluders in range(size):
        for dropouts in range(size - colluders):
            threshold = size - dropouts
            needed = max(0, threshold - colluders)
            two_sets = needed == 0 or 2 * needed <= size - colluders
            try:
                participants = circle_of(size, colluders=colluders, dropouts=dropouts)
            except InvalidInput:
                assert two_sets
            else:
                assert not two_sets
                assert participants.threshold - colluders == participants.roster.honest >= 1


def test_the_digest_covers_roster_and_keys():
    participants = circle_of(3)
    others = [
        Participants(roster=participants.roster, keys=participants.keys | {"a": identity_of("another").public}),
        Participants(roster=dataclasses.replace(participants.roster, session="autumn"), keys=participants.keys),
        circle_of(4).without("d"),
    ]
    assert others[2].digest == participants.digest
    assert len({participants.digest, *(other.digest for other in others)}) == 3


def test_a_smaller_circle_keeps_its_threshold_while_dropouts_last():
    participants = circle_of(6, colluders=1, dropouts=2)
    smaller = participants.without("c")
    assert (smaller.names, smaller.threshold, smaller.roster.dropouts) == (tuple("abdef"), 4, 1)


def test_a_signature_of_another_site_or_text_is_refused():
    participants = circle_of(3)
    signature = identity_of("a").sign(b"text")
    participants.check_signature(0, text=b"text", signature=signature)
    for place, text, signed in ((1, b"text", signature), (0, b"texts", signature), (0, b"text", signature[:-1])):
        with pytest.raises(MessageRefused, match="forged or damaged"):
            participants.check_signature(place, text=text, signature=signed)


def test_a_site_with_an_identity_that_the_roster_does_not_name_takes_no_seat():
    facts = {"scene": scene_of(circle_of(3)), "site": "a", "memory": Remembered(), "contribute": lambda masks: None}
    with pytest.raises(InvalidInput, match="is not the one that the roster names"):
        SiteSession(identity=identity_of("b"), **facts)


def test_nothing_shows_a_secret():
    identity = identity_of("a")
    assert str(identity.secret.secret) not in repr(identity)
