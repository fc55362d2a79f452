"""Forecast of the components above the noise, from public facts and a declared spectrum.

*A declared spectrum* states from public knowledge which part of all variance each component captures. The user writes
the spectrum as a text in one of three forms:

- ``0.3,0.1,0.05``: the parts of the first components, descending. The parts of further components follow a power law
  that starts at the last stated part and sums to the rest of the variance.
- ``decay:1.2``: the part of component j is proportional to ``j^-1.2``.
- ``flat``: all components have equal parts.

>>> spectrum_shares("0.5,0.25", n_features=4).round(3).tolist()
[0.5, 0.25, 0.148, 0.102]
>>> spectrum_shares("decay:1", n_features=3).round(3).tolist()
[0.545, 0.273, 0.182]
>>> spectrum_shares("flat", n_features=4).tolist()
[0.25, 0.25, 0.25, 0.25]

*The forecast* counts the components that can be above the noise, before any budget is spent. The strength of a
component is its eigenvalue of the second moment, in squared clip norms. The second moment of at most n records has
trace at most n, so j equally strong components have strength at most ``n / j`` each. A declared spectrum bounds the
strength of each component further. The plan of each mechanism states a noise level: the least strength of a component
that can be distinguished from the noise.

>>> from dpca_tasks.mechanisms.base import Problem
>>> found = forecast(Problem(n_features=400, clip_norm=1.0, records_at_most=500), n_components=10, level=122.2)
>>> found.above_noise, round(found.records_needed)
(4, 1222)
>>> forecast(Problem(n_features=400, clip_norm=1.0, records_at_most=5_000), n_components=10, level=122.2).warnings()
()
>>> forecast(Problem(n_features=400, clip_norm=1.0, records_at_most=100), n_components=1, level=122.2).warnings()
('expect noise: noise alone makes directions as strong as 122 records at the clip norm, and records_at_most=100: all \
components will be noise; spend more epsilon, use more records, or choose another mechanism.',)
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.events import steps
from dpca_tasks.errors import DpcaError, InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Plan, Problem, Subspace

_ROUNDING_OF_SHARES = 0.01  # tolerance for the sum of the declared parts of the variance, which users may have rounded
_STEEPEST = 200.0  # largest decay rate of a spectrum's power law: a steeper tail contains almost no variance


def spectrum_shares(declared: str, *, n_features: int) -> NDArray[np.float64]:
    """Return the part of all variance that each component captures, by a declared spectrum; descending, with sum 1.

    Raises
    ------
    InvalidInput
        If the text is not a valid spectrum, or if ``n_features`` components cannot have the stated parts.
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
    parts = _numbers(declared, declared)
    rest = 1.0 - math.fsum(parts)
    falls = all(before >= after for before, after in pairwise(parts))
    if len(parts) > n_features or not falls or min(parts) < 0.0 or parts[0] <= 0.0 or rest < -_ROUNDING_OF_SHARES:
        raise _refused(declared)
    return _continued(parts, max(rest, 0.0), n_features, declared)


def _continued(parts: list[float], rest: float, n_features: int, declared: str) -> NDArray[np.float64]:
    """Extend stated parts of the variance by a power law that starts at the last part and sums to ``rest``."""
    beyond = np.arange(len(parts) + 1.0, n_features + 1.0) / len(parts)
    most = parts[-1] * len(beyond)
    if rest > most + _ROUNDING_OF_SHARES:
        raise InvalidInput(
            f"spectrum={declared!r} leaves {rest:.4g} of all variance to the other {len(beyond)} components, which is "
            f"too much: none of them may have more than the last stated part; state larger parts, or more parts."
        )
    if rest <= parts[-1] * float(beyond[0]) ** -_STEEPEST if len(beyond) else True:
        tail = np.zeros(len(beyond))
    elif rest >= most:
        tail = np.full(len(beyond), parts[-1])
    else:
        from scipy.optimize import brentq  # slow to import

        fall = brentq(lambda rate: parts[-1] * float(np.sum(beyond**-rate)) - rest, 0.0, _STEEPEST)
        tail = parts[-1] * beyond**-fall
    shares = np.concatenate([parts, tail])
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
        f"spectrum={declared!r} must be parts of all variance (at most one per feature, descending, sum at most 1), "
        "such as 0.3,0.1,0.05; or decay:A, A from 0 to 200; or flat; correct it, or leave it out."
    )


UNDECLARED_SHARE = 0.1
"""If no number of records is declared, a forecast assumes this share of the default number."""

