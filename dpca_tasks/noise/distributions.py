"""The closed set of noise distributions, their grid, and joint noise on several parts of one statistic.

*Weights* are the relative std of each packed coordinate of isometric symmetric noise.

A packed coordinate represents all entries of the tensor that are equal to it by symmetry. Noise with the same std in
every direction of the space of symmetric tensors (Frobenius norm) has std ``1 / sqrt(m)`` at a coordinate that
represents m entries. The functions accept any range of coordinates.

>>> symmetric_weights(2, start=0, stop=3).round(3).tolist()
[1.0, 0.707, 1.0]

*Distributions.* Each distribution has a DP event, and draws integer noise with a key for any range of coordinates.

Coordinate ``i`` of a draw is the integer nearest to ``scale * w_i * Z_i``. Here ``Z_i`` depends only on the key and
``i``, and ``w_i`` is the weight of the coordinate in its layout. Exact sums are integers, so rounding the noise equals
rounding the noisy sum. So the integer noise has the privacy guarantee of the density, up to the error of a sampler
with finitely many bits. For independent coordinates the nearest integer is decided exactly. Each coordinate is within
`dpca_tasks.noise.discrete_gaussian.DISTANCE` of the rounded ideal distribution in total variation, and n coordinates
are within n times this distance. `check_tail` compares this error with delta.

>>> from dpca_tasks.noise.keystream import subkey
>>> distribution = Symmetric(noise_multiplier=4.25)
>>> distribution.event
{'name': 'gaussian', 'noise_multiplier': 4.25}
>>> distribution.draw(subkey(bytes(32), label="noise", info=b""), 3, scale_in_steps=2.0**20).shape
(6,)

*The grid* of a statistic is the number of steps in one unit of its output, chosen from public facts.

*Stacks and joint statistics.* Isometric noise also exists for a stack of separately packed symmetric matrices of one
order. Gaussian noise on several parts of one statistic has one noise multiplier and one event.
"""

import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.discrete_gaussian import DISTANCE, LAPLACE, NORMAL, Standard
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.threads import processors


def symmetric_weights(order: int, *, start: int, stop: int) -> NDArray[np.float64]:
    """Return the weights of coordinates ``(i, j), i <= j``: 1 on the diagonal, ``sqrt(1/2)`` off it."""
    return _triangle(order, start, stop, diagonal=1.0, off_diagonal=math.sqrt(1 / 2))


