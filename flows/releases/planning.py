"""What a request asks for, checked and planned from public facts, before anything is charged; and how it would stand.

A plan reads no row. The stages of `flows.fit` plan a request again wherever they run: it is a function of the request,
the snapshot's declared shape and the budget's terms.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Center, Plan, PrivacyTarget, Problem, SubspaceMechanism
from dpca_tasks.mechanisms.parts.quantile_clip import QuantileClip
from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES
from dpca_tasks.records.sources import RowPolicy
from storage.artifacts.manifest import canonical_json
from storage.datasets.catalog import Entry
from storage.ledger.budgets import RECORDS_AT_MOST
from storage.ledger.ledger import Ledger
from storage.registry.references import check_name
from storage.workspace import Workspace

LONGEST_RUN_KEY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceRequest:
    """What determines a release, and under which name it appears. Public in full.

    ``clip_norm`` is a number, or ``quantile:0.9`` to choose it privately; ``row_policy`` is ``clip`` or ``normalise``,
    ``center`` is ``none`` or ``private``. Mechanism ``non_private`` has neither epsilon nor delta, and is refused
    unless ``i_know_this_is_not_private``.
    """

    dataset: str
    components: int
    epsilon: float | None
    delta: float | None
    clip_norm: float | str
    publish: str
    mechanism: str = "analyze_gauss"
    settings: Mapping[str, str] = field(default_factory=dict)
    run_key: str | None = None
    allow_large_delta: bool = False
    row_policy: str = "clip"
    center: str = "none"
    i_know_this_is_not_private: bool = False


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


def plan_subspace(workspace: Workspace, request: SubspaceRequest, slot: str | None = None) -> PlannedRelease:
    """Check a request against the catalog and the budget's terms, and plan its noise. No row is read.

    ``slot`` is the planned start of a scheduled run. A slot has one release of a request: asked for again, it keeps
    the snapshot that it began with, whatever was ingested since.
    """
    check_name(request.publish)
    if request.run_key is not None:
        _check_run_key(request.run_key)
    ledger, catalog = workspace.ledger, workspace.catalog
    planned = plan_on(ledger, catalog.current(request.dataset), request, slot)
    standing = None if slot is None or request.run_key else ledger.find(planned.run_key)
    if standing is not None and standing.snapshot_id != planned.snapshot_id:
        return plan_on(ledger, catalog.entry(standing.snapshot_id), request, slot)
    return planned


def plan_on(ledger: Ledger, snapshot: Entry, request: SubspaceRequest, slot: str | None = None) -> PlannedRelease:
    """Plan a request on a snapshot; ``slot`` as in `plan_subspace`."""
    mechanism = build_mechanism(request.mechanism, request.components, request.settings)
    parameters = dataclasses.asdict(mechanism)  # type: ignore[call-overload]
    target = _target(request)
    clip_norm, quantile = _clip_norm(request)
    if quantile is not None:
        mechanism = QuantileClip(mechanism=mechanism, quantile=quantile)
    problem = Problem(
        n_features=snapshot.n_features,
        clip_norm=clip_norm,
        center=_chosen("center", request.center, Center),
        relation=ledger.budget(snapshot.population).relation,
        records_at_most=snapshot.records_at_most or RECORDS_AT_MOST,
        records_declared=snapshot.records_at_most is not None,
    )
    plan = mechanism.plan(problem, target)
    rows = [request.clip_norm, request.row_policy, request.center]
    guarantee = [None, None] if target.i_know_this_is_not_private else [target.epsilon, target.delta]
    asked = canonical_json([plan.mechanism, parameters, *guarantee, *rows])
    fingerprint = hashlib.sha256(canonical_json([snapshot.snapshot]) + asked).hexdigest()
    of_slot = f"{hashlib.sha256(canonical_json([snapshot.name]) + asked).hexdigest()}/{slot}"
    return PlannedRelease(
        population=snapshot.population,
        snapshot_id=snapshot.snapshot,
        mechanism=mechanism,
        parameters=parameters,
        row_policy=_chosen("row_policy", request.row_policy, RowPolicy),
        plan=plan,
        run_key=request.run_key or f"{snapshot.population}/{of_slot if slot else fingerprint}",
        fingerprint=fingerprint,
    )


def build_mechanism(name: str, components: int, settings: Mapping[str, str]) -> SubspaceMechanism:
    """Build a mechanism from its name and textual settings.

    Raises
    ------
    InvalidInput
        When the mechanism or a setting is unknown, or a value has the wrong type.
    """
    kinds = MECHANISMS | REFERENCES
    if name not in kinds:
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(sorted(kinds))}.")
    kind = kinds[name]
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


def _target(request: SubspaceRequest) -> PrivacyTarget:
    """Return the guarantee asked for; of `REFERENCES` none, whatever numbers stand beside it."""
    if request.mechanism in REFERENCES:
        if isinstance(request.clip_norm, str):
            raise InvalidInput(
                f"clip_norm={request.clip_norm!r} is chosen by a private histogram; {request.mechanism} takes a number."
            )
        return dataclasses.replace(NO_GUARANTEE, i_know_this_is_not_private=request.i_know_this_is_not_private)
    if request.i_know_this_is_not_private:
        raise InvalidInput(
            f"mechanism {request.mechanism!r} is private, and --i-know-this-is-not-private is for "
            f"{', '.join(REFERENCES)}; leave it out."
        )
    if request.epsilon is None or request.delta is None:
        raise InvalidInput(f"mechanism {request.mechanism!r} needs an epsilon and a delta; state both.")
    return PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)


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
