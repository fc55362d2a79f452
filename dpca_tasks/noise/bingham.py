r"""Keyed draws of directions by the exponential mechanism with score ``tr(V^T S V)``, on a public grid.

One direction has the Bingham distribution, with density proportional to ``exp(v^T S v / scale)`` on the unit sphere. It
is drawn exactly, up to floating point, by rejection from an angular central Gaussian distribution.

>>> from dpca_tasks.noise.keystream import subkey
>>> mechanism = Peeling(n_components=2, epsilon=1.0, delta=0.0)
>>> mechanism.noise_multiplier, mechanism.event["epsilon"]
(2.0000000000000004, 1.0)
>>> mechanism.draw(subkey(bytes(32), label="noise", info=b""), np.diag([90.0, 0.0, 50.0]), scale=2.0).shape
(2, 3)

Notes
-----
Let ``lambda_i`` be the eigenvalues of S, and ``y_i`` the coordinates of a unit vector in the eigenbasis. Write
``l_i = (max lambda - lambda_i) / scale`` and ``u = sum l_i y_i^2``, and let b solve ``sum 1 / (b + 2 l_i) = 1``. A
normal vector with the variances ``1 / (1 + 2 l_i / b)``, divided by its norm, has density proportional to
``(1 + 2 u / b)^(-d / 2)``. The density ratio ``e^-u (1 + 2 u / b)^(d / 2)`` is largest at ``u = (d - b) / 2``. So a
proposal is accepted with probability ``e^-u (1 + 2 u / b)^(d / 2)`` divided by that largest value: *with the power in
the numerator*. With the power in the denominator the distribution would be more concentrated than S allows, and almost
nothing would be accepted. The draw is exact for any b in (0, d]; the root b has the highest acceptance rate.

*Batches.* The number of proposals in a batch, `proposals_at_once`, depends on d only. The first accepted proposal is
the draw. For any spectrum, at least one proposal in about ``1.2 sqrt d`` is accepted, so about one batch in 500,000 has
no accepted proposal. The number of batches and the duration of LAPACK are the only timings that depend on S.

*Floating point.* The scores come from an exact sum. The sampled distribution is the one for S with a rounding error of
LAPACK (about ``1e-16 d`` of S) and equally small errors of the acceptance tests. The privacy claim does not include
these errors. Directions are rounded to a grid of step 2^-24, so that the low bits, which contain such errors, are not
published. LAPACK runs on one thread: with the locked versions, a key gives the same bits on one machine for any
partition of the rows.

References
----------
Kent, Ganeiber and Mardia (2018), A new unified approach for the simulation of a wide class of directional
distributions, section 3. Chaudhuri, Sarwate and Sinha (2013), algorithm PPCA. Hoff (2009): the chain.
"""

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import largest_range
from dpca_tasks.noise.keystream import SecretKey, laplaces, normals, subkey
from dpca_tasks.threads import one_thread

