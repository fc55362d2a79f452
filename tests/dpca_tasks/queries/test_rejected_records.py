"""Counts of rejected and accepted records: exact, attacked in every relation, and noised before they leave."""

import itertools

import numpy as np
import pytest

from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.prior_releases import QuantileClip, RejectedShare, counts_std, share_of_counts
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.wishart import Wishart
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.counts import RejectedRecords
from dpca_tasks.records.blocks import CsrBlock
from dpca_tasks.records.sources import ArrayBlocks, NormalisedBlocks
from tests.dpca_tasks.queries.query_table import RELATIONS

PROBLEM = Problem(n_features=4, clip_norm=1.0)
TARGET = PrivacyTarget(epsilon=2.0, delta=1e-6)


class Flagged(ArrayBlocks):
    """Rows of which some were rejected."""

    def __init__(self, rows, rejected, **others):
        super().__init__(rows, **others)
        self._flags = np.asarray(rejected, np.bool_)

    def read(self, block, /):
        found = super().read(block)
        last = found.first_record + found.record_ptr.size - 1
        return CsrBlock(
            values=found.values,
            indices=found.indices,
            row_ptr=found.row_ptr,
            record_ptr=found.record_ptr,
            first_record=found.first_record,
            rejected=self._flags[found.first_record : last],
        )


def counts(relation, flags):
    """The exact counts of records that were rejected (1) or not (0)."""
    query = RejectedRecords(n_features=2, clip_norm=1.0, relation=relation, bits=3)
    block = CsrBlock(
        values=np.empty(0),
        indices=np.empty(0, np.int32),
        row_ptr=np.zeros(len(flags) + 1, np.int64),
        record_ptr=np.arange(len(flags) + 1),
        first_record=0,
        rejected=np.array(flags, np.bool_),
    )
    return query, query.map(query.grid(block)) / query.steps_per_unit


def test_every_record_is_in_one_count_and_blocks_without_flags_are_accepted():
    assert counts("add_remove", [1, 0, 0, 1, 0])[1].tolist() == [2, 3]
    query = RejectedRecords(n_features=4, clip_norm=1.0, relation="add_remove", bits=0)
    assert query.map(query.grid(ArrayBlocks(np.eye(4)).read(0))).tolist() == [0, 4]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_all_neighbours_move_the_counts_by_the_stated_sensitivity_and_some_attain_it(relation, norm):
    order = 1 if norm == "l1" else 2
    moved = []
    for size in range(4):
        for flags in itertools.product([0, 1], repeat=size + 1):
            for other in [flags[:-1]] if relation == "add_remove" else [(*flags[:-1], 0), (*flags[:-1], 1)]:
                query, ours = counts(relation, flags)
                moved.append(np.linalg.norm(ours - counts(relation, other)[1], order))
    assert max(moved) <= query.sensitivity(norm)
    assert max(moved) == pytest.approx(query.sensitivity(norm), rel=1e-15)


def test_a_norm_or_a_clip_norm_without_meaning_is_refused():
    query = RejectedRecords(n_features=2, clip_norm=1.0, relation="add_remove", bits=3)
    with pytest.raises(InvalidInput, match="not stated"):
        query.sensitivity("nuclear")
    with pytest.raises(InvalidInput, match="must be 1"):
        RejectedRecords(n_features=2, clip_norm=2.0, relation="add_remove", bits=3)


@pytest.mark.parametrize(
    "mechanism",
    [
        AnalyzeGauss(n_components=2),
        Wishart(n_components=2),
        QuantileClip(mechanism=AnalyzeGauss(n_components=2), quantile=0.9),
    ],
    ids=["gaussian", "pure", "after a clip norm"],
)
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_share_is_released_within_the_target_and_is_near_the_truth(mechanism, relation):
    """The estimate is within six of its own standard deviations: an alarm in 10^8 runs, with a fixed key."""
    rows, rejected = np.tile(np.eye(4), (1000, 1)), np.arange(4000) < 1000
    rows[rejected] = 0.0
    wrapped = RejectedShare(mechanism=mechanism)
    plan = wrapped.plan(Problem(n_features=4, clip_norm=1.0, relation=relation), TARGET)
    source = NormalisedBlocks(Flagged(rows, rejected, block_records=300), length=1.0)
    reservation = InMemoryReservation(event=plan.event, relation=relation, key=bytes(32))
    found = wrapped.run(Curator(source, reservation), plan)
    assert found.outcome is not None
    share, std = found.outcome["rejected_share"], found.outcome["rejected_share_std"]
    assert 0 < std < 0.05
    assert abs(share - 0.25) < 6 * std
    assert share != 0.25


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 16.0])
def test_a_budget_of_the_target_admits_counts_and_mechanism(epsilon):
    plan = RejectedShare(mechanism=AnalyzeGauss(n_components=2)).plan(
        PROBLEM, PrivacyTarget(epsilon=epsilon, delta=1e-6)
    )
    budget = build_filter("gdp", epsilon=epsilon, delta=1e-6)
    assert budget.admits(budget.charge(plan.event, delta=1e-6))


def test_the_noise_of_the_counts_is_that_of_their_epsilon():
    """Laplace noise of scale 16 at epsilon 2 / 32, twice that where a record may leave one count for the other."""
    assert counts_std(PROBLEM, TARGET) == pytest.approx(16 * np.sqrt(2))
    replaced = Problem(n_features=4, clip_norm=1.0, relation="replace_one")
    assert counts_std(replaced, TARGET) == pytest.approx(32 * np.sqrt(2))


def test_a_share_is_a_share_whatever_the_noise_is():
    for rejected, accepted in ((-5.0, 3.0), (5.0, -4.9), (0.0, 0.0), (10.0, -3.0)):
        found = share_of_counts(rejected, accepted, std=2.0)
        assert 0.0 <= found["rejected_share"] <= 1.0
        assert found["rejected_share_std"] > 0
