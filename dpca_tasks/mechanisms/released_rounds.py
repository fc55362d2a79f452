"""Plan and release of a second moment in rounds, where each round uses earlier answers to need less noise.

For the target's (epsilon, delta), let mu be the parameter of the equivalent Gaussian DP. Round 1 takes a small share of
mu^2. It releases a rough second moment and the number of records, and also their mean if the problem is centred. Each
further round subtracts the mean from the records, multiplies them by a public map that shrinks the directions found so
far, and clips them at a smaller norm (`dpca_tasks.refinement.rounds`). The smaller norm reduces the noise. The map, the
mean and the norm are computed from earlier answers. They are public inputs of the round's query
(`dpca_tasks.queries.mapped_moment`).

*Privacy.* The plan fixes the noise multiplier z of each round. Given the earlier answers, a round is a Gaussian answer
whose sensitivity is at most 1 / z, in units of its noise. So the round is (1 / z)-GDP, whatever its map, mean and norm
are. The adaptive composition of such answers is Gaussian, and the squares of 1 / z add up. The shares of mu^2 add up to
1, so all rounds together cost as much as one Gaussian release. One event reserves all rounds before the first round.

>>> problem, target = Problem(n_features=123, clip_norm=1.0), PrivacyTarget(epsilon=1.0, delta=1e-6)
>>> plan = plan_rounds("analyze_gauss", problem, target, round_noises(target, rounds=3), n_components=10)
>>> [step["name"] for step in steps(plan.event)], round(plan.epsilon_at_most, 9)
(['gaussian', 'gaussian', 'gaussian'], 1.0)

*Forecast.* A release computes the map from noisy answers of earlier rounds. The forecast of the last round computes the
map from the exact strengths of all components instead, and applies the same rules for the map, the clip norm and the
noise. The energy (sum of squared norms) that clipping removes depends on the norms of single records, which a spectrum
does not describe. So the part of the energy that clipping keeps is an argument, ``kept``.

>>> strengths = 20_000.0 * 0.6 ** np.arange(30)
>>> stds = [950.0, 550.0, 390.0]
>>> last = last_round(strengths, n_components=4, noise_stds=stds, n_records=50_000.0, centred=False, kept=0.9)
>>> last.factors[:6].round(2).tolist(), round(last.noise_std)
([0.42, 0.55, 0.71, 1.0, 1.0, 1.0], 153)

References
----------
Dong, Roth and Su (2022), Gaussian differential privacy, Corollary 3.3; the martingale in the notes of
`dpca_tasks.queries.streamed_moment` proves adaptive composition.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import Event, composed, steps
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.forecast.noise_forecast import forecast, spectrum_shares
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace, grid_warnings
from dpca_tasks.mechanisms.noise_level import edge_quantile, least_visible, semicircle_edge, widened_edge
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.noise.distributions import Symmetric, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.mapped_moment import FIRST_CENTRED, NEXT, MappedMoment, norm_of
from dpca_tasks.queries.recentred_moment import on_shift_grid
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.refined_rounds import Rounds
from dpca_tasks.refinement.rounds import (
    USELESS,
    WIDEST,
    Answer,
    Estimate,
    Proposal,
    begun,
    best_rounds,
    continued,
    factor_for,
    factors_of,
    proposed,
)

SHARES = {
    2: (Fraction(1, 5), Fraction(4, 5)),
    3: (Fraction(1, 10), Fraction(3, 10), Fraction(3, 5)),
}
"""The share of mu^2 that each round takes, by the number of rounds."""
STORED = ("clip_norm", "constant", "energy", "noise_std", "step")
"""The attributes of each `Answer` that a release publishes as lists, so that the post-processing can be repeated."""
CLIPPED, BLURRED = 0.7, 3.0
"""Assumptions of forecasts: the least share of the sum of squared norms that remains after clipping, and the factor by
which the error of a released mean increases the noise of round 1."""
FIRST_CONSTANT = math.sqrt(1.0 / 3.0)
"""The constant that is appended to each record in round 1 if the mean is released, in clip norms."""
REACH = 2.0
"""The largest clip norm of a record from which a mean was subtracted, in clip norms of the original records."""
LARGEST = 1 << 46
"""The largest ``n d^2`` for which sparse rows are made dense.

