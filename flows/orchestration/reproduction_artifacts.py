"""What Prefect shows of a reproduction on public data: its checks and tables, and its figures."""

import base64
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.orchestration.prefect_artifacts import artifact_key
from flows.reports.comparison_files import draw_comparison, markdown_table


def show_comparison(name: str, found: Mapping[str, Any], titles: Mapping[str, str]) -> None:
    """Attach checks, tables and figures of a comparison to the running flow.

    Parameters
    ----------
    name : str
        Of the reproduction.
    found : Mapping
        Its report, with ``checks``, ``tables``, ``columns``, ``left_out`` and ``charged``; ``notes`` are sentences.
    titles : Mapping of str to str
        Of the tables.
    """
    held = sum(check["holds"] for check in found["checks"])
    told = f"{held} of {len(found['checks'])} checks hold; charged: {found['charged']}"
    create_table_artifact(
        key=artifact_key("reproduction", f"{name} checks"),
        table=[{key: _finite(value) for key, value in check.items()} for check in found["checks"]],
        description=told,
    )
    parts = [f"# Reproduction {name}", told + "."] + [f"Left out: {each}." for each in found["left_out"]]
    parts += found.get("notes", ())
    for table, rows in found["tables"].items():
        if rows:
            parts += [f"## {titles[table]}", markdown_table(rows, found["columns"][table])]
    create_markdown_artifact(
        key=artifact_key("reproduction", f"{name} tables"), markdown="\n\n".join(parts), description=told
    )
    with tempfile.TemporaryDirectory() as folder:
        drawn = [path for path in draw_comparison(found["tables"], titles, Path(folder)) if path.suffix == ".png"]
        figures = [
            f"![{path.stem}](data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()})" for path in drawn
        ]
    create_markdown_artifact(
        key=artifact_key("reproduction", f"{name} figures"), markdown="\n\n".join(figures), description=told
    )


def _finite(value: Any) -> Any:
    return "infinite" if isinstance(value, float) and not math.isfinite(value) else value
