r"""Weights by age for a stream of releases, and the power series that these weights approximate.

*Power series.* In each release of a stream, a record has a weight that depends on its age. The weights are the
coefficients of a power series, rounded to integers. A power series represents a lower-triangular Toeplitz matrix:
products and inverses of such matrices correspond to products and inverses of series.

>>> coefficients_of("sqrt", 5).tolist()
[1.0, 0.5, 0.375, 0.3125, 0.2734375]

*Weights of a stream.* At tick t (its t-th release), a stream releases the noisy moment
``y_t = sum_u c_{t-j(u)} M_u + noise``. Here ``M_u`` is the contribution of record u, which arrived at tick ``j(u)``,
and ``c_i`` is the weight of age i. The series c is public, so sums over ticks are recovered from the answers by
``1 / c``. The answers of T ticks together are private like one Gaussian release of sensitivity
``zeta_T = sqrt(c_0^2 + ... + c_{T-1}^2)``. This is the norm of what a record that arrives at tick 1 contributes to all
answers together. Weights are integers divided by ``2^bits``, so all sensitivities are exact.

>>> year = choose_weights("sqrt", ticks=365)
>>> year.bits, year.weights[:5], round(float(year.zeta_squared(365)), 6)
(6, (64, 32, 24, 20, 18), 2.941162)
>>> round(year.factors(365).max(), 4)
2.9507

References
----------
Fichtenberger, Henzinger and Upadhyay (2023) and Henzinger, Upadhyay and Upadhyay (2023) for ``(1 - z)^(-1/2)``;
Denisov et al. (2022) for factorisations of adaptive streams.
"""

import itertools
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, gaussian, root_down, root_up
from dpca_tasks.errors import InvalidInput

type Series = NDArray[np.float64]
Strategy = Literal["sqrt", "power", "window", "decay"]

POWER = 0.4
"""The exponent a in ``c(z) = (1 - z)^-a`` of the strategy ``power``; below 1/2, one charge covers all ticks."""


