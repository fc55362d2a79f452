"""As many shares as the threshold give a secret back, and fewer fit every secret."""

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput, MessageRefused
from dpca_tasks.sites.secure_sum.shamir import PRIME, recover, split


@given(secret=st.binary(min_size=32, max_size=32), places=st.integers(1, 12), data=st.data())
def test_any_shares_as_many_as_the_threshold_give_the_secret(secret, places, data):
    threshold = data.draw(st.integers(1, places))
    shares = split(secret, threshold=threshold, places=places)
    chosen = data.draw(st.permutations(range(places)))[:threshold]
    assert recover({place + 1: shares[place] for place in chosen}) == secret


def test_one_share_too_few_fits_every_secret():
    """Through t - 1 shares and any secret there is one polynomial of degree t - 1, so each secret is as likely."""
    shares = split(os.urandom(32), threshold=3, places=3)
    for secret in (0, 1, 2**256 - 1):
        # The third share that would go with this secret, by interpolation at 0, 1, 2.
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
    for shares in ({1: one[0], 2: one[1]}, {1: one[0], 2: one[1], 3: other[2]}):
        found = b""
        with contextlib.suppress(MessageRefused):  # of 297 values in 2^256
            found = recover(shares)
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
    with pytest.raises(InvalidInput, match="1 <= threshold <= places"):
        split(bytes(size), threshold=threshold, places=places)
