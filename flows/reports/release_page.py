"""Description of a published release as plain text, for the terminal.

The text states the verdict on the quality, then the guarantee, then every other fact with its meaning.

>>> guarantee = "(1, 1e-6)-differential privacy"
>>> print(release_page({"artifact": "map@1", "private": True, "statement": guarantee, "manifest": {}}))
map@1
<BLANKLINE>
Guarantee
  (1, 1e-6)-differential privacy
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from dpca.artifacts.labels import LABELS, formatted, label, meaning

_WIDTH = 80
_UNSAID = ("verdict", "seed", "probes", "explained_variance_ratio", "noise")
_NO_GUARANTEE = "NOT PRIVATE: an exact result without a guarantee."


def release_page(shown: Mapping[str, Any]) -> str:
    """Return the description of a release as plain text.

    Parameters
    ----------
    shown : Mapping
        Public facts, as `dpca.registry.reader.Registry.show` returns them.

    Returns
    -------
    str
        At most 80 columns wide, except for names and digests.
    """
    return "\n".join(_lines(shown))


def quality_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a release about its quality by name, without lists and mappings."""
    message = [name for name, value in outcome.items() if isinstance(value, (bool, int, float, str))]
    order = [name for name in LABELS if name in message] + [name for name in message if name not in LABELS]
    return {name: outcome[name] for name in order if name not in _UNSAID}


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    manifest = shown["manifest"]
    outcome = manifest.get("outcome") or {}
    aliases = shown.get("aliases") or ()
    yield f"{shown['artifact']}{f' ({", ".join(aliases)})' if aliases else ''}"
    if shown.get("headline"):
        yield shown["headline"]
    if outcome.get("verdict"):
        yield ""
        yield from textwrap.wrap(_sentence(outcome["verdict"]), _WIDTH)
    yield from _section("Guarantee", [shown.get("statement") or "-" if shown["private"] else _NO_GUARANTEE])
    quality = quality_of(outcome)
    yield from _section(
        "Quality", _table({name: (formatted(value, name=name), meaning(name)) for name, value in quality.items()})
    )
    yield from _section("Terms", _table(_terms(shown)))
    yield from _section("Origin", _table(_origin(shown)))
    for warning in manifest.get("warnings") or ():
        yield from _section("Warning", textwrap.wrap(warning, _WIDTH - 2))


def _terms(shown: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    parameters = shown["manifest"].get("parameters") or {}
    facts = {name: shown.get(name) for name in ("mechanism", "clip_norm", "noise_multiplier")}
    facts["parameters"] = ", ".join(f"{name} {formatted(value)}" for name, value in parameters.items()) or None
    words = {"clip_norm": "largest norm of a record", "noise_multiplier": "noise over sensitivity"}
    return {name: (formatted(value), words.get(name, "")) for name, value in facts.items() if value is not None}


def _origin(shown: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    manifest, digest = shown["manifest"], shown.get("digest")
    version, plan = manifest.get("code_version"), manifest.get("plan") or {}
    facts = {
        "release": shown.get("release"),
        "digest": digest and f"sha256:{digest}",
        "started from": plan.get("like") or plan.get("like_public"),
        "derived from": manifest.get("parent") and f"sha256:{manifest['parent']}",
        "written by": version and f"dpca {version}",
    }
    return {name: (value, "") for name, value in facts.items() if value}


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}".rstrip() for line in lines)


def _table(facts: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return one line for each fact with its label and value; lines with its meaning follow, if there is a meaning."""
    width = max((len(label(name)) for name in facts), default=0)
    lines = []
    for name, (value, means) in facts.items():
        first, indent = f"{label(name):<{width}}  {value}", " " * (width + 2)
        lines += textwrap.wrap(first, _WIDTH - 2, subsequent_indent=indent) if " " in value else [first]
        lines += textwrap.wrap(means, _WIDTH - 6, initial_indent="    ", subsequent_indent="    ")
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
