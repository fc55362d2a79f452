"""Maps, clip norms and combined estimates of releases in rounds.

Round 1 releases a rough second moment. Each further round subtracts a released mean m from the records, multiplies them
by a public map T, and clips the result at a norm c below 1. T shrinks the directions that earlier rounds have found, so
that c and the noise are small. In later rounds T, m and c depend on data only through released answers.

All functions are post-processing of released answers. Lengths are in units of the clip norm of the release, so records
have norm 1 at most. The noise of an answer has the same distribution in every orthonormal basis. Its standard deviation
off the diagonal is ``noise_std``.

A release calls `begun` on the first answer. Before each further round it calls `proposed`, and after that round
`continued`. At the end `components` and `dpca_tasks.refinement.rounds_assessment.assessed` take the answers.

Notes
-----
After its entries are rounded to a grid, T need not be symmetric. A record x becomes ``y = T (x - m)``, with the second
moment ``y y^T``. The *energy* of records is the sum of their squared norms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.noise_level import edge_quantile, spike_strengths
from dpca_tasks.refinement.conjugate_gradients import conjugate_gradients
from dpca_tasks.refinement.leading_pairs import Refinement, Request, refine
from dpca_tasks.refinement.noisy_moment import BEYOND, NoisyMoment, posterior_mean
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]

WIDEST = 60
"""The largest number of directions that a map shrinks."""
FEW, NOISY = 5, 0.1
"""Centred releases of at most `FEW` components at an epsilon below `NOISY` have two rounds (`best_rounds`)."""
LEAST_FACTOR_OF_MAP = 2.0**-6
"""The least factor t by which a map multiplies a direction."""
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.5
"""The least and the largest value of kappa (`clip_factor`). Without a map, kappa has the least value."""
ACCEPTED_LOSS = 0.003
"""The relative loss of captured variance by noise for which `clip_factor` returns 1.

A larger loss gives a smaller clip norm, and so less noise.
"""
USELESS = 0.85
"""A map is not used if the mean squared norm of mapped records, times the larger of kappa and 1, is at least this."""
LEAST_KEPT = 0.3
"""The least share of the records' squared norms that clipping is assumed to keep."""
STEPS, NEGLIGIBLE = 20, 1e-12
"""The largest number of conjugate gradient steps, and the relative squared residual norm at which the steps stop."""

