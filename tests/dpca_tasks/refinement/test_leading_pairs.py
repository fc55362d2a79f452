"""Refined eigenpairs: gains, losses that the method auto avoids, and invariances.

Refinement from the eigenpairs stored in an artifact is also tested. All draws are fixed.
"""

import math
from functools import cache

import numpy as np
import pytest
from scipy.linalg import hadamard

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms import noise_level
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.refinement import leading_pairs, noisy_moment
from dpca_tasks.refinement.leading_pairs import REQUESTS, refine, refine_kept_pairs
from dpca_tasks.refinement.noisy_moment import METHODS, NoisyMoment
from dpca_tasks.threads import one_thread
from tests.dpca_tasks.refinement.rows_in_rounds import KNOWN, captured, isometric_noise, noisy, planted, signal

each_method = pytest.mark.parametrize("method", REQUESTS)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def few_features(order=400, loaded=12):
    """Return a second moment with five components, each in a few features."""
    rng, columns = np.random.default_rng(5), np.zeros((order, 5))
    for column in columns.T:
        column[rng.choice(order, loaded, replace=False)] = rng.standard_normal(loaded)
    return signal(columns, *(math.sqrt(order) * np.array([3.6, 2.4, 1.8, 1.2, 0.9])))


def ruinous():
    """Return a second moment whose weak components are in features where the strong component is zero."""
    rng, columns = np.random.default_rng(5), np.zeros((400, 7))
    columns[:40, 0] = rng.standard_normal(40)
    columns[40:, 1:] = rng.standard_normal((360, 6))
    return signal(columns, *(math.sqrt(400) * np.array([7.0] + [1.4] * 6)))


def avoiding():
    """Return a second moment with one strong component in half of the features, and three weak ones.

    Two of the weak components are in the other half.
    """
    rng, columns = np.random.default_rng(5), np.zeros((600, 4))
    columns[:300, [0, 3]] = rng.standard_normal((300, 2))
    columns[300:, [1, 2]] = rng.standard_normal((300, 2))
    return signal(columns, *(np.array([20000, 1500, 1200, 1000]) / 25.67))


def mean_captured(second_moment, k, method, *, module=leading_pairs, draws=2):
    found = [
        module.refine(noisy(second_moment, seed=seed), n_components=k, method=method).components
        for seed in range(draws)
    ]
    return float(np.mean([captured(second_moment, rows) for rows in found]))


def is_sound(found, k, d):
    return (
        found.components.shape == (k, d)
        and np.allclose(found.components @ found.components.T, np.eye(k), atol=1e-10)
        and np.isfinite(found.values).all()
        and (np.diff(found.values) <= 0).all()
    )


def test_each_method_captures_more_where_features_differ_in_size():
    captured_by = {method: mean_captured(few_features(), 5, method) for method in REQUESTS}
    assert captured_by["none"] < captured_by["eb"] - 0.05
    assert captured_by["eb"] < captured_by["all"]
    assert captured_by["auto"] >= captured_by["spikes"]


@pytest.mark.parametrize(("second_moment", "k"), [(ruinous(), 7), (avoiding(), 4)], ids=["ruinous", "avoiding"])
def test_auto_does_not_refine_where_refinement_would_harm(second_moment, k):
    chosen = [refine(noisy(second_moment, seed=seed), n_components=k).refined_by for seed in range(2)]
    assert chosen == ["none"] * 2


def test_refinement_without_the_guard_of_auto_is_detected():
    assert mean_captured(ruinous(), 7, "spikes", draws=1) < mean_captured(ruinous(), 7, "none", draws=1) - 0.1
    unguarded = planted(leading_pairs, ("return best if gains[best] >= _SAME * abs(base) else BASE", "return BASE"))
    assert unguarded.refine(noisy(ruinous(), seed=0), n_components=7).refined_by != "none"


def test_signals_without_structure_neither_gain_nor_lose():
    rng = np.random.default_rng(5)
    equal = signal(hadamard(128)[:, [0, 5, 77]] / math.sqrt(128), 400.0, 170.0, 100.0)
    low_rank = signal(rng.standard_normal((150, 4)), 300.0, 150.0, 80.0, 40.0)
    for second_moment, k in ((equal, 3), (low_rank, 4)):
        none, auto = (mean_captured(second_moment, k, method) for method in ("none", "auto"))
        assert auto == pytest.approx(none, abs=1e-3)
        found = refine(noisy(second_moment, seed=0), n_components=k)
        assert (found.refined_by, found.scores) == ("none", {})


