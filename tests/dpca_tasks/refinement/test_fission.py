"""Approximate eigenpairs, and scores of refinement methods by data fission: unbiased, with planted faults detected.

A few products must find all components above the noise, in either precision; if they cannot, the matrix is decomposed
completely. A score's bias is compared with its standard error over fixed draws; a correct score exceeds 4 standard
errors with probability 6e-5 per statistic.
"""

import inspect
import math
from itertools import product

import numpy as np
import pytest

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.refinement import leading_pairs, noisy_moment
from dpca_tasks.refinement.leading_pairs import SHORT, depth, nearly_leading_eigenpairs, shortened
from dpca_tasks.refinement.noisy_moment import Method, NoisyMoment, frames, standardised, width
from dpca_tasks.threads import one_thread
from tests.dpca_tasks.refinement.rows_in_rounds import KNOWN, SPACE, held, isometric_noise, noisy, planted

ORDER, COUNT = 400, 12
SIGNAL = np.diag(np.r_[np.linspace(200.0, 60.0, 6), np.linspace(38.0, 0.0, ORDER - 6)])
RELEASED = SIGNAL + isometric_noise(ORDER, seed=1)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.mark.parametrize("matrix", [RELEASED, shortened(RELEASED, COUNT)], ids=["double", "single"])
def test_pairs_above_the_noise_are_found_and_others_capture_as_much_variance(matrix):
    assert depth(ORDER, COUNT)
    values, rows = nearly_leading_eigenpairs(matrix, COUNT)
    expected, exact = leading_eigenpairs(RELEASED, COUNT)
    np.testing.assert_allclose(values[:4], expected[:4], rtol=1e-6)
    np.testing.assert_allclose(values[:6], expected[:6], rtol=1e-3)
    np.testing.assert_allclose(rows[:4], exact[:4], atol=1e-3)
    assert (values <= expected * (1 + 1e-6)).all()
    np.testing.assert_allclose(rows @ rows.T, np.eye(COUNT), atol=1e-12)
    assert held(SIGNAL, rows) > 0.98 * held(SIGNAL, exact)
    assert rows.dtype == values.dtype == np.float64


def test_too_few_products_are_detected(monkeypatch):
    monkeypatch.setattr(leading_pairs, "DEEPER", 0.5)
    assert held(SIGNAL, nearly_leading_eigenpairs(RELEASED, COUNT)[1]) < 0.97 * held(
        SIGNAL, leading_eigenpairs(RELEASED, COUNT)[1]
    )


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((ORDER, ORDER)), np.eye(ORDER), 1e15 * SIGNAL, -RELEASED],
    ids=["zeros", "tied", "huge", "below"],
)
def test_any_matrix_gives_orthonormal_pairs(matrix):
    values, rows = nearly_leading_eigenpairs(shortened(matrix, COUNT), COUNT)
    np.testing.assert_allclose(rows @ rows.T, np.eye(COUNT), atol=1e-12)
    assert (np.diff(values) <= 0).all()
    assert np.abs(values).max() <= np.abs(np.linalg.eigvalsh(matrix)).max() * (1 + 1e-5)


