"""One attempt of a secure sum: exact totals, secrecy of messages, and forged frames.

The opened total must be the exact sum of the senders' integers, and messages must reveal nothing else. Every field of
every signed frame is dropped, changed, duplicated, moved, or replaced by that of another genuine frame. Frames are cut
into their fields, including the sites' frames inside a server frame. The other genuine frames come from another site of
the same attempt, and from the same site in another attempt.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.errors import MessageRefused, SiteSilent
from dpca_tasks.sites.secure_sum.attempt import open_sum
from dpca_tasks.sites.secure_sum.opening import OpeningShares
from dpca_tasks.sites.secure_sum.shares import MaskedSum
from dpca_tasks.sites.secure_sum.wire import (
    HEAD_BYTES,
    SIGNATURE_BYTES,
    Frames,
    Scene,
    decode,
    encode,
    longest_frame,
    next_attempt,
)
from tests.dpca_tasks.sites.secure_sum.scenes import PHASES, World, attempt, circle_of, entropy_of, identity_of
from tests.dpca_tasks.sites.secure_sum.test_wire import KINDS, sent_in

FALSE_ALARM = 1e-3
"""The probability, over all keys, that a statistical test here raises a false alarm."""


def by_title(transcript, title):
    return {place: raw for message, place, raw in transcript if message == title}


def words_in(raw):
    return np.frombuffer(raw[HEAD_BYTES:-SIGNATURE_BYTES], "<u8")


def test_ten_sites_open_the_integer_sum_exactly_in_any_order():
    world = World(circle_of(10, colluders=3))
    expected = world.sum_of(*world.participants.names)
    for at, order in enumerate((None, [3, 1, 4, 0, 5, 9, 2, 6, 8, 7])):
        total = attempt(world, world.scene(attempt=at), order=order)
        assert total.senders == world.participants.names
        np.testing.assert_array_equal(total.integers, expected)


@pytest.mark.parametrize("title", PHASES)
def test_sites_lost_in_any_phase_leave_the_sum_of_the_received_messages(title):
    world = World(circle_of(6, colluders=1, dropouts=2))
    total = attempt(world, world.scene(), lost=[("b", title), ("e", title)])
    went = world.participants.names if PHASES.index(title) > PHASES.index("masked sums") else ("a", "c", "d", "f")
    assert total.senders == went
    np.testing.assert_array_equal(total.integers, world.sum_of(*went))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(PHASES, 2)))
def test_sites_lost_in_two_phases_leave_the_sum_of_the_received_messages(first, second):
    world = World(circle_of(6, dropouts=2))
    total = attempt(world, world.scene(), lost=[("a", first), ("f", second)])
    went = [
        name
        for name, title in zip("abcdef", (first, *PHASES[-1:] * 4, second), strict=True)
        if PHASES.index(title) > PHASES.index("masked sums")
    ]
    np.testing.assert_array_equal(total.integers, world.sum_of(*went))


@pytest.mark.parametrize("title", PHASES)
def test_below_the_threshold_nothing_is_opened(title):
    world = World(circle_of(5, dropouts=1))
    with pytest.raises(SiteSilent, match=rf"sites a, d sent no {title}, and 4 of 5 must") as silence:
        attempt(world, world.scene(), lost=[("a", title), ("d", title)])
    assert silence.value.names == ("a", "d")


def test_each_attempt_has_fresh_masks_and_the_same_total():
    world, seen = World(circle_of(3)), []
    for at in range(3):
        transcript: list[tuple[str, int, bytes]] = []
        total = attempt(world, world.scene(attempt=at), transcript=transcript)
        np.testing.assert_array_equal(total.integers, world.sum_of("a", "b", "c"))
        seen += [words_in(raw) for raw in by_title(transcript, "masked sums").values()]
    words = np.concatenate([*seen, *(integers.view(np.uint64) for integers in world.integers.values())])
    assert np.unique(words).size == words.size


def test_a_million_masked_words_are_uniform():
    """Test each byte of masked words by chi-square, for one site's message and for the sum of all; keys are fixed."""
    size = 1_000_000
    world = World(circle_of(3), words=size)
    scene = world.scene()
    machines = {
        scene.participants.place(name): world.machine(name, scene, entropy=entropy_of(name))
        for name in world.participants.names
    }
    sums = {}

    def line(place):
        def call(frame):
            answer = machines[place].receive(frame)
            if len(answer) > 8 * size:
                sums[place] = words_in(answer)
            return answer

        return call

    total = open_sum(scene, {name: line(scene.participants.place(name)) for name in scene.participants.names})
    np.testing.assert_array_equal(total.integers, world.sum_of("a", "b", "c"))

    def least_p(words):
        table = words.view(np.uint8).reshape(-1, 8)
        return 16 * min(stats.chisquare(np.bincount(table[:, at], minlength=256)).pvalue for at in range(8))

    assert least_p(sums[0]) > FALSE_ALARM
    # the sum of all messages still includes each site's own mask
    assert least_p(sums[0] + sums[1] + sums[2]) > FALSE_ALARM
    assert least_p(world.integers["a"].view(np.uint64)) < 1e-100


