"""A spectrum that the user declares from public knowledge: which part of all variance each component holds.

A declaration is text: parts of all variance, descending, ``0.3,0.1,0.05``; or ``decay:1.2``, component j in proportion
to ``j^-1.2``; or ``flat``, every direction alike. After the last part stated, parts fall by a power law that starts
there and holds the rest.

>>> spectrum_shares("0.5,0.25", n_features=4).round(3).tolist()
[0.5, 0.25, 0.148, 0.102]
>>> spectrum_shares("decay:1", n_features=3).round(3).tolist()
[0.545, 0.273, 0.182]
>>> spectrum_shares("flat", n_features=4).tolist()
[0.25, 0.25, 0.25, 0.25]
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput

_ROUNDING = 0.01  # of all parts that a user wrote down
_STEEPEST = 200.0  # of a tail that holds almost nothing


def spectrum_shares(declared: str, *, n_features: int) -> NDArray[np.float64]:
    """Return the parts of all variance that the components hold: d of them, descending, 1 in sum.

    Raises
    ------
    InvalidInput
        If the text is no declaration, or no spectrum of so many features has such parts.
    """
    order = np.arange(1.0, n_features + 1.0)
    if declared == "flat":
        return np.full(n_features, 1.0 / n_features)
    kind, _, text = declared.rpartition(":")
    if kind == "decay":
        rate = _numbers(text, declared)[0]
        if not 0.0 <= rate <= _STEEPEST:
            raise _refused(declared)
        falling = order**-rate
        return np.asarray(falling / falling.sum())
    stated = _numbers(declared, declared)
    rest = 1.0 - math.fsum(stated)
    falls = all(before >= after for before, after in pairwise(stated))
    if len(stated) > n_features or not falls or min(stated) < 0.0 or stated[0] <= 0.0 or rest < -_ROUNDING:
        raise _refused(declared)
    return _continued(stated, max(rest, 0.0), n_features, declared)


def _continued(stated: list[float], rest: float, n_features: int, declared: str) -> NDArray[np.float64]:
    """Return stated parts, and after them a power law that starts at the last and holds the rest."""
    beyond = np.arange(len(stated) + 1.0, n_features + 1.0) / len(stated)
    most = stated[-1] * len(beyond)
    if rest > most + _ROUNDING:
        raise InvalidInput(
            f"spectrum={declared!r} leaves {rest:.4g} of all variance to {len(beyond)} components, none of which holds "
            f"more than the last one stated; state larger parts, or more of them."
        )
    if rest <= stated[-1] * float(beyond[0]) ** -_STEEPEST if len(beyond) else True:
        tail = np.zeros(len(beyond))
    elif rest >= most:
        tail = np.full(len(beyond), stated[-1])
    else:
        from scipy.optimize import brentq  # slow to import

        fall = brentq(lambda rate: stated[-1] * float(np.sum(beyond**-rate)) - rest, 0.0, _STEEPEST)
        tail = stated[-1] * beyond**-fall
    shares = np.concatenate([stated, tail])
    return np.asarray(shares / shares.sum())


def _numbers(text: str, declared: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise _refused(declared) from None
    if not all(map(math.isfinite, numbers)):
        raise _refused(declared)
    return numbers


def _refused(declared: str) -> InvalidInput:
    return InvalidInput(
        f"spectrum={declared!r} must be parts of all variance, one a feature at most, descending and at most 1 in sum, "
        "such as 0.3,0.1,0.05; or decay:A, A from 0 to 200; or flat; correct it, or leave it out."
    )
