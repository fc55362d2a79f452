"""Post-processing of a release: to the bit the mechanism's where nothing is refined; refusals in one line."""

import numpy as np
import pytest

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.refinement.refined_release import ENOUGH, check_refinement, floored, refine_release, verdict
from tests.dpca_tasks.refinement.noisy import captured, noisy
from tests.dpca_tasks.refinement.test_leading_pairs import four_columns

NOISE = {"law": "isometric", "std": 1.0, "step": 2.0**-20, "constant": None}


def released(strengths: tuple[float, ...], order: int = 60) -> Subspace:
    square = np.random.default_rng(3).standard_normal((order, order)) / np.sqrt(2.0)
    matrix = np.diag(np.r_[strengths, np.zeros(order - len(strengths))]) + square + square.T
    return decompose(Moment(matrix=matrix, released=matrix, noise=NOISE), n_components=3)


def test_without_a_refinement_every_array_is_the_mechanisms_to_the_bit():
    raw = released((300.0, 200.0, 100.0))
    made = refine_release(raw, n_components=3).subspace
    for name in ("components", "eigenvalues", "spectrum", "further", "released"):
        np.testing.assert_array_equal(getattr(made, name), getattr(raw, name))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_another_number_of_raw_components_are_the_leading_ones(count):
    raw = released((300.0, 200.0, 100.0))
    made = refine_release(raw, n_components=count).subspace
    assert raw.spectrum is not None
    np.testing.assert_array_equal(made.eigenvalues, raw.spectrum[:count])
    np.testing.assert_array_equal(made.components[:1], raw.components[:1])


@pytest.mark.parametrize(("strengths", "count"), [((300.0, 200.0, 100.0, 90.0), 4), ((300.0,), 1), ((), 1)])
def test_auto_takes_as_many_components_as_stand_above_the_noise_and_one_at_least(strengths, count):
    made = refine_release(released(strengths), n_components="auto", method="auto")
    assert len(made.subspace.components) == count
    assert made.assessment.above_noise == len(strengths)


def test_auto_tries_no_rule_where_the_eigenvectors_hold_nearly_everything():
    clear = refine_release(released((3e4, 2e4, 1e4)), n_components=3, method="auto")
    assert (clear.refined_by, clear.assessment.probes) == ("none", 0)
    assert (clear.assessment.captured_variance_low or 0.0) >= ENOUGH
    assert clear.assessment == refine_release(released((3e4, 2e4, 1e4)), n_components=3).assessment
    assert refine_release(released((40.0, 30.0, 20.0)), n_components=3, method="auto").assessment.probes


def unformed(second_moment: np.ndarray, *, seed: int, count: int, kept: int) -> Subspace:
    """Return what the operator form returns: leading pairs, those beyond ``count`` as further ones."""
    values, rows = leading_eigenpairs(noisy(second_moment, seed=seed).matrix, kept)
    further = rows[count:] if kept > count else None
    return Subspace(components=rows[:count], eigenvalues=values[:count], spectrum=values, further=further, noise=NOISE)


def test_posterior_means_of_a_matrix_that_is_not_formed_use_the_further_pairs():
    """Seeds are fixed. The mean gain of eight is .011, its standard error .006; without further pairs it is 0."""
    second_moment, gains = four_columns(), []
    for seed in range(8):
        pairs, more = (
            refine_release(unformed(second_moment, seed=seed, count=4, kept=kept), n_components=4, method="eb")
            for kept in (4, 12)
        )
        assert pairs.refined_by == more.refined_by == "eb"
        assert more.subspace.further is None
        gains.append(
            captured(second_moment, more.subspace.components) - captured(second_moment, pairs.subspace.components)
        )
    assert np.mean(gains) > 0.005


def test_unrefined_pairs_of_a_matrix_that_is_not_formed_are_those_asked_for():
    raw = unformed(four_columns(), seed=0, count=4, kept=12)
    made = refine_release(raw, n_components=4).subspace
    for name in ("components", "eigenvalues"):
        np.testing.assert_array_equal(getattr(made, name), getattr(raw, name))
    np.testing.assert_array_equal(made.spectrum, raw.eigenvalues)
    assert made.further is None


def test_a_refined_release_keeps_the_spectrum_of_its_matrix_and_no_further_directions():
    raw = released((300.0, 200.0, 100.0))
    made = refine_release(raw, n_components=3, method="eb")
    assert made.refined_by == "eb"
    np.testing.assert_array_equal(made.subspace.spectrum, raw.spectrum)
    assert made.subspace.further is None


@pytest.mark.parametrize(
    ("method", "components", "law", "formed", "told"),
    [
        ("eb", 2, None, False, "releases none"),
        ("none", "auto", None, False, "components=auto"),
        ("spikes", 2, "wishart", True, "needs normal noise"),
        ("all", 2, "laplace", True, "needs normal noise"),
        ("auto", 2, "isometric", False, "operator form"),
    ],
)
def test_a_release_that_cannot_be_refined_so_is_refused_with_the_reason(method, components, law, formed, told):
    with pytest.raises(Refused, match=told):
        check_refinement(method, n_components=components, law=law, formed=formed)


def test_a_verdict_rounds_its_bound_down():
    said = verdict({"above_noise": 8, "cv_low": 0.7199}, n_components=10)
    assert said == (
        "8 of 10 components stand above the noise; the subspace holds at least .71 of the variance that 10 could hold."
    )
    assert [floored(share) for share in (0.9999, 1.0, 0.049)] == [".99", "1.00", ".04"]
    assert "random" in verdict({"above_noise": 0, "cv_low": None}, n_components=10)
