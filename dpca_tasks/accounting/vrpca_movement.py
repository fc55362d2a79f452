r"""Bound on the movement of DP-VRPCA's directions within an epoch, and the bracket of epsilon that follows.

One record enters a step of DP-VRPCA through its correction ``x x^T (v - v0)``, which is at most as long as the
directions v have moved from the epoch's start v0. A guarantee depends on how far they can move.

>>> epoch = Epoch(n_features=123, n_records=32_561, steps=32_561, noise_std=0.146)
>>> round(epoch.attained(1.0, failure=1e-5), 2), round(epoch.at_most(1.0, failure=1e-5), 2)
(0.45, 0.53)

Notes
-----
Steps have size ``1 / n``, so after t steps the time ``tau = t / n`` has passed. Rows have norm at most 1. Neighbours
differ by one replaced row, and all iterates are seen, as in the printed proof, which composes the steps. Let
``P = I - v v^T``, and let z have the std lambda in each of d coordinates.

*At most.* A step moves v by ``P (h - z) / n``, up to ``|h - z|^2 / n^2``, where ``h = x x^T (v - v0) + A v0``. The mean
of h over the sampled row is ``A v``. The sum of the movements has four parts.

- Drift: ``|P A v| <= 1/2`` for ``0 <= A <= I``. In the time tau the drift turns v by at most ``tau / 2``, to a distance
  of at most ``2 sin(tau / 4)``.
- Noise: a martingale whose steps are projections of ``z / n``. Adding independent noise to the other coordinates makes
  it a Gaussian of std ``lambda sqrt(t) / n``, so by Jensen and Doob its largest norm has the Chernoff bound of a
  chi-square of d degrees: ``d + 2 sqrt(d r) + 2 r`` at ``e^-r`` (Laurent and Massart).
- Sampling: a martingale with steps of at most ``D / n``, where D is the largest movement. Its norm exceeds
  ``D sqrt(2 t r) / n`` with probability at most ``2 e^-r`` (Pinelis).
- Squares: at most ``2 (9 t + sum |z|^2) / n^2``, with the same bound of a chi-square.

For k directions, movements are spectral norms, the drift has the same bound, and the chi-square has d k degrees.

*Attained.* All rows are e1 and one is replaced by e2. The start lies in the plane of both, with
``tan(phi) = e^(T / 2n)`` for the angle phi from e1. The drift gives ``tan(phi_tau) = tan(phi) e^-tau``: the largest
angle that one plane allows. The replaced row is in a step with probability ``1 / n``, and then moves it by
``(e2 e2^T - e1 e1^T)(v - v0)``, as long as ``v - v0``. So this is the sampled Gaussian pair itself. The full product
moves all steps along the reflected start. An observer who ignores that direction is left with ``sin(phi - phi_tau)``.
Noise in the plane changes this by at most ``e`` times the bound for two coordinates, because deviations of the drift
grow by at most ``e^tau``.

*The bracket.* The lower end composes sampled Gaussians of the attained movement, each block of steps with the movement
at its start. The upper end has the largest movement at the end of each block, and a tenth of the noise variance for the
full product, ``1 / n`` in each step. The upper end is for sampling by coins, as in the row of DP-SPCA. Failures of the
bounds above are taken from delta, or added to it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket, epsilon_bracket

_CUTS = (0.0, 0.5, 0.7, 0.8, 0.86, 0.9, 0.93, 0.96, 0.98, 1.0)  # blocks of an epoch: movement matters most near its end
_FULL, _FAILURE, _WITHIN = 0.1, 0.01, 0.1
_FURTHEST = 2.0  # between two unit vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch of printed steps: its settings, and the std of the noise in each step."""

    n_features: int
    n_records: int
    steps: int
    noise_std: float
    n_components: int = 1

    def at_most(self, part: float, *, failure: float) -> float:
        """Return a bound on the movement in a first part of the steps, exceeded with probability at most ``failure``.

        Parameters
        ----------
        part : float
            In [0, 1].
        failure : float
        """
        n, rare = self.n_records, math.log(4.0 / failure)
        steps = part * self.steps
        noise = self._noise(steps, self.n_features * self.n_components, rare)
        squares = 2.0 * (9.0 * steps / n**2 + self._noise(1.0, self.n_features * self.n_components * steps, rare) ** 2)
        drift = 2.0 * math.sin(min(steps / n / 4.0, math.pi / 2.0))
        sampling = math.sqrt(2.0 * steps * rare) / n
        if sampling >= 1.0:
            return _FURTHEST
        return min((drift + noise + squares) / (1.0 - sampling), _FURTHEST)

    def attained(self, part: float, *, failure: float) -> float:
        """Return a movement that the rows in the module's notes exceed, except with probability ``failure``."""
        whole = self.steps / self.n_records
        start = math.exp(whole / 2.0)
        angle = math.atan(start) - math.atan(start * math.exp(-part * whole))
        swayed = math.exp(whole) * self._noise(self.steps, 2, math.log(1.0 / failure))
        return max(math.sin(angle) - swayed, 0.0)

    def _noise(self, steps: float, size: float, rare: float) -> float:
        """Return a bound on the length of the noise of some steps in a number of coordinates."""
        square = size + 2.0 * math.sqrt(size * rare) + 2.0 * rare
        return self.noise_std * math.sqrt(steps * square) / self.n_records


def movement_bracket(epoch: Epoch, *, epochs: int, delta: float) -> EpsilonBracket:
    """Bracket the epsilon of the printed noise at delta, from the attained and the largest movement of any rows."""
    failure = _FAILURE * delta / epochs
    attained = corrections(epoch, lambda before, _: epoch.attained(before, failure=failure), epochs=epochs)
    lower = 0.0 if attained is None else epsilon_bracket(attained, delta=delta * (1.0 + _FAILURE), within=_WITHIN).lower
    try:
        event = upper_event(epoch, epochs=epochs, delta=delta)
        upper = epsilon_bracket(event, delta=delta * (1.0 - _FAILURE), within=_WITHIN).upper
    except OverflowError:  # losses beyond the accountant's exponentials
        upper = math.inf
    return EpsilonBracket(lower=lower, upper=upper, agrees=upper <= (1.0 + _WITHIN) * lower)


def upper_event(epoch: Epoch, *, epochs: int, delta: float) -> events.Event:
    """Return the event of the largest movement: full products and corrections, with separate parts of the noise."""
    failure, left = _FAILURE * delta / epochs, math.sqrt(1.0 - _FULL)
    full = events.gaussian(math.sqrt(_FULL) * epoch.n_records * epoch.noise_std)
    moved = corrections(epoch, lambda _, after: epoch.at_most(after, failure=failure) / left, epochs=epochs)
    whole = events.self_composed(full, epoch.steps * epochs)
    return whole if moved is None else events.composed(whole, moved)


def corrections(epoch: Epoch, movement: Callable[[float, float], float], *, epochs: int) -> events.Event | None:
    """Return the event of all corrections, for a movement in each block from its start and its end; None if none."""
    found = []
    cuts = [round(cut * epoch.steps) for cut in _CUTS]
    for first, last in pairwise(cuts):
        moved = movement(first / epoch.steps, last / epoch.steps)
        if last > first and moved > 0.0:
            step = events.poisson_sampled(events.gaussian(epoch.noise_std / moved), 1.0 / epoch.n_records)
            found.append(events.self_composed(step, (last - first) * epochs))
    return events.composed(*found) if found else None