def scores_of_what_is_the_same(monkeypatch):
    """Return the scores of four methods that find the same subspace; by default, equal subspaces are not scored."""
    monkeypatch.setattr(leading_pairs, "ALIKE", -1.0)
    equal = signal(hadamard(128)[:, [0, 5, 77]] / math.sqrt(128), 400.0, 170.0, 100.0)
    scores = list(refine(noisy(equal, seed=1), n_components=3).scores.values())
    assert len(scores) == 4
    return np.array(scores)


def test_methods_are_compared_on_the_same_probes(monkeypatch):
    scores = scores_of_what_is_the_same(monkeypatch)
    assert np.ptp(scores) < 1e-9 * scores[0]


def test_separate_probes_for_each_method_are_detected(monkeypatch):
    own = leading_pairs.score_by_fission

    def separate(standard, subspaces, *, share, stream):
        return {
            method: own(standard, {method: columns}, share=share, stream=stream + number)[method]
            for number, (method, columns) in enumerate(subspaces.items())
        }

    monkeypatch.setattr(leading_pairs, "score_by_fission", separate)
    scores = scores_of_what_is_the_same(monkeypatch)
    assert np.ptp(scores) > 1e-4 * scores[0]


@pytest.mark.parametrize(
    ("module", "change"),
    [
        (noisy_moment, ("strengths = spike_strengths(values, order=order)", "strengths = values")),
        (noise_level, ("edge = 2.0 * math.sqrt(order)", "edge = 0.0 * math.sqrt(order)")),
    ],
    ids=["eigenvalues for strengths", "no edge"],
)
def test_eigenvalues_in_place_of_strengths_are_detected(module, change, monkeypatch):
    second_moment = few_features()
    right = mean_captured(second_moment, 5, "eb")
    wrong = planted(module, change)
    if module is noisy_moment:
        monkeypatch.setattr(leading_pairs, "frames", wrong.frames)
    else:
        monkeypatch.setattr(noisy_moment, "spike_strengths", wrong.spike_strengths)
    assert mean_captured(second_moment, 5, "eb") < right - 0.03


@pytest.mark.parametrize("factor", [math.sqrt(2), math.sqrt(1 / 2)], ids=["s for t", "s/2 for t"])
def test_a_wrong_noise_size_changes_the_captured_variance(factor):
    second_moment = few_features()
    right = mean_captured(second_moment, 5, "spikes")
    wrong = []
    for seed in range(2):
        moment = noisy(second_moment, seed=seed)
        misjudged = NoisyMoment(matrix=moment.matrix, noise_std=factor)
        wrong.append(captured(second_moment, refine(misjudged, n_components=5, method="spikes").components))
    assert np.mean(wrong) < right - 0.01


@cache
def rank_one_draw(seed, order=500, loaded=50):
    """Return a column of norm 1, a release of 45 times its outer product, and the release's leading eigenpair."""
    rng, column = np.random.default_rng((seed, 1)), np.zeros(order)
    column[:loaded] = rng.standard_normal(loaded)
    column /= np.linalg.norm(column)
    matrix = 45.0 * np.outer(column, column) + isometric_noise(order, seed=seed)
    return column, matrix, *leading_eigenpairs(matrix, 1)


def noise_of_a_step(module):
    """Return the std of the noise that one step of message passing adds to a signal of rank one."""
    noise = []
    for seed in range(12):
        column, matrix, values, rows = rank_one_draw(seed)
        fitted = module._fitted(rows.T * noise_level.spike_strengths(values, order=len(column)))
        state = module._step(matrix, fitted, rows.T)[0][:, 0]
        noise.append(np.std(state - column * (column @ state)))
    return float(np.mean(noise))


def test_a_step_of_message_passing_has_noise_of_unit_size():
    """A step of message passing must have noise of std 1; twelve draws have a standard error of 0.008."""
    assert noise_of_a_step(noisy_moment) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("change", ["+ before", "- 0.0 * before"], ids=["flipped", "missing"])
