"""The keyed hash of ids is the published one, whatever an array looks like in memory."""

import doctest

import numpy as np
import pyarrow as pa

from storage.datasets import keyed_hash
from storage.datasets.keyed_hash import keyed_hashes

KEY = bytes(range(16))
SECOND = np.random.default_rng(7).bytes(16)
OPENSSL = {
    "": "a3817f04ba25a8e66df67214c7550293",
    "x": "26f4794189a9b59d5b2510f6936caf80",
    "x" * 7: "e20bdebe9af8a4df1ba2110f6526a300",
    "x" * 8: "17ecee367b9c17829878d47505d06711",
    "x" * 15: "37259b16aceaa45038fbcb8472b01f6c",
    "x" * 16: "a71a96f473c4d7ccc4f747bf7f54247f",
    "a" * 300: "1007a2d3dd88a7971ac0f5391d346560",
}
"""By ``openssl mac -macopt hexkey:000102...0f -macopt size:16 SIPHASH``."""


def hexadecimal(ids: pa.Array, *, key: bytes = KEY) -> list[str]:
    return [row.astype("<u8").tobytes().hex() for row in keyed_hashes(ids, key=key)]


def test_it_is_siphash() -> None:
    assert hexadecimal(pa.array(list(OPENSSL))) == list(OPENSSL.values())
    assert doctest.testmod(keyed_hash).failed == 0


def test_an_integer_hashes_as_its_decimal_text_and_no_other_spelling_does() -> None:
    numbers = [7, -3, 0, 2**63 - 1, -(2**63)]
    assert hexadecimal(pa.array(numbers)) == hexadecimal(pa.array(list(map(str, numbers))))
    assert len({*hexadecimal(pa.array(["7", "07", "+7", " 7", "7 ", "7.0", "7\x00"]))}) == 7


def test_slices_large_strings_and_chunks_hash_alike() -> None:
    texts = ["", "b", "\u00e9t\u00e9", "d" * 40]
    expected = hexadecimal(pa.array(texts))
    assert hexadecimal(pa.array(texts, pa.large_string())) == expected
    assert hexadecimal(pa.array(["x", *texts, "y"])[1:-1]) == expected
    assert hexadecimal(pa.array([5, 6, 7])[1:2]) == hexadecimal(pa.array(["6"]))
    assert hexadecimal(pa.array([], pa.string())) == []


def test_another_key_gives_other_hashes() -> None:
    ids = pa.array(range(1000))
    assert not {*hexadecimal(ids)} & {*hexadecimal(ids, key=SECOND)}
    assert len({*hexadecimal(ids)}) == 1000
