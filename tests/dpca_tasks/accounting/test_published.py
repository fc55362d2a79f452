"""Published noise formulas and the true epsilons of their events.

Formulas must reproduce the numbers printed in their papers. In the table of stated and true epsilons, the two ends of
every bracket must agree with each other and with other accountants.

Movement of DP-VRPCA's directions in an epoch: no adversarial rows exceed the proved bound, and some come close.
Simulated epochs have the printed steps and noise of 3,000 records of eight features. The bounds are at a failure
probability of 1e-6, so a search over sixty epochs breaks a correct bound with probability below 1e-4.
"""

import dataclasses
import math
from functools import cache, partial

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import correlated_inflation, smooth_cauchy_bracket, smooth_gaussian_bracket
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.accounting.events import checked, is_private, leaves, parts_of
from dpca_tasks.accounting.published import (
    FORMULAS,
    Settings,
    dp_spca_bound,
    dp_spca_variances,
    published_noise,
    refusal,
)
from dpca_tasks.accounting.smooth_sensitivity import gaussian_shift, hockey_stick
from dpca_tasks.accounting.truth import CASES, Truth, cases_of, truth_of
from dpca_tasks.accounting.vrpca_movement import Epoch, corrections, movement_bracket
from dpca_tasks.errors import InvalidInput, Refused

A9A = Settings(epsilon=0.1, delta=1e-3, n_features=123, n_records=32561, steps=32561)
RECORDS = {"a9a": 32561, "mnist": 60000, "cifar": 50000, "realsim": 72309}


def noise(name: str, **changes: object) -> float:
    return FORMULAS[name].noise(dataclasses.replace(A9A, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMULAS)
def test_every_formula_has_a_noise_level_and_a_known_event(name: str) -> None:
    requested = Settings(
        epsilon=0.5, delta=1e-5, n_features=5, n_components=2, n_records=1000, steps=20, mix=0.1, sites=4
    )
    row = FORMULAS[name]
    assert row.noise(requested) > 0
    event = row.event(requested)
    assert checked(event) == event
    if is_private(event):
        assert parts_of(event) != parts_of(row.event(dataclasses.replace(requested, epsilon=0.25))), (
            "noise follows epsilon"
        )
    assert row.source
    assert row.measures


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"), [(0.1, 1e-3, 37.765), (1, 1e-3, 3.776), (0.1, 1e-6, 52.99), (1, 1e-6, 5.2988)]
)
def test_the_classical_gaussian(epsilon: float, delta: float, expected: float) -> None:
    for name in ("analyze_gauss", "local_gaussian"):
        assert noise(name, epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=2e-4)


def test_the_classical_gaussian_of_one_row_has_no_event_for_replaced_rows() -> None:
    printed = noise("analyze_gauss")
    replaced = dataclasses.replace(A9A, relation="replace_one")
    assert FORMULAS["analyze_gauss"].event(A9A)["noise_multiplier"] == printed
    assert FORMULAS["analyze_gauss"].event(replaced)["noise_multiplier"] == pytest.approx(printed / math.sqrt(2))
    assert FORMULAS["local_gaussian"].event(A9A)["noise_multiplier"] == pytest.approx(printed / math.sqrt(2))
    with pytest.raises(Refused, match="sqrt 2"):
        published_noise("analyze_gauss", replaced)


@pytest.mark.parametrize("name", ["analyze_gauss", "local_gaussian", "smooth_gaussian", "smooth_gaussian_of_rows"])
def test_theorems_for_epsilon_below_one_are_refused_at_larger_epsilon(name: str) -> None:
    assert published_noise(name, A9A) == noise(name)
    with pytest.raises(Refused, match=r"1.*use calibration=tight"):
        published_noise(name, dataclasses.replace(A9A, epsilon=1.0))


def test_mod_sulq_has_the_std_of_its_paper_and_more_than_it_needs() -> None:
    assert noise("mod_sulq") == pytest.approx(6779, rel=1e-4)
    for n_features in (1, 2, 10, 123):
        for epsilon in (0.01, 0.1, 1.0, 30.0):
            needed = math.sqrt(2) * gaussian_noise_multiplier(epsilon=epsilon, delta=1e-3)
            assert noise("mod_sulq", n_features=n_features, epsilon=epsilon) > needed
    with pytest.raises(Refused, match="replace_one"):
        published_noise("mod_sulq", A9A)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0328), (1.0, 0.283)])