def test_a_wrong_onsager_term_is_detected(change):
    wrong = planted(noisy_moment, ("_product(matrix, directions) - before", f"_product(matrix, directions) {change}"))
    assert noise_of_a_step(wrong) > 1.03


def test_the_jacobian_is_that_of_differences():
    rng = np.random.default_rng(0)
    noisy_rows = rng.standard_normal((30, 3)) * np.array([3.0, 2.0, 1.0])
    rows = noisy_moment._fitted(noisy_rows)

    def mean_at(at):
        energies = np.maximum((noisy_rows**2).mean(axis=0) - 1.0, 0.02)
        variances = 1.0 + noisy_moment.SCALES[:, None] * energies
        base = -0.5 * ((noisy_rows**2) @ (1 / variances).T + np.log(variances).sum(axis=1))
        moved = -0.5 * ((at**2) @ (1 / variances).T + np.log(variances).sum(axis=1))
        weights = rows.scale_weights * np.exp(moved - base)
        return at * (weights / weights.sum(axis=1, keepdims=True) @ rows.kept)

    step = 1e-6
    for column in range(3):
        moved = np.zeros(3)
        moved[column] = step
        slopes = (mean_at(noisy_rows + moved) - mean_at(noisy_rows - moved)).sum(axis=0) / (2 * step)
        np.testing.assert_allclose(rows.jacobian()[:, column], slopes, atol=1e-6)


@each_method
def test_a_direction_of_large_negative_value_is_not_returned(method):
    direction = np.random.default_rng(1).standard_normal(60)
    direction /= np.linalg.norm(direction)
    moment = NoisyMoment(matrix=isometric_noise(60, seed=0) - 1e4 * np.outer(direction, direction), noise_std=1.0)
    assert np.abs(refine(moment, n_components=3, method=method).components @ direction).max() < 0.1


def test_magnitudes_in_place_of_eigenvalues_are_detected(monkeypatch):
    def by_magnitude(matrix, count):
        values, vectors = np.linalg.eigh(matrix)
        order = np.argsort(-np.abs(values))[:count]
        return values[order], vectors.T[order]

    direction = np.full(60, 60**-0.5)
    monkeypatch.setattr(noisy_moment, "leading_eigenpairs", by_magnitude)
    moment = NoisyMoment(matrix=isometric_noise(60, seed=0) - 1e4 * np.outer(direction, direction), noise_std=1.0)
    assert np.abs(refine(moment, n_components=3, method="none").components @ direction).max() > 0.9


@each_method
@pytest.mark.parametrize(("d", "k"), [(1, 1), (2, 1), (2, 2), (12, 1), (12, 11), (30, 29), (30, 3), (30, 19), (30, 20)])
@pytest.mark.parametrize("strengths", [(), (40.0,), (40.0, 40.0, 40.0)], ids=["none", "one", "tied"])
def test_edge_cases_give_orthonormal_pairs(method, d, k, strengths):
    second_moment = np.diag(np.concatenate([strengths, np.zeros(d)])[:d])
    assert is_sound(refine(noisy(second_moment, seed=d + k), n_components=k, method=method), k, d)


@each_method
@pytest.mark.parametrize("noise_std", [0.0, 5e-324, 1e-300, 1e-12, 1e-3, 1e200])
def test_any_size_of_noise_gives_pairs(method, noise_std):
    moment = NoisyMoment(matrix=KNOWN, noise_std=noise_std)
    found = refine(moment, n_components=3, method=method)
    assert is_sound(found, 3, 40)
    if noise_std <= 1e-12:
        assert captured(KNOWN, found.components) == pytest.approx(1.0)


@each_method
def test_a_matrix_of_zeros_or_a_multiple_of_the_identity_gives_pairs(method):
    for matrix in (np.zeros((30, 30)), 50.0 * np.eye(30)):
        assert is_sound(refine(NoisyMoment(matrix=matrix, noise_std=1.0), n_components=3, method=method), 3, 30)


