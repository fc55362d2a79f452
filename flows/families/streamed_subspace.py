"""The version of a tick: the estimate of all kept answers, aligned with the tick before, as a private subspace.

Everything here is post-processing of answers that were released and kept; no row is read.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.streams.stream_estimate import (
    align,
    coefficients,
    combined,
    contrast_of,
    measure_drift,
    streamed_subspace,
)
from dpca_tasks.mechanisms.streams.stream_ticks import tick_noise
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.refinement.refined_release import RefinedRelease, refine_release
from flows.families.base import code_version
from flows.families.stated_subspace import state_subspace
from flows.families.stream_terms import StreamTerms
from storage.artifacts.subspace import PrivateSubspace
from storage.ledger.stream_rows import Stream, Tick

FIRST_TESTED = 8
"""The first tick with a test for drift: a quarter of the answers is then two of them."""

type Answers = Mapping[int, NDArray[np.int64]]
"""The kept answers by tick, packed integers; each is read when it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Versions of earlier ticks that a version is compared with, and the energies that earlier ones stated.

    Attributes
    ----------
    before : PrivateSubspace or None, the version of the last tick that has one
    halfway : PrivateSubspace or None, the version of tick t // 2, whose directions are tested for drift
    """

    before: PrivateSubspace | None = None
    halfway: PrivateSubspace | None = None


def state_tick(
    terms: StreamTerms,
    stream: Stream,
    ticks: Sequence[Tick],
    answers: Answers,
    *,
    earlier: Earlier,
    epsilon: float,
    feature_names: Sequence[str] | None,
) -> PrivateSubspace:
    """State the version of the last of some ticks.

    Parameters
    ----------
    terms : StreamTerms
    stream : Stream
    ticks : sequence of Tick
        All ticks up to it.
    answers : mapping
    earlier : Earlier
    epsilon : float
        Of all ticks that are charged.
    feature_names : sequence of str, optional
    """
    tick, kept = ticks[-1], [number for number in answers if number <= ticks[-1].tick]
    query = terms.query(tick.tick, tuple(each.number for each in ticks))
    multipliers = coefficients(terms.weights, kept=kept, **terms.answer)
    energies: list[float] = []
    packed = combined(_read(answers, kept, query, energies), multipliers)
    estimate = unpack_symmetric(packed * _step(query), query.layout.order)
    noise = tick_noise(terms.plan, query)
    problem, count = terms.plan.problem, int(terms.facts["components"])
    found = streamed_subspace(estimate, problem, noise=noise, multipliers=multipliers, n_components=count)
    refined = refine_release(found, n_components=count, method=terms.facts["refine"])
    turned, told = _aligned(terms, refined, earlier.before)
    drift = _drift(terms, query, answers, kept, energies, earlier.halfway, noise_std=float(noise["std"]))
    missing = [number for number in range(1, tick.tick + 1) if number not in kept]
    artifact = state_subspace(
        turned,
        raw=found,
        keep_matrix=0.0,
        warnings=_warnings(terms, tick, missing, told),
        manifest={
            **({} if feature_names is None else {"feature_names": list(feature_names)}),
            "mechanism": terms.plan.mechanism,
            "parameters": _parameters(terms),
            "code_version": code_version(),
            "plan": {
                **{"noise_multiplier": terms.plan.noise_multiplier, "grid_bits": terms.plan.bits},
                **{"row_policy": terms.facts["row_policy"], "center": problem.center},
                "stream": {**lineage(terms, stream, tick), "factor": factor(terms, multipliers), "missing": missing},
            },
            "privacy": {
                **{"epsilon": epsilon, "delta": terms.facts["delta"], "relation": problem.relation},
                **terms.unit.facts,
                **{"statement": terms.statement(epsilon), "records_at_most": problem.records_at_most},
                "event": {
                    **{"name": "stream_tick", "stream": stream.id, "tick": tick.tick},
                    "noise_multiplier": terms.plan.noise_multiplier,
                },
            },
            "release": tick.release_id,
            "clip_norm": problem.clip_norm,
        },
    )
    more = {"alignment": told, **({} if drift is None else {"drift": drift})}
    return replace(artifact, manifest={**artifact.manifest, "outcome": {**artifact.outcome, **more}})


def lineage(terms: StreamTerms, stream: Stream, tick: Tick) -> dict[str, Any]:
    """Return what a version states of its stream and its tick, from which a restored ledger gets the tick back."""
    return {
        **{"id": stream.id, "fingerprint": stream.fingerprint, "strategy": terms.weights.strategy},
        **{"tick": tick.tick, "ticks": stream.ticks, "slot": tick.slot, "snapshot_id": tick.snapshot_id},
        **{"number": tick.number, "arrivals": tick.arrivals, "answer": tick.answer},
    }


def factor(terms: StreamTerms, multipliers: NDArray[np.float64]) -> float:
    """Return the std of an estimate over that of one release with all of the stream's privacy.

    Where records are replaced, a single release has root two of its sensitivity, and weights with signs more than that.
    """
    weights, replaced = terms.weights, terms.plan.problem.relation == "replace_one"
    squared = weights.replaced_squared(terms.horizon) / 2 if replaced else weights.zeta_squared(terms.horizon)
    return math.sqrt(float(squared)) * float(np.linalg.norm(multipliers))


def _read(
    answers: Answers, kept: Sequence[int], query: StreamedMoment, energies: list[float]
) -> Iterator[NDArray[np.int64]]:
    """Read the answers in order, and take down the trace of each."""
    order = query.layout.order
    diagonal = np.concatenate([[0], np.cumsum(np.arange(order, 1, -1))])[: query.n_features]
    for tick in kept:
        answer = answers[tick]
        energies.append(float(answer[diagonal].sum()) * _step(query))
        yield answer


def _step(query: StreamedMoment) -> float:
    return float(query.unit / query.steps_per_unit)


def _aligned(
    terms: StreamTerms, refined: RefinedRelease, before: PrivateSubspace | None
) -> tuple[RefinedRelease, dict[str, Any]]:
    """Turn the components of a version toward those of the one before; return what is stated of that."""
    method = terms.facts["align"]
    if before is None or before.components.shape != refined.subspace.components.shape:
        return refined, {"method": method, "with": None}
    found = align(refined.subspace.components, before.components, method=method)
    told = {"method": method, "with": before.manifest["release"], "cosines": found.cosines.tolist()}
    told |= {"rotation": found.rotation.tolist(), "broke": found.broke}
    return replace(refined, subspace=replace(refined.subspace, components=found.components)), told


def _drift(
    terms: StreamTerms,
    query: StreamedMoment,
    answers: Answers,
    kept: Sequence[int],
    energies: Sequence[float],
    halfway: PrivateSubspace | None,
    *,
    noise_std: float,
) -> dict[str, Any] | None:
    """Test whether what came in the last quarter of the ticks is like what came in the quarter before.

    The directions are those of the version halfway, whose noise the later answers do not have. Arrivals are counted by
    their energy, the trace of what came: noise on traces is independent of the noise on what is tested.
    """
    tick = kept[-1]
    if halfway is None or tick < FIRST_TESTED:
        return None
    before, change = tick // 2, (tick // 2 + tick) // 2
    if sum(before < number <= change for number in kept) < 2 or sum(number > change for number in kept) < 2:
        return None
    arrived = np.maximum(_arrivals(terms.weights.series, kept, energies), 0.0) / query.clip_norm**2
    try:
        contrast = contrast_of(terms.weights, kept=kept, before=before, change=change, counts=arrived.tolist())
    except InvalidInput:  # too little arrived in one of the quarters to tell them apart
        return None
    packed = combined((answers[number] for number in contrast.ticks), contrast.multipliers)
    difference = unpack_symmetric(packed * _step(query), query.layout.order)
    inner = difference[: query.n_features, : query.n_features]
    found = measure_drift(inner, halfway.components, contrast, noise_std=noise_std, clip_norm=query.clip_norm)
    told = {"statistic": found.statistic, "degrees": found.degrees, "rho": found.rho, "p": found.p}
    return {**told, "directions_of_tick": before, "change_after_tick": change}


def _arrivals(series: NDArray[np.float64], kept: Sequence[int], energies: Sequence[float]) -> NDArray[np.float64]:
    """Return the energy that came at each tick, from those of the answers: what older arrivals have in it taken off."""
    arrived, weights = np.zeros(kept[-1]), np.zeros(kept[-1] + 1)
    weights[: min(len(series), len(weights))] = series[: len(weights)]
    for tick, energy in zip(kept, energies, strict=True):
        arrived[tick - 1] = energy - weights[1:tick][::-1] @ arrived[: tick - 1]
    return arrived


def _parameters(terms: StreamTerms) -> dict[str, Any]:
    names = ("refine", "align", "strategy", "answer", "window", "half_life", "schedule")
    return {"n_components": terms.facts["components"], **{name: terms.facts[name] for name in names}}


def _warnings(terms: StreamTerms, tick: Tick, missing: Sequence[int], told: Mapping[str, Any]) -> list[str]:
    found = list(terms.plan.warnings)
    if terms.facts["unit"] == "rows":
        found.append(
            "the unit of privacy is a row of one night: nothing tells whose rows they are, so somebody with rows of "
            "many nights is protected for each of them, not for all; ingest with ids to protect people."
        )
    if tick.arrivals == "unknown":
        found.append(
            "when records came is not known any more, so all count as there from tick 1: as private, and newcomers "
            "are undercounted; open a new stream to count them in full."
        )
    if missing:
        found.append(f"answers of {len(missing)} ticks are missing, and the estimate is made without them.")
    if told.get("broke"):
        found.append("coordinates broke: some direction has no counterpart in the version before.")
    return found
