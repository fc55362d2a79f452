"""Family of private subspaces, with the forecast before a release.

A release consists of k orthonormal directions, for the rows as they are or for the rows minus their private mean. The
forecast appears in a dry run. It also decides whether a request with ``on_noise=refuse`` is refused.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from dpca.artifacts.base import Artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import StorageError
from dpca.registry.reader import Registry
from dpca_tasks.accounting.events import Relation
from dpca_tasks.advisor import advise, expect
from dpca_tasks.errors import DpcaError, InvalidInput, Refused
from dpca_tasks.forecast.noise_forecast import Forecast, epsilon_needed, forecast_of, spectrum_shares
from dpca_tasks.mechanisms.base import Center, Mechanism, Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.noise_level import release_warnings
from dpca_tasks.mechanisms.prior_releases import (
    QuantileClip,
    RejectedShare,
    counts_std,
    first_epsilon,
    main_mechanism,
    rest_of,
)
from dpca_tasks.mechanisms.released_rounds import shares_of
from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.refinement.constrained_release import constrained_release
from dpca_tasks.refinement.refined_release import AUTO, check_refinement, percent_at_least, refine_release
from flows.families.base import (
    Family,
    PlannedRelease,
    build_mechanism,
    records_facts,
    release_facts,
    rows_by_policy,
)
from flows.families.columns import Columns
from flows.families.restated_subspace import requested_refinement, restate_subspace, state_subspace
from flows.families.warm_starts import (
    Parent,
    PublicRows,
    check_start,
    identity_of,
    parent_of,
    pinned_rows,
    public_columns,
    with_start,
)
from flows.requests import SubspaceRequest
from storage.datasets.catalog import Entry

if TYPE_CHECKING:
    from dpca_tasks.audit.attacks import AuditSubject

type Planned = PlannedRelease[SubspaceRequest]

ANALYZE_GAUSS = "analyze_gauss"
"""The mechanism that can start from an earlier release."""


def forecast_facts(planned: Planned) -> Mapping[str, Any]:
    """Return a dry run's forecast of the components that can be above the noise; empty without a noise level."""
    found = _forecast(planned)
    if found is None:
        return {}
    epsilon = _epsilon(planned, found)
    low, high = expect(planned.mechanism, planned.plan).captured
    return {
        "expected_captured_variance": [low, high],
        "components_above_noise": found.above_noise,
        "records_needed": found.records_needed,
        "epsilon_needed": epsilon,
        "forecast": _sentence(planned, found, epsilon),
    }


def _clip_facts(planned: Planned) -> Mapping[str, Any]:
    """Return the noise edge (bound on eigenvalues of noise) at the clip norm, and at half and twice the clip norm.

    The unit is data units squared.

    The result is empty without a noise level, for a privately chosen clip norm, or if ``row_policy`` is not ``clip``.
    """
    clip_norm, level = planned.request.clip_norm, planned.plan.level
    if not isinstance(clip_norm, (int, float)) or level is None or planned.request.row_policy != "clip":
        return {}
    reach = level * clip_norm**2
    return {
        "noise_edge_expected": reach,
        "noise_edge_at_half_the_clip_norm": reach / 4.0,
        "noise_edge_at_twice_the_clip_norm": reach * 4.0,
    }


def expected_noise(planned: Planned) -> str | None:
    """Return a sentence with advice if all components are expected to be noise; None otherwise."""
    found = _forecast(planned)
    if found is None or not _is_noise(planned, found):
        return None
    return _sentence(planned, found, _epsilon(planned, found))


def refuse_noise(planned: Planned) -> None:
    """Refuse a release that will be pure noise, if its request has ``on_noise=refuse``.

    Raises
    ------
    Refused
        When pure noise is expected; the message states what would suffice. Nothing was charged.
    """
    if planned.request.on_noise != "refuse":
        return
    noise = expected_noise(planned)
    if noise is not None:
        raise Refused(
            f"{noise}; on_noise=refuse refuses such a release, and nothing was charged: follow this "
            "advice, request fewer components or another mechanism, or set on_noise=warn."
        )


def _forecast(planned: Planned) -> Forecast | None:
    return forecast_of(planned.plan, n_components=main_mechanism(planned.mechanism).n_components)


def _epsilon(planned: Planned, found: Forecast) -> float | None:
    if not found.problem.records_declared:
        return None
    mechanism: Mechanism[Subspace] = planned.mechanism
    return epsilon_needed(mechanism, planned.plan, strength=found.strength)


