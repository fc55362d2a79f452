"""Releases in rounds: a public map for the next round, the estimate from all rounds, its components and their quality.

Round 1 releases a rough second moment. Each further round subtracts a released mean m from the records, multiplies them
by a public map T, and clips the result at a norm c below 1. T shrinks the directions that earlier rounds have found, so
that c, and the noise with it, is small. In later rounds only T, m and c depend on data: on earlier answers.

All functions are post-processing of released answers. The unit is the clip norm: records have norm 1 at most, and
moments are in squared clip norms. The noise of an answer is isometric, with ``noise_std`` off the diagonal.

A release calls `begun` on the first answer. Before each further round it calls `proposed`, and after that round
`continued`. At the end `components` and `dpca_tasks.refinement.rounds_assessment.assessed` take the answers.

Notes
-----
Once on the grid, T need not be symmetric. A record x becomes ``y = T (x - m)``, and its moment ``T x x^T T^T``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.refinement.leading_pairs import Refinement, Request
from dpca_tasks.refinement.public_map import PublicMap

type Matrix = NDArray[np.float64]

WIDEST = 60
"""The most directions of a map."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The released answer of one round.

    Parameters
    ----------
    released : float64 array of shape (d, d) or (d + 1, d + 1)
        The noisy sum of the moments of mapped and clipped records, of order d + 1 if they end in a constant.
    noise_std : float
        The standard deviation of its noise off the diagonal.
    map : PublicMap
        T of this round.
    clip_norm : float
        c of this round; 1 in round 1.
    constant : float
        The constant ``a c`` at the end of a record, 0 if there is none. The constants of a record of p rows are each
        divided by the root of p.
    energy : float, optional
        `Proposal.energy` of this round; None if no record could be clipped.
    step : float
        The grid step of the answer.
    """

    released: Matrix
    noise_std: float
    map: PublicMap
    clip_norm: float = 1.0
    constant: float = 0.0
    energy: float | None = None
    step: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """An answer around its own mean if the release is centred, divided by the part that clipping kept.

    ``noise_std`` is divided by ``kept`` too.
    """

    map: PublicMap
    matrix: Matrix
    noise_std: float
    kept: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """The second moment S of the records, around their mean if ``mean`` is given, as all rounds so far estimate it.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        S, not mapped.
    noise_std : float
        The standard deviation of the noise of ``T S T^T`` off the diagonal, for T of the last round.
    rounds : tuple of Round
        All rounds so far.
    n_records : float
        The released number of records, at least 1.
    mean : float64 array of shape (d,), optional
        The mean of round 1, scaled to norm 1 at most: m of all later rounds before it is rounded to its grid.
    extra : float
        The energy that the noise of the mean adds to ``sum |x - m|^2``.
    """

    matrix: Matrix
    noise_std: float
    rounds: tuple[Round, ...]
    n_records: float
    mean: Matrix | None = None
    extra: float = 0.0

    @property
    def map(self) -> PublicMap:
        """T of the last round."""
        return self.rounds[-1].map

    @property
    def total(self) -> float:
        """The energy ``sum |x|^2``, at least half a standard deviation of its noise."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """A map with its forecast.

    Parameters
    ----------
    map : PublicMap
    energies : float64 array of shape (r,)
        The energy of the records along each direction of the map, before the map.
    energy : float
        E, the energy of all records after the map.
    """

    map: PublicMap
    energies: Matrix
    energy: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposal:
    """The public inputs of the next round.

    Parameters
    ----------
    map : PublicMap
        T.
    clip_norm : float
        c. It is 1 for the identity around no mean: the round is then a plain second moment.
    energy : float, optional
        The expected ``sum |T (x - m)|^2``; None if no record can be clipped.
    factor : float
        ``c^2`` over the expected ``|T (x - m)|^2`` of one record, before the bounds on c.
    """

    map: PublicMap
    clip_norm: float
    energy: float | None
    factor: float


def begun(answer: Answer, *, centred: bool) -> Estimate:
    """Return the estimate of round 1; if ``centred``, around the mean of the answer.

    The answer's records end in a constant in either case, since later rounds need the number of records.
    """
    raise NotImplementedError


def proposed(estimate: Estimate, *, n_components: int, noise_std: float) -> Proposal:
    """Return map and clip norm of the next round.

    Parameters
    ----------
    estimate : Estimate
        All that was released so far.
    n_components : int
        k.
    noise_std : float
        The planned standard deviation off the diagonal of the next round's noise if its clip norm is 1:
        ``(1 + a^2) sensitivity noise_multiplier / sqrt 2``.
    """
    raise NotImplementedError


def continued(estimate: Estimate, answer: Answer) -> Estimate:
    """Return the estimate from one more round; a mean that this round has left is removed."""
    raise NotImplementedError


def design(estimate: Estimate, *, n_components: int) -> Design:
    """Return the map of the next round; the identity if no direction is above the noise."""
    raise NotImplementedError


def clip_factor(found: Design, estimate: Estimate, *, n_components: int, noise_std: float) -> float:
    """Return ``c^2`` over the expected squared norm of a mapped record, ``kappa``.

    ``noise_std`` is the noise off the diagonal of a round with factor 1.
    """
    raise NotImplementedError


def combined(rounds: Sequence[Round], start: Matrix) -> Matrix:
    """Return the S that minimises ``sum_j |A_j - T_j S T_j^T|^2 / s_j^2`` over the rounds j."""
    raise NotImplementedError


def components(estimate: Estimate, *, n_components: int, method: Request = "auto") -> Refinement:
    """Return the leading k pairs of the estimate, refined where its noise is even."""
    raise NotImplementedError
