r"""Smooth sensitivity of a subspace to one record, and the noise calibrated to it.

All quantities are in units where a clipped record has norm 1. The eigengap ``g = lambda_k - lambda_{k+1}`` of
``S = X^T X`` bounds how far one record moves the leading k directions V. Noise with a scale proportional to a smooth
bound of this movement hides it. Anything that depends on g is as private as the rows.

>>> bool(local_sensitivity(100.0, relation="add_remove", n_components=1, n_features=5) < 0.0051)
True
>>> shift, smoothness = gaussian_shift(epsilon=1.0, delta=1e-3, size=123)
>>> round(shift, 2), round(smoothness, 3)
(0.32, 0.011)
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy  # its submodules load when they are used
from numpy.typing import ArrayLike, NDArray

from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput

TOLERANCE = 2.0**-10
"""Largest residual ``||S V - V Lambda||_F`` of computed eigenpairs that are accepted."""

TailedNoise = Literal["spherical_t", "cauchy"]

_MARGIN = 1.0 - 2.0**-9  # of delta; twenty times the difference between the chi-square tails and quadrature
UP = 1.0 + 2.0**-40
"""Factor that covers floating-point rounding."""
_LARGEST_NONCENTRALITY = 1e8
_LEAST_TAIL = 1e-36  # below it the library's chi-square tails lose their relative accuracy
_LEAST_EPSILON, _LEAST_DELTA = 1e-6, 1e-30  # below them tails are lost, or differ by less than their rounding
_TERMS_AT_ONCE = 1 << 18
_LARGEST_EXPONENT = 700.0


def gap_movement(relation: Relation) -> float:
    """Return how far one record moves the eigengap: 1 by Weyl's inequality, or 2 for a replaced record."""
    return 2.0 if relation == "replace_one" else 1.0


def computed_movement(relation: Relation) -> float:
    """Return how far one record moves a certified bound that is at most ``4 TOLERANCE`` below the eigengap."""
    return gap_movement(relation) + 4.0 * TOLERANCE


def largest_distance(*, n_components: int, n_features: int) -> float:
    """Return the largest ``min_W ||V - V' W||_F`` of any two subspaces: ``sqrt(2 min(k, d - k))``."""
    return math.sqrt(2.0 * min(n_components, n_features - n_components))


