"""How many components can stand above the noise, before anything is spent: from public facts and declarations.

Records of norm at most the clip norm, n of them, have a second moment of trace at most ``n clip_norm^2``. So j
components can hold ``n / j`` records' worth each at most, and one that holds less than about ``noise_std sqrt(d)``
cannot be told from noise. Where the user declares which parts of all variance the components hold, each is compared
with that strength by itself.

>>> forecast(n_features=784, n_components=10, records=60_000, noise_multiplier=36.305, delta=1e-6).above_noise
10
>>> told = forecast(n_features=784, n_components=10, records=5_000, noise_multiplier=36.305, delta=1e-6)
>>> told.above_noise, round(told.records_needed), round(told.epsilon_needed, 3)
(5, 8385, 0.174)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.noise_edge import least_visible

_ROUNDING = 1e-9
_LEAST_NOISE = 1e-6  # less of it has no epsilon worth a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What can stand above the noise of a release that is not made yet.

    Parameters
    ----------
    above_noise : int
        Of the k components, those that can stand above the noise.
    noise_std : float, data units squared
        Of the noise off the diagonal of the released matrix.
    level : float, records at the clip norm
        What a component has to hold to be seen.
    records_needed : float
        Records at the clip norm with which the k-th component could stand above this noise; infinite where it is
        declared to hold nothing.
    noise_multiplier_needed : float
        Noise under which it could with the given records; 0 where none would do.
    epsilon_needed : float, optional
        The epsilon of that noise at the given delta; None without a delta, infinite where none would do.
    """

    above_noise: int
    noise_std: float
    level: float
    records_needed: float
    noise_multiplier_needed: float
    epsilon_needed: float | None


def forecast(
    *,
    n_features: int,
    n_components: int,
    records: float,
    clip_norm: float = 1.0,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    sensitivity: float = 1.0,
    spectrum: Sequence[float] | None = None,
) -> Forecast:
    """Forecast how many of k components can stand above isometric Gaussian noise, and what the k-th needs.

    Parameters
    ----------
    n_features, n_components : int
        d and k.
    records : float
        How many records there are at most, or the fewer that they amount to at the clip norm.
    clip_norm : float, data units
        Bound on a record's norm.
    epsilon, delta : float
        The guarantee to be asked for; or, instead of epsilon, ``noise_multiplier``: noise over sensitivity.
    sensitivity : float, clip norms squared
        Of the second moment: 1 for one record more or less, sqrt 2 for one replaced.
    spectrum : sequence of float, optional
        Declared parts of all variance that the leading components hold, descending, in sum at most 1; components
        beyond them are taken to hold nothing. Without it all variance is taken to be in k components, evenly.

    Raises
    ------
    InvalidInput
        If an argument is out of its domain.
    """
    _check(n_features, n_components, records, clip_norm, sensitivity)
    multiplier = _multiplier(epsilon, delta, noise_multiplier)
    if spectrum is None:
        above_noise, part = n_components, 1.0 / n_components
    else:
        _check_spectrum(spectrum)
        part = spectrum[n_components - 1] if n_components <= len(spectrum) else 0.0
    per_multiplier = sensitivity * math.sqrt(0.5)  # the std off the diagonal, in records
    level = least_visible(n_features) * per_multiplier * multiplier
    if spectrum is None:
        above_noise = min(n_components, math.floor(records / level * (1.0 + _ROUNDING)))
    else:
        above_noise = sum(held * records >= level for held in spectrum[:n_components])
    needed = part * records / (least_visible(n_features) * per_multiplier)
    return Forecast(
        above_noise=above_noise,
        noise_std=per_multiplier * multiplier * clip_norm**2,
        level=level,
        records_needed=level / part if part > 0.0 else math.inf,
        noise_multiplier_needed=needed,
        epsilon_needed=_epsilon(needed, delta),
    )


def _multiplier(epsilon: float | None, delta: float | None, noise_multiplier: float | None) -> float:
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("the noise must be given once; pass either epsilon with delta, or noise_multiplier")
    if noise_multiplier is not None:
        if not (math.isfinite(noise_multiplier) and noise_multiplier > 0.0):
            raise InvalidInput(f"noise_multiplier={noise_multiplier} must be positive and finite; pass such a number")
        return noise_multiplier
    if epsilon is None or delta is None:
        raise InvalidInput("epsilon must come with a delta; pass delta too, or noise_multiplier")
    return gaussian_noise_multiplier(epsilon=epsilon, delta=delta)


def _epsilon(noise_multiplier: float, delta: float | None) -> float | None:
    if delta is None:
        return None
    if noise_multiplier < _LEAST_NOISE:
        return math.inf
    return gaussian_epsilon(noise_multiplier=noise_multiplier, delta=delta)


def _check(n_features: int, n_components: int, records: float, clip_norm: float, sensitivity: float) -> None:
    if not 1 <= n_components <= n_features:
        raise InvalidInput(f"n_components={n_components} must be from 1 to n_features={n_features}; pass such a k")
    for name, value in (("records", records), ("clip_norm", clip_norm), ("sensitivity", sensitivity)):
        if not (math.isfinite(value) and value > 0.0):
            raise InvalidInput(f"{name}={value} must be positive and finite; pass such a number")


def _check_spectrum(spectrum: Sequence[float]) -> None:
    falls = all(before >= after for before, after in pairwise(spectrum))
    if not (spectrum and falls and min(spectrum) >= 0.0 and math.fsum(spectrum) <= 1.0 + _ROUNDING):
        raise InvalidInput(
            "a declared spectrum must be parts of all variance, descending, none negative and at most 1 in sum; "
            "divide the variances of the components by the variance of all features."
        )
