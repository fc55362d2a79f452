"""Charts of derived artifacts: correlations, coefficients with intervals, and loadings.

The title of each chart states its finding. Numbers that the noise hides are greyed. All numbers are released, or
computed from released numbers. `flows.reports.release_charts.render` writes a chart.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.derived import SIGNIFICANT, Correlations, DerivedModel
from flows.reports.release_charts import (
    WIDTH,
    Theme,
    check_chart_file,
    dress_axes,
    short_name,
    text_style,
    theme_of,
    titled,
    write_chart,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_chart_file", "derived_chart", "write_chart"]

SHOWN = 24
"""The largest number of features or coefficients in a chart."""
_ROW = 0.27  # height of a row in inches
_GAP = 0.09  # the least vertical distance between labels of arrows, divided by the largest loading


def derived_chart(artifact: Correlations | DerivedModel, *, name: str | None = None, theme: str = "light") -> "Figure":
    """Draw the chart of a derived artifact: a map of correlations, coefficients with intervals, or a biplot.

    Parameters
    ----------
    artifact : Correlations or DerivedModel
        At most `SHOWN` features are drawn: those with the largest correlations, coefficients or loadings.
    name : str, optional
        Name of the release.
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    Figure
    """
    if isinstance(artifact, Correlations):
        return _correlation_map(artifact, name, theme)
    if artifact.loadings is None:
        return _coefficients(artifact, name, theme)
    return _biplot(artifact, name, theme) if _above_noise(artifact) > 1 else _loadings(artifact, name, theme)


def _correlation_map(artifact: Correlations, name: str | None, theme: str) -> "Figure":
    """Draw the correlations among the features with the largest correlations; cells hidden by noise are grey."""
    from matplotlib.colors import LinearSegmentedColormap

    palette = theme_of(theme)
    values, seen = artifact.values.copy(), artifact.significant
    np.fill_diagonal(values, 0.0)
    sizes = np.where(seen, np.abs(values), 0.0).max(axis=1)
    shown = np.sort(np.argsort(-sizes, kind="stable")[:SHOWN])
    pairs, facts = np.triu_indices(len(shown), 1), artifact.summary()
    cells = np.where(seen, values, np.nan)[np.ix_(shown, shown)]
    figure, axes = titled(
        f"{facts['significant_pairs']} of {facts['pairs']} correlations differ from 0",
        _joined(name, f"grey: within {SIGNIFICANT:g} standard errors of the noise of the release"),
        palette,
        height=WIDTH * 0.9,
    )
    colors = LinearSegmentedColormap.from_list(
        "signs", [palette.against, palette.ground, palette.signal]
    ).with_extremes(bad=palette.band)
    np.fill_diagonal(cells, np.nan)
    axes.imshow(cells, cmap=colors, vmin=-1.0, vmax=1.0)
    if len(shown) <= SHOWN // 2:
        for row, column in zip(*pairs, strict=True):
            if not np.isnan(cells[row, column]):
                style = text_style(palette.text, ha="center", va="center") | {"xytext": (0, 0)}
                axes.annotate(f"{cells[row, column]:+.2f}".replace("-", "−"), (column, row), **style)
    labels = [short_name(artifact.feature_names[at]) for at in shown]
    axes.set_xticks(range(len(shown)), labels, rotation=90)
    axes.set_yticks(range(len(shown)), labels)
    dress_axes(axes, palette)
    axes.grid(visible=False)
    return figure


def _coefficients(artifact: DerivedModel, name: str | None, theme: str) -> "Figure":
    """Draw the largest coefficients of the first output with 95 % intervals; those that may be 0 are grey."""
    palette = theme_of(theme)
    values, bounds = artifact.coefficients[0], artifact.intervals()[0]
    shown = np.argsort(-np.abs(values), kind="stable")[:SHOWN]
    seen = (bounds[:, 0] > 0.0) | (bounds[:, 1] < 0.0)
    figure, axes = titled(
        f"{artifact.outputs[0]}: {int(seen.sum())} of {len(values)} coefficients differ from 0",
        _joined(name, f"{artifact.derived['model']}, 95 % intervals from the noise; grey if 0 is inside"),
        palette,
        height=1.35 + _ROW * max(len(shown), 3),
    )
    for place, at in enumerate(shown):
        positive = palette.signal if values[at] > 0 else palette.against
        _mark(axes, place, values[at], bounds[at], color=positive if seen[at] else palette.muted)
    _name_rows(axes, palette, [artifact.feature_names[at] for at in shown], label="coefficient")
    return figure


def _loadings(artifact: DerivedModel, name: str | None, theme: str) -> "Figure":
    """Draw the loadings on the first component, for a release with at most one component above the noise."""
    palette = theme_of(theme)
    assert artifact.loadings is not None
    values = artifact.loadings[0]
    shown = np.argsort(-np.abs(values), kind="stable")[:SHOWN]
    figure, axes = titled(
        _finding(artifact),
        _joined(name, f"the {len(shown)} largest loadings on component 1"),
        palette,
        height=1.35 + _ROW * max(len(shown), 3),
        warns=not _above_noise(artifact),
    )
    for place, at in enumerate(shown):
        color = palette.signal if values[at] > 0 else palette.against
        _mark(axes, place, values[at], (0.0, values[at]), color=color)
    _name_rows(axes, palette, [artifact.feature_names[at] for at in shown], label="loading on component 1")
    return figure


def _mark(axes: "Axes", place: int, value: float, span: Sequence[float], *, color: str) -> None:
    """Draw a value as a dot, and a line across its span, in a row of a chart."""
    axes.plot(span, (place, place), color=color, linewidth=1.6)
    axes.plot([value], [place], "o", color=color, markersize=5)


def _name_rows(axes: "Axes", palette: Theme, names: Sequence[str], *, label: str) -> None:
    """Name the rows of a chart from the top, and draw the line at 0."""
    axes.axvline(0.0, color=palette.muted, linewidth=1)
    axes.set(ylim=(max(len(names), 3) - 0.4, -0.6), xlabel=label)
    axes.set_yticks(range(len(names)), [short_name(name) for name in names])
    dress_axes(axes, palette)


def _biplot(artifact: DerivedModel, name: str | None, theme: str) -> "Figure":
    """Draw the loadings on the first two components as arrows."""
    palette = theme_of(theme)
    assert artifact.loadings is not None
    plane: NDArray[Any] = np.zeros((2, artifact.n_features))
    plane[: min(2, len(artifact.loadings))] = artifact.loadings[:2]
    shown = np.argsort(-np.linalg.norm(plane, axis=0), kind="stable")[: SHOWN // 2]
    figure, axes = titled(
        _finding(artifact),
        _joined(name, f"loadings of the {len(shown)} features with the longest arrows"),
        palette,
        height=WIDTH * 0.8,
    )
    reach = float(np.abs(plane).max()) or 1.0
    for side in (1.0, -1.0):
        on_side = [at for at in shown if (plane[0, at] >= 0.0) == (side > 0.0)]
        heights = _spread(plane[1, on_side], gap=_GAP * reach)
        for at, height in zip(on_side, heights, strict=True):
            x, y = plane[:, at]
            axes.annotate("", (x, y), (0.0, 0.0), arrowprops={"arrowstyle": "->", "color": palette.signal})
            style = text_style(palette.text, ha="left" if side > 0.0 else "right", va="center")
            axes.annotate(short_name(artifact.feature_names[at]), (x, height), **style | {"xytext": (4 * side, 0)})
    axes.axhline(0.0, color=palette.muted, linewidth=1)
    axes.axvline(0.0, color=palette.muted, linewidth=1)
    axes.set(xlim=(-1.4 * reach, 1.4 * reach), ylim=(-1.2 * reach, 1.2 * reach))
    axes.set(xlabel="loading on component 1", ylabel="loading on component 2")
    dress_axes(axes, palette)
    return figure


def _above_noise(artifact: DerivedModel) -> int:
    return int((artifact.manifest.get("outcome") or {}).get("above_noise", 0))


def _finding(artifact: DerivedModel) -> str:
    return f"{_above_noise(artifact)} of {len(artifact.outputs)} components are above the noise"


def _spread(heights: NDArray[Any], *, gap: float) -> NDArray[Any]:
    """Move heights apart until any two differ by at least ``gap``; their order and their mean stay the same."""
    order = np.argsort(heights, kind="stable")
    steps = np.arange(len(heights)) * gap
    placed = np.empty(len(heights))
    placed[order] = np.maximum.accumulate(heights[order] - steps) + steps
    return placed - placed.mean() + heights.mean() if len(heights) else placed


def _joined(*parts: str | None) -> str:
    return ": ".join(part for part in parts if part)
