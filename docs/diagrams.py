"""The diagrams of the documentation: boxes in rows, and arrows between them.

``python -m docs.diagrams`` writes each diagram for the light and for the dark theme, as
``docs/images/diagram-NAME-light.svg`` and ``-dark.svg``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.release_charts import THEMES, Theme, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parent / "images"
_COLUMN, _ROW, _WIDE, _HIGH = 1.55, 0.95, 1.25, 0.52  # distances between columns and rows, and size of a box, in inches


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """A diagram of boxes in rows, arrows between boxes, and labeled frames around groups of boxes.

    Parameters
    ----------
    title : str
        One sentence: what the diagram shows.
    rows : sequence of sequences of str
        The text of each box, by row. An empty text leaves the position free.
    arrows : sequence of (str, str, str)
        For each arrow, the texts of its first and last box, and its label.
    areas : mapping of str to sequence of str
        For each frame, its label and the texts of the boxes inside.
    """

    title: str
    rows: Sequence[Sequence[str]]
    arrows: Sequence[tuple[str, str, str]]
    areas: Mapping[str, Sequence[str]] = field(default_factory=dict)


DIAGRAMS = {
    "data-flow": Diagram(
        title="From rows to a version: noise is added once, after the budget is charged",
        rows=(
            ("source file", "snapshot\nin Zarr", "clipped rows on\nan integer grid", "exact\ninteger sum"),
            ("", "budget\nin the ledger", "mechanism", "curator\nadds noise once"),
            ("consumer", "name@version", "artifact", ""),
        ),
        arrows=(
            ("source file", "snapshot\nin Zarr", "ingest"),
            ("snapshot\nin Zarr", "clipped rows on\nan integer grid", "blocks"),
            ("clipped rows on\nan integer grid", "exact\ninteger sum", "Dask"),
            ("exact\ninteger sum", "curator\nadds noise once", ""),
            ("curator\nadds noise once", "mechanism", "answers"),
            ("budget\nin the ledger", "mechanism", "charge first"),
            ("mechanism", "artifact", ""),
            ("artifact", "name@version", "publish"),
            ("name@version", "consumer", "load"),
        ),
    ),
    "trust-boundary": Diagram(
        title="Rows stay inside the trust boundary; only noised or declared values cross it",
        rows=(
            ("datasets", "workers", "curator", "artifacts\nin the registry"),
            ("keys", "ledger", "", "consumers,\nweb pages"),
            ("private reports", "", "", "Prefect:\nstates, logs"),
        ),
        arrows=(
            ("datasets", "workers", "rows, TLS"),
            ("workers", "curator", "exact sums"),
            ("keys", "ledger", ""),
            ("ledger", "curator", "charged step"),
            ("curator", "artifacts\nin the registry", "noised"),
            ("artifacts\nin the registry", "consumers,\nweb pages", ""),
        ),
        areas={"inside the trust boundary": ("datasets", "workers", "curator", "keys", "ledger", "private reports")},
    ),
    "release-states": Diagram(
        title="States of a release: only a release that never began costs nothing",
        rows=(("reserved", "noising", "committed"), ("abandoned", "closed", "")),
        arrows=(
            ("reserved", "noising", "begin"),
            ("noising", "committed", "commit"),
            ("reserved", "abandoned", "abandon: no charge"),
            ("noising", "closed", "close: stays charged"),
        ),
    ),
    "release-life": Diagram(
        title="Life cycle of a release: after a crash the same request goes on where it stopped",
        rows=(
            ("plan\nno row is read", "reserve\nbudget charged", "compute\neach step kept", "publish"),
            ("", "the same request", "", "report"),
        ),
        arrows=(
            ("plan\nno row is read", "reserve\nbudget charged", ""),
            ("reserve\nbudget charged", "compute\neach step kept", ""),
            ("compute\neach step kept", "publish", ""),
            ("publish", "report", ""),
            ("the same request", "reserve\nbudget charged", "found again"),
            ("the same request", "compute\neach step kept", "resumed"),
        ),
    ),
    "secure-sum": Diagram(
        title="A secure sum: the server opens the total and nothing else",
        rows=(
            (
                "each site:\nsum + noise share",
                "masked\nintegers",
                "server adds\nall messages",
                "total with\nthe sites' noise",
            ),
            ("pairwise keys", "shares of\nmask seeds", "t sites help\nto unmask", ""),
        ),
        arrows=(
            ("each site:\nsum + noise share", "masked\nintegers", "+ masks"),
            ("masked\nintegers", "server adds\nall messages", "signed"),
            ("server adds\nall messages", "total with\nthe sites' noise", "masks cancel"),
            ("pairwise keys", "masked\nintegers", ""),
            ("pairwise keys", "shares of\nmask seeds", ""),
            ("shares of\nmask seeds", "t sites help\nto unmask", ""),
            ("t sites help\nto unmask", "server adds\nall messages", ""),
        ),
    ),
    "stream": Diagram(
        title="A stream is charged once; each slot of the schedule is one tick",
        rows=(
            ("open the stream:\none charge", "slot 1", "slot 2", "slot T"),
            ("", "tick 1", "tick 2", "tick T"),
            ("kept noised\nanswers", "version 1", "version 2", "version T"),
        ),
        arrows=(
            ("open the stream:\none charge", "slot 1", ""),
            ("slot 1", "slot 2", ""),
            ("slot 2", "slot T", "..."),
            ("slot 1", "tick 1", ""),
            ("slot 2", "tick 2", ""),
            ("slot T", "tick T", ""),
            ("tick 1", "version 1", ""),
            ("tick 2", "version 2", ""),
            ("tick T", "version T", ""),
            ("kept noised\nanswers", "version 1", "combine"),
        ),
    ),
    "signatures": Diagram(
        title="A pinned root key leads to every byte",
        rows=(
            ("root keys,\nkept offline", "root:\nwho may publish", "publisher's key"),
            ("consumer\npins a root key", "signed pointer", "artifact\nby its digest"),
        ),
        arrows=(
            ("root keys,\nkept offline", "root:\nwho may publish", "sign"),
            ("root:\nwho may publish", "publisher's key", "delegates"),
            ("publisher's key", "artifact\nby its digest", "signs"),
            ("publisher's key", "signed pointer", "signs"),
            ("signed pointer", "artifact\nby its digest", ""),
            ("consumer\npins a root key", "root:\nwho may publish", "checks"),
            ("consumer\npins a root key", "signed pointer", ""),
        ),
    ),
    "closed-loop": Diagram(
        title="The closed loop: each arrival is released, judged by public numbers, and promoted or held",
        rows=(
            ("inbox", "snapshot", "release", "gate:\nverdict and drift"),
            ("set aside", "", "hold:\nthe alias stays", "promote:\nthe alias moves"),
        ),
        arrows=(
            ("inbox", "snapshot", "ingest"),
            ("snapshot", "release", "one charge"),
            ("release", "gate:\nverdict and drift", "published"),
            ("inbox", "set aside", "unreadable file"),
            ("gate:\nverdict and drift", "promote:\nthe alias moves", "passes"),
            ("gate:\nverdict and drift", "hold:\nthe alias stays", "fails"),
        ),
    ),
}


def draw(diagram: Diagram, *, theme: str) -> "Figure":
    """Draw a diagram in the colors of a theme, and return the figure."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    inspect, columns = THEMES[theme], max(map(len, diagram.rows))
    width, height = _COLUMN * columns + 0.1, _ROW * len(diagram.rows) + 0.45
    figure = new_figure(inspect, width=width, height=height)
    figure.set_layout_engine("none")
    figure.set_label(diagram.title)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0.0, width), ylim=(0.0, height))
    axes.axis("off")
    places = {
        name: (0.05 + _COLUMN * (column + 0.5), height - 0.4 - _ROW * (row + 0.5))
        for row, names in enumerate(diagram.rows)
        for column, name in enumerate(names)
        if name
    }
    axes.text(0.1, height - 0.22, diagram.title, fontsize=8, fontweight="bold", color=inspect.text, va="center")
    for label, names in diagram.areas.items():
        _draw_area(axes, [places[name] for name in names], label, inspect)
    boxes = {}
    for name, (x, y) in places.items():
        corner = (x - _WIDE / 2, y - _HIGH / 2)
        style: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.06", "fc": inspect.band, "ec": inspect.muted}
        boxes[name] = axes.add_patch(FancyBboxPatch(corner, _WIDE, _HIGH, zorder=2, lw=1.0, **style))
        axes.text(x, y, name, fontsize=8, color=inspect.text, ha="center", va="center", zorder=3)
    for start, end, label in diagram.arrows:
        ends: dict[str, Any] = {"patchA": boxes[start], "patchB": boxes[end], "shrinkA": 1, "shrinkB": 2}
        line: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": inspect.signal, "lw": 1.2}
        axes.add_patch(FancyArrowPatch(places[start], places[end], zorder=1, **ends, **line))
        if label:
            (x, y), (u, v) = places[start], places[end]
            across = y == v
            axes.text(
                (x + u) / 2,
                (y + v) / 2 + (_HIGH / 2 + 0.04 if across else 0.0),
                label,
                fontsize=7,
                color=inspect.muted,
                ha="center",
                va="bottom" if across else "center",
                zorder=4,
                bbox={"fc": inspect.ground, "ec": "none", "pad": 0.6},
            )
    return figure


def _draw_area(axes: "Axes", places: Sequence[tuple[float, float]], label: str, inspect: Theme) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, right = (edge(x for x, _ in places) for edge in (min, max))
    low, high = (edge(y for _, y in places) for edge in (min, max))
    corner = (left - _WIDE / 2 - 0.1, low - _HIGH / 2 - 0.14)
    size = (right - left + _WIDE + 0.2, high - low + _HIGH + 0.28)
    axes.add_patch(
        FancyBboxPatch(corner, *size, boxstyle="square,pad=0", fc="none", ec=inspect.against, ls="--", zorder=0)
    )
    axes.text(corner[0] + size[0] - 0.05, corner[1] + 0.04, label, fontsize=7, color=inspect.against, ha="right")


def main() -> None:
    """Write every diagram for the light and for the dark theme."""
    for name, diagram in DIAGRAMS.items():
        for theme in THEMES:
            (IMAGES / f"diagram-{name}-{theme}.svg").write_bytes(render(draw(diagram, theme=theme)))


if __name__ == "__main__":
    main()
