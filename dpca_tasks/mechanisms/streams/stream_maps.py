"""Public maps of a stream's ticks: their choice from released answers, and estimates from answers under several maps.

A tick is a period, after which the stream releases one noisy answer. The query of a tick may subtract a public mean
from records, multiply them by a public map, and clip the result at a small norm, as a round of
`dpca_tasks.mechanisms.released_rounds` does. The noise of the tick is proportional to the square of this norm. The map
of a tick comes from an earlier release, or from earlier answers of the stream. The proof of
`dpca_tasks.queries.streamed_moment` allows any map that depends on answers alone. So maps do not change the charge of
the stream.

A constant is appended to each mapped row. A public matrix L converts the rows of a tick to rows under the map and the
mean of the last tick. So an answer B is converted to ``L B L^T``. Estimates add the converted answers with the usual
multipliers.

>>> problem = Problem(n_features=3, clip_norm=2.0)
>>> tick = TickMap.none(problem)
>>> mapped_query(problem, bits=8, tick=tick).unit == 4.0 * (1 + 1 / 15)
True
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Problem, Subspace
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.mechanisms.released_rounds import round_facts
from dpca_tasks.mechanisms.warm_start import Start
from dpca_tasks.queries.mapped_moment import NEXT, MappedMoment, norm_of
from dpca_tasks.queries.recentred_moment import SHIFT_STEP, on_shift_grid
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.refined_rounds import Rounds
from dpca_tasks.refinement.rounds import LEAST_KEPT, Answer, Estimate, begun, proposed

type Matrix = NDArray[np.float64]

ENERGY = "energy"
"""The name under which `TickMap.energy` is stored with the public arrays of a tick's query."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TickMap:
    """The public inputs of one tick (period) of a stream: a map, a clip norm for mapped records, and a mean.

    Parameters
    ----------
    map : PublicMap
    norm : float, clip norms
        The norm at which mapped records are clipped.
    shift : int64 array of shape (d,), optional
        The mean in steps of ``2^-16`` clip norms, if the problem is centred.
    energy : float, squared clip norms, optional
        The expected mean squared norm of mapped records; None if no record can be clipped.
    """

    map: PublicMap
    norm: float = 1.0
    shift: NDArray[np.int64] | None = None
    energy: float | None = None

    @classmethod
    def none(cls, problem: Problem) -> "TickMap":
        """Return the inputs of a tick (period) without a map; the subtracted mean, if any, is zero."""
        shift = np.zeros(problem.n_features, np.int64) if problem.center == "private" else None
        return cls(map=PublicMap.identity(problem.n_features), shift=shift)

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "TickMap":
        """Return the inputs of a tick from the public arrays of its query."""
        energy = arrays.get(ENERGY)
        return cls(
            map=PublicMap(directions=arrays["directions"], reductions=arrays["reductions"]),
            norm=float(arrays["norm"][0]),
            shift=arrays.get("shift"),
            energy=None if energy is None else float(energy[0]),
        )

    @property
    def constant(self) -> float:
        """The constant that is appended to each row, in clip norms."""
        return self.norm / math.sqrt(NEXT - 1)

    @property
    def mean(self) -> Matrix | None:
        """The subtracted mean, in clip norms."""
        return None if self.shift is None else np.asarray(self.shift * SHIFT_STEP, np.float64)

    def same_as(self, other: "TickMap") -> bool:
        """Return whether two ticks have equal inputs."""
        pairs = (
            (self.map.directions, other.map.directions),
            (self.map.reductions, other.map.reductions),
            (self.shift, other.shift),
        )
        return self.norm == other.norm and all(np.array_equal(one, two) for one, two in pairs)  # type: ignore[arg-type]

    def converted_to(self, last: "TickMap") -> Matrix:
        """Return the matrix L that converts mapped rows of this tick to mapped rows of the tick ``last``.

        Mapped rows end in the constant of their tick.
        """
        order = len(self.map.directions)
        function = np.zeros((order + 1, order + 1))
        function[:order, :order] = last.map.forward(self.map.inverse(np.eye(order)))
        function[order, order] = last.constant / self.constant
        if self.mean is not None and last.mean is not None:
            function[:order, order] = last.map.forward((self.mean - last.mean)[:, None])[:, 0] / self.constant
        return function


