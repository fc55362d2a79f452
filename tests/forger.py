"""Systematic forgeries of a JSON document, one changed part at a time.

Replacements come from a second valid document of the same kind.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

type Place = tuple[str | int, ...]


def places(document: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the path to every part of a document, including parts of JSON text inside strings."""
    if place:
        yield place
    inside = _opened(document)
    if isinstance(inside, dict):
        for name in inside:
            yield from places(inside[name], (*place, name))
    elif isinstance(inside, list):
        for at, part in enumerate(inside):
            yield from places(part, (*place, at))


def forgeries(document: Any, other: Any) -> Iterator[tuple[str, Any]]:
    """Yield every forged document, with its name.

    One part is dropped, changed, duplicated, reordered, or taken from the other document. Forgeries that equal the
    honest document are skipped.
    """
    for place in places(document):
        found = find(document, place)
        kinds: list[tuple[str, Any]] = [("changed", changed(found))]
        inside = _opened(found)
        if isinstance(inside, list) and inside:
            kinds += [("duplicated", _like(found, [*inside, inside[-1]])), ("reordered", _like(found, inside[::-1]))]
        with suppress(LookupError, TypeError):
            kinds.append(("replaced", find(other, place)))
        for kind, value in kinds:
            forged = put(document, place, value)
            if forged != document:
                yield f"{kind} {'/'.join(map(str, place))}", forged
        yield f"dropped {'/'.join(map(str, place))}", put(document, place, None, drop=True)


def find(document: Any, place: Place) -> Any:
    """Return the part of a document at a path."""
    for step in place:
        document = _opened(document)[step]
    return document


def put(document: Any, place: Place, value: Any, *, drop: bool = False) -> Any:
    """Return a copy of a document with the part at a path replaced or dropped."""
    inside = copy.copy(_opened(document))
    step, *rest = place
    if rest:
        inside[step] = put(inside[step], tuple(rest), value, drop=drop)
    elif drop:
        del inside[step]
    else:
        inside[step] = value
    return _like(document, inside)


def changed(value: Any) -> Any:
    """Return a slightly different value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str() if value:
            last = value[-1]
            return value[:-1] + ("1" if last != "1" else "2")
        case str():
            return "1"
        case list():
            return value[:-1] if value else [1]
        case dict():
            return {**value, "1": 1}
    return "1"


def _opened(part: Any) -> Any:
    """Return the parsed content of a string that contains JSON, or any other part unchanged."""
    if isinstance(part, str) and part[:1] in ("{", "["):
        return json.loads(part)
    return part


def _like(part: Any, inside: Any) -> Any:
    """Return ``inside`` as JSON text if the original part was a string, and unchanged otherwise."""
    return json.dumps(inside, sort_keys=True) if isinstance(part, str) else inside
