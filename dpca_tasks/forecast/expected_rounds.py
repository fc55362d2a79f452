"""The expected map and noise of a last round, from the strengths of all components.

Rounds adapt to earlier answers. The forecast lets them adapt to the strengths themselves: to the diagonal matrix of the
strengths, in place of its noisy estimates. Every further round then has the map, the clip norm and the noise that
`dpca_tasks.refinement.rounds` would choose. How much energy clipping removes depends on the lengths of records, which
no spectrum states. So a part that is kept is an argument.

>>> strengths = 20_000.0 * 0.6 ** np.arange(30)
>>> stds = [950.0, 550.0, 390.0]
>>> last = last_round(strengths, n_components=4, noise_stds=stds, n_records=50_000.0, centred=False, kept=0.9)
>>> last.factors[:6].round(2).tolist(), round(last.noise_std)
([0.42, 0.55, 0.71, 1.0, 1.0, 1.0], 153)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.noise_level import edge_quantile
from dpca_tasks.refinement.rounds import USELESS, WIDEST, factor_for, factors_of

type Vector = NDArray[np.float64]

FIRST_CONSTANT = math.sqrt(1.0 / 3.0)
"""The constant at the end of a record in round 1, in clip norms, if the mean is released."""
REACH = 2.0
"""The largest clip norm of a record around a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRound:
    """The map and the noise of a last round.

    Parameters
    ----------
    factors : float64 array of shape (d,)
        The factor t by which the map shrinks each component, 1 for components that it does not shrink.
    noise_std : float
        The standard deviation off the diagonal of the combined noise after the map, in squared clip norms.
    """

    factors: Vector
    noise_std: float


def last_round(
    strengths: Vector,
    *,
    n_components: int,
    noise_stds: Sequence[float],
    n_records: float,
    centred: bool,
    kept: float,
) -> LastRound:
    """Return the map and the noise of the last round.

    Parameters
    ----------
    strengths : float64 array of shape (d,), in squared clip norms
        The eigenvalues of the second moment, around the mean if ``centred``.
    n_components : int
        The number k for which the rounds are designed.
    noise_stds : sequence of float
        For each round the standard deviation off the diagonal of its noise, if its clip norm is 1.
    n_records : float
        The number of records.
    centred : bool
        Whether records are taken around a released mean.
    kept : float
        The part of the energy that clipping keeps at most, in the rounds that clip.
    """
    order, total = len(strengths), float(strengths.sum())
    extra = order * (noise_stds[0] / FIRST_CONSTANT) ** 2 / n_records if centred else 0.0
    precision = noise_stds[0] ** -2
    found = LastRound(factors=np.ones(order), noise_std=noise_stds[0])
    for planned in noise_stds[1:]:
        factors, energy = _designed(strengths, found, n_components=n_components, total=total)
        share = (energy + extra) / n_records
        leading = np.argsort(-strengths, kind="stable")[:n_components]
        leading = leading[factors[leading] < 1.0]
        factor = factor_for(strengths[leading], factors[leading], order=order, noise_std=share * planned)
        if max(factor, 1.0) * share >= USELESS:
            factors, share = np.ones(order), (total + extra) / n_records
        noise_std = planned
        if centred or (factors < 1.0).any():  # clipping at c keeps at most c^2 of a record's energy
            noise_std *= max(min(factor * share, REACH**2) / kept, share)
        precision += noise_std**-2
        found = LastRound(factors=factors, noise_std=precision**-0.5)
    return found


def _designed(strengths: Vector, last: LastRound, *, n_components: int, total: float) -> tuple[Vector, float]:
    """Return the factors of the next map, and the energy of all records after it."""
    order = len(strengths)
    above = np.flatnonzero(last.factors**2 * strengths > last.noise_std * edge_quantile(order))
    above = above[np.argsort(-strengths[above], kind="stable")][: min(WIDEST, order - 1)]
    factors = np.ones(order)
    if len(above):
        outside = max(total - float(strengths[above].sum()), math.sqrt(2.0 * order) * last.noise_std / 2.0)
        factors[above] = factors_of(strengths[above], outside, n_components=n_components, order=order)
        return factors, float(factors[above] ** 2 @ strengths[above]) + outside
    return factors, total
