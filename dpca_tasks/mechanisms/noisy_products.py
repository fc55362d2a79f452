"""Shared parts of mechanisms that never form a second moment.

*Mean.* With ``center=private`` a mechanism first releases the sum of the rows and their count; their use is
post-processing. There are two cases:

- Products with public directions are linear, so the mean is subtracted from their answers (`Centre.shifted`). The
  mean's Gaussian step takes `MEAN_SHARE` of mu^2.
- Draws and computed directions use records from which the mean was already subtracted
  (`dpca_tasks.queries.recentred_moment`). Only the (epsilon, delta) of such a mechanism is known, so the mean takes
  `MEAN_SHARE` of both, by basic composition (`mean_first`).

*Products.* Iterative mechanisms share their plan, products with public directions, and averages of iterates. Centring a
product is linear post-processing of released numbers: ``(X^T X - s s^T / n) V``.

*Truncated rounds.* The rounds of DPS-PCA release products of row-sparse directions, truncate them, and average the last
ones. Ties go to the smaller index, and a matrix of deficient rank is completed from public numbers. So the result never
depends on a library's choice.

>>> basis = truncated(np.array([[0.0, 1.0], [0.6, 0.0], [0.0, 0.0], [0.8, 0.0]]), rows_kept=2)
>>> np.abs(basis).round(3).tolist()
[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier, laplace_noise_multiplier
from dpca_tasks.accounting.events import Event, composed, poisson_sampled
from dpca_tasks.accounting.subsampled import through_empty_record
from dpca_tasks.errors import InvalidInput
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace, grid_warnings
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.noise.distributions import Gaussian, Laplace, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.poisson_sampled import sampled
from dpca_tasks.queries.recentred_moment import SHIFT_STEP, on_shift_grid
from dpca_tasks.queries.rounded_product import (
    DIRECTION_BITS,
    ClippedProduct,
    MomentProduct,
    ReplacedProduct,
    on_direction_grid,
)
from dpca_tasks.queries.second_moment import CONSTANT, RecordMean
from dpca_tasks.threads import one_thread

MEAN_SHARE = Fraction(1, 8)

MeanNoise = Gaussian | Laplace


class Centre:
    """The released sum and count of the rows, and their mean."""

    def __init__(self, total: NDArray[np.float64], count: float) -> None:
        self.mean = total / max(count, 1.0)
        self._total = total

    def shifted(
        self, product: NDArray[np.float64], directions: NDArray[np.float64], *, part: float = 1.0
    ) -> NDArray[np.float64]:
        """Centre a product over a share ``part`` of the records at the released mean."""
        return product - part * np.outer(self._total, self.mean @ directions)


def mean_share(problem: Problem) -> Fraction:
    """Return the mean's share of mu^2."""
    return MEAN_SHARE if problem.center == "private" else Fraction(0)


def mean_noise(problem: Problem, target: PrivacyTarget) -> Gaussian | None:
    """Return the noise of a mean with `mean_share` of a target's mu^2; None if the problem is not centred."""
    if problem.center == "none":
        return None
    return Gaussian(
        noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=MEAN_SHARE)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFirst:
    """A target divided by basic composition into the noise of the mean and the target of the following steps."""

    noise: MeanNoise | None
    rest: PrivacyTarget

    def event(self, following: Event) -> Event:
        """Return the event of the mean, if any, composed with the following event."""
        return following if self.noise is None else composed(self.noise.event, following)


def mean_first(problem: Problem, target: PrivacyTarget, *, pure: bool = False) -> MeanFirst:
    """Divide a target between a mean and the following steps, if the problem is centred.

    Parameters
    ----------
    problem, target
        The request.
    pure : bool
        Whether the following steps are pure for any delta; the mean is then pure too.

    Returns
    -------
    MeanFirst
        Gaussian noise at `MEAN_SHARE` of epsilon and of delta, or Laplace noise at that share of epsilon if there is no
        delta. The share is a power of two, so it is exact. The rest of both is rounded down, so that the sums do not
        exceed the target.
    """
    if problem.center == "none":
        return MeanFirst(noise=None, rest=target)
    share = float(MEAN_SHARE)
    epsilon, delta = share * target.epsilon, 0.0 if pure else share * target.delta
    noise: MeanNoise = (
        Gaussian(noise_multiplier=gaussian_noise_multiplier(epsilon=epsilon, delta=delta))
        if delta
        else Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=epsilon))
    )
    check_tail(noise, draws=problem.n_features + 1, delta=delta)
    mean_query(problem, noise)
    rest = dataclasses.replace(
        target,
        epsilon=math.nextafter(target.epsilon - epsilon, 0.0),
        delta=math.nextafter(target.delta - delta, 0.0) if delta else target.delta,
    )
    return MeanFirst(noise=noise, rest=rest)


