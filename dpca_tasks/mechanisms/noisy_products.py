"""Shared parts of mechanisms that never form a second moment.

*Mean.* With ``center=private`` a mechanism first releases the sum s of the rows and their count n, and computes the
mean from both. There are two cases:

- Mechanisms that release products ``X^T X V`` with public directions V subtract ``s s^T V / n`` from the noisy answer
  (`Centre.shifted`), which is post-processing. The Gaussian step that releases the mean takes the share `MEAN_SHARE` of
  the target's mu^2.
- Mechanisms that draw directions, or add noise to computed directions, subtract the mean from the records first
  (`dpca_tasks.queries.recentred_moment`). For these mechanisms only epsilon and delta are known, so the mean takes the
  share `MEAN_SHARE` of both, by basic composition (`mean_first`).

*Products.* Iterative mechanisms share the plan, the query for a product with public directions, and the average of the
directions of several iterations.

*Truncated rounds.* Each round of DPS-PCA releases the noisy product with row-sparse directions, and truncates the
product to its longest rows. The result is the average over the last rounds. Among rows of equal length, the row with
the smaller index is used. If a product has deficient rank, public random numbers complete the directions. So the result
does not depend on arbitrary choices of a linear algebra library.

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
    """The released sum and count of the rows, and the mean that follows from both."""

    def __init__(self, total: NDArray[np.float64], count: float) -> None:
        self.mean = total / max(count, 1.0)
        self._total = total

    def shifted(
        self, product: NDArray[np.float64], directions: NDArray[np.float64], *, part: float = 1.0
    ) -> NDArray[np.float64]:
        """Centre a noisy product ``X^T X V`` at the released mean; ``part`` is the share of records in the product."""
        return product - part * np.outer(self._total, self.mean @ directions)


def mean_share(problem: Problem) -> Fraction:
    """Return the mean's share of the budget mu^2 (Gaussian DP): `MEAN_SHARE`, or 0 if no mean is released."""
    return MEAN_SHARE if problem.center == "private" else Fraction(0)


def mean_noise(problem: Problem, target: PrivacyTarget) -> Gaussian | None:
    """Return the Gaussian noise for a release of the mean, which gets the share `MEAN_SHARE` of the budget mu^2.

    The result is None if the problem is not centred.
    """
    if problem.center == "none":
        return None
    return Gaussian(
        noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=MEAN_SHARE)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFirst:
    """The division of a privacy target by basic composition: noise for the mean, and a target for the later steps."""

    noise: MeanNoise | None
    rest: PrivacyTarget

    def event(self, following: Event) -> Event:
        """Return the event of the mean's release, if any, composed with the event ``following`` of the later steps."""
        return following if self.noise is None else composed(self.noise.event, following)


