"""Power series whose coefficients weight records by age, in floats: what the integer weights of a stream approximate.

A lower-triangular Toeplitz matrix is a power series: products and inverses of one are those of the other.

>>> coefficients_of("sqrt", 5).tolist()
[1.0, 0.5, 0.375, 0.3125, 0.2734375]
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

type Series = NDArray[np.float64]
Strategy = Literal["sqrt", "power", "window", "decay"]

POWER = 0.4
"""a of the strategy ``power``, ``c = (1 - z)^-a``: below 1/2, so one charge holds for any number of ticks."""


def coefficients_of(
    strategy: Strategy, count: int, *, window: int | None = None, half_life: float | None = None
) -> Series:
    """Return the first coefficients of a strategy's power series c, before rounding.

    ``sqrt``: ``(1-z)^(-1/2)``; ``power``: ``(1-z)^-a``; ``window`` of W: ``((1-z^W)/(1-z))^(1/2)``; ``decay``:
    ``(1 - gamma z)^(-1/2)``. For the last two, ``1/c`` times the answer's own series is c again: they are the best
    Toeplitz factors of an endless stream of these answers.
    """
    ages = np.arange(1, count, dtype=np.float64)
    power = POWER if strategy == "power" else 0.5
    series = np.concatenate([[1.0], np.cumprod((ages - 1.0 + power) / ages)])
    if strategy == "decay":
        assert half_life is not None
        return np.asarray(series * np.exp2(-np.arange(count) / half_life))
    if strategy == "window":
        assert window is not None
        steps = np.arange(1, -(-count // window), dtype=np.float64)
        root = np.concatenate([[1.0], np.cumprod((steps - 1.5) / steps)])  # of (1 - z^W)^(1/2), at multiples of W
        plain, series = series, np.zeros(count)
        for at, factor in enumerate(root):
            series[at * window :] += factor * plain[: count - at * window]
    return series


def divided(wanted: Series, series: Series) -> Series:
    """Return the first coefficients of one power series over another that begins with 1, as many as of the former."""
    found = np.zeros(len(wanted))
    reversed_tail = series[:0:-1]
    known = len(reversed_tail)
    for at, value in enumerate(wanted):
        reach = min(at, known)
        found[at] = value - reversed_tail[known - reach :] @ found[at - reach : at]
    return found


def exact_zeta(exact: Series, *, strategy: Strategy, window: int | None, half_life: float | None) -> float:
    """Return zeta of exact coefficients: of those given, or of all where one charge holds for ever."""
    if strategy == "sqrt":
        return float(np.linalg.norm(exact))
    if strategy == "power":
        return math.sqrt(math.gamma(1.0 - 2.0 * POWER)) / math.gamma(1.0 - POWER)
    length = max(len(exact), 64 * (window or 0), math.ceil(64 * (half_life or 0)))
    return float(np.linalg.norm(coefficients_of(strategy, length, window=window, half_life=half_life)))
