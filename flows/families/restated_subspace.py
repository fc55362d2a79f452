"""Artifact of a refined subspace, and its restatement.

The artifact holds arrays, and public facts in its manifest. A restatement is a new artifact with another number of
components, or another refinement, computed from the artifact of a release. It costs no budget and reads no row.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.moment import PrivateMoment
from dpca.artifacts.subspace import PrivateSubspace
from dpca_tasks.errors import Refused
from dpca_tasks.layouts import pack_symmetric, unpack_symmetric
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.noise_level import above_edge, semicircle_edge
from dpca_tasks.mechanisms.prior_releases import QuantileClip, RejectedShare
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.mechanisms.released_rounds import STORED
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.refinement.leading_pairs import refine_kept_pairs
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.refined_release import AUTO, Assessment, RefinedRelease, moment_of, refine_release, verdict
from dpca_tasks.refinement.refined_rounds import Rounds
from dpca_tasks.refinement.rounds import Answer, Estimate
from dpca_tasks.refinement.rounds_assessment import estimated
from dpca_tasks.refinement.schema_constraints import Constraints

_MEGABYTE = 1e6


def outcome_of(refined: RefinedRelease) -> dict[str, Any]:
    """Return the ``outcome`` of a release: its decisions, the assessment of its quality, and a summary in one line."""
    decided = refined.subspace.outcome or {}
    facts = {**refined.facts(), **decided}
    noise = refined.subspace.noise
    text = verdict(facts, n_components=len(refined.subspace.components))
    return {**facts, **({} if noise is None else {"noise": dict(noise)}), "verdict": text}


def state_subspace(
    refined: RefinedRelease,
    *,
    raw: Subspace,
    keep_matrix: float,
    warnings: Sequence[str],
    manifest: Mapping[str, Any],
) -> PrivateSubspace:
    """Build the artifact of a refined release.

    Parameters
    ----------
    refined : RefinedRelease
    raw : Subspace
        The result of the mechanism before refinement. If the release is refined and its matrix is not kept, the
        artifact also keeps the leading directions of this result.
    keep_matrix : float
        Largest size in megabytes of a matrix that is kept.
    warnings : sequence of str
    manifest : mapping
        The other public facts.
    """
    subspace = refined.subspace
    matrix = packed(subspace.released, keep_matrix=keep_matrix)
    answers = {} if subspace.rounds is None else packed_rounds(subspace.rounds, keep_matrix=keep_matrix)
    is_whole = matrix is not None or bool(answers)
    facts = {"total_variance": subspace.total_variance, "warnings": list(warnings) or None}
    return PrivateSubspace(
        components=subspace.components,
        eigenvalues=subspace.eigenvalues,
        spectrum=subspace.spectrum,
        further=subspace.further,
        mean=subspace.mean,
        leading=_leading(raw) if (refined.refined_by != "none" or raw.rounds is not None) and not is_whole else None,
        matrix=matrix,
        **answers,
        manifest={
            **{name: fact for name, fact in facts.items() if fact is not None},
            "outcome": outcome_of(refined),
            **manifest,
        },
    )


def packed(matrix: NDArray[np.float64] | None, *, keep_matrix: float) -> NDArray[np.float64] | None:
    """Return the upper triangle of a symmetric matrix, row by row; None if it exceeds ``keep_matrix`` megabytes."""
    if matrix is None:
        return None
    order = len(matrix)
    size = matrix.itemsize * order * (order + 1) // 2
    return pack_symmetric(matrix) if size <= keep_matrix * _MEGABYTE else None


def packed_rounds(rounds: Rounds, *, keep_matrix: float) -> dict[str, NDArray[np.float64]]:
    """Return the answers and maps of rounds as arrays of an artifact; none if they exceed ``keep_matrix`` megabytes."""
    triangles = [pack_symmetric(answer.released) for answer in rounds.answers]
    maps = [answer.map for answer in rounds.answers]
    arrays = {
        "answers": np.concatenate(triangles),
        "map_directions": np.hstack([each.directions for each in maps]).T.astype(np.float64),
        "map_reductions": np.hstack([each.reductions for each in maps]).T.astype(np.float64),
    }
    if sum(array.nbytes for array in arrays.values()) > keep_matrix * _MEGABYTE:
        return {}
    return {name: array for name, array in arrays.items() if array.size}


def unpacked_rounds(artifact: PrivateSubspace) -> Rounds:
    """Return the rounds of a release from the arrays and facts of its artifact."""
    facts, none = artifact.outcome["rounds"], np.zeros((0, artifact.n_features))
    directions, reductions = (
        none if array is None else array for array in (artifact.map_directions, artifact.map_reductions)
    )
    answers, entry, row = list[Answer](), 0, 0
    assert artifact.answers is not None
    for at, width in enumerate(facts["directions"]):
        order = artifact.n_features + (facts["constant"][at] > 0.0)
        size, columns = order * (order + 1) // 2, slice(row, row + width)
        answers.append(
            Answer(
                released=unpack_symmetric(artifact.answers[entry : entry + size], order),
                map=PublicMap(
                    directions=directions[columns].T.astype(np.int64), reductions=reductions[columns].T.astype(np.int64)
                ),
                **{name: facts[name][at] for name in STORED},
            )
        )
        entry, row = entry + size, row + width
    return Rounds(
        answers=tuple(answers),
        unit=float(artifact.manifest["clip_norm"]) ** 2,
        centred=artifact.mean is not None,
        noise_edge=artifact.outcome.get("noise_edge"),
        constraints=Constraints.of(facts.get("constraints"), n_features=artifact.n_features),
    )


def moment_of_rounds(artifact: PrivateSubspace, *, parent: str | None = None) -> PrivateMoment:
    """Return the second moment that was estimated in rounds, with the matrix K (``weights``) of its noise.

    Parameters
    ----------
    artifact : PrivateSubspace
        A release that kept the answers of its rounds.
    parent : str, optional
        The artifact's digest, for the manifest.

    Notes
    -----
    The noise of ``T S T^T`` is isometric, for the estimate S and the map T of the last round
    (`dpca_tasks.refinement.rounds.Estimate`), so ``K = T^-1 T^-T``. A centred moment gets a row and a column for the
    appended constant. With several rounds the mean comes from the first round. K is then extended such that the noise
    of the constant's row is at least that of the first round, and such that K is correct around the mean.
    """
    rounds = unpacked_rounds(artifact)
    first = rounds.answers[0]
    estimate = estimated(rounds.answers, centred=rounds.centred)
    matrix, constant = estimate.matrix, None
    weights = estimate.map.inverse_around(np.eye(len(matrix)))
    if rounds.centred:
        assert artifact.mean is not None
        clip_norm, constant = math.sqrt(rounds.unit), first.constant
        mean = artifact.mean / clip_norm
        extended = _extended_by_map if first.map.width else _extended_by_mean
        matrix, weights = extended(estimate, first, mean, weights)
        constant *= clip_norm
    noise = {"law": "isometric", "std": estimate.noise_std * rounds.unit, "step": first.step, "constant": constant}
    return PrivateMoment(
        matrix=pack_symmetric(matrix * rounds.unit),
        weights=pack_symmetric(weights),
        manifest=artifact.moment_facts(noise, parent=parent),
    )


type _Matrix = NDArray[np.float64]


def _extended_by_mean(estimate: Estimate, first: Answer, mean: _Matrix, weights: _Matrix) -> tuple[_Matrix, _Matrix]:
    """Return the moment of rows with an appended constant, and the matrix K of its noise, as in `moment_of_rounds`.

    Both are computed from a moment around the mean of the first round.
    """
    count, constant = estimate.n_records, first.constant
    last = (first.noise_std / estimate.noise_std) ** 2
    across = mean[:, None] / constant * last
    matrix = np.block(
        [
            [estimate.matrix + count * np.outer(mean, mean), count * constant * mean[:, None]],
            [count * constant * mean[None], np.full((1, 1), count * constant**2)],
        ]
    )
    weights = np.block(
        [[weights + np.outer(mean, mean) / constant**2 * last, across], [across.T, np.full((1, 1), last)]]
    )
    return matrix, weights


def _extended_by_map(estimate: Estimate, first: Answer, mean: _Matrix, weights: _Matrix) -> tuple[_Matrix, _Matrix]:
    """Return the moment of rows with an appended constant, and the matrix K of its noise, as in `moment_of_rounds`.

    Both are computed from the only answer of a warm start. A mapped row y belongs to the row ``x = T^-1 y + m``. So a
    matrix L converts mapped rows with their constant to original rows with the constant. The answer B becomes
    ``L B L^T``, and its noise gets ``K = L L^T``.
    """
    assert estimate.mean is not None
    order = len(weights)
    function = np.eye(order + 1)
    function[:order, :order] = first.map.inverse(np.eye(order))
    function[:order, order] = (mean - estimate.mean) / first.constant
    matrix = function @ first.released @ function.T
    return (matrix + matrix.T) / 2.0, function @ function.T


def _leading(raw: Subspace) -> NDArray[np.float64]:
    return raw.components if raw.further is None else np.vstack([raw.components, raw.further])


_WHOLE = float("inf")


def requested_refinement(artifact: PrivateSubspace) -> str:
    """Return the requested refinement of a release; ``none`` if its manifest, from an older version, lacks it."""
    return str(artifact.manifest.get("parameters", {}).get("refine", "none"))


def restate_subspace(
    artifact: PrivateSubspace, *, n_components: int | str, refine: str | None = None, parent: str
) -> PrivateSubspace:
    """Build the artifact of a different post-processing of a release.

    Parameters
    ----------
    artifact : PrivateSubspace
    n_components : int or "auto"
        The number k of components.
    refine : str, optional
        As in `dpca_tasks.refinement.refined_release.refine_release`; by default the method requested for the release.
    parent : str
        The artifact's digest, for the manifest.

    Returns
    -------
    PrivateSubspace
        If the artifact kept the matrix, any refinement is possible. If it kept only the leading directions, ``none``
        and ``eb`` are possible. The result of ``eb`` then has a warning, because it cannot be scored.

    Raises
    ------
    Refused
        When the artifact does not allow that refinement.
    Invalid
        When the artifact kept fewer directions.
    """
    method = requested_refinement(artifact) if refine is None else refine
    if artifact.answers is not None:
        return _from_rounds(artifact, n_components=n_components, method=method, parent=parent)
    if artifact.matrix is not None:
        return _from_matrix(artifact, n_components=n_components, method=method, parent=parent)
    if n_components == AUTO:
        raise Refused(
            "components=auto counts the eigenvalues above the noise, but this artifact has no matrix; state a number."
        )
    if "rounds" in artifact.outcome and method != "none" and refine is not None:
        raise Refused(
            f"refine={method} needs the answers of all rounds, which this artifact does not contain; use refine=none, "
            "or make another release with --keep-matrix."
        )
    if refine is None and artifact.leading is not None:
        method = "none" if "rounds" in artifact.outcome else "eb"
    if method in ("none", "eb") or refine is None:
        plain = _unrefined(artifact).refit(int(n_components), parent=parent)
        return plain if method != "eb" else _from_pairs(artifact, plain)
    raise Refused(
        f"refine={method} needs the released matrix, which this artifact does not contain; use "
        "refine=none or eb, or make another release with --keep-matrix."
    )


def noise_edge_of(artifact: PrivateSubspace) -> float | None:
    """Return the noise edge, below which the eigenvalues of pure noise stay; None if it is unknown.

    The edge comes from the artifact, or else from a repeated plan of its release.
    """
    declared = artifact.outcome.get("noise_edge")
    if declared is not None:
        return float(declared)
    try:
        return _noise_of(artifact)[1] if artifact.is_private else None
    except Refused:
        return None


def released_from(artifact: PrivateSubspace) -> Subspace | None:
    """Return the released moment of an artifact, as its mechanism returned it; None if it was not kept."""
    if artifact.answers is not None:
        return Subspace(
            components=artifact.components,
            mean=artifact.mean,
            rounds=unpacked_rounds(artifact),
            outcome={"rounds": artifact.outcome["rounds"]},
        )
    if artifact.matrix is None:
        return None
    noise = artifact.outcome["noise"]
    order = artifact.n_features + (noise["constant"] is not None)
    matrix = unpack_symmetric(artifact.matrix, order)
    return Subspace(components=artifact.components, mean=artifact.mean, released=matrix, noise=noise)


def _from_matrix(artifact: PrivateSubspace, *, n_components: int | str, method: str, parent: str) -> PrivateSubspace:
    released = released_from(artifact)
    assert released is not None
    assert released.noise is not None
    moment = moment_of(released)
    made = Moment(matrix=moment.centred(), mean=artifact.mean, released=moment.matrix, noise=dict(released.noise))
    again = decompose(made, n_components=1)
    if artifact.refined_by == "none" and artifact.spectrum is not None:  # bit-identical to the release
        more = () if artifact.further is None else (artifact.further,)
        rows, values = np.vstack([artifact.components, *more]), artifact.spectrum
        released = dataclasses.replace(
            released,
            components=rows,
            eigenvalues=values,
            spectrum=values,
            total_variance=_total(artifact),
            all_eigenvalues=again.all_eigenvalues,
        )
    else:
        released = again
    return _from_release(artifact, released, n_components=n_components, method=method, parent=parent)


def _from_rounds(artifact: PrivateSubspace, *, n_components: int | str, method: str, parent: str) -> PrivateSubspace:
    rounds = unpacked_rounds(artifact)
    moment = rounds.estimate.matrix * rounds.unit
    raw = decompose(Moment(matrix=moment, mean=artifact.mean), n_components=1)
    raw = dataclasses.replace(raw, rounds=rounds, outcome={"rounds": artifact.outcome["rounds"]})
    return _from_release(artifact, raw, n_components=n_components, method=method, parent=parent)


def _from_release(
    artifact: PrivateSubspace, released: Subspace, *, n_components: int | str, method: str, parent: str
) -> PrivateSubspace:
    """Refine ``released``, which was restored from an artifact, and build the new artifact."""
    count = n_components if n_components == AUTO else _checked(artifact, int(n_components))
    refined = refine_release(released, n_components=count, method=method)  # type: ignore[arg-type]
    return state_subspace(
        refined,
        raw=released,
        keep_matrix=_WHOLE,
        warnings=artifact.manifest.get("warnings") or (),
        manifest=_restated(artifact, method=method, parent=parent),
    )


def _from_pairs(artifact: PrivateSubspace, plain: PrivateSubspace) -> PrivateSubspace:
    """Refine a release from its kept leading directions alone."""
    source = _unrefined(artifact)
    more = () if source.further is None else (source.further,)
    rows, values = np.vstack([source.components, *more]), source.spectrum if source.further is not None else None
    values = source.eigenvalues if values is None else values
    assert values is not None
    std, edge = _noise_of(artifact)
    found = refine_kept_pairs(values, rows, noise_std=std, n_components=plain.n_components)
    shown = RefinedRelease(
        subspace=Subspace(components=found.components, eigenvalues=found.values),
        refined_by=found.refined_by,
        assessment=Assessment(noise_std=std, above_noise=above_edge(values, edge=edge)),
        noise_edge=edge,
    )
    text = (
        f"refined from the {len(rows)} stored eigenpairs, without the matrix: the gain is smaller, "
        "no lower bound is known, and a loss would not be detected."
        if found.refined_by == "eb"
        else f"there is nothing to refine in the {len(rows)} stored eigenpairs, so the leading ones are used."
    )
    facts = _restated(artifact, method="eb", parent=str(plain.manifest["parent"]))
    kept = {name: artifact.outcome[name] for name in ("noise",) if name in artifact.outcome}
    return PrivateSubspace(
        components=found.components,
        eigenvalues=found.values,
        spectrum=values,
        leading=rows,
        mean=artifact.mean,
        manifest={
            **facts,
            **{name: artifact.manifest[name] for name in ("total_variance",) if name in artifact.manifest},
            "warnings": [*(artifact.manifest.get("warnings") or ()), text],
            "outcome": {**outcome_of(shown), **kept},
        },
    )


def _unrefined(artifact: PrivateSubspace) -> PrivateSubspace:
    """Return the release before its refinement, with all stored directions."""
    if artifact.leading is None:
        return artifact
    outcome = {**artifact.outcome, "refined_by": "none"}
    return PrivateSubspace(
        components=artifact.leading,
        eigenvalues=artifact.spectrum,
        spectrum=artifact.spectrum,
        mean=artifact.mean,
        manifest={
            **{name: fact for name, fact in artifact.manifest.items() if name != "n_components"},
            "outcome": outcome,
        },
    )


def _restated(artifact: PrivateSubspace, *, method: str, parent: str) -> dict[str, Any]:
    facts = {
        name: fact
        for name, fact in artifact.manifest.items()
        if name not in ("n_components", "outcome", "total_variance", "warnings")
    }
    return {**facts, "parameters": {**facts.get("parameters", {}), "refine": method}, "parent": parent}


def _total(artifact: PrivateSubspace) -> float | None:
    total = artifact.manifest.get("total_variance")
    return None if total is None else float(total)


def _checked(artifact: PrivateSubspace, n_components: int) -> int:
    if not 1 <= n_components <= artifact.n_features:
        raise Refused(
            f"{n_components} components were requested, but this release contains "
            f"{artifact.n_features} directions; request 1 to {artifact.n_features}."
        )
    return n_components


def _noise_of(artifact: PrivateSubspace) -> tuple[float, float]:
    """Return the std of the noise off the diagonal, and the noise edge.

    Both come from the artifact, or else from a repeated plan of its release.

    Raises
    ------
    Refused
        When the release had no noisy symmetric matrix, or this version would plan different noise for it.
    """
    outcome = artifact.outcome
    if "noise" in outcome and outcome.get("noise_edge") is not None:
        return float(outcome["noise"]["std"]), float(outcome["noise_edge"])
    plan = _planned_again(artifact.manifest, n_features=artifact.n_features)
    declared = artifact.manifest.get("plan", {}).get("noise_multiplier")
    if (
        plan is None
        or plan.moment_std is None
        or declared is None
        or abs(plan.noise_multiplier - declared) > 1e-9 * declared
    ):
        raise Refused("this release states no noise on a symmetric matrix, which refinement requires; use refine=none.")
    square = float(artifact.manifest["clip_norm"]) ** 2
    std = plan.moment_std * square
    return std, semicircle_edge(artifact.n_features, std=std) if plan.noise_edge is None else plan.noise_edge * square


def _planned_again(manifest: Mapping[str, Any], *, n_features: int) -> Plan | None:
    """Repeat the plan of an artifact's release; None where the manifest does not determine the noise."""
    name, privacy, noise = manifest.get("mechanism"), manifest.get("privacy", {}), manifest.get("plan", {})
    kind = MECHANISMS.get(str(name))
    if kind is None:
        return None
    settings = {**manifest.get("parameters", {}), "n_components": 1}
    settings.pop("refine", None)
    mechanism: Mechanism[Subspace] = kind(**settings)
    if "clip_quantile" in noise:
        mechanism = QuantileClip(mechanism=mechanism, quantile=noise["clip_quantile"])
    if "hold_if_rejected" in noise:
        mechanism = RejectedShare(mechanism=mechanism)
    problem = Problem(
        n_features=n_features,
        clip_norm=float(manifest["clip_norm"]),
        center=noise.get("center", "none"),
        relation=privacy["relation"],
        records_at_most=privacy["records_at_most"],
    )
    target = PrivacyTarget(epsilon=privacy["epsilon"], delta=privacy["delta"], allow_large_delta=True)
    return mechanism.plan(problem, target)
