"""Charts of released numbers, drawn to PNG files without a display."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import Invalid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_scree(eigenvalues: Sequence[float], path: Path, *, name: str) -> None:
    """Draw released eigenvalues, largest first, on a log scale; the others are left out."""
    figure, axes = _canvas(path)
    positive = [value for value in eigenvalues if value > 0]
    axes.bar(range(1, len(positive) + 1), positive)
    axes.set_yscale("log")
    axes.set(title=f"{name}: released eigenvalues", xlabel="component", ylabel="eigenvalue of the noisy $X^T X$")
    figure.savefig(path, dpi=120)


def draw_burn_down(rows: Sequence[Mapping[str, Any]], *, budget: float, population: str, path: Path) -> None:
    """Draw what was left of a budget after each release."""
    figure, axes = _canvas(path)
    times = np.array([datetime.fromisoformat(row["time"]).replace(tzinfo=None) for row in rows], "datetime64[us]")
    axes.step(times, [row["remaining"] for row in rows], where="post", marker="o")
    axes.axhline(budget, linestyle="--", linewidth=1, color="gray")
    axes.set(title=f"budget of {population}", ylabel="epsilon left for one release", ylim=(0, budget * 1.05))
    figure.autofmt_xdate()
    figure.savefig(path, dpi=120)


def _canvas(path: Path) -> tuple["Figure", "Axes"]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if path.suffix != ".png" or not path.parent.is_dir():
        raise Invalid(f"plot {path} must be a .png file in an existing folder; name such a file.")
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
