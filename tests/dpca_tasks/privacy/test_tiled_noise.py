"""Noise that is never formed: the matrix that the law draws, times integers, exactly, wherever and however often."""

import os
import signal

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.distributions import Symmetric, UpperTriangle
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import tiled_noise
from dpca_tasks.privacy.tiled_noise import (
    DrawnPanel,
    NoiseOperator,
    Panel,
    Strip,
    cut_rows,
    draw_panel,
    multiply,
)

KEY = subkey(bytes(range(32)), label="noise", info=b"")
SCALE = 2.0**28
LAWS = [Symmetric(noise_multiplier=4.0), UpperTriangle(noise_multiplier=4.0)]
each_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)


def drawn(law, order):
    """The matrix by the law itself."""
    matrix = np.zeros((order, order), np.int64)
    matrix[np.triu_indices(order)] = law.draw(KEY, order, scale_in_steps=SCALE)
    return matrix + np.triu(matrix, 1).T


def directions(order, width, seed=0):
    columns = np.linalg.qr(np.random.default_rng(seed).standard_normal((order, width)))[0]
    return np.rint(columns * 2**15).astype(np.int64)


def operator(law, order, **options):
    return NoiseOperator(law, KEY, order=order, scale_in_steps=SCALE, **options)


@each_law
@pytest.mark.parametrize("order", [1, 2, 150])
def test_the_product_is_that_of_the_drawn_matrix(law, order):
    asked = directions(order, min(order, 7))
    np.testing.assert_array_equal(operator(law, order).begin(asked)(), drawn(law, order) @ asked)


@each_law
@pytest.mark.parametrize(("first", "last"), [(0, 40), (0, 1), (17, 29), (39, 40), (40, 40)])
def test_a_strip_is_a_part_of_the_drawn_matrix(law, first, last):
    strip = law.draw_strip(KEY, 40, scale_in_steps=SCALE, first=first, last=last)
    np.testing.assert_array_equal(strip, drawn(law, 40)[first:last, first:])


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2), (3, 41)])
def test_rows_outside_the_matrix_are_refused(first, last):
    with pytest.raises(InvalidInput, match="must lie in"):
        LAWS[0].draw_strip(KEY, 40, scale_in_steps=SCALE, first=first, last=last)


def test_a_scale_beyond_exact_noise_is_refused():
    with pytest.raises(InvalidInput, match="grid steps"):
        LAWS[0].draw_strip(KEY, 4, scale_in_steps=2.0**31, first=0, last=4)


@pytest.mark.parametrize(("inner", "entries", "own"), [(3, 1 << 24, 1 << 31), (1 << 10, 200, 1 << 31), (7, 1, 0)])
def test_strips_and_memory_are_performance_settings(monkeypatch, inner, entries, own):
    expected = drawn(LAWS[0], 60) @ directions(60, 5)
    for name, value in (("INNER", inner), ("STRIP_ENTRIES", entries), ("OWN_MEMORY", own)):
        monkeypatch.setattr(tiled_noise, name, value)
    noise = operator(LAWS[0], 60)
    for _ in range(2):  # drawn, then kept or drawn again
        np.testing.assert_array_equal(noise.begin(directions(60, 5))(), expected)


def test_products_of_the_largest_numbers_are_exact():
    """Noise of 16.1 std at the largest scale, all of one sign, against a column of the largest norm."""
    order = tiled_noise.INNER
    largest = np.floor(16.1 * SCALE) - np.arange(order * order).reshape(order, order) % 3
    entry = int(2**15.5 / order**0.5)
    asked = np.full((order, 2), entry) - np.arange(2)
    panel = DrawnPanel(drawn=(Strip(0, largest),))
    exact = largest.astype(object) @ asked.astype(object)
    np.testing.assert_array_equal(multiply(panel, asked), exact.astype(np.int64))


@pytest.mark.parametrize("share", [0.3, 0.0], ids=["kept", "drawn again"])
def test_workers_give_the_bits_of_one_process(client, monkeypatch, share):
    monkeypatch.setattr(tiled_noise, "SHARE", share)
    monkeypatch.setattr(tiled_noise, "FAN_IN", 2)
    noise = operator(LAWS[0], 150, client=client)
    for seed in range(2):
        asked = directions(150, 6, seed)
        np.testing.assert_array_equal(noise.begin(asked)(), operator(LAWS[0], 150).begin(asked)())


@pytest.mark.timeout(60)
def test_noise_lost_with_the_last_worker_is_drawn_again(alone):
    noise, asked = operator(LAWS[0], 150, client=alone), directions(150, 6)
    expected = operator(LAWS[0], 150).begin(asked)()
    np.testing.assert_array_equal(noise.begin(asked)(), expected)
    product = noise.begin(asked)
    for pid in alone.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_array_equal(product(), expected)


def test_noise_has_variance_one_on_the_diagonal_and_a_half_beside_it():
    """Chi-square of the sums of squares at a fixed key: a right law is refused with probability 1e-4, twice."""
    order = 300
    matrix = operator(LAWS[0], order).begin(np.eye(order, dtype=np.int64))() / SCALE
    np.testing.assert_array_equal(matrix, matrix.T)
    for entries, variance in ((np.diag(matrix), 1.0), (matrix[np.triu_indices(order, 1)], 0.5)):
        tail = stats.chi2.cdf(np.square(entries).sum() / variance, entries.size)
        assert 5e-5 < tail < 1 - 5e-5


@pytest.mark.parametrize(("order", "parts"), [(1, 8), (10, 3), (20_000, 8), (1_000_000, 64)])
def test_panels_cover_all_rows_and_have_about_equal_areas(order, parts):
    bounds = np.array(cut_rows(order, parts), np.float64)
    assert (bounds[0], bounds[-1]) == (0, order)
    assert (np.diff(bounds) >= 0).all()
    areas = np.diff(bounds * order - bounds * (bounds - 1) / 2)
    assert np.abs(areas - areas.mean()).max() <= 2 * order


def test_neither_key_nor_noise_shows():
    panel = Panel(distribution=LAWS[0], key=KEY, order=8, scale_in_steps=SCALE, first=0, last=8)
    assert KEY.secret.hex() not in repr(panel)
    assert repr(KEY.secret) not in repr(panel)
    assert repr(draw_panel(panel)) == "DrawnPanel()"
    assert draw_panel(panel).__sizeof__() == 8 * 8 * 8
