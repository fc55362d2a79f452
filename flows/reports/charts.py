"""The two looks of every chart, and how a chart becomes SVG or PNG: equal bytes for equal charts, without a display.

The colours of both looks, light and dark, stay apart for colour-blind readers. The text of an SVG stays text.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from storage.backends.atomic_files import write_atomically, writing
from storage.errors import Invalid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE, TEXT, SMALL = 12.0, 10.0, 9.0  # points; a chart 6.25 inches wide has 12 pixels in 9 points where 600 show it
WIDTH = 6.25  # inches


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one look, as hexadecimal numbers.

    Parameters
    ----------
    ground : str
        What everything is drawn on.
    text, muted : str
        Of what is said, and of what is said beside it.
    rule, band : str
        Lines of the grid, and areas behind text; they carry no message of their own.
    signal, against : str
        Of what a chart is about, and of its opposite.
    series : tuple of str
        Of curves that are compared.

    Guarantees
    ----------
    ``text``, ``muted``, ``signal``, ``against`` and each of ``series`` have a contrast of at least 4.5 to the ground,
    and the first four also to the band.
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
        If there is none of this name.
    """
    if name not in THEMES:
        raise Invalid(f"theme {name!r} is unknown; a chart is drawn {' or '.join(THEMES)}; name one of the two.")
    return THEMES[name]


def new_figure(theme: Theme, *, width: float = WIDTH, height: float) -> "Figure":
    """Return an empty figure of a size in inches on a theme's ground, which needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=theme.ground)


def dress_axes(axes: "Axes", theme: Theme) -> None:
    """Colour the ground, lines, ticks and labels of axes; only the lines that are read from stay."""
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

_DPI = 192  # two pixels for each that a page of 600 shows
_SETTINGS: Any = {"svg.hashsalt": "dpca", "svg.fonttype": "none"}
_settings_are_set = Lock()  # matplotlib's settings belong to the process


def render(figure: "Figure", *, format: str = "svg") -> bytes:  # noqa: A002
    """Return a chart as the bytes of a file.

    Parameters
    ----------
    figure : Figure
        Its label, or what heads it, becomes the title of the SVG.
    format : str
        ``svg`` or ``png``.

    Raises
    ------
    Invalid
        For another format.

    Guarantees
    ----------
    Equal charts give equal bytes with one version of Matplotlib: they hold no date and no drawn name. Safe to call
    from several threads.
    """
    from matplotlib import rc_context

    if format not in FORMATS:
        raise Invalid(f"format {format!r} is unknown; a chart is written as {' or '.join(FORMATS)}; name one.")
    title = str(figure.get_label()) or figure.get_suptitle()
    said = {"Title": title, "Creator": "dpca", "Date": None} if format == "svg" else {"Software": None}
    out = io.BytesIO()
    with _settings_are_set, rc_context(_SETTINGS):
        figure.savefig(out, format=format, dpi=_DPI, metadata=said)
    return out.getvalue()


def check_chart_file(path: Path) -> None:
    """Refuse a file that no chart can be written to, before anything is drawn.

    Raises
    ------
    Invalid
        If its name does not end in a format of charts, or its folder does not exist.
    """
    if path.suffix.removeprefix(".") not in FORMATS or not path.parent.is_dir():
        raise Invalid(f"plot {path} must be a .png or .svg file in an existing folder; name such a file.")


def write_chart(figure: "Figure", path: Path) -> None:
    """Write a chart to a file, whole or not at all, in the format that its name ends with."""
    check_chart_file(path)
    with writing(path.parent):
        write_atomically(path.absolute(), render(figure, format=path.suffix.removeprefix(".")))
