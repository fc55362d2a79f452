"""The manifest of an artifact: public facts alone, checked against a closed list."""

import json
from collections.abc import Mapping
from typing import Any

from storage.errors import Invalid

FORMAT = 1
NOT_PRIVATE = ("non_private", "als", "ials", "otd")  # the mechanisms whose results are marked for ever
FACTS: Mapping[str, str] = {
    "code_version": "text",
    "format": "number",
    "kind": "text",
    "mechanism": "text",
    "outcome": "facts",
    "parameters": "facts",
    "parent": "text",
    "plan": "facts",
    "privacy": "facts",
    "release": "text",
    "warnings": "names",
}
"""What the manifest of any kind may hold, and as what: facts declared, chosen or released, never a function of private
rows. A kind adds its own."""
_HUGE = 1e300
_SHOWN = 200


def canonical_json(value: object) -> bytes:
    """Encode plain JSON values in one way only: sorted keys, ASCII, two spaces, no NaN."""
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Return what `canonical_json` would of an object, from what it returned of each member.

    >>> canonical_object({"b": canonical_json([1]), "a": canonical_json({})}) == canonical_json({"a": {}, "b": [1]})
    True
    """
    lines = [
        canonical_json(name)[:-1] + b": " + members[name][:-1].replace(b"\n", b"\n  ")  # no text holds a line's end
        for name in sorted(members)
    ]
    return b"{\n  " + b",\n  ".join(lines) + b"\n}\n" if lines else b"{}\n"


def in_short(found: object) -> str:
    """Shorten text that another person wrote to a part of one line."""
    return " ".join(str(found).split())[:_SHOWN]


def _is(value: object, kind: str) -> bool:
    match kind:
        case "facts":
            return isinstance(value, Mapping)
        case "names":
            return value is None or (isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value))
        case "text":
            return value is None or isinstance(value, str)
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and not abs(value) > _HUGE)


def checked_manifest(
    manifest: Mapping[str, Any], *, kind: str, facts: Mapping[str, str], shape: Mapping[str, int]
) -> dict[str, Any]:
    """Return a manifest with the facts that follow from the arrays.

    Parameters
    ----------
    manifest : mapping
        Public facts as plain JSON values.
    kind : str
        The kind of artifact.
    facts : mapping of str to {"facts", "names", "number", "text"}
        What a manifest of this kind may hold besides `FACTS`.
    shape : mapping of str to int
        The sizes of the arrays, by the names under which they are stated.

    Raises
    ------
    Invalid
        When it holds anything that is no public fact, or contradicts the arrays.
    """
    derived = {"format": FORMAT, "kind": kind, **shape}
    known = {**FACTS, **facts, **dict.fromkeys(shape, "number")}
    if strangers := sorted(set(manifest) - set(known)):
        raise Invalid(
            f"manifest has {', '.join(map(str, strangers))}; only public facts enter an artifact "
            f"({', '.join(sorted(known))}); leave the rest out"
        )
    for name, form in known.items():
        if name in manifest and name not in derived and not _is(manifest[name], form):
            raise Invalid(f"manifest has a {name} that is no {form}; state it as a release does")
    for name, value in derived.items():
        if manifest.get(name, value) != value:
            raise Invalid(f"manifest has {name}={manifest[name]!r}; this artifact has {value!r}; leave it out")
    if manifest.get("mechanism") in NOT_PRIVATE and manifest.get("privacy", {}).get("private") is not False:
        raise Invalid(
            f"a manifest of {manifest['mechanism']} must say that it is not private; keep its facts as they are"
        )
    try:
        return dict(json.loads(canonical_json({**manifest, **derived})))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"manifest is not JSON ({error}); it holds plain values only; convert it first") from error
