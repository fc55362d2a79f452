"""Columns of a table matched by name with those that are wanted, so that no order of columns gives wrong numbers.

Only numpy is needed: whoever loads an artifact imports this.

>>> match_names(["b", "a"], ["a", "b"], noun="release").tolist()
[1, 0]
>>> match_names(["a", "b"], ["a", "b"], noun="release") is None
True
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import Invalid


def match_names(
    found: Sequence[str], wanted: Sequence[str], *, noun: str, drop_others: bool = False
) -> NDArray[np.intp] | None:
    """Return the position among the found columns of each wanted one; None where they are the same in one order.

    Parameters
    ----------
    found : sequence of str
        The names of the columns of a table.
    wanted : sequence of str
        The public names.
    noun : str
        What wants them, for messages.
    drop_others : bool
        Whether columns that nobody wants are left out; else they are refused.

    Raises
    ------
    Invalid
        If a wanted column is missing, another one is there, or a name occurs twice, so that it says nothing.

    Notes
    -----
    A message names a found column only where no wanted one is missing: else the first line of the table may hold no
    names but a row.
    """
    if len(found) == len(wanted) and all(one == other for one, other in zip(found, wanted, strict=True)):
        return None
    positions = {name: column for column, name in enumerate(found)}
    known = set(wanted)
    missing = [name for name in wanted if name not in positions]
    others = [name for name in positions if name not in known]
    if missing:
        strange = f" ({len(others)} of the {len(found)} that are there have other names)" if others else ""
        raise Invalid(
            f"column {_first(missing)} missing{strange}; this {noun} finds its {len(wanted)} columns by name; "
            "add what is missing, or give it its name"
        )
    if len(positions) < len(found) or len(known) < len(wanted):
        raise Invalid(
            f"a name of a column occurs twice; this {noun} finds its columns by name where their order differs; rename "
            "one, or give the columns in its order"
        )
    if others and not drop_others:
        raise Invalid(
            f"column {_first(others)} not among the {len(wanted)} that this {noun} knows; "
            "leave out what it does not know"
        )
    return np.array([positions[name] for name in wanted], dtype=np.intp)


def meaning(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of a schema, in plain JSON values, that decides what the features of its rows mean.

    How text is written, and columns without features, are no part of it.
    """
    if facts is None:
        return None
    columns = [column for column in facts["columns"] if column["kind"] not in ("id", "drop")]
    return {"missing_texts": sorted(facts["missing_texts"]), "columns": columns}


def changed_columns(saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns that two schemas declare in unlike ways, or only one of them declares."""
    one, other = ({column["name"]: column for column in meaning(facts)["columns"]} for facts in (saved, found))  # type: ignore[index]
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _first(names: Sequence[str]) -> str:
    return f"{names[0]!r}{' is' if len(names) == 1 else f' and {len(names) - 1} more are'}"