def test_one_wishart_matrix_is_not_pure(epsilon: float, delta: float) -> None:
    requested = Settings(epsilon=epsilon)
    assert FORMULAS["wishart"].noise(requested) == 1.5 / epsilon
    event = FORMULAS["wishart"].event(requested)
    assert event["delta"] == pytest.approx(delta, rel=2e-3)
    assert f"{event['delta']:.3g}" in str(refusal("wishart", requested))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-3), (1.0, 1e-3), (0.1, 1e-6)])
def test_a_wishart_matrix_of_many_degrees_is_private_and_some_ten_times_too_noisy(epsilon: float, delta: float) -> None:
    requested = dataclasses.replace(A9A, epsilon=epsilon, delta=delta)
    row = FORMULAS["wishart_of_many_degrees"]
    assert 0 < row.event(requested)["epsilon"] < epsilon
    exact = gaussian_noise_multiplier(epsilon=epsilon, delta=delta) / math.sqrt(2)
    assert 8 <= math.sqrt(row.noise(requested)) / exact < 12.5


def test_pure_formulas() -> None:
    replaced = dataclasses.replace(A9A, relation="replace_one")
    assert noise("laplace") == pytest.approx(124 / 0.2)
    assert FORMULAS["laplace"].event(A9A) == FORMULAS["laplace"].event(replaced)
    assert noise("exponential") == 2 / 0.1, "a slope of epsilon / 2"
    assert FORMULAS["exponential"].event(replaced)["epsilon"] == 0.1
    assert FORMULAS["exponential"].event(A9A)["epsilon"] == 0.05, "a record more moves the score by half as much"
    assert noise("smooth_cauchy") == pytest.approx(6 / 0.1)
    assert FORMULAS["smooth_cauchy"].event(A9A)["epsilon"] == pytest.approx(0.1 / 3)


def test_the_noisy_power_formula_protects_only_one_entry() -> None:
    requested = Settings(epsilon=0.1, delta=1e-3, n_features=10_000, n_components=5, steps=5)
    expected = math.sqrt(4 * 5 * 5 * math.log(1e3)) / 0.1
    assert FORMULAS["noisy_power"].noise(requested) == pytest.approx(expected)
    true = gaussian_epsilon(noise_multiplier=expected / 100, delta=1e-3, releases=5)
    assert epsilon_bracket(FORMULAS["noisy_power"].event(requested), delta=1e-3).upper == pytest.approx(true, rel=1e-6)
    assert true > 20 * 0.1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a9a", (1.19, 0.43, 1.18)),
        ("mnist", (0.65, 0.23, 0.64)),
        ("cifar", (0.78, 0.28, 0.77)),
        ("realsim", (0.54, 0.19, 0.53)),
    ],
)
def test_dp_spca_variances_suffice_for_the_stated_mu(name: str, expected: tuple[float, ...]) -> None:
    requested = dataclasses.replace(A9A, n_records=RECORDS[name], steps=RECORDS[name])
    variances, covered = dp_spca_variances(requested, np.array([0.1, 0.5, 0.9]))
    assert variances == pytest.approx(expected, abs=0.006)
    assert not covered.any(), "(c) holds for no ordinary mu"
    assert dp_spca_bound(requested) < 1e-4 < requested.epsilon, "(a)"
    low, high = {"a9a": (0.077, 0.924), "mnist": (0.040, 0.961), "cifar": (0.049, 0.952), "realsim": (0.033, 0.968)}[
        name
    ]
    nearby, _ = dp_spca_variances(requested, np.array([low, low + 0.001, high - 0.001, high]))
    assert (nearby >= 1.5).tolist() == [True, False, False, True]


def test_dp_spca_noise_at_a_mu_and_the_least_that_its_conditions_allow() -> None:
    declared = [(0.1, 0.5, 1.31), (1.0, 0.5, 0.135), (1.0, 0.1, 0.231)]
    for epsilon, mix, expected in declared:
        assert noise("dp_spca", epsilon=epsilon, mix=mix) == pytest.approx(expected, rel=5e-3)
    assert published_noise("dp_spca", A9A) == pytest.approx(13.4, rel=5e-3)
    assert published_noise("dp_spca", dataclasses.replace(A9A, epsilon=1.0)) == pytest.approx(2.45, rel=5e-3)
    with pytest.raises(Refused, match=r"condition \(b\)"):
        published_noise("dp_spca", dataclasses.replace(A9A, mix=0.5))
    with pytest.raises(Refused, match=r"condition \(c\)"):
        published_noise("dp_spca", dataclasses.replace(A9A, mix=0.05))