def _is_noise(planned: Planned, found: Forecast) -> bool:
    """Return whether all components are expected to be noise.

    If a spectrum and a number of records are declared, the advisor decides. Otherwise the noise level decides.
    """
    if found.problem.spectrum and found.problem.records_declared:
        return expect(planned.mechanism, planned.plan).is_noise
    return found.expects_noise


def _sentence(planned: Planned, found: Forecast, epsilon: float | None) -> str:
    """Return a sentence on how many components can be above the noise, and what the last of them requires."""
    kth, opening = f"component {found.n_components}", _opening(found, noise=_is_noise(planned, found))
    if math.isinf(found.records_needed):
        return (
            f"{opening}; the declared spectrum gives {kth} no variance, so neither more records nor "
            "a larger epsilon would suffice"
        )
    needs = f"{math.ceil(found.records_needed):,} records at the clip norm"
    if epsilon is not None and math.isfinite(epsilon):
        needs += f" or epsilon {epsilon:.3g}"
    return f"{opening}; {kth} needs at least {needs}"


def _opening(found: Forecast, *, noise: bool) -> str:
    if found.above_noise is None:
        return "no number of records is declared, so the noise cannot be compared with it"
    if noise:
        most = found.problem.records_at_most
        return f"expect noise: with records_at_most={most} all components will be noise"
    return f"at most {found.above_noise} of {found.n_components} components can be above the noise"


