"""Charts of a comparison of subspaces: curves against epsilon, bars with the true epsilon beside each, and sweeps."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.charts import FORMATS, render
from flows.reports.themes import THEMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SERIES = THEMES["light"].series
_MARKERS = "os^D"  # tell apart what has the same colour
_PANELS = (("distance", "squared distance"), ("captured", "captured variance"), ("beyond", "beyond the first"))
_DASHES = {"tight": "-", "paper": "--", "printed": ":"}


def draw_curves(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> list[Path]:
    """Draw distance and captured variance against the claimed epsilon.

    Parameters
    ----------
    rows : sequence of Mapping
        With ``arm``, ``claimed epsilon`` (absent: a level line) and the measures; one data set and delta.
    path : Path
        Without suffix: a file of each of `FORMATS` is written.
    title : str

    Returns
    -------
    list of Path
    """
    figure = new_figure(width=15.0, height=5.5)
    arms = list(dict.fromkeys(row["arm"] for row in rows if "distance" in row))
    for at, (measure, label) in enumerate(_PANELS):
        axes = figure.add_subplot(1, 3, at + 1)
        for number, arm in enumerate(arms):
            color, marker = series_look(number)
            seen = [row for row in rows if row["arm"] == arm and measure in row]
            dashes = next((style for word, style in _DASHES.items() if word in arm.split()), "-.")
            if seen and "claimed epsilon" not in seen[0]:
                axes.axhline(seen[0][measure], color=THEMES["light"].muted, linestyle=dashes, label=arm)
                continue
            places = [row["claimed epsilon"] for row in seen]
            heights = [row[measure] for row in seen]
            axes.plot(places, heights, dashes, marker=marker, color=color, label=arm, ms=3)
        axes.set(xscale="log", xlabel="claimed epsilon", ylabel=label)
    figure.suptitle(title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="x-small")
    return save_figure(figure, path)


def draw_bars(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> list[Path]:
    """Draw the points that each arm loses, with standard errors, and its true epsilon beside the bar.

    Parameters
    ----------
    rows : sequence of Mapping
        With ``arm``, ``lost``, ``error`` and ``true epsilon``; one data set and delta.
    path, title
        As for `draw_curves`.

    Returns
    -------
    list of Path
    """
    shown = sorted((row for row in rows if row.get("lost") is not None), key=lambda row: -row["lost"])
    figure = new_figure(width=9.0, height=1.5 + 0.32 * len(shown))
    axes = figure.add_subplot()
    places = range(len(shown))
    colours = [_SERIES[1 if "printed" in row["arm"] else 2 if "paper" in row["arm"] else 0] for row in shown]
    lost, errors = ([row[name] for row in shown] for name in ("lost", "error"))
    axes.barh(places, lost, xerr=errors, color=colours)
    axes.set_yticks(places, [row["arm"] for row in shown])
    furthest = max((max(row["lost"], 0.0) + row["error"] for row in shown), default=1.0)
    for place, row in zip(places, shown, strict=True):
        at = max(row["lost"], 0.0) + row["error"] + 0.01 * furthest
        axes.text(at, place, epsilon_text(row), va="center", fontsize="x-small")
    axes.set(title=title, xlabel="points of accuracy lost to the best directions (standard errors over splits)")
    axes.set_xlim(right=1.25 * furthest)
    return save_figure(figure, path)


def draw_sweeps(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> list[Path]:
    """Draw energies against each number that was varied, a panel for each.

    Parameters
    ----------
    rows : sequence of Mapping
        With ``sweep``, ``value``, ``arm`` and ``energy``; one data set.
    path, title
        As for `draw_curves`.

    Returns
    -------
    list of Path
    """
    sweeps = list(dict.fromkeys(row["sweep"] for row in rows))
    figure = new_figure(width=3.0 + 4.0 * len(sweeps), height=4.5)
    for at, sweep in enumerate(sweeps):
        axes = figure.add_subplot(1, len(sweeps), at + 1)
        for number, arm in enumerate(dict.fromkeys(row["arm"] for row in rows)):
            color, marker = series_look(number)
            seen = [row for row in rows if row["sweep"] == sweep and row["arm"] == arm]
            places, energies = [row["value"] for row in seen], [row["energy"] for row in seen]
            axes.plot(places, energies, marker=marker, color=color, label=arm, ms=3)
        axes.set(xscale="log", xlabel=sweep, ylabel="energy")
    figure.suptitle(title)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="x-small")
    return save_figure(figure, path)


def epsilon_text(row: Mapping[str, Any]) -> str:
    """Return the true epsilon of a row in words."""
    truth = row.get("true epsilon")
    if truth is None:
        return ""
    if math.isinf(truth):
        return "no epsilon"
    sign = "≥" if row.get("bound") == "at least" else "≤"
    return f"ε {sign} {truth:.3g}" if truth > 0 else "ε = 0: below delta alone"


def new_figure(*, width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, which needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def series_look(number: int) -> tuple[str, str]:
    """Return the colour and the marker of a curve among others."""
    return _SERIES[number % len(_SERIES)], _MARKERS[number // len(_SERIES) % len(_MARKERS)]


def save_figure(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure to a path without suffix, a file of each of `FORMATS`; equal figures give equal files."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for each, kind in zip(paths, FORMATS, strict=True):
        each.write_bytes(render(figure, format=kind))
    return paths
