"""Keyed random words, coins, uniforms, normals and Laplace variates: exact, reproducible, and correctly distributed.

Words are ChaCha20 output at a position fixed by key, stream and index, equal to the output of the system's library.
Subkeys are HKDF, and keys are never printed. Uniforms keep their significant bits at every magnitude, and coins come up
no more often than stated. Normals and Laplace variates have accurate quantiles, identical bits on all machines, and
reach every integer.
"""

import hashlib
import hmac
import itertools
import math
import pickle
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from numpy.typing import NDArray
from scipy import special, stats

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise import keystream
from dpca_tasks.noise.keystream import (
    WORDS_PER_TILE,
    SecretKey,
    coins,
    fill_exponentials,
    fill_normal_magnitudes,
    laplaces,
    normals,
    signed_uniforms,
    subkey,
    uniforms_of,
    words,
    words_at,
)

KEY = SecretKey(bytes(range(32)))


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """Return one ChaCha20 block, by a second implementation of RFC 8439 section 2.3."""
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
def test_an_invalid_range_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidInput, match="must satisfy"):
        words(KEY, stream=0, start=start, stop=stop)


@given(st.binary(min_size=32, max_size=32), st.text(max_size=20), st.binary(max_size=80))
def test_subkeys_are_hkdf_of_the_labelled_purpose(key: bytes, label: str, info: bytes) -> None:
    extracted = hmac.digest(bytes(32), key, hashlib.sha256)
    context = len(label.encode()).to_bytes(4, "little") + label.encode() + info
    assert subkey(key, label=label, info=info).secret == hmac.digest(extracted, context + b"\x01", hashlib.sha256)


def test_label_and_info_of_a_subkey_are_separated() -> None:
    assert subkey(bytes(32), label="a", info=b"bc") != subkey(bytes(32), label="ab", info=b"c")


def test_a_key_is_not_printed_and_pickles_unchanged() -> None:
    assert repr(KEY) == str(KEY) == f"{KEY}" == "SecretKey(...)"
    assert pickle.loads(pickle.dumps(KEY)) == KEY


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_has_32_bytes(length: int) -> None:
    with pytest.raises(InvalidInput, match="must have 32"):
        subkey(bytes(length), label="noise", info=b"")


EDGES = [0, 1, 7, 8, WORDS_PER_TILE - 1, WORDS_PER_TILE, WORDS_PER_TILE << 32, (WORDS_PER_TILE << 32) - 1, 2**60]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 300])
def test_words_at_places_are_those_of_the_stream(count: int) -> None:
    places = np.array(
        [*EDGES, *np.random.default_rng(count).integers(0, 1 << 50, count)][-count:] if count else [], int
    )
    for stream in (0, 1, 2**32 - 1):
        expected = [words(KEY, stream=stream, start=at, stop=at + 1)[0] for at in places.tolist()]
        np.testing.assert_array_equal(words_at(KEY, stream=stream, places=places), np.array(expected, np.uint64))


def test_words_at_the_edges_of_blocks_tiles_and_counters_are_those_of_the_stream() -> None:
    expected = [words(KEY, stream=3, start=at, stop=at + 1)[0] for at in EDGES]
    np.testing.assert_array_equal(words_at(KEY, stream=3, places=np.array(EDGES)), np.array(expected, np.uint64))


UNIFORM_KEY = subkey(bytes(32), label="test", info=b"uniform")


def from_bits(bits: int) -> tuple[float, float]:
    """Return the uniform and the sign that the kernel computes from 191 bits of u followed by a sign bit."""
    negative, u = bits & 1, bits >> 1
    high = (u >> 128) << 1 | negative
    top, middle, low = (np.array([part], np.uint64) for part in (high, u >> 64 & (2**64 - 1), u & (2**64 - 1)))
    uniforms, signs = uniforms_of(top, lambda places: (middle[places], low[places]))
    return float(uniforms[0]), float(signs[0])


@given(st.integers(0, 191).flatmap(lambda length: st.integers(0, 2**length - 1)), st.integers(0, 1))
def test_a_uniform_is_its_191_bits_to_a_rounding_at_every_magnitude(u: int, negative: int) -> None:
    made, sign = from_bits(u << 1 | negative)
    assert sign == (-1.0 if negative else 1.0)
    assert abs(Fraction(made) * 2**191 - u) <= max(Fraction(1), Fraction(u, 2**52))


def test_a_uniform_is_never_zero_nor_above_one() -> None:
    assert from_bits(0) == (2.0**-191, 1.0)
    assert from_bits(2**192 - 1) == (1.0, -1.0)