def mean_first(problem: Problem, target: PrivacyTarget, *, pure: bool = False) -> MeanFirst:
    """Divide a privacy target between the release of a mean and the later steps, if the problem is centred.

    Parameters
    ----------
    problem, target
        The public facts and the privacy target of the request.
    pure : bool
        Whether the later steps are pure epsilon-DP even if the target has a delta. The mean's release is then pure too.

    Returns
    -------
    MeanFirst
        The mean has Gaussian noise for the share `MEAN_SHARE` of epsilon and of delta. If its delta is 0, it has
        Laplace noise for this share of epsilon. `MEAN_SHARE` is a power of two, so multiplication by it is exact. The
        epsilon and delta of the later steps are rounded down, so that the sums do not exceed the target.
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
    """Release the sum and the count of the rows in one noisy answer; if ``noise`` is None, return None.

    If ``halved`` is true, the noise is calibrated for an emptied record, because replacing a record is accounted as two
    changes (see `inner_target`).
    """
    if noise is None:
        return None
    noisy = curator.release(mean_query(problem, noise, halved=halved), noise)
    constant = CONSTANT * problem.clip_norm
    return Centre(noisy[:-1] / constant, float(noisy[-1]) / constant**2)


def release_shift(curator: Curator, problem: Problem, noise: MeanNoise | None) -> NDArray[np.int64] | None:
    """Release the mean, scale it to at most the clip norm, and round it to a public grid.

    The result can be subtracted from records. If ``noise`` is None, nothing is released, and the result is None.
    """
    centre = release_centre(curator, problem, noise)
    return None if centre is None else on_shift_grid(centre.mean / problem.clip_norm)


def mean_of(requested: RowSum | Eigensolver) -> NDArray[np.float64] | None:
    """Return the mean that the query ``requested`` subtracts from the records, in data units; None without a mean."""
    shift = requested.public_inputs().get("shift")
    return None if shift is None else shift * (requested.clip_norm * SHIFT_STEP)


def mean_query(problem: Problem, noise: MeanNoise, *, halved: bool = False) -> RowSum:
    """Return the query for the sum and the count of the rows, on the finest grid that the noise permits.

    Raises
    ------
    InvalidInput
        When the noise is too large for any grid. Plans call this function to find this error before any charge.
    """
    coarse = RecordMean(n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=1)
    spread = math.sqrt(2.0) if noise.norm == "l1" else 1.0  # the std of the noise divided by its scale parameter
    noise_std = noise.noise_multiplier * sampled(coarse, rate=1.0, halved=halved).sensitivity(noise.norm) * spread
    query = dataclasses.replace(coarse, bits=grid_bits(noise_std=noise_std, degree=RecordMean.degree))
    return sampled(query, rate=1.0, halved=halved)


START_SEED = 20140109  # seed of the public start directions; no guarantee depends on it
AVERAGED = 64  # largest number of averaged iterates: more do not improve the average, and all are held in memory
_UP = 1.0 + 2.0**-48  # a factor that covers the rounding error of a noise scale
FINEST = 14  # the largest number of bits of the grid: exact products on a finer grid would overflow int64


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
    """Plan noisy products ``X^T X V`` with ``width`` directions V, after the mean if the problem is centred.

    Parameters
    ----------
    mechanism, problem, target
        The name of the mechanism, the public facts and the privacy target.
    width : int
        The number p of directions, the columns of V.
    noises : sequence of (Gaussian, float)
        The noise and the sampling rate of each kind of product. The last kind is the main one: its noise multiplier is
        the plan's ``noise_multiplier``.
    releases : int
        The number of products.
    event : Event
        The event of all products.
    n_components : int
        The number k of components.
    level : float, squared clip norms
        The strength up to which a component cannot be distinguished from noise.
    edge : float, squared clip norms, optional
        The largest eigenvalue that noise alone produces; None if the mechanism releases no eigenvalues.
    message_clip : float
        The bound on the norm of a record's contribution to a product; 1 for no bound.
    inner : PrivacyTarget, optional
        The target to which the steps were calibrated, if it differs from ``target``: see `inner_target`.
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
    some = 1 if message_clip == 1.0 else FINEST  # a step of a coarse grid may exceed the bound message_clip
    bits = min(FINEST, grid_bits(noise_std=scale(some), degree=MomentProduct.degree))
    while (fits := grid_bits(noise_std=scale(bits) * _UP, degree=MomentProduct.degree)) < bits:
        bits = fits  # a coarser grid may increase the sensitivity of a clipped product, so the loop checks again
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
    """Return the std of the noise in each entry of a product ``X^T X V``, in squared clip norms.

    For a product over a sample of the records, the std is divided by the sampling rate.
    """
    start = start_directions(problem.n_features, min(width, 2))  # the sensitivity is the same for two or more columns
    query = product_query(problem, bits=FINEST, directions=start, halved=halved, message_clip=message_clip)
    return noise.noise_multiplier * sampled(query, rate=rate, halved=halved).sensitivity("l2") / rate


def inner_target(problem: Problem, target: PrivacyTarget, *, rate: float) -> PrivacyTarget:
    """Return the privacy target to which the steps of a mechanism are calibrated.

    It is the requested target, except for sampled steps under replace_one. The privacy loss of a sampled step is known
    for one added, removed or emptied record. Replacing a record is the same as emptying it and then filling it again.
    So the whole release is calibrated to one of these two changes, with the target that makes both changes together
    meet the requested one (`dpca_tasks.accounting.subsampled.through_empty_record`).
    """
    if not is_halved(problem, rate=rate):
        return target
    epsilon, delta = through_empty_record(epsilon=target.epsilon, delta=target.delta)
    return dataclasses.replace(target, epsilon=epsilon, delta=delta)


def is_halved(problem: Problem, *, rate: float) -> bool:
    """Return whether a release samples records and has the relation replace_one.

    If so, its steps are calibrated to the stricter target of `inner_target`.
    """
    return rate != 1 and problem.relation == "replace_one"


def event_of_all(noise: Gaussian, *, halved: bool) -> Event:
    """Return the event of Gaussian noise on a sum over all records.

    If ``halved`` is true, the noise is calibrated to an emptied record (`inner_target`). The event is then stated as a
    Poisson sample of rate 1.
    """
    return poisson_sampled(noise.event, 1.0) if halved else noise.event


def product_query(
    problem: Problem,
    *,
    bits: int,
    directions: NDArray[np.float64],
    halved: bool = False,
    message_clip: float = 1.0,
) -> MomentProduct:
    """Return the query for the product ``X^T (X V)`` of the second moment with directions V, rounded to a public grid.

    If ``halved`` is true, the release is calibrated to an emptied record (`inner_target`), so the special rounding for
    replaced records is not needed. A ``message_clip`` below 1 bounds the norm of each record's contribution.
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
    """Return the directions of a product query as floats, exactly as rounded to the public grid."""
    return query.directions / 2.0**DIRECTION_BITS


def start_directions(n_features: int, width: int) -> NDArray[np.float64]:
    """Return public random orthonormal columns of shape (n_features, width), from a fixed seed."""
    return orthonormal(np.random.default_rng(START_SEED).standard_normal((n_features, width)))


def orthonormal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal factor Q of the thin decomposition ``M = Q R`` with positive diagonal of R.

    LAPACK runs on one thread, so the same matrix gives the same bits.
    """
    with one_thread():
        q, r = np.linalg.qr(matrix)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def leading_of_projectors(bases: list[NDArray[np.float64]], width: int) -> NDArray[np.float64]:
    """Return the leading ``width`` eigenvectors of the sum of ``V V^T`` over all V in ``bases``, as columns."""
    with one_thread():
        left, _, _ = np.linalg.svd(np.hstack(bases), full_matrices=False)
    return np.ascontiguousarray(left[:, :width])


