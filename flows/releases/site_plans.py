"""A joint release over several datasets, checked and planned from public facts before any budget is charged."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.sites import METHODS, TENSOR_METHODS
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, SitesMechanism
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from flows.families.base import build_with_settings, records_facts
from flows.releases.planning import check_run_key
from flows.requests.sites import SitesRequest
from storage.artifacts.manifest import canonical_json
from storage.datasets.catalog import Entry
from storage.ledger.budgets import Budget
from storage.options import check_options
from storage.privacy_unit import PrivacyUnit
from storage.registry.references import check_name
from storage.schemas.matching import meaning
from storage.workspace import Workspace

FAMILY = "sites"
"""The family under which the ledgers store such a request."""


OF_MODEL = ("model", "words_at_most", "noise_variance")
"""The fields of a request that only the methods for components of a model have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSites:
    """A joint release with everything that it will be.

    ``snapshots`` are those of all datasets, of which the first ``plan.sites`` are read and charged.
    """

    request: SitesRequest
    mechanism: SitesMechanism
    snapshots: tuple[Entry, ...]
    unit: PrivacyUnit
    plan: JointPlan
    fingerprint: str

    @property
    def target(self) -> PrivacyTarget:
        """The guarantee that every site keeps."""
        return self.plan.total.target

    @property
    def clip_norm(self) -> float:
        """The bound on a record's norm; 1 where there is none."""
        return 1.0 if self.request.clip_norm is None else self.request.clip_norm

    @property
    def charged(self) -> tuple[Entry, ...]:
        """The snapshots that are read and charged, one for each planned site."""
        return self.snapshots[: len(self.plan.sites)]

    @property
    def run_keys(self) -> tuple[str, ...]:
        """The run key of each charged site's release."""
        named = self.request.run_key or self.fingerprint
        return tuple(f"{entry.population}/{FAMILY}/{named}" for entry in self.charged)

    def stored(self) -> dict[str, Any]:
        """Return what the reservation of each site stores of the joint release."""
        return {
            **dataclasses.asdict(self.request),
            "mechanism": self.mechanism.name,
            "family": FAMILY,
            "snapshots": [entry.snapshot for entry in self.snapshots],
        }


def plan_sites(workspace: Workspace, request: SitesRequest, snapshots: Sequence[str] | None = None) -> PlannedSites:
    """Check a request against catalog and budgets, and plan it. No row is read, and nothing is charged.

    Parameters
    ----------
    workspace : Workspace
    request : SitesRequest
    snapshots : sequence of str, optional
        The snapshots of a release that was reserved; the newest of each dataset by default.

    Raises
    ------
    InvalidInput
        When there is one dataset, two have the same people, or their columns differ, or the units of their budgets.
    Refused
        When a dataset has another unit of privacy than its budget.
    NotFound
        When a dataset is not there, or its population has no budget.
    """
    check_name(request.publish)
    check_options(request)
    if request.run_key is not None:
        check_run_key(request.run_key)
    names = request.names
    if len(names) < 2:
        raise InvalidInput(
            f"datasets={request.datasets!r} names one dataset, and a sum over sites needs two at least; "
            "name more as A,B, or fit this one with dpca subspace fit."
        )
    catalog = workspace.catalog
    entries = [catalog.current(name) for name in names] if snapshots is None else [catalog.entry(s) for s in snapshots]
    _check_populations(names, entries)
    opened = [catalog.open(entry) for entry in entries]
    _check_columns(names, entries, [rows.feature_names() for rows in opened])
    for name, rows in zip(names[1:], opened[1:], strict=True):
        if meaning(rows.encoder()) != meaning(opened[0].encoder()):
            raise InvalidInput(
                f"datasets {name!r} and {names[0]!r} were encoded by unlike schemas, and a sum over sites needs the "
                "same at each; ingest them with one --table-schema."
            )
    check_model(request, {name: entry.privacy_unit for name, entry in zip(names, entries, strict=True)})
    budgets = [workspace.ledger.budget(entry.population) for entry in entries]
    _check_units(names, entries, budgets)
    target = PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
    problems = [
        problem_of(
            request,
            n_features=entry.n_features,
            relation=budget.relation,
            **records_facts(entry),
        )
        for entry, budget in zip(entries, budgets, strict=True)
    ]
    mechanism = build_method(request)
    fingerprint = _fingerprint(request, entries, mechanism)
    session = f"{request.run_key or ''}/{fingerprint}"
    plan = mechanism.plan(problems, [target] * len(problems), session=session)
    return PlannedSites(
        request=request,
        mechanism=mechanism,
        snapshots=tuple(entries),
        unit=budgets[0].privacy_unit,
        plan=plan,
        fingerprint=fingerprint,
    )


