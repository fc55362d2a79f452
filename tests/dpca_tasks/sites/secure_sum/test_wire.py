"""Participants, secret sharing and message encoding of a secure sum.

Participants are refused if one site could act as two, or if a dishonest server could open two sums. A threshold of
shares recovers a secret, and fewer shares are consistent with every secret. Decoders accept exactly what encoders
write: no byte less, more or different, and no message of another phase.
"""

import contextlib
import dataclasses
import os
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput, MessageRefused
from dpca_tasks.sites.secure_sum import attempt, opening, shares
from dpca_tasks.sites.secure_sum.session import PRIME, SiteSession, recover, split
from dpca_tasks.sites.secure_sum.wire import (
    HEAD_BYTES,
    LONGEST_SESSION,
    Identity,
    Participants,
    Reader,
    Scene,
    decode,
    encode,
    longest_frame,
    write_places,
)
from tests.dpca_tasks.sites.secure_sum.scenes import Remembered, World, circle_of, identity_of, roster_of, scene_of


def one_line(found):
    text = str(found.value)
    return "\n" not in text and len(text) < 300


@pytest.mark.parametrize(
    ("size", "facts", "refusal"),
    [
        (1, {}, "the roster has 1 sites and needs at least 2"),
        (3, {"colluders": 3}, "colluders=3 and dropouts=0"),
        (3, {"colluders": 4}, "colluders=4 and dropouts=0"),
        (3, {"colluders": 1, "dropouts": 1}, "is not above sites + colluders; tolerate fewer, such as 0 dropouts"),
        (10, {"colluders": 3, "dropouts": 4}, "tolerate fewer, such as 3 dropouts"),
    ],
    ids=["alone", "all collude", "more collude", "two sums of three", "two sums of ten"],
)
def test_rosters_without_protection_are_refused_in_one_line(size, facts, refusal):
    with pytest.raises(InvalidInput) as found:
        circle_of(size, **facts)
    assert refusal in str(found.value)
    assert one_line(found)


def test_equal_names_are_refused():
    roster = roster_of(3)
    with pytest.raises(InvalidInput, match="sites a are named twice"):
        dataclasses.replace(roster, members=(*roster.members, roster.members[0]))


def test_equal_short_lacking_and_foreign_keys_are_refused():
    roster = roster_of(3)
    keys = {name: identity_of(name).public for name in roster.names}
    for wrong, refusal in (
        (keys | {"b": keys["a"]}, "sites a, b have the same identity key"),
        (keys | {"b": keys["b"][:31]}, "of site 'b' has 31 bytes"),
        ({"a": keys["a"], "b": keys["b"]}, "sites c lack an identity key or are not in the roster"),
        (keys | {"d": bytes(32)}, "sites d lack an identity key or are not in the roster"),
    ):
        with pytest.raises(InvalidInput) as found:
            Participants(roster=roster, keys=wrong)
        assert refusal in str(found.value)
        assert one_line(found)


@pytest.mark.parametrize("size", range(2, 12))
def test_the_threshold_lets_honest_sites_open_only_one_set_of_senders(size):
    """The threshold t must make any two sets of t signatures or shares include the same honest site.

    Participants without such a threshold are refused.
    """
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


def test_a_smaller_roster_keeps_its_threshold_within_the_declared_dropouts():
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


def test_a_site_with_an_unlisted_identity_cannot_participate():
    facts = {"scene": scene_of(circle_of(3)), "site": "a", "memory": Remembered(), "contribute": lambda masks: None}
    with pytest.raises(InvalidInput, match="differs from the one in the roster"):
        SiteSession(identity=identity_of("b"), **facts)


def test_each_drawn_identity_signs_with_another_key():
    assert len({Identity.draw().public for _ in range(3)}) == 3


def test_the_longest_name_of_a_session_fills_a_proposal():
    scene = scene_of(circle_of(3, session="s" * LONGEST_SESSION))
    assert len(attempt.propose(scene)) == HEAD_BYTES + attempt.Begin.longest(scene)


def test_secrets_are_never_printed():
    identity = identity_of("a")
    assert str(identity.secret.secret) not in repr(identity)


@given(secret=st.binary(min_size=32, max_size=32), places=st.integers(1, 12), data=st.data())
def test_a_threshold_of_any_shares_gives_the_secret(secret, places, data):
    threshold = data.draw(st.integers(1, places))
    shares = split(secret, threshold=threshold, places=places)
    chosen = data.draw(st.permutations(range(places)))[:threshold]
    assert recover({place + 1: shares[place] for place in chosen}) == secret


