"""The facts of one version: terms, verdict, spectrum, loadings and lineage. Every byte of its artifact is checked."""

from typing import Any

import sqlalchemy as sa

from flows.web.absent import Absent
from flows.web.kinds import kind_facts, numbers_in
from flows.web.lineage import lineage_facts
from flows.web.listing import VersionRow, aliases_in, numbers_of, versions_in
from storage.artifacts.base import Artifact
from storage.artifacts.files import read_artifact
from storage.artifacts.kinds import KINDS
from storage.artifacts.subspace import PrivateSubspace
from storage.database.engine import reading
from storage.privacy_unit import stated_privacy
from storage.workspace import Workspace


def find_version(connection: sa.Connection, name: str, version: int) -> VersionRow:
    """Return the row of a version.

    Raises
    ------
    Absent
        When there is none; it says which there are.
    """
    for row in versions_in(connection, name, version=version):
        return row
    numbers = numbers_of(connection, name)
    if not numbers:
        raise Absent(f"Nothing is published under the name {name}.")
    raise Absent(f"{name} has no version {version}; it has versions {numbers[0]} to {numbers[-1]}.")


def load_version(workspace: Workspace, name: str, version: int) -> tuple[VersionRow, Artifact]:
    """Return the row of a version and its artifact."""
    with reading(workspace.ledger.engine) as connection:
        row = find_version(connection, name, version)
    return row, read_artifact(workspace.store, row.digest)


def version_facts(workspace: Workspace, name: str, version: int) -> dict[str, Any]:
    """Return all that the page of a version shows."""
    row, artifact = load_version(workspace, name, version)
    with reading(workspace.ledger.engine) as connection:
        aliases = aliases_in(connection, name).get((name, version), [])
        numbers = numbers_of(connection, name)
        lineage = lineage_facts(connection, row, artifact.manifest)
    manifest = artifact.manifest
    privacy, plan, outcome = (manifest.get(part) or {} for part in ("privacy", "plan", "outcome"))
    return {
        **row.facts(aliases),
        "kind": manifest["kind"],
        "headline": artifact.headline(),
        "private": artifact.is_private,
        "mechanism": manifest.get("mechanism"),
        "epsilon": privacy.get("epsilon", row.epsilon),
        "delta": privacy.get("delta", row.delta),
        "relation": privacy.get("relation"),
        "unit": privacy.get("unit"),
        "rows_per_unit": privacy.get("rows_per_unit"),
        "statement": stated_privacy(manifest),
        "guarantee": manifest.get("guarantee"),
        "clip_norm": manifest.get("clip_norm"),
        "noise_multiplier": plan.get("noise_multiplier"),
        "center": plan.get("center"),
        "verdict": outcome.get("verdict"),
        "quality": {name: value for name, value in numbers_in(outcome).items() if name != "verdict"},
        "drift": outcome.get("drift"),
        "warnings": [*(manifest.get("warnings") or ())],
        **(of_kind := kind_facts(artifact)),
        "lineage": lineage,
        "charts": {
            "scree": f"versions/{row.reference}/scree" if of_kind["spectrum"] else None,
            "loadings": f"versions/{row.reference}/loadings" if isinstance(artifact, PrivateSubspace) else None,
        },
        "before": max((each for each in numbers if each < version), default=None),
        "after": min((each for each in numbers if each > version), default=None),
    }


def noun_of(kind: str) -> str:
    """Return the name of a kind of artifact in a sentence."""
    return KINDS[kind].noun if kind in KINDS else kind
