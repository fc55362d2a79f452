"""The lineage of an exported artifact as tags: short texts by name, as model registries keep them."""

from collections.abc import Mapping
from typing import Any

from storage.artifacts.base import Artifact

_FACTS = ("release", "mechanism", "code_version", "parent")
_PRIVACY = ("epsilon", "delta", "relation", "unit", "rows_per_unit", "statement")


def lineage_tags(artifact: Artifact, *, reference: str, digest: str) -> dict[str, str]:
    """Return where an artifact came from and what it guarantees, by names that begin with ``dpca.``.

    Parameters
    ----------
    artifact : Artifact
    reference : str
        Its name and version.
    digest : str

    Returns
    -------
    dict
        Public facts alone; what is not declared is left out. ``dpca.input`` is there where the release takes encoded
        columns, which a raw table has to become first.
    """
    manifest: Mapping[str, Any] = artifact.manifest
    privacy: Mapping[str, Any] = manifest.get("privacy", {})
    facts = {name: manifest.get(name) for name in _FACTS} | {name: privacy.get(name) for name in _PRIVACY}
    known = {name: value for name, value in facts.items() if value is not None}
    told = {
        "artifact": reference,
        "digest": f"sha256:{digest}",
        "private": "yes" if artifact.is_private else "no",
        **{name: value if isinstance(value, str) else repr(value) for name, value in known.items()},
        **({"input": "columns as the release's encoder makes them"} if manifest.get("encoder") else {}),
    }
    return {f"dpca.{name}": text for name, text in told.items()}
