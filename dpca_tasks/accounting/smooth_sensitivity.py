r"""Smooth sensitivity of a subspace to one record, and the noise that is calibrated to it.

All quantities are in units where a clipped record has norm 1. Let ``g = lambda_k - lambda_{k+1}`` be the eigengap of
the second moment ``S = X^T X``. It bounds how far one record moves V, the leading k eigenvectors. The noise that hides
this movement has a scale proportional to a smooth bound of the movement. The eigengap depends on the rows, so anything
computed from g must be kept as secret as the rows.

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
import scipy  # the submodules of scipy are imported when they are first used
from numpy.typing import ArrayLike, NDArray

from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput

TOLERANCE = 2.0**-10
"""Largest residual ``||S V - V Lambda||_F`` of computed eigenpairs that are accepted."""

TailedNoise = Literal["spherical_t", "cauchy"]

_MARGIN = 1.0 - 2.0**-9  # factor of delta that covers the error of scipy's chi-square tails twenty times over
UP = 1.0 + 2.0**-40
"""Factor that covers floating-point rounding."""
_LARGEST_NONCENTRALITY = 1e8
_LEAST_TAIL = 1e-36  # scipy's chi-square tails below this value have no accurate digits
_LEAST_EPSILON, _LEAST_DELTA = 1e-6, 1e-30  # least values for which scipy's chi-square tails are accurate
_TERMS_AT_ONCE = 1 << 18
_LARGEST_EXPONENT = 700.0


def gap_movement(relation: Relation) -> float:
    """Return a bound on how far one record moves the eigengap: 1 by Weyl's inequality, or 2 for a replaced record."""
    return 2.0 if relation == "replace_one" else 1.0


def computed_movement(relation: Relation) -> float:
    """Return a bound on how far one record moves a computed lower bound of the eigengap.

    The computed bound is at most ``4 TOLERANCE`` below the eigengap.
    """
    return gap_movement(relation) + 4.0 * TOLERANCE


def largest_distance(*, n_components: int, n_features: int) -> float:
    """Return the largest distance of two k-dimensional subspaces in d dimensions, ``sqrt(2 min(k, d - k))``.

    The distance is ``min_W ||V - V' W||_F`` over orthogonal W, for orthonormal bases V and V'.
    """
    return math.sqrt(2.0 * min(n_components, n_features - n_components))