def test_a_small_matrix_is_decomposed():
    small = RELEASED[:100, :100]
    assert depth(100, COUNT) == 0
    for found, expected in zip(nearly_leading_eigenpairs(small, COUNT), leading_eigenpairs(small, COUNT), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_single_precision_is_for_entries_whose_rounding_the_noise_hides():
    assert shortened(RELEASED, COUNT).dtype == np.float32
    assert shortened(RELEASED[:100, :100], COUNT).dtype == np.float64
    assert shortened(RELEASED * SHORT, COUNT).dtype == np.float64


def test_equal_input_gives_equal_bits():
    first, second = (nearly_leading_eigenpairs(shortened(RELEASED, COUNT), COUNT) for _ in range(2))
    assert first[1].tobytes() == second[1].tobytes()


SURE = 4.0  # standard errors
WIDER = np.diag(np.concatenate([[80.0, 50.0, 30.0, 20.0, 18.0, 16.0], np.linspace(15.0, 0.0, 294)]))


def error_in_standard_errors(errors):
    return float(np.mean(errors) / (np.std(errors, ddof=1) / math.sqrt(len(errors))))


def eigenvalue_errors(module, *, declared_std=1.0, draws=300, moment=noisy):
    """Return, for many draws, the score by eigenvalues minus the variance captured by the leading eigenvectors."""
    errors = []
    for seed in range(draws):
        standard = standardised(moment(KNOWN, seed=seed))
        values, rows = np.linalg.eigh(standard.moment)
        truth = KNOWN[np.ix_(standard.order, standard.order)]
        shown = standardised(NoisyMoment(matrix=standard.moment, noise_std=declared_std))
        score = module.score_by_eigenvalues(shown, values[::-1] / declared_std, n_components=3)
        errors.append(score.total * declared_std - np.einsum("ji,jk,ki->", rows[:, -3:], truth, rows[:, -3:]))
    return np.array(errors)


def fission_errors(module, *, draws=80, share=0.5, second_moment=KNOWN):
    """Return, for each draw, scores by fission minus the variance captured by subspaces found with more noise.

    Each draw has fresh probes.
    """
    methods: tuple[Method, ...] = ("none", "spikes")
    errors: dict[Method, list[float]] = {method: [] for method in methods}
    order = len(second_moment)
    for seed in range(draws):
        standard = standardised(noisy(second_moment, seed=seed))
        found = frames(standard.moment, n_components=3, methods=methods)
        scores = module.score_by_fission(
            standard, {method: columns for method, (_, columns) in found.items()}, share=share, stream=1_000 + seed
        )
        truth = (second_moment * np.outer(standard.signs, standard.signs))[np.ix_(standard.order, standard.order)]
        held: dict[Method, list[float]] = {method: [] for method in methods}
        for probe, sign in product(range(module.PROBES), (1.0, -1.0)):
            noise = sign * leading_pairs.public_noise(order, stream=1_000 + seed, probe=probe)
            louder = (standard.moment + share * math.sqrt(2) * noise) / math.hypot(1.0, share)
            pairs = nearly_leading_eigenpairs(louder, width(order, 3))
            for method, (_, columns) in frames(louder, n_components=3, methods=methods, pairs=pairs).items():
                held[method].append(np.einsum("ji,jk,ki->", columns, truth, columns, optimize=True))
        for method, score in scores.items():
            errors[method].append(score.total - np.mean(held[method]))
    return {method: np.array(found) for method, found in errors.items()}


@pytest.fixture
def few_probes(monkeypatch):
    monkeypatch.setattr(leading_pairs, "PROBES", 2)
    return ("PROBES, FEW = 4, 2", "PROBES, FEW = 2, 2")


def test_the_score_by_eigenvalues_is_unbiased():
    errors = eigenvalue_errors(leading_pairs)
    assert abs(error_in_standard_errors(errors)) < SURE
    assert errors.std() / math.sqrt(len(errors)) < 0.3  # the standard error is small enough to detect a bias of 1.2


def test_the_stated_deviation_of_that_score_is_that_of_its_error():
    declared = []
    for seed in range(100):
        standard = standardised(noisy(KNOWN, seed=seed))
        declared.append(
            leading_pairs.score_by_eigenvalues(standard, np.linalg.eigvalsh(standard.moment)[::-1], n_components=3)
        )
    assert (
        np.median([score.std for score in declared if score is not None])
        > 0.9 * eigenvalue_errors(leading_pairs, draws=100).std()
    )


def report_errors(module, *, draws=40):
    """Return the errors of scores of the method spikes, and the standard deviations that the scores state."""
    errors, declared = [], []
    for seed in range(draws):
        standard = standardised(noisy(KNOWN, seed=seed))
        columns = frames(standard.moment, n_components=3, methods=("spikes",))["spikes"][1]
        score = module.score_by_fission(standard, {"spikes": columns}, share=0.2, stream=1_000 + seed)["spikes"]
        truth = (KNOWN * np.outer(standard.signs, standard.signs))[np.ix_(standard.order, standard.order)]
        errors.append(score.total - np.einsum("ji,jk,ki->", columns, truth, columns))
        declared.append(score.std)
    return np.array(errors), np.array(declared)


def test_the_stated_deviation_of_scores_by_fission_is_no_less_than_that_of_their_error():
    errors, declared = report_errors(leading_pairs)
    assert math.sqrt(np.mean(declared**2)) > errors.std(ddof=1)


def test_a_deviation_from_probes_alone_is_detected():
    errors, declared = report_errors(planted(leading_pairs, ("math.sqrt(variance + spread)", "math.sqrt(spread)")))
    assert math.sqrt(np.mean(declared**2)) < 0.7 * errors.std(ddof=1)


@pytest.mark.parametrize(
    "change",
    [
        ("2.0 * inverse.sum(axis=1)", "1.0 * inverse.sum(axis=1)"),
        ("- 2.0 * inverse.sum(axis=1)", "+ 2.0 * inverse.sum(axis=1)"),
        ("inverse = 1.0 / gaps", "inverse = 1.0 / np.abs(values[:n_components, None] - values + 1e-3)"),
    ],
    ids=["t^2 for 2 t^2", "sign", "all j"],
)
def test_a_wrong_inner_sum_is_detected(change):
    assert abs(error_in_standard_errors(eigenvalue_errors(planted(leading_pairs, change)))) > 2 * SURE


def around_a_mean(length, *, count=100.0):
    """Return the extended second moment of records whose centred second moment is KNOWN, and whose mean is not 0."""
    mean = np.random.default_rng(3).standard_normal(len(KNOWN)) + np.r_[6.0, 3.0, np.zeros(38)]
    extended = np.append(mean * length / np.linalg.norm(mean), 1.0)
    whole = count * np.outer(extended, extended)
    whole[:-1, :-1] += KNOWN
    return whole


def centred_scores(module, *, length, draws=300):
    """Return the errors of scores from eigenvalues after centring, and the standard deviations that they state."""
    errors, stated, exact = [], [], around_a_mean(length)
    for seed in range(draws):
        matrix = exact + isometric_noise(len(exact), seed=seed)
        standard = standardised(NoisyMoment(matrix=matrix, noise_std=1.0, constant=0.01))
        score = module.score_by_eigenvalues(standard, standard.eigenvalues, n_components=3)
        rows = standard.own_rows(standard.leading(3)[1].T)
        errors.append(score.total - np.einsum("ij,jk,ik->", rows, KNOWN, rows))
        stated.append(score.std)
    return np.array(errors), np.array(stated)


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 3.0])
def test_the_score_by_eigenvalues_is_unbiased_after_centring(length):
    errors, stated = centred_scores(leading_pairs, length=length)
    assert abs(error_in_standard_errors(errors)) < SURE
    assert math.sqrt(np.mean(stated**2)) > 0.9 * errors.std()
    # The bound of two standard deviations fails in about 5 of 100 draws. In 300 draws, a bound that fails as often
    # fails more than 31 times with probability 1e-4.
    assert (errors > 2.0 * stated).sum() <= 31


