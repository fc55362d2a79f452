r"""Bounds on the movement of DP-VRPCA's directions within an epoch, and the bounds of epsilon that follow.

A record x enters a step of DP-VRPCA through the correction ``x x^T (v - v0)``. Here v are the current directions and v0
the directions at the start of the epoch. So the sensitivity of a step is at most ``|v - v0|``, the movement of the
directions within the epoch. The privacy guarantee depends on how large this movement can become.

>>> epoch = Epoch(n_features=123, n_records=32_561, steps=32_561, noise_std=0.146)
>>> round(epoch.attained(1.0, failure=1e-5), 2), round(epoch.at_most(1.0, failure=1e-5), 2)
(0.45, 0.52)

Notes
-----
*Setting.* There are n rows, all of norm at most 1. A is their second moment divided by n. An epoch has T steps of size
``1 / n``, so after t steps the time ``tau = t / n`` has passed. Each step adds noise z with the std lambda in each of d
coordinates. Neighbors differ by one replaced row. The observer sees all iterates, as in the printed proof, which
composes the steps. Let ``P = I - v v^T``.

*Upper bound of the movement* (`Epoch.at_most`). A step moves v by ``P (h - z) / n``, up to an error of
``|h - z|^2 / n^2``, where ``h = x x^T (v - v0) + A v0``. The mean of h over the sampled row x is ``A v``. So the sum of
all movements has four parts.

- Drift: ``|P A v| <= 1/2``, because ``0 <= A <= I``. In the time tau, the drift rotates v by at most ``tau / 2``, which
  is a distance of at most ``2 sin(tau / 4)``.
- Noise: a martingale whose steps are projections of ``z / n``. With independent noise added in the other coordinates,
  it becomes a Gaussian vector of std ``lambda sqrt(t) / n``. So by the inequalities of Jensen and Doob, its largest
  norm has the Chernoff bound of a chi-square distribution with d degrees of freedom. The squared norm exceeds
  ``d + 2 sqrt(d r) + 2 r`` variances with probability at most ``e^-r`` (Laurent and Massart).
- Sampling: a martingale with steps of at most ``D / n``, where D is the largest movement. Its norm exceeds
  ``D sqrt(2 t r) / n`` with probability at most ``2 e^-r`` (Pinelis).
- Squares: the errors of all steps, at most ``2 (9 t + sum |z|^2) / n^2``, with the same chi-square bound for the sum.

For k directions, the movements are spectral norms, the drift has the same bound, and the chi-square distribution has
d k degrees of freedom.

*A movement that is attained* (`Epoch.attained`). All rows are e1, and one of them is replaced by e2. The start v0 lies
in the plane of e1 and e2, at the angle phi from e1 with ``tan(phi) = e^(T / 2n)``. By the drift, the angle phi_tau at
time tau satisfies ``tan(phi_tau) = tan(phi) e^-tau``. No other start in a plane gives a larger rotation. The replaced
row is sampled in a step with probability ``1 / n``, and then moves the step by ``(e2 e2^T - e1 e1^T)(v - v0)``, which
is as long as ``v - v0``. So the outputs for both neighbors are exactly the pair of a sampled Gaussian. In addition, the
replaced row moves the full product ``A v0`` of all steps along the reflected start. An observer who ignores this
direction still sees a shift of length ``sin(phi - phi_tau)``. Noise in the plane changes this length by at most
``e^(T / n)`` times the noise bound for two coordinates, because deviations of the drift grow by at most ``e^tau``.

*Bounds of epsilon* (`movement_bracket`). The lower bound composes sampled Gaussians with the attained movement; in each
block of steps, the movement at the start of the block is used. The upper bound uses the largest movement at the end of
each block. There, a tenth of the noise variance covers the full product, which the replaced row moves by ``1 / n`` in
each step. The upper bound assumes Poisson sampling, as the formula of DP-SPCA does. The probabilities with which the
bounds of the movement fail are subtracted from delta for the upper bound, and added to it for the lower bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket, epsilon_bracket

# The cuts divide an epoch into blocks. The blocks are shortest near the end, where the movement is largest.
_CUTS = (0.0, 0.5, 0.7, 0.8, 0.86, 0.9, 0.93, 0.96, 0.98, 1.0)
_FULL, _FAILURE, _WITHIN = 0.1, 0.01, 0.1
_FURTHEST = 2.0  # the largest distance between two unit vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch of DP-VRPCA as printed: the settings, and the std of the noise that is added in each step."""

    n_features: int
    n_records: int
    steps: int
    noise_std: float
    n_components: int = 1

    def at_most(self, part: float, *, failure: float) -> float:
        """Return an upper bound of the movement of the directions in the first part of the epoch, for any rows.

        Parameters
        ----------
        part : float
            The fraction of the epoch's steps, in [0, 1].
        failure : float
            The probability with which the movement may exceed the bound.
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
        """Return a movement in the first part of the epoch that certain rows reach or exceed.

        The rows are described in the notes of the module. They fail to reach the movement with probability at most
        ``failure``. ``part`` is the fraction of the epoch's steps.
        """
        whole = self.steps / self.n_records
        start = math.exp(whole / 2.0)
        angle = math.atan(start) - math.atan(start * math.exp(-part * whole))
        swayed = math.exp(whole) * self._noise(self.steps, 2, math.log(1.0 / failure))
        return max(math.sin(angle) - swayed, 0.0)

    def _noise(self, steps: float, size: float, rare: float) -> float:
        """Return a bound on the norm of the summed noise of ``steps`` steps in ``size`` coordinates.

        The norm exceeds the bound with probability at most ``e^-rare``.
        """
        square = size + 2.0 * math.sqrt(size * rare) + 2.0 * rare
        return self.noise_std * math.sqrt(steps * square) / self.n_records


def movement_bracket(epoch: Epoch, *, epochs: int, delta: float) -> EpsilonBracket:
    """Return lower and upper bounds of epsilon at delta for the noise that the DP-VRPCA paper prints.

    The lower bound follows from a movement that certain rows attain, the upper bound from the largest movement of any
    rows.
    """
    failure = _FAILURE * delta / epochs
    attained = corrections(epoch, lambda before, _: epoch.attained(before, failure=failure), epochs=epochs)
    lower = 0.0 if attained is None else epsilon_bracket(attained, delta=delta * (1.0 + _FAILURE), within=_WITHIN).lower
    try:
        event = upper_event(epoch, epochs=epochs, delta=delta)
        upper = epsilon_bracket(event, delta=delta * (1.0 - _FAILURE), within=_WITHIN).upper
    except OverflowError:  # no bound, as the privacy losses are too large for float64 exponentials
        upper = math.inf
    return EpsilonBracket(lower=lower, upper=upper, agrees=upper <= (1.0 + _WITHIN) * lower)


def upper_event(epoch: Epoch, *, epochs: int, delta: float) -> events.Event:
    """Return the privacy event for the largest movement: full products and corrections.

    A fixed part of the noise variance covers the full products, and the rest covers the corrections.
    """
    failure, left = _FAILURE * delta / epochs, math.sqrt(1.0 - _FULL)
    full = events.gaussian(math.sqrt(_FULL) * epoch.n_records * epoch.noise_std)
    moved = corrections(epoch, lambda _, after: epoch.at_most(after, failure=failure) / left, epochs=epochs)
    whole = events.self_composed(full, epoch.steps * epochs)
    return whole if moved is None else events.composed(whole, moved)


def corrections(epoch: Epoch, movement: Callable[[float, float], float], *, epochs: int) -> events.Event | None:
    """Return the privacy event of the corrections in all steps of all epochs; None if nothing moves.

    ``movement`` takes the start and the end of a block of steps, as fractions of the epoch. It returns the movement to
    use in this block.
    """
    found = []
    cuts = [round(cut * epoch.steps) for cut in _CUTS]
    for first, last in pairwise(cuts):
        moved = movement(first / epoch.steps, last / epoch.steps)
        if last > first and moved > 0.0:
            step = events.poisson_sampled(events.gaussian(epoch.noise_std / moved), 1.0 / epoch.n_records)
            found.append(events.self_composed(step, (last - first) * epochs))
    return events.composed(*found) if found else None
