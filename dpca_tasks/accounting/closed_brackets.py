r"""Closed-form privacy guarantees of smooth noise, Wishart matrices and joint releases over sites.

*Joint releases.* Each site sends the sum of its weighted data, a share of noise, and a mask. The masks of all sites add
up to 0. Consider an attacker who sees every message and has the masks of the colluding sites. For one record of an
honest site, all that the attacker sees is a Gaussian shift, which is mu-GDP with the mu of `view_mu`. `least_noise` is
the least noise variance for which each site gets the mu that it requires.

>>> round(view_mu(sensitivity=1.0, honest=7, share_variance=1 / 7), 3)
1.0
>>> round(least_noise(weights=(1.0, 1.0), sensitivities=(1.0, 1.0), mus=(0.5, 1.0)), 3)
4.0

*Smooth noise.* The noise scale is proportional to a smooth bound on the local sensitivity. The worst pair of output
distributions determines the guarantee: their means differ by the bound, and the logarithms of their scales differ by
the smoothness beta.

*Smooth Cauchy noise.* The Cauchy densities with location m and scale s are the Poisson kernels of the upper half plane.
So the largest log ratio of two densities is the hyperbolic distance d of their parameters (m, s) and (m', s'):
``cosh d = 1 + ((m - m')^2 + (s - s')^2) / (2 s s')``. Consider D independent coordinates, and a shift whose L1 norm is
t times the scale. If the whole shift is on one coordinate, epsilon is at least ``d(t, beta) + (D - 1) beta``. However
the shift is divided among coordinates, epsilon is at most ``t + D beta``.

>>> found = smooth_cauchy_bracket(shift=1 / 60, smoothness=0.1 / (6 * 123), size=123)
>>> 0.0331 < found.lower < found.upper < 0.03334
True

*One Wishart matrix.* A Wishart matrix W with m degrees of freedom and scale c is added to ``S = X^T X``, a (d, d)
matrix. Neighbors differ by one record x of norm 1 that is added or removed. Adding x shifts the Schur complement
``1 / (x^T W^-1 x)`` by 1. This number has the distribution ``c chi^2_p`` with ``p = m - d + 1``. The rest of W is
independent of this number and does not change. So the release is equivalent to adding noise t with this distribution to
one number, which a record shifts by 1. The ratio of the densities, ``(t / (t - 1))^(p / 2 - 1) e^(-1 / 2c)``, decreases
in t. So the delta of both directions is a difference of two tail probabilities.

>>> round(wishart_delta(2, scale=15.0, epsilon=0.1), 4)
0.0328

*Correlated noise* (the method CAPE). Each of S sites sends the sum of its data, a mask and a share of noise. The masks
of all sites add up to 0. Let the aggregator collude with C sites. For a record of one of the ``H = S - C`` other sites,
the aggregator sees a Gaussian release with ``mu^2 = 1 / (H v) + (1 - 1/H) / (u + v)``. Here v is the variance of a
noise share, and ``u (I - 1 1^T / S)`` is the covariance of the masks, both divided by the squared sensitivity. The
paper sets ``v = t^2 / S`` and ``u = t^2``, for which one message alone has ``mu = 1 / t``. All messages together have a
larger mu.

*Inverted acceptance test.* Two libraries draw a direction v by rejection sampling, where ``u = v^T A v`` should have a
density proportional to ``e^-u``. Their acceptance test has the factor ``(1 + 2 u / b)^(d / 2)`` in the denominator
instead of the numerator. So the actual density is proportional to ``e^-u (1 + 2 u / b)^-d``.

>>> round(correlated_inflation(sites=10, colluders=0), 3), round(inverted_sampler_loss(slope=0.25, n_features=10), 2)
(1.348, 2.65)
"""

import math
from collections.abc import Sequence

from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket
from dpca_tasks.accounting.smooth_sensitivity import UP, gaussian_pair_epsilon, hockey_stick, is_gaussian_pair_private
from dpca_tasks.errors import InvalidInput


def usual_colluders(sites: int) -> int:
    """Return how many colluding sites are tolerated by default: a third of the other sites, rounded down."""
    return (sites - 1) // 3


def view_mu(*, sensitivity: float, honest: int, share_variance: float, mask_variance: float = math.inf) -> float:
    r"""Return the GDP parameter mu of all messages of one joint sum together, for a record of an honest site.

    Parameters
    ----------
    sensitivity : float
        Delta: how far one record moves the message of its site.
    honest : int
        H: the number of honest sites, whose masks the attacker does not have.
    share_variance : float
        v: the variance of the noise that each site adds.
    mask_variance : float
        u: the masks of the honest sites have covariance ``u (I - 1 1^T / H)``. Infinite for masks that are uniform
        modulo an integer.

    Notes
    -----
    The messages of the honest sites have covariance ``(u + v) I - (u / H) 1 1^T``. Its eigenvalue is v in the direction
    of their sum, and ``u + v`` in all orthogonal directions. If one message is shifted by Delta, the part ``1 / H`` of
    ``Delta^2`` is in the direction of the sum. Hence
    ``mu^2 = Delta^2 (1 / (H v) + (1 - 1 / H) / (u + v))``.
    """
    if honest < 1 or share_variance <= 0:
        raise InvalidInput(
            f"honest={honest} must be at least 1 and share_variance={share_variance} must be positive, because the "
            "noise of one honest site must remain unknown; tolerate fewer colluders."
        )
    others = (1 - 1 / honest) / (mask_variance + share_variance)
    return sensitivity * math.sqrt(1 / (honest * share_variance) + others)


