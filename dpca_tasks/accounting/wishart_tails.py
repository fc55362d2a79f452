r"""The true guarantee of one Wishart matrix added to ``S = X^T X``, for one record of norm 1 more or less.

Adding a unit x moves the Schur complement ``1 / (x^T W^-1 x)``, of law ``c chi^2_p``, by 1, and leaves the rest,
independent of it, as it was. So a matrix of m degrees of freedom and scale c is additive noise t on one number, with
``p = m - d + 1`` and a shift of 1, whose ratio of densities ``(t / (t - 1))^(p / 2 - 1) e^(-1 / 2c)`` falls with t:
both directions are differences of two tails.

>>> round(wishart_delta(2, scale=15.0, epsilon=0.1), 4)
0.0328
"""

import math


def wishart_delta(degrees: float, *, scale: float, epsilon: float) -> float:
    """Return the least delta at epsilon.

    Parameters
    ----------
    degrees : float
        p, at least 2: below, the ratio of densities has no bound.
    scale : float
        c, in squared clip norms.
    epsilon : float
    """
    power, fall = degrees / 2 - 1, 1 / (2 * scale)
    if power == 0:  # an exponential distribution: what one density lacks is covered by no epsilon
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
