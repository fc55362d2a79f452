"""Streams whose ticks (versions) apply a public linear map to the rows before the noise is added.

This module computes the map of each tick, and the estimate from answers under several maps.

The first tick takes its map from an earlier release (``like``), or has none. With ``maps=doubling``, ticks 2, 4, 8, ...
take a new map from the answers so far. Every other tick uses the map of the previous tick. Each answer is stored with
its public inputs, from which later ticks read the maps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.factorisation import Weights
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import Plan, Subspace
from dpca_tasks.mechanisms.streams.stream_estimate import Contrast, Drift, coefficients, measure_drift
from dpca_tasks.mechanisms.streams.stream_maps import (
    TickAnswer,
    TickMap,
    combined_answer,
    first_map,
    mapped_query,
    mapped_subspace,
    next_map,
)
from dpca_tasks.mechanisms.streams.stream_ticks import norm_one_std, tick_query
from dpca_tasks.refinement.rounds import Answer
from flows.families.warm_starts import Parent
from storage.ledger.stream_rows import Answers

DOUBLING = "doubling"
_LONG = 1 << 10
"""The largest number of ticks for which the map of the first tick is designed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedEstimate:
    """The directions of a stream's estimate, with facts about the ticks (versions) whose answers it combines.

    Attributes
    ----------
    subspace : Subspace
    records : list of float, the noisy weighted number of records in each answer
    first : int, the earliest tick such that it and all later ticks have the map of the last tick
    """

    subspace: Subspace
    records: list[float]
    first: int


@dataclass(frozen=True, kw_only=True)
class MappedStream:
    """The noisy answers of a stream whose ticks apply linear maps, and the terms that determine maps and estimates.

    Attributes
    ----------
    plan : Plan
    weights : Weights
    horizon : int
    answer : dict, kind of estimate, as keyword arguments of `coefficients`
    components : int
    like : str or None, the earlier release as NAME@VERSION, and its digest
    noise_of_like : float, std of the noise of the earlier release, divided by its number of records, in squared clip
        norms; infinite without an earlier release
    doubling : bool
    answers : Answers
    """

    plan: Plan
    weights: Weights
    horizon: int
    answer: dict[str, Any]
    components: int
    like: tuple[str, str] | None
    noise_of_like: float
    doubling: bool
    answers: Answers

    def map_of(self, tick: int) -> TickMap:
        """Return the map of a tick, from the earlier release or from the answers of earlier ticks."""
        kept = [number for number in self.answers if number < tick]
        if not kept:
            return self._first_map()
        last = self._read(kept[-1])
        if not self.doubling or tick & (tick - 1):
            return last.tick
        multipliers = self._multipliers(kept)
        found = self._combined(map(self._read, kept), multipliers, last=last)
        records = max(float(found.released[-1, -1]) / found.constant**2, 1.0)
        if found.noise_std / records >= self.noise_of_like:
            return last.tick  # the earlier release is still more accurate
        spread = float(np.linalg.norm(multipliers))
        return next_map(found, last, n_components=self.components, noise_std=self._one_std * spread)

    def estimate(self, kept: Sequence[int]) -> MappedEstimate:
        """Return the estimate at the last of the ticks ``kept``; the last answer is read twice, the others once."""
        last, records, first = self._read(kept[-1]), list[float](), kept[-1]

        def read() -> Iterator[TickAnswer]:
            nonlocal first
            is_last = False
            for tick in kept:
                answer = self._read(tick)
                records.append(answer.records)
                first, is_last = (first if is_last else tick), answer.tick.same_as(last.tick)
                yield answer

        found = self._combined(read(), self._multipliers(kept), last=last)
        like = "earlier ticks" if self.like is None else self.like[0]
        count = self.components
        subspace = mapped_subspace(found, self.plan.problem, last=last.tick, n_components=count, like=like)
        return MappedEstimate(subspace=subspace, records=records, first=first)

    def drift(self, components: NDArray[np.float64], contrast: Contrast) -> Drift:
        """Test whether the rows along these directions changed between the groups of ticks of a contrast.

        All ticks of the contrast have the same map. The test is made on mapped rows, where the noise is isotropic.
        """
        difference = np.zeros((self.plan.problem.n_features,) * 2)
        for tick, multiplier in zip(contrast.ticks, contrast.multipliers, strict=True):
            answer = self._read(tick)
            difference += multiplier * answer.released[:-1, :-1]
        turned = np.linalg.qr(answer.tick.map.forward(components.T))[0].T
        return measure_drift(difference, turned, contrast, noise_std=answer.noise_std, clip_norm=answer.tick.norm)

    def _first_map(self) -> TickMap:
        start = None if self.like is None else Parent.pinned(*self.like).start()
        ticks = range(1, min(self.horizon, _LONG) + 1)
        spread = float(np.linalg.norm(self._multipliers(ticks)))
        return first_map(self.plan.problem, start, n_components=self.components, noise_std=self._one_std * spread)

    def _multipliers(self, kept: Sequence[int]) -> NDArray[np.float64]:
        return coefficients(self.weights, kept=kept, **self.answer)

    def _combined(self, answers: Iterable[TickAnswer], multipliers: NDArray[np.float64], *, last: TickAnswer) -> Answer:
        return combined_answer(answers, multipliers, last=last, step=self._step(last.tick))

    def _read(self, tick: int) -> TickAnswer:
        """Read the answer of a tick, in squared clip norms."""
        packed, arrays = self.answers.read(tick)
        inputs, order = TickMap.of(arrays), self.plan.problem.n_features + 1
        released = unpack_symmetric(np.asarray(packed * self._step(inputs), np.float64), order)
        return TickAnswer(tick=inputs, released=released, noise_std=self._one_std * inputs.norm**2)

    def _step(self, inputs: TickMap) -> float:
        """Return the grid step of an answer, in squared clip norms."""
        problem = self.plan.problem
        query = mapped_query(problem, bits=self.plan.bits, tick=inputs)
        return float(query.unit / (query.steps_per_unit << self.weights.bits) / problem.clip_norm**2)

    @cached_property
    def _one_std(self) -> float:
        """The std of the noise, in squared clip norms, of an answer whose mapped records are clipped at norm 1."""
        none = TickMap.none(self.plan.problem)
        query = tick_query(self.plan, weights=self.weights, horizon=self.horizon, tick=1, arrivals=(0,), inputs=none)
        return norm_one_std(self.plan, query)
