"""Terminal output and logs of commands.

Results go to stdout, as tables or one JSON object. Everything else goes to stderr. A command that spends budget asks
for confirmation first, and prints its outcome in one line afterwards.

A run is logged only if ``DPCA_LOG`` is ``text`` or ``json``. The log goes to stderr, with one line for each event,
which states the run key and the release id. The log of a release is public: it states names, states, partitions,
seconds and the remaining budget. Numbers of rows and bytes are private, and so are their rates, because a rate times
its duration is the number of records. An ingest, whose output is for the curator, logs these numbers in a line marked
``private``.
"""

import itertools
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from dpca_tasks.errors import Refused

Verdict = Literal["ok", "note", "fix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: ``ok``, a ``note`` about a minor problem, or a ``fix`` for a problem that stops runs."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


LogFormat = Literal["off", "text", "json"]

_ROOT = "dpca"
_about: ContextVar[dict[str, Any]] = ContextVar("about", default={})  # noqa: B039 - never changed in place


def log_event(event: str, **facts: Any) -> None:
    """Log an event with its facts; facts that are not public need the additional fact ``private``."""
    logging.getLogger(f"{_ROOT}.flows").info(event, extra={"facts": facts})


@contextmanager
def about(**facts: Any) -> Iterator[None]:
    """Add facts, such as the release id, to every event that is logged inside the context."""
    token = _about.set({**_about.get(), **facts})
    try:
        yield
    finally:
        _about.reset(token)


def configure_logs(form: LogFormat) -> None:
    """Write the events of dpca to stderr in the format ``form``; the logging of other libraries is unchanged."""
    logger = logging.getLogger(_ROOT)
    for handler in [handler for handler in logger.handlers if isinstance(handler.formatter, _Line)]:
        logger.removeHandler(handler)
    logger.propagate = form == "off"
    if form == "off":
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(as_json=form == "json"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Line(logging.Formatter):
    """A formatter that writes one line for each event."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = _about.get() | getattr(record, "facts", {})
        if self._as_json:
            head = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
            return json.dumps(head | facts, default=str)
        return " ".join([time, record.levelname.lower(), record.getMessage(), *(f"{k}={v}" for k, v in facts.items())])


class _Stderr(Console):
    """A console that clears the progress line of `flows.reports.activity` before it prints."""

    def print(self, *objects: Any, **how: Any) -> None:
        if self.is_terminal:
            self.file.write("\r\x1b[K")
        super().print(*objects, **how)


SHOWN = 20
"""Default number of rows to show of a list that grows with every release."""

STDERR = _Stderr(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json_text(value))


def json_text(value: Any) -> str:
    """Return facts as JSON text; an infinite number becomes null, because JSON has no infinity."""
    return json.dumps(_finite(value), indent=2, default=str, allow_nan=False)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print facts as one JSON object, or one line for each fact with its name and value."""
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {_text(value)}")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print rows as JSON or as a table; print ``empty`` in place of an empty table."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        typer.echo(empty)
        return
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 400)
    text = "".join(itertools.chain(*cells))
    if (
        sum(widths) + 2 * len(columns) <= console.width and text.isascii() and text.isprintable()
    ):  # every cell fits into its column, so Rich is not needed
        row = "  ".join(f"{{:<{width}}}" for width in widths)
        typer.echo("\n".join(itertools.starmap(row.format, (columns, *cells))))
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in cells:
        table.add_row(*line)
    console.print(table)


def print_earlier(count: int | None, what: str) -> None:
    """Print on stderr that earlier rows are not shown, with their number if it is known; nothing if there are none."""
    if count is None or count:
        STDERR.print(f"{'more' if count is None else f'{count:,}'} earlier {what} are not shown; --limit 0 shows all.")


def confirm(
    question: str, *, yes: bool, before: str = "this spends budget", after: str = "nothing was charged"
) -> None:
    """Ask for confirmation before budget is spent, or before the action that ``before`` names.

    Raises
    ------
    Refused
        If there is no terminal to confirm at, or the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(f"{before}, but there is no terminal to confirm it ({question}); pass --yes to agree.")
    if not typer.confirm(question, err=True):
        raise Refused(f"not confirmed; {after}.")


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ", ".join(value) or "-"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, default=str)
    return "-" if value is None else str(value)


_DIGITS = 4


def outcome_line(report: Mapping[str, Any]) -> str:
    """Return the outcome of a release as one line, with its version, its verdict and the remaining budget.

    Parameters
    ----------
    report : Mapping
        Public facts, as `flows.releases.stages.release_facts` returns them.
    """
    made = "released before, nothing spent:" if report["reused"] else "released"
    private = "" if report["private"] else ", NOT PRIVATE"
    message = str(report.get("verdict") or ("FAILED" if report.get("failed") else "")).rstrip(".")
    parts = (f"{made} {report['artifact']}{private}{_promise(report)}", message, _left(report))
    return "; ".join(part for part in parts if part) + "."


def joint_line(report: Mapping[str, Any]) -> str:
    """Return the outcome of a joint release as one line, with the remainder of each budget in this ledger.

    ``report`` holds public facts, as `flows.sites.releases.report_sites` returns them.
    """
    made = "released before, nothing spent:" if report["reused"] else "released"
    message = str(report.get("verdict") or "").rstrip(".")
    left = (_left(site) for site in report["sites"] if "remaining" in site)
    return "; ".join(part for part in (f"{made} {report['artifact']}{_promise(report)}", message, *left) if part) + "."


def stream_line(facts: Mapping[str, Any]) -> str:
    """Return one line with the number of charged ticks of a stream, and the remaining budget.

    ``facts`` are public, as `flows.releases.streams.open_stream` returns them.
    """
    paid = f"{facts['ticks']} ticks of {facts['stream']!r} are charged{_promise(facts)}, {facts['left']} remain"
    return f"{paid}; {_left(facts)}."


def spending(cost: str, *, remaining: float, after: float) -> str:
    """Return a part of a confirmation prompt: a cost, with the epsilon that is left before and after."""
    return f"{cost}, with epsilon {rounded_down(remaining)} left before and {rounded_down(after)} after"


def rounded_down(epsilon: float) -> str:
    """Write the remaining epsilon to four digits, rounded down so that the number is never too large."""
    if not 0.0 < epsilon < math.inf:
        return "0" if epsilon <= 0.0 else "inf"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - _DIGITS)
    return f"{math.floor(epsilon / unit * (1.0 + 1e-12)) * unit:.{_DIGITS}g}"


def _promise(report: Mapping[str, Any]) -> str:
    """Return the guarantee of a release as the end of a sentence; empty if the release has none."""
    declared = report.get("statement")
    return f" with {declared}" if declared and report.get("private", True) else ""


def _left(facts: Mapping[str, Any]) -> str:
    return f"epsilon {rounded_down(facts['remaining'])} of budget {facts['population']!r} is left"


@dataclass(slots=True, kw_only=True)
class RefreshOutcome:
    """Outcome so far of a refresh, which processes the files that arrived in an inbox.

    ``left`` counts the files that are still waiting.
    """

    published: str
    decisions: list[dict[str, Any]] = field(default_factory=list)
    set_aside: int = 0
    kept_back: int = 0
    refused: int = 0
    left: int = 0

    def end(self, how: Literal["set_aside", "kept_back", "refused"], count: int = 1) -> None:
        """Add ``count`` to the files with the outcome ``how``, and subtract it from the files that wait."""
        setattr(self, how, getattr(self, how) + count)
        self.left -= count

    def report(self) -> dict[str, Any]:
        """Return the outcome as public facts: one line, the counts, and the decisions on versions."""
        made = Counter(decision["decision"] for decision in self.decisions)
        counts = {"promoted": made["promoted"], "held": made["held"]}
        counts |= {name: getattr(self, name) for name in ("kept_back", "refused", "set_aside", "left")}
        message = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        return {
            "outcome": ", ".join(message) or "nothing arrived",
            **counts,
            "published": self.published,
            "decisions": self.decisions,
        }