class SubspaceFamily(Family[SubspaceRequest, Subspace]):
    """Release family whose artifacts are private subspaces."""

    name = SubspaceRequest.family
    request = SubspaceRequest
    terms = Problem
    mechanisms = MECHANISMS
    references = REFERENCES
    artifact = PrivateSubspace

    @property
    def audit(self) -> "AuditSubject":
        """Audit of subspaces, imported on demand because no release needs it."""
        from dpca_tasks.audit.trials import SUBSPACE_AUDIT

        return SUBSPACE_AUDIT

    def build(self, request: SubspaceRequest) -> Mechanism[Subspace]:
        """Build the mechanism of a request.

        If requested, the mechanism first chooses the clip norm privately, or counts rejected records with noise.
        """
        count = _count(request)
        n_components = 1 if count == AUTO else count
        mechanism = build_mechanism(
            self, request.mechanism, request.settings, n_components=n_components, **_rounds(request)
        )
        if _is_warm(request) and request.mechanism != ANALYZE_GAUSS:
            named = "like_public" if request.like_public else f"like={request.like}"
            raise InvalidInput(
                f"{named} is for analyze_gauss, and {request.mechanism} cannot use an earlier release; "
                "leave it out, or request analyze_gauss."
            )
        if request.mechanism in REFERENCES and isinstance(request.clip_norm, str):
            raise InvalidInput(
                f"clip_norm={request.clip_norm!r} is chosen by a private histogram, which "
                f"{request.mechanism} does not support; state a number."
            )
        if request.mechanism in REFERENCES and request.hold_if_rejected is not None:
            raise InvalidInput(
                f"hold_if_rejected counts records with noise, but {request.mechanism} has none; leave it out."
            )
        _, quantile = _clip_norm(request)
        if quantile is not None:
            mechanism = QuantileClip(mechanism=mechanism, quantile=quantile)
        return mechanism if request.hold_if_rejected is None else RejectedShare(mechanism=mechanism)

    def resolved(
        self, request: SubspaceRequest, snapshot: Entry, *, relation: Relation, target: PrivacyTarget
    ) -> SubspaceRequest:
        """Return a request with its mechanism named.

        ``auto`` becomes the advisor's first choice that allows the other options of the request.
        """
        if request.mechanism != AUTO:
            return request
        if request.rounds not in (AUTO, 1):
            raise InvalidInput(
                f"mechanism=auto chooses the rounds too; leave out rounds={request.rounds}, or name analyze_gauss."
            )
        if request.settings:
            raise InvalidInput(
                "mechanism=auto accepts no settings, because settings belong to one mechanism; leave "
                "them out, or name a mechanism."
            )
        count = _count(request)
        problem = self.problem(request, snapshot, relation=relation)
        for advice in advise(problem, target, n_components=1 if count == AUTO else int(count)):
            named = dataclasses.replace(request, mechanism=advice.plan.mechanism)
            with suppress(Refused):
                self.check(named, advice.plan)
                return named
        raise Refused("mechanism=auto found no mechanism that accepts this request; name one to see what to change.")

    def pinned(self, request: SubspaceRequest) -> SubspaceRequest:
        """Return the request with the earlier release pinned to its version, and public rows to their content."""
        request, reference = pinned_rows(request), parent_of(request)
        if reference is None:
            return request
        return dataclasses.replace(request, like=str(Registry.open().resolve(reference)))

    def started(self, request: SubspaceRequest, reference: str, columns: Callable[[], Columns]) -> SubspaceRequest:
        """Return the request, set to start from the release ``reference`` if it names no start and this is possible."""
        named = request.like is not None or request.like_public is not None
        if named or request.mechanism != ANALYZE_GAUSS or request.rounds not in (AUTO, 1):
            return request
        with suppress(DpcaError, StorageError):
            parent = Parent.of(reference)
            check_start(columns(), parent.columns)
            if request.center == "none" or parent.subspace.mean is not None:
                return dataclasses.replace(request, like=str(parent.version))
        return request

    def restarted(self, request: SubspaceRequest, reserved: SubspaceRequest) -> SubspaceRequest:
        """Return the request, set to start from the same release or public rows as the stored request ``reserved``."""
        return dataclasses.replace(request, like=reserved.like, like_public=reserved.like_public)

    def starts_from(self, request: SubspaceRequest) -> str | None:
        """Return what a warm start uses: the reference of the earlier release, or the digest of public rows."""
        return identity_of(request) or parent_of(request)

    def start(self, request: SubspaceRequest, *, n_features: int) -> Mapping[str, Any] | None:
        """Return version, digest and mean square of the earlier release, or of public rows, for the plan."""
        if request.like_public is not None:
            rows = PublicRows.of(request, n_features=n_features)
            return {
                "artifact": f"public rows in {rows.name}",
                "digest": rows.digest,
                "mean_square": rows.start.mean_square,
            }
        reference = parent_of(request)
        if reference is None:
            return None
        parent = Parent.of(reference)
        return {
            "artifact": str(parent.version),
            "digest": parent.version.digest,
            "mean_square": parent.start(center=request.center).mean_square,
        }

    def ready(self, planned: Planned) -> Planned:
        """Return the planned release with a mechanism that can load the earlier release, or public rows, by digest."""
        facts = planned.plan.start
        if facts is None:
            return planned
        if planned.request.like_public is not None:
            request, n_features = planned.request, _problem_of(planned).n_features
            return dataclasses.replace(
                planned,
                mechanism=with_start(planned.mechanism, lambda: PublicRows.of(request, n_features=n_features).start),
            )
        version, digest = facts["artifact"], facts["digest"]
        return dataclasses.replace(
            planned, mechanism=with_start(planned.mechanism, lambda: Parent.pinned(version, digest).start())
        )

    def check_columns(self, request: SubspaceRequest, columns: Callable[[], Columns]) -> None:
        """Refuse rows whose columns differ from those of the earlier release, or of a public dataset."""
        reference, public = parent_of(request), public_columns(request)
        if reference is not None:
            check_start(columns(), Parent.of(reference).columns)
        if public is not None:
            check_start(columns(), public)

    def problem(self, request: SubspaceRequest, snapshot: Entry, *, relation: Relation) -> Problem:
        """Return the public facts of a request on a snapshot."""
        if request.spectrum is not None:
            spectrum_shares(request.spectrum, n_features=snapshot.n_features)  # an invalid spectrum is refused here
        return Problem(
            n_features=snapshot.n_features,
            clip_norm=_clip_norm(request)[0],
            center=cast(Center, request.center),
            spectrum=request.spectrum or "",
            relation=relation,
            **records_facts(snapshot),
        )

    def requested(self, request: SubspaceRequest) -> Sequence[Any]:
        """Return the options on rows that determine the release."""
        requested = [request.clip_norm, request.row_policy, request.center]
        if request.components == AUTO:
            requested.append("components=auto")
        if not request.schema_constraints:
            requested.append("schema_constraints=false")
        if request.mechanism == AUTO:
            requested += [f"components={request.components}", f"spectrum={request.spectrum}"]
        if request.hold_if_rejected is not None:
            requested.append(f"hold_if_rejected={request.hold_if_rejected}")
        return requested

    def parameters(self, mechanism: Mechanism[Subspace]) -> Mapping[str, Any]:
        """Return the parameters of the main mechanism, without those of preliminary releases."""
        found = super().parameters(main_mechanism(mechanism))
        return {name: value for name, value in found.items() if name not in ("start", "warm")}

    def source(self, planned: PlannedRelease[SubspaceRequest], rows: BlockSource) -> BlockSource:
        """Return the rows, all scaled to the clip norm if the request has ``row_policy=normalise``."""
        return rows_by_policy(rows, policy=planned.request.row_policy, clip_norm=_problem_of(planned).clip_norm)

    def facts(self, planned: PlannedRelease[SubspaceRequest]) -> Mapping[str, Any]:
        """Return the facts of a dry run on the rows, with the forecast of the noise."""
        request = planned.request
        rows: dict[str, Any] = {
            "clip_norm": request.clip_norm,
            "row_policy": request.row_policy,
            "center": request.center,
            "rounds": planned.plan.rounds,
        }
        if planned.plan.start is not None:
            rows[_start_named(planned)] = planned.plan.start["artifact"]
        if request.hold_if_rejected is not None:
            rows |= {
                "hold_if_rejected": request.hold_if_rejected,
                "rejected_count_std": counts_std(_problem_of(planned), planned.plan.target),
            }
        return {**rows, **_clip_facts(planned), **forecast_facts(planned)}

    def expected_noise(self, planned: PlannedRelease[SubspaceRequest]) -> str | None:
        """Return a sentence if public facts imply that all components will be noise; None otherwise."""
        return expected_noise(planned)

    def refuse_noise(self, planned: PlannedRelease[SubspaceRequest]) -> None:
        """Refuse a release that will be pure noise, if its request has ``on_noise=refuse``."""
        refuse_noise(planned)

    def published_facts(self, planned: PlannedRelease[SubspaceRequest]) -> Mapping[str, Any]:
        """Return how rows are treated, the rounds, the warm start, and the epsilons of preliminary releases."""
        requested: dict[str, Any] = {"row_policy": planned.request.row_policy, "center": _problem_of(planned).center}
        if planned.plan.rounds > 1:
            requested |= {"rounds": planned.plan.rounds, "shares": shares_of(planned.plan)}
        if planned.plan.start is not None:
            name = _start_named(planned)
            requested |= {name: planned.plan.start["artifact"], f"{name}_digest": planned.plan.start["digest"]}
        mechanism, target = planned.mechanism, planned.plan.target
        if isinstance(mechanism, RejectedShare):
            requested |= {
                "hold_if_rejected": planned.request.hold_if_rejected,
                "rejected_epsilon": first_epsilon(target),
            }
            mechanism, target = mechanism.mechanism, rest_of(target)
        if isinstance(mechanism, QuantileClip):
            requested |= {"clip_quantile": mechanism.quantile, "clip_epsilon": first_epsilon(target)}
        return requested

    def state(
        self,
        planned: PlannedRelease[SubspaceRequest],
        result: Subspace,
        *,
        release_id: str,
        columns: Columns,
    ) -> PrivateSubspace:
        """Refine a subspace and build its artifact with the public facts."""
        plan, problem = planned.plan, _problem_of(planned)
        clip_norm = problem.clip_norm if result.clip_norm is None else result.clip_norm
        method, requested = refinement_of(planned), _count(planned.request)
        result = constrained_release(result, columns.constraints if planned.request.schema_constraints else None)
        refined = refine_release(
            result,
            n_components=requested,
            method=method,
            edge=None if plan.noise_edge is None else plan.noise_edge * clip_norm**2,
        )
        facts = release_facts(self, planned, release_id=release_id)
        parameters = {**facts["parameters"], "n_components": requested, "refine": method}
        return state_subspace(
            refined,
            raw=result,
            keep_matrix=0.0 if plan.target.i_know_this_is_not_private else planned.request.keep_matrix,
            warnings=release_warnings(plan, result, above_noise=refined.assessment.above_noise),
            manifest={
                **columns.named,
                **facts,
                "parameters": parameters,
                "clip_norm": clip_norm,
            },
        )

    def check(self, request: SubspaceRequest, plan: Plan) -> None:
        """Refuse a refinement, or a lower bound, that the planned release does not allow."""
        method, mechanism = request.refine or "none", request.mechanism
        check_refinement(method, n_components=request.components, law=plan.moment_noise, formed=plan.moment_formed)
        if request.require_share is not None and plan.moment_noise is None:
            raise Refused(
                f"require_share={request.require_share} needs a lower bound of the captured variance, "
                f"but {mechanism} releases no matrix to compute it from; leave it out, or use another mechanism such "
                "as analyze_gauss."
            )

    def reads_artifact(self, request: SubspaceRequest) -> bool:
        """Return whether the request names a refinement, or a minimum share that the release must reach."""
        return request.refine is not None or request.require_share is not None

    def restate(self, request: SubspaceRequest, artifact: Artifact, *, parent: str) -> PrivateSubspace | None:
        """Return the release with the requested refinement; None where it has that refinement already."""
        assert isinstance(artifact, PrivateSubspace)
        if request.refine is None or request.refine == requested_refinement(artifact):
            return None
        n_components = artifact.n_components if request.components == AUTO else _count(request)
        return restate_subspace(artifact, n_components=n_components, refine=request.refine, parent=parent)

    def withheld(self, request: SubspaceRequest, artifact: Artifact) -> str | None:
        """Return why a release misses the minimum share of its request; None if it reaches the share or none is set."""
        assert isinstance(artifact, PrivateSubspace)
        if request.require_share is None:
            return None
        low = artifact.outcome.get("cv_low")
        if low is not None and low >= request.require_share:
            return None
        found = "has no lower bound of" if low is None else f"captures at least {percent_at_least(low)} of"
        return (
            f"the subspace {found} the best possible with {artifact.n_components} components, below "
            f"require_share={request.require_share}; it is kept and charged, but not published: run the same "
            "request with a lower --require-share, or without it, to publish it at no further charge."
        )


