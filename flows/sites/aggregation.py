"""The stages of a joint release over a roster: reserve at every site, compute, publish, report. No row is read here.

The aggregator has no curator and opens no dataset. What it publishes names the releases of the sites, each in the
ledger of its own. The same request finds them by the name that it gives the release, and goes on where it stopped: a
site answers again from what it stored, so there is no new noise and no new charge.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from dpca_tasks.errors import InvalidInput, Refused, SiteSilent
from dpca_tasks.mechanisms.sites.joint_plan import noise_of
from flows.releases.site_statements import joint_facts, state_joint
from flows.reports.logs import log_event
from flows.requests.sites import SitesRequest
from flows.settings import cluster_settings
from flows.sites.joint_plans import PlannedJoint, plan_joint
from flows.sites.remote_parties import RemoteParties
from flows.sites.roster_file import read_roster
from storage.artifacts.files import read_manifest, write_artifact
from storage.errors import Unavailable
from storage.registry.references import check_name
from storage.workspace import Workspace


def planned_of(request: SitesRequest) -> PlannedJoint:
    """Plan a request over its roster file.

    Raises
    ------
    InvalidInput
        When one of the two does not fit.
    """
    check_name(request.publish)
    assert request.roster is not None
    return plan_joint(read_roster(request.roster), request)


def parties_of(planned: PlannedJoint, request: SitesRequest) -> RemoteParties:
    """Return the sites, for use as a context."""
    key = cluster_settings().sites_key
    if key is None or not key.is_file():
        raise InvalidInput(
            "DPCA_SITES_KEY names no file, and sites answer the roster's aggregator alone; set it to the private key "
            "of that certificate."
        )
    assert request.roster is not None
    certificate = key.with_suffix(".pem")
    if not certificate.is_file() or certificate.read_text("ascii") != planned.roster.aggregator.certificate:
        raise InvalidInput(
            f"{certificate} is not the certificate that the roster names for the aggregator; put that beside the key."
        )
    return RemoteParties(planned, certificate=certificate, key=Path(key))


def quote_sites(request: SitesRequest) -> dict[str, bool | None]:
    """Ask every site whether it would admit a release; return whether it is charged already, None for silent ones.

    Raises
    ------
    Refused, BudgetExhausted
        The first refusal.
    """
    planned = planned_of(request)
    with parties_of(planned, request) as sites:
        answers: dict[str, bool | None] = {}
        for name, caller in sites.callers.items():
            try:
                answers[name] = caller.ask("/v1/quote", planned.facts).fact("exists", bool)
            except SiteSilent:
                answers[name] = None
    return answers


def reserve_roster(request: SitesRequest) -> list[str]:
    """Have every site charge its budget, or find its release; return each as ``SITE:RELEASE``, in the order of sites.

    All are asked before any is charged. Where one refuses after all, what the others reserved is given back.

    Raises
    ------
    Unavailable
        When more sites are silent than the roster's attempts allow.
    """
    planned = planned_of(request)
    quoted = quote_sites(request)
    spare = planned.roster.attempts > 1 and planned.plan.roster is not None
    silent = [name for name, answer in quoted.items() if answer is None]
    if silent and not spare:
        raise Unavailable(f"sites {', '.join(silent)} did not answer; run the same request when they are back.")
    reserved: dict[str, str] = {}
    with parties_of(planned, request) as sites:
        try:
            for name in planned.names:
                with suppress(SiteSilent):
                    answer = sites.callers[name].ask("/v1/reserve", planned.facts)
                    reserved[name] = answer.fact("release", str)
        except Exception:
            sites.tell_all("give_back", {}, reserved)
            raise
    log_event("reserved_at_sites", joint=planned.joint_id, sites=len(reserved))
    return [f"{name}:{release}" for name, release in reserved.items()]


def compute_roster(request: SitesRequest, releases: list[str]) -> str:
    """Have the sites answer all rounds, and write the artifact; return its digest. A published one is not made anew."""
    planned, workspace = planned_of(request), Workspace.open()
    if (known := workspace.digest_of_joint(planned.joint_id)) is not None:
        return known
    with parties_of(planned, request) as sites:
        result = planned.mechanism.run(sites, planned.plan)
        log_event("computed", joint=planned.joint_id, sites=len(sites.took_part))
    took_part = [_lineage(planned, *pair.split(":")) for pair in releases if pair.partition(":")[0] in sites.took_part]
    total = planned.plan.total
    if sites.answered is not None and planned.plan.roster is not None:
        total = noise_of(total, planned=planned.plan.roster, answered=sites.answered)
    stated = state_joint(
        result,
        request=planned.request,
        mechanism=planned.mechanism,
        plan=planned.plan,
        total=total,
        release_id=planned.joint_id,
        unit=planned.roster.unit,
        lineage={"roster": planned.roster.digest, "sites": took_part},
    )
    return write_artifact(stated, home=workspace.home, place=workspace.store)


def publish_roster(request: SitesRequest, digest: str) -> str:
    """Publish the artifact as a version of the request's name; return ``name@version``."""
    planned, workspace = planned_of(request), Workspace.open()
    lineage = read_manifest(workspace.store, digest)["plan"]["sites"]
    number = workspace.publish_joint(planned.joint_id, name=request.publish, artifact_digest=digest, sites=lineage)
    return f"{request.publish}@{number}"


def finish_roster(request: SitesRequest, digest: str) -> list[str]:
    """Have every site commit its release with the artifact; return those that did not answer.

    A site that is not of the artifact gives back what it only reserved.
    """
    planned = planned_of(request)
    part = [site["site"] for site in read_manifest(Workspace.read_only().store, digest)["plan"]["sites"]]
    others = [name for name in planned.names if name not in part]
    with parties_of(planned, request) as sites:
        told = sites.tell_all("finish", {"artifact": digest}, part)
        for name in others:
            with suppress(Refused):  # it reserved nothing: it was silent when the others did
                told |= sites.tell_all("finish", {"artifact": digest}, [name])
    return [name for name, answer in told.items() if answer is None]


def report_roster(request: SitesRequest, artifact: str, unfinished: list[str], reused: bool) -> dict[str, Any]:  # noqa: FBT001 - a stage
    """State a published joint release, from public facts alone."""
    shown = Workspace.read_only().registry.show(artifact)
    facts = joint_facts(artifact, shown, reused=reused, sites=shown["manifest"]["plan"]["sites"])
    return {**facts, **({"unfinished": unfinished} if unfinished else {})}


def published_digest(request: SitesRequest) -> str:
    """Return the digest of the artifact that the request was published with; empty where it was not yet."""
    return Workspace.read_only().digest_of_joint(planned_of(request).joint_id) or ""


def _lineage(planned: PlannedJoint, name: str, release: str) -> dict[str, Any]:
    """Return what is public of a site's release."""
    plan = planned.plan_of(name)
    return {"site": name, "release": release, "event": plan.event, "records_at_most": plan.problem.records_at_most}