def least_noise(*, weights: Sequence[float], sensitivities: Sequence[float], mus: Sequence[float]) -> float:
    """Return the least noise variance of a weighted sum over sites that gives every site its required GDP guarantee mu.

    The variance is determined by the site that requires the most noise. Let each of H honest sites add ``1 / H`` of
    this variance, with uniform masks. Then that site gets exactly its mu. No smaller Gaussian noise suffices, because
    even the published sum alone requires this variance.
    """
    return max((w * delta / mu) ** 2 for w, delta, mu in zip(weights, sensitivities, mus, strict=True))


def gain_over_equal_weights(sizes: Sequence[int]) -> float:
    """Return the ratio of two noise variances: of an unweighted average of site means, and of pooled data.

    This ratio of CAPE's Proposition 1 is ``(N / S)^2 sum 1 / n_s^2``, for S sites with ``n_s`` records each and N in
    total. It has its least value S if all sites have equal size. An average with the weights ``n_s / N`` has the ratio
    S for all sizes. So a ratio above S is only a disadvantage of equal weights, not a gain of CAPE.
    """
    total = sum(sizes)
    return sum((total / len(sizes) / size) ** 2 for size in sizes)


def wishart_delta(degrees: float, *, scale: float, epsilon: float) -> float:
    """Return the least delta at epsilon of adding one Wishart matrix, as derived in the module docstring.

    Parameters
    ----------
    degrees : float
        ``p = m - d + 1`` for a (d, d) Wishart matrix with m degrees of freedom. p must be at least 2; for smaller p the
        ratio of the densities is unbounded.
    scale : float
        The scale c of the Wishart distribution, in squared clip norms.
    epsilon : float
    """
    power, fall = degrees / 2 - 1, 1 / (2 * scale)
    if power == 0:  # exponential distribution: delta is the mass outside the other support
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
    """Return the least epsilon at delta of adding one Wishart matrix, rounded up, with a relative error of 1e-6.

    The result is infinity if the degrees of freedom are too few for any epsilon up to 512.
    """
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
    """Return the GDP parameter mu of all CAPE messages that the aggregator sees, divided by the mu of one message."""
    return view_mu(sensitivity=1.0, honest=sites - colluders, share_variance=1 / sites, mask_variance=1.0)


def inverted_sampler_loss(*, slope: float, n_features: int, rows: int = ROWS) -> float:
    """Return a lower bound of epsilon of a direction sampler whose acceptance test is inverted (see the module).

    The bound is the privacy loss of one direction for two neighboring datasets. In both datasets, `rows` records lie
    along each of two axes. One further record lies along the first axis, and is replaced by a record along the second
    axis. The densities of both datasets have the same normalization constant. The direction of the first axis has the
    largest loss.

    Parameters
    ----------
    slope : float
        The factor by which the sampler multiplies the second moment: epsilon / 4 in the two libraries.
    n_features : int
        d: the number of features.
    rows : int
        The number of records along each axis. The loss grows with this number.
    """
    from scipy import optimize  # slow to import

    losses = [0.0, slope, *[slope * (rows + 1)] * (n_features - 2)]
    root = optimize.brentq(lambda b: sum(1 / (b + 2 * loss) for loss in losses) - 1, 1e-9, float(n_features) + 1e-9)
    return slope + n_features * math.log1p(2 * slope / float(root))


_WITHIN = 1e-6
_LIKELIER = 1.0 + 2.0**-8  # factor that covers the relative error of delta due to scipy's chi-square tails


def known(lower: float, upper: float | None = None) -> EpsilonBracket:
    """Return an `EpsilonBracket` of known bounds; without an upper bound, epsilon is exactly the lower bound."""
    upper = lower if upper is None else upper
    return EpsilonBracket(lower=lower, upper=upper, agrees=lower == upper)


def smooth_gaussian_bracket(*, shift: float, smoothness: float, size: int, delta: float) -> EpsilonBracket:
    """Return lower and upper bounds of the epsilon at delta of smooth Gaussian noise.

    The lower end is the largest epsilon of three pairs of output distributions that the smooth bound allows.

    Parameters
    ----------
    shift : float
        The largest distance of the means of neighboring outputs, in units of the noise std.
    smoothness : float
        The largest difference of the logarithms of their stds.
    size : int
        The number of coordinates of the output.
    delta : float
    """
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
    """Return lower and upper bounds of the pure epsilon of independent smooth Cauchy noise on ``size`` coordinates.

    Parameters
    ----------
    shift : float
        The largest L1 distance of the locations of neighboring outputs, in units of the noise scale.
    smoothness : float
        The largest difference of the logarithms of their scales.
    size : int
        The number of coordinates of the output.
    """
    moved = (shift**2 + math.expm1(smoothness) ** 2) / (2 * math.exp(smoothness))
    lower = 2 * math.asinh(math.sqrt(moved / 2)) + (size - 1) * smoothness
    upper = shift + size * smoothness
    return EpsilonBracket(lower=lower, upper=upper, agrees=upper <= 1.02 * lower)


def wishart_bracket(degrees: float, *, scale: float, delta: float) -> EpsilonBracket:
    """Return bounds of the epsilon at delta of adding one Wishart matrix, by the closed form in the module docstring.

    The density of each neighbor is 0 on a part of the other neighbor's support. If delta is less than the mass of this
    part, epsilon is infinite.
    """
    if delta <= 0 or (degrees == 2 and wishart_delta(degrees, scale=scale, epsilon=0.0) > delta):
        return known(math.inf)
    upper = wishart_epsilon(degrees, scale=scale, delta=delta)
    return EpsilonBracket(lower=upper * (1 - 2 * _WITHIN), upper=upper, agrees=True)
