"""Fit a private subspace: plan, reserve, release, publish.

Every stage takes and returns names and public numbers. The same request is the same release: run again, it is found
by its run key, resumed where it stopped or returned when finished, and costs nothing.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, get_args

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import TypeAdapter, ValidationError

from dpca_tasks.blocks import BlockSource, NormalisedBlocks, RowPolicy
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.mechanisms.base import Center, Plan, PrivacyTarget, Problem, Subspace, SubspaceMechanism
from dpca_tasks.mechanisms.quantile_clip import QuantileClip, histogram_epsilon
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.privacy.curator import Curator
from flows.cluster import check_address, connect, open_cluster
from flows.publish import publish_release, released_digest, report_release
from flows.settings import Settings, cluster_settings
from flows.stages import Runner, directly, finish, in_flow, recorded_failures
from flows.statements import state_release
from storage.artifacts import write_artifact
from storage.catalog import Catalog, Entry
from storage.errors import BudgetExhausted
from storage.home import home, store
from storage.ledger import Ledger, exhausted
from storage.registry import check_name
from storage.subspace import PrivateSubspace, canonical_json

DEFAULT_RECORDS_AT_MOST = 100_000
LONGEST_RUN_KEY = 200

watch_progress: ContextVar[Callable[[int, int], None] | None] = ContextVar("watch_progress", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceRequest:
    """What determines a release, and under which name it appears. Public in full.

    ``clip_norm`` is a number, or ``quantile:0.9`` to choose it privately; ``row_policy`` is ``clip`` or ``normalise``,
    ``center`` is ``none`` or ``private``.
    """

    dataset: str
    components: int
    epsilon: float
    delta: float
    clip_norm: float | str
    publish: str
    mechanism: str = "analyze_gauss"
    settings: Mapping[str, str] = field(default_factory=dict)
    run_key: str | None = None
    allow_large_delta: bool = False
    row_policy: str = "clip"
    center: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRelease:
    """A request with everything that its release will be, before anything is charged."""

    population: str
    snapshot_id: str
    mechanism: SubspaceMechanism
    parameters: Mapping[str, Any]
    row_policy: str
    plan: Plan
    run_key: str
    fingerprint: str


def plan_subspace(request: SubspaceRequest) -> PlannedRelease:
    """Check a request against the catalog and the budget's terms, and plan its noise. No row is read."""
    check_name(request.publish)
    if request.run_key is not None:
        _check_run_key(request.run_key)
    ledger = Ledger.open()
    return _plan(ledger, Catalog(ledger.engine, ledger.home, store()).current(request.dataset), request)


def build_mechanism(name: str, components: int, settings: Mapping[str, str]) -> SubspaceMechanism:
    """Build a mechanism from its name and textual settings.

    Raises
    ------
    InvalidInput
        When the mechanism or a setting is unknown, or a value has the wrong type.
    """
    if name not in MECHANISMS:
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(sorted(MECHANISMS))}.")
    kind = MECHANISMS[name]
    known = [option.name for option in dataclasses.fields(kind) if option.name != "n_components"]
    for key in settings:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no settings"
            raise InvalidInput(f"{name} has no setting {key!r}; {takes}.")
    try:
        built: SubspaceMechanism = TypeAdapter[Any](kind).validate_python({"n_components": components, **settings})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidInput(
            f"{name} setting {'.'.join(str(part) for part in first['loc'])}={first['input']!r} is refused: "
            f"{first['msg']}; see `dpca subspace fit --help`."
        ) from None
    return built


def reserve_release(request: SubspaceRequest) -> tuple[str, str]:
    """Charge the budget for a request, or find its release; return the release's id and state."""
    planned = plan_subspace(request)
    grant = Ledger.open().reserve(
        planned.population,
        run_key=planned.run_key,
        fingerprint=planned.fingerprint,
        event=planned.plan.event,
        epsilon=request.epsilon,
        delta=request.delta,
        snapshot_id=planned.snapshot_id,
        request=dataclasses.asdict(request),
    )
    return grant.release_id, grant.state


def compute_release(release_id: str, address: str) -> str:
    """Release what was reserved, on the cluster at ``address``, and write the artifact; return its digest.

    Raises
    ------
    StepMismatch
        When this version of the program plans another event for the request than the one reserved.
    """
    ledger = Ledger.open()
    catalog = Catalog(ledger.engine, ledger.home, store())
    row = ledger.release(release_id)
    snapshot = catalog.entry(row.snapshot_id)
    planned = _plan(ledger, snapshot, SubspaceRequest(**row.request))
    if planned.plan.event != row.event:
        raise StepMismatch("the plan is not the one reserved; finish this release with the version that reserved it.")
    source: BlockSource = catalog.open(snapshot)
    if planned.row_policy == "normalise":
        source = NormalisedBlocks(source, length=planned.plan.problem.clip_norm)
    reservation = ledger.begin(release_id)
    with connect(address) as client:
        curator = Curator(source, reservation, client=client, progress=watch_progress.get())
        subspace = planned.mechanism.run(curator, planned.plan)
    return write_artifact(_artifact(planned, subspace, release_id), home=home(), place=store())


