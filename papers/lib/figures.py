"""Output files of reports: tables as CSV and Markdown, and charts as SVG and PNG."""

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
_LEAST_SPACE = 0.12  # smallest distance between two tick labels, as a fraction of the axis
_TICKS = 9  # a logarithmic axis with at most this number of different values has a tick at each value


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A description of a line chart: the columns of a table that it shows, and their labels.

    Attributes
    ----------
    title : str
    x, y, panel : str
        The columns for the x axis, the y axis and the panels. Each value of the column ``arm`` is a line. A row without
        ``x`` is drawn as a horizontal line. If there is a column ``Y std``, it gives error bars.
    x_label, y_label : str
        The labels of the axes; by default the names of the columns.
    log, log_y : bool
        Whether the x axis and the y axis are logarithmic.
    arms : tuple of str
        The lines to draw, in order; all by default. There may be at most as many lines as `COLOURS`.
    panels : Mapping of str to str
        The panels to draw, in order, with their titles; all by default. A title ``TEXT|LABEL`` sets the x label of the
        panel to LABEL.
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
    """Write each non-empty table as CSV, draw a chart for each table with a description, and return the file names.

    Parameters
    ----------
    tables, charts : Mapping
        The tables, and the descriptions of charts, by file name.
    out : Path, optional
        The output folder, which is created if it does not exist. If None, nothing is written.
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
    """Write the tables of a report as CSV and Markdown, draw charts for each data set, and return the file names.

    Parameters
    ----------
    found : Mapping
        The report, with ``tables`` and their ``columns`` by name. The table ``table3`` is drawn as a bar chart, and the
        table ``sweeps`` as a line chart. ``notes``, if present, are sentences to write below the tables.
    titles : Mapping of str to str
        The titles of the tables, by name.
    out : Path, optional
        The output folder, as for `write_line_charts`.
    chart : LineChart, optional
        The description of the line chart of ``sweeps``.
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
    """Draw a line chart with one panel per data set, a common y axis and one legend, and return the files.

    ``path`` has no suffix; one file is written for each format.
    """
    present = dict.fromkeys(str(row[chart.panel]) for row in rows)
    panels = {name: chart.panels[name] for name in chart.panels if name in present} or {name: name for name in present}
    found = dict.fromkeys(row["arm"] for row in rows)
    arms = [arm for arm in chart.arms or found if arm in found]
    if len(arms) > len(COLOURS):
        raise ValueError(
            f"{chart.title} has {len(arms)} lines, but there are only {len(COLOURS)} colors; select lines with arms=."
        )
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
    """Return the tick label of each value on a logarithmic axis; labels that would overlap the previous are empty."""
    labels, last, whole = list[str](), -math.inf, math.log(places[-1] / places[0])
    for place in places:
        at = math.log(place / places[0])
        free = at - last >= _LEAST_SPACE * whole
        labels.append(f"{place:g}" if free else "")
        last = at if free else last
    return labels


def draw_bars(rows: Sequence[Row], path: Path, *, title: str) -> list[Path]:
    """Draw a bar chart of the accuracy that each method loses, in percentage points.

    The chart has standard errors, and the true epsilon next to each bar. The rows are for one data set and one delta,
    with the columns ``arm``, ``lost``, ``error`` and ``true epsilon``.
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
    """Return the bound on the true epsilon in a table row as text, such as "≤ 1.2"; without a bound, an empty text."""
    truth = row.get("true epsilon")
    if truth is None:
        return ""
    if math.isinf(truth):
        return "no epsilon"
    sign = "≥" if row.get("bound") == "at least" else "≤"
    return f"ε {sign} {truth:.3g}" if truth > 0 else "ε = 0: below delta alone"


def _figure(*, width: float, height: float) -> Figure:
    """Return an empty matplotlib figure of the given size in inches, which needs no display."""
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure in each of `FORMATS`, and return the files; ``path`` has no suffix."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for each, kind in zip(paths, FORMATS, strict=True):
        each.write_bytes(render(figure, format=kind))
    return paths


def _markdown(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return table rows as a Markdown table, without columns that are empty in all rows."""
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
    """Write the given columns of table rows as CSV with a header, and return the path."""
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