def test_uniforms_are_the_words_of_three_streams() -> None:
    start, stop = 12_345, 45_678
    uniforms, signs = signed_uniforms(UNIFORM_KEY, start=start, stop=stop)
    high = words(UNIFORM_KEY, stream=0, start=start, stop=stop)
    np.testing.assert_array_equal(signs, np.where(high % 2, -1.0, 1.0))
    np.testing.assert_allclose(uniforms, (high >> np.uint64(1)) * 2.0**-63, rtol=0, atol=2.0**-62)
    small = int(np.argmin(uniforms))
    bits = [int(words(UNIFORM_KEY, stream=stream, start=start, stop=stop)[small]) for stream in range(3)]
    assert uniforms[small] < 2.0**-10
    assert uniforms[small] == pytest.approx(((bits[0] >> 1) << 128 | bits[1] << 64 | bits[2]) * 2.0**-191, rel=2.0**-52)


@given(st.floats(min_value=2.0**-64, max_value=1))
def test_a_coin_compares_one_word_with_the_rate_rounded_down(rate: float) -> None:
    made = coins(UNIFORM_KEY, start=100, stop=300, rate=rate)
    threshold = math.floor(Fraction(rate) * 2**64)
    expected = [word < threshold for word in words(UNIFORM_KEY, stream=0, start=100, stop=300).tolist()]
    assert made.tolist() == expected


def test_a_lower_rate_samples_a_subset() -> None:
    low, high = (coins(UNIFORM_KEY, start=0, stop=100_000, rate=rate) for rate in (0.1, 0.3))
    assert not (low & ~high).any()
    # The key is fixed; fair coins are outside these bounds with probability below 1e-6.
    assert abs(low.mean() - 0.1) < 0.005
    assert abs(high.mean() - 0.3) < 0.0075


