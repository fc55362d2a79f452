"""The log of a run: one line an event, as text or as JSON, with the run key and the release id.

Nothing is said unless ``DPCA_LOG`` is ``text`` or ``json``; then lines go to stderr, and nowhere else. What a release
says is public: names, states, partitions, seconds, what is left of a budget. Rows, bytes and their rates are not: a
rate times its duration is the number of records. An ingest, whose output is the curator's own, says them in a line that
is marked ``private``.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["off", "text", "json"]

_ROOT = "dpca"
_about: ContextVar[dict[str, Any]] = ContextVar("about", default={})  # noqa: B039 - never changed in place


def log_event(event: str, **facts: Any) -> None:
    """Log that something happened; the facts must be public, or the fact ``private`` says that they are not."""
    logging.getLogger(f"{_ROOT}.flows").info(event, extra={"facts": facts})


@contextmanager
def about(**facts: Any) -> Iterator[None]:
    """Add facts, such as the release id, to all that is said inside."""
    token = _about.set({**_about.get(), **facts})
    try:
        yield
    finally:
        _about.reset(token)


def configure_logs(form: LogFormat) -> None:
    """Send the program's own events to stderr in a form, once; other libraries' logging is left alone."""
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
    """One line an event."""

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
