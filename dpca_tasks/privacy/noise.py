"""The closed set of noise laws: what each costs, and its integer noise on a grid, keyed and random access.

Coordinate ``i`` of a draw is ``rint(scale * w_i * Z_i)``, where ``Z_i`` depends on the key and ``i`` only and
``w_i`` is the weight of the coordinate in its layout. Rounding after the noise is the same as rounding the
noise, because the exact sums are integers, so each law has the privacy that its density has on paper.

>>> from dpca_tasks.privacy.keystream import subkey
>>> law = Symmetric(noise_multiplier=4.25)
>>> law.event
{'name': 'gaussian', 'noise_multiplier': 4.25}
>>> law.draw(subkey(bytes(32), label="noise", info=b""), 3, scale_in_steps=2.0**20).shape
(6,)
"""

import itertools
import math
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
from dask.system import CPU_COUNT
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.layouts import Layout
from dpca_tasks.privacy import events
from dpca_tasks.privacy.calibration import wishart_noise_multiplier
from dpca_tasks.privacy.keystream import SecretKey
from dpca_tasks.privacy.uniform import RESOLUTION
from dpca_tasks.privacy.variates import laplaces, normals
from dpca_tasks.privacy.weights import cube_weights, symmetric_weights

LARGEST_SCALE = 2.0**30
"""The largest scale of a coordinate, in grid steps.

The grid rule asks for at most 2^28. Up to here every integer is within reach, the edges between integers are
off by less than 2^-14 of a step, and noise stays below 2^52 steps: with a sum below 2^62 it fits an int64.
"""

PURE_TAIL = 2.0**-80
"""How far a sampled law may be from the ideal one, in total variation, under a claim without delta."""

_PIECE = 1 << 16
_WORTH_THREADS = 1 << 18  # coordinates
_ROWS_AT_ONCE = 8
_ROUNDING = 1.0 + 2.0**-50  # covers the rounding of scale times weight

LayoutKind = Literal["vector", "symmetric", "cube"]
Norm = Literal["l1", "l2", "nuclear"]