def test_the_server_sees_masked_messages_alone_until_a_sum_is_opened():
    """Record all frames of an attempt: none may contain a site's integers, and sizes must be fixed.

    All frames except masked sums have a fixed number of bytes per site.
    """
    world = World(circle_of(10), words=200)
    transcript: list[tuple[str, int, bytes]] = []
    attempt(world, world.scene(), transcript=transcript)
    raws = b"".join(raw for _, _, raw in transcript)
    for integers in world.integers.values():
        assert not any(value.tobytes() in raws for value in integers)
    for title, _, raw in transcript:
        expected = {
            "keys": 3 * 32 + 2,
            "sealed shares": 2 + 9 * (2 + 2 * 33 + 16),
            "masked sums": 8 * 200,
            "signed senders": 32 + 2,
            "opening shares": 2 + 10 * (2 + 33),
        }[title]
        assert len(raw) == HEAD_BYTES + expected + SIGNATURE_BYTES


def test_a_site_sends_the_bytes_of_its_words_and_two_kilobytes_more():
    """Count the bytes that each of ten sites sends: 8 per word, and at most 2,048 more.

    A product of d = 1000 and k = 5 has d k words, and a moment has d (d + 1) / 2.
    """
    world = World(circle_of(10), words=5000)
    transcript: list[tuple[str, int, bytes]] = []
    attempt(world, world.scene(), transcript=transcript)
    for place in range(10):
        sent = [len(raw) for _, of, raw in transcript if of == place]
        assert 8 * 5000 < sum(sent) <= 8 * 5000 + 2048
    moments = World(circle_of(10), words=1000 * 1001 // 2).scene()
    assert longest_frame(MaskedSum, moments) == 4 * 1000 * 1001 + HEAD_BYTES + SIGNATURE_BYTES


def test_an_attempt_continues_without_sites_that_are_silent_or_refuse():
    world = World(circle_of(5, dropouts=2))
    scene = world.scene()
    machines = world.machines(scene)

    def silent(frame):
        raise SiteSilent("the site did not answer within 1 s; ask again.")

    def refuses(frame):
        raise MessageRefused("the site cannot answer now; ask again.")

    lines = {name: machines[scene.participants.place(name)].receive for name in world.participants.names}
    total = open_sum(scene, lines | {"b": silent, "d": refuses})
    assert total.senders == ("a", "c", "e")
    np.testing.assert_array_equal(total.integers, world.sum_of("a", "c", "e"))


def test_the_next_attempt_has_the_first_number_that_a_site_has_not_used():
    world = World(circle_of(3))
    for at in range(3):
        assert {next_attempt(memory, session="spring", round_index=0) for memory in world.memories.values()} == {at}
        attempt(world, world.scene(attempt=at))
    assert next_attempt(world.memories["a"], session="spring", round_index=1) == 0
    assert next_attempt(world.memories["a"], session="autumn", round_index=0) == 0


def test_false_shares_do_not_open_a_total():
    """Change one site's opening share by one: the secret does not match its commitment, and no total is opened."""
    world = World(circle_of(4))
    scene = world.scene()
    machines = world.machines(scene)
    lines = {name: machines[scene.participants.place(name)].receive for name in world.participants.names}

    def wrong(frame):
        answer = machines[1].receive(frame)
        if answer[5] != OpeningShares.kind:
            return answer
        shares = decode(answer, OpeningShares, scene).message.shares
        false = OpeningShares(shares=shares | {2: shares[2] + 1})
        return encode(false, scene, sender="b", identity=identity_of("b"))

    with pytest.raises(MessageRefused, match="shares of site 'c' do not match its commitment"):
        open_sum(scene, lines | {"b": wrong})


HEAD = (4, 1, 1, 32, 2)
"""The lengths of magic, version, kind, digest of the context, and place."""


@pytest.fixture(scope="module")
def world() -> World:
    return World(circle_of(4, dropouts=1))


@pytest.fixture(scope="module")
def scene(world: World) -> Scene:
    found: Scene = world.scene()
    return found


@pytest.fixture(scope="module")
def frames(world: World, scene: Scene) -> dict[Any, list[bytes]]:
    return sent_in(world, scene)


@pytest.fixture(scope="module")
def later(world: World) -> dict[Any, list[bytes]]:
    return sent_in(world, world.scene(attempt=1))


def fields(raw: bytes, kind: Any, scene: Scene) -> list[bytes]:
    """Return the fields of a frame as bytes, including those of the frames inside it."""
    ends = [0, *itertools.accumulate(HEAD)]
    assert ends[-1] == HEAD_BYTES
    stop = len(raw) - SIGNATURE_BYTES * kind.is_signed
    head = [raw[one:other] for one, other in itertools.pairwise(ends)]
    body = raw[HEAD_BYTES:stop]
    if issubclass(kind, Frames):
        size = longest_frame(kind.of, scene)
        inner = [body[at : at + size] for at in range(2, len(body), size)]
        return [*head, body[:2], *(part for frame in inner for part in fields(frame, kind.of, scene))]
    return [*head, body, *([raw[stop:]] if kind.is_signed else [])]


def forged(raw: list[bytes], others: list[list[bytes]]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield every forgery of one field of a frame, with its name; ``others`` are genuine frames."""
    for at, part in enumerate(raw):
        before, after = raw[:at], raw[at + 1 :]
        yield f"dropped {at}", [*before, *after]
        yield f"duplicated {at}", [*before, part, part, *after]
        if part:
            yield f"changed at the end of {at}", [*before, part[:-1] + bytes([part[-1] ^ 1]), *after]
            yield f"changed at the start of {at}", [*before, bytes([part[0] ^ 128]) + part[1:], *after]
        if after:
            yield f"moved {at}", [*before, after[0], part, *after[1:]]
        for other in others:
            if at < len(other):
                yield f"replaced {at}", [*before, other[at], *after]


def accepted(raw: bytes, kind: Any, scene: Scene) -> bool:
    """Return whether a frame is decoded, or its refusal has more than one line."""
    try:
        decode(raw, kind, scene)
    except MessageRefused as refusal:
        return "\n" in str(refusal)
    return True


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_signed or issubclass(kind, Frames)])
def test_every_forged_field_of_a_signed_frame_is_refused(
    kind: Any, frames: dict[Any, list[bytes]], later: dict[Any, list[bytes]], scene: Scene
) -> None:
    """Forge each field of a signed frame, or of a server frame that forwards signed frames: it must be refused.

    A server frame is accepted only if it contains genuine frames in order.
    """
    true = frames[kind]
    assert all(accepted(raw, kind, scene) for raw in true)
    others = [fields(raw, kind, scene) for raw in (true[1], later[kind][0])]
    count, wrong = 0, []
    for variant, parts in forged(fields(true[0], kind, scene), others):
        raw = b"".join(parts)
        if raw in true:
            continue
        count += 1
        wrong += [variant] if accepted(raw, kind, scene) else []
    assert count >= 25
    assert wrong == []


def test_repeated_moved_and_foreign_frames_inside_a_server_frame_are_refused(
    frames: dict[Any, list[bytes]], later: dict[Any, list[bytes]], scene: Scene
) -> None:
    shown: list[Any] = [kind for kind in KINDS if issubclass(kind, Frames)]
    for kind in shown:
        raw, size = frames[kind][0], longest_frame(kind.of, scene)
        start = HEAD_BYTES + 2
        inner = [raw[at : at + size] for at in range(start, len(raw), size)]
        older = [later[kind][0][at : at + size] for at in range(start, len(raw), size)]
        assert len(inner) >= 3
        for wrong in (
            [*inner, inner[-1]],
            [inner[1], inner[0], *inner[2:]],
            [inner[0], inner[0], *inner[2:]],
            [older[0], *inner[1:]],
            inner[:-1],
        ):
            counts = (raw[HEAD_BYTES:start], len(wrong).to_bytes(2, "little"))
            for count in counts if len(wrong) >= len(inner) else counts[:1]:
                assert not accepted(raw[:HEAD_BYTES] + count + b"".join(wrong), kind, scene), kind
