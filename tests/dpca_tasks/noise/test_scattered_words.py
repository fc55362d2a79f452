"""Single words are those of the streams that the library of the system makes."""

import numpy as np
import pytest

from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, words
from dpca_tasks.noise.scattered_words import words_at

KEY = SecretKey(bytes(range(32)))
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
