"""What is stated of a joint release: its artifact with every site's release in it, and the facts of a published one."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpca_tasks.mechanisms.base import Components, Plan, Subspace
from dpca_tasks.mechanisms.noise_level import release_warnings
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, SitesMechanism
from dpca_tasks.refinement.refined_release import refine_release
from flows.families.base import plan_facts
from flows.families.stated_components import state_components
from flows.families.stated_subspace import state_subspace
from flows.requests.sites import SitesRequest
from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents
from storage.privacy_unit import PrivacyUnit

_KEPT_MEGABYTES = 32.0


def state_joint(
    result: Subspace | Components,
    *,
    request: SitesRequest,
    mechanism: SitesMechanism,
    plan: JointPlan,
    total: Plan,
    release_id: str,
    lineage: Mapping[str, Any],
    unit: PrivacyUnit,
    feature_names: Sequence[str] | None = None,
) -> PrivateSubspace | TensorComponents:
    """State the result of a joint release with its public facts.

    Parameters
    ----------
    result : Subspace or Components
    request, mechanism, plan
        What was asked for, and how it was planned.
    total : Plan
        The noise that the result has; more than the planned one where sites were lost.
    release_id : str
    lineage : mapping
        The releases of the sites, as ``sites``, and perhaps their roster.
    unit : PrivacyUnit
        That of the budget of every site.
    feature_names : sequence of str, optional
        Those that the owners declared.
    """
    lead = replace(plan.sites[0], problem=total.problem)
    named = {} if feature_names is None else {"feature_names": list(feature_names)}
    parameters = dataclasses.asdict(mechanism)  # type: ignore[call-overload]
    about: dict[str, Any] = {"row_policy": request.row_policy, **lineage}
    if isinstance(result, Components):
        about |= {"model": request.model, **request.bounds}
        facts = plan_facts(lead, parameters=parameters, release_id=release_id, plan=about, unit=unit)
        asked = {"n_features": total.problem.n_features, "asked": request.components}
        return state_components(result, **asked, warnings=total.warnings, manifest={**named, **facts})
    assert request.clip_norm is not None
    edge = None if total.noise_edge is None else total.noise_edge * request.clip_norm**2
    about["center"] = "none"
    parameters |= {"refine": "none"}
    facts = plan_facts(lead, parameters=parameters, release_id=release_id, plan=about, unit=unit)
    return state_subspace(
        refine_release(result, n_components=request.components, edge=edge),
        raw=result,
        keep_matrix=_KEPT_MEGABYTES,
        warnings=release_warnings(total, result),
        manifest={**named, **facts, "clip_norm": request.clip_norm},
    )


def joint_facts(artifact: str, shown: Mapping[str, Any], *, reused: bool, sites: Sequence[Any]) -> dict[str, Any]:
    """Return the public facts of a published joint release, as the registry shows it."""
    manifest = shown["manifest"]
    outcome = manifest.get("outcome") or {}
    return {
        "artifact": artifact,
        "digest": shown["digest"],
        "reused": reused,
        "method": shown["mechanism"],
        "relation": shown["relation"],
        "epsilon": shown["epsilon"],
        "delta": shown["delta"],
        "statement": shown["statement"],
        **{name: outcome[name] for name in ("verdict", "above_noise", "asked", "found") if name in outcome},
        "warnings": manifest.get("warnings", []),
        "sites": sites,
    }