_NEVER_ZERO = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The released answer of one round.

    Parameters
    ----------
    released : float64 array of shape (d, d) or (d + 1, d + 1)
        The noisy second moment of the mapped and clipped records. Its order is d + 1 if a constant is appended to them.
    noise_std : float
        The standard deviation of the off-diagonal noise in ``released``.
    map : PublicMap
        The map T of this round.
    clip_norm : float
        The clip norm c of this round; 1 in round 1.
    constant : float
        The constant ``a c`` that is appended to a record, for a public number a; 0 if none is appended. A record of p
        rows gets ``a c / sqrt(p)`` in each row.
    energy : float, optional
        The expected sum of squared norms (`Proposal.energy`) of this round; None if no record could be clipped.
    step : float
        The grid step of the answer.
    """

    released: Matrix
    noise_std: float
    map: PublicMap
    clip_norm: float = 1.0
    constant: float = 0.0
    energy: float | None = None
    step: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """The second moment of one round, after centring and a correction for clipping.

    ``kept`` is the estimated share of the records' squared norms that clipping kept. ``matrix`` is the answer of the
    round, around its own mean if the release is centred, divided by ``kept``. ``noise_std`` and ``step`` are divided by
    ``kept`` too.
    """

    map: PublicMap
    matrix: Matrix
    noise_std: float
    step: float = 0.0
    kept: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """The second moment S of the records, estimated from all rounds so far; around their mean if ``mean`` is given.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        The estimate of S, without a map.
    noise_std : float
        The standard deviation of the off-diagonal noise in ``T S T^T``, where T is the map of the last round.
    rounds : tuple of Round
        All rounds so far.
    n_records : float
        The released number of records, at least 1.
    mean : float64 array of shape (d,), optional
        The mean released in round 1, scaled to norm 1 at most. Rounded to a grid, it is the m of all later rounds.
    extra : float
        The amount that the noise of the mean m adds to the sum of ``|x - m|^2`` over all records x.
    """

    matrix: Matrix
    noise_std: float
    rounds: tuple[Round, ...]
    n_records: float
    mean: Matrix | None = None
    extra: float = 0.0

    @property
    def map(self) -> PublicMap:
        """The map T of the last round."""
        return self.rounds[-1].map

    @property
    def total(self) -> float:
        """The energy ``sum |x - mean|^2`` over all records x, but at least half a standard deviation of its noise."""
        added = self.extra if len(self.rounds) == 1 else 0.0
        return max(float(np.trace(self.matrix)) + added, _least_energy(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """A map of records for the next round, and the sum of squared norms that it is expected to leave.

    Parameters
    ----------
    map : PublicMap
    factors : float64 array of shape (r,)
        The factors t by which the map multiplies its directions, before they are rounded to a grid.
    energy : float
        The expected sum of the squared norms of all mapped records.
    """

    map: PublicMap
    factors: Matrix
    energy: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposal:
    """The public inputs of the next round.

    Parameters
    ----------
    map : PublicMap
        The map T.
    clip_norm : float
        The clip norm c. It is 1 if T is the identity and no mean is subtracted: the round then releases a plain second
        moment.
    energy : float, optional
        The expected sum of ``|T (x - m)|^2`` over all records; None if no record can be clipped.
    factor : float
        The number kappa (`clip_factor`), from which c follows unless c reaches its upper bound.
    """

    map: PublicMap
    clip_norm: float
    energy: float | None
    factor: float


def best_rounds(n_components: int, *, epsilon: float, centred: bool) -> int:
    """Return the number of rounds, 2 or 3, that captures most variance, from public facts alone.

    Notes
    -----
    The following numbers are the captured variance with three rounds, minus that with two rounds. They are means over
    k = 2, 3, 5, five draws of a9a and three of MNIST. At epsilon .03, .1, .3 and 1 they are .003, .002, .000, .000
    without centring, and -.016, .035, .000, .000 with centring. A centred release below an epsilon of .1 is better with
    two rounds in all of these cases. On a9a the means of 20 draws with k = 3 and 5 are -.017 and .000 at .03, -.010 and
    -.001 at .05, and -.003 for both at .07. In these cases, the mean that a first round releases with a tenth of the
    budget is too noisy. In all other cases, three rounds lose at most .006. Two rounds lose up to .19, on MNIST with
    k = 2 at .1: no later round corrects weak directions that round 1 overrated.
    """
    return 2 if centred and n_components <= FEW and epsilon < NOISY else 3


def begun(answer: Answer, *, centred: bool) -> Estimate:
    """Return the estimate after the first round, around the mean of its answer if ``centred`` is true.

    A constant is appended to records if they are centred, or if later rounds need their number. Otherwise the number of
    records is set to 1. In a warm start, the first round has a map. The mean of the estimate is then the mean of
    ``x - m``, where m is the public mean that the round subtracts.
    """
    constant, order = answer.constant, len(answer.map.directions)
    matrix, mean, extra, count = answer.released[:order, :order], None, 0.0, 1.0
    if constant:
        count = max(float(answer.released[-1, -1]) / constant**2, 1.0)
    if centred:
        mean = answer.released[:-1, -1] / (constant * count)
        matrix = matrix - count * np.outer(mean, mean)
        extra = order * (answer.noise_std / constant) ** 2 / count
        mean = mean / max(1.0, float(np.linalg.norm(mean)))
    first = Round(map=answer.map, matrix=matrix, noise_std=answer.noise_std, step=answer.step)
    if answer.map.width:
        matrix = answer.map.inverse_around(matrix)
        mean = None if mean is None else answer.map.inverse(mean[:, None])[:, 0]
    return Estimate(matrix=matrix, noise_std=answer.noise_std, rounds=(first,), n_records=count, mean=mean, extra=extra)


def proposed(estimate: Estimate, *, n_components: int, noise_std: float) -> Proposal:
    """Return the map and the clip norm of the next round.

    Parameters
    ----------
    estimate : Estimate
        The estimate from all rounds so far.
    n_components : int
        The number k of components.
    noise_std : float
        The planned std of the off-diagonal noise in the next round, if its clip norm is 1:
        ``(1 + a^2) sensitivity noise_multiplier / sqrt 2``, with a as in `Answer`.

    Notes
    -----
    A map that leaves nearly all energy (squared norms of records) is not used (`USELESS`). Without a map, records are
    clipped at 1, or at their expected norm around the mean.
    """
    with one_thread():
        found = design(estimate, n_components=n_components)
        share = (found.energy + estimate.extra) / estimate.n_records
        factor = clip_factor(found, estimate, n_components=n_components, noise_std=share * noise_std)
    chosen = found.map
    if max(factor, 1.0) * share >= USELESS:
        chosen = PublicMap.identity(len(estimate.matrix))
        share = (estimate.total + estimate.extra) / estimate.n_records
    if not chosen.width and estimate.mean is None:
        return Proposal(map=chosen, clip_norm=1.0, energy=None, factor=factor)
    reach = 1.0 if estimate.mean is None else 1.0 + float(np.linalg.norm(estimate.mean))
    return Proposal(
        map=chosen,
        clip_norm=min(math.sqrt(factor * share), reach),
        energy=share * estimate.n_records,
        factor=factor,
    )


def continued(estimate: Estimate, answer: Answer) -> Estimate:
    """Return the estimate after one more round; if the release is centred, the answer is centred at its own mean."""
    with one_thread():
        matrix = around_own_mean(answer) if estimate.mean is not None else answer.released
        kept = 1.0
        if answer.energy is not None:
            kept = min(max(float(np.trace(matrix)) / answer.energy, LEAST_KEPT), 1.0)
        last = Round(
            map=answer.map,
            matrix=matrix / kept,
            noise_std=answer.noise_std / kept,
            step=answer.step / kept,
            kept=kept,
        )
        rounds = (*estimate.rounds, last)
        return replace(
            estimate,
            matrix=combined(rounds, estimate.matrix),
            noise_std=1.0 / math.sqrt(sum(weights_of(rounds))),
            rounds=rounds,
        )


def around_own_mean(answer: Answer) -> Matrix:
    """Return the second moment of an answer around the mean of its records, to which a constant was appended."""
    total = answer.released[:-1, -1] / answer.constant
    count = max(float(answer.released[-1, -1]) / answer.constant**2, 1.0)
    return np.asarray(answer.released[:-1, :-1] - np.outer(total, total) / count)


def design(estimate: Estimate, *, n_components: int) -> Design:
    """Return the map of the next round with its forecast; the map is the identity if no direction is above the noise.

    Notes
    -----
    The leading eigenvectors of ``T S T^T`` are replaced by their posterior means, where T is the last map, after which
    the noise is isotropic. These vectors, multiplied by ``T^-1``, and the directions of T span a subspace. The
    directions of the next map are the Ritz vectors of S in this subspace.

    To second order, the noise of a round with clip norm c costs ``sum_i d c^4 / (t_i^2 l_i)``, where l_i are the
    energies (sums of squares) of the k leading directions, which the map multiplies by t_i. c^2 is proportional to the
    energy after the map. This energy is ``D + sum_i a_i``, where ``a_i = t_i^2 l_i``, and D is the energy outside the
    directions of the map. At the optimum, all a_i equal D / k: the k directions together keep as much energy as all
    others. For further directions, only their noise against these k matters. If each other direction has the energy
    ``D / d``, the optimum is ``t^4 = D / (d l)``.
    """
    order, noise_std = len(estimate.matrix), estimate.noise_std
    none = Design(map=PublicMap.identity(order), factors=np.zeros(0), energy=estimate.total)
    if order < 2:
        return none
    edge = noise_std * math.sqrt(order)
    shrunk = _visible(estimate.map.around(estimate.matrix), noise_std)
    if not shrunk.shape[1]:
        return none
    basis = np.hstack([estimate.map.inverse(shrunk), estimate.map.basis])
    values, columns = _ritz(estimate.matrix, basis)
    lengths = np.square(estimate.map.inverse_transposed(columns)).sum(axis=0)
    mapped = values / lengths
    kept = np.flatnonzero(mapped > edge)[:WIDEST]
    if not len(kept):
        return none
    energies = (mapped[kept] - edge**2 / mapped[kept]) * lengths[kept]
    outside = max(estimate.total - float(energies.sum()), _least_energy(estimate))
    factors = factors_of(energies, outside, n_components=n_components, order=order)
    return Design(
        map=PublicMap.on_grid(columns[:, kept], factors),
        factors=factors,
        energy=float(factors**2 @ energies) + outside,
    )


def clip_factor(found: Design, estimate: Estimate, *, n_components: int, noise_std: float) -> float:
    """Return kappa: the squared clip norm ``c^2`` divided by the expected squared norm of a mapped record.

    ``noise_std`` is the std of the off-diagonal noise in a round with a kappa of 1.

    Notes
    -----
    The loss by noise grows with the square of kappa. The bias of clipping falls about as ``exp(-4 kappa)``. So the
    kappa with the least sum of both changes by a fourth of the logarithm of the loss.
    """
    basis, factors = found.map.basis[:, :n_components], found.factors[:n_components]
    energies = np.maximum(np.einsum("ij,ij->j", basis, estimate.matrix @ basis), _NEVER_ZERO)
    return factor_for(energies, factors, order=len(basis), noise_std=noise_std)


def factor_for(energies: Matrix, factors: Matrix, *, order: int, noise_std: float) -> float:
    """Return kappa (`clip_factor`) for directions with sums of squares ``energies``, multiplied by ``factors``."""
    if not len(energies):
        return LEAST_FACTOR
    loss = order * noise_std**2 * float((1.0 / (factors**2 * energies)).sum() / energies.sum())
    return min(max(1.0 + math.log(ACCEPTED_LOSS / max(loss, _NEVER_ZERO)) / 4.0, LEAST_FACTOR), MOST_FACTOR)


def combined(rounds: Sequence[Round], start: Matrix) -> Matrix:
    """Return the S that minimises ``sum_j |A_j - T_j S T_j^T|^2 / s_j^2`` over the rounds j.

    Round j has the map T_j, the second moment A_j, and noise of std s_j.

    Notes
    -----
    The normal equations are ``sum_j H_j S H_j / s_j^2 = sum_j T_j^T A_j T_j / s_j^2 = B``, for ``H_j = T_j^T T_j``. Let
    the q columns of Q be an orthonormal basis of all columns of U and W. Every H_j is the identity orthogonal to Q.
    There S is B divided by the sum of the weights ``1 / s_j^2``. A linear system of order q gives the part of ``Q^T S``
    that is orthogonal to Q. Only ``Q^T S Q`` requires conjugate gradients, for a q x q matrix. Their preconditioner is
    exact if only one round has a map, hence for two rounds.
    """
    weights = weights_of(rounds)
    whole = sum(weights)
    wanted = sum(weight * each.map.transposed_around(each.matrix) for weight, each in zip(weights, rounds, strict=True))
    spanned = np.hstack([columns for each in rounds for columns in (each.map.basis, each.map.reduced)])
    if not spanned.shape[1]:
        return np.asarray(wanted / whole)
    basis = np.linalg.qr(spanned)[0]
    grams = [each.map.gram(basis) for each in rounds]
    across = basis.T @ wanted
    inner = across @ basis
    outer = across - inner @ basis.T
    mixed = np.linalg.solve(sum(weight * gram for weight, gram in zip(weights, grams, strict=True)), outer)
    square = _solved(grams, weights, (inner + inner.T) / 2.0, basis.T @ start @ basis)
    change = basis @ (mixed - outer / whole + (square - inner / whole) @ basis.T / 2.0)
    return np.asarray(wanted / whole + (change + change.T))


def components(estimate: Estimate, *, n_components: int, method: Request = "auto") -> Refinement:
    """Return the k leading eigenpairs of the estimate S, refined in coordinates with nearly isotropic noise.

    Notes
    -----
    If the last map T has at least k directions, the leading pairs of ``T S T^T`` are refined. These are k + 10 pairs,
    because their order differs from the order without the map. If T has fewer directions, the leading pairs of S are
    refined, because most of the k directions are outside the map.

    In a warm start, the directions of the map come from other records. If the new records have no component along some
    of these directions, the inverse map makes the noise along them large. So directions below the noise are projected
    out first.
    """
    order, last = len(estimate.matrix), estimate.rounds[-1]
    mapped = last.map.width >= n_components
    with one_thread():
        matrix = _without_weak(estimate)
        found = refine(
            NoisyMoment(
                matrix=last.map.around(matrix) if mapped else matrix,
                noise_std=estimate.noise_std,
                step=last.step,
            ),
            n_components=min(n_components + BEYOND, order) if mapped else n_components,
            method=method,
        )
        if not mapped:
            return found
        basis = np.hstack([last.map.inverse(found.components.T), last.map.basis])
        values, columns = _ritz(matrix, basis if basis.shape[1] < order else np.eye(order))
    return replace(found, components=signed(columns.T[:n_components]), values=values[:n_components])


def _least_energy(estimate: Estimate) -> float:
    """Return the least sum of squared norms that is assumed: half the std of the noise in the estimate's trace."""
    return math.sqrt(2.0 * len(estimate.matrix)) * estimate.noise_std / 2.0


