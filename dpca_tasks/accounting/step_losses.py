"""The privacy loss of one step: its distribution, on any grid, with the error of rounding to it.

>>> loss = step_loss((("laplace", 1.0), ("noise_multiplier", 2.0)), tail=1e-9, adds=False)
>>> loss.low, loss.high, loss.atoms[1]
(-0.5, 0.5, (0.5, 0.5))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpca_tasks.errors import InvalidInput

_CELLS, _PARTS = 64, 256  # of the cells whose errors are known least, and of each of them

type Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounded:
    """A loss on a grid: points, their masses, and the bounds between which the mean of the rounding error lies."""

    first: int
    points: NDArray[np.float64]
    masses: NDArray[np.float64]
    beyond: float
    errors: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLoss:
    """The distribution of one step's loss ``log dP/dQ`` under P.

    ``low`` and ``high`` hold all of it but a stated tail, ``below`` is the distribution function of the part that has a
    density, ``atoms`` are losses with their probabilities, and ``beyond`` is the probability of an infinite loss.
    """

    low: float
    high: float
    below: Function
    atoms: tuple[tuple[float, float], ...] = ()
    beyond: float = 0.0

    def rounded(self, step: float) -> Rounded:
        """Round to the nearest multiples of a step; what lies outside ``low`` to ``high`` goes to their points."""
        first, last = math.floor(self.low / step), math.ceil(self.high / step)
        halves = self.below(np.arange(2 * first - 1, 2 * last + 2, dtype=np.float64) * (0.5 * step))
        halves[0], halves[-1] = 0.0, float(self.below(np.array([math.inf]))[0])
        edges, centres = halves[::2], halves[1::2]
        masses = np.diff(edges)
        bends = 2 * centres - edges[:-1] - edges[1:]
        turns = np.zeros(bends.size, bool)
        turns[1:] = np.sign(bends[1:]) != np.sign(bends[:-1])
        turns |= np.roll(turns, -1)  # and the cell before
        turns[[0, -1]] = True
        least, most = np.minimum(bends, 0.0), np.maximum(bends, 0.0)
        least[turns], most[turns] = -masses[turns], masses[turns]
        known_least = np.argpartition(most - least, -min(_CELLS, bends.size))[-_CELLS:]
        ends = edges[known_least], edges[known_least + 1]
        least[known_least], most[known_least] = self._errors(first + known_least, step, *ends)
        errors = [0.5 * step * float(least.sum()), 0.5 * step * float(most.sum())]
        for loss, mass in self.atoms:
            at = round(loss / step)
            masses[at - first] += mass
            errors = [end + mass * (at * step - loss) for end in errors]
        points = np.arange(first, last + 1, dtype=np.float64) * step
        return Rounded(first=first, points=points, masses=masses, beyond=self.beyond, errors=(errors[0], errors[1]))

    def _errors(
        self, cells: NDArray[np.int64], step: float, low: NDArray[np.float64], high: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bound the mean errors of some cells, in halves of a step, by sums over parts of them, without a density.

        The distribution function F never falls, so on each part ``Int F`` lies between its ends' values.
        """
        inside = (np.arange(1, _PARTS) / _PARTS - 0.5) * step
        values = self.below(cells[:, None] * step + inside)
        sums = values.sum(axis=1)
        ends = low + high
        return 2 * (low + sums) / _PARTS - ends, 2 * (high + sums) / _PARTS - ends