def test_dp_spca_has_a_fortieth_of_its_claimed_epsilon_at_small_epsilon() -> None:
    found = epsilon_bracket(FORMULAS["dp_spca"].event(dataclasses.replace(A9A, mix=0.5)), delta=1e-3)
    assert found.lower <= 0.00241 <= found.upper


@pytest.mark.parametrize("epochs", [1, 4, 9])
def test_dp_vrpca_pays_for_the_steps_of_every_epoch(epochs: int) -> None:
    """DP-VRPCA's noise follows Theorem 3, with the square root of the number of steps of all epochs.

    The events of DP-VRPCA are one full product and one correction for each step.
    """
    requested = dataclasses.replace(A9A, epochs=epochs)
    expected = math.sqrt(epochs * 32561 * math.log(1e3)) / (32561 * 0.1)
    assert FORMULAS["dp_vrpca"].noise(requested) == pytest.approx(expected, rel=1e-12)
    full, moved = FORMULAS["dp_vrpca"].event(requested)["events"]
    assert full["count"] == sum(block["count"] for block in moved["events"]) == epochs * 32561
    assert full["event"]["noise_multiplier"] == pytest.approx(math.sqrt(0.1) * 32561 * expected, rel=1e-12)


COUNTED = {"noisy_power": "steps", "dp_spca": "steps", "dp_vrpca": "steps", "dpfw": "steps"}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("times", [2, 5])
def test_the_event_of_printed_noise_has_every_step(name: str, times: int) -> None:
    requested = dataclasses.replace(A9A, mix=0.1, steps=100)
    once, more = (
        sum(count for _, count in leaves(FORMULAS[name].event(dataclasses.replace(requested, steps=count))))
        for count in (100, 100 * times)
    )
    assert more == times * once
    first, second = (FORMULAS[name].noise(dataclasses.replace(requested, steps=count)) for count in (100, 100 * times))
    assert second == pytest.approx(math.sqrt(times) * first, rel=1e-9)


def test_smooth_gaussian_noise_is_some_ten_times_more_than_needed() -> None:
    shift, smoothness = gaussian_shift(epsilon=0.1, delta=1e-3, size=123)
    logarithm = math.log(2e3)
    assert noise("smooth_gaussian") == pytest.approx(5 * math.sqrt(2 * logarithm) / 0.1)
    assert noise("smooth_gaussian") * shift == pytest.approx(9, rel=0.06)
    assert 2 * smoothness / (0.1 / (4 * (123 + logarithm))) == pytest.approx(17, rel=0.05)


def test_a_smoothness_for_one_row_is_too_large_for_many() -> None:
    requested = Settings(epsilon=0.9, delta=1e-6, n_features=20, n_components=10)
    printed = FORMULAS["smooth_gaussian"].event(requested)["epsilon"]
    assert printed < FORMULAS["smooth_gaussian_of_rows"].event(requested)["epsilon"]


TABLE = tuple(case for case in CASES if not case.words.startswith(("MNIST", "real-sim")))
"""The table of true epsilons, without cases that differ from a9a only in the number of records."""

truth = cache(truth_of)


def row(formula: str, claimed: float, delta: float, words: str = "") -> Truth:
    """Return the only row with this formula, this claimed epsilon, and a description that ends in ``words``."""
    (found,) = (
        case
        for case in TABLE
        if (case.formula, case.settings.epsilon) == (formula, claimed)
        and delta == (case.settings.delta if case.delta is None else case.delta)
        and case.words.endswith(words)
    )
    return truth(found)


@pytest.mark.audit_only
def test_every_formula_has_a_bracket_whose_ends_agree() -> None:
    table = [truth(case) for case in TABLE]
    assert {row.formula for row in table} == set(FORMULAS)
    assert len({(row.formula, row.words, row.settings, row.delta) for row in table}) == len(table)
    for found in table:
        assert 0 <= found.lower <= found.upper, found
        assert found.formula == "dp_vrpca" or found.width <= 0.02, found
    many = row("dp_vrpca", 0.1, 1e-3, "m = 30, every iterate seen")
    assert many.lower < 0.1 < many.upper