STEPS_PER_UNIT = 2**24
"""Number of grid steps in the length of a unit vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionMechanism(ABC):
    """A mechanism that draws k orthogonal directions V with a density that grows with their score ``tr(V^T S V)``.

    Parameters
    ----------
    n_components : int
        The number k of directions.
    epsilon, delta : float
        The guarantee of all directions together, for which the scale is calibrated; delta 0 means pure epsilon-DP.
    """

    name: ClassVar[str]
    """The name in digests. It never changes, even if the class is renamed."""
    layout: ClassVar[Literal["symmetric"]] = "symmetric"
    norm: ClassVar[Literal["scores"]] = "scores"
    """The kind of sensitivity: the length of an interval that contains, for all V, the change of ``tr(V^T S V)``."""

    n_components: int
    epsilon: float
    delta: float
    noise_multiplier: float = field(init=False)
    """The scale of the scores divided by their sensitivity. Its reciprocal is the range of one draw's privacy loss."""

    def __post_init__(self) -> None:
        """Calibrate the scale, rounded up."""
        allowed = largest_range(epsilon=self.epsilon, delta=self.delta, draws=self.draws)
        object.__setattr__(self, "noise_multiplier", math.nextafter(1.0 / allowed, math.inf))

    @property
    def event(self) -> events.Event:
        """The DP event of all draws, with exactly the requested (epsilon, delta)."""
        return events.approximate(self.epsilon, self.delta)

    @property
    @abstractmethod
    def draws(self) -> int:
        """The number of draws among which the guarantee is divided."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """The numbers that determine the draw in addition to the scale."""

    @abstractmethod
    def draw(self, key: SecretKey, matrix: NDArray[np.float64], *, scale: float) -> NDArray[np.int64]:
        """Draw the directions, and round them to the grid.

        Parameters
        ----------
        key : SecretKey
            A key used for this draw only.
        matrix : array of shape (d, d)
            The symmetric matrix S of the score.
        scale : float
            `noise_multiplier` times the sensitivity of the scores, rounded up by the caller.

        Returns
        -------
        int64 array of shape (k, d), in steps of ``1 / STEPS_PER_UNIT``
            The directions as rows, orthonormal up to rounding.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeling(DirectionMechanism):
    """A mechanism that draws one direction after another, each exactly and orthogonal to the earlier ones.

    Every draw is a separate exponential mechanism over the unit vectors orthogonal to the directions released before.
    The privacy costs of the draws compose.
    """

    name: ClassVar[str] = "Peeling"

    @property
    def draws(self) -> int:
        """The number of directions: each direction is one draw."""
        return self.n_components

    @property
    def numbers(self) -> tuple[float, ...]:
        """The number of directions."""
        return (self.n_components,)

    def draw(self, key: SecretKey, matrix: NDArray[np.float64], *, scale: float) -> NDArray[np.int64]:
        """Draw the directions one after another."""
        rows = np.zeros((self.n_components, len(matrix)), np.int64)
        with one_thread():
            for at in range(self.n_components):
                basis = complement(rows[:at] / STEPS_PER_UNIT)
                rows[at] = _on_grid(basis @ draw_direction(_key(key, at), basis.T @ matrix @ basis, scale=scale))
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GibbsChain(DirectionMechanism):
    """A Markov chain that draws all directions with the scale of a single draw: **its privacy is not certified**.

    Each step draws one direction exactly, given the others and orthogonal to them. The limit distribution of the chain
    is that of one exponential mechanism. After finitely many steps from a random start, no guarantee is proved.
    """

    name: ClassVar[str] = "GibbsChain"
    sweeps: ClassVar[int] = 40

    @property
    def draws(self) -> int:
        """Always 1: the scale is that of one draw, as if the chain had converged."""
        return 1

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers of directions and of sweeps."""
        return (self.n_components, self.sweeps)

    def draw(self, key: SecretKey, matrix: NDArray[np.float64], *, scale: float) -> NDArray[np.int64]:
        """Run the chain from a random start, and return its last directions."""
        size = self.n_components * len(matrix)
        start = normals(subkey(key.secret, label="start", info=b""), start=0, stop=size)
        with one_thread():
            rows = np.linalg.qr(start.reshape(len(matrix), self.n_components))[0].T
            for step in range(self.sweeps * self.n_components):
                at = step % self.n_components
                basis = complement(np.delete(rows, at, axis=0))
                rows[at] = basis @ draw_direction(_key(key, step), basis.T @ matrix @ basis, scale=scale)
        return _on_grid(rows)


def draw_direction(key: SecretKey, matrix: NDArray[np.float64], *, scale: float) -> NDArray[np.float64]:
    """Draw a unit vector with density proportional to ``exp(v^T S v / scale)``; see the module's notes."""
    values, vectors = eigh(matrix, driver="evr")
    excess = (values[-1] - values) / scale
    width = envelope_width(excess)
    spread = 1.0 / np.sqrt(1.0 + 2.0 * excess / width)
    order, count = excess.size, proposals_at_once(excess.size)
    points_key, coins_key = (subkey(key.secret, label=label, info=b"") for label in ("points", "coins"))
    for batch in itertools.count():
        points = normals(points_key, start=batch * count * order, stop=(batch + 1) * count * order)
        points = points.reshape(count, order) * spread
        points /= np.sqrt(np.einsum("ij,ij->i", points, points))[:, None]
        chances = log_acceptance(points**2 @ excess, width=width, order=order)
        waits = np.abs(laplaces(coins_key, start=batch * count, stop=(batch + 1) * count))  # minus the log of uniforms
        accepted = np.flatnonzero(waits > -chances)
        if accepted.size:
            return np.asarray(vectors @ points[accepted[0]])
    raise AssertionError("the loop over proposals is endless")


def log_acceptance(u: NDArray[np.float64], *, width: float, order: int) -> NDArray[np.float64]:
    """Return the log of the acceptance probability of proposals, given their ``u`` of the module's notes."""
    most = 0.5 * order * math.log(order / width) - 0.5 * (order - width)
    return 0.5 * order * np.log1p(2.0 * u / width) - u - most


def envelope_width(excess: NDArray[np.float64]) -> float:
    """Return the b in [1, d] with ``sum 1 / (b + 2 l_i) = 1``, where ``l_i`` is ``excess``, by Newton's method."""
    width = 1.0
    while True:
        inverse = 1.0 / (width + 2.0 * excess)
        following = width + (inverse.sum() - 1.0) / np.vdot(inverse, inverse)
        if following <= width * (1.0 + 1e-12):
            return float(width)
        width = min(following, float(excess.size))


def proposals_at_once(order: int) -> int:
    """Return the number of proposals in a batch."""
    return 32 + 16 * math.isqrt(order)


def complement(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis, as columns, of all vectors orthogonal to the given linearly independent rows."""
    count, order = rows.shape
    return qr(rows.T, mode="full")[0][:, count:] if count else np.eye(order)


def _on_grid(directions: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(directions * STEPS_PER_UNIT).astype(np.int64)


def _key(key: SecretKey, at: int) -> SecretKey:
    return subkey(key.secret, label="direction", info=at.to_bytes(8, "little"))
