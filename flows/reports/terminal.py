"""What the command prints: results on stdout, as tables or one JSON object; everything else on stderr."""

import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from dpca_tasks.errors import Refused


class _Stderr(Console):
    """Print over the line that an activity moves on the terminal."""

    def print(self, *objects: Any, **how: Any) -> None:
        if self.is_terminal:
            self.file.write("\r\x1b[K")
        super().print(*objects, **how)


SHOWN = 20
"""The rows of a list that grows with every release which are shown unless others are asked for."""

STDERR = _Stderr(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json_text(value))


def json_text(value: Any) -> str:
    """Write facts as JSON; infinity, which JSON lacks, is null."""
    return json.dumps(_finite(value), indent=2, default=str, allow_nan=False)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print names and values, one a line."""
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {_text(value)}")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print a table; say so when there is nothing in it."""
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
    if sum(widths) + 2 * len(columns) <= console.width and text.isascii() and text.isprintable():  # nothing to fold
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
    """Tell on stderr that a table begins with the newest rows alone, and how many came before, if that is known."""
    if count is None or count:
        STDERR.print(f"{'more' if count is None else f'{count:,}'} earlier {what} are not shown; --limit 0 shows all.")


def confirm(
    question: str, *, yes: bool, before: str = "this spends budget", after: str = "nothing was charged"
) -> None:
    """Ask before budget is spent, or something else is done that ``before`` names.

    Raises
    ------
    Refused
        When nobody at a terminal can answer, or the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(f"{before} and no terminal can confirm it ({question}); pass --yes to agree beforehand.")
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
