"""Small private datasets and their neighbors, which differ in one record; some differ in a malformed one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FEATURES, RECORDS, AT = 4, 40, 20
"""Columns, records, and the position of the record in which neighbours differ."""
ITEMS = ("alien", "brazil", "casino", "diva", "eraserhead", "fargo")
COLUMNS = ("a", "b", "c", "d")
PER_UNIT = 3

Lines = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A kind of dataset: rows, and for each neighbor one edit of the rows."""

    header: str
    lines: Callable[[], Lines]
    neighbours: dict[str, Callable[[Lines], Lines]]

    def write(self, path: Path, neighbour: str | None) -> Path:
        """Write the base data, or the neighbor with this name, to a file."""
        lines = self.lines()
        if neighbour is not None:
            lines = self.neighbours[neighbour](lines)
        path.write_text("".join(f"{line}\n" for line in ([self.header] if self.header else []) + lines))
        return path


def _put(line: str) -> Callable[[Lines], Lines]:
    """Return an edit that replaces the differing record by a line of text."""
    return lambda lines: [*lines[:AT], line, *lines[AT + 1 :]]


def _add(*added: str) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines[:AT], *added, *lines[AT:]]


def _remove(lines: Lines) -> Lines:
    return [*lines[:AT], *lines[AT + 1 :]]


def _points() -> Lines:
    rng = np.random.default_rng(23)
    rows = rng.normal(size=(RECORDS, FEATURES)) * np.geomspace(1.0, 0.2, FEATURES)
    return [",".join(f"{value:.6f}" for value in row) for row in rows]


def _units() -> Lines:
    """Return rows with ids, two rows for each person."""
    return [f"p{at // 2},{line}" for at, line in enumerate(_points())]


def _ratings() -> Lines:
    rng = np.random.default_rng(24)
    return [f"{user},{item},{rng.integers(1, 6)}" for user in range(RECORDS) for item in rng.permutation(ITEMS)[:4]]


def _documents() -> Lines:
    rng, chances = np.random.default_rng(25), np.array([[0.5, 0.3, 0.2, 0, 0, 0], [0, 0, 0, 0.2, 0.3, 0.5]])
    lines = []
    for document in range(RECORDS):
        counts = rng.multinomial(6, chances[int(document % 3 == 0)])
        lines += [f"{document},{ITEMS[word]},{counts[word]}" for word in np.flatnonzero(counts)]
    return lines


_CELLS = {
    "changed": "9000.5,-3,1e300,0.25",
    "NaN": "0.1,nan,0.2,0.3",
    "infinite": "0.1,inf,0.2,0.3",
    "no number": "0.1,oops,0.2,0.3",
    "missing cell": "0.1,,0.2,0.3",
    "too few cells": "0.1,0.2",
    "too many cells": "0.1,0.2,0.3,0.4,0.5",
    "open quote": '0.1,"0.2,0.3,0.4',
    "stray quote": '0.1,0."2,0.3,0.4',
    "undecodable": "0.1,\ufffd,0.3,0.4",
    "huge number": f"0.1,{'9' * 400},0.3,0.4",
}

POINTS = Table(
    header=",".join(COLUMNS),
    lines=_points,
    neighbours={
        **{name: _put(line) for name, line in _CELLS.items()},
        "added": _add("0.5,0.5,0.5,0.5"),
        "removed": _remove,
    },
)
UNITS = Table(
    header="id," + ",".join(COLUMNS),
    lines=_units,
    neighbours={
        **{name: _put(f"p{AT // 2},{line}") for name, line in _CELLS.items()},
        "too many rows of one person": _add(*[f"p{AT // 2},5,5,5,5"] * 2 * PER_UNIT),
        "added": _add("new,0.5,0.5,0.5,0.5"),
        "no id": _put(",0.1,0.2,0.3,0.4"),
    },
)
RATINGS = Table(
    header="user,film,stars",
    lines=_ratings,
    neighbours={
        "changed": lambda lines: [*lines[:AT], lines[AT].rsplit(",", 1)[0] + ",1", *lines[AT + 1 :]],
        "duplicate rating": lambda lines: [*lines[:AT], lines[AT], *lines[AT:]],
        "NaN": lambda lines: [*lines[:AT], lines[AT].rsplit(",", 1)[0] + ",nan", *lines[AT + 1 :]],
        "unknown film": lambda lines: [*lines[:AT], f"{AT // 4},zardoz,4", *lines[AT + 1 :]],
        "open quote": lambda lines: [*lines[:AT], '5,"' + lines[AT].split(",", 1)[1], *lines[AT + 1 :]],
        "removed": lambda lines: [line for line in lines if not line.startswith("5,")],
    },
)
DOCUMENTS = Table(
    header="document,word,count",
    lines=_documents,
    neighbours={
        "changed": lambda lines: [*lines[:AT], lines[AT].rsplit(",", 1)[0] + ",4000", *lines[AT + 1 :]],
        "removed": lambda lines: [line for line in lines if not line.startswith("5,")],
    },
)
