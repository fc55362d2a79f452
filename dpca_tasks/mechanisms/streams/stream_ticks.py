"""The plan of a stream, and the noisy release of each tick.

A tick is a period, such as a day, after which the stream releases one noisy answer. The whole stream is one Gaussian
event, charged once. The std of the noise is z times the joint sensitivity of all ticks, so the sequence of all answers
has the cost of the event ``gaussian(z)``. Each tick is a `Curator.release` step of this event. Each tick has a separate
key, which is deleted when the tick is erased.

>>> from dpca_tasks.accounting.factorisation import choose_weights
>>> problem, target = Problem(n_features=123, clip_norm=1.0), PrivacyTarget(epsilon=1.0, delta=1e-6)
>>> year = choose_weights("sqrt", ticks=365)
>>> plan = plan_stream(problem, target, weights=year, ticks=365, n_components=10)
>>> plan.event == {"name": "gaussian", "noise_multiplier": plan.noise_multiplier}, plan.bits
(True, 9)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.factorisation import LONGEST, Weights
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, check_request, grid_warnings
from dpca_tasks.mechanisms.noise_level import least_visible, semicircle_edge
from dpca_tasks.mechanisms.released_moment import moment_query, noise_facts
from dpca_tasks.mechanisms.released_rounds import check_size
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from dpca_tasks.mechanisms.streams.stream_maps import TickMap, mapped_query
from dpca_tasks.noise.distributions import Symmetric, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.mapped_moment import MappedMoment
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment

NAME = "stream"
"""The mechanism name in plans of streams."""


def plan_stream(
    problem: Problem, target: PrivacyTarget, *, weights: Weights, ticks: int, n_components: int, mapped: bool = False
) -> Plan:
    """Plan the noise, the privacy event and the grid of a stream, which releases one noisy answer per tick (period).

    Parameters
    ----------
    problem : Problem
        The public facts. With ``center="private"``, mean and count are estimated from the same answers.
    target : PrivacyTarget
        The guarantee of all ticks together.
    weights : Weights
        The weights with which each answer sums the second moments of all records that have arrived so far.
    ticks : int
        The number of ticks that the charge covers. If one charge covers an endless stream, the number is used only for
        the forecast.
    n_components : int
        The number k of directions in each estimate.
    mapped : bool
        Whether ticks multiply records by public maps (`dpca_tasks.mechanisms.streams.stream_maps`).

    Returns
    -------
    Plan
        ``moment_std`` describes the noise of one answer. ``noise_edge`` and ``level`` describe the estimate at the last
        tick.
    """
    check_request(problem, target, n_components=n_components)
    if mapped:
        check_size(problem, setting="a map")
    noise = Symmetric(noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta))
    moment = _moment(problem, bits=1, inputs=TickMap.none(problem) if mapped else None)
    coarse = StreamedMoment.of_moment(moment, weights=weights, horizon=ticks, tick=1, arrivals=(0,))
    check_tail(
        noise, draws=coarse.layout.size * (max(ticks, LONGEST) if weights.endless else ticks), delta=target.delta
    )
    scale = noise.noise_multiplier * coarse.sensitivity(noise.norm)
    bits = grid_bits(noise_std=max(scale, 1.0) * 2.0**weights.bits, degree=coarse.degree)
    unit, off_diagonal = coarse.unit / problem.clip_norm**2, scale * noise.off_diagonal
    last = off_diagonal * unit * float(np.linalg.norm(coefficients(weights, kept=range(1, ticks + 1))))
    level = last * least_visible(problem.n_features)
    return Plan(
        mechanism=NAME,
        problem=problem,
        target=target,
        noise_multiplier=noise.noise_multiplier,
        bits=bits,
        event=noise.event,
        notes=(
            *forecast(problem, n_components=n_components, level=level).warnings(),
            *grid_warnings(problem, bits=bits),
        ),
        noise_edge=semicircle_edge(problem.n_features, std=last),
        moment_noise="isometric",
        moment_std=off_diagonal * unit,
        level=level,
    )


def tick_query(
    plan: Plan,
    *,
    weights: Weights,
    horizon: int,
    tick: int,
    arrivals: tuple[int, ...],
    inputs: TickMap | None = None,
) -> StreamedMoment:
    """Return the query of one tick of a planned stream.

    ``horizon`` is the planned number of ticks (periods). ``arrivals`` are the ingest numbers of the snapshots of ticks
    1 to ``tick``, as in `dpca_tasks.queries.streamed_moment.StreamedMoment`. If the stream has maps, ``inputs`` holds
    the map, clip norm and mean of the tick.
    """
    moment = _moment(plan.problem, bits=plan.bits, inputs=inputs)
    return StreamedMoment.of_moment(moment, weights=weights, horizon=horizon, tick=tick, arrivals=arrivals)


def norm_one_std(plan: Plan, query: StreamedMoment) -> float:
    """Return the std that the noise of a stream's answer would have if mapped records were clipped at norm 1.

    The std is in squared clip norms.
    """
    norm = query.of.norm[0] if isinstance(query.of, MappedMoment) else 1.0
    std = float(tick_noise(plan, query)["std"])
    return std / float(plan.problem.clip_norm * norm) ** 2


def release_tick(curator: Curator, plan: Plan, query: StreamedMoment) -> NDArray[np.float64]:
    """Release the noisy answer of one tick of a stream, as a step of the plan's event.

    Returns
    -------
    float64 array, data units
        The noisy weighted second moment of all records that have arrived so far, as a full matrix.
    """
    return curator.release(query, Symmetric(noise_multiplier=plan.noise_multiplier))


def tick_noise(plan: Plan, query: StreamedMoment) -> dict[str, Any]:
    """Return the public facts about the noise of a stream's answer, with the keys of ``noise`` in a `Subspace`."""
    return noise_facts(query, Symmetric(noise_multiplier=plan.noise_multiplier), plan.problem)


def _moment(problem: Problem, *, bits: int, inputs: TickMap | None) -> SecondMoment | CentredMoment | MappedMoment:
    return moment_query(problem, bits=bits) if inputs is None else mapped_query(problem, bits=bits, tick=inputs)
