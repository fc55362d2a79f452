"""Variance captured by a released subspace: a private estimate, and diagnostics without privacy.

*Private estimate*: three noisy sums of squares are released as one event, and the captured share is computed from them.

>>> import numpy as np
>>> found = estimated_share(np.array([6.0, 3.0, 3.0]), std=0.0, n_components=2)
>>> found["share"], found["share_beyond_first"]
(0.75, 0.5)

*Diagnostics*: the quality of a subspace on given rows is computed without noise. These numbers are only for the person
who holds the rows, and are never exported. They are not a release: nothing is stored, charged or published. A mechanism
cannot request them, since only a `DisclosingCurator` answers without noise.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca.moments import centred
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier, laplace_noise_multiplier
from dpca_tasks.mechanisms.base import Estimate, Plan, PrivacyTarget, Problem, Terms, check_target
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.released_moment import moment_query
from dpca_tasks.metrics import (
    captured_beyond_first,
    captured_variance,
    held_variance,
    principal_angles,
    reconstruction_error,
    subspace_distance,
)
from dpca_tasks.noise.distributions import Gaussian, Laplace, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.queries.recentred_moment import PARTS, CapturedEnergies, on_shift_grid
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.queries.second_moment import CONSTANT

type Array = NDArray[np.float64]

FINEST = 13
"""The bits of the finest grid for records from which a mean was subtracted; other records use the same grid."""
_VISIBLE = 2.0  # a share is stated only if its noisy denominator exceeds 0 by this many standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceTerms(Terms):
    """Public facts of a request to evaluate a subspace on the records of a dataset."""

    n_features: int
    clip_norm: float
    n_components: int
    centred: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedShare:
    """Release three noisy sums, from which the variance captured by a subspace is estimated.

    The sums are over the records' squared norms along the first component, along the other components, and orthogonal
    to the subspace. The noise is Gaussian, or Laplace if delta is 0.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Released components, as orthonormal rows.
    mean : float64 array of shape (d,), optional
        Released mean, which is subtracted from the records.
    """

    components: Array
    mean: Array | None = None

    name: ClassVar[str] = "captured_share"

    def plan(self, problem: SubspaceTerms, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the single step, which releases three sums."""
        check_target(problem, target, pure=True)
        noise = _noise(target)
        check_tail(noise, draws=PARTS, delta=target.delta)
        query = self._query(problem, bits=1)
        spread = noise.noise_multiplier * query.sensitivity(noise.norm) * _spread(noise)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=min(grid_bits(noise_std=spread, degree=CapturedEnergies.degree), FINEST),
            event=noise.event,
        )

    def run(self, curator: Curator, plan: Plan) -> Estimate:
        """Release the three noisy sums, and estimate the captured share from them."""
        sums = curator.release(self._query(plan.problem, bits=plan.bits), _noise(plan.target))
        outcome = estimated_share(sums, std=self.noise_std(plan), n_components=len(self.components))
        return Estimate(sums=sums, outcome=outcome)

    def noise_std(self, plan: Plan) -> float:
        """Return the std of the noise in each of the three sums, in data units squared."""
        noise, query = _noise(plan.target), self._query(plan.problem, bits=plan.bits)
        return noise.noise_multiplier * query.sensitivity(noise.norm) * _spread(noise) * query.unit

    def _query(self, problem: SubspaceTerms, *, bits: int) -> CapturedEnergies:
        return CapturedEnergies(
            n_features=problem.n_features,
            clip_norm=problem.clip_norm,
            relation=problem.relation,
            bits=bits,
            directions=on_direction_grid(self.components.T),
            shift=None if self.mean is None else on_shift_grid(self.mean / problem.clip_norm),
        )