def refinement_of(planned: PlannedRelease[SubspaceRequest]) -> Any:
    """Return the refinement method of a release.

    It is the requested method. By default it is ``auto`` if the mechanism forms a noisy matrix, and ``none`` otherwise.
    The method ``auto`` compares refinements, so that it avoids harmful ones.
    """
    if planned.request.refine is not None:
        return planned.request.refine
    return "auto" if planned.plan.moment_noise is not None and planned.plan.moment_formed else "none"


SUBSPACE = SubspaceFamily()


def _problem_of(planned: PlannedRelease[SubspaceRequest]) -> Problem:
    problem = planned.plan.problem
    assert isinstance(problem, Problem)
    return problem


def _start_named(planned: Planned) -> str:
    """Return the name of the option that names the start of a release: ``like`` or ``like_public``."""
    return "like" if planned.request.like_public is None else "like_public"


def _is_warm(request: SubspaceRequest) -> bool:
    """Return whether a release starts from an earlier release, or from public rows."""
    return parent_of(request) is not None or request.like_public is not None


def _count(request: SubspaceRequest) -> int | str:
    """Return the number of components, or ``auto`` if it is chosen from the release."""
    if request.components == AUTO:
        return AUTO
    try:
        return int(request.components)
    except ValueError:
        raise InvalidInput(f"components={request.components!r} must be a whole number or auto; correct it.") from None


