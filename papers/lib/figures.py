"""Report files: tables as CSV and Markdown, and lines, curves and bars as SVG and PNG."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flows.reports.release_charts import FORMATS, THEMES, render

type Row = Mapping[str, Any]
type Tables = Mapping[str, Sequence[Row]]

_SERIES = THEMES["light"].series
COLOURS = ("#000000", "#e28e35", "#0d47a1", "#6cc6ee", "#cc3311", "#2a9a5f", "#4b1460", "#eedd66")
"""The colours of lines, each with its own marker and dashes. They differ by at least 8 of 100 in lightness, so that a
grey print distinguishes them."""
_MARKED, _DASHED = "osD^vXPh", ("-", "--", "-.", ":")
_ACROSS, _PANEL_WIDTH, _PANEL_HEIGHT = 3, 3.6, 3.0
_LEAST_SPACE = 0.12  # between two labels, as a part of the axis
_TICKS = 9  # a logarithmic axis of at most as many places has a tick at each


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """The columns of a table that make a chart.

    Attributes
    ----------
    title : str
    x, y, panel : str
        The columns of the axes and of the panels; lines are by the column ``arm``. A row without ``x`` is drawn as a
        level line. A column ``Y std``, if present, gives error bars.
    x_label, y_label : str
        The labels of the axes, if the columns' names are not enough.
    log, log_y : bool
        Whether the axes are logarithmic.
    arms : tuple of str
        The lines to draw, in order; at most as many as `COLOURS`. All by default.
    panels : Mapping of str to str
        The panels to draw, in order, with their titles; all by default. A title ``TEXT|LABEL`` has its own x label.
    """

    title: str
    x: str
    y: str
    panel: str = "data"
    log: bool = True
    log_y: bool = False
    x_label: str = ""
    y_label: str = ""
    arms: tuple[str, ...] = ()
    panels: Mapping[str, str] = field(default_factory=dict)


def write_line_charts(tables: Tables, charts: Mapping[str, LineChart], out: Path | None) -> list[str]:
    """Write each non-empty table as CSV, draw the tables that have a chart, and return the files.

    Parameters
    ----------
    tables, charts : Mapping
        Tables and charts, by the names of the files.
    out : Path, optional
        The output folder, created if missing. Without it nothing is written.
    """
    if out is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in tables.items():
        if rows:
            columns = list(dict.fromkeys(column for row in rows for column in row))
            paths.append(_write_csv(rows, columns, out / f"{name}.csv"))
            paths += draw_lines(rows, charts[name], out / name) if name in charts else []
    return [str(path) for path in paths]


def write_comparison(
    found: Mapping[str, Any], titles: Mapping[str, str], out: Path | None, *, chart: LineChart | None = None
) -> list[str]:
    """Write the tables of a report as CSV and Markdown, draw figures of each data set, and return the files.

    Parameters
    ----------
    found : Mapping
        With ``tables`` and ``columns`` by name. ``table3`` has bars and ``sweeps`` lines.
        ``notes``, if present, are sentences below the tables.
    titles : Mapping of str to str
    out : Path, optional
        As for `write_line_charts`.
    chart : LineChart, optional
        The axes, arms and panels of ``sweeps``.
    """
    if out is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in found["tables"].items():
        columns = found["columns"][name]
        paths += [_write_csv(rows, columns, out / f"{name}.csv"), out / f"{name}.md"]
        notes = "".join(f"{each}\n\n" for each in found.get("notes", ()))
        text = f"# {titles[name]}\n\n{_markdown(rows, columns)}\n\n{notes}Charged: {found['charged']}.\n"
        paths[-1].write_text(text, encoding="utf8")
    bars = found["tables"].get("table3", [])
    for data, delta in dict.fromkeys((row["data"], row["delta"]) for row in bars if row.get("delta") is not None):
        shown = [row for row in bars if row["data"] == data and row.get("delta") in (delta, None)]
        place = out / f"table3-{data.lower().replace(' ', '-')}-delta-{delta:g}"
        paths += draw_bars(shown, place, title=f"{titles['table3']}\n{data}, k = {shown[0]['k']}, delta = {delta:g}")
    swept = found["tables"].get("sweeps", [])
    for data in dict.fromkeys(row["data"] for row in swept):
        shown = [row for row in swept if row["data"] == data]
        kept = chart or LineChart(title="", x="value", y="energy", panel="sweep")
        drawn = replace(kept, title=f"{titles['sweeps']}, {data}")
        paths += draw_lines(shown, drawn, out / f"sweeps-{data.lower()}")
    return [str(path) for path in paths]


def draw_lines(rows: Sequence[Row], chart: LineChart, path: Path) -> list[Path]:
    """Draw a chart to a path without suffix, with panels that share the y axis and one legend; return the files."""
    present = dict.fromkeys(str(row[chart.panel]) for row in rows)
    panels = {name: chart.panels[name] for name in chart.panels if name in present} or {name: name for name in present}
    found = dict.fromkeys(row["arm"] for row in rows)
    arms = [arm for arm in chart.arms or found if arm in found]
    if len(arms) > len(COLOURS):
        raise ValueError(f"{chart.title} has {len(arms)} lines, and there are {len(COLOURS)} colours; name its arms.")
    across = min(_ACROSS, len(panels)) if len(panels) != 4 else 2
    down = math.ceil(len(panels) / across)
    figure = _figure(width=2.6 + _PANEL_WIDTH * across, height=0.5 + _PANEL_HEIGHT * down)
    first = None
    for at, (panel, title) in enumerate(panels.items()):
        axes = first = figure.add_subplot(down, across, at + 1, sharey=first)
        heading, _, label = title.partition("|")
        for number, arm in enumerate(arms):
            seen = [row for row in rows if str(row[chart.panel]) == panel and row["arm"] == arm]
            style: dict[str, Any] = {"color": COLOURS[number], "linestyle": _DASHED[number % 4], "label": arm}
            level = [row[chart.y] for row in seen if chart.x not in row]
            if level:
                axes.axhline(level[0], **style, linewidth=1.0)
            elif seen:
                places, heights = ([row[column] for row in seen] for column in (chart.x, chart.y))
                errors = [row.get(f"{chart.y} std", 0.0) for row in seen]
                style |= {"marker": _MARKED[number], "markersize": 9.0 - 0.8 * number, "fillstyle": "none"}
                axes.errorbar(places, heights, errors, **style, capsize=2.0, linewidth=1.2)
        axes.set_title(heading, fontsize="medium")
        axes.set(xlabel=label or chart.x_label or chart.x, ylabel="" if at % across else chart.y_label or chart.y)
        axes.set(xscale="log" if chart.log else "linear", yscale="log" if chart.log_y else "linear")
        places = sorted({row[chart.x] for row in rows if str(row[chart.panel]) == panel and chart.x in row})
        if chart.log and len(places) <= _TICKS:
            axes.set_xticks(places, _labels(places))
            axes.set_xticks([], minor=True)
        axes.tick_params(labelleft=at % across == 0)
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    shown = [arm for arm in arms if arm in handles]
    figure.legend([handles[arm] for arm in shown], shown, loc="outside right upper", fontsize="small", frameon=False)
    figure.suptitle(chart.title)
    return _save(figure, path)


def _labels(places: Sequence[float]) -> list[str]:
    """Return the label of each place on a log axis; one that would overlap the label before it is empty."""
    labels, last, whole = list[str](), -math.inf, math.log(places[-1] / places[0])
    for place in places:
        at = math.log(place / places[0])
        free = at - last >= _LEAST_SPACE * whole
        labels.append(f"{place:g}" if free else "")
        last = at if free else last
    return labels


def draw_bars(rows: Sequence[Row], path: Path, *, title: str) -> list[Path]:
    """Draw the points that each arm loses, with standard errors and the true epsilon next to each bar.

    Rows have ``arm``, ``lost``, ``error`` and ``true epsilon``, for one data set and delta.
    """
    shown = sorted((row for row in rows if row.get("lost") is not None), key=lambda row: -row["lost"])
    figure = _figure(width=9.0, height=1.5 + 0.32 * len(shown))
    axes = figure.add_subplot()
    places = range(len(shown))
    colours = [_SERIES[1 if "printed" in row["arm"] else 2 if "paper" in row["arm"] else 0] for row in shown]
    lost, errors = ([row[name] for row in shown] for name in ("lost", "error"))
    axes.barh(places, lost, xerr=errors, color=colours)
    axes.set_yticks(places, [row["arm"] for row in shown])
    furthest = max((max(row["lost"], 0.0) + row["error"] for row in shown), default=1.0)
    for place, row in zip(places, shown, strict=True):
        at = max(row["lost"], 0.0) + row["error"] + 0.01 * furthest
        axes.text(at, place, _epsilon_text(row), va="center", fontsize="x-small")
    axes.set(title=title, xlabel="points of accuracy lost to the best directions (standard errors over splits)")
    axes.set_xlim(right=1.25 * furthest)
    return _save(figure, path)


def _epsilon_text(row: Row) -> str:
    """Return the true epsilon of a row as text."""
    truth = row.get("true epsilon")
    if truth is None:
        return ""
    if math.isinf(truth):
        return "no epsilon"
    sign = "≥" if row.get("bound") == "at least" else "≤"
    return f"ε {sign} {truth:.3g}" if truth > 0 else "ε = 0: below delta alone"


def _figure(*, width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, without a display."""
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure to a path without suffix, in each of `FORMATS`."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for each, kind in zip(paths, FORMATS, strict=True):
        each.write_bytes(render(figure, format=kind))
    return paths


def _markdown(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows as a Markdown table, without empty columns."""
    used = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    lines = [f"| {' | '.join(used)} |", f"|{' --- |' * len(used)}"]
    lines += [f"| {' | '.join(_cell(row.get(name)) for name in used)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return "none" if math.isinf(value) else f"{value:.4g}"
    return str(value).replace("|", "/")


def _write_csv(rows: Sequence[Row], columns: Sequence[str], path: Path) -> Path:
    """Write the given columns of rows as CSV with a header, and return the path."""
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
