"""Terminal output and logs of commands.

Results go to stdout, as tables or one JSON object. Everything else goes to stderr. A command that spends prints a
question before it charges, and afterwards its outcome in one line, also for a closed loop.

A run is logged only if ``DPCA_LOG`` is ``text`` or ``json``. The log has one line for each event, with the run key and
the release id, and goes to stderr and nowhere else. The log of a release is public: it states names, states,
partitions, seconds, and what is left of a budget. Rows, bytes and their rates are private, because a rate times its
duration is the number of records. An ingest, whose output is for the curator, logs them in a line marked ``private``.
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
    """The finding of one check: ``ok``, a ``note`` that does not stop runs, or something to ``fix``."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


LogFormat = Literal["off", "text", "json"]

_ROOT = "dpca"
_about: ContextVar[dict[str, Any]] = ContextVar("about", default={})  # noqa: B039 - never changed in place


def log_event(event: str, **facts: Any) -> None:
    """Log an event; its facts must be public, unless the fact ``private`` marks them as private."""
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
    """Send the program's own events to stderr in a format, each once; the logging of other libraries is unchanged."""
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
    """A console that prints over the line that an activity moves on the terminal."""

    def print(self, *objects: Any, **how: Any) -> None:
        if self.is_terminal:
            self.file.write("\r\x1b[K")
        super().print(*objects, **how)


SHOWN = 20
"""The default number of rows to show of a list that grows with every release."""

STDERR = _Stderr(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json_text(value))


def json_text(value: Any) -> str:
    """Return facts as JSON text; infinity, which JSON lacks, is null."""
    return json.dumps(_finite(value), indent=2, default=str, allow_nan=False)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print facts as JSON, or as lines with a name and a value."""
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
    if sum(widths) + 2 * len(columns) <= console.width and text.isascii() and text.isprintable():  # no cell to fold
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
    """Report on stderr that a table shows only the newest rows, and how many came before, if that is known."""
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
    """Return the outcome of a request as one line, with the release, its verdict, and what is left of the budget.

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
    """Return the outcome of a joint release as one line, with what is left of each budget in this ledger.

    ``report`` holds public facts, as `flows.sites.releases.report_sites` returns them.
    """
    made = "released before, nothing spent:" if report["reused"] else "released"
    message = str(report.get("verdict") or "").rstrip(".")
    left = (_left(site) for site in report["sites"] if "remaining" in site)
    return "; ".join(part for part in (f"{made} {report['artifact']}{_promise(report)}", message, *left) if part) + "."


def stream_line(facts: Mapping[str, Any]) -> str:
    """Return the number of paid ticks of a stream, and what is left of its budget, as one line.

    ``facts`` are public, as `flows.releases.streams.open_stream` returns them.
    """
    paid = f"{facts['ticks']} ticks of {facts['stream']!r} are charged{_promise(facts)}, {facts['left']} remain"
    return f"{paid}; {_left(facts)}."


def spending(cost: str, *, remaining: float, after: float) -> str:
    """Return a cost with what is left of the budget now and afterwards, as part of a question."""
    return f"{cost}, with epsilon {rounded_down(remaining)} left before and {rounded_down(after)} after"


def rounded_down(epsilon: float) -> str:
    """Write what is left to four digits, rounded down so that it is never overstated."""
    if not 0.0 < epsilon < math.inf:
        return "0" if epsilon <= 0.0 else "inf"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - _DIGITS)
    return f"{math.floor(epsilon / unit * (1.0 + 1e-12)) * unit:.{_DIGITS}g}"


def _promise(report: Mapping[str, Any]) -> str:
    """Return the guarantee of a release as part of a sentence, if it has one."""
    declared = report.get("statement")
    return f" with {declared}" if declared and report.get("private", True) else ""


def _left(facts: Mapping[str, Any]) -> str:
    return f"epsilon {rounded_down(facts['remaining'])} of budget {facts['population']!r} is left"


@dataclass(slots=True, kw_only=True)
class RefreshOutcome:
    """Outcome of the arrivals of a run so far.

    ``left`` counts the arrivals that are still waiting.
    """

    published: str
    decisions: list[dict[str, Any]] = field(default_factory=list)
    set_aside: int = 0
    kept_back: int = 0
    refused: int = 0
    left: int = 0

    def end(self, how: Literal["set_aside", "kept_back", "refused"], count: int = 1) -> None:
        """Count arrivals that ended in the way that ``how`` names."""
        setattr(self, how, getattr(self, how) + count)
        self.left -= count

    def report(self) -> dict[str, Any]:
        """Return the outcome as public facts, in one line and in full."""
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