@pytest.mark.parametrize(
    ("claimed", "delta", "words", "expected"),
    [
        (0.1, 1e-3, "a9a, mu = 1/2", 0.0024),
        (0.1, 1e-3, "G taken as 1 where it is 2", 0.0210),
        (0.1, 1e-6, "", 0.0158),
        (1.0, 1e-3, "mu = 1/2", 100.04),
        (1.0, 1e-3, "mu = 1/10", 15.73),
    ],
)
def test_dp_spca_has_between_a_fortieth_and_a_hundred_times_its_claimed_epsilon(
    claimed: float, delta: float, words: str, expected: float
) -> None:
    found = row("dp_spca", claimed, delta, words)
    digits = 5e-5 if expected < 0.1 else 5e-3
    assert found.lower - digits <= expected <= found.upper + digits
    assert found.broken is not None


def test_the_epsilon_of_dp_vrpca_is_between_an_example_and_the_worst_case() -> None:
    small = row("dp_vrpca", 0.1, 1e-3, "m = 1, every iterate seen")
    assert 0.7 < small.lower < small.upper < 4.7
    assert "times what is claimed" in small.verdict
    large = row("dp_vrpca", 1.0, 1e-3, "m = 1, every iterate seen")
    assert large.lower > 1_000


@pytest.mark.parametrize(("claimed", "expected"), [(1, 1.06), (2, 2.19), (5, 5.58), (10, 10.97), (20, 20.89)])
def test_theorem_1_of_private_least_squares_counts_one_of_two_sums(claimed: float, expected: float) -> None:
    assert row("dpals", claimed, 1e-5).upper == pytest.approx(expected, abs=6e-3)


@pytest.mark.parametrize(("colluders", "expected"), [(0, 1.39), (3, 1.55)])
def test_all_messages_with_correlated_noise_reveal_more_than_one_message(colluders: int, expected: float) -> None:
    found = row("cape_of_least_noise", 1.0, 1e-5, f"{colluders} collude")
    assert found.upper == pytest.approx(expected, abs=6e-3)


@pytest.mark.parametrize(("sites", "colluders"), [(4, 0), (7, 2)])
def test_the_mu_of_an_aggregators_view_is_that_of_explicit_covariances(sites: int, colluders: int) -> None:
    honest = sites - colluders
    # variances: mask is that of a mask before the mean of all masks is subtracted; a message has variance 1
    share, mask = 1 / sites, 1.0
    # covariance of the honest messages, given the colluders' masks
    covariance = share * np.eye(honest) + mask * (np.eye(honest) - 1 / honest)
    mean = np.eye(honest)[0]
    expected = math.sqrt(mean @ np.linalg.solve(covariance, mean))
    assert correlated_inflation(sites=sites, colluders=colluders) == pytest.approx(expected)


@pytest.mark.parametrize(("d", "expected"), [(4, 1.23), (10, 2.65), (20, 4.85)])
def test_the_true_epsilon_of_inverted_samplers_exceeds_their_claim(d: int, expected: float) -> None:
    for library in ("diffprivlib", "opendp"):
        found = row(f"{library}_eigenvector", 1.0, 0.0, f"d = {d}, the low-level measurement")
        assert found.lower == pytest.approx(expected, abs=6e-3)
        assert (found.bound, found.agrees) == ("at least", True)


def test_noise_that_all_providers_share_hides_nothing() -> None:
    assert math.isinf(row("dps_pca", 1.0, 0.1).lower)


def test_one_wishart_matrix_has_no_epsilon_without_delta() -> None:
    found = row("wishart", 1.0, 0.0)
    assert math.isinf(found.lower)
    assert "0.283" in str(found.broken)
    assert found.verdict == "no epsilon at this delta"


def test_the_classical_gaussian_breaks_its_claim_at_epsilons_far_above_one() -> None:
    assert row("analyze_gauss", 10.0, 0.01).verdict == "1.19 times what is claimed"
    assert row("analyze_gauss", 0.1, 1e-3, "any d").verdict == "holds, 2.71 times less"


def test_gaussian_rows_agree_with_another_accountant() -> None:
    checked = 0
    for case in TABLE:
        steps = list(leaves(FORMULAS[case.formula].event(case.settings)))
        if case.settings.delta == 0 or any(leaf["name"] != "gaussian" for leaf, _ in steps):
            continue
        found = truth(case)
        multiplier = 1 / math.sqrt(sum(count / leaf["noise_multiplier"] ** 2 for leaf, count in steps))
        with np.errstate(all="ignore"):
            other = dp_accounting.get_epsilon_gaussian(multiplier, found.delta)
        assert found.lower * (1 - 1e-6) - 1e-9 <= other <= found.upper * (1 + 1e-6) + 1e-9, found
        checked += 1
    assert checked >= 15


