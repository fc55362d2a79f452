"""Calibration of Gaussian steps on Poisson samples by privacy loss distributions, with a cache on disk.

A calibration takes seconds. Its result is cached by its arguments, so that it is computed once for all plans of a
request. The guarantee does not depend on the cache: before a cached value is used, one evaluation of the privacy loss
distribution checks that it satisfies the guarantee. If the check fails, the value is computed again.
"""

import contextlib
import hashlib
import json
import math
import os
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dpca_tasks.accounting.calibration import check_count, check_guarantee, gaussian_noise_multiplier
from dpca_tasks.accounting.events import Parts, composed_losses, loss_event
from dpca_tasks.errors import InvalidInput

if TYPE_CHECKING:
    from dp_accounting import DpEvent


MANY_STEPS = 5000
"""Number of sampled steps above which a calibration stops within 1 % of the least noise multiplier."""
_LARGEST_EXPONENT = 700.0


def sampled_gaussian_noise_multiplier(
    *, epsilon: float, delta: float, rate: float, steps: int, besides: Fraction = Fraction(0)
) -> float:
    """Return the noise multiplier of Gaussian steps, each on a fresh Poisson sample of the records.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all steps together, for one record added or removed.
    rate : float
        The probability that a step includes a record, in (0, 1].
    steps : int
        The number of steps.
    besides : Fraction
        The share of the guarantee's total mu squared that is reserved for Gaussian releases without sampling in the
        same release. It is used only for rates below 1.

    Returns
    -------
    float
        A multiplier for which all steps together satisfy the guarantee, by an upper bound of epsilon that dp-accounting
        computes from the privacy loss distribution. At rate 1 this is the exact least multiplier. At lower rates it is
        at most 0.2 % above the least multiplier with such a bound. For more than `MANY_STEPS` steps, where computing
        one bound takes seconds, it is at most 1 % above.
    """
    check_guarantee(epsilon=epsilon, delta=delta)
    check_count("steps", steps)
    if not 0 < rate <= 1:
        raise InvalidInput(f"rate={rate} must be in (0, 1]; pass the sampling probability of a record")
    if rate == 1:
        return gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=steps, share=1 - besides)
    import dp_accounting
    from dp_accounting import rdp

    def event(multiplier: float) -> "DpEvent":
        return loss_event(
            _sampled_parts(multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps, besides=besides)
        )

    def renyi() -> rdp.RdpAccountant:
        return rdp.RdpAccountant([*range(2, 64), 128, 256, 512, 1024, 4096])

    def is_private(multiplier: float, coarser: float) -> bool:
        return sampled_gaussian_is_private(
            multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps, besides=besides, coarser=coarser
        )

    # Start from the larger multiplier of Renyi accounting and decrease it, as small multipliers take long to check.
    # Use a coarse grid first: every grid gives an upper bound, so a multiplier that is safe on any grid is safe.
    fine = 1.01 if steps > MANY_STEPS else 1.002
    safe = float(dp_accounting.calibrate_dp_mechanism(renyi, event, epsilon, delta))
    while not is_private(safe, 1.0):
        safe *= 1.25
    for coarser, reach, within in ((5.0, 1.25, 1.02), (1.0, 1.03, fine)):
        unsafe = safe / reach
        while is_private(unsafe, coarser):
            safe, unsafe = unsafe, unsafe / reach
        while safe > within * unsafe:
            middle = math.sqrt(safe * unsafe)
            if is_private(middle, coarser):
                safe = middle
            else:
                unsafe = middle
    return safe


def sampled_gaussian_is_private(
    multiplier: float,
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    besides: Fraction = Fraction(0),
    coarser: float = 1.0,
) -> bool:
    """Return whether sampled Gaussian steps satisfy a guarantee, by an upper bound from their privacy losses.

    The losses are rounded up on a grid. The spacing of the grid is a thousandth of epsilon, but at most 0.001, times
    ``coarser``.
    """
    parts = _sampled_parts(multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps, besides=besides)
    losses = composed_losses(parts, interval=coarser * min(1e-3, epsilon / 1000))
    return bool(losses.get_epsilon(delta) <= epsilon)


def through_empty_record(*, epsilon: float, delta: float) -> tuple[float, float]:
    """Return the guarantee for emptied records that implies the guarantee (epsilon, delta) for replaced records.

    Notes
    -----
    To replace a record, empty it and fill it again. For any event, let P, P' and P'' be the probabilities with the
    first record, with an empty record, and with the second record. Let each half be (e, d)-DP. Then
    ``P <= e^e P' + d <= e^e (e^e P'' + d) + d``, so both halves together are ``(2 e, (1 + e^e) d)``-DP. So this
    function returns ``e = epsilon / 2`` and ``d = delta / (1 + e^e)``, rounded down.
    """
    half = epsilon / 2
    share = delta / (1 + math.exp(half)) * (1 - 2.0**-50) if half < _LARGEST_EXPONENT else 0.0
    return half, share


def _sampled_parts(
    multiplier: float, *, epsilon: float, delta: float, rate: float, steps: int, besides: Fraction
) -> Parts:
    gaussians = {gaussian_noise_multiplier(epsilon=epsilon, delta=delta, share=besides): 1} if besides else {}
    return Parts(gaussians=gaussians, sampled={(rate, multiplier): steps})


FOLDER_VARIABLE = "DPCA_CACHE_FOLDER"


@lru_cache(maxsize=256)
def cached_sampled_multiplier(
    *, epsilon: float, delta: float, rate: float, steps: int, besides: Fraction = Fraction(0)
) -> float:
    """Return the noise multiplier of `sampled_gaussian_noise_multiplier`, from the cache on disk if possible.

    Guarantees
    ----------
    This process checked that the multiplier satisfies the guarantee, also if it was read from the cache. A cache that
    cannot be read or written is ignored.
    """
    terms = {"epsilon": epsilon, "delta": delta, "rate": rate, "steps": steps}
    path = _path([*terms.values(), str(besides)])
    try:
        known = float(json.loads(path.read_bytes())["noise_multiplier"])
        if known > 0 and sampled_gaussian_is_private(known, besides=besides, **terms):  # type: ignore[arg-type]
            return known
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = sampled_gaussian_noise_multiplier(besides=besides, **terms)  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({**terms, "besides": str(besides), "noise_multiplier": found}))
        partial.replace(path)
    return found


def _path(arguments: list[object]) -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    cache = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpca"
    text = json.dumps([version("dp-accounting"), *map(repr, arguments)])
    return cache / "calibrations" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
