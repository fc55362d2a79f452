"""Joint releases over several datasets of this home, or over the sites that a roster file lists.

With datasets, this process plays every site; each site has its own rows and its own charge. With a roster, the sites
are separate processes that plan and charge by themselves. This process then unmasks only the totals over all sites, and
reads no row.

The stages are: reserve at every site, compute, publish, finish and report. A joint release is one release in each
site's budget, and one artifact that lists all of these releases. All budgets are checked before any budget is charged.
If a budget refuses its charge nevertheless, the reservations at the other sites are given back. A repeated request
finds the release of each site and continues where it stopped, without new noise and without a further charge. No stage
reads a row: the sites compute the answers, and `flows.sites.parties` connects to the sites.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from dpca.artifacts.files import read_manifest, write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.errors import Finished
from dpca.home import WORKERS, home
from dpca_tasks.errors import SiteSilent
from dpca_tasks.mechanisms.base import Components, Plan
from dpca_tasks.mechanisms.noise_level import release_warnings
from dpca_tasks.mechanisms.released_rounds import shares_of
from dpca_tasks.refinement.constrained_release import constrained_release
from dpca_tasks.refinement.leading_pairs import Request
from dpca_tasks.refinement.refined_release import refine_release
from flows.clusters.connecting import check_address, open_cluster
from flows.families.base import plan_facts, plan_statement
from flows.families.restated_subspace import state_subspace
from flows.families.tensors import state_components
from flows.orchestration.stage_calls import Runner, directly
from flows.reports.activity import begin_step
from flows.reports.terminal import configure_logs, log_event
from flows.requests import SitesRequest
from flows.settings import Settings, cluster_settings
from flows.sites.parties import Answered, Quotes, Sites, sites_of
from flows.sites.plans import PlannedJoint, parent_of, with_parent
from storage.workspace import Workspace

_KEPT_MEGABYTES = 32.0
_NOT_STATED = ("start", "warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesPreview:
    """Preview of a joint release: its noise, and what each site's budget would be charged."""

    planned: PlannedJoint
    quotes: Quotes

    @property
    def exists(self) -> bool:
        """True if all sites are charged already, so that running the request charges nothing more."""
        return self.quotes.refusal is None and all(site["exists"] for site in self.quotes.sites)

    @property
    def statement(self) -> str:
        """Guarantee of every site in one sentence."""
        return plan_statement(self.planned.plan.sites[0], self.planned.unit)

    @property
    def question(self) -> str:
        """Confirmation prompt."""
        request = self.planned.request
        return f"Spend epsilon {request.epsilon:g} at delta {request.delta:g} {self.quotes.cost}?"

    def facts(self) -> dict[str, Any]:
        """Return the public facts of a dry run."""
        plan, request = self.planned.plan.total, self.planned.request
        return {
            "method": self.planned.mechanism.name,
            "relation": plan.problem.relation,
            "epsilon": request.epsilon,
            "delta": request.delta,
            "statement": self.statement,
            **({} if request.model is None else {"model": request.model}),
            **request.bounds,
            "row_policy": request.row_policy,
            "noise_multiplier_of_the_total": plan.noise_multiplier,
            **self.planned.origin,
            **_rounds_facts(plan),
            "exists": self.exists,
            "fits": self.quotes.refusal is None,
            "sites": self.quotes.sites,
            "warnings": list(plan.warnings),
        }


def preview_sites(request: SitesRequest) -> SitesPreview:
    """Check and plan a joint release, and compare it with every budget; charge nothing and read no row."""
    with sites_of(request, Workspace.read_only()) as sites:
        return SitesPreview(planned=with_parent(sites.planned), quotes=sites.quotes())


def released_before(request: SitesRequest) -> str:
    """Return the digest of the artifact of an earlier run of the request; empty if there is none."""
    with sites_of(request, Workspace.read_only()) as sites:
        return sites.found()


def reserve_sites(request: SitesRequest) -> dict[str, str]:
    """Charge every site's budget, or find its charge; return the release ids by site name, in the order of sites.

    A remote site that does not answer is left out if the roster allows more than one attempt.

    Raises
    ------
    BudgetExhausted
        When one of the budgets does not admit its charge. Then no budget is charged.
    Unavailable
        When the cluster, or too many sites, cannot be reached.
    """
    with sites_of(request, Workspace.open()) as sites:
        parent_of(sites.planned)  # raises before any charge if the earlier release is unusable
        quotes = sites.quotes()
        if quotes.refusal is not None:
            raise quotes.refusal
        sites.prepare(quotes)
        reserved: dict[str, str] = {}
        with _given_back(sites, reserved):
            for name in sites.planned.names:
                with suppress(SiteSilent):
                    reserved[name] = sites.reserve(name)
        log_event("reserved_at_sites", joint=sites.planned.joint_id, sites=len(reserved))
        return reserved


def compute_sites(request: SitesRequest, releases: dict[str, str], address: str) -> str:
    """Request the answers of the sites to all rounds, and write the artifact; return its digest.

    If an earlier run of the request wrote the artifact, nothing is computed.

    Raises
    ------
    StepMismatch
        When this version plans another event for a site than the reserved one.
    """
    workspace = Workspace.open()
    with sites_of(request, workspace, releases) as sites:
        if known := sites.found():
            return known
        try:
            answered = sites.answer(releases, address)
        except Finished:
            log_event("finished_by_another", joint=sites.planned.joint_id)
            return sites.found()
        return write_artifact(_state(sites.planned, answered), home=workspace.home, place=workspace.store)


