"""Frames come back as they went, and whatever is cut, longer, or of another form is refused whole."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import Refused
from flows.parties.frames import LONGEST_HEAD, MAGIC, OVERHEAD, decode, encode
from tests.forger import forgeries

MATRIX = np.zeros((1000, 5), np.int64)
MATRIX[::20] = np.arange(250).reshape(50, 5) - 100
ARRAYS = {
    "words": np.arange(7, dtype=np.uint64) + np.uint64(2**63),
    "directions": MATRIX,
    "part": np.array([[0.5, -1.5]]),
    "empty": np.zeros((0, 4)),
}


def test_facts_and_arrays_come_back_to_the_bit_and_aligned() -> None:
    frame = decode(encode({"round": 3, "names": ["a"]}, ARRAYS), most=100_000)
    assert frame.facts == {"round": 3, "names": ["a"]}
    assert list(frame.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(frame.arrays[name], array)
        assert (frame.arrays[name].dtype, frame.arrays[name].flags.aligned) == (array.dtype, True)


def test_of_a_matrix_with_few_rows_only_these_are_sent() -> None:
    """8 k s + 4 s bytes for s rows kept of k columns."""
    dense = encode({}, {"directions": MATRIX + 1})
    assert len(encode({}, {"directions": MATRIX})) - len(dense) == (50 * 5 * 8 + 50 * 4) - MATRIX.nbytes - 2


def changed(**others: object) -> bytes:
    entry = {"name": "words", "type": "<u8", "shape": [2], "rows": None, **others}
    head = json.dumps({"arrays": [entry]}).encode()
    return MAGIC + len(head).to_bytes(4, "big") + head + bytes(16)


REFUSED = {
    "nothing": b"",
    "another magic": b"PICKL" + bytes(20),
    "a pickle": b"\x80\x04\x95" + bytes(20),
    "cut in the head": encode({"round": 1})[:-1],
    "cut in an array": encode({}, {"words": ARRAYS["words"]})[:-1],
    "one byte more": encode({}, {"words": ARRAYS["words"]}) + b"\0",
    "a head that is no object": MAGIC + (2).to_bytes(4, "big") + b"[]",
    "a head that is no JSON": MAGIC + (2).to_bytes(4, "big") + b"{]",
    "a long head": MAGIC + (LONGEST_HEAD + 1).to_bytes(4, "big") + bytes(LONGEST_HEAD + 1),
    "objects": changed(type="|O"),
    "another shape": changed(shape=[3]),
    "a negative shape": changed(shape=[-2]),
    "a boolean shape": changed(shape=[True]),
    "a huge shape": changed(shape=[2**30, 2**30]),
    "rows of a vector": changed(rows=1),
    "an unknown fact": changed(order="F"),
}


def test_the_sound_form_of_what_is_refused_is_read() -> None:
    assert decode(changed(), most=1 << 20).arrays["words"].tolist() == [0, 0]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_malformed_is_refused_in_one_line_without_its_content(case: str) -> None:
    with pytest.raises(Refused, match="cut, too long or malformed"):
        decode(REFUSED[case], most=1 << 20)


def opened(frame: bytes) -> tuple[dict[str, Any], bytes]:
    start = len(MAGIC) + 4
    stop = start + int.from_bytes(frame[len(MAGIC) : start], "big")
    return json.loads(frame[start:stop]), frame[stop:]


def test_a_forged_head_is_refused_or_read_exactly_as_it_stands() -> None:
    """No part of a head is passed over, and no form of an array is read that the head does not state."""
    honest, body = opened(encode({"round": 3, "names": ["a", "b"]}, ARRAYS))
    other, _ = opened(encode({"round": 4, "names": ["c"]}, {"shares": np.ones((2, 3)), "words": np.zeros(8, np.int64)}))
    count = 0
    for way, forged in forgeries(honest, other):
        text = json.dumps(forged).encode()
        try:
            frame = decode(MAGIC + len(text).to_bytes(4, "big") + text + body, most=1 << 20)
        except Refused as refusal:
            count += "\n" not in str(refusal)
            continue
        stated = {entry["name"]: (entry["type"], entry["shape"]) for entry in forged["arrays"]}
        assert {name: (array.dtype.str, [*array.shape]) for name, array in frame.arrays.items()} == stated, way
        assert {**frame.facts, "arrays": forged["arrays"]} == forged, way
    assert count > 40


def test_rows_in_another_order_or_beyond_the_matrix_are_refused() -> None:
    for places in ([1, 0], [0, 9], [1, 1]):
        head = json.dumps({"arrays": [{"name": "m", "type": "<i8", "shape": [9, 1], "rows": 2}]}).encode()
        body = np.array(places, "<u4").tobytes() + np.ones(2, "<i8").tobytes()
        with pytest.raises(Refused):
            decode(MAGIC + len(head).to_bytes(4, "big") + head + body, most=1 << 20)


def test_more_than_was_planned_is_refused_before_it_is_unpacked() -> None:
    frame = encode({}, {"directions": MATRIX})
    assert len(frame) < MATRIX.nbytes
    with pytest.raises(Refused):
        decode(frame, most=MATRIX.nbytes - 1)
    assert decode(frame, most=MATRIX.nbytes).arrays["directions"].shape == MATRIX.shape


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    frame = encode({"round": 1}, {"words": ARRAYS["words"]})
    try:
        decode(frame[:at] + noise + frame[at + len(noise) :], most=OVERHEAD)
    except Refused as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017 - either ending is right


def test_facts_of_another_type_are_refused() -> None:
    frame = decode(encode({"round": True, "names": "a"}), most=0)
    for name, kind in (("round", int), ("names", list), ("absent", str)):
        with pytest.raises(Refused, match=f"lacks {name}"):
            frame.fact(name, kind)
    with pytest.raises(Refused, match="are not sent"):
        encode({}, {"bits": np.zeros(2, bool)})


def test_a_frame_without_planned_arrays_is_refused_before_any_is_made() -> None:
    """An answer of a few bytes can declare an array of 3 GB, of which no row is sent."""
    head = json.dumps({"line": "no", "arrays": [{"name": "m", "type": "<i8", "shape": [20_000, 20_000], "rows": 0}]})
    with pytest.raises(Refused, match="malformed"):
        decode(MAGIC + len(head).to_bytes(4, "big") + head.encode(), most=0)
