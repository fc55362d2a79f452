"""Adversarial search for neighbours that move a query further than it states."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from dpca_tasks.blocks import ArrayBlocks
from dpca_tasks.errors import InvalidInput
from dpca_tasks.exact_sum import exact_sum
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.privacy.keystream import subkey
from dpca_tasks.queries.centred_moment import CentredMoment
from dpca_tasks.queries.moment_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.norm_histogram import NormHistogram
from dpca_tasks.queries.poisson_sampled import sampled
from dpca_tasks.queries.record_mean import RecordMean
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.shifted_moment import ShiftedMoment, on_shift_grid
from tests.strategies import rows

D = 4
RELATIONS = ("add_remove", "zero_out", "replace_one")


def second_moment(relation, bits):
    return SecondMoment(n_features=D, clip_norm=1.0, relation=relation, bits=bits)


def moment_product(relation, bits):
    directions = np.linalg.qr(np.random.default_rng(bits).standard_normal((D, 2)))[0]
    return MomentProduct(
        n_features=D, clip_norm=1.0, relation=relation, bits=bits, directions=on_direction_grid(directions)
    )


def centred_moment(relation, bits):
    return CentredMoment(n_features=D, clip_norm=1.0, relation=relation, bits=bits)


def record_mean(relation, bits):
    return RecordMean(n_features=D, clip_norm=1.0, relation=relation, bits=bits)


def shifted_moment(relation, bits):
    """Around a mean at the bound, along an axis, as many of the rows that are tried are."""
    shift = on_shift_grid(np.eye(D)[0])
    return ShiftedMoment(n_features=D, clip_norm=1.0, relation=relation, bits=bits, shift=shift)


def shifted_along_all(relation, bits):
    shift = on_shift_grid(np.full(D, -0.5))
    return ShiftedMoment(n_features=D, clip_norm=1.0, relation=relation, bits=bits, shift=shift)


def norm_histogram(relation, bits):
    edges = np.array([0.25, 0.5, 1.0, 2.0])
    return NormHistogram(n_features=D, clip_norm=1.0, relation=relation, bits=bits, edges=edges)


def sampled_product(relation, bits):
    """The last record is the one that differs, so the coins of all others are the same for both neighbours."""
    made = sampled(moment_product(relation, bits), rate=0.5)
    return dataclasses.replace(made, coin_key=subkey(bytes(32), label="coins", info=bytes([bits])))  # type: ignore[call-arg]


def full(query, packed):
    values = packed / query.steps_per_unit
    return unpack_symmetric(values, query.layout.order) if query.layout.kind == "symmetric" else values


def widest_scores(query, packed):
    """Return the longest interval that holds 0 and by how much the scores of some number of directions move."""
    values = np.linalg.eigvalsh(query.matrix(packed))
    least, most = np.cumsum(values), np.cumsum(values[::-1])
    return max(max(high, 0.0) - min(low, 0.0) for low, high in zip(least, most, strict=True))


NORMS = {
    "scores": widest_scores,
    "l2": lambda query, packed: np.linalg.norm(full(query, packed)),
    "l1": lambda query, packed: np.abs(packed / query.steps_per_unit).sum(),
    "nuclear": lambda query, packed: np.abs(np.linalg.eigvalsh(full(query, packed))).sum(),
}
CASES = [
    *((build, norm) for build in (second_moment, centred_moment) for norm in NORMS),
    *((build, norm) for build in (norm_histogram, record_mean) for norm in ("l1", "l2")),
    *((build, "l2") for build in (moment_product, sampled_product)),
    *((build, "scores") for build in (shifted_moment, shifted_along_all)),
]


def neighbours(relation, record_rows, common, mine, other):
    """The two datasets of a relation: mine, and in its place nothing, an empty or another record."""
    first = np.vstack([common, mine])
    counts = [1] * len(common) + [record_rows]
    if relation == "add_remove":
        return (first, counts), (common, counts[:-1])
    instead = np.zeros_like(mine) if relation == "zero_out" else other
    return (first, counts), (np.vstack([common, instead]), counts)


def total(query, dataset):
    matrix, counts = dataset
    return exact_sum(ArrayBlocks(matrix, record_rows=counts), query)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("build", "norm"), CASES, ids=lambda case: getattr(case, "__name__", case))
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_no_neighbour_moves_the_sum_beyond_the_stated_sensitivity(build, norm, relation, data):
    """A sampled record is replaced through the empty one, so the sensitivity is that of an emptied record there."""
    query = build(relation, data.draw(st.sampled_from([2, 6, 12])))
    record_rows = data.draw(st.sampled_from([1, 2]))
    common, mine, other = (
        data.draw(rows(n_features=D, min_rows=low, max_rows=high))
        for low, high in ((0, 2), (record_rows, record_rows), (record_rows, record_rows))
    )
    emptied = build is sampled_product and relation == "replace_one"
    left, right = neighbours("zero_out" if emptied else relation, record_rows, common, mine, other)
    moved = NORMS[norm](query, total(query, left) - total(query, right))
    target(float(moved))
    assert moved <= query.sensitivity(norm) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("relation", "attained"), [("add_remove", 1.0), ("zero_out", 1.0), ("replace_one", np.sqrt(2))]
)
def test_the_second_moments_sensitivity_is_attained(relation, attained):
    query = second_moment(relation, 12)
    mine, other = np.eye(D)[:1], np.eye(D)[1:2]
    left, right = neighbours(relation, 1, np.empty((0, D)), mine, other)
    moved = NORMS["l2"](query, total(query, left) - total(query, right))
    assert moved == pytest.approx(attained, rel=1e-12)
    assert moved <= query.sensitivity("l2")


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_the_record_means_l1_sensitivity_is_attained(relation):
    """By a row of equal entries at the bound; the count goes with it where the record is removed."""
    query, mine = record_mean(relation, 12), np.full((1, D), 1 / np.sqrt(D))
    left, right = neighbours(relation, 1, np.empty((0, D)), mine, mine)
    moved = NORMS["l1"](query, total(query, left) - total(query, right))
    assert moved == pytest.approx(query.sensitivity("l1") - (0.25 if relation == "zero_out" else 0.0), rel=1e-3)


def test_a_query_refuses_a_norm_that_it_has_no_proof_for():
    for build, norm in ((moment_product, "l1"), (record_mean, "nuclear"), (norm_histogram, "nuclear")):
        with pytest.raises(InvalidInput, match="not stated"):
            build("add_remove", 8).sensitivity(norm)


@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": 0.0},
        {"clip_norm": np.nan},
        {"clip_norm": np.inf},
        {"n_features": 0},
        {"relation": "both"},
    ],
)
def test_public_parameters_are_checked(change):
    sound = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "bits": 8}
    with pytest.raises(InvalidInput):
        SecondMoment(**{**sound, **change})