Here n is the public bound on the number of records, and d the number of columns.
"""

type Vector = NDArray[np.float64]
type Ask = Callable[[MappedMoment, Symmetric, float | None], Answer]
"""A function that releases the answer of a round, from its query, its noise, and its `Proposal.energy`."""


def planned_rounds(problem: Problem, target: PrivacyTarget, *, n_components: int) -> int:
    """Return the best number of rounds for ``n_components`` components, from public facts alone.

    The number is 1 if the rows are too many and too wide to be made dense, which rounds require.
    """
    if problem.records_at_most * problem.n_features**2 > LARGEST:
        return 1
    return best_rounds(n_components, epsilon=target.epsilon, centred=problem.center == "private")


def check_count(rounds: int | str) -> None:
    """Refuse a number of rounds for which no shares of the budget are defined."""
    if rounds not in (1, *SHARES):
        raise InvalidInput(f"rounds={rounds!r} must be auto, 1, 2 or 3; 3 is the most accurate.")


def multiplier_together(multipliers: Iterable[float]) -> float:
    """Return the noise multiplier of one Gaussian release that costs as much as several with these multipliers."""
    return 1.0 / math.sqrt(sum(multiplier**-2 for multiplier in multipliers))


def round_noises(target: PrivacyTarget, *, rounds: int) -> list[Symmetric]:
    """Return the noise of each of several rounds, which together meet a target."""
    multipliers = [
        gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=share) for share in SHARES[rounds]
    ]
    return [Symmetric(noise_multiplier=multiplier) for multiplier in multipliers]


def plan_rounds(
    mechanism: str,
    problem: Problem,
    target: PrivacyTarget,
    noises: Sequence[Symmetric],
    *,
    n_components: int,
) -> Plan:
    """Plan a release of the second moment in two or three rounds, given the noise of each round.

    Raises
    ------
    Refused
        When the rows are too many and too wide to be made dense, which rounds require.
    """
    rounds = len(noises)
    check_size(problem, setting=f"rounds={rounds}")
    queries = [unmapped(problem, noise, first=at == 0) for at, noise in enumerate(noises)]
    check_tail(noises[-1], draws=rounds * queries[0].layout.size, delta=target.delta)
    std = 1.0 / math.sqrt(sum(noise_std(query, noise) ** -2 for query, noise in zip(queries, noises, strict=True)))
    visible = least_visible(problem.n_features)
    level = std * visible
    if problem.spectrum:
        strengths = problem.records_at_most * spectrum_shares(problem.spectrum, n_features=problem.n_features)
        *_, last = last_rounds(problem, noises, strengths, n_components=n_components)
        level = min(level, last.noise_std * visible / float(last.factors[n_components - 1]) ** 2)
    bits = min(query.bits for query in queries)
    return Plan(
        mechanism=mechanism,
        problem=problem,
        target=target,
        noise_multiplier=multiplier_together(noise.noise_multiplier for noise in noises),
        bits=bits,
        event=composed(*(noise.event for noise in noises)),
        notes=(
            *forecast(problem, n_components=n_components, level=level).warnings(),
            *grid_warnings(problem, bits=bits),
        ),
        noise_edge=semicircle_edge(problem.n_features, std=std),
        moment_noise="isometric",
        moment_std=std,
        rounds=rounds,
        level=level,
    )


def check_size(problem: Problem, *, setting: str) -> None:
    """Refuse rows that are too many and too wide to be made dense, which a map requires."""
    if problem.records_at_most * problem.n_features**2 > LARGEST:
        raise Refused(
            f"{setting} makes rows dense, and records_at_most={problem.records_at_most} rows of "
            f"n_features={problem.n_features} columns are too large for that; use rounds=1, or fewer or hashed columns."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRound:
    """The public map and the noise of the last round of a release in rounds.

    Parameters
    ----------
    factors : float64 array of shape (d,)
        The factor t by which the map multiplies each component; 1 for components that the map leaves unchanged.
    noise_std : float
        The standard deviation of noise off the diagonal, in the estimate of the mapped moment from all rounds, in
        squared clip norms.
    """

    factors: Vector
    noise_std: float


def last_rounds(
    problem: Problem, noises: Sequence[Symmetric], strengths: Vector, *, n_components: int
) -> list[LastRound]:
    """Forecast the last round of a release for components of given strengths, under two or three assumptions.

    The strengths do not determine how much clipping reduces the energy, the sum of squared norms. One forecast assumes
    that clipping keeps all energy, and another that it keeps the share `CLIPPED`. If the problem is centred, a third
    forecast also assumes `BLURRED` times the noise in round 1. The reason is the error of the released mean. This error
    is not isotropic, so a round with a small budget mistakes it for components.
    """
    centred = problem.center == "private"
    stds = [noise_std(unmapped(problem, noise, first=at == 0), noise) for at, noise in enumerate(noises)]
    return [
        last_round(
            strengths,
            n_components=n_components,
            noise_stds=[blurred * stds[0], *stds[1:]],
            n_records=problem.records_at_most,
            centred=centred,
            kept=kept,
        )
        for kept, blurred in ((1.0, 1.0), (CLIPPED, 1.0), *(((CLIPPED, BLURRED),) if centred else ()))
    ]


def last_round(
    strengths: Vector,
    *,
    n_components: int,
    noise_stds: Sequence[float],
    n_records: float,
    centred: bool,
    kept: float,
) -> LastRound:
    """Return the expected public map and noise of the last round of a release in rounds.

    Parameters
    ----------
    strengths : float64 array of shape (d,), in squared clip norms
        The eigenvalues of the second moment, around the mean if ``centred``.
    n_components : int
        The number k for which the rounds are designed.
    noise_stds : sequence of float
        For each round, the standard deviation that its noise has off the diagonal if the round's clip norm is 1.
    n_records : float
        The number of records.
    centred : bool
        Whether a released mean is subtracted from the records.
    kept : float
        The assumed part of the records' energy (the sum of their squared norms) that remains after clipping. If a
        round's clip norm permits only a smaller part, the smaller part is assumed.
    """
    order, total = len(strengths), float(strengths.sum())
    extra = order * (noise_stds[0] / FIRST_CONSTANT) ** 2 / n_records if centred else 0.0
    precision = noise_stds[0] ** -2
    found = LastRound(factors=np.ones(order), noise_std=noise_stds[0])
    for planned in noise_stds[1:]:
        factors, energy = _designed(strengths, found, n_components=n_components, total=total)
        share = (energy + extra) / n_records
        leading = np.argsort(-strengths, kind="stable")[:n_components]
        leading = leading[factors[leading] < 1.0]
        factor = factor_for(strengths[leading], factors[leading], order=order, noise_std=share * planned)
        if max(factor, 1.0) * share >= USELESS:
            factors, share = np.ones(order), (total + extra) / n_records
        noise_std = planned
        if centred or (factors < 1.0).any():  # a record that is clipped at norm c has a squared norm of at most c^2
            noise_std *= max(min(factor * share, REACH**2) / kept, share)
        precision += noise_std**-2
        found = LastRound(factors=factors, noise_std=precision**-0.5)
    return found


def _designed(strengths: Vector, last: LastRound, *, n_components: int, total: float) -> tuple[Vector, float]:
    """Return the factors of the next round's map, and the sum of squared norms of all records after this map."""
    order = len(strengths)
    above = np.flatnonzero(last.factors**2 * strengths > last.noise_std * edge_quantile(order))
    above = above[np.argsort(-strengths[above], kind="stable")][: min(WIDEST, order - 1)]
    factors = np.ones(order)
    if len(above):
        outside = max(total - float(strengths[above].sum()), math.sqrt(2.0 * order) * last.noise_std / 2.0)
        factors[above] = factors_of(strengths[above], outside, n_components=n_components, order=order)
        return factors, float(factors[above] ** 2 @ strengths[above]) + outside
    return factors, total


