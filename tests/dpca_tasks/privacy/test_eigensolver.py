"""Private eigensolver and noised directions: accurate eigenpairs, and noise as proved.

Eigenpairs are compared with dense linear algebra on spectra of every kind; an incomplete search reports a gap of 0. For
noised directions, the distribution of the noise, the rotation, the tested gap, and the curator's outputs are checked.
Keys are fixed; each statistical test states its failure rate over keys.
"""

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.accounting import events
from dpca_tasks.accounting.smooth_sensitivity import TOLERANCE
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import eigensolver, noised_directions
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import ProposedGap, SmoothNoise, on_output_grid, random_rotation
from dpca_tasks.queries.operator_product import BITS
from dpca_tasks.queries.recentred_moment import ShiftedMoment, on_shift_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

KEY = subkey(bytes(32), label="start", info=b"")
D = 12
RNG = np.random.default_rng(4)


def solver(**changes):
    facts: Any = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "n_components": 2}
    return Eigensolver(**(facts | changes))


def dense(rows):
    """Return eigenvalues and eigenvectors of the second moment of gridded rows, descending, by dense algebra."""
    d = rows.shape[1]
    query = SecondMoment(n_features=d, clip_norm=1.0, relation="add_remove", bits=BITS)
    values, vectors = np.linalg.eigh(unpack_symmetric(exact_sum(ArrayBlocks(rows), query) / query.steps_per_unit, d))
    return values[::-1], vectors[:, ::-1]


def copies(counts):
    """Return unit rows along the axes, each repeated the given number of times."""
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
def test_eigenpairs_around_a_mean_are_those_of_centered_records(passes):
    """Compare eigenpairs around a mean with dense algebra on the centered records.

    The error of the gap is bounded as without centering.
    """
    rows = SPECTRA["decaying"] + np.full(D, 0.2)
    shift = on_shift_grid(np.full(D, 0.2))
    moment = ShiftedMoment(n_features=D, clip_norm=1.0, relation="add_remove", bits=BITS, shift=shift)
    values, vectors = np.linalg.eigh(moment.matrix(exact_sum(ArrayBlocks(rows), moment)))
    gap = values[-2] - values[-3]
    found = solver(passes=passes, shift=shift).solve(ArrayBlocks(rows, block_records=7), KEY)
    assert gap - 4 * TOLERANCE <= found.gap <= gap
    np.testing.assert_allclose(np.abs(vectors[:, :-3:-1].T @ found.directions), np.eye(2), atol=1e-6)


@pytest.mark.parametrize("rows", [np.zeros((0, D)), np.zeros((4, D)), copies([7] * D)], ids=["none", "empty", "equal"])
def test_directions_are_released_without_a_gap_too(rows):
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
    """Make the solver treat every search basis as incomplete, however wide it is."""
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
def test_a_search_that_did_not_converge_reports_a_gap_of_zero():
    few = solver(n_features=300, n_components=1, passes=2)
    assert few.solve(ArrayBlocks(wide()), KEY).gap == 0.0


def test_the_basis_is_complete_up_to_a_public_number_of_features():
    for n_features in (3, 123, 784, eigensolver.COMPLETE_UP_TO):
        assert solver(n_features=n_features).is_complete
    assert not solver(n_features=eigensolver.COMPLETE_UP_TO + 1).is_complete
    assert solver(n_features=20_000, passes=2000).is_complete


def test_the_number_of_passes_is_that_of_the_plan():
    """Count block reads on data with different spectra: the number must not depend on the data."""

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
    assert counts == {2}  # reads of the block: one for eleven columns and one for the last column


def test_secret_numbers_are_not_printed():
    found = solver().solve(ArrayBlocks(SPECTRA["few rows"]), KEY)
    assert repr(found) == "Eigenpairs()"


def test_any_parameter_changes_the_digest():
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


def test_every_entry_of_the_mean_changes_the_digest():
    """Change one entry of a long mean: the digest of the request must change.

    The array is too long to be printed in full, so a digest of its printed form would not change.
    """
    shift = np.zeros(3000, np.int64)
    one = solver(n_features=3000, shift=shift)
    shift = shift.copy()
    shift[1500] = 1
    assert (
        len({requested.digest() for requested in (solver(n_features=3000), one, dataclasses.replace(one, shift=shift))})
        == 3
    )
    assert one.public_inputs().keys() == {"shift"}
    assert "shift" not in repr(one)


@pytest.mark.parametrize(
    "change", [{"passes": 0}, {"oversampling": -1}, {"clip_norm": 0.0}, {"shift": np.ones(3, np.int64)}]
)
def test_invalid_parameters_are_refused(change):
    with pytest.raises(InvalidInput):
        solver(**change)


NOISED_DIRECTIONS_D = 40


def keyed(number):
    return subkey(hashlib.sha256(str(number).encode()).digest(), label="noise", info=b"")


def solver_of_noised_directions(**changes):
    facts: Any = {"n_features": NOISED_DIRECTIONS_D, "clip_norm": 1.0, "relation": "add_remove", "n_components": 1}
    return Eigensolver(**(facts | changes))


