"""Records of many rows, up to more than a grid has steps, against every query's sensitivity, after all rounding.

A record of m rows is rounded m times, and at about ``4^bits`` rows each of them is as short as the grid: what rounding
does is then as large as the record. On every grid the same records are tried as neighbours of each other, all pairs.
"""

import itertools
from functools import cache

import numpy as np
import pytest

from dpca_tasks.kernels.norms import shared_constant
from dpca_tasks.privacy import sensitivities
from dpca_tasks.records.blocks import CsrBlock, RowBlock
from tests.dpca_tasks.queries import rating_queries
from tests.dpca_tasks.queries.query_table import (
    SAMPLED,
    TABLE,
    D,
    bounds_of,
    centred_moment,
    energies_around_a_mean,
    full,
    moment_product,
    norm_histogram,
    product_of_halves,
    record_mean,
    replaced_product_of_halves,
    second_moment,
    shifted_along_all,
    shifted_moment,
)

FINEST = 14
AROUND_A_MEAN = (shifted_moment, shifted_along_all, energies_around_a_mean)
"""Queries whose finest grid is a bit coarser."""
IN_TESTS = (*range(1, 7), 9, 13, 14)
"""Grids of `make test`: all on which a record of `LONGEST` rows may have more rows than steps, and three finer ones."""
LONGEST = 3000
SHORTEST = [(1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (-1, 0, 1, 0), (0, -1, 1, 0), (1, 1, 1, 1)]
PARTS = (0.25, 0.5, 0.8, 0.999, 1.0, 1.05)


def sizes(query):
    """Numbers of rows near every threshold of a grid."""
    turning = getattr(query, "longest", 1)
    near = [1, 2, 5, turning, turning + 1, *(round(part * 4**query.bits) for part in PARTS)]
    return sorted({size for size in near if 1 <= size <= LONGEST})


def rows_of(size, bits):
    """One row of a record of equal rows: at the bound, beyond it, just rounded up, and of one or two steps."""
    length, step = size**-0.5, 2.0**-bits
    directions = [np.array(point) / np.linalg.norm(point) for point in SHORTEST]
    yield from (scale * length * direction for direction in directions for scale in (1.0, 9.0))
    yield from (np.array(point) * step for point in SHORTEST)
    yield from ((0.5 + 2.0**-30) * step * np.array(point) for point in SHORTEST)


def block_of(row, size, *, alone=False):
    """A record of ``size`` equal rows; or of one such row before rows that are empty."""
    stored = 1 if alone else size
    lengths = np.where(np.arange(size) < stored, D, 0)
    return CsrBlock(
        values=np.tile(row, stored),
        indices=np.tile(np.arange(D, dtype=np.int32), stored),
        row_ptr=np.concatenate([[0], np.cumsum(lengths)]),
        record_ptr=np.array([0, size]),
        first_record=0,
    )


@cache
def contributions(build, relation, bits):
    """What records add, and what emptied ones do: all of the table's records on one grid."""
    query = build(relation, bits)
    added, emptied = [], [np.zeros(query.layout.size, np.int64)]
    for size in sizes(query):
        blocks = [block_of(row, size) for row in rows_of(size, bits)]
        blocks += [block_of(scale * np.eye(D)[0], size, alone=True) for scale in (0.99, 9.0)]
        added += [query.map(query.grid(block)) for block in blocks]
        emptied.append(query.map(query.grid(block_of(np.zeros(D), size))))
    return query, np.unique(added, axis=0), np.unique(emptied, axis=0)


def furthest(query, norm, some, others):
    """The longest way between any of some contributions and any of others."""
    if norm == "l1":
        points = [packed / query.steps_per_unit for packed in (some, others)]
        return np.abs(points[0][:, None] - points[1]).sum(axis=-1).max()
    if norm == "scores":
        points = [np.stack([query.matrix(row) for row in packed]) for packed in (some, others)]
    else:
        points = [np.stack([full(query, row) for row in packed]) for packed in (some, others)]
    moved = points[0][:, None] - points[1]
    if norm == "l2":
        return np.sqrt(np.square(moved).sum(axis=tuple(range(2, moved.ndim)))).max()
    values = np.linalg.eigvalsh(moved)
    return (np.maximum(values, 0).sum(axis=-1) + np.maximum(-values, 0).sum(axis=-1)).max()


def attacked(query, relation, norm, added, emptied):
    nothing = np.zeros_like(emptied[:1])
    others = {"add_remove": nothing, "zero_out": emptied, "replace_one": np.vstack([added, emptied])}
    some = np.vstack([added, emptied]) if relation == "add_remove" else added
    return furthest(query, norm, some, others[relation])


def test_every_row_of_a_sum_that_is_asked_is_attacked():
    """Of eigenpairs the movement is proved, and attacked by the audit.

    Statistics of items are of users of one row, and attacked in `test_item_statistics`.
    """
    attacked = {build("zero_out", 12).kind for build in TABLE}
    names = ("statistics", "totals", "averages", "moment", "scores")
    of_ratings = [getattr(rating_queries, name) for name in names]
    attacked |= {build("zero_out").kind for build in of_ratings}
    present = {row.query for row in sensitivities.TABLE}
    assert {query for query in present if not query.startswith("Eigensolver")} == attacked
    assert all(TABLE.values())


@pytest.mark.parametrize(
    ("build", "bits"),
    [
        pytest.param(build, bits, marks=() if bits in IN_TESTS else pytest.mark.audit_only)
        for build in TABLE
        for bits in range(1, FINEST + (build not in AROUND_A_MEAN))
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_no_record_of_many_rows_moves_a_sum_beyond_its_sensitivity(build, bits):
    """A sampled record is replaced through the empty one; a report covers any two records, whatever the relation."""
    for relation, norm in itertools.product(bounds_of(build), TABLE[build]):
        query, added, emptied = contributions(build, relation, bits)
        halved = build in SAMPLED and relation == "replace_one"
        moved = attacked(query, "zero_out" if halved else relation, norm, added, emptied)
        assert moved <= query.sensitivity(norm) * (1 + 1e-12), (relation, norm)


@pytest.mark.parametrize("bits", range(1, FINEST + 1))
def test_a_histogram_of_any_grid_counts_a_record_once(bits):
    for grid in (bits, FINEST + bits):
        query, added, emptied = contributions(norm_histogram, "replace_one", grid)
        assert attacked(query, "replace_one", "l1", added, emptied) <= 2.0
        assert set(added.sum(axis=1)) <= {0, 2**grid}


def constant_moved(build, norm, bits):
    """All records of equal rows that a grid allows, with the constants of so many rows, as multiples of one row."""
    query = build("zero_out", bits)
    square = 4**bits
    added: list[np.ndarray] = []
    emptied = [np.zeros(query.layout.size, np.int64)]
    for size in (1, 3, *(round(part * square) for part in (0.1, *PARTS))):
        constant = shared_constant(square // 4, size)
        assert size * int(constant) ** 2 <= square // 4 < size * (int(constant) + 1) ** 2
        longest = int((3 * square / 4 / size) ** 0.5)
        for length in {0, min(longest, 1), longest // 2, longest}:
            row = RowBlock(
                values=np.array([length, constant], np.int32),
                indices=np.array([0, D], np.int32),
                row_ptr=np.array([0, 2]),
                record_ptr=np.array([0, 1]),
                first_record=0,
                n_features=D + 1,
                bits=bits,
            )
            (added if length else emptied).append(size * query.map(row))
    return attacked(query, "zero_out", norm, np.array(added), np.array(emptied)), query.sensitivity(norm)


@pytest.mark.parametrize("bits", range(5, FINEST + 1))
@pytest.mark.parametrize(
    ("build", "norm"),
    [(build, norm) for build in (centred_moment, record_mean) for norm in TABLE[build]],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_an_emptied_record_of_any_length_keeps_no_more_than_its_constants(build, norm, bits):
    """Any two numbers of rows: the constants of one do not cover those of the other, and no bound needs that."""
    moved, bound = constant_moved(build, norm, bits)
    assert moved <= bound * (1 + 1e-12)
    assert moved > 0.4 * bound


@pytest.mark.parametrize("size", [65_536, 65_537, 209_715, 261_881, 262_144, 262_200])
def test_an_emptied_record_of_as_many_rows_as_the_grid_has_steps_is_within_the_bound(size):
    """On the grid of 20 features at epsilon 0.01: beside a full row, constants were rounded away that it kept alone."""
    query = centred_moment("zero_out", 9)
    full, emptied = (
        query.map(query.grid(block_of(scale * np.eye(D)[0], size, alone=True)))[None] for scale in (1.0, 0.0)
    )
    for norm in TABLE[centred_moment]:
        assert furthest(query, norm, full, emptied) <= query.sensitivity(norm)
    assert full[0, -1] == emptied[0, -1]


def test_rounded_scores_of_many_rows_are_why_the_products_differ():
    """By `MomentProduct` two records are nearly sqrt 3 apart on any grid; rounded as one product, sqrt 2 at most."""
    for bits in (4, 5):
        found = {}
        for build in (product_of_halves, replaced_product_of_halves):
            query, added, _ = contributions(build, "replace_one", bits)
            found[build] = furthest(query, "l2", added, added)
        assert found[product_of_halves] > 1.7
        assert found[replaced_product_of_halves] < 1.45


@pytest.mark.parametrize("bits", range(9, FINEST + 1))
def test_the_sensitivity_of_replaced_products_is_near_what_is_attained(bits):
    for width, attained in ((1, 1.0), (2, 2**0.5)):
        directions = np.eye(D, width, dtype=np.int64) << 24
        built = type(replaced_product_of_halves("replace_one", bits))(
            directions=directions, n_features=D, clip_norm=1.0, relation="replace_one", bits=bits
        )
        records = [built.map(built.grid(block_of(axis, 1))) for axis in np.eye(D)]
        moved = furthest(built, "l2", np.array(records), np.array(records))
        assert moved == pytest.approx(attained, rel=1e-6)
        assert moved <= built.sensitivity("l2") <= attained + 0.017


def test_longer_directions_and_grids_of_few_steps_have_the_bound_of_the_triangle():
    fine = replaced_product_of_halves("replace_one", 12)
    kind, facts = type(fine), {"n_features": D, "clip_norm": 1.0, "relation": "replace_one"}
    assert kind(directions=fine.directions, bits=1, **facts).sensitivity("l2") == 2.0
    same = np.full((D, 2), 1 << 23)  # two equal columns of norm 1: as long as sqrt 2
    assert kind(directions=same, bits=12, **facts).sensitivity("l2") == 2.0
    assert moment_product("replace_one", 12).sensitivity("l2") == 2.0
    assert second_moment("replace_one", 12).sensitivity("l2") < 1.4143