def sampled_event(found: Truth) -> dp_accounting.DpEvent:
    """Convert the event of a published formula to an event of dp-accounting."""
    parts = []
    for leaf, count in leaves(FORMULAS[found.formula].event(found.settings)):
        inner = leaf["event"] if leaf["name"] == "poisson_sampled" else leaf
        step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(inner["noise_multiplier"])
        if leaf["name"] == "poisson_sampled":
            step = dp_accounting.PoissonSampledDpEvent(leaf["rate"], step)
        parts.append(dp_accounting.SelfComposedDpEvent(step, count))
    return dp_accounting.ComposedDpEvent(parts)


@pytest.mark.parametrize(
    ("claimed", "words", "interval"),
    [(1.0, "mu = 1/2", 1e-2), (1.0, "mu = 1/10", 1e-3), (0.1, "judged at a smaller delta", 1e-5)],
)
def test_upper_bounds_of_another_library_are_above_the_lower_bound_of_the_bracket(
    claimed: float, words: str, interval: float
) -> None:
    found = row("dp_spca", claimed, 1e-6 if "smaller" in words else 1e-3, words)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    other = accountant.compose(sampled_event(found)).get_epsilon(found.delta)
    assert found.lower <= other <= found.upper * 1.03, "its ends are pessimistic"


def test_renyi_divergences_bound_sampled_rows_from_above() -> None:
    for case in TABLE:
        if case.formula == "dp_spca" and "a9a" in case.words:
            found = truth(case)
            accountant = rdp.RdpAccountant(orders=[2, 4, 8, 16, 64])
            assert found.lower <= accountant.compose(sampled_event(found)).get_epsilon(found.delta), found


@pytest.mark.parametrize("size", [1, 2, 30])
def test_the_largest_ratio_of_cauchy_densities_is_found(size: int) -> None:
    """Compare the bracket of the largest Cauchy density ratio with a search over positions and shifts.

    The search divides the shift among one or more equal coordinates.
    """
    shift, smoothness = 0.4, 0.5 / size
    found = smooth_cauchy_bracket(shift=shift, smoothness=smoothness, size=size)

    places = np.tan(np.linspace(-1.57, 1.57, 20_001))

    def worst(move: float) -> float:
        scale = math.exp(smoothness)
        losses = np.log(scale * (1 + places**2) / (scale**2 + (places - move) ** 2))
        return float(np.abs(losses).max())

    divided = [worst(shift / parts) * parts + worst(0.0) * (size - parts) for parts in range(1, min(size, 4) + 1)]
    assert found.lower == pytest.approx(divided[0], rel=1e-4)
    assert max(divided) <= found.upper * (1 + 1e-4)


def test_the_lower_bound_for_smooth_noise_comes_from_a_pair_of_datasets() -> None:
    shift, smoothness, size, delta = 0.05, 1e-3, 50, 1e-4
    found = smooth_gaussian_bracket(shift=shift, smoothness=smoothness, size=size, delta=delta)
    pairs = ((-smoothness, shift * math.exp(-smoothness)), (0.0, shift), (smoothness, shift))
    assert found.agrees
    assert max(hockey_stick(b, by, epsilon=found.lower, size=size) for b, by in pairs) > delta
    assert max(hockey_stick(b, by, epsilon=found.upper, size=size) for b, by in pairs) <= delta


def test_an_unknown_formula_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use one of analyze_gauss"):
        cases_of(("sparkle",))


def test_the_epsilon_of_a_case_can_be_computed_at_another_delta() -> None:
    case = dataclasses.replace(cases_of(("analyze_gauss",))[0], delta=1e-9)
    assert truth_of(case).upper > truth_of(dataclasses.replace(case, delta=None)).upper


N_RECORDS, ORDER, FAILURE = 3_000, 8, 1e-6
# noise for a claimed epsilon of 0.1 at delta 1e-3
EPOCH = Epoch(n_features=ORDER, n_records=N_RECORDS, steps=N_RECORDS, noise_std=0.48)
PARTS = (0.25, 0.5, 0.75, 1.0)


