"""The table of truth: both ends of every row agree, and other accountants say the same."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from dpca_tasks.accounting.closed_brackets import correlated_inflation, smooth_cauchy_bracket, smooth_gaussian_bracket
from dpca_tasks.accounting.events import leaves
from dpca_tasks.accounting.published import FORMULAS
from dpca_tasks.accounting.smooth_sensitivity import hockey_stick
from dpca_tasks.accounting.truth import CASES, Truth, cases_of, truth_of
from dpca_tasks.errors import InvalidInput


@pytest.fixture(scope="module")
def table() -> tuple[Truth, ...]:
    """Compute the table, without the rows that have only other numbers of records than a9a."""
    return tuple(truth_of(case) for case in CASES if not case.words.startswith(("MNIST", "real-sim")))


def row(table: tuple[Truth, ...], formula: str, claimed: float, delta: float, words: str = "") -> Truth:
    """Return the only row of a formula, a claim, and words that its settings end in."""
    (found,) = (
        row
        for row in table
        if (row.formula, row.settings.epsilon, row.delta) == (formula, claimed, delta) and row.words.endswith(words)
    )
    return found


def test_every_formula_is_judged_and_both_ends_agree(table: tuple[Truth, ...]) -> None:
    assert {row.formula for row in table} == set(FORMULAS)
    assert len({(row.formula, row.words, row.settings, row.delta) for row in table}) == len(table)
    for found in table:
        assert 0 <= found.lower <= found.upper, found
        assert found.agrees, found
        assert found.width <= 0.02, found


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
def test_dp_spca_gives_a_fortieth_or_a_hundred_times_what_it_claims(
    table: tuple[Truth, ...], claimed: float, delta: float, words: str, expected: float
) -> None:
    found = row(table, "dp_spca", claimed, delta, words)
    digits = 5e-5 if expected < 0.1 else 5e-3
    assert found.lower - digits <= expected <= found.upper + digits
    assert found.broken is not None


@pytest.mark.parametrize(("distance", "expected"), [(2, 450), (1, 80), (0.5, 5.8)])
def test_dp_vrpca_holds_only_if_directions_never_move(
    table: tuple[Truth, ...], distance: float, expected: float
) -> None:
    found = row(table, "dp_vrpca", 0.1, 1e-3, f"moved by {distance:g}")
    assert found.lower == pytest.approx(expected, rel=0.015)
    assert found.bound == "at least"
    assert "times what is claimed" in found.verdict


@pytest.mark.parametrize(("claimed", "expected"), [(1, 1.06), (2, 2.19), (5, 5.58), (10, 10.97), (20, 20.89)])
def test_theorem_1_of_private_least_squares_counts_one_of_two_sums(
    table: tuple[Truth, ...], claimed: float, expected: float
) -> None:
    assert row(table, "dpals", claimed, 1e-5).upper == pytest.approx(expected, abs=6e-3)


@pytest.mark.parametrize(("colluders", "expected"), [(0, 1.39), (3, 1.55)])
def test_all_messages_of_correlated_noise_together_give_more_than_one(
    table: tuple[Truth, ...], colluders: int, expected: float
) -> None:
    found = row(table, "cape_of_least_noise", 1.0, 1e-5, f"{colluders} collude")
    assert found.upper == pytest.approx(expected, abs=6e-3)


@pytest.mark.parametrize(("sites", "colluders"), [(4, 0), (7, 2)])
def test_the_view_of_an_aggregator_is_that_of_explicit_covariances(sites: int, colluders: int) -> None:
    honest = sites - colluders
    share, mask = 1 / sites, 1.0  # a mask before its mean is taken off; a message has variance 1
    covariance = share * np.eye(honest) + mask * (np.eye(honest) - 1 / honest)  # given the colluders' masks
    mean = np.eye(honest)[0]
    expected = math.sqrt(mean @ np.linalg.solve(covariance, mean))
    assert correlated_inflation(sites=sites, colluders=colluders) == pytest.approx(expected)


@pytest.mark.parametrize(("d", "expected"), [(4, 1.23), (10, 2.65), (20, 4.85)])
def test_inverted_samplers_give_more_than_they_claim(table: tuple[Truth, ...], d: int, expected: float) -> None:
    for library in ("diffprivlib", "opendp"):
        found = row(table, f"{library}_eigenvector", 1.0, 0.0, f"d = {d}, the low-level measurement")
        assert found.lower == pytest.approx(expected, abs=6e-3)
        assert (found.bound, found.agrees) == ("at least", True)


def test_noise_that_all_providers_share_hides_nothing(table: tuple[Truth, ...]) -> None:
    assert math.isinf(row(table, "dps_pca", 1.0, 0.1).lower)


def test_one_wishart_matrix_has_no_epsilon_without_delta(table: tuple[Truth, ...]) -> None:
    found = row(table, "wishart", 1.0, 0.0)
    assert math.isinf(found.lower)
    assert "0.283" in str(found.broken)
    assert found.verdict == "no epsilon at this delta"


def test_the_classical_gaussian_fails_far_beyond_one(table: tuple[Truth, ...]) -> None:
    assert row(table, "analyze_gauss", 10.0, 0.01).verdict == "1.19 times what is claimed"
    assert row(table, "analyze_gauss", 0.1, 1e-3, "any d").verdict == "holds, 2.71 times less"


def test_gaussian_rows_agree_with_another_accountant(table: tuple[Truth, ...]) -> None:
    checked = 0
    for found in table:
        steps = list(leaves(FORMULAS[found.formula].event(found.settings)))
        if found.delta == 0 or any(leaf["name"] != "gaussian" for leaf, _ in steps):
            continue
        multiplier = 1 / math.sqrt(sum(count / leaf["noise_multiplier"] ** 2 for leaf, count in steps))
        with np.errstate(all="ignore"):
            other = dp_accounting.get_epsilon_gaussian(multiplier, found.delta)
        assert found.lower * (1 - 1e-6) - 1e-9 <= other <= found.upper * (1 + 1e-6) + 1e-9, found
        checked += 1
    assert checked >= 15


def sampled_event(found: Truth) -> dp_accounting.DpEvent:
    """Return the same event in the words of the other library."""
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
def test_loss_distributions_of_another_library_end_above_the_lower_end(
    table: tuple[Truth, ...], claimed: float, words: str, interval: float
) -> None:
    found = row(table, "dp_spca", claimed, 1e-6 if "smaller" in words else 1e-3, words)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    other = accountant.compose(sampled_event(found)).get_epsilon(found.delta)
    assert found.lower <= other <= found.upper * 1.03, "its ends are pessimistic"


def test_renyi_divergences_bound_sampled_rows_from_above(table: tuple[Truth, ...]) -> None:
    for found in table:
        if found.formula == "dp_spca" and "a9a" in found.words:
            accountant = rdp.RdpAccountant(orders=[2, 4, 8, 16, 64])
            assert found.lower <= accountant.compose(sampled_event(found)).get_epsilon(found.delta), found


@pytest.mark.parametrize("size", [1, 2, 30])
def test_the_largest_ratio_of_cauchy_densities_is_found(size: int) -> None:
    """Places are searched, and divisions of the shift among equal coordinates."""
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


def test_the_lower_end_of_smooth_noise_is_that_of_a_pair() -> None:
    shift, smoothness, size, delta = 0.05, 1e-3, 50, 1e-4
    found = smooth_gaussian_bracket(shift=shift, smoothness=smoothness, size=size, delta=delta)
    pairs = ((-smoothness, shift * math.exp(-smoothness)), (0.0, shift), (smoothness, shift))
    assert found.agrees
    assert max(hockey_stick(b, by, epsilon=found.lower, size=size) for b, by in pairs) > delta
    assert max(hockey_stick(b, by, epsilon=found.upper, size=size) for b, by in pairs) <= delta


def test_a_formula_that_nobody_printed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use one of analyze_gauss"):
        cases_of(("sparkle",))


def test_a_case_may_be_judged_at_another_delta() -> None:
    case = dataclasses.replace(cases_of(("analyze_gauss",))[0], delta=1e-9)
    assert truth_of(case).upper > truth_of(dataclasses.replace(case, delta=None)).upper
