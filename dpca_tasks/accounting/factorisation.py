r"""Weights by age of a stream of releases, and the power series that they approximate.

*Power series.* The coefficients weight records by age in floats; the integer weights of a stream approximate them. A
lower-triangular Toeplitz matrix is a power series: products and inverses of matrices are products and inverses of
series.

>>> coefficients_of("sqrt", 5).tolist()
[1.0, 0.5, 0.375, 0.3125, 0.2734375]

*Weights of a stream.* This module contains the strategies, exact sensitivities, and the cost of each tick's estimate.

At tick t a stream releases ``y_t = sum_u c_{t-j(u)} M_u + noise``: a record that arrived at tick j is weighted by its
age. Since ``1 / c`` is public, sums over ticks are recovered from the answers. The noise of all ticks together equals
that of one Gaussian release of sensitivity ``zeta_T = sqrt(c_0^2 + ... + c_{T-1}^2)``. This is the contribution to all
answers of a record that arrives at tick 1 and stays. Weights are integers over ``2^bits``, so all stated quantities are
exact.

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
"""a of the strategy ``power``, ``c = (1 - z)^-a``; it is below 1/2, so one charge covers any number of ticks."""


def coefficients_of(
    strategy: Strategy, count: int, *, window: int | None = None, half_life: float | None = None
) -> Series:
    """Return the first coefficients of a strategy's power series c, before rounding.

    ``sqrt``: ``(1-z)^(-1/2)``; ``power``: ``(1-z)^-a``; ``window`` of W: ``((1-z^W)/(1-z))^(1/2)``; ``decay``:
    ``(1 - gamma z)^(-1/2)``. For the last two, ``1/c`` times the series of the estimate is c again: they are the best
    Toeplitz factors of an endless stream of these estimates.
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
    """Return the first coefficients of ``wanted / series``, as many as `wanted` has; `series` must begin with 1."""
    found = np.zeros(len(wanted))
    reversed_tail = series[:0:-1]
    known = len(reversed_tail)
    for at, value in enumerate(wanted):
        reach = min(at, known)
        found[at] = value - reversed_tail[known - reach :] @ found[at - reach : at]
    return found


def exact_zeta(exact: Series, *, strategy: Strategy, window: int | None, half_life: float | None) -> float:
    """Return zeta of exact coefficients: of those given for ``sqrt``, else of the infinite series."""
    if strategy == "sqrt":
        return float(np.linalg.norm(exact))
    if strategy == "power":
        return math.sqrt(math.gamma(1.0 - 2.0 * POWER)) / math.gamma(1.0 - POWER)
    length = max(len(exact), 64 * (window or 0), math.ceil(64 * (half_life or 0)))
    return float(np.linalg.norm(coefficients_of(strategy, length, window=window, half_life=half_life)))


AnswerKind = Literal["prefix", "window", "decay"]