def step_loss(kind: tuple[tuple[str, float], ...], *, tail: float, adds: bool) -> StepLoss:
    """Return the loss of one step.

    Parameters
    ----------
    kind : tuple of (name, number) pairs
        First the name of an event and the rate of its sample, then its numbers.
    tail : float
        The mass that may lie outside ``low`` to ``high``.
    adds : bool
        Whether P is without the record and Q with it, or the other way round.
    """
    (name, rate), numbers = kind[0], dict(kind[1:])
    match name:
        case "approximate":
            return _approximate(numbers["epsilon"], numbers["delta"])
        case "gaussian":
            return _sampled(_gaussian(numbers["noise_multiplier"]), rate, tail=tail, adds=adds)
        case "laplace":
            return _sampled(_laplace(numbers["noise_multiplier"]), rate, tail=tail, adds=adds)
    raise InvalidInput(f"the loss of a {name!r} event is not known; build events with dpca_tasks.accounting.events")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Noise:
    """Additive noise seen along the record's move by 1: its distribution, and where a log ratio is reached."""

    below: Function
    place: Function  # of the log ratio of the density moved by 1 over the one at rest
    largest: float  # log ratio, infinite where there is none
    quantile: Callable[[float], float]
    ratio: Callable[[float], float]


def _gaussian(multiplier: float) -> _Noise:
    square = multiplier * multiplier
    return _Noise(
        below=lambda x: special.ndtr(x / multiplier),
        place=lambda ratio: square * ratio + 0.5,
        largest=math.inf,
        quantile=lambda mass: float(multiplier * special.ndtri(mass)),
        ratio=lambda x: (x - 0.5) / square,
    )


def _laplace(scale: float) -> _Noise:
    def below(x: NDArray[np.float64]) -> NDArray[np.float64]:
        tails = 0.5 * np.exp(-np.abs(x) / scale)
        return np.where(x < 0, tails, 1 - tails)

    return _Noise(
        below=below,
        place=lambda ratio: 0.5 * (scale * ratio + 1),
        largest=1 / scale,
        quantile=lambda _: 0.0,
        ratio=lambda _: 0.0,
    )


def _sampled(noise: _Noise, rate: float, *, tail: float, adds: bool) -> StepLoss:
    """Return the loss of noise on a sample.

    With the record the output is distributed as the mixture ``(1 - q) N + q N(. - 1)``, without it N. The log of their
    ratio is ``L = log(1 - q + q e^l)`` where l is that of the noise: both rise with the place x. The loss is L under
    the mixture, or -L under N where the record is added.
    """

    def of_ratio(ratio: float) -> float:
        return math.log1p(rate * math.expm1(ratio)) if rate < 1 else ratio

    def mass_below(x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mass of P below a place."""
        return noise.below(x) if adds else (1 - rate) * noise.below(x) + rate * noise.below(x - 1)

    def place(loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return where L is reached."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.log1p(np.maximum(np.expm1(loss) / rate, -1.0)) if rate < 1 else loss
        return noise.place(ratio)

    ends = [-noise.largest, noise.largest]
    if math.isinf(noise.largest):
        ends = [noise.ratio(noise.quantile(tail / 2)), noise.ratio(1 - noise.quantile(tail / 2))]
    low, high = (of_ratio(ratio) for ratio in ends)
    atoms: tuple[tuple[float, float], ...] = ()
    inside = (-math.inf, math.inf)
    if math.isfinite(noise.largest):
        inside = (0.0, 1.0)  # the places between which the ratio moves
        left = float(mass_below(np.array([0.0]))[0])
        right = 1 - float(mass_below(np.array([1.0]))[0])
        atoms = ((-high, right), (-low, left)) if adds else ((low, left), (high, right))

    def below(loss: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.clip(place(-loss if adds else loss), *inside)
        if adds:
            return mass_below(np.array([inside[1]])) - mass_below(x)
        return mass_below(x) - mass_below(np.array([inside[0]]))

    return StepLoss(low=-high if adds else low, high=-low if adds else high, below=below, atoms=atoms)


def _approximate(epsilon: float, delta: float) -> StepLoss:
    """Return the loss of the worst mechanism that keeps (epsilon, delta): randomised response that fails openly."""
    flip = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return StepLoss(
        low=-epsilon,
        high=epsilon,
        below=lambda loss: np.zeros(loss.shape),
        atoms=((-epsilon, flip), (epsilon, 1 - delta - flip)),
        beyond=delta,
    )