def cube_weights(order: int, *, start: int, stop: int) -> NDArray[np.float64]:
    """Return the weights of coordinates ``(i, j, k), i <= j <= k``, packed in lexicographic order.

    The weight is 1 if all three indices are equal, ``sqrt(1/3)`` if two are, and ``sqrt(1/6)`` if none are.
    """

    def slice_start(i: int) -> int:
        return _cube_size(order) - _cube_size(order - i)

    weights = np.empty(stop - start)
    i = bisect_right(range(order), start, key=slice_start) - 1
    while (base := slice_start(i)) < stop:
        rest = order - i
        low, high = max(start - base, 0), min(stop - base, rest * (rest + 1) // 2)
        part = weights[base + low - start : base + high - start]
        part[:] = _triangle(rest, low, high, diagonal=math.sqrt(1 / 3), off_diagonal=math.sqrt(1 / 6))
        part[: max(rest - low, 0)] = math.sqrt(1 / 3)  # entries (i, i, k)
        if low == 0:
            part[0] = 1.0  # entry (i, i, i)
        i += 1
    return weights


def _cube_size(order: int) -> int:
    return order * (order + 1) * (order + 2) // 6


def _triangle(order: int, start: int, stop: int, *, diagonal: float, off_diagonal: float) -> NDArray[np.float64]:
    def row_start(row: int) -> int:
        return row * order - row * (row - 1) // 2

    weights = np.full(stop - start, off_diagonal)
    first = bisect_right(range(order), start, key=row_start) - 1
    last = bisect_right(range(order), stop - 1, key=row_start)
    rows = np.arange(first, last)
    places = rows * order - rows * (rows - 1) // 2 - start
    weights[places[places >= 0]] = diagonal
    return weights


LARGEST_SCALE = 2.0**30
"""Largest scale of a coordinate, in grid steps.

`grid_bits` chooses grids with noise scales of at most 2^28 steps. Up to `LARGEST_SCALE` the probability of every
possible integer is exact to 2^-190, and noise stays below 2^38 steps. So noise plus a sum below 2^62 fits an int64.
"""

SPARE = 2.0**-60
"""Largest allowed total variation distance between the noise of a release and the ideal noise, divided by delta."""
PURE_TAIL = 2.0**-80
"""Largest allowed total variation distance between the noise and the ideal noise, if the guarantee has delta 0."""

_PIECE = 1 << 16
_WORTH_THREADS = 1 << 18  # coordinates
ROUNDING = 1.0 + 2.0**-50
"""Factor that enlarges each scale. At least a quarter of the increase remains after scale and weight are rounded."""

LayoutKind = Literal["vector", "symmetric", "cube", "stack"]
Norm = Literal["l1", "l2", "nuclear"]


class NoiseDistribution(ABC):
    """A distribution of additive noise."""

    __slots__ = ()

    name: ClassVar[str]
    """The name in digests. It changes only with the rule that turns random bits into integers."""
    layout: ClassVar[LayoutKind]
    """The kind of `dpca_tasks.layouts.Layout` to which the distribution applies."""
    norm: ClassVar[Norm]
    """The norm in which the sensitivity is measured. It is a norm of the full tensor, not of the packed coordinates."""
    noise_multiplier: float
    """The scale of the noise (a std for normals) divided by the sensitivity."""
    tail_mass: ClassVar[float]
    """A bound, per coordinate, on the total variation distance between the sampled and the ideal distribution."""

    @property
    @abstractmethod
    def event(self) -> events.Event:
        """The privacy event of a draw of noise, as stored in the ledger."""

    @abstractmethod
    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of packed coordinates ``start`` to ``stop - 1``.

        Parameters
        ----------
        key : SecretKey
            A key used for this draw only.
        order : int
            The order of the layout: d for a vector of d, a matrix of d x d or a cube of d x d x d.
        scale_in_steps : float, grid steps
            `noise_multiplier` times the sensitivity, in steps, rounded up by the caller.
        start, stop : int
            The range, by default up to the last coordinate. Any split of the range gives the same noise.

        Returns
        -------
        ndarray of int64 of shape (stop - start,)

        Raises
        ------
        InvalidInput
            If the scale is not positive or exceeds `LARGEST_SCALE`, or the range leaves the layout.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Independent(NoiseDistribution):
    """Noise with independent coordinates, each a standard variate times a weight and the scale."""

    noise_multiplier: float

    standard: ClassVar[Standard] = NORMAL

    def __post_init__(self) -> None:
        """Check that the multiplier is positive and finite."""
        _ = self.event

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates."""
        stop = self._checked_stop(order, start, stop)
        check_scale(scale_in_steps)
        noise = np.empty(stop - start, np.int64)
        for first in range(start, stop, _PIECE):
            last = min(first + _PIECE, stop)
            scales = np.empty(last - first)
            np.multiply(self._weights(order, first, last), scale_in_steps * ROUNDING, out=scales)
            noise[first - start : last - start] = self._integers(key, first, scales)
        return noise

    def _integers(self, key: SecretKey, start: int, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.standard.nearest(key, start=start, scales=scales)

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64] | float:
        return 1.0

    def _checked_stop(self, order: int, start: int, stop: int | None) -> int:
        return checked_stop(self.layout, order, start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(_Independent):
    """Independent normals of one std; the multiplier is the std divided by the L2 sensitivity."""

    name: ClassVar[str] = "Gaussian"
    layout: ClassVar[LayoutKind] = "vector"
    norm: ClassVar[Norm] = "l2"
    tail_mass: ClassVar[float] = DISTANCE

    @property
    def event(self) -> events.Event:
        """The event of Gaussian noise."""
        return events.gaussian(self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric(Gaussian):
    """Isometric noise for a symmetric matrix: std 1 on the diagonal, ``sqrt(1/2)`` off it.

    In an orthonormal basis of the symmetric matrices its coordinates are independent with one std. So it is Gaussian
    noise for the Frobenius sensitivity, with equal variance in every direction.
    """

    name: ClassVar[str] = "Symmetric"
    layout: ClassVar[LayoutKind] = "symmetric"
    off_diagonal: ClassVar[float] = math.sqrt(1 / 2)
    """The ratio of the std off the diagonal to the std on it."""

    def draw_strip(
        self, key: SecretKey, order: int, *, scale_in_steps: float, first: int, last: int
    ) -> NDArray[np.float64]:
        """Return rows ``first`` to ``last - 1`` of the matrix, from column ``first`` on: a strip of the upper part.

        Parameters
        ----------
        key, order, scale_in_steps
            As for `draw`.
        first, last : int
            The rows, ``0 <= first <= last <= order``.

        Returns
        -------
        ndarray of float64 of shape (last - first, order - first)
            The coordinates that `draw` returns, below 2^53 in magnitude; its leading square is complete and symmetric.
        """
        if not 0 <= first <= last <= order:
            raise InvalidInput(f"rows {first}:{last} must lie in 0:{order}; pass such rows")
        check_scale(scale_in_steps)
        scale = scale_in_steps * ROUNDING
        strip = np.zeros((last - first, order - first))
        scales = np.full(order - first, self.off_diagonal * scale)
        for row in range(first, last):
            start = row * order - row * (row - 1) // 2
            of_row = scales[row - first :]
            of_row[0] = scale  # the diagonal; later rows do not use this entry
            strip[row - first, row - first :] = self._integers(key, start, of_row)
        square = strip[:, : last - first]
        square += np.triu(square, 1).T
        return strip

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64] | float:
        return symmetric_weights(order, start=start, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpperTriangle(Symmetric):
    """Noise for a symmetric matrix whose upper triangle has independent entries with one std, as in published papers.

    It is Gaussian noise for the Frobenius sensitivity: ``||M||_F`` is at least the norm of the packed triangle, with
    equality for diagonal matrices. Its std off the diagonal is ``sqrt 2`` times that of `Symmetric`.
    """

    name: ClassVar[str] = "UpperTriangle"
    off_diagonal: ClassVar[float] = 1.0

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64] | float:
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cube(Gaussian):
    """Isometric noise for a symmetric tensor of order 3.

    The std is 1, ``sqrt(1/3)`` or ``sqrt(1/6)`` for 3, 2 or no equal indices. It is Gaussian noise for the Frobenius
    sensitivity of symmetric tensors, with equal variance in every direction.
    """

    name: ClassVar[str] = "Cube"
    layout: ClassVar[LayoutKind] = "cube"

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64]:
        return cube_weights(order, start=start, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(_Independent):
    """Independent Laplace coordinates; the multiplier is the scale divided by the L1 sensitivity."""

    name: ClassVar[str] = "Laplace"
    layout: ClassVar[LayoutKind] = "vector"
    norm: ClassVar[Norm] = "l1"
    tail_mass: ClassVar[float] = DISTANCE
    standard: ClassVar[Standard] = LAPLACE

    @property
    def event(self) -> events.Event:
        """The event of Laplace noise."""
        return events.laplace(self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricLaplace(Laplace):
    """Laplace noise for a symmetric matrix: the entries of its upper triangle are independent.

    The multiplier refers to the l1 sensitivity of the packed triangle.
    """

    name: ClassVar[str] = "SymmetricLaplace"
    layout: ClassVar[LayoutKind] = "symmetric"


def add_noise(
    answer: NDArray[np.int64],
    distribution: NoiseDistribution,
    key: SecretKey,
    order: int,
    *,
    scale_in_steps: float,
    first: int = 0,
) -> None:
    """Add a draw of noise to packed sums, in one thread per processor; cluster workers do not call this function.

    Parameters
    ----------
    answer : int64 array
        The sums of the layout, from coordinate ``first`` on; changed in place.
    distribution, key, order, scale_in_steps
        As for `NoiseDistribution.draw`, which gives the same noise for any split.
    """
    if answer.size < _WORTH_THREADS or not isinstance(distribution, _Independent):
        stop = first + answer.size
        answer += distribution.draw(key, order, scale_in_steps=scale_in_steps, start=first, stop=stop)
        return
    parts = processors()
    bounds = [answer.size * part // parts for part in range(parts + 1)]

    def add(start: int, stop: int) -> None:
        span = {"start": first + start, "stop": first + stop}
        answer[start:stop] += distribution.draw(key, order, scale_in_steps=scale_in_steps, **span)

    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(add, *bound) for bound in itertools.pairwise(bounds)]:
            done.result()


class Sampled(Protocol):
    """Interface of a distribution that is sampled from finitely many random bits."""

    name: ClassVar[str]

    @property
    def tail_mass(self) -> float: ...  # noqa: D102


def check_tail(distribution: Sampled, *, draws: int, delta: float) -> None:
    """Refuse noise whose distribution may differ from the ideal distribution by more than `SPARE` times delta.

    Parameters
    ----------
    distribution : Sampled
        A noise distribution, or a mechanism of noised directions.
    draws : int
        The number of coordinates drawn in the whole release.
    delta : float
        The delta of the budget. With 0, a pure guarantee, which holds up to a total variation distance of `PURE_TAIL`.

    Raises
    ------
    Refused
        If the difference may be larger.

    Notes
    -----
    A distribution within t of an (epsilon, delta)-DP one is (epsilon, delta + (1 + e^epsilon) t)-DP. For Gaussian noise
    the enlarged scale compensates for t: it is at least ``1 + 2^-52`` times the charged scale (`ROUNDING`).
    The derivative ``d delta / d mu = phi(epsilon / mu - mu / 2)`` is at least ``delta / mu`` where
    ``mu^2 <= 2 epsilon``, and nearly so beyond, at any useful delta. So the true delta is below
    the claimed delta by at least the fraction ``2^-53``. This fraction exceeds ``(1 + e^epsilon) SPARE`` for epsilon up
    to 4. For a larger epsilon, n coordinates increase delta by ``(1 + e^epsilon) n tail_mass``.
    """
    mass = distribution.tail_mass * draws
    if not mass <= (SPARE * delta if delta else PURE_TAIL):
        raise Refused(
            f"{draws} draws of {distribution.name} differ from the ideal distribution by up to {mass:.1e}, which must "
            f"be at most 2^-60 of delta={delta} (or {PURE_TAIL:.1e} if delta is 0); use a larger delta"
        )


def checked_stop(kind: LayoutKind, order: int, start: int, stop: int | None) -> int:
    """Check a range of coordinates of a layout, and return its end; if ``stop`` is None, the end of the layout."""
    size = Layout(kind=kind, order=order).size
    stop = size if stop is None else stop
    if not 0 <= start <= stop <= size:
        raise InvalidInput(f"the range {start}:{stop} must lie in 0:{size}; pass such a range")
    return stop


def check_scale(scale: float) -> None:
    """Check that a scale is positive and at most `LARGEST_SCALE`."""
    if not 0 < scale <= LARGEST_SCALE:
        raise InvalidInput(
            f"a noise scale of {scale} grid steps must be positive and at most 2**30; "
            "use a coarser grid or more epsilon"
        )


MAX_NOISE_STEPS = 2.0**28
MAX_STEPS_PER_UNIT = 2**28


def grid_bits(*, noise_std: float, degree: int) -> int:
    """Choose the finest safe grid from public facts.

    Parameters
    ----------
    noise_std : float
        The largest standard deviation of a coordinate, in units where a clipped record has norm 1.
    degree : int
        The number of record entries that a contribution multiplies: 1 for values, 2 for second moments, 3 for third
        moments.

    Returns
    -------
    int
        The largest b with ``noise_std * 2^(degree b) <= 2^28`` steps and ``2^(degree b) <= 2^28``.

    Raises
    ------
    InvalidInput
        When the noise is too large for any grid.
    """
    if not noise_std > 0 or math.isinf(noise_std):
        raise InvalidInput(f"noise_std={noise_std!r} must be positive and finite; choose a larger epsilon.")
    limit = min(MAX_NOISE_STEPS / noise_std, MAX_STEPS_PER_UNIT)
    bits = math.floor(math.log2(limit) / degree) if limit >= 1 else 0
    while bits and 2.0 ** (degree * bits) > limit:  # because log2 may round up
        bits -= 1
    if bits < 1:
        raise InvalidInput(
            f"noise_std={noise_std!r} is too large for any grid of integers; choose a larger epsilon or delta."
        )
    return bits


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricStack(Gaussian):
    """Isometric noise for a stack of symmetric matrices.

    The std is 1 on each diagonal and ``sqrt(1/2)`` off it, and all coordinates are independent. It is Gaussian noise
    for the l2 norm of the matrices' Frobenius norms. `draw` takes the order of one matrix, and its range may extend
    over any number of matrices: the caller determines the length of the stack.

    >>> from dpca_tasks.noise.keystream import subkey
    >>> key = subkey(bytes(32), label="noise", info=b"")
    >>> SymmetricStack(noise_multiplier=2.0).draw(key, 3, scale_in_steps=2.0**10, stop=4 * 6).shape
    (24,)
    """

    name: ClassVar[str] = "SymmetricStack"
    layout: ClassVar[LayoutKind] = "stack"

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64]:
        size = Layout(kind="symmetric", order=order).size
        of_one = np.broadcast_to(symmetric_weights(order, start=0, stop=size), size)
        return of_one[np.arange(start, stop) % size]

    def _checked_stop(self, order: int, start: int, stop: int | None) -> int:
        if stop is None or not 0 <= start <= stop or order < 1:
            raise InvalidInput(f"coordinates {start}:{stop} of a stack must be a range with an end; pass its end")
        return stop


_OF_LAYOUT: dict[str, type[Gaussian]] = {kind.layout: kind for kind in (Gaussian, Symmetric, Cube, SymmetricStack)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGaussian:
    """Independent Gaussian noise for each part of a `dpca_tasks.queries.joint_sum.JointSum`, scaled by its bound.

    The multiplier is the std divided by the sensitivity of the statistic whose parts are divided by their bounds.

    >>> JointGaussian(noise_multiplier=2.0).event
    {'name': 'gaussian', 'noise_multiplier': 2.0}
    """

    name: ClassVar[str] = "JointGaussian"
    norm: ClassVar[str] = "joint"

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check that the multiplier is positive and finite."""
        _ = self.event

    @property
    def event(self) -> events.Event:
        """The event of one Gaussian mechanism, for any number of parts."""
        return events.gaussian(self.noise_multiplier)

    def part(self, layout: str) -> NoiseDistribution:
        """Return the noise distribution of a part with a given layout."""
        return _OF_LAYOUT[layout](noise_multiplier=self.noise_multiplier)
