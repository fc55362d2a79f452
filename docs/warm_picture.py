"""The picture of twelve monthly releases, each with and without a start from the month before.

``python -m docs.warm_picture`` divides a9a into twelve months, and releases ten components of each at epsilon 0.3.
It writes ``docs/images/warm-light.svg`` and ``-dark.svg``. The data are public, and keys are derived from fixed texts,
so nothing is charged.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from docs.diagrams import IMAGES
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.warm_start import Start, start_of
from dpca_tasks.metrics import captured_variance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from flows.reports.release_charts import THEMES, dress_axes, new_figure, render
from papers.lib.public_data import a9a_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MONTHS, COMPONENTS, TARGET, DRAWS = 12, 10, PrivacyTarget(epsilon=0.3, delta=1e-6), 5
KINDS = ("one round", "three rounds", "like the month before")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The captured variance of one kind of release in each month, relative to the best ten directions of the month."""

    kind: str
    months: Sequence[float]


def released_months() -> list[Captured]:
    """Release all months in all ways, and return the means of the captured variance over the draws."""
    rows = a9a_rows()
    order = np.random.default_rng(12).permutation(rows.shape[0])
    months = [rows[np.sort(part)] for part in np.array_split(order, MONTHS)]
    found = {kind: np.zeros((DRAWS, MONTHS)) for kind in KINDS}
    for draw in range(DRAWS):
        before: Start | None = None
        for at, month in enumerate(months):
            moment = (month.T @ month).toarray()
            values = np.linalg.eigvalsh(moment)[::-1]
            for kind in KINDS:
                start = before if kind == KINDS[2] else None
                made = _release(ArrayBlocks(month), month.shape, f"{kind} {draw} {at}", kind, start)
                components = refine_release(made, n_components=COMPONENTS, method="auto").subspace.components
                found[kind][draw, at] = captured_variance(moment, components, values=values)
                if kind == KINDS[2]:
                    before = start_of(made, clip_norm=1.0, records_at_most=month.shape[0])
    return [Captured(kind=kind, months=each.mean(axis=0).tolist()) for kind, each in found.items()]


def _release(source: ArrayBlocks, shape: tuple[int, ...], seed: str, kind: str, start: Start | None) -> Subspace:
    problem = Problem(n_features=shape[1], clip_norm=1.0, records_at_most=shape[0])
    rounds = 3 if kind == KINDS[1] else 1
    mechanism = AnalyzeGauss(n_components=COMPONENTS, rounds=rounds)
    if start is not None:
        known = start
        mechanism = AnalyzeGauss(n_components=COMPONENTS, warm=True, start=lambda: known)
    plan = mechanism.plan(problem, TARGET)
    if start is not None:
        plan = replace(plan, start={"artifact": "the month before", "mean_square": start.mean_square})
    key = hashlib.sha256(seed.encode()).digest()
    return mechanism.run(Curator(source, InMemoryReservation(event=plan.event, key=key)), plan)


def draw(found: Sequence[Captured], *, theme: str) -> "Figure":
    """Draw the captured variance of all kinds over the months, in the colors of a theme."""
    look = THEMES[theme]
    figure = new_figure(look, height=2.9)
    axes = figure.subplots()
    dress_axes(axes, look)
    styles = zip(found, ((look.muted, ":"), (look.muted, "--"), (look.signal, "-")), strict=True)
    for each, (color, line) in styles:
        months = np.arange(1, MONTHS + 1)
        axes.plot(months, each.months, line, color=color, marker="o", ms=3.5)
        axes.text(MONTHS + 0.2, each.months[-1], each.kind, color=color, fontsize=8, va="center")
    axes.set_xlim(0.5, MONTHS + 4.0)
    axes.set_xticks(range(1, MONTHS + 1))
    axes.set_xlabel("month", color=look.muted, fontsize=8)
    axes.set_ylabel("captured variance", color=look.muted, fontsize=8)
    return figure


def main() -> None:
    """Write the picture for the light and for the dark theme, and print the numbers."""
    found = released_months()
    for theme in THEMES:
        (IMAGES / f"warm-{theme}.svg").write_bytes(render(draw(found, theme=theme)))
    for each in found:
        print(each.kind, [round(value, 3) for value in each.months])


if __name__ == "__main__":
    main()
