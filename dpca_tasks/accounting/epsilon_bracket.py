r"""Proved lower and upper bounds of the true epsilon of an event, from distributions of the privacy loss.

The privacy loss of one step is a random variable. Its distribution is rounded to a grid, with a bound on the rounding
error.

>>> loss = step_loss((("laplace", 1.0), ("noise_multiplier", 2.0)), tail=1e-9, adds=False)
>>> loss.low, loss.high, loss.atoms[1]
(-0.5, 0.5, (0.5, 0.5))

Epsilon at a given delta is bounded from below and from above. The grid is refined until both bounds are as close as
requested, or until the grid has a maximum number of points.

Usual accountants round losses up on one fixed grid, and so give only an upper bound. For thousands of steps with small
losses, this bound can exceed the true epsilon by more than a factor of ten.

>>> from dpca_tasks.accounting.events import gaussian, poisson_sampled, self_composed
>>> steps = self_composed(poisson_sampled(gaussian(1.0), 0.01), 100)
>>> found = epsilon_bracket(steps, delta=1e-5)
>>> found.agrees, 0.98 < found.lower / found.upper <= 1
(True, True)

Notes
-----
*Bounds from rounded losses.* P and Q are the output distributions for two neighbors. Let Y be the sum of the losses
``log dP/dQ`` of all n steps, under P. Then ``delta(epsilon) = P(Y = inf) + E (1 - e^(epsilon - Y))_+``. The loss of
each step is rounded to the nearest point of a grid with spacing h. The n rounding errors are independent, and each lies
in an interval of length h. By Hoeffding's inequality, the sum of the errors exceeds its mean by more than
``t = h sqrt(n / 2 ln(1 / eta))`` with probability at most eta. The same holds for falling below the mean. Here t grows
with ``sqrt n``, not with n. The integrand of the expectation above is nondecreasing in Y and lies in [0, 1]. Let R be
the sum of the rounded losses minus the mean of the errors. Then

    delta_R(epsilon + t) - eta <= delta_Y(epsilon) <= delta_R(epsilon - t) + eta.

*The mean of a rounding error.* Consider a grid point c with the cell [a, b] of losses that are rounded to c. Let F be
the distribution function of the loss. The contribution of the cell to the mean error is
``E (c - Y) 1_[a, b] = Int F - h (F(a) + F(b)) / 2``, with the integral over the cell. If the density is monotone in the
cell, ``Int F`` lies between ``h F(c)`` and ``h (F(a) + F(b)) / 2``. So the contribution lies between 0 and
``h (2 F(c) - F(a) - F(b)) / 2``. In the few cells where the density may turn, the contribution is at most ``h / 2``
times the probability of the cell. For the cells with the weakest of these bounds, ``Int F`` is bounded instead by sums
of F over a few hundred parts of the cell, which holds for any density. At small sampling rates, these cells contain
most of the probability. Losses that have a positive probability (Laplace, pure events) are rounded separately.

*Other errors.* Two kinds of losses are left out: losses of a step outside the range of its grid, and sums outside the
window of the Fourier transform (bounded by Chernoff's inequality). Each kind has a probability of at most `_SPARE`
delta, which is added to eta. For the floating-point error of the transform, ``2^-48`` per step is added to eta. This is
more than a hundred times the error that tests against closed forms show.

*Neighbors.* Neighbors differ by one record that is added or removed. Both directions are computed, each with its
dominating pair of distributions, and the larger epsilon is returned (Zhu, Dong and Wang 2022). For a replaced record
see `dpca_tasks.accounting.subsampled.through_empty_record`.

References
----------
Gopi, Lee and Wutschitz (2021), Numerical composition of differential privacy. Zhu, Dong and Wang (2022), Optimal
accounting of differential privacy via characteristic function.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy  # the submodules of scipy are imported when they are first used
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.accounting.events import Parts, Relation, float_down, float_up, parts_of
from dpca_tasks.accounting.prices import own_price
from dpca_tasks.errors import InvalidInput

_CELLS, _PARTS = 64, 256  # to bound rounding errors, this number of cells is divided into this number of parts

type Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounded:
    """The distribution of one step's privacy loss, rounded to a grid.

    ``points`` are the grid points, of which the first is number ``first``, and ``masses`` are their probabilities.
    ``beyond`` is the probability of an infinite loss. ``errors`` are a lower and an upper bound of the mean rounding
    error.
    """

    first: int
    points: NDArray[np.float64]
    masses: NDArray[np.float64]
    beyond: float
    errors: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLoss:
    """The distribution of one step's privacy loss ``log dP/dQ`` under P.

    Finite losses lie between ``low`` and ``high``, except for a small tail. ``atoms`` are pairs of a loss and its
    positive probability. ``below`` is the distribution function of the remaining losses, which have a density.
    ``beyond`` is the probability of an infinite loss.
    """

    low: float
    high: float
    below: Function
    atoms: tuple[tuple[float, float], ...] = ()
    beyond: float = 0.0

    def rounded(self, step: float) -> Rounded:
        """Round the loss to the nearest point of a grid with spacing ``step``.

        Losses outside ``low`` to ``high`` are rounded to the first or the last point.
        """
        first, last = math.floor(self.low / step), math.ceil(self.high / step)
        halves = self.below(np.arange(2 * first - 1, 2 * last + 2, dtype=np.float64) * (0.5 * step))
        halves[0], halves[-1] = 0.0, float(self.below(np.array([math.inf]))[0])
        edges, centres = halves[::2], halves[1::2]
        masses = np.diff(edges)
        bends = 2 * centres - edges[:-1] - edges[1:]
        turns = np.zeros(bends.size, bool)
        turns[1:] = np.sign(bends[1:]) != np.sign(bends[:-1])
        turns |= np.roll(turns, -1)  # a sign change between two cells may be in either of them
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
        """Return lower and upper bounds of the mean rounding error in some cells, in units of half a step.

        The integral of the distribution function F over a cell is bounded by sums over parts of the cell. F never
        decreases, so on each part it lies between its values at both ends of the part. No density is needed.
        """
        inside = (np.arange(1, _PARTS) / _PARTS - 0.5) * step
        values = self.below(cells[:, None] * step + inside)
        sums = values.sum(axis=1)
        ends = low + high
        return 2 * (low + sums) / _PARTS - ends, 2 * (high + sums) / _PARTS - ends


def step_loss(kind: tuple[tuple[str, float], ...], *, tail: float, adds: bool) -> StepLoss:
    """Return the privacy loss distribution of one step.

    Parameters
    ----------
    kind : tuple of (name, number) pairs
        The step. The first pair is the name of the event and the sampling rate. The other pairs are the parameters of
        the event, such as ``("noise_multiplier", 2.0)``.
    tail : float
        The largest probability of losses outside ``low`` to ``high``.
    adds : bool
        True if the record is in the dataset of Q, False if it is in the dataset of P.
    """
    (name, rate), numbers = kind[0], dict(kind[1:])
    match name:
        case "approximate":
            return _approximate(numbers["epsilon"], numbers["delta"])
        case "gaussian":
            return _sampled(_gaussian(numbers["noise_multiplier"]), rate, tail=tail, adds=adds)
        case "laplace":
            return _sampled(_laplace(numbers["noise_multiplier"]), rate, tail=tail, adds=adds)
    raise InvalidInput(
        f"the privacy loss of a {name!r} event is not known; build events with dpca_tasks.accounting.events"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Noise:
    """Additive noise on one number that a record shifts by 1: the distribution, and the log ratio of both densities."""

    below: Function
    place: Function  # maps a log ratio (shifted density over original density) to the point x that has this ratio
    largest: float  # the largest log ratio; infinite if it is unbounded
    quantile: Callable[[float], float]
    ratio: Callable[[float], float]


def _gaussian(multiplier: float) -> _Noise:
    square = multiplier * multiplier
    return _Noise(
        below=lambda x: scipy.special.ndtr(x / multiplier),
        place=lambda ratio: square * ratio + 0.5,
        largest=math.inf,
        quantile=lambda mass: float(multiplier * scipy.special.ndtri(mass)),
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
    """Return the privacy loss distribution of additive noise on a Poisson sample with sampling rate q.

    Let N be the distribution of the noise. Without the record, the output has the distribution N. With the record, it
    has the mixture ``(1 - q) N + q N(. - 1)``. Let l be the log ratio of the densities of ``N(. - 1)`` and N at an
    output x. The log ratio of the mixture and N is ``L = log(1 - q + q e^l)``. Both l and L increase with x. The loss
    is L under the mixture, or, if ``adds``, -L under N.
    """

    def of_ratio(ratio: float) -> float:
        return math.log1p(rate * math.expm1(ratio)) if rate < 1 else ratio

    def mass_below(x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability under P of an output below x."""
        return noise.below(x) if adds else (1 - rate) * noise.below(x) + rate * noise.below(x - 1)

    def place(loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the output x at which the log ratio L has a given value."""
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
        inside = (0.0, 1.0)  # the log ratio of Laplace noise is constant outside this interval of outputs
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
    """Return the privacy loss distribution of the worst (epsilon, delta)-DP mechanism.

    This mechanism is randomized response that fails, observably, with probability delta.
    """
    flip = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return StepLoss(
        low=-epsilon,
        high=epsilon,
        below=lambda loss: np.zeros(loss.shape),
        atoms=((-epsilon, flip), (epsilon, 1 - delta - flip)),
        beyond=delta,
    )


WITHIN = 0.02
"""Default relative distance between the ends of a bracket."""
LARGEST_TRANSFORM = 1 << 23
"""Points of the finest grid, which takes a second or two."""

_FIRST_POINTS = 1 << 11  # number of points of the first grid in the loss range of the step with the smallest range
_SPARE = 2.0**-12  # fraction of delta that losses outside each bounded range may have
_THINNED = 1 << 15  # number of points to which `_thinned` reduces a distribution
_FLOATS = 2.0**-48  # bound on the floating-point error of the Fourier transform, per step
_LEAST_LEFT = 2.0**-8  # fraction of delta that other parts must leave, since otherwise a bracket has no upper end
_FARTHEST = 64.0  # the largest value at which `_half_epsilon` searches
_REPEATS = 3  # how often `_half_epsilon` repeats its last step; more repetitions no longer decrease the result


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonBracket:
    """A proved lower bound and a proved upper bound of the true epsilon of an event at a delta.

    Where only one number is reported, report the upper bound. Both bounds are 0 if delta alone covers the event.
    ``agrees`` is True if the bounds are as close as requested, and False if the finest allowed grid did not suffice.
    """

    lower: float
    upper: float
    agrees: bool


def epsilon_bracket(event: events.Event, *, delta: float, within: float = WITHIN) -> EpsilonBracket:
    """Bound the true epsilon of an event at a delta from below and above, for one record added or removed.

    Parameters
    ----------
    event : Event
        An event of `dpca_tasks.accounting.events`: Gaussian or Laplace noise, also on samples, an (epsilon, delta)
        mechanism, or a composition of these.
    delta : float
    within : float
        The requested relative distance of the bounds. The grid is refined until ``upper <= (1 + within) lower``, until
        upper is 0, or until the grid has `LARGEST_TRANSFORM` points.

    Returns
    -------
    EpsilonBracket
        If all parts are unsampled Gaussian noise, both bounds follow from the closed form. A part that is known only by
        its (epsilon, delta) counts as the worst mechanism with this guarantee. A tick of a stream counts by its own
        noise, although the ledger charges the stream instead. An answer without noise has infinite bounds.
    """
    if not (0 < delta < 1 and 0 < within < 1):
        raise InvalidInput(
            f"delta={delta} and within={within} must both be in (0, 1); pass numbers strictly between 0 and 1"
        )
    if not events.is_private(event):
        return EpsilonBracket(lower=math.inf, upper=math.inf, agrees=True)
    return _bracket(_parts(event), delta, within)


def epsilon_of_event(event: events.Event, *, delta: float, relation: Relation) -> float:
    """Return the epsilon to report for a release: a proved upper bound at a delta.

    Parameters
    ----------
    event : Event
        The complete event of the release, with all of its steps.
    delta : float
        The requested delta; 0 for a pure event.
    relation : Relation
        The neighboring relation for which the noise multipliers in the event are stated.

    Returns
    -------
    float
        The bound. It is infinity if the event has no epsilon at delta, and 0 if delta alone covers the event.

    Notes
    -----
    The result is the smaller of two bounds. The first bound is `own_price`. It is exact if the parts that are known
    only by (epsilon, delta) take all of delta. The second bound is the upper end of `epsilon_bracket`. For samples, the
    bracket holds only for added, removed or emptied records. So if samples are taken and records are replaced, the
    bracket is applied to the Gaussian parts alone. A bound (e, d) for an emptied record gives ``(2 e, (1 + e^e) d)``
    for a replaced record, as in `dpca_tasks.accounting.prices.loss_epsilon`. The epsilons of the other parts are added.
    """
    if not events.is_private(event):
        return math.inf
    replaced = relation == "replace_one"
    parts = parts_of(event, replaced=replaced)
    epsilon, failures = own_price(parts, delta=delta, replaced=replaced)
    own = float_up(Fraction(epsilon)) if math.isfinite(epsilon) and failures <= delta else math.inf
    if not (parts.sampled or parts.approximate):
        return own
    others = sum(count * Fraction(loss) for (loss, _), count in parts.approximate.items())
    left = float_down(Fraction(delta) - sum(count * Fraction(lost) for (_, lost), count in parts.approximate.items()))
    if not left > _LEAST_LEFT * delta:
        return own
    if not (replaced and parts.sampled):
        return min(own, epsilon_bracket(event, delta=delta).upper)
    half = _half_epsilon(parts, delta=left)
    return min(own, float_up(others + 2 * Fraction(half)) if math.isfinite(half) else math.inf)


def _half_epsilon(parts: Parts, *, delta: float) -> float:
    """Return a small e with ``(1 + e^e) d(e) <= delta``, where d(e) is the delta at e of the event's Gaussian parts.

    The Gaussian parts may be sampled. If they have an epsilon ``f <= e`` at ``delta / (1 + e^e)``, then f satisfies the
    condition too, and the search continues from f. The result is infinity if no e up to `_FARTHEST` is found.
    """
    gaussians = [events.self_composed(events.gaussian(z), count) for z, count in parts.gaussians.items()]
    for (rate, z), count in parts.sampled.items():
        gaussians.append(events.self_composed(events.poisson_sampled(events.gaussian(z), rate), count))
    event = events.composed(*gaussians)

    def bound(half: float) -> float:
        return epsilon_bracket(event, delta=delta / (1 + math.exp(half)) * (1 - 2.0**-50)).upper

    half = 1.0
    while (found := bound(half)) > half:
        half *= 2
        if half > _FARTHEST:
            return math.inf
    for _ in range(_REPEATS):
        found = min(found, bound(found))
    return found


def _parts(event: events.Event) -> tuple[tuple[tuple[tuple[str, float], ...], int], ...]:
    """Return the distinct steps of an event in the form that `step_loss` takes, each with its count."""
    counted: Counter[tuple[tuple[str, float], ...]] = Counter()
    for step, count in events.leaves(event):
        leaf = events.shown_event(step)
        inner = leaf["event"] if leaf["name"] == "poisson_sampled" else leaf
        numbers = {name: float(value) for name, value in inner.items() if name != "name"}
        rate = float(leaf.get("rate", 1.0))
        counted[((inner["name"], rate), *sorted(numbers.items()))] += count
    return tuple(sorted(counted.items()))


@lru_cache(maxsize=256)
def _bracket(
    parts: tuple[tuple[tuple[tuple[str, float], ...], int], ...], delta: float, within: float
) -> EpsilonBracket:
    whole = [(dict(kind[1:])["noise_multiplier"], count) for kind, count in parts if kind[0] == ("gaussian", 1.0)]
    multiplier = 1 / math.sqrt(sum(count / Fraction(z) ** 2 for z, count in whole)) if whole else math.inf
    if len(whole) == len(parts):
        upper = gaussian_epsilon(noise_multiplier=multiplier * (1 - 2.0**-50), delta=delta)
        return EpsilonBracket(lower=upper * (1 - 1e-9), upper=upper, agrees=True)
    rest = [(kind, count) for kind, count in parts if kind[0] != ("gaussian", 1.0)]
    steps = [*rest, ((("gaussian", 1.0), ("noise_multiplier", multiplier)), 1)] if whole else rest
    removed = _direction(steps, delta=delta, within=within, adds=False)
    added = _direction(steps, delta=delta, within=within, adds=True, covered=removed[1])
    lower, upper = (max(ends) for ends in zip(removed, added, strict=True))
    return EpsilonBracket(lower=lower, upper=upper, agrees=upper <= (1 + within) * lower or upper == 0)


def _direction(
    steps: Sequence[tuple[tuple[tuple[str, float], ...], int]],
    *,
    delta: float,
    within: float,
    adds: bool,
    covered: float = -math.inf,
) -> tuple[float, float]:
    """Return lower and upper bounds of epsilon for one direction: a record added, or a record removed.

    The grid is refined until the bounds are close enough, or until the upper bound is at most ``covered``, the upper
    bound of the other direction.
    """
    count = sum(times for _, times in steps)
    losses = [(step_loss(kind, tail=_SPARE * delta / count, adds=adds), times) for kind, times in steps]
    lower, upper = 0.0, math.inf
    step = min(loss.high - loss.low for loss, _ in losses) / _FIRST_POINTS
    while True:
        composed = _Composed.of(losses, step, delta=delta)
        low, high = composed.ends(delta)
        lower, upper = max(lower, low), min(upper, high)
        if upper <= max((1 + within) * lower, covered) or composed.size >= LARGEST_TRANSFORM:
            return lower, upper
        middle = 0.5 * (lower + upper)
        aim = 0.4 * within * middle if lower else 0.1 * upper if math.isfinite(upper) else 0.0
        finer = step * min(0.5, max(aim / composed.reach, 0.4 * (covered - middle) / composed.reach, 2.0**-6))
        step = max(finer, composed.window / LARGEST_TRANSFORM)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Composed:
    """The distribution of the sum of all steps' rounded losses, with a bound on its distance from the true sum."""

    points: NDArray[np.float64]
    masses: NDArray[np.float64]
    beyond: float  # the probability of an infinite loss
    shifts: tuple[float, float]  # bounds on the mean of the true sum minus the mean of the rounded sum
    reach: float  # the deviation t of the module docstring
    eta: float

    @property
    def size(self) -> int:
        return self.points.size

    @property
    def window(self) -> float:
        return float(self.points[-1] - self.points[0])

    @classmethod
    def of(cls, losses: Sequence[tuple[StepLoss, int]], step: float, *, delta: float) -> "_Composed":
        """Compose the losses of all steps on a grid with spacing ``step``, by a Fourier transform."""
        count = sum(times for _, times in losses)
        rounded = [(loss.rounded(step), times) for loss, times in losses]
        least, most = (sum(times * grid.errors[end] for grid, times in rounded) for end in (0, 1))
        spare = _SPARE * delta
        bounds = [
            _farthest([(grid.points, grid.masses, times) for grid, times in rounded], spare, sign)
            for sign in (-1.0, 1.0)
        ]
        first = math.floor(bounds[0] / step)
        widest = max(grid.masses.size for grid, _ in rounded)
        size = scipy.fft.next_fast_len(max(math.ceil(bounds[1] / step) - first + 1, widest), real=True)
        spectrum = np.ones(size // 2 + 1, np.complex128)
        start, finite = 0, 1.0
        for grid, times in rounded:
            spectrum *= scipy.fft.rfft(grid.masses, size) ** times
            start += times * grid.first
            finite *= math.exp(times * math.log1p(-grid.beyond))
        masses = np.roll(scipy.fft.irfft(spectrum, size), start - first)
        reach = step * math.sqrt(0.5 * count * math.log(1 / spare))
        return cls(
            points=step * np.arange(first, first + size),
            masses=np.maximum(masses, 0.0),
            beyond=1 - finite,
            shifts=(-most, -least),
            reach=reach,
            eta=4 * spare + sum(times for _, times in losses) * _FLOATS,
        )

    def ends(self, delta: float) -> tuple[float, float]:
        """Return the lower and the upper bound of the epsilon at delta of the true sum of losses."""
        low = self._epsilon(delta + self.eta) + self.shifts[0] - self.reach
        high = self._epsilon(delta - self.eta) + self.shifts[1] + self.reach
        return max(0.0, low), max(0.0, high)

    def _epsilon(self, delta: float) -> float:
        """Return the epsilon at delta of the rounded sum of losses; the result may be negative."""
        left = delta - self.beyond
        if not left > 0:
            return math.inf
        fall = math.exp(self.points[0] - self.points[1])
        above = np.cumsum(self.masses[::-1])[::-1]
        # At point i: the masses of all points j >= i, weighted by exp(point i - point j).
        weighted = scipy.signal.lfilter([1.0], [1.0, -fall], self.masses[::-1])[::-1]
        at = int(np.searchsorted(weighted - above, -left))  # the first point whose delta is at most `left`
        if at == 0:
            return -math.inf
        if at == self.size:
            return float(self.points[-1])
        share = (above[at] - left) / weighted[at] if weighted[at] > 0 else 1.0
        return float(self.points[at] + math.log(max(min(share, 1.0), fall)))


def _farthest(laws: Sequence[tuple[NDArray[np.float64], NDArray[np.float64], int]], mass: float, sign: float) -> float:
    """Return a Chernoff bound that the sum of all losses exceeds with probability at most ``mass``.

    With ``sign=-1``, the sum falls below the returned bound with at most this probability.
    """
    scale = max(float(np.abs(points).max()) for points, _, _ in laws)

    def bound(exponent: float, laws: Sequence[tuple[NDArray[np.float64], NDArray[np.float64], int]]) -> float:
        slope = math.exp(exponent) / scale
        logs = sum(times * math.log(float(np.exp(slope * sign * points) @ masses)) for points, masses, times in laws)
        return (logs - math.log(mass)) / slope

    rough = [(*_thinned(points, masses), times) for points, masses, times in laws]
    found = scipy.optimize.minimize_scalar(
        bound, bounds=(-6.0, math.log(600.0)), args=(rough,), method="bounded", options={"maxiter": 24}
    )
    extent = sum(times * float((sign * points).max()) for points, _, times in laws)
    return sign * min(bound(float(found.x), laws), extent)


def _thinned(points: NDArray[np.float64], masses: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Merge the points of a distribution into fewer points.

    The merged distribution is used only to choose the exponent of a Chernoff bound, which is valid for any exponent.
    """
    starts = np.arange(0, points.size, -(-points.size // _THINNED))
    return points[starts], np.add.reduceat(masses, starts)