@pytest.mark.parametrize("constant", [None, 0.5], ids=["as it is", "centred"])
def test_order_signs_and_units_of_columns_change_nothing_else(constant):
    rng = np.random.default_rng(3)
    second_moment = few_features(80, 6)
    if constant is not None:
        second_moment[:-1, -1] = second_moment[-1, :-1] = rng.standard_normal(79)
        second_moment[-1, -1] = 500.0
    moment = noisy(second_moment, seed=4)
    found = refine(NoisyMoment(matrix=moment.matrix, noise_std=1.0, constant=constant), n_components=4)
    features = found.components.shape[1]
    places = np.concatenate([rng.permutation(features), np.arange(features, 80)])
    signs = np.concatenate([rng.choice([-1.0, 1.0], features), np.ones(80 - features)])
    moved = 7.3 * (moment.matrix * np.outer(signs, signs))[np.ix_(places, places)]
    again = refine(
        NoisyMoment(matrix=moved, noise_std=7.3, constant=None if constant is None else constant * math.sqrt(7.3)),
        n_components=4,
    )
    expected = (found.components * signs[:features])[:, places[:features]]
    np.testing.assert_allclose(np.abs(again.components), np.abs(expected), atol=1e-8)
    np.testing.assert_allclose(again.components.T @ again.components, expected.T @ expected, atol=1e-8)
    np.testing.assert_allclose(again.values, 7.3 * found.values, rtol=1e-10)
    assert again.refined_by == found.refined_by


@pytest.mark.parametrize("method", METHODS)
def test_known_eigenpairs_are_not_computed_again(method, monkeypatch):
    moment = noisy(few_features(80, 6), seed=4)
    expected = refine(moment, n_components=4, method=method)
    values, vectors = leading_eigenpairs(moment.matrix, 80)

    def of_small(matrix, count):
        assert len(matrix) < 80, "pairs of the release itself are computed"
        return leading_eigenpairs(matrix, count)

    monkeypatch.setattr(noisy_moment, "leading_eigenpairs", of_small)
    known = NoisyMoment(matrix=moment.matrix, noise_std=1.0, eigenvalues=values, vectors=vectors[:20])
    np.testing.assert_allclose(refine(known, n_components=4, method=method).components, expected.components, atol=1e-8)


def test_probes_in_the_order_of_the_release_are_detected():
    wrong = planted(
        noisy_moment,
        (
            'np.argsort(np.diag(self.source.matrix)[: self.source.order], kind="stable")',
            "np.arange(self.source.order)",
        ),
    )
    moment = wrong.NoisyMoment(matrix=noisy(few_features(80, 6), seed=4).matrix, noise_std=1.0)
    places = np.random.default_rng(3).permutation(80)
    here = refine(moment, n_components=4).scores
    moved = wrong.NoisyMoment(matrix=moment.matrix[np.ix_(places, places)], noise_std=1.0)
    there = refine(moved, n_components=4).scores
    assert max(abs(here[method] - there[method]) for method in METHODS) > 1e-3


@pytest.mark.parametrize(("strength", "tried"), [(0.0, ()), (0.5, ()), (1.5, METHODS)])
def test_auto_refines_nothing_if_no_direction_exceeds_the_noise(strength, tried):
    column = np.zeros(100)
    column[:9] = 1.0 / 3.0
    moment = noisy(strength * math.sqrt(4.0 * 100) * np.outer(column, column), seed=6)
    found = refine(moment, n_components=2)
    assert set(found.scores) == set(tried)
    assert tried or found.components.tobytes() == refine(moment, n_components=2, method="none").components.tobytes()


def test_auto_refines_nothing_if_the_signal_is_equal_in_all_directions(monkeypatch):
    """Refine a signal that is equal in all directions: the method auto must try no refinement.

    Eigenvalues exceed the edge of the noise, but no direction is distinguished once their mean is subtracted.
    """
    moment = noisy(3.0 * np.eye(100), seed=6)
    assert moment.standard.eigenvalues[0] > moment.standard.edge
    assert refine(moment, n_components=2).scores == {}
    monkeypatch.setattr(leading_pairs, "_stands_out", lambda standard: standard.eigenvalues[0] > standard.edge)
    assert set(refine(moment, n_components=2).scores) == set(METHODS)