def pairs(*, gap, k=1):
    return Eigenpairs(directions=np.eye(NOISED_DIRECTIONS_D)[:, :k], gap=gap)


def smooth(shape="gaussian", **changes):
    facts: Any = {"shape": shape, "shift": 0.25, "smoothness": 0.01, "epsilon": 1.0, "delta": 1e-3}
    return SmoothNoise(**(facts | changes))


TESTED = ProposedGap(gap_epsilon=0.2, gap_delta=0.05, noise_multiplier=2.5, epsilon=1.0, delta=0.1)


@pytest.mark.parametrize(
    ("shape", "law"), [("gaussian", stats.norm()), ("spherical_t", None), ("cauchy", stats.cauchy())]
)
def test_noise_has_its_shape_and_the_scale_of_the_smooth_bound(shape, law):
    """Test the noise of directions by Kolmogorov and Smirnov: shape, and scale of the smooth bound.

    There are 40 draws of the 39 coordinates orthogonal to the direction; the test fails for one key in 10,000.
    """
    law_of_noise, found = smooth(shape), pairs(gap=30.0)
    scale = law_of_noise.scale(solver_of_noised_directions(), found)
    draws = np.array(
        [law_of_noise.draw(keyed(number), solver_of_noised_directions(), found)[1:] / scale for number in range(40)]
    )
    # the squares are squared lengths of D - 1 coordinates, divided by a chi-square variate that all D share
    if law is None:
        squares = (draws**2).sum(axis=1) / (NOISED_DIRECTIONS_D - 1)
        assert stats.kstest(squares, stats.f(NOISED_DIRECTIONS_D - 1, NOISED_DIRECTIONS_D).cdf).pvalue > 1e-4
        assert stats.kstest(draws.ravel(), stats.t(NOISED_DIRECTIONS_D).cdf).pvalue > 1e-4
    else:
        assert stats.kstest(draws.ravel(), law.cdf).pvalue > 1e-4


def test_a_smaller_gap_has_more_noise_and_a_gap_of_zero_the_most():
    scales = [smooth().scale(solver_of_noised_directions(), pairs(gap=gap)) for gap in (1e4, 1e3, 300.0, 10.0, 0.0)]
    assert scales == sorted(scales)
    assert scales[-1] == pytest.approx(math.sqrt(2) / 0.25)


@pytest.mark.parametrize("planted", [False, True])
def test_signs_and_rotations_of_the_solver_are_not_revealed(monkeypatch, planted):
    """Count signs of a released direction in 200 draws: between 60 and 140 must be positive.

    Fair coins violate this for one key in 10^8. Without the random rotation, all signs are equal.
    """
    if planted:
        monkeypatch.setattr(noised_directions, "random_rotation", lambda key, order: np.eye(order))
    quiet, found = smooth(shift=1e6), pairs(gap=1e6)
    signs = [quiet.draw(keyed(number), solver_of_noised_directions(), found)[0] > 0 for number in range(200)]
    assert (60 <= sum(signs) <= 140) is not planted


def test_rotations_are_uniform_among_orthogonal_matrices():
    """Test 2 x 2 random rotations: the angle of the first column, and the sign of the determinant.

    Each test fails for one key in 10,000.
    """
    rotations = np.array([random_rotation(keyed(number), 2) for number in range(400)])
    np.testing.assert_allclose(
        rotations @ rotations.transpose(0, 2, 1), np.broadcast_to(np.eye(2), rotations.shape), atol=1e-12
    )
    angles = np.arctan2(rotations[:, 1, 0], rotations[:, 0, 0])
    assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-4
    assert stats.binomtest(int((np.linalg.det(rotations) > 0).sum()), 400).pvalue > 1e-4


def test_the_output_lies_on_a_public_grid():
    values = np.array([1e-9, 2.0**-24, 0.3, 1.0, -7.7, 1e6, -1e300, 0.0])
    rounded = on_output_grid(values)
    np.testing.assert_allclose(rounded, values, rtol=2.0**-22, atol=2.0**-25)
    mantissas = np.frexp(rounded)[0] * 2.0**22
    np.testing.assert_array_equal(mantissas, np.rint(mantissas))
    assert rounded[0] == 0.0
    np.testing.assert_array_equal(on_output_grid(rounded), rounded)


