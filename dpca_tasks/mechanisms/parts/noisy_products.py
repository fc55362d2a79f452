"""Shared parts of iterative mechanisms: their plan, products with public directions, and averages of iterates.

With ``center=private`` the mean is released first (`dpca_tasks.mechanisms.parts.private_mean`). Centring a product is
then linear post-processing of released numbers: ``(X^T X - s s^T / n) V``.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, composed, poisson_sampled
from dpca_tasks.accounting.subsampled import through_empty_record
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, grid_warnings
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.parts.noise_forecast import forecast
from dpca_tasks.mechanisms.parts.private_mean import mean_noise, mean_query
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import Gaussian, check_tail
from dpca_tasks.noise.grid import grid_bits
from dpca_tasks.queries.clipped_product import ClippedProduct
from dpca_tasks.queries.poisson_sampled import sampled
from dpca_tasks.queries.replaced_product import ReplacedProduct
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, MomentProduct, on_direction_grid
from dpca_tasks.threads import one_thread

START_SEED = 20140109  # the start is public; no guarantee depends on it
AVERAGED = 64  # iterates in an average: more are no better, and all are held in memory
_UP = 1.0 + 2.0**-48  # more than the rounding of noise in grid steps
FINEST = 14  # bits above which exact products would overflow int64


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
        The level up to which the resulting eigenvalues are noise; None where none result.
    message_clip : float
        The bound on a record's contribution; 1 for none.
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
    some = 1 if message_clip == 1.0 else FINEST  # a coarse grid may have no step below the clip
    bits = min(FINEST, grid_bits(noise_std=scale(some), degree=MomentProduct.degree))
    while (fits := grid_bits(noise_std=scale(bits) * _UP, degree=MomentProduct.degree)) < bits:
        bits = fits  # on a coarser grid a record may move a clipped product further
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
    """Return the std of a product's noise, scaled up from a sample to all records; in records at the clip norm."""
    start = start_directions(problem.n_features, min(width, 2))  # two suffice: the sensitivity is the same for more
    query = product_query(problem, bits=FINEST, directions=start, halved=halved, message_clip=message_clip)
    return noise.noise_multiplier * sampled(query, rate=rate, halved=halved).sensitivity("l2") / rate


def inner_target(problem: Problem, target: PrivacyTarget, *, rate: float) -> PrivacyTarget:
    """Return the target to which the steps are calibrated; it differs for samples under replace_one.

    A sampled step has a price for one added, removed or emptied record. Replacing a record takes two such steps,
    through the empty record, so the whole release is calibrated to one of them
    (`dpca_tasks.accounting.subsampled.through_empty_record`).
    """
    if not is_halved(problem, rate=rate):
        return target
    epsilon, delta = through_empty_record(epsilon=target.epsilon, delta=target.delta)
    return dataclasses.replace(target, epsilon=epsilon, delta=delta)


def is_halved(problem: Problem, *, rate: float) -> bool:
    """Tell whether a release samples under replace_one, so that it is calibrated through the empty record."""
    return rate != 1 and problem.relation == "replace_one"


def event_of_all(noise: Gaussian, *, halved: bool) -> Event:
    """Return the event of noise on all records: a sample of rate 1 if calibrated through the empty record."""
    return poisson_sampled(noise.event, 1.0) if halved else noise.event


def product_query(
    problem: Problem,
    *,
    bits: int,
    directions: NDArray[np.float64],
    halved: bool = False,
    message_clip: float = 1.0,
) -> MomentProduct:
    """Return the query for ``X^T (X V)``, V rounded to its public grid.

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
    """Return the leading eigenvectors of the sum of projectors ``V V^T``: the average of iterates."""
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
    """Directions (d, k), and the released estimate (d, k) of ``X^T X`` times them."""

    directions: NDArray[np.float64]
    product: NDArray[np.float64]


def is_averaged(step: int, steps: int) -> bool:
    """Tell whether a step's directions enter the average: at most `AVERAGED`, evenly spread over the last half."""
    first = steps // 2
    stride = -(-(steps - first) // AVERAGED)
    return step >= first and (steps - 1 - step) % stride == 0


def averaged(iterates: Sequence[Iterate], n_components: int, *, mean: NDArray[np.float64] | None = None) -> Subspace:
    """Average iterates: take the leading directions of their projectors and diagonalise the released products there."""
    basis = leading_of_projectors([one.directions for one in iterates], n_components)
    small = np.zeros((n_components, n_components))
    with one_thread():
        for one in iterates:
            small += basis.T @ one.product @ (one.directions.T @ basis) / len(iterates)
        values, rotation = leading_eigenpairs((small + small.T) / 2, n_components)
        components = signed(rotation @ basis.T)
    return Subspace(components=components, eigenvalues=values, spectrum=values, mean=mean)