def mapped_query(problem: Problem, *, bits: int, tick: TickMap) -> MappedMoment:
    """Return the query of one tick (period): the second moment of mapped records, and their number."""
    return MappedMoment(
        n_features=problem.n_features,
        clip_norm=problem.clip_norm,
        relation=problem.relation,
        bits=bits,
        directions=tick.map.directions,
        reductions=tick.map.reductions,
        norm=norm_of(tick.norm),
        shift=tick.shift,
        part=NEXT,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TickAnswer:
    """The noisy answer of one tick (period) of a stream.

    Parameters
    ----------
    tick : TickMap
    released : float64 array of shape (d + 1, d + 1), squared clip norms
    noise_std : float, squared clip norms
        The standard deviation of the off-diagonal noise in ``released``.
    """

    tick: TickMap
    released: Matrix
    noise_std: float

    @property
    def records(self) -> float:
        """The noisy weighted number of records in the answer."""
        return float(self.released[-1, -1]) / self.tick.constant**2

    @property
    def kept(self) -> float:
        """The estimated share of the sum of squared norms of mapped records that clipping keeps."""
        if self.tick.energy is None:
            return 1.0
        energy = float(np.trace(self.released[:-1, :-1]))
        return min(max(energy / (max(self.records, 1.0) * self.tick.energy), LEAST_KEPT), 1.0)


def combined_answer(answers: Iterable[TickAnswer], multipliers: Matrix, *, last: TickAnswer, step: float) -> Answer:
    """Return the sum of a stream's answers times multipliers, under the map and mean of the last tick (period).

    Parameters
    ----------
    answers : iterable of TickAnswer
        The answers in the order of the multipliers; one is in memory at a time.
    multipliers : float64 array
    last : TickAnswer
        The last of the answers.
    step : float, squared clip norms
        The grid step of the last answer.

    Notes
    -----
    Every answer sums over all records so far, clipped after the map of its tick. Clipping keeps a different share of
    the squared norms in each tick. So an earlier answer is multiplied by the share of the last tick, divided by the
    share of its own tick.

    After conversion by L (`TickMap.converted_to`), the noise of an answer with an earlier map is not isotropic. Its
    variance is taken as the mean over all entries: the old variance times ``((tr K)^2 + |K|^2) / (d (d + 1))``, where
    ``K = L L^T``.
    """
    order, kept = len(last.tick.map.directions), last.kept
    total, variance = np.zeros((order + 1, order + 1)), 0.0
    for answer, multiplier in zip(answers, multipliers, strict=True):
        released, ratio, spread = answer.released, kept / answer.kept, 1.0
        if not answer.tick.same_as(last.tick):
            function = answer.tick.converted_to(last.tick)
            released = function @ released @ function.T
            gram = function[:order, :order] @ function[:order, :order].T
            spread = (np.trace(gram) ** 2 + float(np.square(gram).sum())) / (order * (order + 1.0))
        total[:order, :order] += multiplier * ratio * released[:order, :order]
        total[order] += multiplier * released[order]
        variance += (multiplier * ratio * answer.noise_std) ** 2 * spread
    total[:order, order] = total[order, :order]
    return Answer(
        released=(total + total.T) / 2.0,
        noise_std=math.sqrt(variance),
        map=last.tick.map,
        clip_norm=last.tick.norm,
        constant=last.tick.constant,
        step=step,
    )


def first_map(problem: Problem, start: Start | None, *, n_components: int, noise_std: float) -> TickMap:
    """Return the public inputs of a stream's first tick (period), from an earlier release or without a map.

    Parameters
    ----------
    problem : Problem
    start : Start, optional
    n_components : int
    noise_std : float, squared clip norms
        The standard deviation of an answer's off-diagonal noise, if mapped records were clipped at norm 1.
    """
    if start is None:
        return TickMap.none(problem)
    estimate = start.estimate(clip_norm=problem.clip_norm, centred=problem.center == "private")
    return _proposed(estimate, n_components=n_components, noise_std=noise_std)


def next_map(answer: Answer, last: TickAnswer, *, n_components: int, noise_std: float) -> TickMap:
    """Return the public inputs of a stream's next tick (period), from the combined answer of all ticks so far."""
    kept, matrix = last.kept, answer.released.copy()
    matrix[:-1, :-1] /= kept
    whole = dataclasses.replace(answer, released=matrix, noise_std=answer.noise_std / kept)
    estimate = _around(whole, last.tick)
    if estimate.mean is not None:
        estimate = dataclasses.replace(estimate, mean=estimate.mean / max(1.0, float(np.linalg.norm(estimate.mean))))
    return _proposed(estimate, n_components=n_components, noise_std=noise_std)


def _proposed(estimate: Estimate, *, n_components: int, noise_std: float) -> TickMap:
    found = proposed(estimate, n_components=n_components, noise_std=noise_std)
    return TickMap(
        map=found.map,
        norm=found.clip_norm,
        shift=None if estimate.mean is None else on_shift_grid(estimate.mean),
        energy=None if found.energy is None else found.energy / estimate.n_records,
    )


def _around(answer: Answer, last: TickMap) -> Estimate:
    """Return the estimate from a combined answer; its mean is relative to the origin, not to the subtracted mean."""
    estimate = begun(answer, centred=last.mean is not None)
    if estimate.mean is None or last.mean is None:
        return estimate
    return dataclasses.replace(estimate, mean=last.mean + estimate.mean)


def mapped_subspace(answer: Answer, problem: Problem, *, last: TickMap, n_components: int, like: str) -> Subspace:
    """Return the leading directions of a combined answer, with the facts that its post-processing needs.

    ``like`` names the source of the map in the ``outcome``.
    """
    unit = problem.clip_norm**2
    estimate = _around(answer, last)
    mean = None if estimate.mean is None else estimate.mean * problem.clip_norm
    found = decompose(Moment(matrix=estimate.matrix * unit, mean=mean), n_components=n_components)
    facts = {**round_facts(estimate, [answer], shares=[1.0]), "like": like}
    rounds = Rounds(answers=(answer,), unit=unit, centred=mean is not None)
    return dataclasses.replace(found, outcome={"rounds": facts}, rounds=rounds)