def test_the_bound_of_the_gap_is_laplace_below_it_and_seldom_above():
    """Test the released lower bound of the gap in 600 draws.

    The bound must be Laplace around the gap less a margin, and exceed the gap with probability gap_delta at most. Both
    tests fail for one key in 10,000.
    """
    gap, scale = 300.0, TESTED.gap_scale(solver_of_noised_directions())
    bounds = np.array(
        [TESTED.draw(keyed(number), solver_of_noised_directions(), pairs(gap=gap))[0] for number in range(600)]
    )
    assert (
        stats.kstest((bounds - gap + TESTED.margin(solver_of_noised_directions())) / scale, stats.laplace().cdf).pvalue
        > 1e-4
    )
    assert stats.binomtest(int((bounds > gap).sum()), 600, TESTED.gap_delta, alternative="greater").pvalue > 1e-4
    steps = bounds * 2**16
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize(("relation", "movement"), [("add_remove", 1.0), ("zero_out", 1.0), ("replace_one", 2.0)])
def test_the_noise_of_the_gap_covers_the_change_by_one_record(relation, movement):
    requested = solver_of_noised_directions(relation=relation)
    assert TESTED.gap_scale(requested) == pytest.approx(movement / TESTED.gap_epsilon, rel=0.01)
    assert TESTED.gap_scale(requested) > movement / TESTED.gap_epsilon
    assert TESTED.margin(requested) >= TESTED.gap_scale(requested) * math.log(0.5 / TESTED.gap_delta)
    assert TESTED.threshold(requested) == 1.5 * movement


def test_the_noise_of_a_passed_test_follows_from_its_bound():
    """The released bound must determine the noise std of a test that passes.

    A Kolmogorov-Smirnov test over 20 draws fails for one key in 10,000.
    """
    draws = []
    for number in range(20):
        bound, *noised = TESTED.draw(keyed(number), solver_of_noised_directions(), pairs(gap=500.0))
        draws.append(np.array(noised[1:]) / TESTED.noise_std(bound, solver_of_noised_directions()))
    assert stats.kstest(np.concatenate(draws), stats.norm.cdf).pvalue > 1e-4


def test_a_failed_test_reveals_only_its_bound():
    """Fail the test with two different directions: the answers must be equal, and consist of noise alone."""
    one = TESTED.draw(keyed(0), solver_of_noised_directions(), pairs(gap=0.0))
    other = TESTED.draw(
        keyed(0), solver_of_noised_directions(), Eigenpairs(directions=np.eye(NOISED_DIRECTIONS_D)[:, 3:4], gap=0.0)
    )
    assert one[0] <= TESTED.threshold(solver_of_noised_directions())
    np.testing.assert_array_equal(one, other)
    assert stats.kstest(one[1:], stats.norm.cdf).pvalue > 1e-4


ROWS = np.repeat(np.eye(5), [90, 40, 3, 2, 0], axis=0)
REQUESTED = Eigensolver(n_features=5, clip_norm=1.0, relation="add_remove", n_components=2)


@pytest.mark.parametrize("law", [smooth(), smooth("cauchy", delta=0.0), TESTED], ids=["smooth", "pure", "tested"])
class TestCurator:
    def reserved(self, law):
        return InMemoryReservation(event=law.event, key=bytes(range(32)))

    def test_the_answer_alone_is_stored(self, law):
        reservation = self.reserved(law)
        answer = Curator(ArrayBlocks(ROWS), reservation).perturb(REQUESTED, law)
        assert answer.size == 10 + isinstance(law, ProposedGap)
        assert set(reservation.steps[0]) == {"answer", "question"}
        np.testing.assert_array_equal(reservation.steps[0]["answer"], answer)

    def test_a_stored_answer_is_read_back_without_the_rows(self, law):
        reservation = self.reserved(law)
        answer = Curator(ArrayBlocks(ROWS), reservation).perturb(REQUESTED, law)

        class NoRows(ArrayBlocks):
            def read(self, block, /):
                raise AssertionError("the rows were read again")

        np.testing.assert_array_equal(Curator(NoRows(ROWS), reservation).perturb(REQUESTED, law), answer)

    def test_a_second_request_in_an_answered_step_is_refused(self, law):
        reservation = self.reserved(law)
        Curator(ArrayBlocks(ROWS), reservation).perturb(REQUESTED, law)
        for rows, requested in ((ROWS[1:], REQUESTED), (ROWS, dataclasses.replace(REQUESTED, passes=7))):
            with pytest.raises(StepMismatch, match="another request"):
                Curator(ArrayBlocks(rows), reservation).perturb(requested, law)

    def test_a_distribution_that_was_not_reserved_is_refused(self, law):
        curator = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=events.approximate(0.5, 1e-3)))
        with pytest.raises(StepMismatch, match="a different event"):
            curator.perturb(REQUESTED, law)

    def test_blocks_are_a_performance_setting(self, law):
        one, other = (
            Curator(ArrayBlocks(ROWS, block_records=size), self.reserved(law)).perturb(REQUESTED, law)
            for size in (500, 9)
        )
        np.testing.assert_array_equal(one, other)


def test_half_the_noise_under_the_same_event_is_refused():
    """Request half the noise under the same event and key: the request must be refused.

    Otherwise both answers would be computed from the same noise stream.
    """
    reservation = InMemoryReservation(event=smooth().event, key=bytes(32))
    Curator(ArrayBlocks(ROWS), reservation).perturb(REQUESTED, smooth())
    with pytest.raises(StepMismatch, match="another request"):
        Curator(ArrayBlocks(ROWS), reservation).perturb(REQUESTED, smooth(shift=0.5))
