"""Interface of a family of releases and the table of all families.

All steps that follow from a request (plan, charge, release, artifact, registry, audit) are the same for every family.
They call the family through the interface `Family`. A family is one subclass of `Family` and one row of `FAMILIES`.
Its flow and its command are derived from its request in `flows.requests`. The table gives the module of each family.
The module is loaded at first use, so a fit of a subspace loads no other family.

The request and the charged plan are stored with the reservation. A release resumes from the stored plan, whatever a
later version of the program would plan.
"""

import dataclasses
import hashlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import TypeAdapter, ValidationError

from dpca.artifacts.base import Artifact, canonical_json
from dpca.privacy_unit import PrivacyUnit, privacy_statement
from dpca_tasks.accounting.events import Event, Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Mechanism, Plan, PrivacyTarget, Terms
from dpca_tasks.records.blocks import BlockSource, NormalisedBlocks
from flows.families.columns import Columns
from flows.requests import Request
from storage.datasets.catalog import Entry
from storage.datasets.content_digest import Manifest
from storage.ledger.budgets import RECORDS_AT_MOST
from storage.ledger.releases import Release
from storage.options import as_rule

if TYPE_CHECKING:
    from dpca_tasks.audit.attacks import AuditSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRelease[R: Request]:
    """A request and the complete plan of its release, before the budget is charged."""

    request: R
    population: str
    unit: PrivacyUnit
    snapshot_id: str
    mechanism: Mechanism[Any]
    plan: Plan
    run_key: str
    fingerprint: str


