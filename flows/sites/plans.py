"""Plan of a joint release over sites, made from public facts before any budget is charged.

The sites are datasets of one home folder, or the parties of a roster. In both cases the plan is computed from the
request and public facts of the sites. For datasets, these facts come from their snapshots and budgets; for a roster,
from the roster file.

Over a roster, every party computes the whole plan itself and accepts no part of it from another party. The digest of a
plan covers the charge of each site and the grid to which its records are rounded. A site refuses a request whose plan
digest differs from the digest of the site's plan. The name of the release, called session, is computed from the run
key, the sites and everything requested. So a repeated request is the same release at every site, at any time.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpca.artifacts.base import canonical_json
from dpca.privacy_unit import PrivacyUnit
from dpca.registry.pointers import check_name
from dpca_tasks.accounting.events import Event
from dpca_tasks.errors import InvalidInput, Refused, StepMismatch
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.sites import METHODS, OVER_ROSTER, TENSOR_METHODS
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, Membership
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from flows.families.base import build_with_settings, records_facts
from flows.families.columns import Columns, check_same_columns
from flows.families.warm_starts import Parent, check_start, with_start
from flows.releases.stages import check_run_key
from flows.requests import SitesRequest
from flows.sites.roster import RosterFile
from storage.datasets.catalog import Entry
from storage.ledger.budgets import Budget
from storage.registry.publishing import JOINT
from storage.workspace import Workspace

FAMILY = "sites"
"""The family under which the ledgers store requests for joint releases."""

OF_MODEL = ("model", "words_at_most", "noise_variance")
"""Fields of a request that only tensor methods use, which find the components of a model."""

REQUESTED = {
    **{"method": str, "components": int, "clip_norm": float, "epsilon": float, "delta": float, "row_policy": str},
    **{"settings": dict, "run_key": str, "allow_large_delta": bool},
    **{"model": str, "words_at_most": int, "noise_variance": float, "rounds": str, "like": str},
}
"""Facts of a request that are sent to a site, with their types; an empty run key stands for no run key."""

MAY_LACK = {"clip_norm", "like", *OF_MODEL}
"""Facts that are left out of a request if they are not set."""

OF_THE_ROSTER = ("colluders", "dropouts")
"""Settings of a plan that come from the roster file, not from the request."""

_VERSION = re.compile(r"[^@\s]+@[1-9][0-9]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJoint:
    """A checked request for a joint release, with its plan.

    Parameters
    ----------
    request, mechanism, plan
    sites : tuple of str
        The names of all sites; the first ``plan.sites`` of them take part.
    unit : PrivacyUnit
        The privacy unit of the budget of every site.
    columns : Columns
        The columns of the rows of every site. A roster states only their number.
    fingerprint : str
        A digest of the sites and of everything requested.
    session : str
        The name of the release at every site.
    origin : mapping
        Over a roster, the digest of the roster under the name ``roster``; else empty.
    snapshots : tuple of Entry
        Over datasets, one for each site.
    """

    request: SitesRequest
    mechanism: Any
    plan: JointPlan
    sites: tuple[str, ...]
    unit: PrivacyUnit
    columns: Columns
    fingerprint: str
    session: str
    origin: Mapping[str, str] = field(default_factory=dict)
    snapshots: tuple[Entry, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites that take part, in the order of the plan."""
        return self.sites[: len(self.plan.sites)]

    @property
    def clip_norm(self) -> float:
        """Bound on the norm of a record; 1 if there is none."""
        return 1.0 if self.request.clip_norm is None else self.request.clip_norm

    @property
    def place(self) -> str:
        """Name of the release in URL paths, a digest of the session."""
        return hashlib.sha256(self.session.encode()).hexdigest()[:32]

    @property
    def joint_id(self) -> str:
        """Id under which the release is published over a roster."""
        return JOINT + self.place

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the release that the aggregator sends to the sites of a roster."""
        return {**requested(self.request), **self.origin, "plan": self.digest}

    @property
    def digest(self) -> str:
        """Digest of the session, the charge of every site, and the roster and grid of every round."""
        roster, rounds = self.plan.roster, [[each.roster.digest.hex(), each.bits] for each in self.plan.rounds]
        charged = [[site.event, site.bits, site.noise_multiplier] for site in self.plan.sites]
        facts = ["joint plan 1", self.session, charged, self.plan.total.bits, roster.digest.hex() if roster else ""]
        facts.append(rounds)
        return hashlib.sha256(canonical_json(facts)).hexdigest()

    def plan_of(self, name: str) -> Plan:
        """Return the plan of a site.

        Raises
        ------
        Refused
            When the site takes no part.
        """
        if name not in self.names:
            raise Refused(f"site {name!r} is not one of the sites of this release, {', '.join(self.names)}; omit it.")
        return self.plan.sites[self.names.index(name)]

    def check_reserved(self, name: str, event: Event) -> None:
        """Check that this version of dpca plans the event that a site reserved.

        Raises
        ------
        StepMismatch
            When the planned event differs from the reserved one.
        """
        if event != self.plan_of(name).event:
            raise StepMismatch(
                "the plan differs from the reserved one; finish this release with the version of dpca that reserved it."
            )

    def lineage(self, name: str, release: str) -> dict[str, Any]:
        """Return the public facts of a site's release, with the site's name if it belongs to a roster."""
        plan = self.plan_of(name)
        records = plan.problem.records_at_most if plan.problem.records_declared else None
        named = {"site": name} if self.origin else {}
        return {**named, "release": release, "event": plan.event, "records_at_most": records}


def plan_over_roster(roster: RosterFile, request: SitesRequest) -> PlannedJoint:
    """Check a request and plan it over a roster, from the request and the roster alone.

    Raises
    ------
    InvalidInput
        When the request does not fit the roster.
    """
    _check_request(request)
    if request.method not in OVER_ROSTER:
        raise InvalidInput(
            f"method={request.method!r} is not a method for the sites of a roster "
            f"({', '.join(sorted(OVER_ROSTER))}); use one of "
            "these, or fit over datasets of one home."
        )
    check_model(request, {})
    known = {each.name for each in dataclasses.fields(OVER_ROSTER[request.method])}
    return _planned(
        request,
        terms=[
            {"n_features": roster.features, "relation": roster.relation, "records_at_most": site.records}
            for site in roster.sites
        ],
        fixed={name: getattr(roster, name) for name in OF_THE_ROSTER if name in known},
        identity=roster.digest,
        membership=roster.membership,
        sites=roster.membership.names,
        unit=roster.unit,
        columns=Columns(table="the roster", n_features=roster.features),
        origin={"roster": roster.digest},
    )


def plan_over_datasets(
    workspace: Workspace, request: SitesRequest, snapshots: Sequence[str] | None = None
) -> PlannedJoint:
    """Check a request against catalog and budgets, and plan it; no row is read, and nothing is charged.

    Parameters
    ----------
    workspace : Workspace
    request : SitesRequest
    snapshots : sequence of str, optional
        The snapshots of a reserved release; by default the newest snapshot of each dataset.

    Raises
    ------
    InvalidInput
        When there is only one dataset, two datasets belong to one population, or columns or privacy units differ.
    Refused
        When a dataset has another privacy unit than its budget.
    NotFound
        When a dataset does not exist, or its population has no budget.
    """
    _check_request(request)
    names = request.names
    if len(names) < 2:
        raise InvalidInput(
            f"datasets={request.datasets!r} has one dataset, but a sum over sites needs at least two; give more as "
            "A,B, or fit this one with `dpca subspace fit`."
        )
    catalog = workspace.catalog
    entries = [catalog.current(name) for name in names] if snapshots is None else [catalog.entry(s) for s in snapshots]
    _check_populations(names, entries)
    opened = [catalog.open(entry) for entry in entries]
    columns = [Columns.of(rows) for rows in opened]
    for other in columns[1:]:
        rule = "a sum over sites needs the same columns at each: ingest them with the same columns and --table-schema"
        check_same_columns(other, columns[0], rule=rule)
    check_model(request, {name: entry.privacy_unit for name, entry in zip(names, entries, strict=True)})
    budgets = [workspace.ledger.budget(entry.population) for entry in entries]
    _check_units(names, entries, budgets)
    return _planned(
        request,
        terms=[
            {"n_features": entry.n_features, "relation": budget.relation, **records_facts(entry)}
            for entry, budget in zip(entries, budgets, strict=True)
        ],
        identity=[entry.snapshot for entry in entries],
        sites=names,
        unit=budgets[0].privacy_unit,
        columns=columns[0],
        snapshots=tuple(entries),
    )


def parent_of(planned: PlannedJoint) -> Parent | None:
    """Load the earlier release from which a planned release starts; None if its request names none.

    Raises
    ------
    NotFound, Invalid, Corrupt
        When the earlier release does not exist, is not a subspace, or is damaged.
    Refused
        When the earlier release is revoked, has no privacy guarantee, or contains no moment.
    InvalidInput
        When the earlier release has other columns.
    """
    if planned.request.like is None:
        return None
    parent = Parent.of(planned.request.like)
    check_start(planned.columns, parent.columns)
    return parent


def with_parent(planned: PlannedJoint) -> PlannedJoint:
    """Return a planned release with the earlier release from which it starts.

    Only the process that combines the answers of the sites needs the earlier release. The guarantee of a site holds for
    any map that is computed from the earlier release. Errors are raised as by `parent_of`.
    """
    parent = parent_of(planned)
    if parent is None:
        return planned
    start = parent.start()
    facts = {"artifact": str(parent.version), "digest": parent.version.digest, "mean_square": start.mean_square}
    return dataclasses.replace(
        planned,
        mechanism=with_start(planned.mechanism, lambda: start),
        plan=dataclasses.replace(planned.plan, total=dataclasses.replace(planned.plan.total, start=facts)),
    )


def requested(request: SitesRequest) -> dict[str, Any]:
    """Return the facts of a request that determine the release."""
    given = {name: getattr(request, name) for name in REQUESTED} | {"run_key": request.run_key or ""}
    return {name: kind(given[name]) for name, kind in REQUESTED.items() if given[name] is not None}


def request_of(facts: Mapping[str, Any]) -> SitesRequest:
    """Read a request that another party sent.

    Raises
    ------
    Refused
        When the facts lack a field of a request, have an unknown field, or have a field of another type.
    """
    settings = facts.get("settings")
    forms = {name: type(value) for name, value in facts.items()}
    known = {name: kind for name, kind in REQUESTED.items() if name in facts or name not in MAY_LACK}
    if forms != known or not isinstance(settings, dict):
        raise Refused("a request has facts that this version does not support; use the same version at every party.")
    if not all(isinstance(value, str) for value in settings.values()):
        raise Refused("a request has settings that are not text; use the same version at every party.")
    return SitesRequest(roster="-", publish="joint", **{**facts, "run_key": facts["run_key"] or None})


def check_model(request: SitesRequest, units: Mapping[str, PrivacyUnit]) -> None:
    """Raise `InvalidInput` if a request lacks settings that its method needs, or has settings of other methods."""
    if request.method in METHODS:
        given = [name for name in OF_MODEL if getattr(request, name) is not None]
        if given:
            raise InvalidInput(
                f"{given[0]}={getattr(request, given[0])} is for {', '.join(TENSOR_METHODS)}, and "
                f"method={request.method} finds a subspace; omit it, or use one of these methods."
            )
        if request.clip_norm is None:
            raise InvalidInput(f"method={request.method} needs a bound on a record's norm; give --clip-norm.")
    elif request.model is None:
        raise InvalidInput(f"method={request.method} finds the components of a model; give --model topics or mixture.")
    elif request.model == "topics" and request.row_policy != "clip":
        raise InvalidInput(f"row_policy={request.row_policy} scales counts, but topics need unscaled counts; omit it.")
    elif request.model == "mixture":
        for name, unit in units.items():
            if unit.rows != 1:
                raise InvalidInput(
                    f"a record of dataset {name!r} may have several rows, but a mixture needs one row per record; "
                    "ingest it without --units and --unit-column."
                )


def _check_request(request: SitesRequest) -> None:
    check_name(request.publish)
    if request.run_key is not None:
        check_run_key(request.run_key)
    if request.like is not None and _VERSION.fullmatch(request.like) is None:
        raise InvalidInput(
            f"like={request.like!r} does not name a version as NAME@VERSION, and an alias or a newest version may "
            "change before a repetition of this request; name a version."
        )


def _rounds(request: SitesRequest) -> dict[str, Any]:
    """Return the rounds and the start of a method that can have them; other methods have a fixed number of rounds."""
    if str(request.rounds) not in ("auto", "1", "2", "3"):
        raise InvalidInput(f"rounds={request.rounds!r} must be auto, 1, 2 or 3; correct it.")
    if request.method == CapePca.name:
        return {"rounds": request.rounds, "warm": request.like is not None}
    if request.like is not None or request.rounds != "auto":
        named = f"rounds={request.rounds}" if request.like is None else f"like={request.like}"
        raise InvalidInput(f"{named} is for {CapePca.name}, but method={request.method}; leave it out.")
    return {}


def _planned(
    request: SitesRequest,
    *,
    terms: Sequence[Mapping[str, Any]],
    identity: Any,
    fixed: Mapping[str, Any] | None = None,
    membership: Membership | None = None,
    **others: Any,
) -> PlannedJoint:
    """Plan a request over sites; each entry of ``terms`` has the columns, relation and records of one site.

    ``identity`` identifies the sites in the fingerprint.
    """
    kind = {**METHODS, **TENSOR_METHODS}[request.method]
    mechanism = build_with_settings(
        kind,
        request.method,
        request.settings,
        see="dpca sites fit",
        n_components=request.components,
        **_rounds(request),
        **(fixed or {}),
    )
    facts = requested(request)
    decides = [facts.get(name) for name in ("epsilon", "delta", "clip_norm", "row_policy", "like", *OF_MODEL)]
    settings = [mechanism.name, dataclasses.asdict(mechanism)]
    fingerprint = hashlib.sha256(canonical_json([identity, settings, decides])).hexdigest()
    session = f"{request.run_key or ''}/{fingerprint}"
    target = PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
    problems = [_problem_of(request, **each) for each in terms]
    plan = mechanism.plan(problems, [target] * len(problems), session=session, membership=membership)
    made: dict[str, Any] = {"mechanism": mechanism, "plan": plan, "fingerprint": fingerprint, "session": session}
    return PlannedJoint(request=request, **made, **others)


def _problem_of(request: SitesRequest, **terms: Any) -> Problem | TensorProblem:
    """Return the public facts of a request at one site; ``terms`` are its columns, relation and records."""
    if request.method in METHODS:
        assert request.clip_norm is not None
        return Problem(clip_norm=request.clip_norm, **terms)
    return TensorProblem(**terms, **{name: getattr(request, name) for name in OF_MODEL}, clip_norm=request.clip_norm)


def _check_populations(names: Sequence[str], entries: Sequence[Entry]) -> None:
    people = [entry.population for entry in entries]
    for name, entry in zip(names, entries, strict=True):
        if people.count(entry.population) > 1:
            twice = [other for other, same in zip(names, entries, strict=True) if same.population == entry.population]
            raise InvalidInput(
                f"datasets {', '.join(twice)} both belong to population {entry.population!r}, but sites must have "
                f"different people, each charged once; omit {name}, or ingest it with another --population."
            )


def _check_units(names: Sequence[str], entries: Sequence[Entry], budgets: Sequence[Budget]) -> None:
    """Check that every dataset has the privacy unit of its budget, and that all budgets have the same privacy unit.

    A joint release states only one privacy unit.
    """
    for name, entry, budget in zip(names, entries, budgets, strict=True):
        budget.check_unit(name, entry.privacy_unit)
        if budget.privacy_unit != budgets[0].privacy_unit:
            raise InvalidInput(
                f"the budgets of datasets {names[0]!r} and {name!r} use {budgets[0].privacy_unit} and "
                f"{budget.privacy_unit} as the unit of privacy; a joint release needs one unit, so open budgets with "
                "the same --unit and --rows-per-unit."
            )
