"""Claims of papers with their verdicts, slopes with confidence bands, and line charts."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from papers.lib.claims import Claim, sentence, slope_of
from papers.lib.figures import COLOURS, LineChart, draw_lines

ROWS = [
    {"sweep": sweep, "arm": arm, "value": value, "energy": value, "energy std": 0.1}
    for sweep in ("epsilon", "delta")
    for arm in ("one", "two")
    for value in (0.1, 1.0)
]
CHART = LineChart(title="Energy", x="value", y="energy", panel="sweep")


def lightness(colour: str) -> float:
    """Return the lightness L* of a color in CIE L*a*b*, from 0 to 100."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_colours_differ_in_lightness() -> None:
    assert np.diff(sorted(map(lightness, COLOURS))).min() >= 8.0


def drawn(tmp_path: Path, chart: LineChart) -> str:
    draw_lines(ROWS, chart, tmp_path / "chart")
    return (tmp_path / "chart.svg").read_text(encoding="utf8")


def test_the_legend_names_each_line_once_for_all_panels(tmp_path: Path) -> None:
    text = drawn(tmp_path, CHART)
    assert [text.count(f">{name}</text>") for name in ("one", "two", "epsilon", "delta")] == [1, 1, 1, 1]


def test_only_named_lines_and_panels_are_drawn(tmp_path: Path) -> None:
    text = drawn(
        tmp_path, LineChart(title="", x="value", y="energy", panel="sweep", arms=("two",), panels={"delta": "D|small"})
    )
    assert ">two<" in text
    assert ">D<" in text
    assert ">small<" in text
    assert ">one<" not in text
    assert ">epsilon<" not in text


def test_more_lines_than_colours_are_refused(tmp_path: Path) -> None:
    rows = [{"data": "d", "arm": str(arm), "x": 1.0, "y": 1.0} for arm in range(len(COLOURS) + 1)]
    with pytest.raises(ValueError, match="select lines with arms="):
        draw_lines(rows, LineChart(title="", x="x", y="y"), tmp_path / "chart")


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
