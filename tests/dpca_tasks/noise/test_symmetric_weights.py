"""Weights are one over the root of the number of entries that a packed coordinate stands for."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpca_tasks.noise.symmetric_weights import cube_weights, symmetric_weights


def by_counting(order: int, indices: int) -> NDArray[np.float64]:
    packed = itertools.combinations_with_replacement(range(order), indices)
    return np.array([len(set(itertools.permutations(entry))) ** -0.5 for entry in packed])


@pytest.mark.parametrize(("weights", "indices"), [(symmetric_weights, 2), (cube_weights, 3)])
@given(order=st.integers(1, 12), data=st.data())
def test_any_range_of_weights_is_that_of_counted_entries(
    weights: Callable[..., NDArray[np.float64]], indices: int, order: int, data: st.DataObject
) -> None:
    counted = by_counting(order, indices)
    start, stop = sorted(data.draw(st.integers(0, counted.size)) for _ in range(2))
    np.testing.assert_allclose(weights(order, start=start, stop=stop), counted[start:stop], rtol=2.0**-52, atol=0)


def test_a_far_range_of_a_huge_layout_is_cheap_to_ask_for() -> None:
    order = 10**6
    size = order * (order + 1) // 2
    last = symmetric_weights(order, start=size - 6, stop=size)
    np.testing.assert_allclose(last, [1, math.sqrt(0.5), math.sqrt(0.5), 1, math.sqrt(0.5), 1])
    size = order * (order + 1) * (order + 2) // 6
    np.testing.assert_allclose(
        cube_weights(order, start=size - 4, stop=size), [1, math.sqrt(1 / 3), math.sqrt(1 / 3), 1]
    )
