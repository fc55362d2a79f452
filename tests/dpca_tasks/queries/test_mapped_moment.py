"""Moments of records under a public map: mapped records are bounded in exact integers, independent of their block.

The attack tries 120,000 pairs of records under random maps, means, norms and grids, and compares integers. No change
may exceed the stated sensitivity, and each bound must be attained.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.mapped_records import map_rows, write_rows
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries.mapped_moment import FIRST_CENTRED, LEAST_NORM, NEXT, WIDEST, MappedMoment, norm_of
from dpca_tasks.queries.recentred_moment import on_shift_grid
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.query_table import map_of

RELATIONS = ("add_remove", "zero_out", "replace_one")
D = 6
RNG = np.random.default_rng(20261127)
ROTATION = np.linalg.qr(RNG.standard_normal((D, D)))[0]
MEAN = np.array([0.5, -0.3, 0.2, 0.1, 0.0, 0.4])
ROWS = MEAN + RNG.standard_normal((120, D)) * np.array([0.6, 0.3, 0.1, 0.1, 0.1, 0.1])
KEPT = [0.1, 0.3]


def query(**changes: Any) -> MappedMoment:
    facts: dict[str, Any] = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "bits": 13}
    return MappedMoment(**facts | map_of(ROTATION[:, :2], KEPT) | {"norm": norm_of(0.4)} | changes)


def images(requested, rows, record_rows=None, **others):
    """Return the mapped, clipped and gridded rows of all records as one integer array."""
    source = ArrayBlocks(rows, record_rows=record_rows, **others)
    blocks = [requested.grid(source.read(at)) for at in range(source.n_blocks)]
    return np.vstack([strip for block in blocks for strip in requested.images(block)]).astype(np.int64)


def trial_query(rng, relation):
    """Return a query with a random map, orthonormal or not, and random mean, norm, grid and constant part."""
    d, bits = int(rng.integers(2, 31)), int(rng.integers(4, 15))
    width = int(rng.integers(1, d + 1))
    directions = np.linalg.qr(rng.standard_normal((d, width)))[0]
    kept = np.exp(rng.uniform(np.log(0.01), np.log(rng.choice([1.0, 1.9])), width))
    if rng.random() < 0.3:
        directions = rng.standard_normal((d, width))
        directions /= max(np.linalg.norm(directions, axis=0).max(), np.linalg.norm(directions, axis=1).max())
    mean = rng.standard_normal(d)
    shift = on_shift_grid(mean / np.linalg.norm(mean) * rng.choice([0.0, 1.0, rng.uniform()]))
    made = MappedMoment(
        n_features=d,
        clip_norm=1.0,
        relation=relation,
        bits=bits,
        norm=norm_of(float(np.exp(rng.uniform(-6.0, 0.7)))),
        shift=shift if rng.random() < 0.6 else None,
        part=int(rng.choice([0, FIRST_CENTRED, NEXT])),
        **map_of(directions, kept),
    )
    return made, directions


def trial_records(rng, n_records, record_rows, directions):
    """Return records at, below and above the bound: dense, along axes, or along a direction of the map."""
    d = len(directions)
    rows = rng.standard_normal((n_records, record_rows, d))
    axes = np.eye(d)[rng.integers(0, d, (n_records, record_rows))]
    along = np.broadcast_to(directions[:, 0] * rng.choice([-1.0, 1.0], (n_records, 1, 1)), rows.shape)
    kind = rng.integers(0, 3, (n_records, 1, 1))
    rows = np.choose(kind, [rows, axes, along])
    length = np.sqrt((rows**2).sum(axis=(1, 2), keepdims=True))
    return rows / length * rng.choice([1.0, 1.0, 0.3, 5.0], (n_records, 1, 1))


def distances(one, other):
    """Return ``|Z^T Z - V^T V|^2`` for pairs of records Z and V as exact integers, below ``2^58`` for 28 bits."""

    def squares(left, right):
        return (np.einsum("nid,njd->nij", left, right) ** 2).sum(axis=(1, 2))

    return squares(one, one) + squares(other, other) - 2 * squares(one, other)


def attack(rng, *, queries, pairs):
    """Return the largest change relative to the sensitivity, and to one clip norm squared, by relation and query."""
    worst: dict[tuple[str, str], float] = {}
    for relation in RELATIONS:
        for _ in range(queries):
            requested, directions = trial_query(rng, relation)
            record_rows = int(rng.integers(1, 5))
            records = trial_records(rng, 2 * pairs, record_rows, directions)
            emptied = np.zeros((1, record_rows, requested.n_features))
            flat = np.concatenate([records, emptied]).reshape(-1, requested.n_features)
            made = images(requested, flat, [record_rows] * (2 * pairs + 1)).reshape(2 * pairs + 1, record_rows, -1)
            assert ((made**2).sum(axis=(1, 2)) <= 4**requested.bits).all()
            mine, others = made[:pairs], made[pairs:-1]
            gone = {"add_remove": np.zeros_like(mine), "replace_one": others}.get(relation, made[-1:].repeat(pairs, 0))
            moved = int(distances(mine, gone).max())
            declared = 2 if requested.sensitivity("l2") > 1.0 else 1
            assert moved <= declared * requested.steps_per_unit**2, (relation, requested.kind)
            around = "origin" if requested.shift is None else "mean"
            key = relation, around
            worst[key] = max(worst.get(key, 0.0), np.sqrt(moved) / requested.steps_per_unit)
    return worst


def test_no_record_moves_a_mapped_moment_beyond_its_sensitivity_and_some_attain_it():
    worst = attack(np.random.default_rng(49), queries=80, pairs=500)
    for around, zero_out in (("origin", 1.0), ("mean", np.sqrt(2.0))):
        attained = {"add_remove": 1.0, "replace_one": np.sqrt(2.0), "zero_out": zero_out}
        for relation, bound in attained.items():
            assert bound * 0.98 < worst[relation, around] <= bound * (1 + 1e-12), (relation, around)


@pytest.mark.audit_only
def test_a_longer_attack_finds_no_record_beyond_the_sensitivity():
    attack(np.random.default_rng(50), queries=1000, pairs=1000)


def test_the_bound_holds_after_rounding_on_the_coarsest_grids():
    """Map records on grids of 1 to 4 bits: the norm must be bounded after rounding.

    With so few steps, rounding alone can exceed the bound.
    """
    for bits, part in itertools.product((1, 2, 3, 4), (0, FIRST_CENTRED, NEXT)):
        requested = query(bits=bits, part=part, norm=norm_of(0.5))
        made = images(requested, ROWS * 3, [3] * 40).reshape(40, 3, -1)
        assert ((made**2).sum(axis=(1, 2)) <= 4**bits).all()
        assert made.any()


def clipped_images(requested, records):
    """Return the mapped records in floating point, in clip norms: clipped, centered, mapped, and clipped again."""
    t = np.eye(D) - requested.reductions @ requested.directions.T * 2.0**-24
    mean = np.zeros(D) if requested.shift is None else requested.shift * 2.0**-16
    norm, found = float(requested.norm[0]), []
    for record in records:
        rows = record / max(1.0, np.linalg.norm(record)) - mean / np.sqrt(len(record))
        rows = rows @ t.T
        rows = rows * min(1.0, norm / np.linalg.norm(rows))
        if requested.part:
            constant = norm / np.sqrt(requested.part - 1) / np.sqrt(len(record))
            rows = np.column_stack([rows, np.full(len(record), constant)])
        found.append(rows)
    return np.vstack(found)


@pytest.mark.parametrize("part", [0, FIRST_CENTRED, NEXT])
@pytest.mark.parametrize("mean", [None, MEAN], ids=["origin", "mean"])
@pytest.mark.parametrize("counts", [[1] * 120, [1, 5] * 20, [4] * 30], ids=["rows", "mixed", "records"])
def test_images_are_centred_mapped_and_then_clipped_as_whole_records(counts, mean, part):
    """Compare mapped records of one and several rows with floating point, within the steps of all grids."""
    requested = query(part=part, shift=None if mean is None else on_shift_grid(mean))
    made = images(requested, ROWS, counts) * np.sqrt(requested.unit) / 2.0**requested.bits
    expected = clipped_images(requested, np.split(ROWS, np.cumsum(counts)[:-1]))
    assert np.linalg.norm(expected, axis=1).max() > 0.2
    np.testing.assert_allclose(made, expected, atol=1e-3)


@pytest.mark.parametrize("record_rows", [1, 3])
def test_count_and_mean_follow_from_the_constants_however_records_are_split(record_rows):
    """Compute count and mean from the constants: they must not depend on how records are split into rows."""
    rows = np.repeat(ROWS[:20] / np.sqrt(record_rows), record_rows, axis=0)
    requested = query(part=NEXT, shift=on_shift_grid(MEAN), norm=norm_of(2.0))
    source = ArrayBlocks(rows, record_rows=[record_rows] * 20)
    found = unpack_symmetric(exact_sum(source, requested) / requested.steps_per_unit, D + 1) * requested.unit
    assert found[-1, -1] / requested.constant**2 == pytest.approx(20, rel=1e-3)
    expected = clipped_images(query(part=0, shift=requested.shift, norm=norm_of(2.0)), list(ROWS[:20, None]))
    np.testing.assert_allclose(found[:-1, -1] / requested.constant / 20, expected.mean(axis=0), atol=1e-3)


def mapped_rows(requested, q, shares):
    """Return mapped rows before they are clipped, in steps of ``2^-42``."""
    cells, (n_rows, d) = np.empty(q.shape), q.shape
    columns = np.tile(np.arange(d, dtype=np.int32), n_rows)
    write_rows(q.ravel(), columns, np.arange(n_rows + 1) * d, shares, requested.shift.astype(np.float64), cells)
    map_rows(cells, requested.directions.astype(np.float64), requested.reductions.astype(np.float64))
    return cells


def test_an_image_does_not_depend_on_its_block():
    """Compare the bits of mapped rows computed alone, with 6 and with 2,999 other rows.

    With floating-point BLAS, the last bits of most rows depend on the number of rows computed together.
    """
    rng = np.random.default_rng(8)
    d, n_rows = 300, 3000
    directions = np.linalg.qr(rng.standard_normal((d, 40)))[0]
    rows = rng.random((n_rows, d))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    shift, kept = on_shift_grid(rows.mean(axis=0)), np.exp(rng.uniform(-3, 0, 40))
    requested = query(n_features=d, bits=14, shift=shift, **map_of(directions, kept))
    q, shares = requested.grid(ArrayBlocks(rows).read(0)).values.reshape(n_rows, d), np.full(n_rows, 9459.0)
    whole = mapped_rows(requested, q, shares)
    for size in (1, 7):
        cut = [mapped_rows(requested, q[at : at + size], shares[at : at + size]) for at in range(0, n_rows, size)]
        np.testing.assert_array_equal(whole, np.vstack(cut))
    np.testing.assert_array_equal(images(requested, rows), images(requested, rows, block_records=7))


def test_all_products_are_exact_at_the_bounds():
    """Compare products at the largest allowed map, mean and records with Python integers."""
    rng = np.random.default_rng(3)
    d, n_records = WIDEST, 20
    signs = rng.choice([-1, 1], (2, d, d))
    # rows of the map have norm 4152; the bound is 4160
    both = {"directions": signs[0] * 519, "reductions": signs[1] * 519}
    shift = on_shift_grid(-rng.uniform(0.5, 1.0, d))  # entries of the mean are odd, so that scores must be rounded down
    requested = query(n_features=d, bits=14, norm=norm_of(2.0), shift=shift, **both)
    rows = rng.choice([-1.0, 1.0], (3 * n_records, d)) / np.sqrt(3 * d)
    rows[:3] = 1 / np.sqrt(3 * d)
    q = requested.grid(ArrayBlocks(rows, record_rows=[3] * n_records).read(0)).values.reshape(len(rows), d)
    share = 9459  # share of a record of three rows: 2^14 / sqrt(3), rounded down
    z = q.astype(object) * 2**16 - share * shift.astype(object)
    scores = np.vectorize(lambda score: score // 2**12, otypes=[object])(z.dot(both["directions"].astype(object)))
    y = z * 2**12 - scores.dot(both["reductions"].T.astype(object))
    found = mapped_rows(requested, q, np.full(len(rows), float(share)))
    assert [int(entry) for entry in found.ravel()] == list(y.ravel())
    length = np.sqrt((found**2).reshape(n_records, -1).sum(axis=1)).repeat(3)
    expected = found * (2.0**14 / np.maximum(length, 2.0 * 2**42))[:, None]
    np.testing.assert_allclose(images(requested, rows, [3] * n_records), expected, atol=1.0 + 1e-3)


@pytest.mark.parametrize("part", [0, FIRST_CENTRED, NEXT])
@pytest.mark.parametrize("density", [None, 0.4, 1.0])
def test_sparse_rows_without_a_map_are_those_of_a_map_that_changes_nothing(density, part):
    """Compare sparse rows without a map with a map that changes nothing, within one grid step of each entry."""
    sparse = ROWS * (np.random.default_rng(1).random(ROWS.shape) < 0.4)
    nothing = {name: np.zeros((D, 0), np.int64) for name in ("directions", "reductions")}
    zeros = {name: np.zeros((D, 1), np.int64) for name in nothing}
    source = ArrayBlocks(sparse, record_rows=[3] * 40, density=density)
    short, long = (exact_sum(source, query(norm=norm_of(0.9), part=part, **each)) for each in (nothing, zeros))
    assert np.abs(short - long).max() <= 2**13 * 40
    assert np.abs(short).max() > 2**26


@pytest.mark.parametrize("shift", [None, on_shift_grid(MEAN)], ids=["origin", "mean"])
def test_blocks_change_no_bit(shift):
    counts = [0, 1, 5] * 20
    requested = query(shift=shift, part=NEXT)
    whole, *cut = (
        exact_sum(ArrayBlocks(ROWS, record_rows=counts, block_records=size), requested) for size in (1000, 1, 7)
    )
    for each in cut:
        np.testing.assert_array_equal(whole, each)
    made = images(requested, ROWS, counts)
    np.testing.assert_array_equal(unpack_symmetric(whole.astype(np.float64), D + 1), made.T @ made)


def test_a_record_that_is_not_finite_counts_as_an_empty_one():
    requested = query(shift=on_shift_grid(MEAN), part=NEXT)
    one, other = images(requested, np.vstack([np.full(D, np.nan), np.zeros(D)]))
    np.testing.assert_array_equal(one, other)


def test_everything_public_is_in_the_digest_and_stored_with_the_step():
    requested = query(shift=on_shift_grid(MEAN), part=NEXT)
    others = [
        query(shift=None, part=NEXT),
        query(shift=on_shift_grid(-MEAN), part=NEXT),
        query(shift=requested.shift, part=FIRST_CENTRED),
        query(shift=requested.shift, part=NEXT, norm=norm_of(0.41)),
        query(shift=requested.shift, part=NEXT, bits=12),
        query(shift=requested.shift, part=NEXT, **map_of(ROTATION[:, :2], [0.1, 0.31])),
        query(shift=requested.shift, part=NEXT, **map_of(-ROTATION[:, :2], KEPT)),
    ]
    assert len({each.digest() for each in (requested, *others)}) == 8
    public: dict[str, Any] = requested.public_inputs()
    stored = dataclasses.replace(others[-1], **public)
    assert stored.digest() == requested.digest()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"norm": np.array([0.0])}, "one number"),
        ({"norm": np.array([2.1])}, "one number"),
        ({"norm": np.array([np.nan])}, "one number"),
        ({"norm": np.array(0.5)}, "one number"),
        ({"part": 2}, "part=2"),
        ({"shift": np.zeros(D - 1, np.int64)}, "shift"),
        ({"shift": np.full(D, 2**16)}, "shift"),
        ({"shift": np.zeros(D)}, "shift"),
        ({"directions": np.zeros((D, 3), np.int64)}, "directions"),
        ({"directions": np.eye(D, 2) * 4096.0}, "integers"),
        ({"directions": np.full((D, 2), 4096)}, "norm at most 1"),
        ({"reductions": np.full((D, 2), 2**62)}, "norm at most 1"),
        (dict.fromkeys(("directions", "reductions"), np.zeros((D, WIDEST + 1), np.int64)), "at most 64"),
    ],
)
def test_public_inputs_outside_the_exact_range_are_refused(change, match):
    with pytest.raises(InvalidInput, match=match):
        query(**change)


def test_norms_are_limited_to_their_range():
    assert [float(norm_of(norm)[0]) for norm in (0.0, 0.3, 9.0)] == [LEAST_NORM, 0.3, 2.0]


def test_only_the_euclidean_sensitivity_is_stated():
    with pytest.raises(InvalidInput, match="no sensitivity in norm"):
        query().sensitivity("l1")
