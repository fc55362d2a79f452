"""Charges of releases, and the price of one event in each kind of accounting.

A charge is a vector of integers. Charges are added exactly, and are stored with a fixed number of bytes per integer.

>>> decode(encode((1, 2**100))) == (1, 2**100)
True
>>> total_of([encode((1, 2)), encode((3, 4))], zero=(0, 0))
(4, 6)

The price of an event is exact, or rounded up by more than its numerical error. `dpca_tasks.accounting.filters` combines
prices into charges, and proves the privacy guarantee of a total of charges.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from dpca_tasks.accounting.calibration import UNITS, smallest_epsilon, units_of
from dpca_tasks.accounting.events import Parts, composed_losses, float_down, spread_of_losses

Charge = tuple[int, ...]
"""Epsilon and delta of standalone charges, then the numbers of the composition; the last is its delta for failures."""

_LIMBS = 4  # the number of 32-bit limbs of a stored 128-bit integer


def add(total: Charge, charge: Charge) -> Charge:
    """Return the sum of a total and a charge."""
    return tuple(left + right for left, right in zip(total, charge, strict=True))


def subtract(total: Charge, charge: Charge) -> Charge:
    """Subtract a charge from a total that includes it."""
    return tuple(left - right for left, right in zip(total, charge, strict=True))


def encode(charge: Charge) -> bytes:
    """Encode a charge as bytes: one little-endian 128-bit integer per number."""
    return b"".join(number.to_bytes(4 * _LIMBS, "little") for number in charge)


def decode(stored: bytes) -> Charge:
    """Decode a charge from the bytes that `encode` returned."""
    size = 4 * _LIMBS
    return tuple(int.from_bytes(stored[at : at + size], "little") for at in range(0, len(stored), size))


def total_of(charges: Sequence[bytes], *, zero: Charge) -> Charge:
    """Return the total of stored charges; ``zero`` is the total of none.

    The 32-bit limbs are summed separately, so that no sum overflows.
    """
    table = np.frombuffer(b"".join(charges), "<u4").reshape(-1, len(zero), _LIMBS)
    sums = table.sum(axis=0, dtype=np.uint64).tolist()
    return tuple(sum(limb << 32 * place for place, limb in enumerate(limbs)) for limbs in sums)


def totals_after(charges: Sequence[bytes], *, zero: Charge) -> list[Charge]:
    """Return the total of stored charges after each charge; ``zero`` is the total of none."""
    table = np.frombuffer(b"".join(charges), "<u4").reshape(-1, len(zero), _LIMBS)
    limbs = table.cumsum(axis=0, dtype=np.uint64).astype(object)
    numbers = np.add.reduce([limbs[:, :, place] << 32 * place for place in range(_LIMBS)])
    return [tuple(total) for total in numbers.tolist()]


RENYI_UNITS = 2**40
MOST = 2**127  # the cap of each number of a charge, so large that no budget admits the charge

_DIGITS = 40
_FARTHEST = 512.0  # the largest epsilon that a search tries
_FINEST, _MOST_POINTS = 1e-9, 2**21  # the least spacing and the largest number of points of a refined grid of losses

_MOST_KNOWN = 256

type Price = tuple[Fraction | float, Fraction]
"""An epsilon, possibly infinite, and a delta."""

type Known = Mapping[tuple[Hashable, ...], Any]
"""Prices that take seconds to compute, by function and arguments."""

_known: dict[tuple[Hashable, ...], Any] = {}
_computes: ContextVar[bool] = ContextVar("computes", default=True)


class Unpriced(Exception):
    """A price that takes seconds to compute is not in the cache of this process; raised in `known_prices_only`."""


@contextmanager
def known_prices_only() -> Iterator[None]:
    """Within this context, raise `Unpriced` for each price that would take seconds to compute.

    The caller can then let another process compute the price, and add it to the cache by `learn`.
    """
    token = _computes.set(False)
    try:
        yield
    finally:
        _computes.reset(token)


def known() -> Known:
    """Return the cached prices of events whose computation took seconds, by function and arguments."""
    return dict(_known)


def learn(prices: Known) -> None:
    """Add prices to the cache of this process; remove the oldest prices if the cache is full."""
    _known.update(prices)
    for oldest in list(_known)[: max(0, len(_known) - _MOST_KNOWN)]:
        _known.pop(oldest, None)


def expensive[**P, T](price: Callable[P, T]) -> Callable[P, T]:
    """Decorate a slow pricing function: cache its results, and raise `Unpriced` within `known_prices_only`.

    All arguments must be hashable.
    """

    @wraps(price)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> T:
        at = (price.__name__, *args)
        if at in (found := known()):
            return found[at]  # type: ignore[no-any-return]
        if not _computes.get():
            raise Unpriced
        learn({at: (computed := price(*args, **kwargs))})
        return computed

    return remembered


def own_price(parts: Parts, *, delta: float, replaced: bool) -> Price:
    """Return an (epsilon, delta) that an event satisfies on its own, without other releases.

    Parameters
    ----------
    parts : Parts
        The parts of the event.
    delta : float
        The total delta. The deltas of the parts that are known only by (epsilon, delta) are subtracted from it. The
        Gaussian parts are priced at the rest.
    replaced : bool
        Whether neighbors differ by a replaced record; see `loss_epsilon`.

    Notes
    -----
    Gaussian parts, sampled or not, are composed by their privacy loss distributions. The (epsilon, delta) of the other
    parts add up (Dwork, Rothblum and Vadhan 2010, basic composition). If all parts are pure, the resulting delta is 0.
    """
    epsilon = failures = Fraction(0)
    for (loss, failure), count in parts.approximate.items():
        if math.isinf(loss):
            return math.inf, Fraction(0)
        epsilon += count * Fraction(loss)
        failures += count * Fraction(failure)
    if not (parts.gaussians or parts.sampled):
        return epsilon, failures
    left = float_down(Fraction(delta) - failures)
    if not left > 0:
        return math.inf, Fraction(0)
    if parts.sampled:
        losses = loss_epsilon(parts, delta=left, replaced=replaced)
    else:
        losses = smallest_epsilon(sum(units_of(z, count) for z, count in parts.gaussians.items()), left)
    return (math.inf if math.isinf(losses) else epsilon + Fraction(losses)), Fraction(delta)


@lru_cache(maxsize=1024)
def dominating_units(epsilon: float) -> int:
    """Return the least mu squared for which every epsilon-DP mechanism is mu-GDP, in `UNITS`, rounded up."""
    import mpmath

    if epsilon > _DIGITS:  # 8 epsilon is a tight bound here, because Phi(-x) < exp(-x^2 / 2) / 2
        return MOST if math.isinf(epsilon) else math.ceil(8 * Fraction(epsilon) * UNITS)
    with mpmath.workdps(2 * _DIGITS):
        mu = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(mpmath.mpf(epsilon) / 2))
        return int(mpmath.ceil(mu**2 * UNITS * (1 + mpmath.mpf(10) ** -_DIGITS)))


@lru_cache(maxsize=4096)
def randomised_response_units(epsilon: float, order: float) -> int:
    """Return the Renyi divergence of epsilon-DP randomized response at an order, in `RENYI_UNITS`, rounded up."""
    import mpmath

    if math.isinf(epsilon):
        return MOST
    with mpmath.workdps(2 * _DIGITS):
        keep = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        flip = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        moment = keep**order * flip ** (1 - order) + flip**order * keep ** (1 - order)
        return int(mpmath.ceil(mpmath.log(moment) / (order - 1) * RENYI_UNITS + mpmath.mpf(10) ** -_DIGITS))


def renyi_units(value: float) -> int:
    """Convert a Renyi divergence from float64 to `RENYI_UNITS`, rounded up by more than its floating-point error."""
    if not math.isfinite(value):
        return MOST
    return math.ceil(Fraction(max(value, 0.0)) * (1 + Fraction(1, 2**32)) * RENYI_UNITS) + 1


def loss_epsilon(parts: Parts, *, delta: float, replaced: bool = False) -> float:
    """Return an upper bound of epsilon at delta of Gaussian steps, sampled or not, from their privacy losses.

    Notes
    -----
    The privacy loss distributions of samples hold for one record added, removed or emptied. To *replace* a record,
    first empty the record and then fill it again. For any event, let P, P' and P'' be the probabilities with the first
    record, with an empty record, and with the second record. Let each half be (e, d)-DP. Then
    ``P <= e^e P' + d <= e^e (e^e P'' + d) + d``, so both halves together are (2 e, (1 + e^e) d)-DP. An unsampled
    Gaussian may have a multiplier that is stated for replaced records. For emptied records its multiplier is at least
    as large, because an emptied record is one particular replacement.
    """
    gaussians, sampled = tuple(sorted(parts.gaussians.items())), tuple(sorted(parts.sampled.items()))
    return _loss_epsilon(gaussians, sampled, delta, replaced)


@expensive
def _loss_epsilon(
    gaussians: tuple[tuple[float, int], ...],
    sampled: tuple[tuple[tuple[float, float], int], ...],
    delta: float,
    replaced: bool,  # noqa: FBT001 - private, and a key of the cache
) -> float:
    parts = Parts(gaussians=dict(gaussians), sampled=dict(sampled))

    def priced(interval: float) -> float:
        accountant = composed_losses(parts, interval=interval)
        if not replaced:
            return float(accountant.get_epsilon(delta))
        return 2 * _least(lambda half: (1 + math.exp(half)) * float(accountant.get_delta(half)) <= delta)

    epsilon = priced(1e-4)
    if 0 < epsilon < 0.1:  # a grid with a spacing of 1e-4 is too coarse for so small an epsilon
        finer = max(epsilon / 1000, spread_of_losses(parts) / _MOST_POINTS, _FINEST)
        epsilon = min(epsilon, priced(min(finer, 1e-4)))
    return math.nextafter(epsilon, math.inf)


def _least(holds: Callable[[float], bool]) -> float:
    """Return the least float at which a monotone condition holds; infinity if it fails for all numbers searched."""
    low, high = 0.0, 2.0**-20
    while not holds(high):
        low, high = high, 2 * high
        if high > _FARTHEST:
            return math.inf
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