def coefficients_of(
    strategy: Strategy, count: int, *, window: int | None = None, half_life: float | None = None
) -> Series:
    """Return the first ``count`` coefficients of a strategy's power series c(z), before rounding to weights.

    - ``sqrt``: ``c(z) = (1 - z)^(-1/2)``
    - ``power``: ``c(z) = (1 - z)^-a`` with a = `POWER`
    - ``window``, for a window of W ticks: ``c(z) = ((1 - z^W) / (1 - z))^(1/2)``
    - ``decay``, where weights are multiplied by gamma at each tick: ``c(z) = (1 - gamma z)^(-1/2)``

    For ``window`` and ``decay``, c is the square root of the series of the estimate, and so the best Toeplitz factor
    for an endless stream of these estimates.
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
        root = np.concatenate([[1.0], np.cumprod((steps - 1.5) / steps)])  # coefficients of (1 - z^W)^(1/2) at z^(W i)
        plain, series = series, np.zeros(count)
        for at, factor in enumerate(root):
            series[at * window :] += factor * plain[: count - at * window]
    return series


def divided(wanted: Series, series: Series) -> Series:
    """Divide two power series, and return as many coefficients of ``wanted / series`` as `wanted` has.

    The first coefficient of `series` must be 1.
    """
    found = np.zeros(len(wanted))
    reversed_tail = series[:0:-1]
    known = len(reversed_tail)
    for at, value in enumerate(wanted):
        reach = min(at, known)
        found[at] = value - reversed_tail[known - reach :] @ found[at - reach : at]
    return found


def exact_zeta(exact: Series, *, strategy: Strategy, window: int | None, half_life: float | None) -> float:
    """Return zeta, the L2 norm of the unrounded coefficients of a strategy.

    For ``sqrt`` this is the norm of the given coefficients; for the other strategies, of the infinite series.
    """
    if strategy == "sqrt":
        return float(np.linalg.norm(exact))
    if strategy == "power":
        return math.sqrt(math.gamma(1.0 - 2.0 * POWER)) / math.gamma(1.0 - POWER)
    length = max(len(exact), 64 * (window or 0), math.ceil(64 * (half_life or 0)))
    return float(np.linalg.norm(coefficients_of(strategy, length, window=window, half_life=half_life)))


AnswerKind = Literal["prefix", "window", "decay"]

EXCESS = 1.005
"""Largest ratio by which rounding of the weights may increase the largest of `Weights.factors`."""
LONGEST = 3650
"""Default number of ticks for which the rounding of an endless strategy's weights is chosen."""
MOST_TICKS = 36_500
"""Largest number of ticks, window or half-life for which weights are computed; time grows quadratically."""
MOST_BITS = 12
"""Largest number of bits of a weight; with more bits, the grid of the records would be too coarse."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights by age of a stream, which do not change during the lifetime of the stream.

    Parameters
    ----------
    strategy : {"sqrt", "power", "window", "decay"}
        A stream with the strategy ``sqrt`` is charged for a stated number of ticks. With the other strategies (called
        endless), one charge covers any number of ticks.
    weights : tuple of int
        ``w_i`` for each age i in ticks. A record of age i has the weight ``w_i / 2^bits``. A new record has the weight
        1, and a record older than the last entry has the weight 0.
    bits : int
        The precision of the weights in bits.
    window : int, optional
        The length of the sliding window in ticks, for the strategy ``window``.
    half_life : float, ticks, optional
        The age at which the weight in the estimate is halved, for the strategy ``decay``.
    """

    strategy: Strategy
    weights: tuple[int, ...]
    bits: int
    window: int | None = None
    half_life: float | None = None

    def __post_init__(self) -> None:
        """Check the strategy and the bits, and that no weight exceeds the weight of a new record."""
        _check_strategy(self.strategy, window=self.window, half_life=self.half_life)
        if not 0 <= self.bits <= MOST_BITS:
            raise InvalidInput(
                f"bits={self.bits} must be from 0 to {MOST_BITS}; use choose_weights to choose bits and weights"
            )
        unit = 1 << self.bits
        whole = all(type(weight) is int and abs(weight) <= unit for weight in self.weights)
        if not (self.weights and whole and self.weights[0] == unit):
            raise InvalidInput(
                f"weights must be whole numbers of at most 2^{self.bits}, and the first weight must equal this number; "
                "use choose_weights to choose bits and weights"
            )

    @property
    def endless(self) -> bool:
        """True if a single charge covers any number of ticks of the stream."""
        return self.strategy != "sqrt"

    @property
    def longest(self) -> int | None:
        """The largest number of ticks for which a stream with these weights can be charged; None if unlimited."""
        return None if self.endless else len(self.weights)

    @property
    def answer(self) -> AnswerKind:
        """The kind of estimate (prefix sum, sliding window or decay) for which the strategy is designed."""
        return self.strategy if self.strategy in ("window", "decay") else "prefix"

    @property
    def signed(self) -> bool:
        """True if any weight is negative."""
        return min(self.weights) < 0

    @cached_property
    def series(self) -> Series:
        """The coefficients ``c_i = w_i / 2^bits`` of the power series, exact in float64."""
        return np.asarray(self.weights, np.float64) / (1 << self.bits)

    def weight(self, age: int) -> int:
        """Return the integer weight ``w_age``; 0 for negative ages (not yet arrived) and beyond the last weight."""
        return self.weights[age] if 0 <= age < len(self.weights) else 0

    def zeta_squared(self, ticks: int) -> Fraction:
        """Return the exact squared sensitivity of all answers together to a record of norm 1 that is added or emptied.

        For the strategy ``sqrt``, the answers of the first ``ticks`` ticks are counted, for endless strategies those of
        all ticks.
        """
        return Fraction(sum(weight * weight for weight in self._charged(ticks)), 4**self.bits)

    def replaced_squared(self, ticks: int) -> Fraction:
        r"""Return the exact squared sensitivity of all answers together to replacing one record by another record.

        The two records may arrive at different ticks.

        Notes
        -----
        At a tick, let the two records have the weights a and b, and the contributions M and N of norm at most 1. The
        inner product of M and N is in [0, 1], because both are second moments. Hence
        ``||a M - b N||^2 <= a^2 + b^2 + 2 max(0, -a b)``. Without negative weights, the sum over ticks is at most twice
        `zeta_squared`, and this bound is attained. With negative weights, the result is the largest sum over the
        arrivals of both records. Only the difference of the two arrivals has to be searched, because a later arrival of
        both only removes terms.
        """
        charged = self._charged(ticks)
        zeta = self.zeta_squared(ticks)
        if not self.signed:
            return 2 * zeta
        weights = np.asarray(charged, np.int64)
        crossed = (int(np.maximum(-weights[gap:] * weights[:-gap], 0).sum()) for gap in range(1, len(weights)))
        return 2 * zeta + Fraction(2 * max(crossed, default=0), 4**self.bits)

    def zeta(self, ticks: int) -> float:
        """Return the sensitivity of all answers together, the square root of `zeta_squared`, rounded up."""
        return root_up(self.zeta_squared(ticks))

    def factors(
        self, ticks: int, answer: AnswerKind = "prefix", *, window: int | None = None, half_life: float | None = None
    ) -> Series:
        """Return how much noisier each tick's estimate is than a single release that costs as much as the stream.

        Parameters
        ----------
        ticks : int
            The number of ticks, each with an answer.
        answer : {"prefix", "window", "decay"}
            The estimate: the sum of all arrivals, of the arrivals within a window, or of all arrivals with weights that
            halve with each half-life.
        window, half_life
            The parameters of the estimate; by default those of the strategy.

        Returns
        -------
        float64 array of shape (ticks,)
            For each tick, the std of the estimate over the std of one Gaussian release with the mu of the whole stream.
        """
        wanted = self.wanted(ticks, answer, window=window, half_life=half_life)
        return np.asarray(math.sqrt(self.zeta_squared(ticks)) * np.sqrt(np.cumsum(divided(wanted, self.series) ** 2)))

    def wanted(
        self, ticks: int, answer: AnswerKind, *, window: int | None = None, half_life: float | None = None
    ) -> Series:
        """Return the weights by age that an estimate should have: a power series with ``ticks`` coefficients."""
        window = self.window if window is None else window
        half_life = self.half_life if half_life is None else half_life
        ages = np.arange(ticks, dtype=np.float64)
        match answer:
            case "prefix":
                return np.ones(ticks)
            case "window" if window is not None and window >= 1:
                return (ages < window).astype(np.float64)
            case "decay" if half_life is not None and half_life > 0:
                return np.asarray(np.exp2(-ages / half_life))
        raise InvalidInput(
            f"answer={answer!r} must be prefix, window (with a window of at least 1 tick) or decay (with a positive "
            "half-life); pass one of these"
        )

    def to_json(self) -> str:
        """Return the weights as canonical JSON text, in which a run of equal weights is a pair (weight, length)."""
        return self._text

    @cached_property
    def _text(self) -> str:
        runs = [[weight, len(list(equal))] for weight, equal in itertools.groupby(self.weights)]
        found: dict[str, Any] = {"bits": self.bits, "strategy": self.strategy, "weights": runs}
        of_strategy = {"window": self.window, "half_life": self.half_life}
        found |= {name: value for name, value in of_strategy.items() if value is not None}
        return json.dumps(found, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Weights":
        """Read weights from JSON text that `to_json` wrote."""
        found = json.loads(text)
        weights = tuple(itertools.chain.from_iterable([weight] * count for weight, count in found.pop("weights")))
        return cls(weights=weights, **found)

    def _charged(self, ticks: int) -> tuple[int, ...]:
        if ticks < 1 or (self.longest is not None and ticks > self.longest):
            raise InvalidInput(
                f"ticks={ticks} must be from 1 to {self.longest or 'any number'}, for which the weights of this stream "
                "were chosen; open another stream for more ticks"
            )
        return self.weights if self.endless else self.weights[:ticks]


def choose_weights(
    strategy: Strategy,
    *,
    ticks: int | None = None,
    longest: int | None = None,
    window: int | None = None,
    half_life: float | None = None,
) -> Weights:
    """Choose the weights of a stream from public facts.

    Parameters
    ----------
    strategy : {"sqrt", "power", "window", "decay"}
    ticks : int, optional
        The number of ticks that are charged at first. Required for ``sqrt``, for which up to ten times as many ticks
        may be charged later.
    longest : int, optional
        The longest horizon in ticks for which the precision of the weights is chosen. The default is ``ticks``, or
        `LONGEST` for endless strategies.
    window : int, ticks, optional
        The length of the sliding window; required for the strategy ``window``.
    half_life : float, ticks, optional
        The half-life; required for the strategy ``decay``.

    Returns
    -------
    Weights
        The weights with the fewest bits for which rounding increases the largest of `Weights.factors`, up to the tick
        ``longest``, by at most the factor `EXCESS`.
    """
    _check_strategy(strategy, window=window, half_life=half_life)
    if strategy == "sqrt" and ticks is None and longest is None:
        raise InvalidInput(
            "strategy=sqrt needs a number of ticks; pass ticks, or use strategy=power if the number is not known"
        )
    horizon = max(ticks or 1, longest or 1) if strategy == "sqrt" else max(ticks or 1, longest or LONGEST)
    if min(1 if ticks is None else ticks, 1 if longest is None else longest) < 1:
        raise InvalidInput(f"ticks={ticks} and longest={longest} must be at least 1; pass the planned number of ticks")
    for name, requested in (("ticks", ticks), ("longest", longest), ("window", window), ("half_life", half_life)):
        if requested is not None and requested > MOST_TICKS:
            raise InvalidInput(f"{name}={requested} must be at most {MOST_TICKS} ticks; pass fewer ticks")
    terms: dict[str, Any] = {"strategy": strategy, "window": window, "half_life": half_life}
    exact = coefficients_of(strategy, horizon, window=window, half_life=half_life)
    for bits in range(MOST_BITS + 1):
        found = Weights(weights=_rounded(bits, horizon=10 * horizon, **terms), bits=bits, **terms)
        wanted = found.wanted(horizon, found.answer)
        limit = EXCESS * exact_zeta(exact, **terms) * float(np.linalg.norm(divided(wanted, exact)))
        if found.factors(horizon, found.answer)[-1] <= limit:
            return found
    return found


def extension_event(weights: Weights, *, horizon: int, charged: int, to: int, noise_multiplier: float) -> Event:
    """Return the event that charges further ticks (versions) of a stream, as an installment or as an extension.

    Parameters
    ----------
    weights : Weights
    horizon : int
        The number of ticks for which the noise was calibrated when the stream was opened. The std of the noise remains
        ``noise_multiplier`` times the sensitivity of this number of ticks.
    charged : int
        The number of ticks that were charged before; 0 for a first installment.
    to : int
        The total number of ticks that are charged after this event.
    noise_multiplier : float
        The noise multiplier that was fixed when the stream was opened.

    Returns
    -------
    Event
        One Gaussian release. The squared mu of all installments and extensions add up to the squared mu of the whole
        stream. This covers every record, because a record that arrives at the first tick contributes most to all
        answers.

    Raises
    ------
    InvalidInput
        If no ticks are added, or if the weights of all added ticks are 0.
    """
    if weights.endless:
        raise InvalidInput(
            f"strategy={weights.strategy} has one charge for any number of ticks; charge the stream only once"
        )
    before = weights.zeta_squared(charged) if charged else Fraction(0)
    added = weights.zeta_squared(to) - before if to > charged else Fraction(0)
    if added <= 0:
        raise InvalidInput(
            f"to={to} adds no tick with a nonzero weight to the {charged} ticks already charged; request more ticks, "
            "or open another stream"
        )
    return gaussian(root_down(Fraction(noise_multiplier) ** 2 * weights.zeta_squared(horizon) / added))


def tree_factors(ticks: int) -> Series:
    """Return the factors of the binary tree mechanism for prefix sums, as a baseline for `Weights.factors`.

    The mechanism releases one noisy sum for every node of the complete binary tree over T ticks. So a record is counted
    in ``L = floor(log2 T) + 1`` nodes. With the best estimator, the variance of a sum over ``2^h`` ticks is
    ``2^h / (2^(h+1) - 1)`` times the variance of a node (Honaker 2015).
    """
    levels = ticks.bit_length()
    sizes = np.arange(levels)
    parts = 2.0**sizes / (2.0 ** (sizes + 1) - 1.0)
    bits = (np.arange(1, ticks + 1)[:, None] >> sizes) & 1
    return np.asarray(np.sqrt(levels * (bits @ parts)))


def _check_strategy(strategy: str, *, window: int | None, half_life: float | None) -> None:
    if strategy not in get_args(Strategy):
        raise InvalidInput(f"strategy={strategy!r} must be one of {', '.join(get_args(Strategy))}; choose one")
    if (strategy == "window") != (window is not None) or (strategy == "decay") != (half_life is not None):
        raise InvalidInput(
            f"strategy={strategy}, window={window} and half_life={half_life} do not fit together; strategy=window "
            "needs a window, strategy=decay needs a half_life, and the others need neither; correct these arguments"
        )
    if window is not None and window < 1:
        raise InvalidInput(f"window={window} must be at least 1 tick; pass a longer window")
    if half_life is not None and not (math.isfinite(half_life) and half_life > 0):
        raise InvalidInput(f"half_life={half_life} must be a positive, finite number of ticks; pass such a number")


def _rounded(
    bits: int, *, horizon: int, strategy: Strategy, window: int | None, half_life: float | None
) -> tuple[int, ...]:
    """Return the coefficients of a strategy times ``2^bits``, rounded to integers.

    For ``sqrt`` there is one integer per tick of the horizon. For the other strategies, the integers end where all
    further integers are 0.
    """
    count = horizon if strategy == "sqrt" else max(64, 4 * (window or 0))
    while True:
        exact = coefficients_of(strategy, count, window=window, half_life=half_life)
        weights = np.rint(exact * 2.0**bits).astype(np.int64)
        if strategy == "sqrt":
            return tuple(weights.tolist())
        if not weights[count // 2 :].any():
            return tuple(np.trim_zeros(weights, "b").tolist())
        count *= 2