def local_sensitivity(
    gap: ArrayLike, *, relation: Relation, n_components: int, n_features: int, tolerance: float = 0.0
) -> NDArray[np.float64]:
    r"""Return L(g), a bound on how far one record rotates the leading k directions if the eigengap is g.

    Parameters
    ----------
    gap : array-like of float, records of norm 1
        The eigengap g, at least 0.
    tolerance : float
        The residual of the computed directions; 0 for exact directions.

    Returns
    -------
    float64 array of the shape of `gap`
        A bound on ``min_W ||V - V' W||_F``, over orthogonal W, for the directions V and V' of all neighbors. It
        decreases with g.

    Notes
    -----
    Let the second moments S and S' of two neighbors differ by ``M_u = X_u^T X_u``, which is positive semi-definite with
    trace at most 1. Let P and P' be the projectors onto the leading k directions of S and S', and Theta the diagonal
    matrix of the principal angles theta between them.

    *Case g > 1.* The commutator ``[P', S']`` is 0, so ``[P', S] = -+[P', M_u]``. The block of ``[P', S]`` between the
    range of P and its complement has a Frobenius norm of at least ``g ||sin 2 Theta||_F / 2``. For an upper bound of
    this norm, write ``M_u = ((A, B), (B^T, C))`` in blocks along P'. Then ``||B||_F <= sqrt(tr A tr C) <= 1/2``, and
    the commutator K of P' and M_u has the blocks B and ``-B^T`` off the diagonal and 0 on it. The block of an
    antisymmetric K between a subspace and its complement has a norm of at most ``||K||_F / sqrt 2 = ||B||_F``. So
    ``||sin 2 Theta||_F <= 1 / g``. On the path from S to ``S + M_u`` through ``S + t M_u``, the gap stays positive and
    ``sin 2 theta <= t / g < 1``. Hence all angles stay below ``pi / 4``, where ``2 - 2 cos`` is convex in
    ``sin^2 2 theta``. So the worst case has the whole rotation in one angle, which gives
    ``L = 2 sin(asin(1 / g) / 4)``. This bound is attained.

    *Case g <= 1.* From ``g ||sin Theta||_F^2 <= <P - P', S> <= tr(M_u (P' - P)) <= ||sin Theta||_F`` and
    ``min_W ||V - V' W||_F <= sqrt 2 ||sin Theta||_F`` follows ``L = min(sqrt(2 k'), sqrt 2 / g)`` with
    ``k' = min(k, d - k)``.

    *Replaced record.* Neighbors differ by two such matrices ``M_u``, so each 1 above becomes 2.

    *Computed directions.* Directions with a residual of at most t are the exact directions of a matrix ``S + E`` with
    ``||E||_2 <= t``. Their distance to the exact directions of S is at most ``sqrt 2 t / (g - t)``. For a neighbor the
    same bound holds with its eigengap, which is at least ``g - m`` for m = 1 (or m = 2 if a record is replaced).
    Together this adds less than ``4 t / (g - m)`` to L if ``g > m + 4 t``. For smaller g, L is the largest distance of
    any two subspaces.
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
    r"""Return U, an upper bound of L(g) (`local_sensitivity`) that is smooth: one record changes log U by at most beta.

    ``U = max_j e^{-beta j} L(max(g - j m, 0))`` over ``j = 0, 1, ..., ceil(g / m)``, where beta is ``smoothness``. Here
    m is the largest change of ``gap`` by one record. If ``tolerance`` is 0, ``gap`` is the exact eigengap, and m is
    `gap_movement`. Otherwise ``gap`` is a lower bound from computed eigenpairs whose residual is at most ``tolerance``,
    and m is `computed_movement`.

    Guarantees
    ----------
    Let a neighbor have the gap g' and the bound U'. Then ``g - j m >= g' - (j + 1) m``, and L decreases with g. So for
    every term of U there is a term of U' that is at least ``e^{-beta}`` times as large. Hence ``U <= e^beta U'``. The
    term of j = 0 is L(g), so U is at least L(g). No term exceeds ``e^{-beta j} cap``, where cap is the largest
    value of L. So terms with ``e^{-beta j} cap <= L(g)`` cannot exceed the term of j = 0, and are not computed.
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
    """Return the eigengap above which the smooth bound U is at most twice the local sensitivity L.

    This number is public, because it does not depend on the rows. Below this eigengap, the output is mostly noise.
    """
    movement = computed_movement(relation)
    cap = largest_distance(n_components=n_components, n_features=n_features)

    def is_harmless(gap: float) -> bool:
        return math.log(cap * gap / movement) <= smoothness * (gap / movement - 1.0)

    above = 2.0 / smoothness + 2.0
    while not is_harmless(above):
        above *= 2.0
    below = movement / smoothness  # for larger gaps, e^(smoothness gap / movement) grows faster than the gap itself
    while above > 1.001 * below:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if is_harmless(middle) else (middle, above)
    return above


def hockey_stick(log_scale: float, shift: float, *, epsilon: float, size: int) -> float:
    r"""Return the hockey-stick divergence of ``N(0, I)`` from ``N(Delta, e^{2 b} I)``: the least delta at epsilon.

    Parameters
    ----------
    log_scale : float
        b: the log of the std of the second distribution.
    shift : float
        The length of Delta, the mean of the second distribution.
    size : int
        D: the number of coordinates.

    Notes
    -----
    Consider the set where the first density is more than ``e^epsilon`` times the second density. The set is the outside
    of a ball if b < 0, a half-space if b = 0, and the inside of a ball if b > 0. The center of the ball is
    ``c Delta / |Delta|`` with ``c = w |Delta| / (w - 1)`` and ``w = e^{-2b}``. So the probabilities of the set under
    both distributions are tails of non-central chi-square distributions.
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
    """Calibrate smooth Gaussian noise: return the shift in units of the noise std, and the smoothness.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    size : int
        D: the number of coordinates of the output.

    Returns
    -------
    shift, smoothness : float
        t and beta. If U is a beta-smooth bound (see `smooth_bound`) and the noise has the std ``U / t``, the output is
        (epsilon, delta)-DP.

    Raises
    ------
    InvalidInput
        If epsilon is below 1e-6 or delta below 1e-30.

    Notes
    -----
    The outputs for two neighbors are normal. Their log stds differ by some b with ``|b| <= beta``. Their means differ
    by at most ``t min(1, e^b)`` in units of the first std. For every b, the least delta increases with the shift. For
    b < 0 and the shift ``t e^b``, it increases with ``|b|`` if ``t^2 <= 2 epsilon``. For b > 0, it is largest at b = 0
    or b = beta (found numerically). So the guarantee is tested at b = -beta, 0 and beta, and ``t <= sqrt(2 epsilon)``
    is required. Beta is set to half of the largest possible smoothness. Both numbers are rounded down. The test uses a
    slightly smaller delta, to cover the error of the chi-square tails.
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
    """Return the actual epsilon at delta of smooth Gaussian noise with this shift and smoothness, rounded up.

    ``at_most`` is an epsilon that is known to hold, such as the epsilon of the calibration.
    """
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
    """Return whether smooth Gaussian noise with this shift and smoothness is (epsilon, delta)-DP.

    `gaussian_shift` explains the three pairs of output distributions that are tested.
    """
    if shift**2 > 2.0 * epsilon:
        return False
    pairs = ((-smoothness, shift * math.exp(-smoothness)), (0.0, shift), (smoothness, shift))
    return all(hockey_stick(b, by, epsilon=epsilon, size=size) <= delta for b, by in pairs)