def release_centre(
    curator: Curator, problem: Problem, noise: MeanNoise | None, *, halved: bool = False
) -> Centre | None:
    """Release the mean in the first step; without noise return None and take no step.

    With ``halved`` the release is calibrated through the empty record, as for `sampled`.
    """
    if noise is None:
        return None
    noisy = curator.release(mean_query(problem, noise, halved=halved), noise)
    constant = CONSTANT * problem.clip_norm
    return Centre(noisy[:-1] / constant, float(noisy[-1]) / constant**2)


def release_shift(curator: Curator, problem: Problem, noise: MeanNoise | None) -> NDArray[np.int64] | None:
    """Release the mean, bound its norm by one clip norm, and round it to the grid on which it is subtracted."""
    centre = release_centre(curator, problem, noise)
    return None if centre is None else on_shift_grid(centre.mean / problem.clip_norm)


def mean_of(requested: RowSum | Eigensolver) -> NDArray[np.float64] | None:
    """Return the mean that a request subtracted from the records, in data units; None if it subtracted none."""
    shift = requested.public_inputs().get("shift")
    return None if shift is None else shift * (requested.clip_norm * SHIFT_STEP)


def mean_query(problem: Problem, noise: MeanNoise, *, halved: bool = False) -> RowSum:
    """Return the query for the sum of the rows and their count, on a grid that fits the noise.

    Raises
    ------
    InvalidInput
        When there is no such grid. Plans build the query to detect this before anything is charged.
    """
    coarse = RecordMean(n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=1)
    spread = math.sqrt(2.0) if noise.norm == "l1" else 1.0  # the ratio of std and scale
    noise_std = noise.noise_multiplier * sampled(coarse, rate=1.0, halved=halved).sensitivity(noise.norm) * spread
    query = dataclasses.replace(coarse, bits=grid_bits(noise_std=noise_std, degree=RecordMean.degree))
    return sampled(query, rate=1.0, halved=halved)


START_SEED = 20140109  # the start is public; no guarantee depends on it
AVERAGED = 64  # iterates in an average: more do not improve it, and all are held in memory
_UP = 1.0 + 2.0**-48  # exceeds the rounding error of the noise in grid steps
FINEST = 14  # the largest number of bits: exact products on a finer grid would overflow int64


def plan_products(
    mechanism: str,
    problem: Problem,
    target: PrivacyTarget,
    *,
    width: int,
    noises: Sequence[tuple[Gaussian, float]],
    releases: int,
    event: Event,
    n_components: int,
    level: float,
    edge: float | None,
    message_clip: float = 1.0,
    inner: PrivacyTarget | None = None,
    notes: tuple[str, ...] = (),
    printed: bool = False,
) -> Plan:
    """Plan noisy products with ``width`` directions, after the mean if the problem is centred.

    Parameters
    ----------
    mechanism, problem, target
        The request.
    width : int
        The number p of directions.
    noises : sequence of (Gaussian, float)
        The noise and the sampling rate of each kind of product; the last is the main one.
    releases : int
        The number of products.
    event : Event
        The event of all products.
    n_components : int
        The number k of components.
    level : float, records at the clip norm
        The level up to which the resulting directions are noise.
    edge : float, records at the clip norm, optional
        The level up to which the resulting eigenvalues are noise; None if there are no eigenvalues.
    message_clip : float
        The bound on a record's contribution; 1 for no bound.
    inner : PrivacyTarget, optional
        The target to which the steps were calibrated, if it differs: see `inner_target`.
    notes, printed
        As for `Plan`.
    """
    directions = start_directions(problem.n_features, width)
    inner = inner or target

    def scale(bits: int) -> float:
        query = product_query(problem, bits=bits, directions=directions, message_clip=message_clip)
        return max(noise.noise_multiplier * sampled(query, rate=rate).sensitivity("l2") for noise, rate in noises)

    for noise, _ in noises:
        check_tail(noise, draws=(releases * width + 1) * problem.n_features + 1, delta=inner.delta)
    some = 1 if message_clip == 1.0 else FINEST  # on a coarse grid the smallest step may exceed the clip
    bits = min(FINEST, grid_bits(noise_std=scale(some), degree=MomentProduct.degree))
    while (fits := grid_bits(noise_std=scale(bits) * _UP, degree=MomentProduct.degree)) < bits:
        bits = fits  # on a coarser grid one record may change a clipped product more
    if (mean := mean_noise(problem, inner)) is not None:
        mean_query(problem, mean, halved=inner != target)
        event = composed(event_of_all(mean, halved=inner != target), event)
    return Plan(
        mechanism=mechanism,
        problem=problem,
        target=target,
        noise_multiplier=noises[-1][0].noise_multiplier,
        bits=bits,
        event=event,
        notes=(
            *forecast(problem, n_components=n_components, level=level).warnings(),
            *notes,
            *grid_warnings(problem, bits=bits),
        ),
        printed=printed,
        noise_edge=edge,
        level=level,
    )