def test_one_share_too_few_fits_every_secret():
    """For any secret, one polynomial of degree t - 1 fits t - 1 shares, so they reveal nothing about the secret."""
    shares = split(os.urandom(32), threshold=3, places=3)
    for secret in (0, 1, 2**256 - 1):
        # The third share that belongs to this secret, by interpolation at 0, 1, 2.
        points = {0: secret, 1: shares[0], 2: shares[1]}
        third = 0
        for at, value in points.items():
            weight = 1
            for other in points:
                if other != at:
                    weight = weight * (3 - other) * pow(at - other, -1, PRIME) % PRIME
            third = (third + weight * value) % PRIME
        assert recover({1: shares[0], 2: shares[1], 3: third}) == secret.to_bytes(32, "little")


def test_shares_of_too_few_or_of_two_secrets_give_another_value_or_are_refused():
    one, other = (split(bytes([at]) * 32, threshold=3, places=5) for at in (1, 2))
    for held in ({1: one[0], 2: one[1]}, {1: one[0], 2: one[1], 3: other[2]}):
        found = b""
        # a wrong secret is refused if it is one of the 297 field elements that do not fit 256 bits
        with contextlib.suppress(MessageRefused):
            found = recover(held)
        assert found != bytes([1]) * 32


def test_a_value_beyond_32_bytes_is_refused():
    with pytest.raises(MessageRefused, match="do not belong together"):
        recover({1: PRIME - 1})


def test_the_modulus_is_the_least_prime_above_two_to_the_256():
    def is_prime(number):
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
            power = pow(base, odd, number)
            if power in (1, number - 1):
                continue
            if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
                return False
        return True

    assert [number for number in range(2**256 + 1, PRIME + 1, 2) if is_prime(number)] == [PRIME]


@pytest.mark.parametrize(
    ("size", "threshold", "places"), [(31, 1, 1), (32, 0, 1), (32, 3, 2)], ids=["short", "none", "more than places"]
)
def test_impossible_sharings_are_refused(size, threshold, places):
    with pytest.raises(InvalidInput, match=f"threshold={threshold} must be from 1 to places={places}"):
        split(bytes(size), threshold=threshold, places=places)


KINDS = (
    attempt.Begin,
    attempt.Keys,
    attempt.KeyList,
    shares.SealedShares,
    shares.Delivered,
    shares.MaskedSum,
    shares.Senders,
    opening.SignedSenders,
    opening.Signatures,
    opening.OpeningShares,
)


def sent_in(world: World, scene: Scene) -> dict[Any, list[bytes]]:
    """Return every genuine frame of each kind in one attempt, sent by the server or by a site."""
    machines = world.machines(scene)
    phase: Any = attempt.ServerKeys(scene=scene, awaited=frozenset(machines))
    sent, found = dict.fromkeys(machines, attempt.propose(scene)), []
    while True:
        answers = {place: machines[place].receive(frame) for place, frame in sent.items()}
        found += [list(sent.values()), list(answers.values())]
        for place, answer in answers.items():
            phase.receive(answer, sender=place)
        closed = phase.close()
        if isinstance(closed, opening.Total):
            return dict(zip(KINDS, found, strict=True))
        sent, phase = closed


@pytest.fixture(scope="module")
def scene():
    return World(circle_of(4, dropouts=1)).scene()


@pytest.fixture(scope="module")
def frames(scene):
    """Return one genuine frame of each kind, to or from the first site."""
    sent = sent_in(World(circle_of(4, dropouts=1)), scene)
    return {kind: raws[0] for kind, raws in sent.items()}


def signed_again(raw, expected):
    """Sign a changed frame with the first site's key, so that only its encoding can be wrong."""
    return raw[:-64] + identity_of("a").sign(raw[:-64]) if expected.is_signed else raw


