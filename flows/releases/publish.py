"""Publish a release under a name, move aliases, and report in public terms what was released and spent."""

from collections.abc import Callable
from typing import Any

from flows.families.table import family_of
from flows.releases.planning import reserved_request
from flows.remote_ledger.workspaces import ReleaseWorkspace, open_workspace, read_workspace
from flows.reports.logs import log_event
from flows.requests.base import Request
from storage.artifacts.files import known_artifact, read_artifact, write_artifact
from storage.errors import Conflict, Finished, Refused
from storage.ledger.protocol import ReleaseLedger
from storage.ledger.releases import Release
from storage.ledger.replay import GIVEN_UP
from storage.registry.reader import Registry, describe
from storage.workspace import Workspace

_SAID = (
    *("failed", "verdict", "refined_by", "above_noise", "share", "share_low", "cv", "cv_low", "noise_std"),
    *("asked", "above", "found"),
    *("rmse", "rmse_std", "recall", "recall_std", "ndcg", "ndcg_std", "users", "users_std"),
    *("rejected_share", "rejected_share_std"),
    *("share_std", "share_beyond_first", "share_beyond_first_std"),
    *("reconstruction_error", "reconstruction_error_std", "total_variance", "total_variance_std"),
)
"""What a report says of the quality of a release, by the names of its manifest's ``outcome``."""
_AROUND = {"none": "zero; --center private takes off a mean", "private": "a mean that is released too"}
"""What the components of a release are taken around, by the ``center`` of its manifest's ``plan``."""


def released_digest(release_id: str) -> str:
    """Return the artifact digest of a committed release."""
    return digest_of(read_workspace().ledger, release_id)


def digest_of(ledger: ReleaseLedger, release_id: str) -> str:
    """Return the artifact digest of a committed release of an open ledger."""
    digest = ledger.release(release_id).artifact_digest
    if digest is None:
        raise Refused(f"release {release_id} has no artifact; it was never committed; run its request again")
    return digest


def made_or_found(ledger: ReleaseLedger, release_id: str, make: Callable[[], str]) -> str:
    """Return the artifact digest that ``make`` gives, or that of the process that finished the release meanwhile."""
    try:
        return make()
    except Finished:
        log_event("finished_by_another", release=release_id)
        return digest_of(ledger, release_id)


def publish_release(release_id: str, digest: str, request: Request) -> str:
    """Commit a release together with its version under the request's name; return ``name@version``.

    When another process committed the release first, its artifact is the one, even if the last bits of this one differ.

    Raises
    ------
    Refused
        When the request does not want such a release published. It is committed all the same, and stays charged.
    """
    return publish_in(open_workspace(), release_id, digest, request)


def publish_in(workspace: ReleaseWorkspace, release_id: str, digest: str, request: Request) -> str:
    """Publish a release as `publish_release` does, in an open workspace."""
    name = request.publish
    try:
        made = _wanted(workspace, release_id, digest, request)
        number = workspace.publish(release_id, name=name, artifact_digest=digest, made=made)
    except Finished:
        digest = digest_of(workspace.ledger, release_id)
        made = _wanted(workspace, release_id, digest, request)
        number = workspace.publish(release_id, name=name, artifact_digest=digest, made=made)
    except Conflict as error:
        if made == digest:
            raise
        raise Refused(
            f"this release is published as {name} with another refinement, and a version never changes; publish this "
            "refinement of it, free of charge, under another name with --publish, or publish= in Python."
        ) from error
    return f"{name}@{number}"


def _wanted(workspace: ReleaseWorkspace, release_id: str, digest: str, request: Request) -> str:
    """Return the digest of a release's artifact as the request wants it; commit the release and refuse where it is not.

    Raises
    ------
    Refused
        When it does not want it published.
    """
    family = family_of(request)
    if not family.looks_at_artifact(request):
        return digest
    artifact = known_artifact(workspace.store, digest)
    made = family.restate(request, artifact, parent=digest)
    if reason := family.withheld(request, artifact if made is None else made):
        workspace.withhold(release_id, artifact_digest=digest)
        raise Refused(reason)
    return digest if made is None else write_artifact(made, home=workspace.home, place=workspace.store)


def kept_back(workspace: Workspace, release: Release) -> str | None:
    """Return why nothing more is made of a release, for good; None where it can still be published.

    An operator gave it up, or it was committed and its own request does not want it published.
    """
    if release.state in GIVEN_UP:
        return f"an operator gave it up: it is {release.state}"
    if release.state != "committed":
        return None
    request, digest = reserved_request(release), digest_of(workspace.ledger, release.id)
    family = family_of(request)
    if not family.looks_at_artifact(request):
        return None
    artifact = read_artifact(workspace.store, digest)
    made = family.restate(request, artifact, parent=digest)
    return family.withheld(request, artifact if made is None else made)


def promote_version(artifact: str, alias: str) -> dict[str, Any]:
    """Point an alias of a name at one of its versions, given as any reference to it."""
    found = Registry.open().verify(artifact)
    Workspace.open().promote(found.name, version=found.version, alias=alias)
    return {"artifact": str(found), "alias": alias, "digest": found.digest}


def report_release(artifact: str, *, reused: bool) -> dict[str, Any]:
    """State a published release and its population's budget, from public facts alone."""
    return release_facts(read_workspace(), artifact, reused=reused)


def release_facts(workspace: ReleaseWorkspace, artifact: str, *, reused: bool) -> dict[str, Any]:
    """Return the public facts of a release that is published in an open workspace."""
    resolved = workspace.registry.resolve(artifact)
    shown = describe(resolved, known_artifact(workspace.store, resolved.digest))
    release = workspace.ledger.release(shown["release"])
    statement = workspace.ledger.statement(release.population, newest=0)
    outcome, plan = shown["manifest"].get("outcome") or {}, shown["manifest"].get("plan") or {}
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
        "statement": shown["statement"],
        "noise_multiplier": shown["noise_multiplier"],
        **({"around": _AROUND[plan["center"]]} if "center" in plan else {}),
        **{name: outcome[name] for name in _SAID if name in outcome},
        "warnings": shown["manifest"].get("warnings", []),
        "population": release.population,
        "spent": statement.spent,
        "remaining": statement.remaining,
    }
