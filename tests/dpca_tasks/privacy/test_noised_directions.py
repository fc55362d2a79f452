"""Noised directions: the law of the noise, the rotation, the tested gap, and what the curator lets out.

Keys are fixed; each statistical test states how often it would fail over keys.
"""

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.accounting import events
from dpca_tasks.errors import StepMismatch
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import noised_directions
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import ProposedGap, SmoothNoise, on_output_grid, random_rotation
from dpca_tasks.records.sources import ArrayBlocks

D = 40


def keyed(number):
    return subkey(hashlib.sha256(str(number).encode()).digest(), label="noise", info=b"")


def solver(**changes):
    facts: Any = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "n_components": 1}
    return Eigensolver(**(facts | changes))


def pairs(*, gap, k=1):
    return Eigenpairs(directions=np.eye(D)[:, :k], gap=gap)


def smooth(shape="gaussian", **changes):
    facts: Any = {"shape": shape, "shift": 0.25, "smoothness": 0.01, "epsilon": 1.0, "delta": 1e-3}
    return SmoothNoise(**(facts | changes))


TESTED = ProposedGap(gap_epsilon=0.2, gap_delta=0.05, noise_multiplier=2.5, epsilon=1.0, delta=0.1)


@pytest.mark.parametrize(
    ("shape", "law"), [("gaussian", stats.norm()), ("spherical_t", None), ("cauchy", stats.cauchy())]
)
def test_noise_has_its_shape_and_the_scale_of_the_smooth_bound(shape, law):
    """Kolmogorov and Smirnov over 40 draws of 39 coordinates behind the direction; fails for one key in 10,000."""
    law_of_noise, found = smooth(shape), pairs(gap=30.0)
    scale = law_of_noise.scale(solver(), found)
    draws = np.array([law_of_noise.draw(keyed(number), solver(), found)[1:] / scale for number in range(40)])
    if law is None:  # the squared length of D - 1 of D coordinates, over the chi-square in common
        squares = (draws**2).sum(axis=1) / (D - 1)
        assert stats.kstest(squares, stats.f(D - 1, D).cdf).pvalue > 1e-4
        assert stats.kstest(draws.ravel(), stats.t(D).cdf).pvalue > 1e-4
    else:
        assert stats.kstest(draws.ravel(), law.cdf).pvalue > 1e-4


def test_a_smaller_gap_has_more_noise_and_none_the_most():
    scales = [smooth().scale(solver(), pairs(gap=gap)) for gap in (1e4, 1e3, 300.0, 10.0, 0.0)]
    assert scales == sorted(scales)
    assert scales[-1] == pytest.approx(math.sqrt(2) / 0.25)


@pytest.mark.parametrize("planted", [False, True])
def test_signs_and_rotations_of_the_solver_do_not_show(monkeypatch, planted):
    """Signs in 200 draws: fair coins leave 60 to 140 but for one key in 10^8. Without rotation all are alike."""
    if planted:
        monkeypatch.setattr(noised_directions, "random_rotation", lambda key, order: np.eye(order))
    quiet, found = smooth(shift=1e6), pairs(gap=1e6)
    signs = [quiet.draw(keyed(number), solver(), found)[0] > 0 for number in range(200)]
    assert (60 <= sum(signs) <= 140) is not planted


def test_rotations_are_uniform_among_orthogonal_matrices():
    """Angles of the first column and determinants of 2 x 2 ones; each test fails for one key in 10,000."""
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
    """600 draws: the share above the gap is binomial with gap_delta; both tests fail for one key in 10,000."""
    gap, scale = 300.0, TESTED.gap_scale(solver())
    bounds = np.array([TESTED.draw(keyed(number), solver(), pairs(gap=gap))[0] for number in range(600)])
    assert stats.kstest((bounds - gap + TESTED.margin(solver())) / scale, stats.laplace().cdf).pvalue > 1e-4
    assert stats.binomtest(int((bounds > gap).sum()), 600, TESTED.gap_delta, alternative="greater").pvalue > 1e-4
    steps = bounds * 2**16
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize(("relation", "movement"), [("add_remove", 1.0), ("zero_out", 1.0), ("replace_one", 2.0)])
def test_the_gap_has_noise_for_what_one_record_moves(relation, movement):
    asked = solver(relation=relation)
    assert TESTED.gap_scale(asked) == pytest.approx(movement / TESTED.gap_epsilon, rel=0.01)
    assert TESTED.gap_scale(asked) > movement / TESTED.gap_epsilon
    assert TESTED.margin(asked) >= TESTED.gap_scale(asked) * math.log(0.5 / TESTED.gap_delta)
    assert TESTED.threshold(asked) == 1.5 * movement