def test_a_score_that_ignores_the_noise_of_the_mean_is_detected():
    wrong = planted(leading_pairs, ("own, both = 1.0 + along**2,", "own, both = np.ones_like(along),"))
    assert abs(error_in_standard_errors(centred_scores(wrong, length=3.0)[0])) > 2 * SURE


def test_the_centred_score_needs_no_eigenvectors_beyond_the_components(monkeypatch):
    """Compare with the formula that uses all eigenvectors."""
    monkeypatch.setattr(leading_pairs, "NODES", 40)
    exact = around_a_mean(2.0)
    moment = NoisyMoment(matrix=exact + isometric_noise(len(exact), seed=1), noise_std=1.0, constant=0.01)
    standard = standardised(moment)
    values, vectors = (found[..., ::-1] for found in np.linalg.eigh(standard.moment))
    mean = (vectors.T @ standard.mean) ** 2
    for count in (1, 3, 39):
        score = leading_pairs.score_by_eigenvalues(standard, values, n_components=count)
        assert score is not None
        own, other = mean[:count, None], mean[None, count:]
        moved = ((1 + own + other + 2 * own * other) / (values[:count, None] - values[None, count:])).sum(axis=1)
        added = (1 + 2 * mean[:count]) / standard.released[-1, -1]
        np.testing.assert_allclose(score.parts, values[:count] - 2 * moved + added, rtol=1e-9)
    of_all = leading_pairs.score_by_eigenvalues(standard, values, n_components=40)
    assert of_all is not None
    np.testing.assert_allclose(of_all.total, values.sum() + (40 + 2 * mean.sum()) / standard.released[-1, -1])