def local_sensitivity(
    gap: ArrayLike, *, relation: Relation, n_components: int, n_features: int, tolerance: float = 0.0
) -> NDArray[np.float64]:
    r"""Return L(g), a bound on the rotation of the leading k directions by one record at eigengap g.

    Parameters
    ----------
    gap : array-like of float, records of norm 1
        g, at least 0.
    tolerance : float
        The residual of computed directions, or 0 for exact ones.

    Returns
    -------
    float64 array of the shape of `gap`
        A bound on ``min_W ||V - V' W||_F`` over orthogonal W and all neighbours; it falls with g.

    Notes
    -----
    Let neighbours differ by ``M_u = X_u^T X_u``, positive semi-definite of trace at most 1, and P, P' be the projectors
    onto the leading directions of S and S'.

    *g > 1.* ``[P', S'] = 0`` gives ``[P', S] = -+[P', M_u]``. The block of the left side between the range of P and its
    complement has norm at least ``g ||sin 2 Theta||_F / 2``. In blocks along P', ``M_u = ((A, B), (B^T, C))`` with
    ``||B||_F <= sqrt(tr A tr C) <= 1/2``, and the commutator is B and -B^T off the diagonal. The block of an
    antisymmetric K between a subspace and its complement is at most ``||K||_F / sqrt 2 = ||B||_F``. So
    ``||sin 2 Theta||_F <= 1 / g``. On the path ``S + t M_u`` the gap stays positive and ``sin 2 theta <= t / g < 1``.
    Hence all angles stay below ``pi / 4``, where ``2 - 2 cos`` is convex in ``sin^2 2 theta``. The worst case puts the
    whole rotation on one angle, ``L = 2 sin(asin(1 / g) / 4)``, which is attained.

    *g <= 1.* ``g ||sin Theta||_F^2 <= <P - P', S> <= tr(M_u (P' - P)) <= ||sin Theta||_F`` and
    ``min_W ||V - V' W||_F <= sqrt 2 ||sin Theta||_F``: ``L = min(sqrt(2 k'), sqrt 2 / g)`` with
    ``k' = min(k, d - k)``.

    *A replaced record* has two such matrices, so 1 becomes 2 throughout.

    *Computed directions* with residual at most t are the exact directions of ``S + E``, ``||E||_2 <= t``. They lie
    within ``sqrt 2 t / (g - t)`` of the exact directions of S. For a neighbour the same bound holds at its gap of at
    least ``g - m``, where m is 1 or 2. Together that is less than ``4 t / (g - m)`` for ``g > m + 4 t``. For smaller g
    there is no bound on computed directions, and L is its cap.
    """
    gaps = np.asarray(gap, np.float64)
    movement = gap_movement(relation)
    cap = largest_distance(n_components=n_components, n_features=n_features)
    turned = np.full(gaps.shape, cap)
    resolved = gaps > movement + 4.0 * tolerance
    far = gaps[resolved]
    turned[resolved] = 2.0 * np.sin(np.arcsin(movement / far) / 4.0)
    if tolerance:
        turned[resolved] += 4.0 * tolerance / (far - movement)
    else:
        near = ~resolved & (gaps > 0)
        turned[near] = math.sqrt(2.0) * movement / gaps[near]
    return np.asarray(np.minimum(turned, cap))


def smooth_bound(
    gap: float,
    *,
    smoothness: float,
    relation: Relation,
    n_components: int,
    n_features: int,
    tolerance: float = TOLERANCE,
) -> float:
    r"""Return U, a bound on L(g) whose logarithm changes by at most ``smoothness`` with one record.

    ``U = max_j e^{-beta j} L(max(g - j m, 0))`` over ``j = 0, 1, ..., ceil(g / m)``. Here m is the largest change of
    the argument by one record: `gap_movement` for an exact gap, `computed_movement` for a certified bound.

    Guarantees
    ----------
    For neighbours, ``g - j m >= g' - (j + 1) m`` and L falls. So for every term of U there is a term of U' that is at
    least ``e^{-beta}`` times as large: ``U <= e^beta U'``. The term j = 0 is L(g). From the first j with
    ``e^{-beta j} cap <= L(g)`` on, terms are left out, because they cannot exceed the first term.
    """
    movement = computed_movement(relation) if tolerance else gap_movement(relation)

    def sensitivity(gaps: ArrayLike) -> NDArray[np.float64]:
        return local_sensitivity(
            gaps, relation=relation, n_components=n_components, n_features=n_features, tolerance=tolerance
        )

    best = float(sensitivity(gap))
    cap = largest_distance(n_components=n_components, n_features=n_features)
    dominated = math.ceil(math.log(cap / best) / smoothness) + 1
    last = min(math.ceil(gap / movement), dominated)
    for first in range(0, last + 1, _TERMS_AT_ONCE):
        j = np.arange(first, min(first + _TERMS_AT_ONCE, last + 1), dtype=np.float64)
        best = max(best, float((np.exp(-smoothness * j) * sensitivity(np.maximum(gap - j * movement, 0.0))).max()))
    return best


def useful_gap(*, smoothness: float, relation: Relation, n_components: int, n_features: int) -> float:
    """Return the public eigengap above which U is at most twice L; below it the output is mostly noise."""
    movement = computed_movement(relation)
    cap = largest_distance(n_components=n_components, n_features=n_features)

    def is_harmless(gap: float) -> bool:
        return math.log(cap * gap / movement) <= smoothness * (gap / movement - 1.0)

    above = 2.0 / smoothness + 2.0
    while not is_harmless(above):
        above *= 2.0
    below = movement / smoothness  # above it, the exponential grows faster than the gap
    while above > 1.001 * below:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if is_harmless(middle) else (middle, above)
    return above


