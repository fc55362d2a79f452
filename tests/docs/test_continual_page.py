"""The numbers of the page about streams are those that the program computes."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.factorisation import Weights, choose_weights, extension_event, tree_factors
from dpca_tasks.accounting.gaussian import UNITS, smallest_epsilon
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from papers.continual import NIGHTS

PAGE = (Path(__file__).parents[2] / "docs/explanation/continual.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
YEAR = choose_weights("sqrt", ticks=365)
ENDLESS = choose_weights("power")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| (\d|`)", line)
]


def said(value: float, *, places: int = 2) -> str:
    """A number as the page writes it."""
    return f"{value:.{places}f}".removeprefix("0") if value < 1 else f"{value:.{places}f}"


@pytest.mark.parametrize("row", [row for row in ROWS if row[0].isdigit()], ids=lambda row: row[0])
def test_factors_of_all_rows_so_far(row: list[str]) -> None:
    nights = int(row[0])
    stream = choose_weights("sqrt", ticks=nights).factors(nights)
    typical = float(np.sqrt((stream**2).mean()))
    expected = (
        math.sqrt(nights),
        math.sqrt((nights + 1) / 2),
        tree_factors(nights).max(),
        stream.max(),
        typical,
        stream[0],
        ENDLESS.factors(nights)[-1],
    )
    assert row[1:] == [said(value) for value in expected]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if re.search(r"\d", row[0]) and "`" in row[0]], ids=lambda row: row[0]
)
def test_factors_for_ever(row: list[str]) -> None:
    strategy, length = re.findall(r"window|decay", row[0])[0], int(re.findall(r"\d+", row[0])[0])
    if strategy == "window":
        factors = choose_weights("window", window=length).factors(1200, "window")
    else:
        factors = choose_weights("decay", half_life=length).factors(1200, "decay")
    assert row[-1] == said(factors.max())


def test_every_row_of_both_tables_is_checked() -> None:
    assert len(ROWS) == 4 + 8
    assert len([row for row in ROWS if re.search(r"\d", row[0])]) == 4 + 6


def test_a_years_sensitivity_and_weights() -> None:
    assert f"{YEAR.zeta(365):.3f} for 365" in TEXT
    assert f"({', '.join(map(str, YEAR.weights[:4]))}, ... over {2**YEAR.bits} for a year)" in TEXT


def test_instalments_and_extensions() -> None:
    parts = [float(YEAR.zeta_squared(to) / YEAR.zeta_squared(365)) for to in (1, 7, 30, 90)]
    assert [f"{part:.0%}".replace("%", " %") for part in parts] == ["34 %", "57 %", "73 %", "85 %"]
    assert "the first night takes 34 %, the first 7 nights 57 %, 30 nights 73 % and 90 nights 85 %" in TEXT
    multiplier = gaussian_noise_multiplier(epsilon=1.0, delta=1e-6)
    more = extension_event(YEAR, horizon=365, charged=365, to=730, noise_multiplier=multiplier)
    squares = 1 / Fraction(multiplier) ** 2, 1 / Fraction(more["noise_multiplier"]) ** 2
    assert f"costs {float(squares[1] / squares[0]):.0%} more".replace("%", " %") in TEXT
    assert f"becomes {smallest_epsilon(math.ceil(sum(squares) * UNITS), 1e-6):.3f}" in TEXT


def share(weights: Weights, *, present: range, tick: int) -> float:
    """What the estimate at a tick has of a record that arrived at the first of its ticks and was there at these."""
    multipliers = coefficients(weights, kept=range(1, tick + 1))
    return sum(float(multipliers[at - 1]) * weights.weight(at - present[0]) for at in present) / (1 << weights.bits)


@pytest.mark.parametrize(("since", "stated"), [(7, 0.09), (30, 0.18), (182, 0.50)])
def test_a_correction_is_followed_by_the_stated_law(since: int, stated: float) -> None:
    law = 2 / math.pi * math.asin(math.sqrt(since / 365))
    assert law == pytest.approx(stated, abs=0.006)
    weights = choose_weights("sqrt", ticks=365)
    before = share(weights, present=range(1, 366 - since), tick=365)
    assert 1 - before == pytest.approx(law, abs=0.025)
    assert share(weights, present=range(1, 366), tick=365) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("later", "stated"), [(30, 0.50), (365, 0.18), (3650, 0.06)])
def test_a_removed_record_fades_by_the_stated_law(later: int, stated: float) -> None:
    law = 2 / math.pi * math.asin(math.sqrt(30 / (30 + later)))
    assert law == pytest.approx(stated, abs=0.006)
    if later < 1000:
        found = share(choose_weights("sqrt", ticks=30 + later), present=range(1, 31), tick=30 + later)
        assert found == pytest.approx(law, abs=0.025)


def test_arrivals_of_a_lost_answer() -> None:
    assert ".50, .78 and .90 of them 1, 7 and 30 ticks later" in TEXT
    for later, stated in {1: 0.50, 7: 0.78, 30: 0.90}.items():
        tick = 40 + later
        kept = [at for at in range(1, tick + 1) if at != 40]
        found = coefficients(YEAR, kept=kept) @ [YEAR.weight(at - 40) / 2**YEAR.bits for at in kept]
        assert found == pytest.approx(stated, abs=0.005)


def test_an_arrival_that_is_set_again() -> None:
    """Gone before tick 181 and back as new at it."""
    squares = YEAR.zeta_squared(180) + YEAR.zeta_squared(185)
    assert f"multiply the loss by {math.sqrt(squares / YEAR.zeta_squared(365)):.2f}" in TEXT


def test_what_is_captured_is_what_the_reproduction_expects() -> None:
    stated = {nights: said(expected, places=3) for nights, (expected, _) in NIGHTS.items()}
    assert f"the mean over 32 nights of the captured variance is {stated[32]}," in TEXT
    assert f"over 128 nights it is {stated[128]} and .810" in TEXT


def test_the_size_of_kept_answers() -> None:
    year = {features: 365 * 4 * features * (features + 1) for features in (123, 2000)}
    assert f"{year[123] / 1e6:.0f} MB a year for 123 features, {year[2000] / 1e9:.1f} GB for 2,000" in TEXT
