"""Other forms of continual release, for comparison: buffered weights, correlated noise, and restated snapshots.

A buffered linear Toeplitz matrix (BLT) has weights ``c = prod(1 - g_i z) / prod(1 - h_i z)``: a few buffers take the
place of all answers. In the other form of a stream, only tonight's newcomers are read, and noise of earlier nights is
made again from one key: a secret that has to live as long as the stream. The product does neither.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.power_series import Series, coefficients_of, divided

type Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """Weights of a few buffers: poles h and zeros g of c, and the multipliers of prefix sums for the poles 1 and g."""

    poles: tuple[float, ...]
    zeros: tuple[float, ...]
    multipliers: tuple[float, ...]

    def weights(self, ticks: int) -> Series:
        """Return the first coefficients of c."""
        above = np.zeros(ticks)
        above[: len(self.zeros) + 1] = np.poly(self.zeros)
        return divided(above, np.asarray(np.poly(self.poles), np.float64))

    def prefix(self, inputs: Matrix) -> Matrix:
        """Return what the buffers give for inputs of shape (ticks, ...): noise of prefix sums."""
        decay = np.array([1.0, *self.zeros])
        buffers = np.zeros((len(decay), *inputs.shape[1:]))
        found = np.empty_like(inputs)
        for at, each in enumerate(inputs):
            buffers = decay.reshape(-1, *[1] * each.ndim) * buffers + each
            found[at] = np.tensordot(self.multipliers, buffers, axes=1)
        return found


THREE = Buffered(
    poles=(0.99751784, 0.95821185, 0.65743310),
    zeros=(0.98758202, 0.87386707, 0.26150145),
    multipliers=(0.03071845, 0.09396514, 0.25699436, 0.61832205),
)
"""Three buffers for a year of prefix sums; the multipliers to eight digits, as published."""


def exact_multipliers(blt: Buffered) -> Buffered:
    """Return buffers with the multipliers that follow from poles and zeros, to the last bits."""
    poles = np.array([1.0, *blt.zeros])
    found = [
        np.prod(1.0 - np.array(blt.poles) / pole) / np.prod(1.0 - np.delete(poles, at) / pole)
        for at, pole in enumerate(poles)
    ]
    return Buffered(poles=blt.poles, zeros=blt.zeros, multipliers=tuple(map(float, found)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedNoise:
    """Noise of prefix sums that is made from one key: normals of every tick, weighted by a public series, rounded last.

    ``scale`` is the std of the normals in grid steps.
    """

    key: int
    scale: float
    size: int
    inverse: tuple[float, ...]

    def upto(self, tick: int) -> NDArray[np.int64]:
        """Return the rounded noise of a tick, from the key alone; normals in one order, so that bits are the same."""
        total = np.zeros(self.size)
        for at in range(1, tick + 1):
            drawn = np.random.default_rng((self.key, at)).standard_normal(self.size)
            total += self.inverse[tick - at] * (self.scale * drawn)
        return np.rint(total).astype(np.int64)


def restated_worst(ticks: int, *, versions: int) -> float:
    """Return the largest squared movement of a stream by a record of so many orthogonal versions, over zeta squared.

    Where only tonight's changes enter, a version that is replaced is taken off again: its part is the difference of two
    columns. All choices of nights are tried.
    """
    series = coefficients_of("sqrt", ticks)
    columns = [np.concatenate([np.zeros(at), series[: ticks - at]]) for at in range(ticks)] + [np.zeros(ticks)]
    apart = np.array([[float((one - other) @ (one - other)) for other in columns] for one in columns])
    worst = max(
        sum(apart[one, other] for one, other in itertools.pairwise((*nights, ticks)))
        for nights in itertools.combinations(range(ticks), versions)
    )
    return float(worst / (series @ series))
