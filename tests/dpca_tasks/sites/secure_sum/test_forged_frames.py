"""Every field of every signed frame counts: dropped, changed, duplicated, moved, or taken from another true frame.

A frame is cut into its fields; so are the sites' frames that the server shows to all. Other true frames come from
another site of the same attempt, and from the same site in another attempt.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from dpca_tasks.errors import MessageRefused
from dpca_tasks.sites.secure_sum.participants import SIGNATURE_BYTES
from dpca_tasks.sites.secure_sum.wire import HEAD_BYTES, Frames, Scene, decode, longest_frame
from tests.dpca_tasks.sites.secure_sum.scenes import World, circle_of
from tests.dpca_tasks.sites.secure_sum.test_wire import KINDS, sent_in

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
    """Return the fields of a frame, and of the frames in it."""
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
    """Yield every forgery of one field, with its name."""
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
    """Return whether a frame is decoded, or refused in more than one line."""
    try:
        decode(raw, kind, scene)
    except MessageRefused as refusal:
        return "\n" in str(refusal)
    return True


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_signed or issubclass(kind, Frames)])
def test_every_forged_field_of_a_signed_frame_is_refused(
    kind: Any, frames: dict[Any, list[bytes]], later: dict[Any, list[bytes]], scene: Scene
) -> None:
    """So is a frame of the server that shows signed frames to all, unless it still shows true ones in order."""
    true = frames[kind]
    assert all(accepted(raw, kind, scene) for raw in true)
    others = [fields(raw, kind, scene) for raw in (true[1], later[kind][0])]
    count, wrong = 0, []
    for way, parts in forged(fields(true[0], kind, scene), others):
        raw = b"".join(parts)
        if raw in true:
            continue
        count += 1
        wrong += [way] if accepted(raw, kind, scene) else []
    assert count >= 25
    assert wrong == []


def test_whole_frames_in_a_frame_are_refused_when_they_are_repeated_moved_or_of_another_attempt(
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