def moved(rows, start, rng, *, noise_std=EPOCH.noise_std):
    """Run one epoch of DP-VRPCA as printed; return the distance from the start after each fraction in `PARTS`."""
    count = len(rows)
    full, directions, found = rows.T @ (rows @ start) / count, start.copy(), []
    noise = noise_std * rng.standard_normal((count, len(start)))
    for step, picked in enumerate(rng.integers(count, size=count)):
        row = rows[picked]
        gradient = row * (row @ (directions - start)) + full - noise[step]
        directions = directions + gradient / count
        directions /= np.linalg.norm(directions)
        if (step + 1) / count in PARTS:
            found.append(float(np.linalg.norm(directions - start)))
    return found


def in_plane(angle):
    start = np.zeros(ORDER)
    start[:2] = math.cos(angle), math.sin(angle)
    return start


def worst():
    """Return the rows and the start that move the direction the most: all rows e1, and one row e2."""
    rows = np.zeros((N_RECORDS, ORDER))
    rows[:, 0] = 1.0
    rows[0] = np.eye(ORDER)[1]
    return rows, in_plane(math.atan(math.exp(0.5)))


def test_the_worst_rows_attain_the_stated_movement_and_no_rows_exceed_the_bound():
    rows, start = worst()
    for seed in range(3):
        for part, distance in zip(PARTS, moved(rows, start, np.random.default_rng(seed)), strict=True):
            assert EPOCH.attained(part, failure=FAILURE) <= distance <= EPOCH.at_most(part, failure=FAILURE)


def test_without_noise_the_attained_movement_is_the_rotation_in_closed_form():
    quiet = dataclasses.replace(EPOCH, noise_std=0.0)
    rows, start = worst()
    distance = moved(rows, start, np.random.default_rng(0), noise_std=0.0)[-1]
    angle = math.asin(quiet.attained(1.0, failure=FAILURE))
    assert distance == pytest.approx(2.0 * math.sin(angle / 2.0), rel=2e-3)
    assert angle == pytest.approx(math.atan(math.exp(0.5)) - math.atan(math.exp(-0.5)))


def test_a_search_over_adversarial_rows_finds_nothing_beyond_the_bound():
    """Search random spectra, starts and mixtures of few directions: none exceeds the bound, the best reaches 70 %."""
    rng, furthest = np.random.default_rng(7), 0.0
    bound = [EPOCH.at_most(part, failure=FAILURE) for part in PARTS]
    for trial in range(12):
        count = int(rng.integers(1, 4))
        axes = np.linalg.qr(rng.standard_normal((ORDER, count)))[0].T
        rows = axes[rng.choice(count, size=N_RECORDS, p=rng.dirichlet(np.full(count, 0.3)))]
        start = rng.standard_normal(ORDER) + 2.0 * rng.standard_normal() * axes[0] if trial else worst()[1]
        rows = worst()[0] if trial == 0 else rows
        distances = moved(rows, start / np.linalg.norm(start), rng)
        assert all(distance <= most for distance, most in zip(distances, bound, strict=True))
        furthest = max(furthest, distances[-1])
    assert furthest > 0.7 * bound[-1]


def test_a_bound_without_drift_or_without_noise_would_be_broken():
    rows, start = worst()
    distance = moved(rows, start, np.random.default_rng(1))[-1]
    drift = 2.0 * math.sin(0.25)
    assert distance > EPOCH.at_most(1.0, failure=FAILURE) - drift
    loud = dataclasses.replace(EPOCH, noise_std=8.0)
    shaken = moved(np.zeros((N_RECORDS, ORDER)), start, np.random.default_rng(2), noise_std=8.0)[-1]
    assert shaken > dataclasses.replace(loud, noise_std=0.0).at_most(1.0, failure=FAILURE) - drift
    assert shaken <= loud.at_most(1.0, failure=FAILURE)


def test_the_bracket_contains_constant_movement_between_both_ends():
    a9a = Epoch(n_features=123, n_records=32_561, steps=32_561, noise_std=0.14565)
    found = movement_bracket(a9a, epochs=1, delta=1e-3)
    short, long = (corrections(a9a, partial(_constant, moved), epochs=1) for moved in (0.1, 0.6))
    assert short is not None
    assert long is not None
    least, most = (epsilon_bracket(event, delta=1e-3, within=0.1) for event in (short, long))
    assert least.upper < 0.1 < found.lower < found.upper < most.upper


def _constant(moved: float, _: float, __: float) -> float:
    return moved