def release_rounds(ask: Ask, plan: Plan, *, n_components: int, served: int) -> Subspace:
    """Release all planned rounds, and return the leading eigenpairs of the second moment estimated from them.

    The public maps of the rounds are designed for ``served`` components. A resumed release continues after the last
    stored round. Its answers to earlier rounds have the stored public inputs of these rounds.
    """
    problem, answers = plan.problem, list[Answer]()
    estimate: Estimate | None = None
    for noise in noises_of(plan.event):
        query, proposal = unmapped(problem, noise, first=estimate is None), None
        if estimate is not None:
            proposal = proposed(estimate, n_components=served, noise_std=noise_std(query, noise))
            query = mapped(query, estimate, proposal)
        answer = ask(query, noise, None if proposal is None else proposal.energy)
        estimate = (
            begun(answer, centred=problem.center == "private") if estimate is None else continued(estimate, answer)
        )
        answers.append(answer)
    assert estimate is not None
    unit = problem.clip_norm**2
    mean = None if estimate.mean is None else estimate.mean * problem.clip_norm
    found = decompose(Moment(matrix=estimate.matrix * unit, mean=mean), n_components=n_components)
    return dataclasses.replace(
        found,
        outcome={"rounds": round_facts(estimate, answers, shares=shares_of(plan))},
        rounds=Rounds(
            answers=tuple(answers),
            unit=unit,
            centred=mean is not None,
            noise_edge=noise_edge(estimate, answers) * unit,
        ),
    )


