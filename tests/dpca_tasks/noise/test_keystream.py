"""Words are ChaCha20 at a place fixed by key, stream and index; subkeys are HKDF; keys never print."""

import hashlib
import hmac
import itertools
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, subkey, words

KEY = SecretKey(bytes(range(32)))


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """A second implementation, from RFC 8439 section 2.3."""
    state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    state += struct.unpack("<3I", nonce)
    work = list(state)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for into, other, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            work[into] = (work[into] + work[other]) % 2**32
            mixed = work[turned] ^ work[into]
            work[turned] = (mixed << bits | mixed >> (32 - bits)) % 2**32

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for column in range(4):
            quarter(column, (column + 1) % 4 + 4, (column + 2) % 4 + 8, (column + 3) % 4 + 12)
    return struct.pack("<16I", *((a + b) % 2**32 for a, b in zip(work, state, strict=True)))


def test_the_second_implementation_passes_the_vector_of_the_rfc() -> None:
    block = chacha20_block(bytes(range(32)), 1, bytes.fromhex("000000090000004a00000000"))
    assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**70))
def test_a_word_is_chacha20_at_its_place(stream: int, index: int) -> None:
    tile, place = divmod(index, WORDS_PER_TILE)
    block = chacha20_block(KEY.secret, place // 8, struct.pack("<IQ", stream, tile))
    expected = int.from_bytes(block[8 * (place % 8) :][:8], "little")
    assert words(KEY, stream=stream, start=index, stop=index + 1).tolist() == [expected]


@given(st.integers(0, 3 * WORDS_PER_TILE), st.lists(st.integers(0, WORDS_PER_TILE), min_size=1, max_size=6))
def test_any_split_of_a_range_gives_the_same_words(start: int, lengths: list[int]) -> None:
    ends = np.cumsum([start, *lengths]).tolist()
    whole = words(KEY, stream=7, start=start, stop=ends[-1])
    parts = [words(KEY, stream=7, start=low, stop=high) for low, high in itertools.pairwise(ends)]
    assert whole.dtype == np.uint64
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_streams_and_keys_are_unrelated() -> None:
    other = SecretKey(bytes(range(1, 33)))
    first = words(KEY, stream=0, start=0, stop=1000)
    for second in (words(KEY, stream=1, start=0, stop=1000), words(other, stream=0, start=0, stop=1000)):
        assert not np.intersect1d(first, second).size


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4)])
def test_a_range_that_is_none_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidInput, match="must satisfy"):
        words(KEY, stream=0, start=start, stop=stop)


@given(st.binary(min_size=32, max_size=32), st.text(max_size=20), st.binary(max_size=80))
def test_subkeys_are_hkdf_of_the_labelled_purpose(key: bytes, label: str, info: bytes) -> None:
    extracted = hmac.digest(bytes(32), key, hashlib.sha256)
    context = len(label.encode()).to_bytes(4, "little") + label.encode() + info
    assert subkey(key, label=label, info=info).secret == hmac.digest(extracted, context + b"\x01", hashlib.sha256)


def test_label_and_info_do_not_run_together() -> None:
    assert subkey(bytes(32), label="a", info=b"bc") != subkey(bytes(32), label="ab", info=b"c")


def test_a_key_prints_as_nothing_and_pickles_as_itself() -> None:
    assert repr(KEY) == str(KEY) == f"{KEY}" == "SecretKey(...)"
    assert pickle.loads(pickle.dumps(KEY)) == KEY


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_has_32_bytes(length: int) -> None:
    with pytest.raises(InvalidInput, match="must have 32"):
        subkey(bytes(length), label="noise", info=b"")