@pytest.mark.parametrize("rate", [0.0, 2.0**-65, -0.5, 1.0000001, math.nan, math.inf])
def test_a_rate_outside_0_and_1_is_refused(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate="):
        coins(UNIFORM_KEY, start=0, stop=1, rate=rate)


VARIATES_KEY = subkey(bytes(32), label="test", info=b"variates")
FINE_STEPS = 2.0**28

type Draw = Callable[..., NDArray[np.float64]]
both = pytest.mark.parametrize("draw", [normals, laplaces])


def quantiles(fill: Callable[..., None], u: NDArray[np.float64]) -> NDArray[np.float64]:
    made = u.copy()
    fill(made, made.view(np.int64))
    return made


def uniforms_of_all_sizes(count: int) -> NDArray[np.float64]:
    spread = np.random.default_rng(0)
    branch_points = [1.0, 0.15, math.nextafter(0.15, 0), 1 - 2.0**-53, 2 * math.exp(-25), 2.0**-191]
    return np.concatenate([2.0 ** -spread.uniform(0, 191, count), spread.uniform(0, 1, count), np.array(branch_points)])


def test_normal_magnitudes_are_quantiles_to_the_last_bits() -> None:
    u = uniforms_of_all_sizes(400)
    with mp.workdps(80):
        for made, p in zip(quantiles(fill_normal_magnitudes, u).tolist(), u.tolist(), strict=True):
            exact = mp.mpf(made)
            for _ in range(3):  # three Newton steps from a value whose error is 1e-15
                exact += (mp.erfc(exact / mp.sqrt(2)) - mp.mpf(p)) / (2 * mp.npdf(exact))
            assert abs(mp.mpf(made) - exact) <= 1e-15 * exact


def test_normal_magnitudes_agree_with_scipy() -> None:
    u = uniforms_of_all_sizes(20_000)
    np.testing.assert_allclose(quantiles(fill_normal_magnitudes, u), -special.ndtri(u / 2), rtol=1e-14)


def test_exponentials_are_logarithms_to_the_last_bits() -> None:
    u = uniforms_of_all_sizes(20_000)
    np.testing.assert_allclose(quantiles(fill_exponentials, u), -np.log(u), rtol=4.5e-16)


def test_compiled_loops_round_after_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare compiled loops with plain Python, which neither fuses nor reorders floating-point operations.

    Equal bits show that the compiled loops do not do so either.
    """
    u = uniforms_of_all_sizes(1500)
    compiled: list[Any] = [fill_normal_magnitudes, fill_exponentials]
    expected = [quantiles(fill, u) for fill in compiled]
    for part in ("_minus_log", "_central_magnitude", "_tail_magnitude", "_far_magnitude"):
        monkeypatch.setattr(keystream, part, getattr(keystream, part).py_func)
    for fill, bits in zip(compiled, expected, strict=True):
        np.testing.assert_array_equal(quantiles(fill.py_func, u), bits)


@pytest.mark.parametrize(
    ("draw", "digest"),
    [
        (normals, "26a2969d062964353940123d20fd917dd322b896df2d387f47aedaa2ab343950"),
        (laplaces, "4bac4d89ad3180e8b4dd2273d6d385711bee33c1adfd23aaf967ee871325da27"),
    ],
)
def test_a_key_gives_the_recorded_bits_on_every_machine(draw: Draw, digest: str) -> None:
    made = draw(VARIATES_KEY, start=0, stop=50_000)
    assert hashlib.sha256(made.astype("<f8").tobytes()).hexdigest() == digest


@both
@given(start=st.integers(0, 2**40), length=st.integers(0, 3 * WORDS_PER_TILE), data=st.data())
def test_any_range_can_be_drawn_without_the_others(draw: Draw, start: int, length: int, data: st.DataObject) -> None:
    whole = draw(VARIATES_KEY, start=start, stop=start + length)
    low, high = sorted(data.draw(st.integers(0, length)) for _ in range(2))
    np.testing.assert_array_equal(draw(VARIATES_KEY, start=start + low, stop=start + high), whole[low:high])


@both
def test_keys_give_unrelated_variates(draw: Draw) -> None:
    other = SecretKey(bytes([*VARIATES_KEY.secret[:-1], VARIATES_KEY.secret[-1] ^ 1]))
    first, second = (draw(key, start=0, stop=200_000) for key in (VARIATES_KEY, other))
    # The keys are fixed; independent draws exceed this bound with probability 1e-6.
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.9 / math.sqrt(200_000)


@pytest.mark.parametrize(("draw", "law"), [(normals, stats.norm), (laplaces, stats.laplace)])
def test_variates_follow_their_law(draw: Draw, law: Any) -> None:
    """Test distribution, tail and autocorrelation of 200,000 variates for each of five fixed keys.

    Each test rejects a correct distribution with probability 1e-4.
    """
    for index in range(5):
        made = draw(subkey(bytes(32), label="test", info=bytes([index])), start=0, stop=200_000)
        assert stats.kstest(made, law.cdf).pvalue > 1e-4
        in_tail = np.sum(np.abs(made) > law.isf(5e-4))
        assert stats.binomtest(int(in_tail), made.size, 1e-3).pvalue > 1e-4
        assert abs(np.corrcoef(made[:-1], made[1:])[0, 1]) < 3.9 / math.sqrt(made.size)


def magnitudes_of(u: list[int]) -> NDArray[np.float64]:
    """Return the magnitudes of the normals that belong to uniforms, given as multiples of 2^-191."""
    high, middle, low = (
        np.array([(n >> shift & (2**64 - 1)) << left & (2**64 - 1) for n in u], np.uint64)
        for shift, left in ((128, 1), (64, 0), (0, 0))
    )
    made, _ = uniforms_of(high, lambda places: (middle[places], low[places]))
    return quantiles(fill_normal_magnitudes, made)


@pytest.mark.parametrize("std", [4, 6, 7, 9, 12])
def test_no_integer_is_out_of_reach_in_the_tail(std: int) -> None:
    """At 2^28 steps per std, each of 200 consecutive integers in the tail must be reached.

    With uniforms of 53 bits, most of these integers are not reached.
    """
    integers = np.arange(int(std * FINE_STEPS), int(std * FINE_STEPS) + 200)
    with mp.workdps(80):
        tails = [mp.erfc(mp.mpf(int(n)) / FINE_STEPS / mp.sqrt(2)) for n in integers]
        fine = [int(mp.nint(tail * mp.mpf(2) ** 191)) for tail in tails]
        first, last = (int(mp.floor(tails[i] * mp.mpf(2) ** 53)) + j for i, j in ((-1, 0), (0, 1)))
    reached = np.rint(magnitudes_of(fine) * FINE_STEPS)
    np.testing.assert_array_equal(reached, integers)
    if std >= 6:
        coarse = magnitudes_of([k << 138 for k in range(max(first, 1), last + 1)])
        reached = np.rint(coarse * FINE_STEPS)
        assert np.isin(integers, reached).mean() < {6: 0.5, 7: 0.01}.get(std, 0.006)
