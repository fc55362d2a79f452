"""Charts of one measure against one number, a panel for each data set and a line for each arm, beside their tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.reports.comparison_charts import new_figure, save_figure, series_look
from flows.reports.comparison_files import write_csv


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """What a chart shows: the columns of its table that are its axes, and whether either is logarithmic.

    Rows have ``data``, ``arm``, the two columns, and others that only the table shows; a row without ``x`` is a level
    line.
    """

    title: str
    x: str
    y: str
    log: bool = True
    log_y: bool = False


def write_line_charts(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], charts: Mapping[str, LineChart], folder: Path
) -> list[Path]:
    """Write each table as CSV, draw those that have a chart as SVG and PNG, and return the files.

    Parameters
    ----------
    tables, charts : Mapping
        By name of the files; a table without rows is left out.
    folder : Path
        Made where it does not exist; files of the same names are overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in tables.items():
        if rows:
            columns = list(dict.fromkeys(column for row in rows for column in row))
            paths.append(write_csv(rows, columns, folder / f"{name}.csv"))
            paths += draw_lines(rows, charts[name], folder / name) if name in charts else []
    return paths


def draw_lines(rows: Sequence[Mapping[str, Any]], chart: LineChart, path: Path) -> list[Path]:
    """Draw a chart to a path without suffix, a file of each format; return the files."""
    panels = list(dict.fromkeys(row["data"] for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    figure = new_figure(width=1.0 + 5.0 * len(panels), height=4.5)
    for at, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), at + 1)
        for number, arm in enumerate(arms):
            seen = [row for row in rows if row["data"] == panel and row["arm"] == arm]
            color, marker = series_look(number)
            level = [row[chart.y] for row in seen if chart.x not in row]
            if level:
                axes.axhline(level[0], color=color, linestyle="--", label=arm)
            elif seen:
                places, heights = ([row[column] for row in seen] for column in (chart.x, chart.y))
                axes.plot(places, heights, "-", marker=marker, color=color, ms=3, label=arm)
        axes.set(title=str(panel), xlabel=chart.x, ylabel=chart.y)
        if chart.log:
            axes.set_xscale("log")
        if chart.log_y:
            axes.set_yscale("log")
        axes.legend(fontsize="x-small", frameon=False)
    figure.suptitle(chart.title)
    return save_figure(figure, path)
