r"""Closed-form privacy guarantees of smooth noise, Wishart matrices and joint releases over sites.

*Joint releases.* Site s sends its weighted part plus a share of noise plus a mask; all masks add up to 0. Consider a
viewer of every message that also holds the masks of the colluding sites. For one record of an honest site, the view is
a Gaussian shift with the mu that `view_mu` returns. `least_noise` is the least noise that a guarantee of each site
requires.

>>> round(view_mu(sensitivity=1.0, honest=7, share_variance=1 / 7), 3)
1.0
>>> round(least_noise(weights=(1.0, 1.0), sensitivities=(1.0, 1.0), mus=(0.5, 1.0)), 3)
4.0

*Smooth noise.* The worst pair of outputs that a smooth bound allows determines the guarantee: a shift by the bound, and
log scales that differ by the smoothness.

*Cauchy.* The densities of location m and scale s are the Poisson kernels of the upper half plane. So the largest log
ratio of two densities is the hyperbolic distance d of their parameters,
``cosh d = 1 + ((m - m')^2 + (s - s')^2) / (2 s s')``. Take D independent coordinates with an l1 shift of t times the
scale. The whole shift on one coordinate gives at least ``d(t, beta) + (D - 1) beta``, and no division of the shift
exceeds ``t + D beta``.

>>> found = smooth_cauchy_bracket(shift=1 / 60, smoothness=0.1 / (6 * 123), size=123)
>>> 0.0331 < found.lower < found.upper < 0.03334
True

*One Wishart matrix* is added to ``S = X^T X``, and neighbours differ by one record of norm 1 that is added or removed.
Adding a unit x moves the Schur complement ``1 / (x^T W^-1 x)``, of law ``c chi^2_p``, by 1. The rest is independent of
it and does not change. So a matrix of m degrees of freedom and scale c is additive noise t on one number, with
``p = m - d + 1`` and a shift of 1. Its ratio of densities ``(t / (t - 1))^(p / 2 - 1) e^(-1 / 2c)`` falls with t, so
both directions are differences of two tails.

>>> round(wishart_delta(2, scale=15.0, epsilon=0.1), 4)
0.0328

*Correlated noise* (CAPE). Site s sends its sum plus a mask and a share of noise; all masks of S sites add up to 0. Let
an aggregator collude with C sites. For a record of one of the ``H = S - C`` others, its view is a Gaussian of
``mu^2 = 1 / (H v) + (1 - 1/H) / (u + v)``. Here v is a share's variance and ``u (I - 1 1^T / S)`` the covariance of the
masks, both over the squared sensitivity. At the printed ``v = t^2 / S`` and ``u = t^2`` one message has ``mu = 1 / t``;
all messages together have a larger mu.

*Inverted acceptance test* (a sampler of directions). A rejection sampler has ``(1 + 2 u / b)^(d / 2)`` in the
denominator of its acceptance test, with ``u = v^T A v``. The law is then proportional to ``e^-u (1 + 2 u / b)^-d``
instead of ``e^-u``.

>>> round(correlated_inflation(sites=10, colluders=0), 3), round(inverted_sampler_loss(slope=0.25, n_features=10), 2)
(1.348, 2.65)
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket
from dpca_tasks.accounting.smooth_sensitivity import UP, gaussian_pair_epsilon, hockey_stick, is_gaussian_pair_private
from dpca_tasks.errors import InvalidInput


def usual_colluders(sites: int) -> int:
    """Return the default number of colluding sites that is tolerated: less than a third of the other sites."""
    return (sites - 1) // 3


def view_mu(*, sensitivity: float, honest: int, share_variance: float, mask_variance: float = math.inf) -> float:
    r"""Return mu of the view of all messages of one sum, for a record of an honest site.

    Parameters
    ----------
    sensitivity : float
        How far the record moves its site's message.
    honest : int
        The number H of sites whose masks the viewer does not hold.
    share_variance : float
        The variance v of each site's noise.
    mask_variance : float
        u, where the honest masks have covariance ``u (I - 1 1^T / H)``; infinite for uniform masks of a ring.

    Notes
    -----
    The honest messages have covariance ``(u + v) I - (u / H) 1 1^T``: eigenvalue v along the sum, and ``u + v``
    orthogonal to it. A shift of one message has the part 1 / H of its square along the sum, hence
    ``mu^2 = Delta^2 (1 / (H v) + (1 - 1 / H) / (u + v))``.
    """
    if honest < 1 or share_variance <= 0:
        raise InvalidInput(
            f"honest={honest} must be at least 1 and share_variance={share_variance} positive: the noise of one honest "
            "site must remain unknown; tolerate fewer colluders."
        )
    others = (1 - 1 / honest) / (mask_variance + share_variance)
    return sensitivity * math.sqrt(1 / (honest * share_variance) + others)


def least_noise(*, weights: Sequence[float], sensitivities: Sequence[float], mus: Sequence[float]) -> float:
    """Return the least noise variance of a weighted sum that gives every site its mu.

    The most demanding site determines it. If each of H honest sites adds a share of a H-th of this variance under
    uniform masks, the worst site reaches its mu exactly. No smaller Gaussian noise suffices, because the published sum
    alone needs as much.
    """
    return max((w * delta / mu) ** 2 for w, delta, mu in zip(weights, sensitivities, mus, strict=True))


def rosters_mu(rosters: ArrayLike, *, sensitivity: float, share_variance: float) -> NDArray[np.float64]:
    """Return each site's mu when the same noised messages entered several published sums.

    Parameters
    ----------
    rosters : array-like of shape (n_sums, n_sites)
        1 where an honest site's message entered a sum, else 0; masks are uniform.
    sensitivity, share_variance : float
        As for `view_mu`.

    Notes
    -----
    The sums ``M b`` of messages b of variance v reveal exactly the projection ``M^+ M b``, hence
    ``mu_j^2 = Delta^2 / v (M^+ M)_jj``. A sum and the same sum without site j reveal the message of j itself.
    """
    opened = np.asarray(rosters, np.float64)
    shown = np.clip(np.diag(np.linalg.pinv(opened) @ opened), 0.0, 1.0)
    return sensitivity * np.sqrt(shown / share_variance)


def gain_over_equal_weights(sizes: Sequence[int]) -> float:
    """Return the variance of an unweighted average of the sites' means over that of pooled noise (CAPE, Proposition 1).

    It is ``(N / S)^2 sum 1 / n_s^2``, with its least value S for equal sizes. Weights ``n_s / N`` give S for any sizes,
    so a gain beyond S is a defect of equal weights.
    """
    total = sum(sizes)
    return sum((total / len(sizes) / size) ** 2 for size in sizes)


def wishart_delta(degrees: float, *, scale: float, epsilon: float) -> float:
    """Return the least delta at epsilon of a Wishart matrix.

    Parameters
    ----------
    degrees : float
        p, at least 2; for smaller p the ratio of densities is unbounded.
    scale : float
        c, in squared clip norms.
    epsilon : float
    """
    power, fall = degrees / 2 - 1, 1 / (2 * scale)
    if power == 0:  # exponential distribution: no epsilon covers the part outside the other support
        return -math.expm1(-fall)
    from scipy import stats  # slow to import

    law = stats.chi2(degrees, scale=scale)
    end = 1 / -math.expm1(-(epsilon + fall) / power)
    found = float(law.cdf(end) - math.exp(epsilon) * law.cdf(end - 1))
    if epsilon < fall:
        start = 1 / -math.expm1((epsilon - fall) / power)
        found = max(found, float(law.sf(start - 1) - math.exp(epsilon) * law.sf(start)))
    return found


def wishart_epsilon(degrees: float, *, scale: float, delta: float) -> float:
    """Return the least epsilon at delta, to a millionth and rounded up; infinity for too few degrees of freedom."""
    below, above = 0.0, 1.0
    while wishart_delta(degrees, scale=scale, epsilon=above) > delta:
        below, above = above, 2 * above
        if above > 512:
            return math.inf
    while above - below > 1e-6 * above:
        middle = (below + above) / 2
        private = wishart_delta(degrees, scale=scale, epsilon=middle) <= delta
        below, above = (below, middle) if private else (middle, above)
    return above


ROWS = 500
"""Records along each of the two axes, without the record that differs."""


def correlated_inflation(*, sites: int, colluders: int) -> float:
    """Return mu of an aggregator's view divided by mu of a single message."""
    return view_mu(sensitivity=1.0, honest=sites - colluders, share_variance=1 / sites, mask_variance=1.0)


