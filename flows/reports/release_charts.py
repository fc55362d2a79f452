"""Charts of releases and budgets, as SVG or PNG in two themes.

The charts show eigenvalues with the noise edge (a bound on the eigenvalues of noise alone), the loadings of a
component, and the remaining budget. The title of each chart states its result, and elements are labelled where they are
drawn, so that no chart needs a legend. All numbers are released or public.

`render` writes a chart as SVG or PNG. It needs no display, and equal charts give equal bytes. Text in an SVG is stored
as text, not as curves. The colours of both themes, light and dark, are distinguishable for colour-blind readers.

>>> from flows.reports.spectrum import Spectrum
>>> scree_chart(Spectrum(eigenvalues=(160.0, 40.0, 5.0), n_components=2, noise_edge=12.0)).get_label()
'2 of 3 eigenvalues are above the noise'
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from dpca.backends.atomic_files import write_atomically, writing
from dpca.errors import Invalid
from flows.reports.spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TITLE, TEXT, SMALL = 12.0, 10.0, 9.0  # points; 9 points are 12 pixels if a chart of 6.25 inches is 600 pixels wide
WIDTH = 6.25  # inches


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one theme, as hexadecimal numbers.

    Parameters
    ----------
    ground : str
        The background.
    text, muted : str
        Main text and secondary text.
    rule, band : str
        Grid lines, and shaded areas behind text; neither shows data.
    signal, against : str
        The main data of a chart, and data that oppose it, such as components within the noise.
    series : tuple of str
        Colours of several curves in one chart.

    Guarantees
    ----------
    ``text``, ``muted``, ``signal``, ``against`` and each colour of ``series`` have a contrast ratio of at least 4.5 to
    ``ground``. The first four also have this ratio to ``band``.
    """

    ground: str
    text: str
    muted: str
    rule: str
    band: str
    signal: str
    against: str
    series: tuple[str, ...]


THEMES = {
    "light": Theme(
        ground="#ffffff",
        text="#1b1f24",
        muted="#57606a",
        rule="#d8dee4",
        band="#eaeef2",
        signal="#1346c4",
        against="#a63d00",
        series=("#1346c4", "#a63d00", "#00704f", "#8c2f80", "#6f5600", "#0b6a80", "#b3003b", "#57606a"),
    ),
    "dark": Theme(
        ground="#14171c",
        text="#f0f3f6",
        muted="#a9b3be",
        rule="#363d47",
        band="#272d36",
        signal="#6cb6ff",
        against="#ff9e64",
        series=("#6cb6ff", "#ff9e64", "#4fd1a5", "#e59bdb", "#e3c75f", "#62d3e6", "#ff8fa8", "#a9b3be"),
    ),
}


def theme_of(name: str) -> Theme:
    """Return a theme by name.

    Raises
    ------
    Invalid
        If there is no theme of this name.
    """
    if name not in THEMES:
        raise Invalid(f"theme {name!r} is unknown; a chart is drawn {' or '.join(THEMES)}; choose one.")
    return THEMES[name]


def new_figure(theme: Theme, *, width: float = WIDTH, height: float) -> "Figure":
    """Return an empty figure of a size in inches with the background of a theme; no display is needed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=theme.ground)


def dress_axes(axes: "Axes", theme: Theme) -> None:
    """Apply the colours of a theme to axes, and keep only the left and the bottom line."""
    axes.set_facecolor(theme.ground)
    axes.tick_params(colors=theme.muted, labelcolor=theme.text, labelsize=SMALL, which="both")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.muted)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=theme.muted, fontsize=SMALL)
    axes.title.set_color(theme.text)


if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")

_DPI = 192  # twice the pixels of a chart that is shown 600 pixels wide
_SETTINGS: Any = {"svg.hashsalt": "dpca", "svg.fonttype": "none"}
_settings_are_set = Lock()  # matplotlib's settings are global to the process


def render(figure: "Figure", *, format: str = "svg") -> bytes:  # noqa: A002
    """Return a chart as the bytes of a file.

    Parameters
    ----------
    figure : Figure
        Its label, or else its heading, becomes the title of the SVG.
    format : str
        ``svg`` or ``png``.

    Raises
    ------
    Invalid
        If the format is unknown.

    Guarantees
    ----------
    Equal charts give equal bytes with the same version of Matplotlib, as the bytes contain no date and no random name.
    The function is safe to call from several threads.
    """
    from matplotlib import rc_context

    if format not in FORMATS:
        raise Invalid(f"format {format!r} is unknown; a chart is written as {' or '.join(FORMATS)}; choose one.")
    title = str(figure.get_label()) or figure.get_suptitle()
    message = {"Title": title, "Creator": "dpca", "Date": None} if format == "svg" else {"Software": None}
    out = io.BytesIO()
    with _settings_are_set, rc_context(_SETTINGS):
        figure.savefig(out, format=format, dpi=_DPI, metadata=message)
    return out.getvalue()


def check_chart_file(path: Path) -> None:
    """Check the path of a chart file before anything is drawn.

    Raises
    ------
    Invalid
        If the file's name does not end in a chart format, or its folder does not exist.
    """
    if path.suffix.removeprefix(".") not in FORMATS or not path.parent.is_dir():
        raise Invalid(f"plot {path} must be a .png or .svg file in an existing folder; name such a file.")


def write_chart(figure: "Figure", path: Path) -> None:
    """Write a chart to a file atomically, in the format that the suffix of the file's name states."""
    check_chart_file(path)
    with writing(path.parent):
        write_atomically(path.absolute(), render(figure, format=path.suffix.removeprefix(".")))