class Family[R: Request, T](ABC):
    """Interface of a family of releases, whose requests have type R and whose mechanisms return results of type T."""

    name: ClassVar[str]
    """Name under which requests of the family are stored."""
    request: type[R]
    terms: type[Terms]
    """Class of the public facts from which the mechanisms plan."""
    mechanisms: Mapping[str, type[Any]]
    """Private mechanisms by name. No two families have a mechanism of the same name."""
    references: Mapping[str, type[Any]] = {}
    """Reference mechanisms for comparison. They are not private, which a request must acknowledge explicitly."""
    artifact: type[Artifact]

    @property
    @abstractmethod
    def audit(self) -> "AuditSubject":
        """Subject of the audit: the attacked mechanisms and statistic, with their neighboring inputs."""

    @abstractmethod
    def build(self, request: R) -> Mechanism[T]:
        """Build the mechanism that a request names.

        Raises
        ------
        InvalidInput
            When the mechanism or one of its settings is unknown.
        """

    @abstractmethod
    def problem(self, request: R, snapshot: Entry, *, relation: Relation) -> Terms:
        """Return the public facts from which the mechanism plans.

        Raises
        ------
        InvalidInput
            When the family does not support the request.
        """

    def resolved(self, request: R, snapshot: Entry, *, relation: Relation, target: PrivacyTarget) -> R:
        """Return the request with each ``auto``, such as the mechanism, replaced by a choice from public facts."""
        return request

    @abstractmethod
    def requested(self, request: R) -> Sequence[Any]:
        """Return the options that determine the release, besides mechanism and guarantee, as plain JSON values."""

    @abstractmethod
    def state(self, planned: PlannedRelease[R], result: T, *, release_id: str, columns: Columns) -> Artifact:
        """Build the artifact of a result from public facts only; ``columns`` are the dataset's declared columns."""

    def published_facts(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return the facts of the request that an artifact contains in addition to the facts of its noise."""
        return {}

    def one_row_rule(self, request: R) -> str | None:
        """Return a message with the required ingest option if each record must have one row; None otherwise."""
        return None

    def pinned(self, request: R) -> R:
        """Return the request with the alias of the earlier release replaced by the version that it points to now."""
        return request

    def started(self, request: R, reference: str, columns: Callable[[], "Columns"]) -> R:
        """Return the request, set to start from the release ``reference`` if it names no start and this is possible."""
        return request

    def restarted(self, request: R, reserved: R) -> R:
        """Return the request, set to start from the same earlier release as the stored request ``reserved``."""
        return request

    def starts_from(self, request: R) -> str | None:
        """Return the reference of the earlier release from which the release starts; None if there is none."""
        return None

    def start(self, request: R, *, n_features: int) -> Mapping[str, Any] | None:
        """Return the public facts, for the plan, of the earlier release of `starts_from`; None if there is none."""
        return None

    def ready(self, planned: PlannedRelease[R]) -> PlannedRelease[R]:
        """Return the planned release with a mechanism that can load the earlier release of `starts_from`."""
        return planned

    def check_columns(self, request: R, columns: Callable[[], "Columns"]) -> None:  # noqa: B027 - optional to override
        """Refuse rows whose columns differ from those of the earlier release of `starts_from`.

        Raises
        ------
        InvalidInput
            When columns differ; the message names the first difference.
        """

    def check_ingest(self, request: R, manifest: Callable[[], Manifest]) -> None:  # noqa: B027 - optional to override
        """Refuse a snapshot whose ingest options do not fit the request; no row is read.

        Raises
        ------
        InvalidInput
            If the ingest options do not fit; the message names the required option.
        """

    def check(self, request: R, plan: Plan) -> None:  # noqa: B027 - most families refuse nothing here
        """Refuse a request whose conditions on the finished release cannot be met under this plan.

        Raises
        ------
        Refused
            When a condition cannot be met; the message names the condition. Nothing was charged.
        """

    def expected_noise(self, planned: PlannedRelease[R]) -> str | None:
        """Return a warning that a release will be pure noise; None if public facts do not imply it."""
        return None

    def refuse_noise(self, planned: PlannedRelease[R]) -> None:  # noqa: B027 - a family need not forecast
        """Refuse a release that will be pure noise, if the request requires this refusal.

        Raises
        ------
        Refused
            When pure noise is expected; the message gives the reason. Nothing was charged.
        """

    def reads_artifact(self, request: R) -> bool:
        """Return whether the publication of this request depends on the content of the artifact."""
        return False

    def restate(self, request: R, artifact: Artifact, *, parent: str) -> Artifact | None:
        """Derive the requested artifact from the existing artifact of a release; None if no change is needed.

        Raises
        ------
        Refused
            When the existing artifact does not allow the change.
        """
        return None

    def withheld(self, request: R, artifact: Artifact) -> str | None:
        """Return the reason why an artifact may not be published under its request; None if it may."""
        return None

    def parameters(self, mechanism: Mechanism[T]) -> Mapping[str, Any]:
        """Return the parameters of a mechanism by name, for the manifest of its artifact."""
        return dataclasses.asdict(mechanism)  # type: ignore[call-overload, no-any-return]

    def source(self, planned: PlannedRelease[R], rows: BlockSource) -> BlockSource:
        """Return the rows of a snapshot in the form that the release uses."""
        return rows

    def facts(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return the facts that a dry run shows in addition to the facts of every release."""
        return {}


def build_mechanism[T](family: Family[Any, T], name: str, settings: Mapping[str, str], **fixed: Any) -> Mechanism[T]:
    """Build a mechanism of a family from its name, its textual settings and the values that the request fixes.

    Raises
    ------
    InvalidInput
        When the mechanism or a setting is unknown, or a value has the wrong type.
    """
    kind = family.mechanisms.get(name) or family.references.get(name)
    if kind is None:
        known = sorted({*family.mechanisms, *family.references})
        raise InvalidInput(f"mechanism {name!r} is unknown; choose one of {', '.join(known)}.")
    built: Mechanism[T] = build_with_settings(kind, name, settings, see=f"dpca {family.name} fit", **fixed)
    return built


def build_with_settings(kind: type[Any], named: str, settings: Mapping[str, str], *, see: str, **fixed: Any) -> Any:
    """Build an object from textual settings and fixed values; ``see`` is the command whose help lists the settings.

    Raises
    ------
    InvalidInput
        When a setting is unknown, or a value has the wrong type.
    """
    known = [option.name for option in dataclasses.fields(kind) if option.name not in fixed]
    for key in settings:
        if key not in known:
            takes = f"its settings are {', '.join(known)}" if known else "it has no settings"
            raise InvalidInput(f"{named} has no setting {key!r}; {takes}.")
    try:
        return _adapter(cast(Hashable, kind)).validate_python({**fixed, **settings})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidInput(
            f"{named} setting {'.'.join(str(part) for part in first['loc'])}={first['input']!r} is refused: "
            f"{as_rule(first['msg'], subject='it ')}; see `{see} --help`."
        ) from None


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(type[Any], kind))