def estimated_share(sums: Array, *, std: float, n_components: int) -> dict[str, Any]:
    """Estimate the share of the variance that a subspace captures, from three noisy sums; this is post-processing.

    Parameters
    ----------
    sums : array of shape (3,), data units squared
        The sums of the records' squared norms along the first component, along the other components, and orthogonal to
        all components.
    std : float, data units squared
        The std of the noise in each sum.
    n_components : int
        The number of components of the subspace.

    Returns
    -------
    dict
        ``share`` is the part of all variance that the subspace captures. ``share_beyond_first`` is the part of the
        variance orthogonal to the first component that the other components capture. Both are from 0 to 1, or None if
        the denominator cannot be distinguished from noise. ``reconstruction_error`` is the sum of squared distances of
        the records to the subspace. ``total_variance`` is the sum of squared distances to the origin, or to the mean if
        a mean was subtracted. Each number has a std, to first order in the noise, under its name with ``_std``.
    """
    first, others, rest = (float(each) for each in sums)
    if n_components == 1:
        others = 0.0
    draws = 1 if n_components == 1 else 2
    share, share_std = _ratio(first + others, rest, std=std, draws=draws)
    beyond, beyond_std = (None, None) if n_components == 1 else _ratio(others, rest, std=std, draws=1)
    return {
        "share": share,
        "share_std": share_std,
        "share_beyond_first": beyond,
        "share_beyond_first_std": beyond_std,
        "reconstruction_error": rest,
        "reconstruction_error_std": std,
        "total_variance": first + others + rest,
        "total_variance_std": std * math.sqrt(draws + 1.0),
    }


def _ratio(held: float, rest: float, *, std: float, draws: int) -> tuple[float | None, float | None]:
    """Return ``held / (held + rest)`` and its std; both are None if the denominator may be noise.

    ``held`` contains the noise of ``draws`` sums, and ``rest`` the noise of one sum, each of standard deviation
    ``std``.
    """
    whole = held + rest
    if not whole > _VISIBLE * std * math.sqrt(draws + 1.0):
        return None, None
    ratio = held / whole
    spread = std / whole * math.sqrt(draws * (1.0 - ratio) ** 2 + ratio**2)
    return min(max(ratio, 0.0), 1.0), spread


def _noise(target: PrivacyTarget) -> Gaussian | Laplace:
    if target.delta == 0.0:
        return Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=target.epsilon))
    return Gaussian(noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta))


def _spread(noise: Gaussian | Laplace) -> float:
    """Return the std of a noise distribution divided by its scale."""
    return math.sqrt(2.0) if noise.norm == "l1" else 1.0


type Matrix = NDArray[np.float64]

BITS = 14


def diagnose(
    curator: DisclosingCurator, problem: Problem, components: Matrix, *, mean: Matrix | None
) -> dict[str, Any]:
    """Compare a released subspace with the best subspace of the same dimension on the rows, without privacy.

    Parameters
    ----------
    curator : DisclosingCurator
        Access to the exact second moment of the rows.
    problem : Problem
        The public facts of the release, including its clip norm. If the problem is centred, the exact mean of the rows
        is subtracted from them.
    components : array of shape (k, d)
        The released components, as orthonormal rows.
    mean : array of shape (d,), optional
        The released mean, which the reconstruction error uses in place of the exact mean.

    Returns
    -------
    dict
        ``captured_variance`` and ``captured_beyond_first`` are relative to the variance captured by the best k
        directions. ``share`` and ``share_beyond_first`` are relative to all variance. The names with ``beyond_first``
        ignore the variance along the first direction. ``principal_angles`` are the angles to the best k directions, in
        degrees, ascending. ``subspace_distance`` is the distance to the best subspace. ``reconstruction_error`` is the
        sum of squared distances of the records to the subspace. A number is None if it is undefined.
    """
    exact = curator.disclose(moment_query(problem, bits=BITS))
    moment, away = exact, np.zeros(problem.n_features)
    count = None
    if problem.center != "none":
        constant = CONSTANT * problem.clip_norm
        count = float(exact[-1, -1]) / constant**2
        moment, own = centred(exact[:-1, :-1], exact[:-1, -1] / constant, count)
        away = own if mean is None else own - mean
    values, best = leading_eigenpairs(moment, len(components))
    total, held = float(np.trace(moment)), held_variance(moment, components)
    along = held_variance(moment, components[:1])
    around = moment if count is None else moment + count * np.outer(away, away)
    found = {
        "captured_variance": captured_variance(moment, components, values=values),
        "captured_beyond_first": captured_beyond_first(moment, components, first=best[0], values=values),
        "share": held / total if total > 0.0 else None,
        "share_beyond_first": (held - along) / (total - along) if len(components) > 1 and total > along else None,
        "principal_angles": [float(angle) for angle in np.degrees(principal_angles(components, best))],
        "subspace_distance": subspace_distance(components, best),
        "reconstruction_error": reconstruction_error(around, components, total=float(np.trace(around))),
    }
    return {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in found.items()}