def hockey_stick(log_scale: float, shift: float, *, epsilon: float, size: int) -> float:
    r"""Return the least delta at epsilon of ``N(0, I)`` against ``N(Delta, e^{2 b} I)``.

    Parameters
    ----------
    log_scale : float
        b.
    shift : float
        The length of Delta.
    size : int
        D, the number of coordinates.

    Notes
    -----
    Let ``w = e^{-2b}``. Consider the set where the first density is more than ``e^epsilon`` times the second. It is the
    outside of a ball (b < 0), a half-space (b = 0) or the inside of a ball (b > 0). The ball is centred at
    ``c Delta / |Delta|`` with ``c = w |Delta| / (w - 1)``, so both probabilities of the set are non-central chi-square
    tails.
    """
    if log_scale == 0.0:
        if not shift:
            return 0.0
        most, least = scipy.special.ndtr((shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift))
        return _excess(most, least, epsilon)
    weight, more = math.exp(-2.0 * log_scale), math.expm1(-2.0 * log_scale)
    centre = weight * shift / more
    square = (2.0 * (epsilon - size * log_scale) - weight * shift**2) / more + centre**2
    other = weight * (centre - shift) ** 2
    if not max(centre**2, other) <= _LARGEST_NONCENTRALITY:
        return 1.0
    if square <= 0:
        return 0.0 if log_scale > 0 else 1.0
    tail = scipy.stats.ncx2.sf if log_scale < 0 else scipy.stats.ncx2.cdf
    return _excess(tail(square, size, centre**2), tail(weight * square, size, other), epsilon)