def ranked(
    basis: NDArray[np.float64], values: NDArray[np.float64], n_components: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first k columns of a basis as rows with fixed signs, and their ``values``, sorted by falling value."""
    order = np.argsort(-values[:n_components], kind="stable")
    return signed(basis.T[:n_components][order]), values[:n_components][order]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iterate:
    """Directions V of one iteration, of shape (d, k), and the released noisy estimate of ``X^T X V``."""

    directions: NDArray[np.float64]
    product: NDArray[np.float64]


def is_averaged(step: int, steps: int) -> bool:
    """Return whether the directions of step ``step`` of an iteration enter the average of the result.

    At most `AVERAGED` steps are averaged, evenly spread over the second half of all steps.
    """
    first = steps // 2
    stride = -(-(steps - first) // AVERAGED)
    return step >= first and (steps - 1 - step) % stride == 0


def averaged(iterates: Sequence[Iterate], n_components: int, *, mean: NDArray[np.float64] | None = None) -> Subspace:
    """Average the iterations of a mechanism into a subspace of ``n_components`` directions, with eigenvalues.

    The subspace is spanned by the leading eigenvectors of the sum of the projectors ``V V^T`` over all iterates. The
    average of the released products is diagonalised within this subspace, which gives components and eigenvalues.
    """
    basis = leading_of_projectors([one.directions for one in iterates], n_components)
    small = np.zeros((n_components, n_components))
    with one_thread():
        for one in iterates:
            small += basis.T @ one.product @ (one.directions.T @ basis) / len(iterates)
        values, rotation = leading_eigenpairs((small + small.T) / 2, n_components)
        components = signed(rotation @ basis.T)
    return Subspace(components=components, eigenvalues=values, spectrum=values, mean=mean)


COMPLETION_SEED = 20180411  # seed of the public columns that replace missing ones; no guarantee depends on it
_RANK = 1e-12  # a column of at most this length, relative to the longest column, counts as zero


def truncated(matrix: NDArray[np.float64], *, rows_kept: int) -> NDArray[np.float64]:
    """Set all rows of a matrix except the ``rows_kept`` longest to zero; return the result with orthonormal columns.

    Of rows with equal norm, those with smaller index are kept.
    """
    rows = _longest_rows(matrix, rows_kept)
    basis = np.zeros_like(matrix)
    basis[rows] = completed(matrix[rows])
    return basis


def completed(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal factor of a thin QR decomposition with positive diagonal.

    If the matrix has deficient rank, public random columns replace the missing directions.
    """
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
    """Take one step of truncated orthogonal iteration without noise.

    The row-sparse ``directions`` are multiplied by the symmetric matrix ``moment``. The product is orthonormalised and
    truncated to its ``rows_kept`` longest rows.
    """
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
    """Run truncated orthogonal iteration from public start directions, and return the components as signed rows.

    Parameters
    ----------
    answer : callable
        Releases the noisy product of the second moment with a round's directions. It returns the product, and the
        directions as rounded in the query.
    n_features, n_components, iterations : int
        The numbers of features, of components and of rounds.
    burn_in : int
        The number of initial rounds whose products do not enter the average. The last product always enters.
    rows_kept : int
        The number of features that may have nonzero entries in the directions and in the components.
    """
    directions, iterates = start_directions(n_features, n_components), []
    for _ in range(iterations):
        iterates.append(answer(directions))
        directions = truncated(completed(iterates[-1].product), rows_kept=rows_kept)
    tail = iterates[min(burn_in, iterations - 1) :]
    average = leading_of_projectors([completed(one.product) for one in tail], n_components)
    return ordered(truncated(average, rows_kept=rows_kept), tail)


def ordered(basis: NDArray[np.float64], iterates: Sequence[Iterate]) -> NDArray[np.float64]:
    """Rotate an orthonormal basis to the eigenvectors of the released second moment within the span of the basis.

    The moment within the span is estimated from the released products of ``iterates``. The result is signed rows, by
    falling eigenvalue.
    """
    small = np.zeros((basis.shape[1], basis.shape[1]))
    for one in iterates:
        small += basis.T @ one.product @ (one.directions.T @ basis)
    _, rotation = leading_eigenpairs((small + small.T) / 2, basis.shape[1])
    return signed(rotation @ basis.T)


def check_rounds(*, n_components: int, rows_kept: int, iterations: int, burn_in: int, message_clip: float) -> None:
    """Refuse impossible settings of truncated orthogonal iteration.

    Raises
    ------
    InvalidInput
        When a setting is impossible; the message names the setting.
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