def test_refinement_applies_to_the_centered_matrix():
    """Refine a release around a private mean: components must belong to the centered matrix, not to the mean."""
    rng = np.random.default_rng(2)
    spread = few_features(100, 8)
    mean = 3.0 * rng.standard_normal(100)
    extended = np.zeros((101, 101))
    extended[:-1, :-1] = spread + 400.0 * np.outer(mean, mean) / 9.0
    extended[:-1, -1] = extended[-1, :-1] = 400.0 * mean / 3.0 * 0.5
    extended[-1, -1] = 400.0 * 0.25
    moment = NoisyMoment(matrix=extended + 0.5 * isometric_noise(101, seed=5), noise_std=0.5, constant=0.5)
    found = refine(moment, n_components=5)
    assert set(found.scores) == set(METHODS)
    assert captured(spread, found.components) > 0.7


@pytest.mark.parametrize("noise", ["wishart", "laplace"])
def test_noise_that_is_not_normal_allows_only_posterior_means(noise):
    moment = NoisyMoment(matrix=noisy(KNOWN, seed=0).matrix, noise_std=1.0, noise=noise)
    assert refine(moment, n_components=3).refined_by == "none"
    assert refine(moment, n_components=3, method="eb").refined_by == "eb"
    for method in ("spikes", "all"):
        with pytest.raises(Refused, match=f"method={method} needs normal noise"):
            refine(moment, n_components=3, method=method)


def test_a_coarse_grid_is_not_scored():
    coarse = NoisyMoment(matrix=np.rint(noisy(KNOWN, seed=0).matrix * 20) / 20, noise_std=1.0, step=0.05)
    assert refine(coarse, n_components=3).scores == {}


@pytest.mark.parametrize(
    ("matrix", "noise_std"),
    [(np.ones((2, 3)), 1.0), (np.array([[0.0, 1.0], [2.0, 0.0]]), 1.0), (np.eye(2), -1.0), (np.eye(2), math.nan)],
)
def test_an_invalid_release_is_refused(matrix, noise_std):
    with pytest.raises(InvalidInput):
        NoisyMoment(matrix=matrix, noise_std=noise_std)
    with pytest.raises(InvalidInput):
        NoisyMoment(matrix=np.full((2, 2), math.inf), noise_std=1.0)
    with pytest.raises(InvalidInput):
        refine(NoisyMoment(matrix=np.eye(2), noise_std=1.0), n_components=3)
    with pytest.raises(InvalidInput):
        refine(NoisyMoment(matrix=np.eye(2), noise_std=1.0), n_components=1, method="best")  # type: ignore[arg-type]
    assert (leading_pairs.PROBES, leading_pairs.FEW, leading_pairs.WIDE) == (4, 2, 500)


def four_columns(order=300):
    rng, columns = np.random.default_rng(5), np.zeros((order, 4))
    for column in columns.T:
        column[rng.choice(order, 10, replace=False)] = rng.standard_normal(10)
    return signal(columns, *(order**0.5 * np.array([3.5, 2.5, 1.8, 1.2])))


def test_refined_stored_pairs_capture_more_variance_but_not_more_than_with_the_matrix():
    second_moment = four_columns()
    gains, costs = [], []
    for seed in range(3):
        moment = noisy(second_moment, seed=seed)
        values, rows = leading_eigenpairs(moment.matrix, 64)
        found = refine_kept_pairs(values, rows, noise_std=1.0, n_components=4)
        assert found.refined_by == "eb"
        np.testing.assert_allclose(found.components @ found.components.T, np.eye(4), atol=1e-10)
        got = captured(second_moment, found.components)
        gains.append(got - captured(second_moment, rows[:4]))
        costs.append(captured(second_moment, refine(moment, n_components=4, method="eb").components) - got)
    assert np.mean(gains) > 0.02
    assert np.mean(costs) > -0.02


@pytest.mark.parametrize("noise_std", [0.0, 1e-300, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize(("d", "kept", "k"), [(1, 1, 1), (2, 2, 1), (12, 12, 3), (30, 5, 5), (30, 20, 3)])
def test_any_pairs_give_orthonormal_rows(d, kept, k, noise_std):
    values, rows = leading_eigenpairs(noisy(np.zeros((d, d)), seed=d).matrix, kept)
    found = refine_kept_pairs(values, rows, noise_std=noise_std, n_components=k)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(k), atol=1e-8)
    assert np.isfinite(found.values).all()


def test_more_pairs_than_are_stored_are_refused():
    with pytest.raises(InvalidInput, match="of stored pairs"):
        refine_kept_pairs(np.ones(3), np.eye(40)[:3], noise_std=1.0, n_components=4)
