"""The picture of a release in rounds: the eigenvalues of the answer of each round, and the range of noise alone.

``python -m docs.rounds_picture`` releases a9a in three rounds, with a key derived from a fixed text. It writes
``docs/images/rounds-light.svg`` and ``-dark.svg``. The data are public, so nothing is charged.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from docs.diagrams import IMAGES
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.noise_level import edge_quantile
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_rounds import Rounds
from flows.reports.release_charts import THEMES, dress_axes, new_figure, render
from papers.lib.experiments import run_mechanism
from papers.lib.public_data import a9a_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 60
"""The number of eigenvalues of each round."""


def released_rounds() -> Rounds:
    """Release ten components of a9a at epsilon 0.1 in three rounds, and return the answers of all rounds."""
    rows = a9a_rows()
    problem = Problem(n_features=rows.shape[1], clip_norm=1.0, records_at_most=rows.shape[0])
    released = run_mechanism(
        AnalyzeGauss(n_components=10, rounds=3),
        problem,
        PrivacyTarget(epsilon=0.1, delta=1e-6),
        ArrayBlocks(rows),
        key=hashlib.sha256(b"picture of rounds").digest(),
    )
    found: Rounds = released.rounds
    return found


def draw(found: Rounds, *, theme: str) -> "Figure":
    """Draw the eigenvalues of each round in a separate panel, with common axes, in the colors of a theme."""
    look = THEMES[theme]
    figure = new_figure(look, height=2.9)
    for number, (axes, answer) in enumerate(
        zip(figure.subplots(1, len(found.answers), sharex=True, sharey=True), found.answers, strict=True), 1
    ):
        order = len(answer.map.directions)
        values = np.linalg.eigvalsh(answer.released[:order, :order])[::-1][:SHOWN]
        edge = answer.noise_std * edge_quantile(order)
        above = values > edge
        places = np.arange(1, len(values) + 1)
        dress_axes(axes, look)
        axes.axhspan(10.0, edge, color=look.band, lw=0)
        axes.plot(places[above], values[above], "o", ms=3.5, color=look.signal)
        axes.plot(places[~above & (values > 0)], values[~above & (values > 0)], "o", ms=2.5, color=look.muted)
        axes.set_yscale("log")
        axes.set_ylim(10.0, 40_000.0)
        axes.set_title(f"Round {number}: {int(above.sum())} above noise", color=look.text, fontsize=9, loc="left")
        axes.set_xlabel("eigenvalue, largest first", color=look.muted, fontsize=8)
        if number == 1:
            axes.set_ylabel("records at the clip norm", color=look.muted, fontsize=8)
    return figure


def main() -> None:
    """Write the picture for the light and for the dark theme."""
    found = released_rounds()
    for theme in THEMES:
        (IMAGES / f"rounds-{theme}.svg").write_bytes(render(draw(found, theme=theme)))


if __name__ == "__main__":
    main()
