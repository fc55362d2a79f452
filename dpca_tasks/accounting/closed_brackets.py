r"""Brackets of a true epsilon in closed form: of smooth noise, and of one Wishart matrix.

What smooth noise gives is that of the worst pair of outputs that a smooth bound allows: a shift of the bound, and log
scales that differ by the smoothness.

*Cauchy.* The densities of location m and scale s are the Poisson kernels of the upper half plane, so the largest log
ratio of two of them is the hyperbolic distance d of their parameters, ``cosh d = 1 + ((m - m')^2 + (s - s')^2) / (2 s
s')``. Of D independent coordinates, with an l1 shift of t times the scale, all of it on one coordinate is at least
``d(t, beta) + (D - 1) beta``, and no division of it passes ``t + D beta``.

>>> found = smooth_cauchy_bracket(shift=1 / 60, smoothness=0.1 / (6 * 123), size=123)
>>> 0.0331 < found.lower < found.upper < 0.03334
True
"""

import math

from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket
from dpca_tasks.accounting.smooth_sensitivity import UP, gaussian_pair_epsilon, hockey_stick, is_gaussian_pair_private
from dpca_tasks.accounting.wishart_tails import wishart_delta, wishart_epsilon

_WITHIN = 1e-6
_LIKELIER = 1.0 + 2.0**-8  # more than the chi-square tails differ from quadrature, of delta


def known(lower: float, upper: float | None = None) -> EpsilonBracket:
    """Return the bracket of an epsilon that is known, or of two ends that are."""
    upper = lower if upper is None else upper
    return EpsilonBracket(lower=lower, upper=upper, agrees=lower == upper)


def smooth_gaussian_bracket(*, shift: float, smoothness: float, size: int, delta: float) -> EpsilonBracket:
    """Bracket the epsilon of smooth Gaussian noise: the lower end is that of one of the worst pairs."""
    above = shift**2 / 2 * UP
    while not is_gaussian_pair_private(shift, smoothness, epsilon=above, delta=delta * (2 - _LIKELIER), size=size):
        above *= 2
    upper = gaussian_pair_epsilon(shift, smoothness, delta=delta, size=size, at_most=above)
    pairs = ((-smoothness, shift * math.exp(-smoothness)), (0.0, shift), (smoothness, shift))
    low, high = 0.0, upper
    while high - low > _WITHIN * upper:
        middle = (low + high) / 2
        passes = any(hockey_stick(b, by, epsilon=middle, size=size) > delta * _LIKELIER for b, by in pairs)
        low, high = (middle, high) if passes else (low, middle)
    return EpsilonBracket(lower=low, upper=upper, agrees=upper <= 1.02 * low)


def smooth_cauchy_bracket(*, shift: float, smoothness: float, size: int) -> EpsilonBracket:
    """Bracket the epsilon of independent Cauchy noise of a shift in the l1 norm, both of the scale; delta is 0."""
    moved = (shift**2 + math.expm1(smoothness) ** 2) / (2 * math.exp(smoothness))
    lower = 2 * math.asinh(math.sqrt(moved / 2)) + (size - 1) * smoothness
    upper = shift + size * smoothness
    return EpsilonBracket(lower=lower, upper=upper, agrees=upper <= 1.02 * lower)


def wishart_bracket(degrees: float, *, scale: float, delta: float) -> EpsilonBracket:
    """Bracket the epsilon of one Wishart matrix, as `dpca_tasks.accounting.wishart_tails` has it.

    Neighbours' densities lack part of each other's support, which no epsilon covers: it is infinite at a smaller delta.
    """
    if delta <= 0 or (degrees == 2 and wishart_delta(degrees, scale=scale, epsilon=0.0) > delta):
        return known(math.inf)
    upper = wishart_epsilon(degrees, scale=scale, delta=delta)
    return EpsilonBracket(lower=upper * (1 - 2 * _WITHIN), upper=upper, agrees=True)