class NoiseLaw(ABC):
    """A law of additive noise."""

    __slots__ = ()

    layout: ClassVar[LayoutKind]
    """The kind of `dpca_tasks.layouts.Layout` that the law fits."""
    norm: ClassVar[Norm]
    """The norm in which it wants the sensitivity: of the full tensor, not of its packed coordinates."""
    noise_multiplier: float
    """The scale of the noise (a std for normals) over the sensitivity."""
    tail_mass: ClassVar[float]
    """A bound, per coordinate, on how often the sampled law and the ideal one differ.

    They differ where ``u`` runs out of bits. Beyond 2^52 steps lies less than 1e-1000 of every law here.
    """

    @property
    @abstractmethod
    def event(self) -> events.Event:
        """What a draw does, for the ledger."""

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
            The range; to the last coordinate by default. Any split of it gives the same noise.

        Returns
        -------
        ndarray of int64 of shape (stop - start,)

        Raises
        ------
        InvalidInput
            If the scale is not positive or passes `LARGEST_SCALE`, or the range leaves the layout.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Independent(NoiseLaw):
    """Independent coordinates: a standard variate times a weight."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse a multiplier that is no event."""
        _ = self.event

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates."""
        stop = _checked_stop(self.layout, order, start, stop)
        _check_scale(scale_in_steps)
        noise = np.empty(stop - start, np.int64)
        for first in range(start, stop, _PIECE):
            last = min(first + _PIECE, stop)
            variates = self._variates(key, first, last)
            variates *= self._weights(order, first, last) * (scale_in_steps * _ROUNDING)
            noise[first - start : last - start] = np.rint(variates, out=variates)
        return noise

    def _variates(self, key: SecretKey, start: int, stop: int) -> NDArray[np.float64]:
        return normals(key, start=start, stop=stop)

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64] | float:
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(_Independent):
    """Independent normals of one std; the multiplier is the std over the L2 sensitivity."""

    layout: ClassVar[LayoutKind] = "vector"
    norm: ClassVar[Norm] = "l2"
    tail_mass: ClassVar[float] = RESOLUTION

    @property
    def event(self) -> events.Event:
        """Gaussian noise."""
        return events.gaussian(self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric(Gaussian):
    """The isometric symmetric matrix: std 1 on the diagonal, ``sqrt(1/2)`` off it.

    In an orthonormal basis of the symmetric matrices its coordinates are independent with one std, so it is
    Gaussian noise for the Frobenius sensitivity, alike in every direction.
    """

    layout: ClassVar[LayoutKind] = "symmetric"
    beside: ClassVar[float] = math.sqrt(1 / 2)
    """The std off the diagonal, over the one on it."""

    def draw_strip(
        self, key: SecretKey, order: int, *, scale_in_steps: float, first: int, last: int
    ) -> NDArray[np.float64]:
        """Return rows ``first`` to ``last - 1`` of the matrix, from column ``first`` on: a strip of the upper part.

        Parameters
        ----------
        key, order, scale_in_steps
            As of `draw`.
        first, last : int
            The rows, ``0 <= first <= last <= order``.

        Returns
        -------
        ndarray of float64 of shape (last - first, order - first)
            The coordinates that `draw` gives, below 2^53 in magnitude; its leading square is whole and symmetric.
        """
        if not 0 <= first <= last <= order:
            raise InvalidInput(f"rows {first}:{last} must lie in 0:{order}; pass such rows")
        _check_scale(scale_in_steps)
        scale = scale_in_steps * _ROUNDING
        strip = np.zeros((last - first, order - first))
        for row in range(first, last):
            start = row * order - row * (row - 1) // 2
            variates = self._variates(key, start, start + order - row)
            part = strip[row - first, row - first :]
            np.multiply(variates, self.beside * scale, out=part)
            part[0] = variates[0] * scale
            np.rint(part, out=part)
        square = strip[:, : last - first]
        square += np.triu(square, 1).T
        return strip

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64] | float:
        return symmetric_weights(order, start=start, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpperTriangle(Symmetric):
    """The symmetric matrix whose upper triangle has independent entries of one std: the published draw.

    Gaussian noise for the Frobenius sensitivity: ``||M||_F`` is at least the norm of the packed triangle, and
    equals it on the diagonal. It has ``sqrt 2`` too much off the diagonal, where `Symmetric` has not.
    """

    beside: ClassVar[float] = 1.0

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64] | float:
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cube(Gaussian):
    """The isometric symmetric tensor of order 3: std 1, ``sqrt(1/3)`` or ``sqrt(1/6)`` by equal indices.

    Gaussian noise for the Frobenius sensitivity of symmetric tensors, alike in every direction.
    """

    layout: ClassVar[LayoutKind] = "cube"

    def _weights(self, order: int, start: int, stop: int) -> NDArray[np.float64]:
        return cube_weights(order, start=start, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(_Independent):
    """Independent Laplace coordinates; the multiplier is the scale over the L1 sensitivity."""

    layout: ClassVar[LayoutKind] = "vector"
    norm: ClassVar[Norm] = "l1"
    tail_mass: ClassVar[float] = RESOLUTION

    @property
    def event(self) -> events.Event:
        """Laplace noise."""
        return events.laplace(self.noise_multiplier)

    def _variates(self, key: SecretKey, start: int, stop: int) -> NDArray[np.float64]:
        return laplaces(key, start=start, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricLaplace(Laplace):
    """The symmetric matrix whose upper triangle has independent Laplace entries.

    The l1 sensitivity is that of the packed triangle.
    """

    layout: ClassVar[LayoutKind] = "symmetric"


@dataclass(frozen=True, slots=True, kw_only=True)
class WishartDifference(NoiseLaw):
    """The symmetrised Wishart matrix ``c (A^T A - B^T B)``, A and B standard normal of shape (d + 1) x d.

    Pure epsilon-DP: when the sum moves by P of nuclear norm t, the density of the noisy sum changes by a
    factor of at most ``exp(t / 2c)``. The std is ``c sqrt(2 (d + 1))`` off the diagonal and
    ``2 c sqrt(d + 1)`` on it.

    Notes
    -----
    Proof. ``W = c A^T A`` has density proportional to ``exp(-tr W / 2c)`` on ``W >= 0`` (d + 1 degrees of
    freedom leave no determinant). So the noise has density ``h(D) = const * exp(tr D / 2c) * Int
    exp(-tr W / c) dW`` over ``W >= 0``, ``W >= D``. Let ``P >= 0``. From D to ``D + P`` the factor in front
    grows by ``exp(tr P / 2c)`` and the domain shrinks. From D to ``D - P``, with ``W' = W + P``, the factors
    are ``exp(-tr P / 2c)`` and ``exp(tr P / c)``, and the domain of W' lies in the old one. Any symmetric P
    is a difference of two such, of total trace t.

    Adding one Wishart matrix, as Jiang, Xie and Zhang (2016) do, is not DP: its support tells neighbours
    apart.
    """

    layout: ClassVar[LayoutKind] = "symmetric"
    norm: ClassVar[Norm] = "nuclear"
    tail_mass: ClassVar[float] = 4 * RESOLUTION  # 2 d (d + 1) normals for d (d + 1) / 2 coordinates

    epsilon: float
    noise_multiplier: float = field(init=False)
    """The factor c for sensitivity 1."""

    def __post_init__(self) -> None:
        """Calibrate c."""
        object.__setattr__(self, "noise_multiplier", wishart_noise_multiplier(epsilon=self.epsilon))

    @property
    def event(self) -> events.Event:
        """A pure mechanism."""
        return events.approximate(self.epsilon, 0.0)

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates; all of them are made for it.

        The scale is c in steps. It is the std on the diagonal that may not pass `LARGEST_SCALE`.
        """
        stop = _checked_stop(self.layout, order, start, stop)
        _check_scale(scale_in_steps * 2.0 * math.sqrt(order + 1))
        packed = np.zeros(Layout(kind="symmetric", order=order).size)
        n_rows = 2 * (order + 1)
        for first in range(0, n_rows, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, n_rows)
            rows = normals(key, start=first * order, stop=last * order).reshape(last - first, order)
            signs = np.where(np.arange(first, last) <= order, 1.0, -1.0)
            _add_outer_products(rows, signs, packed)
        packed *= scale_in_steps * _ROUNDING
        return np.rint(packed[start:stop]).astype(np.int64)


