"""Filtering, sorting and CSV export of the main list on a web page.

>>> rows = {"names": [{"name": "map", "versions": 2}, {"name": "base", "versions": 9}]}
>>> [row["name"] for row in arranged("overview", rows, find="", order="-versions")["names"]]
['base', 'map']
>>> csv_of("overview", rows).splitlines()[1]
'map,2'
"""

import csv
import io
from collections.abc import Mapping
from typing import Any

LISTS: Mapping[str, str] = {"overview": "names", "name": "versions", "budget": "releases", "datasets": "datasets"}
"""For each template of a page with a main list, the name of the fact that is the list."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run text with these beginnings as a formula


def columns_of(template: str, facts: Mapping[str, Any]) -> list[str]:
    """Return those columns of a page's main list whose values are plain, not lists or mappings."""
    rows = _rows(template, facts)
    return [name for name in (rows[0] if rows else ()) if all(_is_plain(row.get(name)) for row in rows)]


def arranged(template: str, facts: Mapping[str, Any], *, find: str, order: str) -> dict[str, Any]:
    """Return the facts of a page, with its main list filtered by a text and sorted by a column.

    Parameters
    ----------
    find : str
        The text, matched without regard to case; an empty text matches every row.
    order : str
        A column, preceded by a minus for decreasing order; an unknown column changes nothing.
    """
    if template not in LISTS:
        return dict(facts)
    column, known = order.removeprefix("-"), columns_of(template, facts)
    pairs = [(row, _flat(row)) for row in facts[LISTS[template]]]
    found = [(row, flat) for row, flat in pairs if find.lower() in " ".join(_cells(flat)).lower()]
    if column in known:
        found.sort(key=lambda pair: _key(pair[1].get(column)), reverse=order.startswith("-"))
    return {**facts, LISTS[template]: [row for row, _ in found]}


def csv_of(template: str, facts: Mapping[str, Any]) -> str:
    """Return the main list of a page as CSV with a header.

    Text that a spreadsheet would run as a formula is preceded by a quote.
    """
    written, columns = io.StringIO(), columns_of(template, facts)
    out = csv.writer(written, lineterminator="\n")
    out.writerow(columns)
    out.writerows([_cell(row.get(name)) for name in columns] for row in _rows(template, facts))
    return written.getvalue()


def _rows(template: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the main list, with the facts of the newest version as further columns."""
    if template not in LISTS:
        return []
    return [_flat(row) for row in facts[LISTS[template]]]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    nested = {f"newest_{name}": value for name, value in (row.get("newest") or {}).items()}
    return {**row, **nested}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str)) or _is_words(value)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [str(_cell(value)) for value in row.values() if _is_plain(value)]


def _cell(value: Any) -> Any:
    if _is_words(value):
        value = " ".join(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value


def _key(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key that puts numbers before texts and unknown values last."""
    value = " ".join(value) if _is_words(value) else value
    return (value is None, isinstance(value, str), 0 if value is None else value)
