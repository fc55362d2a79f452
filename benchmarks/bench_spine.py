"""The main job without its noise: rows into a snapshot, and a snapshot into a second moment and its eigenvectors.

Peers hold the whole matrix in memory; what is timed against them end to end reads it from disk. Bars are set where a
peer does the same work, and are stated in `benchmarks/README.md`.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.conftest import Comparison
from benchmarks.inputs import Input, spine_inputs
from dpca_tasks.blocks import ArrayBlocks
from dpca_tasks.exact_sum import exact_sum
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries.second_moment import SecondMoment

BITS = 14
GRAM_BARS = {"a9a-like": 9.0, "mnist": 6.0, "syn": 4.0}


@pytest.fixture(scope="module", params=spine_inputs(), ids=lambda spine_input: spine_input.name)
def spine_input(request: pytest.FixtureRequest) -> Input:
    """Each input in turn."""
    declared: Input = request.param
    return declared


@pytest.fixture(scope="module")
def rows(spine_input: Input, *, toy: bool) -> sparse.csr_array:
    """The rows of the input, in memory."""
    return spine_input.rows(toy=toy)


def second_moment(declared: Input) -> SecondMoment:
    return SecondMoment(
        n_features=declared.n_features, clip_norm=declared.clip_norm, relation="add_remove", bits=BITS
    )


def matrix(query: SecondMoment, total: NDArray[np.int64]) -> NDArray[np.float64]:
    return unpack_symmetric(total * np.float64(query.unit / query.steps_per_unit), query.n_features)


def assert_same_matrix(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3 * np.abs(theirs).max())


def bench_gram(spine_input: Input, rows: sparse.csr_array, compare: Comparison) -> None:
    query = second_moment(spine_input)
    source = ArrayBlocks(rows, block_records=20_000)
    blocks = [query.grid(source.read(block)) for block in range(source.n_blocks)]

    def gram() -> Any:
        return sum(query.map(block) for block in blocks)

    def product() -> Any:
        return rows.T @ rows

    with threadpool_limits(limits=1):
        results = compare(
            gram,
            {"scipy-product": product},
            bars={"scipy-product": GRAM_BARS[spine_input.name]},
        )
    assert_same_matrix(matrix(query, results["ours"]), results["scipy-product"].toarray())