def product_noise(
    problem: Problem,
    noise: Gaussian,
    *,
    width: int,
    rate: float,
    halved: bool = False,
    message_clip: float = 1.0,
) -> float:
    """Return the std of a product's noise, scaled up from a sample to all records, in records at the clip norm."""
    start = start_directions(problem.n_features, min(width, 2))  # two suffice: more have the same sensitivity
    query = product_query(problem, bits=FINEST, directions=start, halved=halved, message_clip=message_clip)
    return noise.noise_multiplier * sampled(query, rate=rate, halved=halved).sensitivity("l2") / rate


def inner_target(problem: Problem, target: PrivacyTarget, *, rate: float) -> PrivacyTarget:
    """Return the target to which the steps are calibrated; it differs for samples under replace_one.

    The privacy loss of a sampled step is known for one added, removed or emptied record. Replacing a record combines
    two such changes, through the empty record. So the whole release is calibrated to one of the two changes
    (`dpca_tasks.accounting.subsampled.through_empty_record`).
    """
    if not is_halved(problem, rate=rate):
        return target
    epsilon, delta = through_empty_record(epsilon=target.epsilon, delta=target.delta)
    return dataclasses.replace(target, epsilon=epsilon, delta=delta)


def is_halved(problem: Problem, *, rate: float) -> bool:
    """Return whether a release samples under replace_one, and so is calibrated through the empty record."""
    return rate != 1 and problem.relation == "replace_one"


def event_of_all(noise: Gaussian, *, halved: bool) -> Event:
    """Return the event of noise on all records, as a sample of rate 1 if calibrated through the empty record."""
    return poisson_sampled(noise.event, 1.0) if halved else noise.event


def product_query(
    problem: Problem,
    *,
    bits: int,
    directions: NDArray[np.float64],
    halved: bool = False,
    message_clip: float = 1.0,
) -> MomentProduct:
    """Return the query for ``X^T (X V)``, with V rounded to its public grid.

    With ``halved`` the release is calibrated through the empty record, so no rounding for replaced records is needed.
    A ``message_clip`` below 1 bounds the norm of a record's contribution.
    """
    facts: dict[str, Any] = {
        "n_features": problem.n_features,
        "clip_norm": problem.clip_norm,
        "relation": problem.relation,
        "bits": bits,
        "directions": on_direction_grid(directions),
    }
    if message_clip != 1.0:
        return ClippedProduct(**facts, message_clip=message_clip)
    return (ReplacedProduct if problem.relation == "replace_one" and not halved else MomentProduct)(**facts)


def on_grid(query: MomentProduct) -> NDArray[np.float64]:
    """Return the directions of a query as floats."""
    return query.directions / 2.0**DIRECTION_BITS


def start_directions(n_features: int, width: int) -> NDArray[np.float64]:
    """Return public random orthonormal columns."""
    return orthonormal(np.random.default_rng(START_SEED).standard_normal((n_features, width)))


def orthonormal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal factor of a thin QR with positive diagonal, on one thread."""
    with one_thread():
        q, r = np.linalg.qr(matrix)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def leading_of_projectors(bases: list[NDArray[np.float64]], width: int) -> NDArray[np.float64]:
    """Average iterates: return the leading eigenvectors of the sum of their projectors ``V V^T``."""
    with one_thread():
        left, _, _ = np.linalg.svd(np.hstack(bases), full_matrices=False)
    return np.ascontiguousarray(left[:, :width])


def ranked(
    basis: NDArray[np.float64], values: NDArray[np.float64], n_components: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the leading k directions of a basis as signed rows, and their released values, descending."""
    order = np.argsort(-values[:n_components], kind="stable")
    return signed(basis.T[:n_components][order]), values[:n_components][order]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iterate:
    """Directions (d, k), and the released estimate (d, k) of ``X^T X`` times these directions."""

    directions: NDArray[np.float64]
    product: NDArray[np.float64]


