"""The manifest of an artifact: public facts alone, checked against a closed list."""

import json
from collections.abc import Mapping
from typing import Any

from storage.errors import Invalid

FORMAT = 1
KIND = "private_subspace"
NOT_PRIVATE = "non_private"  # the mechanism whose results are marked for ever
#: All that a manifest may hold: facts declared, chosen or released, never a function of private rows.
PUBLIC_FACTS = frozenset(
    {
        "clip_norm",
        "code_version",
        "feature_names",
        "format",
        "kind",
        "mechanism",
        "n_components",
        "n_features",
        "outcome",
        "parameters",
        "parent",
        "plan",
        "privacy",
        "release",
        "total_variance",
        "warnings",
    }
)
_HUGE = 1e300
_KINDS = {
    "clip_norm": "number",
    "code_version": "text",
    "feature_names": "names",
    "mechanism": "text",
    "outcome": "facts",
    "parameters": "facts",
    "parent": "text",
    "plan": "facts",
    "privacy": "facts",
    "release": "text",
    "total_variance": "number",
    "warnings": "names",
}


def canonical_json(value: object) -> bytes:
    """Encode plain JSON values in one way only: sorted keys, ASCII, two spaces, no NaN."""
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def _is(value: object, kind: str) -> bool:
    match kind:
        case "facts":
            return isinstance(value, Mapping)
        case "names":
            return value is None or (isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value))
        case "text":
            return value is None or isinstance(value, str)
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and not abs(value) > _HUGE)


def checked_manifest(manifest: Mapping[str, Any], shape: Mapping[str, int]) -> dict[str, Any]:
    """Return a manifest with the facts that follow from the arrays; refuse what is no public fact."""
    derived = {"format": FORMAT, "kind": KIND, **shape}
    if strangers := sorted(set(manifest) - PUBLIC_FACTS):
        raise Invalid(
            f"manifest has {', '.join(map(str, strangers))}; only public facts enter an artifact "
            f"({', '.join(sorted(PUBLIC_FACTS))}); leave the rest out"
        )
    for name, kind in _KINDS.items():
        if name in manifest and not _is(manifest[name], kind):
            raise Invalid(f"manifest has a {name} that is no {kind}; state it as a release does")
    for name, value in derived.items():
        if manifest.get(name, value) != value:
            raise Invalid(f"manifest has {name}={manifest[name]!r}; this subspace has {value!r}; leave it out")
    if manifest.get("mechanism") == NOT_PRIVATE and manifest.get("privacy", {}).get("private") is not False:
        raise Invalid(f"a manifest of {NOT_PRIVATE} must say that it is not private; keep its facts as they are")
    names = manifest.get("feature_names")
    if names is not None and len(names) != shape["n_features"]:
        raise Invalid(f"{len(names)} feature names; there is one a feature; declare {shape['n_features']}")
    try:
        return dict(json.loads(canonical_json({**manifest, **derived})))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"manifest is not JSON ({error}); it holds plain values only; convert it first") from error