EXCESS = 1.005
"""Largest factor by which rounding the weights may increase the largest factor."""
LONGEST = 3650
"""Default horizon for which the weights of an endless strategy are rounded."""
MOST_TICKS = 36_500
"""Largest number of ticks, window or half-life for which weights are computed; time grows quadratically."""
MOST_BITS = 12
"""Largest q; a larger one would require a coarse grid for the records."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a stream, fixed for its lifetime.

    Parameters
    ----------
    strategy : {"sqrt", "power", "window", "decay"}
        ``sqrt`` is charged for a stated number of ticks; the others have one charge for any number.
    weights : tuple of int
        ``w_i``, by age in ticks; 0 beyond. A record of age i has weight ``w_i / 2^bits``, and a new one exactly 1.
    bits : int
        q.
    window : int, optional
        The ticks of a sliding window, for the strategy ``window``.
    half_life : float, ticks, optional
        The half-life, for the strategy ``decay``.
    """

    strategy: Strategy
    weights: tuple[int, ...]
    bits: int
    window: int | None = None
    half_life: float | None = None

    def __post_init__(self) -> None:
        """Check the strategy, the bits, and that no weight exceeds that of a new record."""
        _check_strategy(self.strategy, window=self.window, half_life=self.half_life)
        if not 0 <= self.bits <= MOST_BITS:
            raise InvalidInput(f"bits={self.bits} must be from 0 to {MOST_BITS}; choose weights with choose_weights")
        unit = 1 << self.bits
        whole = all(type(weight) is int and abs(weight) <= unit for weight in self.weights)
        if not (self.weights and whole and self.weights[0] == unit):
            raise InvalidInput(
                f"weights must be whole numbers of at most 2^{self.bits}, and the first must equal it; choose them "
                "with choose_weights"
            )

    @property
    def endless(self) -> bool:
        """True if one charge covers any number of ticks."""
        return self.strategy != "sqrt"

    @property
    def longest(self) -> int | None:
        """The largest number of ticks that may ever be charged, or None if one charge covers any number."""
        return None if self.endless else len(self.weights)

    @property
    def answer(self) -> AnswerKind:
        """The kind of estimate for which the strategy is designed."""
        return self.strategy if self.strategy in ("window", "decay") else "prefix"

    @property
    def signed(self) -> bool:
        """True if some weight is negative."""
        return min(self.weights) < 0

    @cached_property
    def series(self) -> Series:
        """The coefficients ``c_i = w_i / 2^bits``, without rounding."""
        return np.asarray(self.weights, np.float64) / (1 << self.bits)

    def weight(self, age: int) -> int:
        """Return ``w_age``, or 0 for a record that has not arrived and for ages beyond the last weight."""
        return self.weights[age] if 0 <= age < len(self.weights) else 0

    def zeta_squared(self, ticks: int) -> Fraction:
        """Return the largest squared norm of a column, over the first ticks or, for endless strategies, over all ticks.

        It is the squared distance by which a record of norm 1 moves all answers together when it is added or emptied.
        """
        return Fraction(sum(weight * weight for weight in self._charged(ticks)), 4**self.bits)

    def replaced_squared(self, ticks: int) -> Fraction:
        r"""Return the squared distance by which replacing one record's history by another moves all answers together.

        Notes
        -----
        At a tick the two histories have weights a and b and contributions M, N of norm at most 1. The inner product of
        M and N is in [0, 1], because they are second moments: ``||a M - b N||^2 <= a^2 + b^2 + 2 max(0, -a b)``.
        Without negative weights the result is at most twice `zeta_squared`, and this is attained. With negative weights
        it is the largest over both arrivals. Only the difference of the arrivals matters, since a column shortened by a
        late arrival adds less.
        """
        charged = self._charged(ticks)
        zeta = self.zeta_squared(ticks)
        if not self.signed:
            return 2 * zeta
        weights = np.asarray(charged, np.int64)
        crossed = (int(np.maximum(-weights[gap:] * weights[:-gap], 0).sum()) for gap in range(1, len(weights)))
        return 2 * zeta + Fraction(2 * max(crossed, default=0), 4**self.bits)

    def zeta(self, ticks: int) -> float:
        """Return the joint sensitivity, rounded up."""
        return root_up(self.zeta_squared(ticks))

    def factors(
        self, ticks: int, answer: AnswerKind = "prefix", *, window: int | None = None, half_life: float | None = None
    ) -> Series:
        """Return the std of each tick's estimate over the std of one release with the mu of the whole stream.

        Parameters
        ----------
        ticks : int
            The number of ticks, each with an answer.
        answer : {"prefix", "window", "decay"}
            The estimate: all arrivals, the arrivals of the last ticks, or all arrivals with weights that halve.
        window, half_life
            The parameters of the estimate; by default those of the strategy.

        Returns
        -------
        float64 array of shape (ticks,)
            ``e_t``. Its square is the price of such an estimate, in releases.
        """
        wanted = self.wanted(ticks, answer, window=window, half_life=half_life)
        return np.asarray(math.sqrt(self.zeta_squared(ticks)) * np.sqrt(np.cumsum(divided(wanted, self.series) ** 2)))

    def wanted(
        self, ticks: int, answer: AnswerKind, *, window: int | None = None, half_life: float | None = None
    ) -> Series:
        """Return the weights by age of an estimate."""
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
        raise InvalidInput(f"answer={answer!r} must be prefix, window or decay, with its window or half-life; state it")

    def to_json(self) -> str:
        """Return the weights as canonical text; runs of equal weights are pairs of weight and length."""
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
        """Read weights from the text of `to_json`."""
        found = json.loads(text)
        weights = tuple(itertools.chain.from_iterable([weight] * count for weight, count in found.pop("weights")))
        return cls(weights=weights, **found)

    def _charged(self, ticks: int) -> tuple[int, ...]:
        if ticks < 1 or (self.longest is not None and ticks > self.longest):
            raise InvalidInput(
                f"ticks={ticks} must be from 1 to {self.longest or 'any number'}, for which the weights were chosen; "
                "open another stream for more"
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
        The number of ticks to charge; needed for ``sqrt``, where up to ten times as many may be charged later.
    longest : int, optional
        The longest horizon that may be requested; weights are rounded for it. By default ``ticks``, or `LONGEST` for
        endless strategies.
    window : int, ticks, optional
        Needed for ``window``.
    half_life : float, ticks, optional
        Needed for ``decay``.

    Returns
    -------
    Weights
        With the least q whose largest factor up to ``longest`` is within `EXCESS` of the factor of exact coefficients.
    """
    _check_strategy(strategy, window=window, half_life=half_life)
    if strategy == "sqrt" and ticks is None and longest is None:
        raise InvalidInput("strategy=sqrt needs a number of ticks; state it, or use power if the number is open")
    horizon = max(ticks or 1, longest or 1) if strategy == "sqrt" else max(ticks or 1, longest or LONGEST)
    if min(1 if ticks is None else ticks, 1 if longest is None else longest) < 1:
        raise InvalidInput(f"ticks={ticks}, longest={longest} must be at least 1; state the planned number of ticks")
    for name, requested in (("ticks", ticks), ("longest", longest), ("window", window), ("half_life", half_life)):
        if requested is not None and requested > MOST_TICKS:
            raise InvalidInput(f"{name}={requested} must be at most {MOST_TICKS} ticks; state fewer")
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
    """Return the event of further ticks of a stream, charged as an extension or an instalment.

    Parameters
    ----------
    weights : Weights
    horizon : int
        The ticks for which the noise was calibrated when the stream was opened. Its std remains ``noise_multiplier``
        times the sensitivity of this number of ticks.
    charged : int
        The ticks that were charged before; 0 for a first instalment.
    to : int
        The total number of ticks charged afterwards.
    noise_multiplier : float
        z, fixed when the stream was opened.

    Returns
    -------
    Event
        One Gaussian release. The squared mu of instalments and extensions add up to that of the whole stream: the
        squared norm of every column is at most that of the first, whenever its record arrived.

    Raises
    ------
    InvalidInput
        When no ticks are added, or the weights of all added ticks are 0.
    """
    if weights.endless:
        raise InvalidInput(f"strategy={weights.strategy} has one charge for any number of ticks; charge it once")
    before = weights.zeta_squared(charged) if charged else Fraction(0)
    added = weights.zeta_squared(to) - before if to > charged else Fraction(0)
    if added <= 0:
        raise InvalidInput(
            f"to={to} must add ticks with a weight to the {charged} charged; request more ticks, or open another stream"
        )
    return gaussian(root_down(Fraction(noise_multiplier) ** 2 * weights.zeta_squared(horizon) / added))


def tree_factors(ticks: int) -> Series:
    """Return the factors of the complete binary tree with the best estimator of prefix sums, as a baseline.

    Every dyadic node is released once, so a record is in ``L = floor(log2 T) + 1`` nodes. The variance of a sum of
    ``2^h`` ticks is ``2^h / (2^(h+1) - 1)`` of a node's variance (Honaker 2015).
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
            f"strategy={strategy}, window={window}, half_life={half_life} do not fit: window needs a window, decay a "
            "half-life and the others neither; state what the strategy needs"
        )
    if window is not None and window < 1:
        raise InvalidInput(f"window={window} must be at least 1 tick; state a longer one")
    if half_life is not None and not (math.isfinite(half_life) and half_life > 0):
        raise InvalidInput(f"half_life={half_life} must be positive and finite, in ticks; state one")


def _rounded(
    bits: int, *, horizon: int, strategy: Strategy, window: int | None, half_life: float | None
) -> tuple[int, ...]:
    """Return the integers nearest to the coefficients, until all are 0, or up to the horizon for ``sqrt``."""
    count = horizon if strategy == "sqrt" else max(64, 4 * (window or 0))
    while True:
        exact = coefficients_of(strategy, count, window=window, half_life=half_life)
        weights = np.rint(exact * 2.0**bits).astype(np.int64)
        if strategy == "sqrt":
            return tuple(weights.tolist())
        if not weights[count // 2 :].any():
            return tuple(np.trim_zeros(weights, "b").tolist())
        count *= 2