@pytest.mark.parametrize("wrong", [math.sqrt(2), math.sqrt(1 / 2)], ids=["s for t", "s/2 for t"])
def test_a_wrong_noise_size_is_detected(wrong):
    assert abs(error_in_standard_errors(eigenvalue_errors(leading_pairs, declared_std=wrong))) > 2 * SURE


def test_scores_by_fission_are_unbiased_for_any_rule(few_probes):
    for errors in fission_errors(leading_pairs).values():
        assert abs(error_in_standard_errors(errors)) < SURE
        assert errors.std() / math.sqrt(len(errors)) < 0.8


def test_exchanged_parts_of_the_fission_are_detected(few_probes):
    wrong = planted(
        leading_pairs,
        few_probes,
        ("scale = share * _DIAGONAL", "scale = _DIAGONAL / share"),
        ("-sign * _DIAGONAL / share", "-sign * _DIAGONAL * share"),
    )
    for errors in fission_errors(wrong, draws=30).values():
        assert abs(error_in_standard_errors(errors)) > 2 * SURE


def test_probes_with_one_sign_are_detected_by_the_spread_of_errors(few_probes):
    right = fission_errors(leading_pairs, draws=30)
    wrong = planted(leading_pairs, few_probes, ("for sign in (1.0, -1.0)", "for sign in (1.0, 1.0)"))
    for method, errors in fission_errors(wrong, draws=30).items():
        assert errors.std() > 1.3 * right[method].std()


def test_scores_of_a_rule_that_does_not_converge_are_unbiased(few_probes):
    """Score subspaces of 300 columns, where probes use only a few products that do not converge.

    Many components are at the edge of the noise.
    """
    assert depth(len(WIDER), width(len(WIDER), 3))
    for errors in fission_errors(leading_pairs, draws=24, second_moment=WIDER).values():
        assert abs(error_in_standard_errors(errors)) < SURE
        assert errors.std() / math.sqrt(len(errors)) < 1.5


def test_a_probe_that_starts_from_the_releases_eigenvectors_is_detected(few_probes, monkeypatch):
    """Plant a probe that starts from the release's own eigenvectors: its scores must be biased.

    The release's eigenvectors contain its noise, which the other part of the fission also contains.
    """
    errors = []
    for seed in range(8):
        standard = standardised(noisy(WIDER, seed=seed))
        values, rows = np.linalg.eigh(standard.moment)
        own = values[:-14:-1], rows.T[:-14:-1]
        monkeypatch.setattr(leading_pairs, "nearly_leading_eigenpairs", lambda *_, own=own: own)
        score = leading_pairs.score_by_fission(standard, {"none": own[1][:3].T}, share=0.5, stream=seed)["none"]
        truth = (WIDER * np.outer(standard.signs, standard.signs))[np.ix_(standard.order, standard.order)]
        errors.append(score.total - np.einsum("ij,jk,ik->", own[1][:3], truth, own[1][:3], optimize=True))
    assert error_in_standard_errors(errors) > 2 * SURE


def test_probes_equal_to_the_noise_are_detected(few_probes, monkeypatch):
    """Plant a probe equal to the release's own noise: its scores must be biased.

    One part of the fission is then the signal itself, and the other has more noise.
    """
    errors = []
    for seed in range(30):
        standard = standardised(noisy(KNOWN, seed=seed))
        own = (standard.released - KNOWN[np.ix_(standard.order, standard.order)]) / math.sqrt(2)
        monkeypatch.setattr(leading_pairs, "public_noise", lambda *_, own=own, **__: own)
        columns = frames(standard.moment, n_components=3, methods=("none",))["none"][1]
        score = leading_pairs.score_by_fission(standard, {"none": columns}, share=0.5, stream=0)["none"]
        seen = frames(
            (standard.moment + 0.5 * math.sqrt(2) * own) / math.hypot(1, 0.5), n_components=3, methods=("none",)
        )
        truth = KNOWN[np.ix_(standard.order, standard.order)]
        errors.append(score.total - np.einsum("ji,jk,ki->", seen["none"][1], truth, seen["none"][1]))
    assert abs(error_in_standard_errors(errors)) > 2 * SURE