def publish_sites(request: SitesRequest, digest: str) -> tuple[str, str]:
    """Publish the artifact as a version of the request's name; return ``name@version`` and the artifact's digest.

    The digest differs if another process published the release first.
    """
    workspace = Workspace.open()
    with sites_of(request, workspace) as sites:
        number, digest = sites.publish(digest, _lineage(workspace, digest))
        return f"{request.publish}@{number}", digest


def finish_sites(request: SitesRequest, digest: str) -> list[str]:
    """Commit the release of every site with the artifact; return the sites that did not answer."""
    workspace = Workspace.open()
    with sites_of(request, workspace) as sites:
        return sites.finish(digest, _lineage(workspace, digest))


def report_sites(request: SitesRequest, artifact: str, unfinished: list[str], reused: bool) -> dict[str, Any]:  # noqa: FBT001 - a stage
    """Return the public facts to report about a published joint release and its sites."""
    workspace = Workspace.read_only()
    shown = workspace.registry.show(artifact)
    manifest = shown["manifest"]
    outcome = manifest.get("outcome") or {}
    with sites_of(request, workspace) as sites:
        return {
            "artifact": artifact,
            "digest": shown["digest"],
            "reused": reused,
            "method": shown["mechanism"],
            "relation": shown["relation"],
            "epsilon": shown["epsilon"],
            "delta": shown["delta"],
            "statement": shown["statement"],
            **{name: outcome[name] for name in ("verdict", "above_noise", "requested", "found") if name in outcome},
            "warnings": manifest.get("warnings", []),
            "sites": sites.published_facts(manifest["plan"]["sites"]),
            **({"unfinished": unfinished} if unfinished else {}),
        }


def make_sites_release(run: Runner, request: SitesRequest, settings: Settings) -> dict[str, Any]:
    """Run all stages of a joint release, and return the public facts of the published version."""
    configure_logs(settings.log)
    if request.roster is None:
        check_address(settings)
    begin_step("checking the budgets of all sites")
    digest = run(released_before, request)
    reused = bool(digest)
    if not reused:
        releases = run(reserve_sites, request)
        begin_step("computing at the sites")
        with _cluster(request, settings) as address:
            digest = run(compute_sites, request, releases, address)
    begin_step("publishing")
    artifact, digest = run(publish_sites, request, digest)
    unfinished = run(finish_sites, request, digest)
    report = run(report_sites, request, artifact, unfinished, reused)
    log_event("published", artifact=artifact, reused=reused, sites=len(report["sites"]))
    return report


def _cluster(request: SitesRequest, settings: Settings) -> AbstractContextManager[str]:
    """Return a context with the cluster address for this home's sites; a roster's sites have their own clusters."""
    return nullcontext("") if request.roster is not None else open_cluster(settings, scratch=home() / WORKERS)


def fit_sites_directly(request: SitesRequest, *, workers: int | None = None) -> dict[str, Any]:
    """Run all stages of a joint release in this process, without Prefect."""
    return make_sites_release(directly, request, cluster_settings(workers))


@contextmanager
def _given_back(sites: Sites, reserved: Mapping[str, str]) -> Iterator[None]:
    """Give back all reservations if a later site refuses."""
    try:
        yield
    except BaseException:
        sites.give_back(list(reserved))
        raise


def _lineage(workspace: Workspace, digest: str) -> list[dict[str, Any]]:
    sites: list[dict[str, Any]] = read_manifest(workspace.store, digest)["plan"]["sites"]
    return sites


def _state(planned: PlannedJoint, answered: Answered) -> PrivateSubspace | TensorComponents:
    """Make the artifact of a joint release from the result, its public facts and the release of every site."""
    request, result, total = planned.request, answered.result, answered.total
    lead = replace(planned.plan.sites[0], problem=total.problem)
    parameters = {name: fact for name, fact in dataclasses.asdict(planned.mechanism).items() if name not in _NOT_STATED}
    about: dict[str, Any] = {
        "row_policy": request.row_policy,
        **planned.origin,
        **_rounds_facts(total),
        "sites": [planned.lineage(name, release) for name, release in answered.releases.items()],
    }
    if isinstance(result, Components):
        about |= {"model": request.model, **request.bounds}
    else:
        method: Request = "none" if result.rounds is None else "auto"
        about["center"] = "none"
        parameters |= {"refine": method}
    columns = planned.columns
    facts = plan_facts(lead, parameters=parameters, release_id=answered.release_id, plan=about, unit=planned.unit)
    declared: PrivateSubspace | TensorComponents
    if isinstance(result, Components):
        requested = {"n_features": total.problem.n_features, "requested": request.components}
        declared = state_components(result, **requested, warnings=total.warnings, manifest={**columns.named, **facts})
    else:
        assert request.clip_norm is not None
        result = constrained_release(result, columns.constraints)
        edge = None if total.noise_edge is None else total.noise_edge * request.clip_norm**2
        refined = refine_release(result, n_components=request.components, method=method, edge=edge)
        declared = state_subspace(
            refined,
            raw=result,
            keep_matrix=_KEPT_MEGABYTES,
            warnings=release_warnings(total, result, above_noise=refined.assessment.above_noise),
            manifest={**columns.named, **facts, "clip_norm": request.clip_norm},
        )
    return declared.with_encoder(columns.encoder)


def _rounds_facts(total: Plan) -> dict[str, Any]:
    """Return the public facts about the rounds of a release, and about the earlier release from which it starts."""
    facts: dict[str, Any] = {"rounds": total.rounds, "shares": shares_of(total)} if total.rounds > 1 else {}
    if total.start is not None:
        facts |= {"like": total.start["artifact"], "like_digest": total.start["digest"]}
    return facts