def weights_of(rounds: Sequence[Round]) -> list[float]:
    """Return the weight ``1 / s_j^2`` of each round j in `combined`, where s_j is the std of its noise."""
    return [1.0 / each.noise_std**2 for each in rounds]


def _visible(matrix: Matrix, noise_std: float) -> Matrix:
    """Return the posterior means of the leading eigenvectors above the noise, as columns."""
    order = len(matrix)
    values, rows = leading_eigenpairs(matrix, min(order - 1, WIDEST))
    values = values / noise_std
    shrunk = posterior_mean(rows.T * spike_strengths(values, order=order))
    return shrunk[:, values > edge_quantile(order)]


def _without_weak(estimate: Estimate) -> Matrix:
    """Return the matrix of an estimate; in a warm start, project out the map's directions that are below the noise.

    Only noise along the directions of the map matters, and these directions do not depend on it. So a noise matrix
    whose order is the number of directions has the same edge.
    """
    if len(estimate.rounds) > 1 or not estimate.map.width:
        return estimate.matrix
    values, columns = _ritz(estimate.matrix, estimate.map.basis)
    lengths = np.square(estimate.map.inverse_transposed(columns)).sum(axis=0)
    weak = columns[:, values <= estimate.noise_std * edge_quantile(estimate.map.width) * lengths]
    if not weak.shape[1]:
        return estimate.matrix
    rest = np.eye(len(columns)) - weak @ weak.T
    return np.asarray(rest @ estimate.matrix @ rest)


