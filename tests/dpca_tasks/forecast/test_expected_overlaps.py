"""Expected overlaps compared with draws. All seeds are fixed; tolerances are five standard errors or more."""

import numpy as np
import pytest

from dpca_tasks.forecast.expected_overlaps import (
    Iterations,
    overlaps_with_draws,
    overlaps_with_iterations,
    overlaps_with_matrix,
    overlaps_with_noised,
)
from dpca_tasks.noise.bingham import STEPS_PER_UNIT, Peeling
from dpca_tasks.noise.keystream import subkey
from tests.dpca_tasks.refinement.noisy import isometric_noise

ORDER, K = 120, 6
SPECTRA = {
    "spikes": np.r_[200.0, 90.0, 60.0, 35.0, np.ones(ORDER - 4)],
    "power": 900.0 / np.arange(1.0, ORDER + 1.0),
    "slow": 200.0 * np.arange(1.0, ORDER + 1.0) ** -0.3,
    "flat": np.full(ORDER, 10.0),
}

each_spectrum = pytest.mark.parametrize("strengths", SPECTRA.values(), ids=SPECTRA)


def captured(overlaps, strengths):
    return float(overlaps @ strengths / np.sort(strengths)[-K:].sum())


def wishart_noise(rng, std):
    one, other = (rng.standard_normal((ORDER + 1, ORDER)) for _ in range(2))
    return (one.T @ one - other.T @ other) * std / np.sqrt(2.0 * (ORDER + 1))


@pytest.mark.parametrize("wishart", [False, True], ids=["semicircle", "wishart"])
@pytest.mark.parametrize("std", [3.0, *(pytest.param(std, marks=pytest.mark.audit_only) for std in (1.0, 9.0))])
@each_spectrum
def test_leading_eigenvectors_of_a_noisy_matrix_capture_what_is_expected(strengths, std, wishart):
    expected = captured(overlaps_with_matrix(strengths, n_components=K, noise_std=std, wishart=wishart), strengths)
    rng, found = np.random.default_rng(3), []
    for draw in range(12):
        noise = wishart_noise(rng, std) if wishart else std * isometric_noise(ORDER, seed=draw)
        vectors = np.linalg.eigh(np.diag(strengths) + noise)[1][:, -K:]
        found.append(captured((vectors**2).sum(axis=1), strengths))
    assert expected == pytest.approx(np.mean(found), abs=0.03)


@pytest.mark.parametrize("scale", [0.2, 1.0, 4.0])
@each_spectrum
def test_directions_drawn_one_by_one_capture_what_is_expected(strengths, scale):
    overlaps = overlaps_with_draws(strengths, n_components=K, scale=scale)
    peeling = Peeling(n_components=K, epsilon=1.0, delta=0.0)
    found = []
    for draw in range(4):
        key = subkey(bytes([draw]) * 32, label="noise", info=b"")
        rows = peeling.draw(key, np.diag(strengths), scale=scale) / STEPS_PER_UNIT
        found.append(captured((rows**2).sum(axis=0), strengths))
    assert captured(overlaps, strengths) == pytest.approx(np.mean(found), abs=0.08)


def test_components_without_variance_are_drawn_as_well():
    """Two directions hold everything, and the scale is such that the draws find a fifth of it."""
    strengths = np.where(np.arange(40) < 2, 20.0, 0.0)
    peeling = Peeling(n_components=2, epsilon=1.0, delta=0.0)
    found = []
    for draw in range(40):
        key = subkey(bytes([draw]) * 32, label="noise", info=b"")
        rows = peeling.draw(key, np.diag(strengths), scale=4.0) / STEPS_PER_UNIT
        found.append(captured((rows**2).sum(axis=0), strengths))
    expected = captured(overlaps_with_draws(strengths, n_components=2, scale=4.0), strengths)
    assert expected == pytest.approx(np.mean(found), abs=0.06)
    assert expected < 0.4


@each_spectrum
def test_overlaps_sum_to_the_number_of_directions_and_no_noise_finds_the_best(strengths):
    iterations = Iterations(n_components=K, steps=6, noise_std=2.0, width=K + 2)
    for overlaps in (
        overlaps_with_matrix(strengths, n_components=K, noise_std=2.0),
        overlaps_with_draws(strengths, n_components=K, scale=1.0),
        overlaps_with_noised(strengths, n_components=K, noise=0.5),
        overlaps_with_iterations(strengths, iterations),
    ):
        assert overlaps.sum() == pytest.approx(K)
        assert overlaps.min() >= -1e-12
        assert overlaps.max() <= 1.0 + 1e-9
    assert captured(overlaps_with_matrix(strengths, n_components=K, noise_std=0.0), strengths) == pytest.approx(1.0)
    assert captured(overlaps_with_noised(strengths, n_components=K, noise=np.inf), strengths) == pytest.approx(
        K / ORDER * strengths.sum() / np.sort(strengths)[-K:].sum()
    )


def test_binning_of_many_weak_strengths_changes_nothing_seen():
    many = np.r_[400.0, 200.0, np.full(1_198, 0.5)]
    fewer_bins = overlaps_with_matrix(many, n_components=2, noise_std=3.0)
    theta = np.array([400.0, 200.0]) - 0.5
    assert fewer_bins[:2] == pytest.approx(1.0 - 9.0 * 1_200 / theta**2, abs=0.01)