def _rounds(request: SubspaceRequest) -> dict[str, Any]:
    """Return the rounds of a mechanism that has this parameter; other mechanisms have one round."""
    if request.rounds not in (AUTO, 1, 2, 3):
        raise InvalidInput(f"rounds={request.rounds!r} must be auto, 1, 2 or 3; correct it.")
    kind = MECHANISMS.get(request.mechanism)
    if kind is not None and any(each.name == "rounds" for each in dataclasses.fields(kind)):
        return {
            "rounds": request.rounds,
            "serves_all": request.components == AUTO,
            "warm": _is_warm(request),
            "start": None,
        }
    if request.rounds not in (AUTO, 1):
        raise InvalidInput(
            f"rounds={request.rounds} is for analyze_gauss, and {request.mechanism} has one round; use rounds=auto."
        )
    return {}


def _clip_norm(request: SubspaceRequest) -> tuple[float, float | None]:
    """Return the clip norm and None, or 1 and the quantile at which the clip norm is chosen."""
    if isinstance(request.clip_norm, (int, float)):
        return float(request.clip_norm), None
    kind, _, text = request.clip_norm.partition(":")
    try:
        quantile = float(text) if kind == "quantile" else float("nan")
    except ValueError:
        quantile = float("nan")
    if not 0 < quantile < 1:
        raise InvalidInput(
            f"clip_norm={request.clip_norm!r} must be a number, or quantile:Q with Q in (0, 1); correct it."
        )
    if request.row_policy == "normalise":
        raise InvalidInput(
            "row_policy=normalise gives all records the same norm, so quantiles do not apply; state a clip_norm."
        )
    return 1.0, quantile
