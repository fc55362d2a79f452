"""Publish a release under a name, move aliases, and say in public terms what was released and spent."""

from typing import Any

from storage.errors import Finished, Refused
from storage.home import store
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote, rebuild_pointers
from storage.registry.reader import Registry


def released_digest(release_id: str) -> str:
    """Return the artifact digest of a committed release."""
    digest = Ledger.open().release(release_id).artifact_digest
    if digest is None:
        raise Refused(f"release {release_id} has no artifact; it was never committed; run its request again")
    return digest


def publish_release(release_id: str, digest: str, name: str) -> str:
    """Commit a release together with its version under ``name``; return ``name@version``.

    The version, the release's state and its journal entry change in one transaction; repeating it changes nothing.
    A second name costs nothing: it is the same release. When another process committed the release first, its artifact
    is the one, even if the last bits of this one differ.
    """
    ledger = Ledger.open()

    def commit(artifact: str) -> int:
        return ledger.commit(
            release_id,
            artifact_digest=artifact,
            record=lambda connection: add_version(connection, name=name, digest=artifact, release_id=release_id),
        )

    try:
        number = commit(digest)
    except Finished:
        number = commit(released_digest(release_id))
    with ledger.transaction() as connection:
        rebuild_pointers(connection, store(), name=name)
    return f"{name}@{number}"


def promote_version(artifact: str, alias: str) -> dict[str, Any]:
    """Point an alias of a name at one of its versions, given as any reference to it."""
    found = Registry.open().verify(artifact)
    ledger = Ledger.open()
    with ledger.transaction() as connection:
        promote(connection, name=found.name, version=found.version, alias=alias)
    with ledger.transaction() as connection:
        rebuild_pointers(connection, store(), name=found.name)
    return {"artifact": str(found), "alias": alias, "digest": found.digest}


def report_release(artifact: str, *, reused: bool) -> dict[str, Any]:
    """State a published release and its population's budget, from public facts alone."""
    shown = Registry.open().show(artifact)
    ledger = Ledger.open()
    release = ledger.release(shown["release"])
    statement = ledger.statement(release.population)
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
