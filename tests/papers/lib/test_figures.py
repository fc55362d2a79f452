"""Line charts of papers: panels, the legend, and colors that can be distinguished in a gray print."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

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
