"""Decoders take exactly what encoders write: no byte less, more or other, and no message of another phase."""

import random
from typing import Any

import pytest

from dpca_tasks.errors import MessageRefused
from dpca_tasks.sites.secure_sum import keys, masked_sums, opening, roster, shares
from dpca_tasks.sites.secure_sum.wire import HEAD_BYTES, Reader, Scene, decode, encode, longest_frame, write_places
from tests.dpca_tasks.sites.secure_sum.scenes import World, circle_of, identity_of, scene_of

KINDS = (
    roster.Begin,
    keys.Keys,
    keys.KeyList,
    shares.SealedShares,
    shares.Delivered,
    masked_sums.MaskedSum,
    masked_sums.Senders,
    opening.SignedSenders,
    opening.Signatures,
    opening.OpeningShares,
)


def sent_in(world: World, scene: Scene) -> dict[Any, list[bytes]]:
    """Every true frame of each kind in one attempt: those of the server to each site, or of each site."""
    machines = world.machines(scene)
    phase: Any = keys.ServerKeys(scene=scene, awaited=frozenset(machines))
    sent, found = dict.fromkeys(machines, roster.propose(scene)), []
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
    """Those to and from the first site."""
    sent = sent_in(World(circle_of(4, dropouts=1)), scene)
    return {kind: raws[0] for kind, raws in sent.items()}


def signed_again(raw, expected):
    """A changed frame under a true signature of the first site: only the encoding can tell."""
    return raw[:-64] + identity_of("a").sign(raw[:-64]) if expected.is_signed else raw


def refused(raw, expected, scene):
    with pytest.raises(MessageRefused) as found:
        decode(raw, expected, scene)
    text = str(found.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


def test_each_kind_is_read_as_it_was_written(frames, scene):
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
def test_flipped_bits_are_refused_or_are_another_valid_message(expected, frames, scene):
    """Every flip in a signed frame or a signed part is refused; elsewhere what is read is what is written."""
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
        head = encode(masked_sums.Senders(senders=frozenset()), scene)[:HEAD_BYTES]
        framed = head[:5] + bytes([expected.kind]) + head[6:] + noise
        if expected not in (masked_sums.Senders,):
            refused(framed, expected, scene)


@pytest.mark.parametrize("expected", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_of_another_phase_is_refused_by_its_type(expected, frames, scene):
    for other, raw in frames.items():
        if other is not expected:
            assert f"a message of kind {other.kind} came where {expected.title}" in refused(raw, expected, scene)


@pytest.mark.parametrize(
    "other",
    [
        {"round_index": 1},
        {"attempt": 1},
        {"asked": bytes(32)},
        {"words": 6},
        {"participants": circle_of(4, dropouts=1, session="autumn")},
        {"participants": circle_of(5, dropouts=1)},
    ],
    ids=["round", "attempt", "query", "length", "session", "roster"],
)
def test_a_message_of_another_sum_is_refused(other, frames, scene):
    another = scene_of(**{"participants": scene.participants, **other})
    for expected, raw in frames.items():
        said = refused(raw, expected, another)
        assert "of another session, round, attempt, roster or query" in said or "exceed" in said


def test_a_refusal_tells_no_content(frames, scene):
    raw = frames[masked_sums.MaskedSum]
    said = refused(raw[:-1] + bytes([raw[-1] ^ 1]), masked_sums.MaskedSum, scene)
    assert raw[HEAD_BYTES : HEAD_BYTES + 8].hex() not in said
    assert said.startswith("a message in the name of site 'a' does not bear its signature")


def test_sites_beyond_the_roster_are_refused(scene):
    with pytest.raises(MessageRefused, match="more than the 4"):
        Reader(bytes([0x10])).places(scene)
    with pytest.raises(MessageRefused, match="beyond the 4 sites"):
        Reader(bytes([4, 0])).place(scene)
    assert Reader(write_places([0, 3], scene)).places(scene) == {0, 3}


def test_a_proposal_is_read_before_anything_is_known_of_it(frames, scene):
    raw = frames[roster.Begin]
    assert roster.read_proposal(raw) == scene.context
    for wrong in (raw[:-1], raw + b"\0", raw[:HEAD_BYTES], b"", frames[keys.KeyList], raw[:5] + b"\1" + bytes(9999)):
        with pytest.raises(MessageRefused):
            roster.read_proposal(wrong)
