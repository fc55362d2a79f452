"""Verdicts on claims of papers, and slopes with confidence bands."""

import math

import numpy as np
import pytest

from papers.lib.claims import Claim, sentence, slope_of


@pytest.mark.parametrize(("holds", "verdict"), [(True, "holds"), (False, "does not hold"), (None, "not judged")])
def test_a_claim_states_the_paper_the_measurement_and_the_verdict(*, holds: bool | None, verdict: str) -> None:
    claim = Claim(item="Lemma", states="at most 1", measured="2", holds=holds)
    assert claim.row() == {"item": "Lemma", "states": "at most 1", "measured": "2", "verdict": verdict}
    assert sentence(claim) == f"Lemma: the paper states at most 1; measured 2: {verdict}"


def test_the_slope_of_a_power_is_its_exponent() -> None:
    found = slope_of((1, 2, 8), [(3, 3 * 2**1.5, 3 * 8**1.5)] * 3)
    assert (found.mean, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert str(found) == "1.50 (1.50 to 1.50)"
    assert found.row(item="a")["item"] == "a"


def test_a_band_covers_the_exponent_in_95_percent_of_runs() -> None:
    """Count bands that contain the true exponent: 380 of 400 are expected.

    15 more or fewer are over 3.4 standard deviations, which happens in one run of 1,500.
    """
    rng = np.random.default_rng(5)
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    covered = 0
    for _ in range(400):
        found = slope_of(sizes.tolist(), (sizes * np.exp(0.2 * rng.standard_normal((5, 4)))).tolist())
        covered += found.low <= 1.0 <= found.high
    assert covered == pytest.approx(380, abs=15)


def test_one_seed_has_no_band() -> None:
    found = slope_of((1, 2), [(1, 4)])
    assert found.mean == pytest.approx(2.0)
    assert (found.low, found.high) == (-math.inf, math.inf)