def _ritz(matrix: Matrix, spanning: Matrix) -> tuple[Matrix, Matrix]:
    """Return the Ritz values of a matrix on the span of ``spanning``, descending, and the Ritz vectors as columns."""
    basis = np.linalg.qr(spanning)[0]
    inner = basis.T @ matrix @ basis
    values, mixtures = np.linalg.eigh((inner + inner.T) / 2.0)
    return values[::-1], basis @ mixtures[:, ::-1]


def factors_of(energies: Matrix, outside: float, *, n_components: int, order: int) -> Matrix:
    """Return the factors t of a map (`design`), from falling sums of squares along directions and ``outside`` them."""
    width = len(energies)
    count = min(n_components, width)
    factors = np.minimum(1.0, (outside / max(order - width, 1) / energies) ** 0.25)
    rest = outside + float(factors[count:] ** 2 @ energies[count:])
    factors[:count] = np.minimum(1.0, np.sqrt(rest / (count * energies[:count])))
    return np.maximum(factors, LEAST_FACTOR_OF_MAP)


def _solved(grams: Sequence[Matrix], weights: Sequence[float], wanted: Matrix, start: Matrix) -> Matrix:
    """Solve ``sum_j w_j H_j X H_j = B`` for X by at most `STEPS` preconditioned conjugate gradient steps.

    H_j are the ``grams``, w_j the ``weights``, and B is ``wanted``.
    """

    def image(found: Matrix) -> Matrix:
        return np.asarray(sum(weight * gram @ found @ gram for weight, gram in zip(weights, grams, strict=True)))

    values, turn = np.linalg.eigh(grams[-1])
    scales = sum(weights[:-1]) + weights[-1] * np.multiply.outer(values, values)

    def conditioned(residual: Matrix) -> Matrix:
        return np.asarray(turn @ ((turn.T @ residual @ turn) / scales) @ turn.T)

    enough = NEGLIGIBLE * float(np.square(wanted).sum())
    found = conjugate_gradients(image, wanted, start=start, steps=STEPS, enough=enough, conditioned=conditioned)
    return (found + found.T) / 2.0
