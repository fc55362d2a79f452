r"""What joint releases of printed noise really are: several messages of one sum, and an inverted sampler.

*Correlated noise* (CAPE). Site s sends its sum plus a mask and a share of noise; all masks of S sites add up to 0. An
aggregator that colludes with C sites sees, for a record of one of the ``H = S - C`` others, a Gaussian of
``mu^2 = 1 / (H v) + (1 - 1/H) / (u + v)`` where v is a share's variance and ``u (I - 1 1^T / S)`` the covariance of the
masks, over the squared sensitivity. At the printed ``v = t^2 / S`` and ``u = t^2`` one message has ``mu = 1 / t``; all
of them together have more.

*The power on the wrong side* (a sampler of directions). Of a rejection sampler whose accept test has ``(1 + 2 u / b)^(d
/ 2)`` in the denominator, the law is proportional to ``e^-u (1 + 2 u / b)^-d``, ``u = v^T A v``, in place of ``e^-u``.

>>> round(correlated_inflation(sites=10, colluders=0), 3), round(inverted_sampler_loss(slope=0.25, n_features=10), 2)
(1.348, 2.65)
"""

import math

from dpca_tasks.accounting.site_noise import view_mu

ROWS = 500
"""Records along each of two axes, before the one that differs."""


def correlated_inflation(*, sites: int, colluders: int) -> float:
    """Return mu of an aggregator's view over that of a single message."""
    return view_mu(sensitivity=1.0, honest=sites - colluders, share_variance=1 / sites, mask_variance=1.0)


def inverted_sampler_loss(*, slope: float, n_features: int, rows: int = ROWS) -> float:
    """Return the privacy loss of one direction for two neighbours, which the sampler's epsilon is at least.

    As many records lie along each of two axes, and one more along the first or, replaced, along the second. Both laws
    have the same constant, and the direction of the first axis has the largest loss.

    Parameters
    ----------
    slope : float
        By which the second moment is multiplied: a fourth of epsilon in the libraries.
    n_features : int
        d.
    rows : int
        The records along each axis; the more, the larger the loss.
    """
    from scipy import optimize  # slow to import

    losses = [0.0, slope, *[slope * (rows + 1)] * (n_features - 2)]
    root = optimize.brentq(lambda b: sum(1 / (b + 2 * loss) for loss in losses) - 1, 1e-9, float(n_features) + 1e-9)
    return slope + n_features * math.log1p(2 * slope / float(root))