_ROUNDING = 1e-9
_LARGEST_EPSILON = 1e3
_LEAST_NOISE = 1e-6  # least noise multiplier for which an epsilon is computed; below, epsilon is meaninglessly large
_CLOSE, _ATTEMPTS = 0.01, 12  # `epsilon_needed`: accepted relative error of the result, and largest number of plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of the components above the noise of a planned release.

    Parameters
    ----------
    problem : Problem
    n_components : int
        The requested number k.
    level : float, records at the clip norm
        The least strength of a component that can be distinguished from noise.
    strength : float, records at the clip norm
        The largest possible strength of component k. If `forecast` was called with ``together``: the largest possible
        difference between the strengths of components k and k + 1.
    above_noise : int, optional
        How many of the k components can be above the noise; None if no number of records is declared.
    """

    problem: Problem
    n_components: int
    level: float
    strength: float
    above_noise: int | None

    @property
    def expects_noise(self) -> bool:
        """True if no component can be above the noise."""
        return self.above_noise == 0

    @property
    def records_needed(self) -> float:
        """The number of records at the clip norm with which the k-th component could be above the noise.

        The number is infinite if the k-th component has strength 0.
        """
        if self.strength <= 0.0:
            return math.inf
        return self.problem.records_at_most * self.level / self.strength

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if the components cannot all be above the noise."""
        most, shown = self.problem.records_at_most, f"as strong as {self.level:,.0f} records at the clip norm, and "
        found = f"noise alone makes directions {shown}"
        if self.above_noise is None:
            if UNDECLARED_SHARE * self.strength >= self.level:
                return ()
            return (
                f"{found}no number of records is declared: unless there are well over {self.records_needed:,.0f} "
                "records, components are noise; ingest with --records-at-most to check this; with fewer records, spend "
                "more epsilon or request fewer components.",
            )
        declared = f" with spectrum={_short(self.problem.spectrum)}" if self.problem.spectrum else ""
        if self.above_noise == 0:
            return (
                f"expect noise: {found}records_at_most={most}{declared}: all components will be noise; spend more "
                "epsilon, use more records, or choose another mechanism.",
            )
        if self.above_noise >= self.n_components:
            return ()
        return (
            f"{found}records_at_most={most}{declared}: at most {self.above_noise} of {self.n_components} components "
            "can be more than noise; spend more epsilon, use more records, or request fewer components.",
        )


def forecast(problem: Problem, *, n_components: int, level: float, together: bool = False) -> Forecast:
    """Forecast how many of k components can be above a noise level.

    Parameters
    ----------
    problem : Problem
        The public facts, with the declared spectrum. Without a declared spectrum, the forecast for each number of
        components assumes the spectrum that favours this number most.
    n_components : int
        The number k.
    level : float, records at the clip norm
        The least strength of a component that can be distinguished from noise.
    together : bool
        Whether the mechanism releases the k directions as a whole. Then either all or none of the components are above
        the noise. All are above the noise if the strengths of components k and k + 1 differ by at least ``level``.

    Raises
    ------
    InvalidInput
        If the declared spectrum is invalid.
    """
    most = problem.records_at_most
    if problem.spectrum:
        held = most * spectrum_shares(problem.spectrum, n_features=problem.n_features)
        strength = float(held[n_components - 1])
        if together:
            strength -= float(held[n_components]) if n_components < problem.n_features else 0.0
        standing = int((held[:n_components] >= level * (1.0 - _ROUNDING)).sum())
    else:
        strength = most / n_components
        standing = min(n_components, math.floor(most / level * (1.0 + _ROUNDING)))
    if together:
        standing = n_components if strength >= level else 0
    return Forecast(
        problem=problem,
        n_components=n_components,
        level=level,
        strength=strength,
        above_noise=standing if problem.records_declared else None,
    )


def forecast_of(plan: Plan, *, n_components: int) -> Forecast | None:
    """Return the forecast of a planned subspace; None if its plan states no noise level."""
    if plan.level is None:
        return None
    return forecast(plan.problem, n_components=n_components, level=plan.level, together=plan.together)


def epsilon_needed(mechanism: Mechanism[Subspace], plan: Plan, *, strength: float) -> float | None:
    """Return the epsilon at which a component of a given strength could be above the noise of a mechanism.

    The function plans the mechanism repeatedly, with different epsilons and the delta of ``plan``. Plans with sampled
    records would take seconds each. For them, the noise level is assumed to be proportional to the noise of one
    Gaussian release, because a sequence of many sampled releases behaves like one Gaussian release.

    Returns
    -------
    float or None
        An epsilon that exceeds the least sufficient one by at most 1 %, for plans without sampling. Infinite if no
        epsilon below 1,000 suffices. None if the mechanism refuses a tried epsilon.
    """
    if plan.level is None or strength <= 0.0:
        return math.inf
    if any(step["name"] == "poisson_sampled" for step in steps(plan.event)):
        return _as_one_gaussian(plan, strength)
    known, noise = plan.target.epsilon, plan.level
    tried, fall = known, -1.0  # the noise level is about proportional to 1 / epsilon
    for _ in range(_ATTEMPTS):
        wanted = strength * (1.0 - _CLOSE / 2.0)
        tried = min(known * math.exp(math.log(wanted / noise) / fall), _LARGEST_EPSILON)
        try:
            level = mechanism.plan(plan.problem, replace(plan.target, epsilon=tried)).level
        except DpcaError:
            return None
        assert level is not None
        if strength * (1.0 - _CLOSE) <= level <= strength:
            return tried
        if tried == _LARGEST_EPSILON and level > strength:
            return math.inf
        if tried != known and level != noise:
            fall = min(max(math.log(level / noise) / math.log(tried / known), -4.0), -0.1)
        known, noise = tried, level
    return tried if noise <= strength else math.inf


def _as_one_gaussian(plan: Plan, strength: float) -> float:
    assert plan.level is not None
    target = plan.target
    noise = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta) * strength / plan.level
    if noise < _LEAST_NOISE:
        return math.inf
    epsilon = gaussian_epsilon(noise_multiplier=noise, delta=target.delta)
    return epsilon if epsilon < _LARGEST_EPSILON else math.inf


def _short(declared: str) -> str:
    return declared if len(declared) <= 40 else f"{declared[:37]}..."