@lru_cache(maxsize=256)
def gaussian_shift(*, epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return the allowed shift of smooth Gaussian noise, in units of its std, and the smoothness that belongs to it.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    size : int
        D, the number of coordinates of the output.

    Returns
    -------
    shift, smoothness : float
        t and beta: with noise of std ``U / t``, U beta-smooth, the output is (epsilon, delta)-DP.

    Raises
    ------
    InvalidInput
        If epsilon is below 1e-6 or delta below 1e-30.

    Notes
    -----
    Neighbours' outputs are normals whose log scales differ by ``|b| <= beta`` and whose means differ by at most
    ``t min(1, e^b)`` in units of the first one's std. Delta grows with the shift at every b. Along ``t e^b``, b < 0, it
    grows with ``|b|`` when ``t^2 <= 2 epsilon``. For b > 0 its largest value is at 0 or at beta (found numerically). So
    b is tested at -beta, 0 and beta, and ``t <= sqrt(2 epsilon)`` is required. Beta is half of the largest smoothness.
    Both are rounded down, from a delta that leaves room for the error of the chi-square tails.
    """
    if not (epsilon >= _LEAST_EPSILON and delta >= _LEAST_DELTA):
        raise InvalidInput(
            f"epsilon={epsilon} must be at least {_LEAST_EPSILON:g} and delta={delta} at least {_LEAST_DELTA:g} for "
            "smooth Gaussian noise; use larger values."
        )
    allowed = delta * _MARGIN

    def scales(smoothness: float) -> bool:
        return is_gaussian_pair_private(0.0, smoothness, epsilon=epsilon, delta=allowed, size=size)

    smoothness = _largest(scales, 1.0, grow=True) / 2.0

    def shifts(shift: float) -> bool:
        return is_gaussian_pair_private(shift, smoothness, epsilon=epsilon, delta=allowed, size=size)

    return _largest(shifts, math.sqrt(2.0 * epsilon), grow=False), smoothness


def gaussian_pair_epsilon(shift: float, smoothness: float, *, delta: float, size: int, at_most: float) -> float:
    """Return the actual epsilon at delta of a shift and a smoothness, rounded up and at most the nominal epsilon."""
    lowest = shift**2 / 2.0 * UP

    def holds(epsilon: float) -> bool:
        return is_gaussian_pair_private(shift, smoothness, epsilon=epsilon, delta=delta * _MARGIN, size=size)

    below, above = lowest, at_most
    if holds(lowest):
        return lowest
    while above - below > 1e-6 * above:
        middle = (below + above) / 2.0
        below, above = (below, middle) if holds(middle) else (middle, above)
    return above


def is_gaussian_pair_private(shift: float, smoothness: float, *, epsilon: float, delta: float, size: int) -> bool:
    """Return whether normals are private whose log scales differ by at most ``smoothness`` and means by ``shift``."""
    if shift**2 > 2.0 * epsilon:
        return False
    pairs = ((-smoothness, shift * math.exp(-smoothness)), (0.0, shift), (smoothness, shift))
    return all(hockey_stick(b, by, epsilon=epsilon, size=size) <= delta for b, by in pairs)


def tailed_shift(*, epsilon: float, size: int) -> tuple[float, float]:
    r"""Return the shift and the smoothness of pure noise with polynomial tails, as `gaussian_shift` does.

    Notes
    -----
    ``t = epsilon / (2 sqrt D)``, ``beta = epsilon / (2 D)``; half of epsilon pays for the shift, half for the scale.

    *Spherical t*: normals over ``sqrt(chi^2_D / D)``, density ``(1 + |z|^2 / D)^{-D}`` up to a constant. The slope of
    its logarithm is at most ``sqrt D``; its derivative in the log scale lies in ``[-D, D]``.

    *Cauchy*, independent coordinates: each log density changes by at most 1 per unit of shift and per unit of log
    scale. So the relevant norm of the shift is the l1 norm, at most ``sqrt D`` times U.
    """
    return epsilon / (2.0 * math.sqrt(size)) / UP, epsilon / (2.0 * size) / UP


def smooth_gaussian_shift(*, epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return the shift and the smoothness of Nissim, Raskhodnikova and Smith (2007), Lemma 2.7, for D coordinates.

    ``std = 5 U sqrt(2 ln(2 / delta)) / epsilon`` and ``beta = epsilon / (4 (D + ln(2 / delta)))``; the shift is
    ``U / std``. Both are rounded down, as in `gaussian_shift`.
    """
    logarithm = math.log(2.0 / delta)
    return epsilon / (5.0 * math.sqrt(2.0 * logarithm)) / UP, epsilon / (4.0 * (size + logarithm)) / UP


def smooth_cauchy_shift(*, epsilon: float, size: int) -> tuple[float, float]:
    """Return the shift in the l1 norm and the smoothness of the printed Cauchy noise of scale ``6 U / epsilon``.

    ``beta = epsilon / (6 D)`` (Nissim, Raskhodnikova and Smith 2007; Gonen and Gilad-Bachrach 2018, Corollary 13).
    Both are rounded down, as in `tailed_shift`.
    """
    return epsilon / 6.0 / UP, epsilon / (6.0 * size) / UP


def _excess(likely: float, other: float, epsilon: float) -> float:
    """Return ``max(P - e^epsilon Q, 0)``, never too small: a Q without accurate digits is 0, and epsilon is capped."""
    taken = float(other) if other >= _LEAST_TAIL else 0.0
    return max(float(likely) - math.exp(min(epsilon, _LARGEST_EXPONENT)) * taken, 0.0)


def _largest(holds: Callable[[float], bool], above: float, *, grow: bool) -> float:
    """Return a value that satisfies a condition and is within about one float of failing it; 0 if none does."""
    while grow and holds(above) and above < _LARGEST_EXPONENT / 2:
        above *= 2.0
    if holds(above):
        return above
    below = 0.0
    for _ in range(80):
        middle = (below + above) / 2.0
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below