_ROW = 0.27  # height of a row of a bar chart in inches
_NAMED = 16  # largest number of rows for releases in a burn-down chart; earlier releases then share one row
_LONGEST_NAME = 34
_PART_OF_LETTER = 0.0145  # width of a letter, as a fraction of the width of a scree chart


def scree_chart(spectrum: Spectrum, *, name: str | None = None, theme: str = "light") -> "Figure":
    """Draw released eigenvalues on a log scale, with the range of noise shaded; the title is the verdict on quality.

    Parameters
    ----------
    spectrum : Spectrum
        Eigenvalues below the scale, such as negative eigenvalues, are not drawn.
    name : str, optional
        Name of the release.
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    Figure
    """
    from matplotlib.ticker import MaxNLocator

    palette = theme_of(theme)
    finding, _, more = _scree_finding(spectrum).partition("; ")
    figure, axes = titled(
        finding,
        ": ".join(part for part in (name, more or "released eigenvalues, largest first") if part),
        palette,
        height=3.9,
        warns=spectrum.above_noise == 0 or finding.startswith("FAILED"),
    )
    _draw_noise(axes, spectrum, palette)
    _draw_eigenvalues(axes, spectrum, palette)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="rank", ylabel="eigenvalue of the noisy XᵀX, log scale")
    dress_axes(axes, palette)
    return figure


def loadings_chart(
    rows: Sequence[Mapping[str, Any]], *, component: int, name: str | None = None, theme: str = "light"
) -> "Figure":
    """Draw the largest loadings of a component by feature name.

    The title names the features with the largest positive and the largest negative loading.

    Parameters
    ----------
    rows : sequence of Mapping
        Rows with ``feature`` and ``loading``, largest first, as `flows.reports.spectrum.top_loadings` returns them.
    component : int
        Number of the component, from 1.
    name : str, optional
        Name of the release.
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    Figure
    """
    palette = theme_of(theme)
    held = sum(row["loading"] ** 2 for row in rows)
    parts = (f"the {len(rows)} largest loadings are {math.floor(100 * min(held, 1.0))} % of the component", name)
    figure, axes = titled(
        _loadings_finding(rows, component),
        " of ".join(part for part in parts if part),
        palette,
        height=1.35 + _ROW * max(len(rows), 3),
    )
    places, values = range(len(rows)), [row["loading"] for row in rows]
    colors = [palette.signal if value >= 0 else palette.against for value in values]
    axes.barh(places, values, color=colors, height=0.62)
    axes.axvline(0.0, color=palette.muted, linewidth=1)
    reach = max((abs(value) for value in values), default=0.0) or 1.0
    for place, value in zip(places, values, strict=True):
        side = 1 if value >= 0 else -1
        axes.annotate(
            f"{value:+.2f}".replace("-", "−"),
            (value, place),
            (4 * side, 0),
            **text_style(palette.text, ha="left" if side > 0 else "right", va="center"),
        )
    both = min(values, default=0.0) < 0
    axes.set(xlim=((-1.35 if both else 0.0) * reach, 1.35 * reach), ylim=(max(len(rows), 3) - 0.4, -0.6))
    axes.set_yticks(places, [short_name(str(row["feature"])) for row in rows])
    axes.set(xlabel="loading; the sign of a whole component is arbitrary")
    dress_axes(axes, palette)
    _only_names(axes)
    return figure