def inverted_sampler_loss(*, slope: float, n_features: int, rows: int = ROWS) -> float:
    """Return the privacy loss of one direction for two neighbours, a lower bound of the sampler's epsilon.

    The same number of records lies along each of two axes. One further record lies along the first axis, or along the
    second after it is replaced. Both laws have the same constant, and the direction of the first axis has the largest
    loss.

    Parameters
    ----------
    slope : float
        The factor of the second moment: a fourth of epsilon in the libraries.
    n_features : int
        d.
    rows : int
        The number of records along each axis; the loss grows with it.
    """
    from scipy import optimize  # slow to import

    losses = [0.0, slope, *[slope * (rows + 1)] * (n_features - 2)]
    root = optimize.brentq(lambda b: sum(1 / (b + 2 * loss) for loss in losses) - 1, 1e-9, float(n_features) + 1e-9)
    return slope + n_features * math.log1p(2 * slope / float(root))


_WITHIN = 1e-6
_LIKELIER = 1.0 + 2.0**-8  # more than the relative difference of delta between the chi-square tails and quadrature


def known(lower: float, upper: float | None = None) -> EpsilonBracket:
    """Return the bracket of an exactly known epsilon, or of known lower and upper ends."""
    upper = lower if upper is None else upper
    return EpsilonBracket(lower=lower, upper=upper, agrees=lower == upper)


def smooth_gaussian_bracket(*, shift: float, smoothness: float, size: int, delta: float) -> EpsilonBracket:
    """Bracket the epsilon of smooth Gaussian noise; the lower end is the epsilon of one of the worst pairs."""
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
    """Bracket the pure epsilon of independent Cauchy noise, for an l1 shift and a smoothness relative to its scale."""
    moved = (shift**2 + math.expm1(smoothness) ** 2) / (2 * math.exp(smoothness))
    lower = 2 * math.asinh(math.sqrt(moved / 2)) + (size - 1) * smoothness
    upper = shift + size * smoothness
    return EpsilonBracket(lower=lower, upper=upper, agrees=upper <= 1.02 * lower)


def wishart_bracket(degrees: float, *, scale: float, delta: float) -> EpsilonBracket:
    """Bracket the epsilon of one Wishart matrix by the closed form in the module docstring.

    Each neighbour's density vanishes on part of the other's support, which no epsilon covers. At a smaller delta than
    the mass of that part, epsilon is infinite.
    """
    if delta <= 0 or (degrees == 2 and wishart_delta(degrees, scale=scale, epsilon=0.0) > delta):
        return known(math.inf)
    upper = wishart_epsilon(degrees, scale=scale, delta=delta)
    return EpsilonBracket(lower=upper * (1 - 2 * _WITHIN), upper=upper, agrees=True)