def test_the_noise_of_a_passed_test_follows_from_its_bound():
    """Kolmogorov and Smirnov over 20 draws; fails for one key in 10,000."""
    draws = []
    for number in range(20):
        bound, *noised = TESTED.draw(keyed(number), solver(), pairs(gap=500.0))
        draws.append(np.array(noised[1:]) / TESTED.noise_std(bound, solver()))
    assert stats.kstest(np.concatenate(draws), stats.norm.cdf).pvalue > 1e-4


def test_a_failed_test_shows_nothing_but_its_bound():
    """Other directions, the same gap: the same answer, of noise alone."""
    one = TESTED.draw(keyed(0), solver(), pairs(gap=0.0))
    other = TESTED.draw(keyed(0), solver(), Eigenpairs(directions=np.eye(D)[:, 3:4], gap=0.0))
    assert one[0] <= TESTED.threshold(solver())
    np.testing.assert_array_equal(one, other)
    assert stats.kstest(one[1:], stats.norm.cdf).pvalue > 1e-4


ROWS = np.repeat(np.eye(5), [90, 40, 3, 2, 0], axis=0)
ASKED = Eigensolver(n_features=5, clip_norm=1.0, relation="add_remove", n_components=2)


@pytest.mark.parametrize("law", [smooth(), smooth("cauchy", delta=0.0), TESTED], ids=["smooth", "pure", "tested"])
class TestCurator:
    def reserved(self, law):
        return InMemoryReservation(event=law.event, key=bytes(range(32)))

    def test_the_answer_is_kept_and_nothing_else(self, law):
        reservation = self.reserved(law)
        answer = Curator(ArrayBlocks(ROWS), reservation).perturb(ASKED, law)
        assert answer.size == 10 + isinstance(law, ProposedGap)
        assert set(reservation.steps[0]) == {"answer", "question"}
        np.testing.assert_array_equal(reservation.steps[0]["answer"], answer)

    def test_a_kept_answer_is_read_back_without_the_rows(self, law):
        reservation = self.reserved(law)
        answer = Curator(ArrayBlocks(ROWS), reservation).perturb(ASKED, law)

        class NoRows(ArrayBlocks):
            def read(self, block, /):
                raise AssertionError("the rows were read again")

        np.testing.assert_array_equal(Curator(NoRows(ROWS), reservation).perturb(ASKED, law), answer)

    def test_another_question_in_an_answered_step_is_refused(self, law):
        reservation = self.reserved(law)
        Curator(ArrayBlocks(ROWS), reservation).perturb(ASKED, law)
        for rows, asked in ((ROWS[1:], ASKED), (ROWS, dataclasses.replace(ASKED, passes=7))):
            with pytest.raises(StepMismatch, match="another request"):
                Curator(ArrayBlocks(rows), reservation).perturb(asked, law)

    def test_a_law_that_was_not_reserved_is_refused(self, law):
        curator = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=events.approximate(0.5, 1e-3)))
        with pytest.raises(StepMismatch, match="another event"):
            curator.perturb(ASKED, law)

    def test_blocks_are_a_performance_setting(self, law):
        one, other = (
            Curator(ArrayBlocks(ROWS, block_records=size), self.reserved(law)).perturb(ASKED, law) for size in (500, 9)
        )
        np.testing.assert_array_equal(one, other)


def test_laws_of_equal_cost_and_unlike_noise_are_unlike_questions():
    """Half the noise under the same event, with the same key: the answer must not be of the same stream."""
    reservation = InMemoryReservation(event=smooth().event, key=bytes(32))
    Curator(ArrayBlocks(ROWS), reservation).perturb(ASKED, smooth())
    with pytest.raises(StepMismatch, match="another request"):
        Curator(ArrayBlocks(ROWS), reservation).perturb(ASKED, smooth(shift=0.5))
