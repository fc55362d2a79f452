"""What a family of releases is: its table, how a request is planned, and the artifact that its result becomes.

Everything that follows from a request (plan, charge, release, artifact, registry, audit) is the same for every family,
and asks the family through `Family`. A family is one class that derives from it, and one row of `FAMILIES`; its request
(`flows.requests`) makes its flow and its command. The table names a family by its module, which is loaded when the
family is used: a fit of a subspace loads no other.

A request is stored with its reservation, and so is the plan that was charged. A release goes on from what was stored,
whatever a later version of the program would plan.
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
    """A request with everything that its release will be, before anything is charged."""

    request: R
    population: str
    unit: PrivacyUnit
    snapshot_id: str
    mechanism: Mechanism[Any]
    plan: Plan
    run_key: str
    fingerprint: str


class Family[R: Request, T](ABC):
    """A family: requests R, and mechanisms that return results T."""

    name: ClassVar[str]
    """As requests are stored with it."""
    request: type[R]
    terms: type[Terms]
    """The public facts that its mechanisms plan from."""
    mechanisms: Mapping[str, type[Any]]
    """The private ones, by name: no two families have one of the same name."""
    references: Mapping[str, type[Any]] = {}
    """What to compare them with: not private, and to be had only by acknowledging that."""
    artifact: type[Artifact]

    @property
    @abstractmethod
    def audit(self) -> "AuditSubject":
        """What of it is attacked, on which neighbours."""

    @abstractmethod
    def build(self, request: R) -> Mechanism[T]:
        """Build the mechanism that a request names.

        Raises
        ------
        InvalidInput
            When it is unknown, or one of its settings is.
        """

    @abstractmethod
    def problem(self, request: R, snapshot: Entry, *, relation: Relation) -> Terms:
        """Return the public facts from which the mechanism plans.

        Raises
        ------
        InvalidInput
            When the request asks for what the family does not have.
        """

    def resolved(self, request: R, snapshot: Entry, *, relation: Relation, target: PrivacyTarget) -> R:
        """Return a request with its mechanism named, where it leaves the choice to public facts."""
        return request

    @abstractmethod
    def asked(self, request: R) -> Sequence[Any]:
        """Return what of a request determines its release, besides mechanism and guarantee, as plain JSON values."""

    @abstractmethod
    def state(
        self, planned: PlannedRelease[R], result: T, *, release_id: str, feature_names: Sequence[str] | None
    ) -> Artifact:
        """State a result with its public facts and nothing else; names are those that the dataset's owner declared."""

    def stated(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return what a release states of its request beside the facts of its noise."""
        return {}

    def one_row_rule(self, request: R) -> str | None:
        """Return why records have one row each, and how to get that; None where a record may have several."""
        return None

    def check_ingest(self, request: R, manifest: Callable[[], Manifest]) -> None:  # noqa: B027 - as above
        """Refuse a snapshot that was ingested with options which do not fit the request; no row is read.

        Raises
        ------
        InvalidInput
            With the option to ingest with.
        """

    def check(self, request: R, plan: Plan) -> None:  # noqa: B027 - most families refuse nothing here
        """Refuse what a request wants made of a release that is planned like this.

        Raises
        ------
        Refused
            With the reason; nothing was charged.
        """

    def expected_noise(self, planned: PlannedRelease[R]) -> str | None:
        """Say in a line that a release will be noise alone; None where public facts do not tell."""
        return None

    def refuse_noise(self, planned: PlannedRelease[R]) -> None:  # noqa: B027 - a family need not forecast
        """Refuse a release that will be noise alone, where its request does not want one.

        Raises
        ------
        Refused
            With the reason; nothing was charged.
        """

    def looks_at_artifact(self, request: R) -> bool:
        """Return whether what a request wants published depends on the artifact."""
        return False

    def restate(self, request: R, artifact: Artifact, *, parent: str) -> Artifact | None:
        """Return a release's artifact as a request wants it, made of the one it has; None where it is as wanted.

        Raises
        ------
        Refused
            When that one does not allow it.
        """
        return None

    def withheld(self, request: R, artifact: Artifact) -> str | None:
        """Return why a request does not want an artifact published; None where it does."""
        return None

    def parameters(self, mechanism: Mechanism[T]) -> Mapping[str, Any]:
        """Return the parameters of a mechanism that `build` made, as its artifact states them."""
        return dataclasses.asdict(mechanism)  # type: ignore[call-overload, no-any-return]

    def source(self, planned: PlannedRelease[R], rows: BlockSource) -> BlockSource:
        """Return the rows of a snapshot as the release is to have them."""
        return rows

    def facts(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return what a dry run shows of a request besides the facts of every release."""
        return {}


def build_mechanism[T](family: Family[Any, T], name: str, settings: Mapping[str, str], **fixed: Any) -> Mechanism[T]:
    """Build a mechanism of a family from its name, its textual settings and what the request fixes.

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
    """Build an object from textual settings and what is fixed; ``see`` is the command whose help lists settings.

    Raises
    ------
    InvalidInput
        When a setting is unknown, or a value has the wrong type.
    """
    known = [option.name for option in dataclasses.fields(kind) if option.name not in fixed]
    for key in settings:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no settings"
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
    """Return the version of this program, as manifests state it."""
    return version("dpca-pipeline")


def release_facts(family: Family[Any, Any], planned: PlannedRelease[Any], *, release_id: str) -> dict[str, Any]:
    """Return what the manifest of any release states."""
    parameters, stated = family.parameters(planned.mechanism), family.stated(planned)
    return plan_facts(planned.plan, parameters=parameters, release_id=release_id, plan=stated, unit=planned.unit)


def plan_facts(
    made: Plan, *, parameters: Mapping[str, Any], release_id: str, plan: Mapping[str, Any], unit: PrivacyUnit
) -> dict[str, Any]:
    """Return what the manifest of a release that was planned like this states; ``unit`` is that of its budget."""
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
    """Return the guarantee of a planned release in one sentence, with the real epsilon where a formula gives more."""
    target = made.target
    epsilon = None if target.i_know_this_is_not_private else max(target.epsilon, made.real_epsilon or 0.0)
    return privacy_statement(epsilon=epsilon, delta=target.delta, relation=made.problem.relation, unit=unit)


def records_facts(snapshot: Entry) -> dict[str, Any]:
    """Return the terms of a request that say how many records a snapshot has at most, and whether that is declared."""
    return {
        "records_at_most": snapshot.records_at_most or RECORDS_AT_MOST,
        "records_declared": snapshot.records_at_most is not None,
    }


def one_row_a_user(request: Request) -> str:
    """Return the rule of ratings, that a record has one row, and how to get that."""
    return f"{request.family} needs one row a user; ingest triplets with --columns row=USER,column=ITEM,value=RATING."


def check_ratings(manifest: Manifest, low: float, high: float) -> None:
    """Refuse a snapshot whose values may not be the ratings that users gave. Options of its ingest decide, never rows.

    Raises
    ------
    InvalidInput
        If several ratings of one user and item were added up unasked, or ratings of 0 within the range were dropped.
    """
    if manifest.duplicates is None:
        raise InvalidInput(
            f"dataset {manifest.dataset!r} was ingested without --duplicates, so two ratings of one user and item were "
            "added up, such as 4 + 4 to 8; ingest it again with --duplicates last (the newest counts), mean or refuse."
        )
    if low <= 0 <= high and not manifest.keeps_zeros:
        raise InvalidInput(
            f"0 is a rating within {low:g}:{high:g}, and dataset {manifest.dataset!r} was ingested without its zeros; "
            "ingest triplets with --keep-zeros, or state a range without 0."
        )


def rows_by_policy(rows: BlockSource, *, policy: str, clip_norm: float) -> BlockSource:
    """Return rows as a release has them: all scaled to the clip norm where its policy says so."""
    return NormalisedBlocks(rows, length=clip_norm) if policy == "normalise" else rows


def _guarantee(target: PrivacyTarget) -> dict[str, Any]:
    """State what was promised, or that nothing was; JSON has no infinity."""
    if target.i_know_this_is_not_private:
        return {"private": False, "epsilon": None, "delta": None}
    return {"epsilon": target.epsilon, "delta": target.delta}


FAMILIES = {
    "subspace": "flows.families.subspace:SUBSPACE",
    "completion": "flows.families.completion:COMPLETION",
    "tensor": "flows.families.tensors:TENSORS",
    "subspace_evaluation": "flows.families.evaluation:SUBSPACE_EVALUATION",
    "completion_evaluation": "flows.families.completion_evaluation:COMPLETION_EVALUATION",
}
"""The place of each family, by the name with which a request is stored."""

_FAMILY, _PLAN = "family", "plan"
_STORED_APART = ("event", "target")  # the event has a column; the target follows from the request


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
    """Return what a reservation stores of a planned release: the request, its family, and the plan."""
    plan = {name: fact for name, fact in dataclasses.asdict(planned.plan).items() if name not in _STORED_APART}
    return {**dataclasses.asdict(planned.request), _FAMILY: planned.request.family, _PLAN: plan}


def read_request(stored: Mapping[str, Any]) -> Request:
    """Return the request that was stored."""
    facts = {name: fact for name, fact in stored.items() if name != _PLAN}
    family = family_named(facts.pop(_FAMILY))
    request: Request = family.request(**facts)
    return request


def read_plan(stored: Mapping[str, Any], request: Request, *, event: Event) -> Plan:
    """Return the plan that was stored with a request."""
    facts = stored[_PLAN]
    terms = family_of(request).terms
    known = {**facts, "problem": terms(**facts["problem"]), "notes": tuple(facts["notes"])}
    return Plan(**known, event=event, target=target_of(request))


def read_planned(release: Release, *, unit: PrivacyUnit) -> PlannedRelease[Any]:
    """Return the planned release that was reserved.

    ``unit`` is that of the budget that was charged, whose terms never change.
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


def asked_of(request: Request, mechanism: Mechanism[Any], *, given: Request) -> bytes:
    """Return what of a request makes it another one, but for its rows.

    A choice that is left to public facts in the request that was ``given`` is part of it, and what it came to is not.
    """
    family, target = family_of(request), target_of(given)
    parameters = family.parameters(mechanism) if request == given else {}
    guarantee = [None, None] if target.i_know_this_is_not_private else [target.epsilon, target.delta]
    return canonical_json([given.mechanism, parameters, *guarantee, *family.asked(given)])


def fingerprint_of(snapshot: str, asked: bytes) -> str:
    """Return the digest of a request on a snapshot."""
    return hashlib.sha256(canonical_json([snapshot]) + asked).hexdigest()


def target_of(request: Request) -> PrivacyTarget:
    """Return the guarantee asked for; of references none, whatever numbers stand beside it.

    Raises
    ------
    InvalidInput
        When a private mechanism has none, or is said not to be private.
    """
    references = family_of(request).references
    if request.mechanism in references:
        return dataclasses.replace(NO_GUARANTEE, i_know_this_is_not_private=request.i_know_this_is_not_private)
    if request.i_know_this_is_not_private:
        raise InvalidInput(
            f"mechanism {request.mechanism!r} is private, and --i-know-this-is-not-private is for "
            f"{', '.join(references) or 'references'}; leave it out."
        )
    if request.epsilon is None or request.delta is None:
        raise InvalidInput(f"mechanism {request.mechanism!r} needs an epsilon and a delta; state both.")
    return PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