def budget_chart(facts: Mapping[str, Any], *, theme: str = "light") -> "Figure":
    """Draw the epsilon that was left of a budget after each release, oldest first; the title states what is left now.

    Parameters
    ----------
    facts : Mapping
        As `flows.reports.budget_facts.budget_facts` returns them. If there are many releases, one bar represents
        all of the earliest releases.
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    Figure
    """
    palette = theme_of(theme)
    charged = [row for row in facts["releases"] if row["remaining"] is not None]
    rows = [("budget opened", float(facts["epsilon"]))]
    if len(charged) > _NAMED:
        hidden = charged[: 1 - _NAMED]
        rows.append((f"{len(hidden)} earlier releases", hidden[-1]["remaining"]))
        charged = charged[1 - _NAMED :]
    rows += [(_release_name(row), max(row["remaining"], 0.0)) for row in charged]
    figure, axes = titled(
        _budget_finding(facts),
        f"largest epsilon of one more release after each release, at delta {facts['delta']:g}",
        palette,
        height=1.35 + _ROW * max(len(rows), 3),
        warns=facts["remaining"] <= 0.05 * facts["epsilon"],
    )
    places, left = range(len(rows)), [remaining for _, remaining in rows]
    before = [left[0], *left[:-1]]
    axes.barh(places, left, color=palette.signal, height=0.62)
    axes.barh(
        places,
        [max(was - now, 0.0) for was, now in zip(before, left, strict=True)],
        left=left,
        color=palette.band,
        edgecolor=palette.against,
        hatch="////",
        linewidth=0,
        height=0.62,
    )
    for place, was, now in zip(places, before, left, strict=True):
        shown = _left(now, of=rows[0][1]) + (f" (−{was - now:.2g})" if was > now else "")
        axes.annotate(shown, (max(was, now), place), (4, 0), **text_style(palette.text, va="center"))
    axes.set(xlim=(0.0, 1.35 * rows[0][1]), ylim=(max(len(rows), 3) - 0.4, -0.6))
    axes.set_yticks(places, [label for label, _ in rows])
    axes.set(xlabel="hatched: epsilon of each release" if len(rows) > 1 else "")
    dress_axes(axes, palette)
    _only_names(axes)
    return figure


def titled(finding: str, more: str, palette: Theme, *, height: float, warns: bool = False) -> tuple["Figure", "Axes"]:
    """Return a figure and its axes, with the finding as a heading and secondary text below it."""
    first = textwrap.wrap(finding, 58)
    second = textwrap.wrap(more, 82)
    head = 0.12 + 0.21 * len(first) + 0.17 * len(second)
    height += head
    figure = new_figure(palette, height=height)
    figure.set_label(finding)
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0.0, 0.0, 1.0, 1.0 - head / height))
    side = 0.1 / WIDTH
    figure.text(
        side,
        1.0 - 0.1 / height,
        "\n".join(first),
        fontsize=TITLE,
        fontweight="bold",
        va="top",
        color=palette.against if warns else palette.text,
    )
    figure.text(
        side, 1.0 - (0.1 + 0.21 * len(first)) / height, "\n".join(second), fontsize=TEXT, va="top", color=palette.muted
    )
    return figure, figure.add_subplot()


