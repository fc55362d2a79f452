"""The grid of a statistic, and Gaussian noise on several parts of one statistic.

The grid of a statistic, that is the number of steps in one unit of its output, chosen from public facts.

Isometric noise on a stack of symmetric matrices of one order, each packed by itself.

Gaussian noise on several parts of one statistic, with one noise multiplier and one event.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import Cube, Gaussian, LayoutKind, NoiseDistribution, Symmetric
from dpca_tasks.noise.symmetric_weights import symmetric_weights

MAX_NOISE_STEPS = 2.0**28
MIN_NOISE_STEPS = 2.0**4
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
    while bits and 2.0 ** (degree * bits) > limit:  # log2 may round up
        bits -= 1
    if bits < 1:
        raise InvalidInput(f"noise_std={noise_std!r} is beyond any grid of integers; choose a larger epsilon or delta.")
    return bits


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricStack(Gaussian):
    """Symmetric matrices: std 1 on each diagonal, ``sqrt(1/2)`` off it, all coordinates independent.

    Gaussian noise for the l2 norm of the matrices' Frobenius norms. `draw` takes the order of one matrix, and its range
    may reach over any number of them: a stack is as long as its caller says.

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
            raise InvalidInput(f"coordinates {start}:{stop} of a stack must be a range with an end; state its end")
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
        """Refuse a multiplier that is not positive and finite."""
        _ = self.event

    @property
    def event(self) -> events.Event:
        """The event of one Gaussian mechanism, for any number of parts."""
        return events.gaussian(self.noise_multiplier)

    def part(self, layout: str) -> NoiseDistribution:
        """Return the noise distribution of a part with a given layout."""
        return _OF_LAYOUT[layout](noise_multiplier=self.noise_multiplier)
