"""Description of a published release as plain text, for the terminal, and the labels of the facts about its quality.

The text states the verdict on the quality, then the guarantee, then every other fact with its meaning. Web pages and
Prefect show the same labels and meanings.

>>> label("cv_low")
'captured variance, lower bound'
>>> guarantee = "(1, 1e-6)-differential privacy"
>>> print(release_page({"artifact": "map@1", "private": True, "statement": guarantee, "manifest": {}}))
map@1
<BLANKLINE>
Guarantee
  (1, 1e-6)-differential privacy
"""

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

LABELS: Mapping[str, tuple[str, str]] = {
    "above_noise": (
        "components above the noise",
        "number of components that noise alone exceeds less than once in 100 releases",
    ),
    "share": ("share of all variance", "variance in the subspace divided by all variance, estimated without the noise"),
    "share_low": ("share of all variance, lower bound", "holds in 95 of 100 releases"),
    "share_low_of_all": (
        "share of all variance of all records, lower bound",
        "counts every record in full, even if the last round clipped it",
    ),
    "in_rounds": ("rounds", "number of rounds, their shares of the budget, and the map and clipping of each round"),
    "cv": ("captured variance", "variance in the subspace divided by the most that as many components could have"),
    "cv_low": ("captured variance, lower bound", "holds in 95 of 100 releases"),
    "captured": ("variance in the subspace", "estimated without the noise, in squared data units summed over records"),
    "captured_low": ("variance in the subspace, lower bound", "holds in 95 of 100 releases"),
    "noise_std": ("noise, standard deviation", "of an entry off the diagonal of the released matrix"),
    "noise_edge": ("noise edge", "noise alone has a larger eigenvalue less than once in 100 releases"),
    "refined_by": (
        "refined by",
        "the method that removed noise from the eigenvectors after the release, if any",
    ),
    "failed": ("failed", "noise outweighs the components, which may be random"),
    "eigengap_bound": ("eigengap, lower bound", "released with noise"),
    "rejected_share": ("rejected records", "share of the records of the dataset that an ingest rejected, with noise"),
    "rejected_share_std": ("rejected records, standard deviation", "of the noise of that share"),
    "requested": ("components requested", "number in the request"),
    "found": ("components found", "number that was released"),
    "above": ("components above the noise", "number of eigenvalues of the released second moment above its noise"),
    "drift": ("drift", "test of whether the newest records have other directions than earlier ones"),
    "share_std": ("share of all variance, standard deviation", "of the noise of the estimate"),
    "share_beyond_first": (
        "share beyond the first component",
        "variance in the other components divided by the variance outside the first",
    ),
    "share_beyond_first_std": ("share beyond the first component, standard deviation", "of the noise of the estimate"),
    "reconstruction_error": ("variance outside the subspace", "estimated, in squared data units summed over records"),
    "reconstruction_error_std": ("variance outside the subspace, standard deviation", "of the noise of the estimate"),
    "total_variance": ("all variance", "estimated, in squared data units summed over records"),
    "total_variance_std": ("all variance, standard deviation", "of the noise of the estimate"),
    "users": ("users", "number of users that were evaluated, with noise"),
    "users_std": ("users, standard deviation", "of the noise of that number"),
    "floor": ("noise of the second moment", "eigenvalues of the released second moment below it are noise"),
    "recall_std": ("recall, standard deviation", "of the noise of the estimate"),
    "ndcg_std": ("NDCG, standard deviation", "of the noise of the estimate"),
    "rmse": ("root mean squared error", "of predicted ratings that were held out"),
    "rmse_std": ("root mean squared error, standard deviation", "of the noise of the estimate"),
    "recall": ("recall", "share of the held-out items among the recommended ones"),
    "ndcg": ("NDCG", "quality of the order of recommended items, 1 is best"),
}
"""The label of each fact, and its meaning in one clause, by the fact's name."""

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


def label(name: str) -> str:
    """Return the label of a fact. Without a label, return the fact's name with spaces for underscores."""
    return LABELS[name][0] if name in LABELS else name.replace("_", " ")


def meaning(name: str) -> str:
    """Return the meaning of a fact in one clause, or an empty text if the table has no such fact."""
    return LABELS[name][1] if name in LABELS else ""


def formatted(value: Any, *, name: str = "") -> str:
    """Format the value of a fact for display.

    A boolean is shown as yes or no, a float with three significant digits, and None as a dash. A float of at least
    1000 is shown without decimals. A fact whose name ends in ``_low`` is a lower bound, so its value is rounded down.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        shown = rounded_down(value, digits=3) if name.endswith("_low") else value
        return f"{shown:,.0f}" if abs(shown) >= 1000 else f"{shown:.3g}"
    return "-" if value is None else str(value)


def rounded_down(value: float, *, digits: int) -> float:
    """Round a number down to `digits` significant digits."""
    if value == 0.0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    return math.floor(value / unit) * unit


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
