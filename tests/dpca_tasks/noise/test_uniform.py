"""Uniforms keep their significant bits at every magnitude; coins never come up more often than they may."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import subkey, words
from dpca_tasks.noise.uniform import coins, signed_uniforms, uniforms_of

KEY = subkey(bytes(32), label="test", info=b"uniform")


def from_bits(bits: int) -> tuple[float, float]:
    """The uniform and the sign that the kernel makes of 191 bits of u followed by a sign bit."""
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
    uniforms, signs = signed_uniforms(KEY, start=start, stop=stop)
    high = words(KEY, stream=0, start=start, stop=stop)
    np.testing.assert_array_equal(signs, np.where(high % 2, -1.0, 1.0))
    np.testing.assert_allclose(uniforms, (high >> np.uint64(1)) * 2.0**-63, rtol=0, atol=2.0**-62)
    small = int(np.argmin(uniforms))
    bits = [int(words(KEY, stream=stream, start=start, stop=stop)[small]) for stream in range(3)]
    assert uniforms[small] < 2.0**-10
    assert uniforms[small] == pytest.approx(((bits[0] >> 1) << 128 | bits[1] << 64 | bits[2]) * 2.0**-191, rel=2.0**-52)


@given(st.floats(min_value=2.0**-64, max_value=1))
def test_a_coin_compares_one_word_with_the_rate_rounded_down(rate: float) -> None:
    made = coins(KEY, start=100, stop=300, rate=rate)
    threshold = math.floor(Fraction(rate) * 2**64)
    expected = [word < threshold for word in words(KEY, stream=0, start=100, stop=300).tolist()]
    assert made.tolist() == expected


def test_a_lower_rate_samples_a_subset() -> None:
    low, high = (coins(KEY, start=0, stop=100_000, rate=rate) for rate in (0.1, 0.3))
    assert not (low & ~high).any()
    # Fixed key; a fair draw is out of these bounds with probability below 1e-6.
    assert abs(low.mean() - 0.1) < 0.005
    assert abs(high.mean() - 0.3) < 0.0075


@pytest.mark.parametrize("rate", [0.0, 2.0**-65, -0.5, 1.0000001, math.nan, math.inf])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate="):
        coins(KEY, start=0, stop=1, rate=rate)
