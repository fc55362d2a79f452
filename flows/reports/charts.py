"""Charts of released numbers, drawn to PNG and SVG files without a display."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.reports.spectrum import Spectrum
from storage.errors import Invalid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_spectrum(spectrum: Spectrum, path: Path, *, name: str) -> None:
    """Draw released eigenvalues on a log scale, with the band of the noise; the components and what is above it marked.

    Eigenvalues that the scale does not reach, negative ones among them, are left out.
    """
    figure, axes = _canvas(path)
    ranks, values = np.arange(1, len(spectrum.eigenvalues) + 1), np.array(spectrum.eigenvalues)
    edge, low = spectrum.noise_edge, spectrum.lowest
    above = values > (0.0 if edge is None else edge)
    drawn = values > low
    if edge is not None:
        axes.axhspan(low, edge, color="0.85", label="noise alone (99 in 100)")
        axes.axhline(edge, color="0.5", linewidth=1, linestyle="--")
    for chosen, color, label in (
        (above & drawn, "tab:blue", "eigenvalue" if edge is None else "above the noise"),
        (~above & drawn, "0.6", "within the noise"),
    ):
        if chosen.any():
            axes.vlines(ranks[chosen], low, values[chosen], color=color, linewidth=2)
            axes.plot(ranks[chosen], values[chosen], "o", color=color, markersize=4, label=label)
    kept = drawn & (ranks <= spectrum.n_components)
    axes.plot(ranks[kept], values[kept], "o", color="tab:orange", markersize=8, fillstyle="none", label="component")
    axes.set_yscale("log")
    axes.set_ylim(bottom=low)
    axes.set(title=f"{name}: released eigenvalues", xlabel="rank", ylabel="eigenvalue of the noisy $X^T X$")
    axes.legend(frameon=False)
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
    from matplotlib.figure import Figure

    if path.suffix not in (".png", ".svg") or not path.parent.is_dir():
        raise Invalid(f"plot {path} must be a .png or .svg file in an existing folder; name such a file.")
    figure = Figure(figsize=(7, 4), layout="constrained")
    return figure, figure.add_subplot()
