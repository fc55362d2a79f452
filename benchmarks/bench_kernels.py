"""Speed of the compiled kernels on rows in memory, on one core.

The kernels round rows to the integer grid (gridding), and sum products of gridded rows. The peers are SciPy's products,
the same loop on unrounded floats, the BLAS of this machine, and additions at random positions of the result array.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg.blas import dsyrk

from benchmarks.conftest import Comparison, Measurement
from benchmarks.inputs import FILLED, WIDE, Input
from dpca_tasks.kernels.dense_products import add_dense_outer_products
from dpca_tasks.kernels.outer_products import add_outer_products
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks, RowBlock
from dpca_tasks.threads import one_thread

BITS = 14
BLOCK_VALUES = 1 << 20  # stored values per block, the same as in blocks written by an ingest
GRAM_BARS = {"a9a-like": 8.0, "mnist": 5.0, "syn": 3.5}
SCATTER_BAR = 0.60
DSYRK_BAR = 0.65
PACKED_BAR = 1.2
EXACTNESS_LIMIT = 1.15
GRID_LIMIT = 8.0  # bar: nanoseconds of processor time to grid one stored value
PRODUCT_BARS = {10: 1.3, 20: 1.3, 50: 1.3}
GRID_ROUNDS = 5


@pytest.fixture(scope="module")
def rows(spine_input: Input, *, toy: bool) -> sparse.csr_array:
    """Return all rows of the input as a sparse matrix in memory."""
    return spine_input.rows(toy=toy)


@pytest.fixture(scope="module")
def blocks(spine_input: Input, rows: sparse.csr_array) -> list[RowBlock]:
    """Round all rows to the integer grid, and return them as blocks."""
    return on_grid(second_moment(spine_input), rows)


def bench_gram(spine_input: Input, rows: sparse.csr_array, blocks: list[RowBlock], compare: Comparison) -> None:
    query = second_moment(spine_input)
    sizes = np.diff(rows.indptr).astype(np.int64)
    additions = int((sizes * (sizes + 1) // 2).sum())
    places = np.random.default_rng(1).integers(0, query.layout.size, BLOCK_VALUES).astype(np.uint32)
    values = np.ones(places.size)
    floats = [rows.data[start : start + block.values.size] for start, block in zip(starts(blocks), blocks, strict=True)]

    def on_floats() -> NDArray[np.float64]:
        total: Any = np.zeros(query.layout.size)  # the compiled loop also accepts an array of floats
        for block, data in zip(blocks, floats, strict=True):
            add_outer_products(data, block.indices, block.row_ptr, query.n_features, total)
        return np.asarray(total)

    def at_random() -> NDArray[np.float64]:
        total = np.zeros(query.layout.size)
        for start in range(0, additions, places.size):
            add_at(places[: additions - start], values, total)
        return total

    with one_thread():
        results = compare(
            lambda: added(query, blocks),
            {"scipy-product": lambda: rows.T @ rows, "floats": on_floats, "random-additions": at_random},
            bars={"scipy-product": GRAM_BARS[spine_input.name], "random-additions": SCATTER_BAR},
            limits={"floats": EXACTNESS_LIMIT},
        )
    check_same(in_data_units(query, results["ours"]), results["scipy-product"].toarray())
    assert results["random-additions"].sum() == additions


def bench_dense_gram(compare: Comparison, *, toy: bool) -> None:
    query = second_moment(WIDE)
    rows = WIDE.rows(toy=toy).toarray()
    blocks = on_grid(query, rows)
    columns = np.asfortranarray(rows.T)
    with one_thread():
        results = compare(
            lambda: added(query, blocks), {"dsyrk": lambda: dsyrk(1.0, columns)}, bars={"dsyrk": DSYRK_BAR}
        )
    check_same(np.triu(in_data_units(query, results["ours"])), results["dsyrk"])


@pytest.mark.parametrize("declared", FILLED, ids=lambda declared: declared.name)
def bench_packed_gram(declared: Input, compare: Comparison, *, toy: bool) -> None:
    """Compare the product of packed rows with the two other products of dpca, on the same rows.

    A release uses the packed product if the dataset declares its density, and one of the two others otherwise.
    """
    query = second_moment(declared)
    blocks = on_grid(query, declared.rows(toy=toy), density=declared.density)

    def by(kernel: Callable[..., None]) -> NDArray[np.int64]:
        total = np.zeros(query.layout.size, np.int64)
        for block in blocks:
            kernel(block.values, block.indices, block.row_ptr, query.n_features, total)
        return total

    others = {"loop": partial(by, add_outer_products), "blas": partial(by, add_dense_outer_products)}
    with one_thread():
        results = compare(lambda: added(query, blocks), others, bars=dict.fromkeys(others, PACKED_BAR))
    for other in others:
        np.testing.assert_array_equal(results["ours"], results[other])


@pytest.mark.parametrize("width", PRODUCT_BARS)
def bench_moment_product(
    spine_input: Input, rows: sparse.csr_array, blocks: list[RowBlock], width: int, compare: Comparison
) -> None:
    directions = np.linalg.qr(np.random.default_rng(2).standard_normal((spine_input.n_features, width)))[0]
    query = MomentProduct(
        n_features=spine_input.n_features,
        clip_norm=spine_input.clip_norm,
        relation="add_remove",
        bits=BITS,
        directions=on_direction_grid(directions),
    )
    with one_thread():
        results = compare(
            lambda: added(query, blocks),
            {"scipy-products": lambda: rows.T @ (rows @ directions)},
            bars={"scipy-products": PRODUCT_BARS[width]},
        )
    ours = results["ours"].reshape(directions.shape) * query.unit / query.steps_per_unit
    check_same(ours, results["scipy-products"], within=1e-2)


def bench_gridding(spine_input: Input, rows: sparse.csr_array, measure: Measurement) -> None:
    query = second_moment(spine_input)
    on_grid(query, rows[: rows.shape[0] // 10])
    source = ArrayBlocks(rows, block_records=block_records(rows))
    seconds = []
    for _ in range(GRID_ROUNDS):
        start = time.process_time()
        for block in range(source.n_blocks):
            query.grid(source.read(block))
        seconds.append(time.process_time() - start)
    measure("ns-per-value", float(np.median(seconds)) / rows.nnz * 1e9, at_most=GRID_LIMIT)


@njit(cache=True)
def add_at(places: NDArray[np.uint32], values: NDArray[np.float64], total: NDArray[np.float64]) -> None:
    """Add each value to the total at its position, the minimal work of any sum into an array of this size."""
    for at in range(places.size):
        total[np.uint64(places[at])] += values[at]


def second_moment(declared: Input) -> SecondMoment:
    return SecondMoment(n_features=declared.n_features, clip_norm=declared.clip_norm, relation="add_remove", bits=BITS)


def block_records(rows: sparse.csr_array | NDArray[np.float64]) -> int:
    values = rows.nnz if isinstance(rows, sparse.csr_array) else rows.size
    return max(1, BLOCK_VALUES * int(rows.shape[0]) // int(values))


def on_grid(
    query: RowSum, rows: sparse.csr_array | NDArray[np.float64], *, density: float | None = None
) -> list[RowBlock]:
    source = ArrayBlocks(rows, block_records=block_records(rows), density=density)
    return [query.grid(source.read(block)) for block in range(source.n_blocks)]


def starts(blocks: Sequence[RowBlock]) -> list[int]:
    """Return, for each block, the index of its first stored value among the stored values of all blocks."""
    ends = np.cumsum([block.values.size for block in blocks])
    return [0, *ends[:-1].tolist()]


def added(query: RowSum, blocks: Sequence[RowBlock]) -> NDArray[np.int64]:
    total = np.zeros(query.layout.size, np.int64)
    for block in blocks:
        query.add(block, total)
    return total


def in_data_units(query: SecondMoment, total: NDArray[np.int64]) -> NDArray[np.float64]:
    return unpack_symmetric(total * np.float64(query.unit / query.steps_per_unit), query.n_features)


def check_same(ours: NDArray[np.float64], theirs: NDArray[np.float64], *, within: float = 1e-3) -> None:
    """Check that two results agree up to the rounding to the grid, whose step is 2^-14 of the clip norm."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=within * np.abs(theirs).max())
