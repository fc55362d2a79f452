"""The expected public map and noise of the last round of a release in rounds, from the strengths of all components.

Each round after the first multiplies records by a public map, which shrinks the directions found so far. It then clips
the records at a smaller norm, which reduces the noise. A release computes the map from noisy answers of earlier rounds.
The forecast computes the map from the exact strengths instead, and applies the rules of `dpca_tasks.refinement.rounds`
for the map, the clip norm and the noise. The energy (sum of squared norms) that clipping removes depends on the norms
of single records, which a spectrum does not describe. So the part of the energy that clipping keeps is an argument,
``kept``.

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
"""The constant that is appended to each record in round 1 if the mean is released, in clip norms."""
REACH = 2.0
"""The largest clip norm of a record from which a mean was subtracted, in clip norms of the original records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRound:
    """The public map and the noise of the last round of a release in rounds.

    Parameters
    ----------
    factors : float64 array of shape (d,)
        The factor t by which the map multiplies each component; 1 for components that the map leaves unchanged.
    noise_std : float
        The standard deviation of noise off the diagonal, in the estimate of the mapped moment from all rounds, in
        squared clip norms.
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
    """Return the expected public map and noise of the last round of a release in rounds.

    Parameters
    ----------
    strengths : float64 array of shape (d,), in squared clip norms
        The eigenvalues of the second moment, around the mean if ``centred``.
    n_components : int
        The number k for which the rounds are designed.
    noise_stds : sequence of float
        For each round, the standard deviation that its noise has off the diagonal if the round's clip norm is 1.
    n_records : float
        The number of records.
    centred : bool
        Whether a released mean is subtracted from the records.
    kept : float
        The assumed part of the records' energy (the sum of their squared norms) that remains after clipping. If a
        round's clip norm permits only a smaller part, the smaller part is assumed.
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
        if centred or (factors < 1.0).any():  # a record that is clipped at norm c has a squared norm of at most c^2
            noise_std *= max(min(factor * share, REACH**2) / kept, share)
        precision += noise_std**-2
        found = LastRound(factors=factors, noise_std=precision**-0.5)
    return found


def _designed(strengths: Vector, last: LastRound, *, n_components: int, total: float) -> tuple[Vector, float]:
    """Return the factors of the next round's map, and the sum of squared norms of all records after this map."""
    order = len(strengths)
    above = np.flatnonzero(last.factors**2 * strengths > last.noise_std * edge_quantile(order))
    above = above[np.argsort(-strengths[above], kind="stable")][: min(WIDEST, order - 1)]
    factors = np.ones(order)
    if len(above):
        outside = max(total - float(strengths[above].sum()), math.sqrt(2.0 * order) * last.noise_std / 2.0)
        factors[above] = factors_of(strengths[above], outside, n_components=n_components, order=order)
        return factors, float(factors[above] ** 2 @ strengths[above]) + outside
    return factors, total
