"""Publish a release under a name, move aliases, and report in public terms what was released and spent."""

from typing import Any

from storage.errors import Finished, Refused
from storage.ledger.ledger import Ledger
from storage.registry.reader import Registry
from storage.workspace import Workspace


def released_digest(release_id: str) -> str:
    """Return the artifact digest of a committed release."""
    return digest_of(Workspace.read_only().ledger, release_id)


def digest_of(ledger: Ledger, release_id: str) -> str:
    """Return the artifact digest of a committed release of an open ledger."""
    digest = ledger.release(release_id).artifact_digest
    if digest is None:
        raise Refused(f"release {release_id} has no artifact; it was never committed; run its request again")
    return digest


def publish_release(release_id: str, digest: str, name: str) -> str:
    """Commit a release together with its version under ``name``; return ``name@version``.

    When another process committed the release first, its artifact is the one, even if the last bits of this one differ.
    """
    workspace = Workspace.open()
    try:
        number = workspace.publish(release_id, name=name, artifact_digest=digest)
    except Finished:
        number = workspace.publish(release_id, name=name, artifact_digest=digest_of(workspace.ledger, release_id))
    return f"{name}@{number}"


def promote_version(artifact: str, alias: str) -> dict[str, Any]:
    """Point an alias of a name at one of its versions, given as any reference to it."""
    found = Registry.open().verify(artifact)
    Workspace.open().promote(found.name, version=found.version, alias=alias)
    return {"artifact": str(found), "alias": alias, "digest": found.digest}


def report_release(artifact: str, *, reused: bool) -> dict[str, Any]:
    """State a published release and its population's budget, from public facts alone."""
    return release_facts(Workspace.read_only(), artifact, reused=reused)


def release_facts(workspace: Workspace, artifact: str, *, reused: bool) -> dict[str, Any]:
    """Return the public facts of a release that is published in an open workspace."""
    shown = workspace.registry.show(artifact)
    release = workspace.ledger.release(shown["release"])
    statement = workspace.ledger.statement(release.population)
    return {
        "artifact": artifact,
        "digest": shown["digest"],
        "release": release.id,
        "reused": reused,
        "private": shown["private"],
        "mechanism": shown["mechanism"],
        "relation": shown["relation"],
        "epsilon": shown["epsilon"],
        "delta": shown["delta"],
        "noise_multiplier": shown["noise_multiplier"],
        **({"failed": outcome["failed"]} if (outcome := shown["manifest"].get("outcome")) else {}),
        "warnings": shown["manifest"].get("warnings", []),
        "population": release.population,
        "spent": statement.spent,
        "remaining": statement.remaining,
    }