def is_averaged(step: int, steps: int) -> bool:
    """Return whether a step's directions enter the average.

    The averaged steps are at most `AVERAGED`, evenly spread over the last half of all steps.
    """
    first = steps // 2
    stride = -(-(steps - first) // AVERAGED)
    return step >= first and (steps - 1 - step) % stride == 0


def averaged(iterates: Sequence[Iterate], n_components: int, *, mean: NDArray[np.float64] | None = None) -> Subspace:
    """Average iterates.

    The result spans the leading directions of their projectors; the released products are diagonalised in that span.
    """
    basis = leading_of_projectors([one.directions for one in iterates], n_components)
    small = np.zeros((n_components, n_components))
    with one_thread():
        for one in iterates:
            small += basis.T @ one.product @ (one.directions.T @ basis) / len(iterates)
        values, rotation = leading_eigenpairs((small + small.T) / 2, n_components)
        components = signed(rotation @ basis.T)
    return Subspace(components=components, eigenvalues=values, spectrum=values, mean=mean)


COMPLETION_SEED = 20180411  # missing columns are completed by public ones; no guarantee depends on them
_RANK = 1e-12  # relative length up to which a column counts as zero


def truncated(matrix: NDArray[np.float64], *, rows_kept: int) -> NDArray[np.float64]:
    """Truncate a matrix to its rows of largest norm, ties by index, and return it with orthonormal columns."""
    rows = _longest_rows(matrix, rows_kept)
    basis = np.zeros_like(matrix)
    basis[rows] = completed(matrix[rows])
    return basis


def completed(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal factor of a thin QR with positive diagonal; missing directions are public random ones."""
    q, r = _thin_qr(matrix)
    lengths = np.abs(np.diag(r))
    if lengths.min() > _RANK * lengths.max():
        return q * np.where(np.diag(r) < 0, -1.0, 1.0)
    with one_thread():
        left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > _RANK * values[0]))
    public = np.random.default_rng(COMPLETION_SEED).standard_normal(matrix.shape)
    return _thin_qr(np.hstack([left[:, :rank], public[:, rank:]]))[0]


def truncated_step(
    moment: NDArray[np.float64], directions: NDArray[np.float64], *, rows_kept: int
) -> NDArray[np.float64]:
    """Multiply row-sparse directions by a symmetric matrix; return the product orthonormalised and truncated."""
    rows = np.flatnonzero(directions.any(axis=1))
    with one_thread():
        product = moment[rows].T @ directions[rows]
    return truncated(completed(product), rows_kept=rows_kept)


def _longest_rows(matrix: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    norms = np.einsum("ij,ij->i", matrix, matrix)
    return np.sort(np.argsort(-norms, kind="stable")[:count])


def _thin_qr(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with one_thread():
        q, r = np.linalg.qr(matrix)
    return q, r


def iterate_truncated(
    answer: Callable[[NDArray[np.float64]], Iterate],
    *,
    n_features: int,
    n_components: int,
    iterations: int,
    burn_in: int,
    rows_kept: int,
) -> NDArray[np.float64]:
    """Iterate from a public start, and return the components as signed rows.

    Parameters
    ----------
    answer : callable
        Releases the product of a round's directions, and returns it with the directions of the answered query.
    n_features, n_components, iterations : int
    burn_in : int
        The number of initial products that do not enter the average; the last product always does.
    rows_kept : int
        The number of features with nonzero rows in the directions, and in the components.
    """
    directions, iterates = start_directions(n_features, n_components), []
    for _ in range(iterations):
        iterates.append(answer(directions))
        directions = truncated(completed(iterates[-1].product), rows_kept=rows_kept)
    tail = iterates[min(burn_in, iterations - 1) :]
    average = leading_of_projectors([completed(one.product) for one in tail], n_components)
    return ordered(truncated(average, rows_kept=rows_kept), tail)


def ordered(basis: NDArray[np.float64], iterates: Sequence[Iterate]) -> NDArray[np.float64]:
    """Rotate a basis to the eigenvectors of the released products in its span; return signed rows, descending."""
    small = np.zeros((basis.shape[1], basis.shape[1]))
    for one in iterates:
        small += basis.T @ one.product @ (one.directions.T @ basis)
    _, rotation = leading_eigenpairs((small + small.T) / 2, basis.shape[1])
    return signed(rotation @ basis.T)


def check_rounds(*, n_components: int, rows_kept: int, iterations: int, burn_in: int, message_clip: float) -> None:
    """Refuse impossible settings of the rounds.

    Raises
    ------
    InvalidInput
        When a setting is impossible; the message names it.
    """
    if iterations < 1 or burn_in < 0:
        raise InvalidInput(
            f"iterations={iterations} must be at least 1, burn_in={burn_in} at least 0; 8 and 3 are usual."
        )
    if rows_kept < n_components:
        raise InvalidInput(
            f"rows_kept={rows_kept} must be at least n_components={n_components}: fewer rows cannot hold that many "
            "directions; keep more rows, or use fewer components."
        )
    if not 0 < message_clip <= 1:
        raise InvalidInput(f"message_clip={message_clip!r} must be above 0 and at most 1 (no clipping); 0.25 is usual.")