@cache
def code_version() -> str:
    """Return the version of this program for manifests."""
    return version("dpca-pipeline")


def release_facts(family: Family[Any, Any], planned: PlannedRelease[Any], *, release_id: str) -> dict[str, Any]:
    """Return the facts that the manifest of every release contains."""
    parameters, public = family.parameters(planned.mechanism), family.published_facts(planned)
    return plan_facts(planned.plan, parameters=parameters, release_id=release_id, plan=public, unit=planned.unit)


def plan_facts(
    made: Plan, *, parameters: Mapping[str, Any], release_id: str, plan: Mapping[str, Any], unit: PrivacyUnit
) -> dict[str, Any]:
    """Return the manifest facts of a release with this plan; ``unit`` is the privacy unit of its budget."""
    noise: dict[str, Any] = {"noise_multiplier": made.noise_multiplier, "grid_bits": made.bits}
    if made.printed:
        noise["real_epsilon_at_most"] = made.epsilon_at_most
    if not made.certified:
        noise["certified"] = False
    return {
        "mechanism": made.mechanism,
        "parameters": parameters,
        "code_version": code_version(),
        "plan": {**noise, **plan},
        "privacy": {
            **_guarantee(made.target),
            "relation": made.problem.relation,
            **unit.facts,
            "statement": plan_statement(made, unit),
            "records_at_most": made.problem.records_at_most,
            "event": made.event,
        },
        "release": release_id,
    }


def plan_statement(made: Plan, unit: PrivacyUnit) -> str:
    """Return the guarantee of a planned release in one sentence.

    The sentence states the real epsilon where it exceeds the epsilon of the target.
    """
    target = made.target
    epsilon = None if target.i_know_this_is_not_private else max(target.epsilon, made.real_epsilon or 0.0)
    return privacy_statement(epsilon=epsilon, delta=target.delta, relation=made.problem.relation, unit=unit)


def records_facts(snapshot: Entry) -> dict[str, Any]:
    """Return the upper bound on the number of records of a snapshot, and whether it is declared."""
    return {
        "records_at_most": snapshot.records_at_most or RECORDS_AT_MOST,
        "records_declared": snapshot.records_at_most is not None,
    }


def one_row_a_user(request: Request) -> str:
    """Return a message: the request needs one row per user, and an ingest option ensures this."""
    return (
        f"{request.family} needs one row for each user; ingest triplets with --columns "
        "row=USER,column=ITEM,value=RATING."
    )


def check_ratings(manifest: Manifest, low: float, high: float) -> None:
    """Refuse a snapshot whose values may differ from the ratings that users gave.

    The decision depends on the ingest options only, never on rows.

    Raises
    ------
    InvalidInput
        If no policy for duplicates was chosen, so that several ratings of one user and item were added up. Also if
        the range contains 0 and ratings of 0 were dropped.
    """
    if manifest.duplicates is None:
        raise InvalidInput(
            f"dataset {manifest.dataset!r} was ingested without --duplicates, so two ratings of one "
            "user and item were added up, such as 4 + 4 to 8; ingest it again with --duplicates last (the newest "
            "counts), mean or refuse."
        )
    if low <= 0 <= high and not manifest.keeps_zeros:
        raise InvalidInput(
            f"0 is a rating within {low:g}:{high:g}, and dataset {manifest.dataset!r} was ingested without its zeros; "
            "ingest triplets with --keep-zeros, or state a range without 0."
        )


def rows_by_policy(rows: BlockSource, *, policy: str, clip_norm: float) -> BlockSource:
    """Return the rows of a release, all scaled to the clip norm if its row policy is ``normalise``."""
    return NormalisedBlocks(rows, length=clip_norm) if policy == "normalise" else rows


def _guarantee(target: PrivacyTarget) -> dict[str, Any]:
    """Return the guarantee as JSON values: None without a guarantee, since JSON has no infinity."""
    if target.i_know_this_is_not_private:
        return {"private": False, "epsilon": None, "delta": None}
    return {"epsilon": target.epsilon, "delta": target.delta}


