"""Eigenpairs against dense linear algebra, on spectra of every kind; what is not found counts as no gap."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting.smooth_sensitivity import TOLERANCE
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import eigensolver
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.queries.eigensolver_product import BITS
from dpca_tasks.queries.recentred_moment import ShiftedMoment, on_shift_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

KEY = subkey(bytes(32), label="start", info=b"")
D = 12
RNG = np.random.default_rng(4)


def solver(**changes):
    facts: Any = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "n_components": 2}
    return Eigensolver(**(facts | changes))


def dense(rows):
    """Return eigenvalues and eigenvectors of the gridded second moment, descending."""
    d = rows.shape[1]
    query = SecondMoment(n_features=d, clip_norm=1.0, relation="add_remove", bits=BITS)
    values, vectors = np.linalg.eigh(unpack_symmetric(exact_sum(ArrayBlocks(rows), query) / query.steps_per_unit, d))
    return values[::-1], vectors[:, ::-1]


def copies(counts):
    """Return rows along axes, each as often as told."""
    return np.repeat(np.eye(len(counts)), counts, axis=0)


SPECTRA = {
    "decaying": RNG.standard_normal((400, D)) * 0.7 ** np.arange(D) / 2,
    "low rank": RNG.standard_normal((300, 3)) @ RNG.standard_normal((3, D)) / 9,
    "ties behind": copies([90, 60] + [20] * (D - 2)),
    "few rows": copies([5, 3] + [0] * (D - 2)),
    "large": copies([60_000, 40_000, 10] + [1] * (D - 3)),
}


@pytest.mark.parametrize("rows", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("passes", [1, 3, 24])
def test_directions_and_gap_are_those_of_the_second_moment(rows, passes):
    values, vectors = dense(rows)
    gap = values[1] - values[2]
    found = solver(passes=passes).solve(ArrayBlocks(rows), KEY)
    assert gap - 4 * TOLERANCE <= found.gap <= gap
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(np.abs(vectors[:, :2].T @ found.directions), np.eye(2), atol=1e-6)


@pytest.mark.parametrize("passes", [1, 3])
def test_around_a_mean_they_are_those_of_the_records_less_it(passes):
    """As exact: the gap of the gridded records is bounded as it is around the origin."""
    rows = SPECTRA["decaying"] + np.full(D, 0.2)
    shift = on_shift_grid(np.full(D, 0.2))
    moment = ShiftedMoment(n_features=D, clip_norm=1.0, relation="add_remove", bits=BITS, shift=shift)
    values, vectors = np.linalg.eigh(moment.matrix(exact_sum(ArrayBlocks(rows), moment)))
    gap = values[-2] - values[-3]
    found = solver(passes=passes, shift=shift).solve(ArrayBlocks(rows, block_records=7), KEY)
    assert gap - 4 * TOLERANCE <= found.gap <= gap
    np.testing.assert_allclose(np.abs(vectors[:, :-3:-1].T @ found.directions), np.eye(2), atol=1e-6)


@pytest.mark.parametrize("rows", [np.zeros((0, D)), np.zeros((4, D)), copies([7] * D)], ids=["none", "empty", "equal"])
def test_without_a_gap_there_are_directions_all_the_same(rows):
    found = solver().solve(ArrayBlocks(rows), KEY)
    assert found.gap == 0.0
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(2), atol=1e-12)


def test_a_key_gives_the_same_bits_for_any_blocks():
    rows = SPECTRA["decaying"]
    one, other = (solver(passes=3).solve(ArrayBlocks(rows, block_records=size), KEY) for size in (1000, 7))
    np.testing.assert_array_equal(one.directions, other.directions)
    assert one.gap == other.gap


@pytest.fixture
def incomplete(monkeypatch):
    """Let no basis be completed by width alone."""
    monkeypatch.setattr(eigensolver, "COMPLETE_UP_TO", 0)


def wide(n_features=300):
    rng = np.random.default_rng(7)
    return rng.standard_normal((900, n_features)) * 0.985 ** np.arange(n_features) / 30


@pytest.mark.usefixtures("incomplete")
def test_few_passes_find_a_clear_gap_in_many_features():
    rows = wide()
    rows[:, 0] *= 6
    few = solver(n_features=300, n_components=1, passes=16)
    assert not few.is_complete
    values, vectors = dense(rows)
    found = few.solve(ArrayBlocks(rows), KEY)
    assert values[0] - values[1] - 4 * TOLERANCE <= found.gap <= values[0] - values[1]
    assert abs(float(vectors[:, 0] @ found.directions[:, 0])) > 1 - 1e-9


@pytest.mark.usefixtures("incomplete")
def test_what_has_not_converged_counts_as_no_gap():
    few = solver(n_features=300, n_components=1, passes=2)
    assert few.solve(ArrayBlocks(wide()), KEY).gap == 0.0


def test_the_basis_is_complete_up_to_a_public_number_of_features():
    for n_features in (3, 123, 784, eigensolver.COMPLETE_UP_TO):
        assert solver(n_features=n_features).is_complete
    assert not solver(n_features=eigensolver.COMPLETE_UP_TO + 1).is_complete
    assert solver(n_features=20_000, passes=2000).is_complete


def test_the_number_of_passes_is_that_of_the_plan():
    """It reads every block as often on hard data as on easy ones."""

    class Counting(ArrayBlocks):
        reads = 0

        def read(self, block, /):
            self.reads += 1
            return super().read(block)

    counts = set()
    for rows in SPECTRA.values():
        source = Counting(rows, block_records=len(rows))
        solver(passes=4).solve(source, KEY)
        counts.add(source.reads)
    assert counts == {2}  # eleven columns, then the last one


def test_secret_numbers_are_not_shown():
    found = solver().solve(ArrayBlocks(SPECTRA["few rows"]), KEY)
    assert repr(found) == "Eigenpairs()"


def test_any_parameter_changes_the_question():
    one = solver()
    others = [
        dataclasses.replace(one, **change)
        for change in (
            {"n_features": 13},
            {"clip_norm": 2.0},
            {"relation": "zero_out"},
            {"n_components": 3},
            {"passes": 23},
            {"oversampling": 7},
        )
    ]
    assert len({solver.digest() for solver in (one, *others)}) == 7


def test_every_entry_of_the_mean_is_a_part_of_the_question():
    """Of all of them, also where an array is too long to be printed in full."""
    shift = np.zeros(3000, np.int64)
    one = solver(n_features=3000, shift=shift)
    shift = shift.copy()
    shift[1500] = 1
    assert len({asked.digest() for asked in (solver(n_features=3000), one, dataclasses.replace(one, shift=shift))}) == 3
    assert one.public_inputs().keys() == {"shift"}
    assert "shift" not in repr(one)


@pytest.mark.parametrize(
    "change", [{"passes": 0}, {"oversampling": -1}, {"clip_norm": 0.0}, {"shift": np.ones(3, np.int64)}]
)
def test_parameters_without_meaning_are_refused(change):
    with pytest.raises(InvalidInput):
        solver(**change)