def build_method(request: SitesRequest) -> SitesMechanism:
    """Build the method that a request names.

    Raises
    ------
    InvalidInput
        When the method or a setting is unknown, or a value has the wrong type.
    """
    kind, fixed = {**METHODS, **TENSOR_METHODS}[request.method], {"n_components": request.components}
    built: SitesMechanism = build_with_settings(kind, request.method, request.settings, see="dpca sites fit", **fixed)
    return built


def problem_of(request: SitesRequest, **terms: Any) -> Problem | TensorProblem:
    """Return the public facts of a request at one site: ``terms`` are its columns, relation and records."""
    if request.method in METHODS:
        assert request.clip_norm is not None
        return Problem(clip_norm=request.clip_norm, **terms)
    return TensorProblem(**terms, **{name: getattr(request, name) for name in OF_MODEL}, clip_norm=request.clip_norm)


def check_model(request: SitesRequest, units: Mapping[str, PrivacyUnit]) -> None:
    """Refuse a method without what it needs of the data, or with what is for others."""
    if request.method in METHODS:
        given = [name for name in OF_MODEL if getattr(request, name) is not None]
        if given:
            raise InvalidInput(
                f"{given[0]}={getattr(request, given[0])} is for {', '.join(TENSOR_METHODS)}, and "
                f"method={request.method} finds a subspace; leave it out, or take one of these."
            )
        if request.clip_norm is None:
            raise InvalidInput(f"method={request.method} needs a bound on a record's norm; state --clip-norm.")
    elif request.model is None:
        raise InvalidInput(f"method={request.method} finds the components of a model; state --model topics or mixture.")
    elif request.model == "topics" and request.row_policy != "clip":
        raise InvalidInput(
            f"row_policy={request.row_policy} scales counts, which topics leave as they are; leave it out."
        )
    elif request.model == "mixture":
        for name, unit in units.items():
            if unit.rows != 1:
                raise InvalidInput(
                    f"a record of dataset {name!r} may have several rows, and a mixture needs one row a point; ingest "
                    "it without --units and --unit-column."
                )


def _check_populations(names: Sequence[str], entries: Sequence[Entry]) -> None:
    people = [entry.population for entry in entries]
    for name, entry in zip(names, entries, strict=True):
        if people.count(entry.population) > 1:
            twice = [other for other, same in zip(names, entries, strict=True) if same.population == entry.population]
            raise InvalidInput(
                f"datasets {', '.join(twice)} are both of population {entry.population!r}, and sites hold different "
                f"people, each charged once; leave {name} out, or ingest it with a --population of its own."
            )


def _check_units(names: Sequence[str], entries: Sequence[Entry], budgets: Sequence[Budget]) -> None:
    """Check that every dataset has the unit of its budget, and that all budgets have one unit: it is stated once."""
    for name, entry, budget in zip(names, entries, budgets, strict=True):
        budget.check_unit(name, entry.privacy_unit)
        if budget.privacy_unit != budgets[0].privacy_unit:
            raise InvalidInput(
                f"the budget of dataset {names[0]!r} counts {budgets[0].privacy_unit} as the unit of privacy, and that "
                f"of {name!r} counts {budget.privacy_unit}; a joint release states one unit, so open budgets of the "
                "same --unit and --rows-per-unit."
            )


def _check_columns(names: Sequence[str], entries: Sequence[Entry], columns: Sequence[Sequence[str] | None]) -> None:
    for name, entry, declared in zip(names[1:], entries[1:], columns[1:], strict=True):
        if entry.n_features != entries[0].n_features:
            raise InvalidInput(
                f"dataset {name!r} has {entry.n_features} columns and {names[0]!r} has {entries[0].n_features}, and a "
                "sum over sites needs the same at each; ingest them with the same --features."
            )
        if None not in (declared, columns[0]) and list(declared or ()) != list(columns[0] or ()):
            raise InvalidInput(
                f"the columns of datasets {name!r} and {names[0]!r} have unlike names, and a sum over sites needs the "
                "same in one order; ingest them with the same columns."
            )


def _fingerprint(request: SitesRequest, entries: Sequence[Entry], mechanism: Any) -> str:
    """Return the digest of everything that determines a joint release."""
    settings = dataclasses.asdict(mechanism)
    asked = [mechanism.name, settings, request.epsilon, request.delta, request.clip_norm, request.row_policy]
    if request.method in TENSOR_METHODS:
        asked += [getattr(request, name) for name in OF_MODEL]
    return hashlib.sha256(canonical_json([[entry.snapshot for entry in entries], asked])).hexdigest()
