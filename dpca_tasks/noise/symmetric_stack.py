"""Isometric noise on a stack of symmetric matrices of one order, each packed by itself."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import Gaussian, LayoutKind
from dpca_tasks.noise.symmetric_weights import symmetric_weights


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