FAMILIES = {
    "subspace": "flows.families.subspace:SUBSPACE",
    "completion": "flows.families.completion:COMPLETION",
    "tensor": "flows.families.tensors:TENSORS",
    "moment": "flows.families.moment:MOMENT",
    "subspace_evaluation": "flows.families.evaluation:SUBSPACE_EVALUATION",
    "completion_evaluation": "flows.families.completion_evaluation:COMPLETION_EVALUATION",
}
"""Import path of each family, by the name under which its requests are stored."""

_FAMILY, _PLAN = "family", "plan"
# the event is in another column of the ledger; the target follows from the request
_STORED_SEPARATELY = ("event", "target")


def family_named(name: str) -> Family[Any, Any]:
    """Return a family of the table.

    Raises
    ------
    KeyError
        When no family has this name.
    """
    family: Family[Any, Any] = pkgutil.resolve_name(FAMILIES[name])
    return family


def family_of(request: Request) -> Family[Any, Any]:
    """Return the family of a request."""
    return family_named(request.family)


def every_family() -> list[Family[Any, Any]]:
    """Return all families, in the order of the table."""
    return [family_named(name) for name in FAMILIES]


def stored_request(planned: PlannedRelease[Any]) -> dict[str, Any]:
    """Return the content of a reservation: the request with its family and plan."""
    plan = {name: fact for name, fact in dataclasses.asdict(planned.plan).items() if name not in _STORED_SEPARATELY}
    return {**dataclasses.asdict(planned.request), _FAMILY: planned.request.family, _PLAN: plan}


def read_request(stored: Mapping[str, Any]) -> Request:
    """Rebuild a request from its stored form."""
    facts = {name: fact for name, fact in stored.items() if name != _PLAN}
    family = family_named(facts.pop(_FAMILY))
    request: Request = family.request(**facts)
    return request


def read_plan(stored: Mapping[str, Any], request: Request, *, event: Event) -> Plan:
    """Rebuild the plan that was stored with a request."""
    facts = stored[_PLAN]
    terms = family_of(request).terms
    known = {**facts, "problem": terms(**facts["problem"]), "notes": tuple(facts["notes"])}
    return Plan(**known, event=event, target=target_of(request))


def read_planned(release: Release, *, unit: PrivacyUnit) -> PlannedRelease[Any]:
    """Rebuild the planned release of a reservation.

    ``unit`` is the privacy unit of the charged budget, whose terms never change.
    """
    request = read_request(release.request)
    return PlannedRelease(
        request=request,
        population=release.population,
        unit=unit,
        snapshot_id=release.snapshot_id,
        mechanism=family_of(request).build(request),
        plan=read_plan(release.request, request, event=release.event),
        run_key=release.run_key,
        fingerprint=release.fingerprint,
    )


def request_facts(request: Request, mechanism: Mechanism[Any], *, given: Request) -> bytes:
    """Return the options that identify a request, except its rows, as canonical JSON.

    ``given`` is the request before each ``auto`` was replaced by a choice. The identity contains ``auto``, not the
    choice.
    """
    family, target = family_of(request), target_of(given)
    parameters = family.parameters(mechanism) if request == given else {}
    guarantee = [None, None] if target.i_know_this_is_not_private else [target.epsilon, target.delta]
    return canonical_json([given.mechanism, parameters, *guarantee, *family.requested(given)])


def fingerprint_of(snapshot: str, requested: bytes, *, start: str | None = None) -> str:
    """Return the digest of a request on a snapshot; ``start`` is the earlier release that the release starts from."""
    started = b"" if start is None else canonical_json({"like": start})
    return hashlib.sha256(canonical_json([snapshot]) + requested + started).hexdigest()


def target_of(request: Request) -> PrivacyTarget:
    """Return the requested guarantee; for a reference mechanism, return a target without a guarantee.

    Raises
    ------
    InvalidInput
        When the mechanism is private and the request lacks epsilon or delta, or acknowledges a result without privacy.
    """
    references = family_of(request).references
    if request.mechanism in references:
        return dataclasses.replace(NO_GUARANTEE, i_know_this_is_not_private=request.i_know_this_is_not_private)
    if request.i_know_this_is_not_private:
        raise InvalidInput(
            f"mechanism {request.mechanism!r} is private, and --i-know-this-is-not-private is only "
            f"for {', '.join(references) or 'references'}; leave it out."
        )
    if request.epsilon is None or request.delta is None:
        raise InvalidInput(f"mechanism {request.mechanism!r} needs an epsilon and a delta; state both.")
    return PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
