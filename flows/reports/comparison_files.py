"""The files of a comparison of subspaces: its tables as CSV and Markdown, its figures as SVG and PNG."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.reports.comparison_charts import draw_bars, draw_curves, draw_sweeps


def write_comparison(found: Mapping[str, Any], titles: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the tables of a report, and a figure for each data set and delta.

    Parameters
    ----------
    found : Mapping
        With ``tables`` and ``columns`` by name: ``figure...`` are curves, ``table3`` bars, ``sweeps`` panels;
        ``notes``, if any, are sentences that stand below the tables.
    titles : Mapping of str to str
    folder : Path
        Made where it does not exist; files of the same names are overwritten.

    Returns
    -------
    list of Path
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in found["tables"].items():
        columns = found["columns"][name]
        paths += [write_csv(rows, columns, folder / f"{name}.csv"), folder / f"{name}.md"]
        notes = "".join(f"{each}\n\n" for each in found.get("notes", ()))
        text = f"# {titles[name]}\n\n{markdown_table(rows, columns)}\n\n{notes}Charged: {found['charged']}.\n"
        paths[-1].write_text(text, encoding="utf8")
    return paths + draw_comparison(found["tables"], titles, folder)


def draw_comparison(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], titles: Mapping[str, str], folder: Path
) -> list[Path]:
    """Draw a figure of each data set and delta, or of all sweeps of a data set; return the files."""
    paths: list[Path] = []
    for name, draw in (("figure1", draw_curves), ("table3", draw_bars)):
        rows = tables.get(name, [])
        for data, delta in dict.fromkeys((row["data"], row["delta"]) for row in rows if row.get("delta") is not None):
            shown = [row for row in rows if row["data"] == data and row.get("delta") in (delta, None)]
            place = folder / f"{name}-{data.lower().replace(' ', '-')}-delta-{delta:g}"
            title = f"{titles[name]}\n{data}, k = {shown[0]['k']}, delta = {delta:g}"
            paths += draw(shown, place, title=title)
    swept = tables.get("sweeps", [])
    for data in dict.fromkeys(row["data"] for row in swept):
        shown = [row for row in swept if row["data"] == data]
        paths += draw_sweeps(shown, folder / f"sweeps-{data.lower()}", title=f"{titles['sweeps']}\n{data}")
    return paths


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as a Markdown table; columns that no row has are left out."""
    used = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    lines = [f"| {' | '.join(used)} |", f"|{' --- |' * len(used)}"]
    lines += [f"| {' | '.join(_cell(row.get(name)) for name in used)} |" for row in rows]
    return "\n".join(lines)


def write_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], path: Path) -> Path:
    """Write rows as CSV with a header, and return the path; what a row has beyond the columns is left out."""
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return "none" if math.isinf(value) else f"{value:.4g}"
    return str(value).replace("|", "/")