def shares_of(plan: Plan) -> list[float]:
    """Return the share of mu^2 that each round of a plan takes."""
    return [float(share) for share in SHARES[plan.rounds]]


def round_facts(estimate: Estimate, answers: Sequence[Answer], *, shares: Sequence[float]) -> dict[str, Any]:
    """Return the public facts about the rounds of a release, as plain JSON values for the manifest's ``outcome``."""
    return {
        "shares": shares,
        "noised_records": estimate.n_records,
        "directions": [answer.map.width for answer in answers],
        "kept": [each.kept for each in estimate.rounds],
        **{name: [getattr(answer, name) for answer in answers] for name in STORED},
    }


def noise_edge(estimate: Estimate, answers: Sequence[Answer]) -> float:
    """Return an upper bound on the eigenvalues that noise alone has in a moment estimated from rounds.

    The bound is in squared clip norms.

    Notes
    -----
    The bound is the noise edge of an estimate that uses only the rounds without a map, whose noise is isotropic. The
    other rounds only reduce the variance of the estimate's entries. Subtraction of a noisy mean widens the spectrum of
    the noise (`dpca_tasks.mechanisms.noise_level.widened_edge`).
    """
    order, even = len(estimate.matrix), [at for at, answer in enumerate(answers) if not answer.map.width]
    std = 1.0 / math.sqrt(sum(estimate.rounds[at].noise_std ** -2 for at in even))
    if estimate.mean is None:
        return std * edge_quantile(order)
    shifts = []
    for answer in (answers[at] for at in even):
        count = max(float(answer.released[-1, -1]), answer.constant**2)
        shifts.append(float(np.square(answer.released[:-1, -1] / count).sum()))
    return std * max(widened_edge(order, shift=shift) for shift in shifts)


def noise_std(query: MappedMoment, noise: Symmetric) -> float:
    """Return the std of the off-diagonal noise in the answer of a round, in squared clip norms."""
    unit = query.unit / query.clip_norm**2
    return noise.noise_multiplier * query.sensitivity(noise.norm) * unit * noise.off_diagonal


def noises_of(event: Event) -> list[Symmetric]:
    """Return the noise of each round of a planned release, from its composed event."""
    return [Symmetric(noise_multiplier=step["noise_multiplier"]) for step in steps(event)]


def unmapped(problem: Problem, noise: Symmetric, *, first: bool) -> MappedMoment:
    """Return the query of a round without a map; ``first`` is true for the first of several rounds.

    If the problem is centred, later rounds subtract a mean that is not known when a release is planned. Their queries
    contain zeros in place of this mean.
    """
    centred, none = problem.center == "private", np.zeros((problem.n_features, 0), np.int64)
    coarse = MappedMoment(
        n_features=problem.n_features,
        clip_norm=problem.clip_norm,
        relation=problem.relation,
        bits=1,
        directions=none,
        reductions=none,
        norm=norm_of(1.0),
        shift=np.zeros(problem.n_features, np.int64) if centred and not first else None,
        part=(FIRST_CENTRED if first else NEXT) if centred else NEXT * first,
    )
    std = noise.noise_multiplier * coarse.sensitivity(noise.norm)
    return dataclasses.replace(coarse, bits=grid_bits(noise_std=std, degree=coarse.degree))


def mapped(query: MappedMoment, estimate: Estimate, proposal: Proposal) -> MappedMoment:
    """Return the query with the map, clip norm and mean of a proposed round."""
    return dataclasses.replace(
        query,
        directions=proposal.map.directions,
        reductions=proposal.map.reductions,
        norm=norm_of(proposal.clip_norm),
        shift=None if estimate.mean is None else on_shift_grid(estimate.mean),
    )


def ask_curator(curator: Curator) -> Ask:
    """Return a function that releases the rounds of one owner's rows, in order."""

    def ask(query: MappedMoment, noise: Symmetric, energy: float | None) -> Answer:
        query = curator.with_stored_inputs(query)
        return as_answer(curator.release(query, noise), query, noise, energy=energy)

    return ask


def as_answer(
    released: NDArray[np.float64], query: MappedMoment, noise: Symmetric, *, energy: float | None = None
) -> Answer:
    """Return a released sum, in data units squared, as the answer of a round, in squared clip norms."""
    unit = query.clip_norm**2
    return Answer(
        released=released / unit,
        noise_std=noise_std(query, noise),
        map=PublicMap(directions=query.directions, reductions=query.reductions),
        clip_norm=float(query.norm[0]),
        constant=query.constant,
        energy=energy,
        step=query.unit / query.steps_per_unit / unit,
    )