def refused(raw, expected, scene):
    with pytest.raises(MessageRefused) as found:
        decode(raw, expected, scene)
    text = str(found.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


def test_each_kind_of_frame_is_decoded_unchanged(frames, scene):
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
    for expected, raw in frames.items():
        received = decode(raw, expected, scene)
        assert len(raw) <= longest_frame(expected, scene)
        head = encode(received.message, scene)[:HEAD_BYTES]
        body = received.message.body(scene)
        assert raw[: len(head) - 2] == head[:-2]
        assert raw[HEAD_BYTES : HEAD_BYTES + len(body)] == body


@pytest.mark.parametrize("expected", KINDS, ids=lambda kind: kind.__name__)
def test_cut_and_longer_frames_are_refused(expected, frames, scene):
    raw = frames[expected]
    lengths = sorted({*range(0, len(raw), max(1, len(raw) // 40)), len(raw) - 1})
    for length in lengths:
        refused(raw[:length], expected, scene)
        if length >= HEAD_BYTES + 64:
            refused(signed_again(raw[: length - 64] + bytes(64), expected), expected, scene)
    for more in (b"\0", bytes(64), bytes(100_000)):
        refused(raw + more, expected, scene)
        refused(signed_again(raw[:-64] + more + bytes(64), expected), expected, scene)


@pytest.mark.parametrize("expected", KINDS, ids=lambda kind: kind.__name__)
def test_frames_with_flipped_bits_are_refused_or_decode_to_valid_messages(expected, frames, scene):
    """Flip bits of each kind of frame: signed frames are refused, and others decode to what they encode."""
    raw, drawn = frames[expected], random.Random(expected.kind)
    for at in drawn.sample(range(8 * len(raw)), min(200, 8 * len(raw))):
        flipped = bytearray(raw)
        flipped[at // 8] ^= 1 << at % 8
        if expected.is_signed or at < 8 * HEAD_BYTES:
            refused(bytes(flipped), expected, scene)
        for tried in (bytes(flipped), signed_again(bytes(flipped), expected)):
            try:
                received = decode(tried, expected, scene)
            except MessageRefused:
                continue
            assert received.message.body(scene) == tried[HEAD_BYTES : len(tried) - 64 * expected.is_signed]


@pytest.mark.parametrize("expected", KINDS, ids=lambda kind: kind.__name__)
def test_noise_is_refused(expected, scene):
    drawn = random.Random(expected.kind)
    for size in (0, 1, HEAD_BYTES, 200, 5000):
        noise = drawn.randbytes(size)
        refused(noise, expected, scene)
        head = encode(shares.Senders(senders=frozenset()), scene)[:HEAD_BYTES]
        framed = head[:5] + bytes([expected.kind]) + head[6:] + noise
        if expected not in (shares.Senders,):
            refused(framed, expected, scene)


@pytest.mark.parametrize("expected", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_of_another_phase_is_refused_by_its_type(expected, frames, scene):
    for other, raw in frames.items():
        if other is not expected:
            assert f"{other.kind} arrived, but kind {expected.kind} ({expected.title})" in refused(raw, expected, scene)


@pytest.mark.parametrize(
    "other",
    [
        {"round_index": 1},
        {"attempt": 1},
        {"requested": bytes(32)},
        {"words": 6},
        {"participants": circle_of(4, dropouts=1, session="autumn")},
        {"participants": circle_of(5, dropouts=1)},
    ],
    ids=["round", "attempt", "query", "length", "session", "roster"],
)
def test_a_message_of_another_sum_is_refused(other, frames, scene):
    another = scene_of(**{"participants": scene.participants, **other})
    for expected, raw in frames.items():
        refusal = refused(raw, expected, another)
        assert "of another session, round, attempt, roster or query" in refusal or "allowed in this round" in refusal


def test_a_refusal_quotes_no_content(frames, scene):
    raw = frames[shares.MaskedSum]
    refusal = refused(raw[:-1] + bytes([raw[-1] ^ 1]), shares.MaskedSum, scene)
    assert raw[HEAD_BYTES : HEAD_BYTES + 8].hex() not in refusal
    assert refusal.startswith("a message in the name of site 'a' lacks the signature of that site")


def test_sites_beyond_the_roster_are_refused(scene):
    with pytest.raises(MessageRefused, match="beyond the 4 of the roster"):
        Reader(bytes([0x10])).places(scene)
    with pytest.raises(MessageRefused, match="place 4 is not below 4, the number of sites"):
        Reader(bytes([4, 0])).place(scene)
    assert Reader(write_places([0, 3], scene)).places(scene) == {0, 3}


def test_the_context_of_a_proposal_is_read_before_the_sum_is_known(frames, scene):
    raw = frames[attempt.Begin]
    assert attempt.read_proposal(raw) == scene.context
    for wrong in (raw[:-1], raw + b"\0", raw[:HEAD_BYTES], b"", frames[attempt.KeyList], raw[:5] + b"\1" + bytes(9999)):
        with pytest.raises(MessageRefused):
            attempt.read_proposal(wrong)