def tailed_shift(*, epsilon: float, size: int) -> tuple[float, float]:
    r"""Calibrate smooth noise with polynomial tails to pure epsilon-DP: return the shift and the smoothness.

    The shift t and the smoothness beta have the same meaning as in `gaussian_shift`, with the noise scale ``U / t``.

    Notes
    -----
    ``t = epsilon / (2 sqrt D)`` and ``beta = epsilon / (2 D)`` for D coordinates. Half of epsilon covers the shift, and
    half covers the change of the scale. The same numbers are valid for two distributions.

    *Spherical t.* The noise is a normal vector divided by ``sqrt(chi^2_D / D)``. Its density is
    ``(1 + |z|^2 / D)^{-D}`` up to a constant. The gradient of the log density has a norm of at most ``sqrt D``. The
    derivative of the log density with respect to the log scale lies in ``[-D, D]``.

    *Cauchy.* The coordinates are independent. Each log density changes by at most 1 per unit of shift, and by at most 1
    per unit of log scale. So the L1 norm of the shift counts, which is at most ``sqrt D`` times U.
    """
    return epsilon / (2.0 * math.sqrt(size)) / UP, epsilon / (2.0 * size) / UP


def smooth_gaussian_shift(*, epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return the shift and the smoothness of published smooth Gaussian noise on D coordinates, rounded down.

    Nissim, Raskhodnikova and Smith (2007), Lemma 2.7, print ``std = 5 U sqrt(2 ln(2 / delta)) / epsilon`` and the
    smoothness ``beta = epsilon / (4 (D + ln(2 / delta)))``. The shift is ``U / std``. `gaussian_shift` explains both
    numbers.
    """
    logarithm = math.log(2.0 / delta)
    return epsilon / (5.0 * math.sqrt(2.0 * logarithm)) / UP, epsilon / (4.0 * (size + logarithm)) / UP


def smooth_cauchy_shift(*, epsilon: float, size: int) -> tuple[float, float]:
    """Return the shift in the L1 norm and the smoothness of published smooth Cauchy noise, rounded down.

    The published noise scale is ``6 U / epsilon``, with the smoothness ``beta = epsilon / (6 D)`` for D coordinates
    (Nissim, Raskhodnikova and Smith 2007; Gonen and Gilad-Bachrach 2018, Corollary 13). So the shift is ``epsilon / 6``
    in units of the noise scale.
    """
    return epsilon / 6.0 / UP, epsilon / (6.0 * size) / UP


def _excess(likely: float, other: float, epsilon: float) -> float:
    """Return an upper bound of ``max(P - e^epsilon Q, 0)`` for two tail probabilities P and Q.

    A Q without accurate digits counts as 0, and epsilon is capped to avoid overflow. Both only increase the result.
    """
    taken = float(other) if other >= _LEAST_TAIL else 0.0
    return max(float(likely) - math.exp(min(epsilon, _LARGEST_EXPONENT)) * taken, 0.0)


def _largest(holds: Callable[[float], bool], above: float, *, grow: bool) -> float:
    """Return about the largest float that satisfies a condition; 0 if no positive number is found that satisfies it.

    The search starts at ``above``. If ``grow``, larger numbers are tried too.
    """
    while grow and holds(above) and above < _LARGEST_EXPONENT / 2:
        above *= 2.0
    if holds(above):
        return above
    below = 0.0
    for _ in range(80):
        middle = (below + above) / 2.0
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below
