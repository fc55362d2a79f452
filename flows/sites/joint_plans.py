"""A joint release over a roster, planned by every party for itself from the roster file and the request.

Nothing of a plan is taken from another party. Its digest covers what a site is charged and how its records are rounded;
a site refuses a request whose digest is not its own.

The request names the release: its session is made of the run key, the roster's digest and all that is asked, so the
same request is the same release at every site, at any time.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget
from dpca_tasks.mechanisms.sites import OVER_ROSTER
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan
from flows.families.base import build_with_settings
from flows.releases.planning import check_run_key
from flows.releases.site_plans import OF_MODEL, check_model, problem_of
from flows.requests.sites import SitesRequest
from flows.sites.roster_file import RosterFile
from storage.artifacts.manifest import canonical_json
from storage.options import check_options
from storage.registry.publishing import JOINT

ASKED = {
    **{"method": str, "components": int, "clip_norm": float, "epsilon": float, "delta": float, "row_policy": str},
    **{"settings": dict, "run_key": str, "allow_large_delta": bool},
    **{"model": str, "words_at_most": int, "noise_variance": float},
}
"""The facts of a request that reach a site, and their types; an empty run key is none."""

MAY_LACK = {"clip_norm", *OF_MODEL}
"""Those that a request may be without."""

OF_THE_ROSTER = ("colluders", "dropouts")
"""Settings that a roster fixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJoint:
    """A joint release with everything that it will be, the same at every party."""

    roster: RosterFile
    request: SitesRequest
    mechanism: Any
    plan: JointPlan
    session: str

    @property
    def place(self) -> str:
        """The name of the release in paths."""
        return hashlib.sha256(self.session.encode()).hexdigest()[:32]

    @property
    def clip_norm(self) -> float:
        """The bound on a record's norm; 1 where there is none."""
        return 1.0 if self.request.clip_norm is None else self.request.clip_norm

    @property
    def joint_id(self) -> str:
        """The id under which it is published."""
        return JOINT + self.place

    @property
    def names(self) -> tuple[str, ...]:
        """The sites that take part, in the order of the plan."""
        return tuple(site.name for site in self.roster.sites[: len(self.plan.sites)])

    @property
    def facts(self) -> dict[str, Any]:
        """What a site is told of it."""
        return {**asked(self.request), "roster": self.roster.digest, "plan": self.digest}

    @property
    def digest(self) -> str:
        """A hash of what every site is charged, and of its grid."""
        made = self.plan.roster
        charged = [[site.event, site.bits, site.noise_multiplier] for site in self.plan.sites]
        facts = ["joint plan 1", self.session, charged, self.plan.total.bits, made.digest.hex() if made else ""]
        return hashlib.sha256(canonical_json(facts)).hexdigest()

    def plan_of(self, name: str) -> Plan:
        """Return the plan of a site.

        Raises
        ------
        Refused
            When it takes no part.
        """
        if name not in self.names:
            raise Refused(f"site {name!r} takes no part in this release, of {', '.join(self.names)}; leave it out.")
        return self.plan.sites[self.names.index(name)]


def asked(request: SitesRequest) -> dict[str, Any]:
    """Return what of a request decides about the release."""
    given = {name: getattr(request, name) for name in ASKED} | {"run_key": request.run_key or ""}
    return {name: kind(given[name]) for name, kind in ASKED.items() if given[name] is not None}


def request_of(facts: Mapping[str, Any]) -> SitesRequest:
    """Read a request that another party sent.

    Raises
    ------
    Refused
        When it has other facts than a request, or in other forms.
    """
    settings = facts.get("settings")
    forms = {name: type(value) for name, value in facts.items()}
    known = {name: kind for name, kind in ASKED.items() if name in facts or name not in MAY_LACK}
    if forms != known or not isinstance(settings, dict):
        raise Refused("a request has other facts than this version knows; use one version at every party.")
    if not all(isinstance(value, str) for value in settings.values()):
        raise Refused("a request has settings that are no text; use one version at every party.")
    return SitesRequest(roster="-", publish="joint", **{**facts, "run_key": facts["run_key"] or None})


def plan_joint(roster: RosterFile, request: SitesRequest) -> PlannedJoint:
    """Check a request and plan it over a roster, from these two alone.

    Raises
    ------
    InvalidInput
        When it does not fit.
    """
    check_options(request)
    if request.run_key is not None:
        check_run_key(request.run_key)
    if request.method not in OVER_ROSTER:
        raise InvalidInput(
            f"method={request.method!r} is not one over a roster ({', '.join(sorted(OVER_ROSTER))}); take one of "
            "these, or fit over datasets of one home."
        )
    check_model(request, {})
    kind, facts = OVER_ROSTER[request.method], asked(request)
    known = {each.name for each in dataclasses.fields(kind)}
    fixed = {name: getattr(roster, name) for name in OF_THE_ROSTER if name in known}
    mechanism = build_with_settings(
        kind, request.method, request.settings, see="dpca sites fit", n_components=request.components, **fixed
    )
    settings = dataclasses.asdict(mechanism)
    what = [*(facts.get(name) for name in ("epsilon", "delta", "clip_norm", "row_policy")), roster.digest]
    if request.model is not None:
        what += [facts.get(name) for name in OF_MODEL]
    fingerprint = hashlib.sha256(canonical_json([request.method, settings, what])).hexdigest()
    session = f"{request.run_key or ''}/{fingerprint}"
    target = PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
    problems = [
        problem_of(request, n_features=roster.features, relation=roster.relation, records_at_most=site.records)
        for site in roster.sites
    ]
    plan = mechanism.plan(problems, [target] * len(problems), session=session, seats=roster.seats)
    return PlannedJoint(roster=roster, request=request, mechanism=mechanism, plan=plan, session=session)
