"""What several sites' noised and masked messages of one sum give away together, and the least noise that is needed.

Site s sends its part, weighted, plus a share of noise plus a mask; all masks add up to 0. Who sees every message, and
knows the masks of the sites that collude, learns of one record of an honest site a Gaussian shift of the mu below.

>>> round(view_mu(sensitivity=1.0, honest=7, share_variance=1 / 7), 3)
1.0
>>> round(least_noise(weights=(1.0, 1.0), sensitivities=(1.0, 1.0), mus=(0.5, 1.0)), 3)
4.0
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpca_tasks.errors import InvalidInput


def usual_colluders(sites: int) -> int:
    """Return the number of colluding sites that is tolerated unless stated: below a third of the others."""
    return (sites - 1) // 3


def view_mu(*, sensitivity: float, honest: int, share_variance: float, mask_variance: float = math.inf) -> float:
    r"""Return mu of the view of all messages of one sum, for a record of an honest site.

    Parameters
    ----------
    sensitivity : float
        How far the record moves its site's message.
    honest : int
        The number H of sites whose masks the viewer does not know.
    share_variance : float
        The variance v of each site's own noise.
    mask_variance : float
        u, where the honest masks have covariance ``u (I - 1 1^T / H)``; infinite for uniform masks of a ring.

    Notes
    -----
    The honest messages have covariance ``(u + v) I - (u / H) 1 1^T``: eigenvalue v along the sum, ``u + v`` beside it.
    A shift of one message has the part 1 / H of its square along the sum, hence
    ``mu^2 = Delta^2 (1 / (H v) + (1 - 1 / H) / (u + v))``.
    """
    if honest < 1 or share_variance <= 0:
        raise InvalidInput(
            f"honest={honest} must be at least 1 and share_variance={share_variance} positive: someone's noise has to "
            "stay unknown; tolerate fewer colluders."
        )
    beside = (1 - 1 / honest) / (mask_variance + share_variance)
    return sensitivity * math.sqrt(1 / (honest * share_variance) + beside)


def least_noise(*, weights: Sequence[float], sensitivities: Sequence[float], mus: Sequence[float]) -> float:
    """Return the least variance of a weighted sum's noise that gives every site its mu: of the site that needs most.

    With H honest shares of the H-th part of it each, under uniform masks, the worst site reaches its mu exactly. No
    Gaussian noise does with less, since the published sum alone needs as much.
    """
    return max((w * delta / mu) ** 2 for w, delta, mu in zip(weights, sensitivities, mus, strict=True))


def rosters_mu(rosters: ArrayLike, *, sensitivity: float, share_variance: float) -> NDArray[np.float64]:
    """Return each site's mu where the same noised messages entered several sums that were opened.

    Parameters
    ----------
    rosters : array-like of shape (n_sums, n_sites)
        1 where an honest site's message entered a sum, else 0; masks are uniform.
    sensitivity, share_variance : float
        As for `view_mu`.

    Notes
    -----
    The sums ``M b`` of messages b of variance v tell what the projection ``M^+ M b`` tells:
    ``mu_j^2 = Delta^2 / v (M^+ M)_jj``. A sum and the same without site j give j's message itself.
    """
    opened = np.asarray(rosters, np.float64)
    shown = np.clip(np.diag(np.linalg.pinv(opened) @ opened), 0.0, 1.0)
    return sensitivity * np.sqrt(shown / share_variance)


def gain_over_equal_weights(sizes: Sequence[int]) -> float:
    """Return how much more variance an average of the sites' means has than pooled noise: Proposition 1 of CAPE.

    ``(N / S)^2 sum 1 / n_s^2``: S for equal sizes, its least value. Weights ``n_s / N`` give S for any sizes, so a gain
    beyond S is a fault of equal weights.
    """
    total = sum(sizes)
    return sum((total / len(sizes) / size) ** 2 for size in sizes)
