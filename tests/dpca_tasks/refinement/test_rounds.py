"""Numerics of releases in rounds: maps, clip norms, combined answers and components.

Every planted fault must be detected. Reference values are closed forms, dense linear systems, and the exact moments of
rows. Draws are fixed; a tolerance is at least 4 standard deviations of a correct result.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpca_tasks.refinement import rounds as numerics
from dpca_tasks.refinement.leading_pairs import refine
from dpca_tasks.refinement.noisy_moment import NoisyMoment
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import (
    USELESS,
    Answer,
    Estimate,
    Round,
    best_rounds,
    clip_factor,
    combined,
    components,
    continued,
    design,
    proposed,
)
from dpca_tasks.threads import one_thread
from tests.dpca_tasks.refinement.rows_in_rounds import (
    around_mean,
    captured,
    decaying_rows,
    in_rounds,
    isometric_noise,
    moment,
    planted,
)

ROWS = decaying_rows(offset=1.5)
SECOND_MOMENT = ROWS.T @ ROWS
ORDER, COUNT = 40, 4


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def random_map(width, *, order=ORDER, seed=0):
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((order, order)))[0][:, :width]
    return PublicMap.on_grid(directions, rng.uniform(0.05, 1.0, width))


def seen(matrix, *, noise_std=1.0, public_map=None, n_records=1_000.0, **more):
    """Return an estimate that comes from one round with this matrix."""
    public_map = PublicMap.identity(len(matrix)) if public_map is None else public_map
    one = Round(map=public_map, matrix=public_map.around(matrix), noise_std=noise_std)
    return Estimate(matrix=matrix, noise_std=noise_std, rounds=(one,), n_records=n_records, **more)


def test_two_rounds_combine_as_their_closed_form():
    """Combine two rounds with unit vectors as directions: each entry is a weighted mean of the two entries."""
    rng, factors = np.random.default_rng(0), np.array([0.25, 0.5, 0.125, 1.0, 1.0, 1.0])
    first, second = (square + square.T for square in rng.standard_normal((2, 6, 6)))
    mapped = PublicMap.on_grid(np.eye(6)[:, :3], factors[:3])
    answers = [
        Round(map=PublicMap.identity(6), matrix=first, noise_std=2.0),
        Round(map=mapped, matrix=second, noise_std=0.3),
    ]
    both = np.multiply.outer(factors, factors)
    weights = 1 / 2.0**2, both**2 / 0.3**2
    expected = (weights[0] * first + weights[1] * second / both) / sum(weights)
    np.testing.assert_allclose(combined(answers, first), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(combined(answers, np.zeros((6, 6))), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("widths", [(0, 0, 0), (0, 3, 5), (0, 5, 0), (0, 8, 8), (2, 3, 4)])
def test_rounds_combine_to_the_least_squares_estimate(widths):
    order = 8
    answers = []
    for number, width in enumerate(widths):
        square = np.random.default_rng((1, number)).standard_normal((order, order))
        answers.append(
            Round(
                map=random_map(width, order=order, seed=number), matrix=square + square.T, noise_std=1.0 / (number + 1)
            )
        )
    systems = [
        np.kron(whole, whole) / each.noise_std for each in answers for whole in [each.map.forward(np.eye(order))]
    ]
    right = [each.matrix.ravel() / each.noise_std for each in answers]
    expected = np.linalg.lstsq(np.vstack(systems), np.concatenate(right), rcond=None)[0].reshape(order, order)
    found = combined(answers, answers[0].matrix)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(found, found.T)


def noise_is_even_after_the_map(module):
    """Check that noise outside the last map is as stated: the root mean square of 595 entries is within 15 %.

    Outside the last map, all rounds map rows equally.
    """
    public_map, kept = random_map(5), 0.5
    mapped = public_map.around(SECOND_MOMENT)
    first = Round(
        map=PublicMap.identity(ORDER), matrix=SECOND_MOMENT + 2.0 * isometric_noise(ORDER, seed=0), noise_std=2.0
    )
    estimate = Estimate(matrix=first.matrix, noise_std=2.0, rounds=(first,), n_records=4_000.0)
    answer = Answer(
        released=kept * mapped + isometric_noise(ORDER, seed=1),
        noise_std=1.0,
        map=public_map,
        energy=float(np.trace(mapped)),
    )
    found = module.continued(estimate, answer)
    outside = np.linalg.qr(np.hstack([public_map.basis, np.eye(ORDER)]))[0][:, 5:]
    error = (outside.T @ (found.matrix - SECOND_MOMENT) @ outside)[np.triu_indices(ORDER - 5, 1)]
    assert np.sqrt(np.mean(error**2)) == pytest.approx(found.noise_std, rel=0.15)


def first_rounds_are_forecast_around_their_mean(module):
    """Compare the forecast of ``sum |x - m|^2`` around a released mean m with the rows.

    The noise of the mean enters twice: in the sum itself, and in the subtraction from the moment.
    """
    n_rows, noise_std, constant = 2_000, 30.0, 1 / math.sqrt(3.0)
    rows = np.random.default_rng(0).standard_normal((n_rows, ORDER)) * math.sqrt(0.1 / ORDER)
    rows -= rows.mean(axis=0)
    noise = noise_std * isometric_noise(ORDER + 1, seed=0)
    noise[:-1, :-1] = noise[-1, -1] = 0.0
    exact = moment(rows, public_map=PublicMap.identity(ORDER), constant=constant)
    answer = Answer(released=exact + noise, noise_std=noise_std, map=PublicMap.identity(ORDER), constant=constant)
    estimate = module.begun(answer, centred=True)
    found = module.proposed(estimate, n_components=COUNT, noise_std=1.0)
    assert found.energy == pytest.approx(float(np.square(rows - estimate.mean).sum()), rel=0.1)


def third_rounds_are_forecast_before_the_map(module):
    """Compare the forecast of ``sum |T x|^2`` in round 3 with the rows, for the map T; 10 % of error is harmless."""
    _, answers = in_rounds(ROWS, mu=1.0, n_components=COUNT, n_rounds=3, module=module)
    assert min(each.map.width for each in answers[1:]) > 0
    mapped = moment(ROWS, public_map=answers[-1].map, clip_norm=9.0)
    assert answers[-1].energy == pytest.approx(float(np.trace(mapped)), rel=0.1)


def a_mean_that_is_left_is_removed(module):
    """Check that the error of round 1's mean is removed; here it is half of a unit vector.

    Rows have no other variance in that direction.
    """
    away = np.zeros(ORDER)
    away[0] = 0.5
    rows = ROWS * np.r_[0.0, np.ones(ORDER - 1)]
    rows = rows - rows.mean(axis=0) + away
    constant = math.sqrt(1 / 15)
    public_map = PublicMap.identity(ORDER)
    estimate = seen(around_mean(rows), noise_std=1e3, mean=np.zeros(ORDER), n_records=float(len(rows)))
    exact = moment(rows, public_map=public_map, clip_norm=9.0, constant=9.0 * constant)
    answer = Answer(
        released=exact, noise_std=1e-3, map=public_map, clip_norm=9.0, constant=9.0 * constant, energy=np.trace(exact)
    )
    found = module.continued(estimate, answer)
    assert abs(found.matrix[0, 0]) < 1e-3 * len(rows) * 0.25


def components_are_refined_where_the_noise_is_even(module):
    """Check where components are refined, for maps narrower and wider than the number k of components.

    Outside a narrow map, noise is even, and most components are there.
    """
    for width, k in ((3, 4), (6, 4)):
        public_map, exact = random_map(width), np.diag(np.geomspace(900.0, 1.0, ORDER))
        estimate = seen(
            exact + public_map.inverse_around(isometric_noise(ORDER, seed=2)), public_map=public_map, noise_std=1.0
        )
        estimate = replace(estimate, rounds=2 * estimate.rounds)  # a single round with a map would be a warm start
        found = module.components(estimate, n_components=k, method="eb")
        outside = refine(NoisyMoment(matrix=estimate.matrix, noise_std=1.0), n_components=k, method="eb")
        same = float(np.linalg.norm(found.components @ outside.components.T) ** 2)
        assert (same > k - 1e-9) == (width < k)


def maps_are_used_below_the_threshold_alone(module):
    """Check that a map is used only if it reduces the sum of squares below a threshold.

    One direction has part of the variance, so the map leaves about the variance of the rest.
    """
    used = []
    for strength in np.linspace(450.0, 700.0, 30):
        matrix = np.diag(np.r_[strength, np.full(ORDER - 1, (1_000.0 - strength) / (ORDER - 1))])
        estimate = seen(matrix, noise_std=3.0)
        found = design(estimate, n_components=1)
        share = found.energy / 1_000.0
        factor = clip_factor(found, estimate, n_components=1, noise_std=5.0 * share)
        used.append((max(factor, 1.0) * share, module.proposed(estimate, n_components=1, noise_std=5.0).map.width > 0))
    between = [level for level, _ in used if USELESS**2 < level < USELESS]
    assert len(between) > 2
    assert all(width == (level < USELESS) for level, width in used)
    assert 0 < sum(width for _, width in used) < len(used)


FAULTS = [
    (noise_is_even_after_the_map, "noise_std=answer.noise_std / kept", "noise_std=answer.noise_std"),
    (noise_is_even_after_the_map, "matrix=matrix / kept", "matrix=matrix"),
    (
        first_rounds_are_forecast_around_their_mean,
        "added = self.extra if len(self.rounds) == 1 else 0.0",
        "added = 0.0",
    ),
    (
        first_rounds_are_forecast_around_their_mean,
        "share = (found.energy + estimate.extra) / estimate.n_records",
        "share = found.energy / estimate.n_records",
    ),
    (
        third_rounds_are_forecast_before_the_map,
        "edge**2 / mapped[kept]) * lengths[kept]",
        "edge**2 / mapped[kept])",
    ),
    (a_mean_that_is_left_is_removed, " - np.outer(total, total) / count)", ")"),
    (
        components_are_refined_where_the_noise_is_even,
        "mapped = last.map.width >= n_components",
        "mapped = last.map.width > 0",
    ),
    (components_are_refined_where_the_noise_is_even, "mapped = last.map.width >= n_components", "mapped = False"),
    (maps_are_used_below_the_threshold_alone, "if max(factor, 1.0) * share >= USELESS:", "if False:"),
    (
        maps_are_used_below_the_threshold_alone,
        "if max(factor, 1.0) * share >= USELESS:",
        "if math.sqrt(max(factor, 1.0) * share) >= USELESS:",
    ),
]


@pytest.mark.parametrize("check", dict.fromkeys(check for check, *_ in FAULTS), ids=lambda check: check.__name__)
def test_each_numerical_check_holds(check):
    check(numerics)


@pytest.mark.parametrize(("check", "before", "after"), FAULTS)
def test_planted_faults_are_detected(check, before, after):
    with pytest.raises(AssertionError):
        check(planted(numerics, (before, after)))


@pytest.mark.parametrize("outside", [50.0, 1_000.0])
def test_leading_factors_minimise_the_predicted_loss(outside):
    """Change each factor of the k leading directions: the predicted loss must not decrease.

    The factors of further directions are fixed.
    """
    energies = np.geomspace(900.0, 80.0, 6)
    factors = numerics.factors_of(energies, outside, n_components=3, order=200)

    def loss(factors):
        return (outside + factors**2 @ energies) ** 2 * (1.0 / (factors[:3] ** 2 * energies[:3])).sum()

    assert ((factors > 0.0) & (factors <= 1.0)).all()
    for at in range(3):
        for change in (0.97, 1.03):
            moved = factors.copy()
            moved[at] = min(moved[at] * change, 1.0)
            assert loss(moved) >= loss(factors)


def test_clip_factors_grow_as_noise_matters_less_within_their_bounds():
    estimate = seen(np.diag(np.geomspace(900.0, 1.0, ORDER)), noise_std=1.0)
    found = design(estimate, n_components=COUNT)
    assert found.map.width
    factors = [clip_factor(found, estimate, n_components=COUNT, noise_std=std) for std in np.geomspace(1e3, 1e-9, 25)]
    assert factors == sorted(factors)
    assert (factors[0], factors[-1]) == (0.5, 2.5)
    nothing = replace(found, map=PublicMap.identity(ORDER))
    assert clip_factor(nothing, estimate, n_components=COUNT, noise_std=1e-9) == 0.5


@pytest.mark.parametrize("exact", [np.zeros((ORDER, ORDER)), 4.0 * np.eye(ORDER)], ids=["zero", "isotropic"])
def test_moments_without_large_directions_have_no_map(exact):
    # 1 of 100 noise matrices has an eigenvalue above the noise edge, but a map for it is not useful
    for seed in range(20):
        estimate = seen(exact + isometric_noise(ORDER, seed=seed), n_records=4.0 * ORDER)
        found = proposed(estimate, n_components=COUNT, noise_std=0.5)
        assert (found.clip_norm, found.energy) == (1.0, None) or (found.energy or 0.0) < USELESS * 4.0 * ORDER


def test_rounds_without_maps_equal_one_release_with_the_complete_budget():
    rows = np.random.default_rng(0).standard_normal((4_000, ORDER))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    estimate, answers = in_rounds(rows, mu=0.1, n_components=COUNT)
    assert [each.map.width for each in answers] == [0, 0, 0]
    weights = [1 / each.noise_std**2 for each in answers]
    mean = sum(weight * each.matrix for weight, each in zip(weights, estimate.rounds, strict=True)) / sum(weights)
    np.testing.assert_allclose(estimate.matrix, mean, rtol=1e-12)
    assert estimate.noise_std == pytest.approx(1.006 / 0.1 / math.sqrt(2.0), rel=1e-3)
    found = components(estimate, n_components=COUNT)
    plain = refine(NoisyMoment(matrix=estimate.matrix, noise_std=estimate.noise_std), n_components=COUNT)
    np.testing.assert_array_equal(found.components, plain.components)


def test_a_map_that_shrinks_nothing_gives_the_plain_estimate():
    directions = np.linalg.eigh(SECOND_MOMENT)[1][:, :-6:-1]
    unit = PublicMap.on_grid(directions, np.ones(5))
    estimate = seen(SECOND_MOMENT + isometric_noise(ORDER, seed=0))
    released = SECOND_MOMENT + 0.5 * isometric_noise(ORDER, seed=1)
    found = continued(estimate, Answer(released=released, noise_std=0.5, map=unit))
    np.testing.assert_allclose(found.matrix, (estimate.matrix + 4.0 * released) / 5.0, rtol=0, atol=1e-9)
    # components are refined in coordinates that include the map's directions
    rows = components(found, n_components=COUNT, method="eb").components
    plain = refine(NoisyMoment(matrix=found.matrix, noise_std=found.noise_std), n_components=COUNT, method="eb")
    assert captured(SECOND_MOMENT, rows) > captured(SECOND_MOMENT, plain.components) - 1e-4


def test_permuted_columns_are_permuted_in_all_rounds():
    order = np.random.default_rng(7).permutation(ORDER)
    estimate, answers = in_rounds(ROWS, mu=0.3, n_components=COUNT)
    placed = np.ix_(order, order)
    permuted = seen(estimate.rounds[0].matrix[placed], noise_std=answers[0].noise_std, n_records=estimate.n_records)
    first = replace(permuted, matrix=estimate.rounds[0].matrix, rounds=estimate.rounds[:1])
    proposals = [proposed(each, n_components=COUNT, noise_std=5.0) for each in (permuted, first)]
    assert proposals[0].clip_norm == pytest.approx(proposals[1].clip_norm, rel=1e-9)
    np.testing.assert_allclose(
        proposals[0].map.around(permuted.matrix), proposals[1].map.around(first.matrix)[placed], atol=0.1
    )
    rows = [components(each, n_components=COUNT).components for each in (permuted, first)]
    np.testing.assert_allclose(np.abs(rows[0]), np.abs(rows[1][:, order]), atol=1e-6)


def test_rounds_capture_more_than_one_release():
    """Compare captured variance of rounds and of one release around a large mean: the loss falls to a third.

    The loss is the mean of five draws.
    """
    rows, lost, noise_std = decaying_rows(offset=3.0), np.zeros(2), 10.0 / math.sqrt(2.0)
    exact = rows.T @ rows
    for seed in range(5):
        estimate, _ = in_rounds(rows, mu=0.1, n_components=8, seed=seed)
        plain = NoisyMoment(matrix=exact + noise_std * isometric_noise(ORDER, seed=(seed, 5)), noise_std=noise_std)
        found = components(estimate, n_components=8), refine(plain, n_components=8)
        lost += [1.0 - captured(exact, each.components) for each in found]
    assert lost[0] < 0.5 * lost[1]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("mu", [1e-6, 0.05, 3.0, 1e6])
@pytest.mark.parametrize(
    ("n_rows", "order", "k"), [(1, 1, 1), (1, 5, 2), (9, 2, 1), (400, 2, 2), (400, 13, 3), (400, 13, 12), (400, 71, 60)]
)
def test_edge_cases_give_orthonormal_components(n_rows, order, k, mu, centred):
    for rows in (decaying_rows(n_rows, order, offset=0.5), np.zeros((n_rows, order))):
        estimate, answers = in_rounds(rows, mu=mu, n_components=k, centred=centred)
        found = components(estimate, n_components=k)
        np.testing.assert_allclose(found.components @ found.components.T, np.eye(k), atol=1e-9)
        assert np.isfinite(found.values).all()
        assert (np.diff(found.values) <= 1e-9 * abs(found.values[0])).all()
        for each, clipped in zip(answers, estimate.rounds, strict=True):
            assert 0.0 < each.clip_norm <= 2.0
            assert 0.3 <= clipped.kept <= 1.0


@pytest.mark.parametrize(
    ("k", "epsilon", "centred", "rounds"),
    [(5, 0.09, True, 2), (5, 0.1, True, 3), (6, 0.09, True, 3), (1, 0.01, False, 3), (30, 1.0, True, 3)],
)
def test_two_rounds_are_for_few_centred_components_at_a_small_epsilon(k, epsilon, centred, rounds):
    assert best_rounds(k, epsilon=epsilon, centred=centred) == rounds


def test_equal_input_gives_equal_bytes():
    found = [components(in_rounds(ROWS, mu=0.1, n_components=COUNT)[0], n_components=COUNT) for _ in range(2)]
    assert found[0].components.tobytes() == found[1].components.tobytes()
