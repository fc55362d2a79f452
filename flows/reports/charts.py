"""Charts become bytes and files here: SVG whose text is text, and PNG, equal for equal charts, without a display."""

import io
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from storage.backends.atomic_files import write_atomically, writing
from storage.errors import Invalid

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
