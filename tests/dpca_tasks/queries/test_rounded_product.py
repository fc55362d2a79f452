"""The product with public directions, against plain linear algebra."""

import dataclasses

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum


def query(directions, **changes):
    facts = {"n_features": len(directions), "clip_norm": 2.0, "relation": "add_remove", "bits": 14}
    return MomentProduct(directions=on_direction_grid(directions), **{**facts, **changes})


def test_it_agrees_with_the_float_product_up_to_the_grid():
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((300, 20)) / 8
    directions = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    asked = query(directions)
    found = exact_sum(ArrayBlocks(rows), asked).reshape(20, 3) / asked.steps_per_unit * asked.unit
    np.testing.assert_allclose(found, rows.T @ (rows @ directions), atol=300 * asked.unit * 2**-14)


def test_directions_outside_the_unit_range_or_of_another_height_are_refused():
    with pytest.raises(InvalidInput, match="magnitude at most 1"):
        query(np.full((3, 1), 1.5))
    least = np.full((3, 1), np.iinfo(np.int64).min)  # whose magnitude is no int64
    with pytest.raises(InvalidInput, match="magnitude at most 1"):
        dataclasses.replace(query(np.eye(3)), directions=least)
    with pytest.raises(InvalidInput, match="rows"):
        query(np.eye(3), n_features=4)


def test_the_digest_covers_the_directions():
    directions = np.eye(3)[:, :2]
    other = directions.copy()
    other[0, 0] -= 2.0**-24
    assert query(directions).digest() == query(directions).digest()
    assert query(directions).digest() != query(other).digest()