def fit(run: Runner, request: SubspaceRequest, settings: Settings) -> dict[str, Any]:
    """Run the stages of a fit; return the public facts of what was published."""
    check_address(settings)
    release_id, state = run(reserve_release, request)
    if state == "committed":
        digest = run(released_digest, release_id)
    else:
        with open_cluster(settings, scratch=home() / "scratch") as address:
            digest = run(compute_release, release_id, address)
    artifact = run(publish_release, release_id, digest, request.publish)
    return run(report_release, artifact, reused=state == "committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a request would do now: its noise, and whether it was made before or fits."""

    planned: PlannedRelease
    clip_norm: float | str
    exists: bool
    fits: bool
    spent: float
    remaining: float

    @property
    def refusal(self) -> BudgetExhausted:
        """The error of a request that does not fit."""
        target = self.planned.plan.target
        return exhausted(self.planned.population, epsilon=target.epsilon, delta=target.delta, left=self.remaining)

    def facts(self) -> dict[str, Any]:
        """Return the public facts of a dry run."""
        plan = self.planned.plan
        return {
            "mechanism": plan.mechanism,
            "relation": plan.problem.relation,
            "epsilon": plan.target.epsilon,
            "delta": plan.target.delta,
            "clip_norm": self.clip_norm,
            "row_policy": self.planned.row_policy,
            "center": plan.problem.center,
            "noise_multiplier": plan.noise_multiplier,
            "real_epsilon": plan.target.epsilon if plan.real_epsilon is None else plan.real_epsilon,
            "grid_bits": plan.bits,
            "population": self.planned.population,
            "spent": self.spent,
            "remaining": self.remaining,
            "exists": self.exists,
            "fits": self.fits,
        }


def preview(request: SubspaceRequest) -> Preview:
    """Check and plan a request and compare it with the budget; charge nothing, read no row."""
    planned = plan_subspace(request)
    ledger = Ledger.open()
    standing = ledger.find(planned.run_key)
    statement = ledger.statement(planned.population)
    return Preview(
        planned=planned,
        clip_norm=request.clip_norm,
        exists=standing is not None,
        fits=standing is not None or ledger.admits(planned.population, planned.plan.event, delta=request.delta),
        spent=statement.spent,
        remaining=statement.remaining,
    )


def run_fit(
    request: SubspaceRequest,
    *,
    workers: int | None = None,
    direct: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run a fit from this process: as a Prefect flow, or directly."""
    token = watch_progress.set(watch)
    try:
        if direct:
            return fit(directly, request, cluster_settings(workers))
        with recorded_failures():
            arguments = {item.name: getattr(request, item.name) for item in dataclasses.fields(request)}
            report: dict[str, Any] = finish(fit_subspace(**arguments, workers=workers, return_state=True))
            return report
    finally:
        watch_progress.reset(token)


@flow(name="fit-subspace", persist_result=False, log_prints=False, validate_parameters=True)
def fit_subspace(
    dataset: str,
    components: int,
    epsilon: float,
    delta: float,
    clip_norm: float | str,
    publish: str,
    mechanism: str = "analyze_gauss",
    settings: dict[str, str] | None = None,
    run_key: str | None = None,
    workers: int | None = None,
    *,
    allow_large_delta: bool = False,
    row_policy: str = "clip",
    center: str = "none",
) -> dict[str, Any] | State[Any]:
    """Release a private subspace of a dataset and publish it as a new version of a name.

    Parameters
    ----------
    dataset, publish : str
        Name of the dataset read, and of the artifact written.
    components : int
        k.
    epsilon, delta : float
        The guarantee.
    clip_norm : float or str
        The bound on a record's norm that it rests on; ``quantile:0.9`` chooses it privately, for a part of epsilon.
    mechanism : str
    settings : dict, optional
        The mechanism's own parameters, as text.
    run_key : str, optional
        Names the release; the same key with the same request is the same release.
    workers : int, optional
        Processes of a local cluster.
    allow_large_delta : bool
        Insist on a delta that is not below one over the number of records.
    row_policy : {"clip", "normalise"}
        Scale records above the clip norm down to it, or all records to it.
    center : {"none", "private"}
        Components of the rows as they are, or around a mean that is released too.
    """
    request = SubspaceRequest(
        dataset=dataset,
        components=components,
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        publish=publish,
        mechanism=mechanism,
        settings=settings or {},
        run_key=run_key,
        allow_large_delta=allow_large_delta,
        row_policy=row_policy,
        center=center,
    )

    def body(run: Runner) -> dict[str, Any]:
        report = fit(run, request, cluster_settings(workers))
        run(state_release, report["artifact"])
        return report

    return in_flow(body)


def _plan(ledger: Ledger, snapshot: Entry, request: SubspaceRequest) -> PlannedRelease:
    mechanism = build_mechanism(request.mechanism, request.components, request.settings)
    parameters = dataclasses.asdict(mechanism)  # type: ignore[call-overload]
    clip_norm, quantile = _clip_norm(request)
    if quantile is not None:
        mechanism = QuantileClip(mechanism=mechanism, quantile=quantile)
    problem = Problem(
        n_features=snapshot.n_features,
        clip_norm=clip_norm,
        center=_chosen("center", request.center, Center),
        relation=ledger.budget(snapshot.population).relation,
        records_at_most=snapshot.records_at_most or DEFAULT_RECORDS_AT_MOST,
    )
    target = PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
    plan = mechanism.plan(problem, target)
    rows = [request.clip_norm, request.row_policy, request.center]
    asked = canonical_json([plan.mechanism, parameters, request.epsilon, request.delta, *rows])
    fingerprint = hashlib.sha256(canonical_json([snapshot.snapshot]) + asked).hexdigest()
    return PlannedRelease(
        population=snapshot.population,
        snapshot_id=snapshot.snapshot,
        mechanism=mechanism,
        parameters=parameters,
        row_policy=_chosen("row_policy", request.row_policy, RowPolicy),
        plan=plan,
        run_key=request.run_key or f"{snapshot.population}/{fingerprint}",
        fingerprint=fingerprint,
    )


def _clip_norm(request: SubspaceRequest) -> tuple[float, float | None]:
    """Return the clip norm, or 1 and the quantile at which to choose it."""
    if isinstance(request.clip_norm, (int, float)):
        return float(request.clip_norm), None
    kind, _, text = request.clip_norm.partition(":")
    try:
        quantile = float(text) if kind == "quantile" else float("nan")
    except ValueError:
        quantile = float("nan")
    if not 0 < quantile < 1:
        raise InvalidInput(f"clip_norm={request.clip_norm!r} must be a number or quantile:Q, Q in (0, 1); mend it.")
    if request.row_policy == "normalise":
        raise InvalidInput("row_policy=normalise gives all records one norm, without quantiles; state a clip_norm.")
    return 1.0, quantile


def _chosen(name: str, value: str, kind: Any) -> Any:
    if value not in get_args(kind):
        raise InvalidInput(f"{name}={value!r} must be one of {', '.join(get_args(kind))}; choose one.")
    return value


def _check_run_key(run_key: str) -> None:
    if not run_key.strip() or not run_key.isprintable() or len(run_key) > LONGEST_RUN_KEY:
        raise InvalidInput(
            f"run key {run_key!r} must be printable text of 1 to {LONGEST_RUN_KEY} characters; choose another, or none."
        )


def _artifact(planned: PlannedRelease, subspace: Subspace, release_id: str) -> PrivateSubspace:
    """State a result with its public facts, and nothing else."""
    plan = planned.plan
    noise: dict[str, Any] = {"noise_multiplier": plan.noise_multiplier, "grid_bits": plan.bits}
    if plan.real_epsilon is not None:
        noise["real_epsilon"] = plan.real_epsilon
    if isinstance(planned.mechanism, QuantileClip):
        noise |= {"clip_quantile": planned.mechanism.quantile, "clip_epsilon": histogram_epsilon(plan.target)}
    released = {} if subspace.total_variance is None else {"total_variance": subspace.total_variance}
    return PrivateSubspace(
        components=subspace.components,
        eigenvalues=subspace.eigenvalues,
        spectrum=subspace.spectrum,
        further=subspace.further,
        mean=subspace.mean,
        manifest={
            **released,
            "mechanism": plan.mechanism,
            "parameters": planned.parameters,
            "clip_norm": plan.problem.clip_norm if subspace.clip_norm is None else subspace.clip_norm,
            "code_version": version("dpca-pipeline"),
            "plan": {**noise, "row_policy": planned.row_policy, "center": plan.problem.center},
            "privacy": {
                "epsilon": plan.target.epsilon,
                "delta": plan.target.delta,
                "relation": plan.problem.relation,
                "unit": "record",
                "records_at_most": plan.problem.records_at_most,
                "event": plan.event,
            },
            "release": release_id,
        },
    )