def test_probes_are_isotropic_and_equal_for_all_releases():
    first, second = (leading_pairs.public_noise(60, stream=1, probe=probe) for probe in (0, 1))
    assert np.array_equal(first, leading_pairs.public_noise(60, stream=1, probe=0))
    assert not np.allclose(first, second)
    assert not np.allclose(first, leading_pairs.public_noise(60, stream=2, probe=0))
    assert np.array_equal(first, first.T)
    # the sum of squares is a chi-square of 1,830 degrees of freedom: 5 standard deviations are 0.17 of its mean
    assert (first**2).sum() / (60 * 61 / 2) == pytest.approx(1.0, abs=0.17)
    assert abs((first * second).sum()) < 5 * math.sqrt(60 * 61 / 2)


def test_a_refinement_depends_on_the_released_matrix_and_public_numbers_alone():
    names = set(inspect.signature(NoisyMoment).parameters)
    assert names == {"matrix", "noise_std", "noise", "constant", "step", "eigenvalues", "vectors", "constraints"}
    assert set(inspect.signature(leading_pairs.refine).parameters) == {"moment", "n_components", "method"}
    assert set(inspect.signature(leading_pairs.public_noise).parameters) == {"order", "stream", "probe"}
    for module in (leading_pairs, noisy_moment, leading_pairs, noisy_moment):
        imported = [line for line in inspect.getsource(module).splitlines() if "import" in line]
        assert not any(
            word in line for line in imported for word in ("keystream", "dpca_tasks.noise.", "privacy", "queries")
        )


def test_noise_that_is_not_isometric_and_normal_is_refused():
    bound = NoisyMoment(matrix=KNOWN[:24, :24], noise_std=1.0, constraints=SPACE)
    with pytest.raises(Refused, match="use score_by_fission"):
        leading_pairs.score_by_eigenvalues(standardised(bound), np.arange(24.0)[::-1], n_components=3)
    wishart = standardised(NoisyMoment(matrix=KNOWN, noise_std=1.0, noise="wishart"))
    with pytest.raises(Refused, match="needs normal noise"):
        leading_pairs.score_by_fission(wishart, {"none": np.eye(40)[:, :3]}, share=0.5, stream=0)


def test_noise_in_the_upper_triangle_gets_additional_noise_on_the_diagonal(monkeypatch):
    """Score releases with noise in the upper triangle only, whose diagonal gets additional noise.

    Each draw needs separate additional noise, because a constant one would contribute a constant error.
    """

    def upper_triangle(second_moment, *, seed):
        monkeypatch.setattr(noisy_moment, "PUBLIC_SEED", seed)
        triangle = np.triu(np.random.default_rng(seed).standard_normal(second_moment.shape))
        matrix = second_moment + triangle + np.triu(triangle, 1).T
        return NoisyMoment(matrix=matrix, noise_std=1.0, noise="upper_triangle")

    assert abs(error_in_standard_errors(eigenvalue_errors(leading_pairs, moment=upper_triangle))) < SURE
    diagonals = [np.diag(standardised(upper_triangle(np.zeros((40, 40)), seed=seed)).released) for seed in range(100)]
    # 5 standard deviations of the variance of 4,000 draws are 0.22
    assert np.var(diagonals) == pytest.approx(2.0, abs=0.25)


def test_eigenvalues_that_tie_across_the_kth_have_no_score():
    standard = standardised(NoisyMoment(matrix=np.eye(20), noise_std=0.1))
    assert leading_pairs.score_by_eigenvalues(standard, np.full(20, 10.0), n_components=3) is None