def _draw_noise(axes: "Axes", spectrum: Spectrum, palette: Theme) -> None:
    """Set the log scale of the eigenvalues, and shade the range below the noise edge."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    edge, low, count = spectrum.noise_edge, spectrum.lowest, len(spectrum.eigenvalues)
    top = 2.0 * max(low, edge or low, *spectrum.eigenvalues)
    axes.set_yscale("log")
    axes.set(ylim=(low, top), xlim=(0.3, count + 0.7))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if top > 300.0 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    if edge is not None:
        axes.axhspan(low, edge, color=palette.band, linewidth=0)
        axes.axhline(edge, color=palette.muted, linewidth=1, linestyle=(0, (4, 3)))
        shown = f"noise alone stays below {_number(edge)}, 99 times in 100"
        axes.annotate(shown, (0.4, low), (2, 5), **text_style(palette.muted, ground=palette.band))


def _draw_eigenvalues(axes: "Axes", spectrum: Spectrum, palette: Theme) -> None:
    """Draw the eigenvalues in four groups, and label each group at its first eigenvalue.

    The groups are components and other eigenvalues, each above the noise edge or within the noise.
    """
    ranks, values = np.arange(1, len(spectrum.eigenvalues) + 1), np.array(spectrum.eigenvalues)
    edge, low = spectrum.noise_edge, spectrum.lowest
    above, kept = values > (0.0 if edge is None else edge), ranks <= spectrum.n_components
    hollow = palette.ground if edge is None else palette.band
    for of, color, marker, fill, noun in (
        (kept & above, palette.signal, "o", palette.signal, "component"),
        (kept & ~above, palette.against, "D", palette.against, "component within the noise"),
        (~kept & above, palette.signal, "o", palette.ground, "more" if edge is None else "more above the noise"),
        (~kept & ~above, palette.muted, "o", hollow, "within the noise"),
    ):
        seen = of & (values > low)
        if not seen.any():
            continue
        axes.vlines(ranks[seen], low, values[seen], color=color, linewidth=1.4, alpha=0.55)
        axes.plot(ranks[seen], values[seen], marker, c=color, markersize=5, markerfacecolor=fill, markeredgewidth=1.3)
        count, first = int(of.sum()), int(np.flatnonzero(seen)[0])
        message, height = (
            f"{count} {noun.replace('component', 'components') if count > 1 else noun}",
            float(values[first]),
        )
        if edge is not None and height <= edge < height * (axes.get_ylim()[1] / low) ** 0.1:
            height = edge  # move the label above the line of the noise edge
        fits = first + _PART_OF_LETTER * len(message) * len(values) < len(values)
        where = (first + 1.0, (7, 5), "left") if fits else (len(values) + 0.7, (-2, 5), "right")
        ground = palette.band if edge is not None and height < edge else palette.ground
        axes.annotate(message, (where[0], height), where[1], **text_style(color, ha=where[2], ground=ground))


def _scree_finding(spectrum: Spectrum) -> str:
    if spectrum.verdict:
        return spectrum.verdict[:1].upper() + spectrum.verdict[1:].rstrip(".")
    above, count = spectrum.above_noise, len(spectrum.eigenvalues)
    if above is None:
        return f"{count} released eigenvalues, without a noise floor"
    return f"{above} of {count} eigenvalues {'is' if above == 1 else 'are'} above the noise"


def _loadings_finding(rows: Sequence[Mapping[str, Any]], component: int) -> str:
    risen, fallen = ([short_name(str(row["feature"])) for row in rows if sign * row["loading"] > 0] for sign in (1, -1))
    if risen and fallen:
        return f"Component {component}: {risen[0]} against {fallen[0]}"
    together = (risen or fallen)[:2]
    return f"Component {component}: {' and '.join(together) or 'no large loading'}"


def _budget_finding(facts: Mapping[str, Any]) -> str:
    count = sum(row["remaining"] is not None for row in facts["releases"])
    if facts.get("voided"):
        return f"{facts['population']}: the budget is void, with nothing left"
    left = _left(facts["remaining"], of=facts["epsilon"])
    after = f" after {count} release{'s' * (count > 1)}" if count else ": no release yet"
    return f"{facts['population']}: epsilon {float(left):g} of {facts['epsilon']:g} is left{after}"


def _release_name(row: Mapping[str, Any]) -> str:
    day = datetime.fromisoformat(row["time"]).strftime("%Y-%m-%d")
    made = row["artifact"] or f"{row['mechanism'] or 'release'} {row['release'][:8]}"
    return f"{short_name(made.split(', ')[0])}  {day}"


def _left(remaining: float, *, of: float) -> str:
    """Write the remaining epsilon, rounded down so that the written amount can be spent.

    The number of decimals gives the total three significant digits.
    """
    decimals = max(2 - math.floor(math.log10(of)), 0)
    return f"{math.floor(max(remaining, 0.0) * 10**decimals + 1e-6) / 10**decimals:.{decimals}f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 10 <= abs(value) < 1e7 else f"{value:.3g}"


def short_name(name: str) -> str:
    """Shorten the middle of a long name."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def text_style(color: str, *, ha: str = "left", va: str = "bottom", ground: str | None = None) -> dict[str, Any]:
    """Return the style of an annotation."""
    box = {} if ground is None else {"bbox": {"facecolor": ground, "edgecolor": "none", "pad": 1.0}}
    return {"textcoords": "offset points", "color": color, "fontsize": SMALL, "ha": ha, "va": va, **box}


def _only_names(axes: "Axes") -> None:
    """Hide axis lines and ticks, but not the names of bars; each bar is labelled with its number."""
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