def add_noise(answer: NDArray[np.int64], law: NoiseLaw, key: SecretKey, order: int, *, scale_in_steps: float) -> None:
    """Add a whole draw to packed sums, in as many threads as this process has processors: no worker calls it.

    Parameters
    ----------
    answer : int64 array
        The sums of the layout; changed.
    law, key, order, scale_in_steps
        As of `NoiseLaw.draw`, which gives the same noise for any split.
    """
    if answer.size < _WORTH_THREADS or not isinstance(law, _Independent):
        answer += law.draw(key, order, scale_in_steps=scale_in_steps)
        return
    bounds = [answer.size * part // CPU_COUNT for part in range(CPU_COUNT + 1)]

    def add(start: int, stop: int) -> None:
        answer[start:stop] += law.draw(key, order, scale_in_steps=scale_in_steps, start=start, stop=stop)

    with ThreadPoolExecutor(CPU_COUNT) as pool:
        for done in [pool.submit(add, *bound) for bound in itertools.pairwise(bounds)]:
            done.result()


class Sampled(Protocol):
    """A law drawn from finitely many bits."""

    @property
    def tail_mass(self) -> float: ...  # noqa: D102


def check_tail(law: Sampled, *, draws: int, delta: float) -> None:
    """Refuse draws whose sampled law may differ from the ideal one by more than 1 % of delta.

    Parameters
    ----------
    law : Sampled
        A noise law, or a law of noised directions.
    draws : int
        The number of coordinates drawn in the whole release.
    delta : float
        The delta of the budget. A pure claim has 0: a sampler of finitely many bits keeps it up to `PURE_TAIL`.

    Raises
    ------
    Refused
        If it is more.
    """
    mass = law.tail_mass * draws
    if not mass <= (0.01 * delta if delta else PURE_TAIL):
        raise Refused(
            f"{draws} draws of {type(law).__name__} leave a tail of {mass:.1e}, which must be at most 1 % of "
            f"delta={delta} (of a pure claim {PURE_TAIL:.1e}); ask for a larger delta"
        )


def _checked_stop(kind: LayoutKind, order: int, start: int, stop: int | None) -> int:
    size = Layout(kind=kind, order=order).size
    stop = size if stop is None else stop
    if not 0 <= start <= stop <= size:
        raise InvalidInput(f"the range {start}:{stop} must lie in 0:{size}; pass such a range")
    return stop


def _check_scale(scale: float) -> None:
    if not 0 < scale <= LARGEST_SCALE:
        raise InvalidInput(
            f"a noise scale of {scale} grid steps must be positive and at most 2**30; "
            "use a coarser grid or more epsilon"
        )


@njit(cache=True, nogil=True)
def _add_outer_products(rows: NDArray[np.float64], signs: NDArray[np.float64], packed: NDArray[np.float64]) -> None:
    """Add ``sign * row^T row`` to a packed upper triangle, one row after the other."""
    order = rows.shape[1]
    base = 0
    for i in range(order):
        for k in range(rows.shape[0]):
            factor = signs[k] * rows[k, i]
            for j in range(i, order):
                packed[base + j - i] += factor * rows[k, j]
        base += order - i
