r"""Mechanisms that add noise to computed leading directions, scaled by their eigengap.

`SmoothNoise` uses smooth sensitivity, and `ProposedGap` a privately tested bound on the eigengap. A mechanism gets the
computed directions V and a key, and returns ``V Q + scale * Z``. Here Q is a random orthogonal matrix of order k, and Z
is noise drawn with the key. The exact eigengap and the scale of `SmoothNoise` are never released. `ProposedGap`
releases a noisy bound on the eigengap, from which the scale of its noise follows.

>>> from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
>>> from dpca_tasks.noise.keystream import subkey
>>> solver = Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=1)
>>> mechanism = SmoothNoise(shape="gaussian", shift=0.5, smoothness=0.1, epsilon=1.0, delta=0.1)
>>> pairs = Eigenpairs(directions=np.eye(3)[:, :1], gap=1e6)
>>> mechanism.draw(subkey(bytes(32), label="noise", info=b""), solver, pairs).shape
(3,)

Notes
-----
*Rotation.* Two bases V and ``V W`` of the same subspace differ by an orthogonal matrix W. Which basis the eigensolver
returns may depend on any record. Since Q is uniformly distributed, ``V W Q`` has the same distribution as ``V Q``. So
for the bases V and V' of neighbouring datasets, one can compare V with the nearest basis ``V' W``. The outputs are
mixtures with equal weights, and corresponding parts have means that differ by at most ``min_W ||V - V' W||_F``. Without
Q, the signs and the rotation of the basis would reveal the choice of the eigensolver.

*Floating point.* The scale is a float that depends on the rows, so the entries of ``V Q + scale * Z`` are not integers.
They are rounded to a public grid of `SIGNIFICANT_BITS` significant bits (near zero, of step ``2^-24``). The cells of
this grid are at least ``2^20`` times wider than the rounding errors of the entries. So the probability of a cell
differs from its ideal value by a factor of at most about ``1 + 2^-20`` per coordinate. The privacy claim does not
include this factor.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import laplace_noise_multiplier
from dpca_tasks.accounting.smooth_sensitivity import (
    TOLERANCE,
    TailedNoise,
    computed_movement,
    local_sensitivity,
    smooth_bound,
)
from dpca_tasks.noise.distributions import Laplace, check_scale
from dpca_tasks.noise.keystream import RESOLUTION, SecretKey, normals, subkey
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.threads import one_thread

Shape = Literal["gaussian"] | TailedNoise

SIGNIFICANT_BITS = 22
_FINEST_EXPONENT = -24
_GAP_STEPS = 2**16  # the number of grid steps of a released eigengap bound, per record at the clip norm


class PerturbationMechanism(ABC):
    """The base class of mechanisms that add noise to computed leading directions."""

    __slots__ = ()

    name: ClassVar[str]
    """The name in digests. It never changes, even if the class is renamed."""
    norm: ClassVar[Literal["eigengap"]] = "eigengap"
    """The kind of sensitivity that scales the noise: how much one record changes the eigengap. Together with the gap it
    bounds how far one record rotates the directions."""
    tail_mass: ClassVar[float] = 4 * RESOLUTION
    """A bound, per coordinate of the output, on the probability that a uniform variate has too few random bits."""

    @property
    @abstractmethod
    def event(self) -> events.Event:
        """The privacy event of one noised answer, for the ledger."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """The numbers that determine the noise distribution."""

    @abstractmethod
    def draw(self, key: SecretKey, solver: Eigensolver, pairs: Eigenpairs) -> NDArray[np.float64]:
        """Return the noised answer for computed eigenpairs.

        Parameters
        ----------
        key : SecretKey
            The key of the noise, which is used for this answer only.
        solver : Eigensolver
            The eigensolver, with its public parameters.
        pairs : Eigenpairs
            The result of the eigensolver.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothNoise(PerturbationMechanism):
    """Noise of scale ``U / shift``, where U is a smooth bound on how far one record rotates the directions.

    Parameters
    ----------
    shape : {"gaussian", "spherical_t", "cauchy"}
        ``gaussian``: independent normals. ``spherical_t``: normals divided by one common ``sqrt(chi^2_D / D)``.
        ``cauchy``: independent Cauchy variates.
    shift, smoothness : float
        The parameters of the noise's scale. They are calibrated by `dpca_tasks.accounting.smooth_sensitivity` for the
        shape and for the number D of entries in the output.
    epsilon, delta : float
        The guarantee for which both are calibrated.

    Notes
    -----
    U is evaluated at the certified lower bound on the eigengap, which one record changes by at most
    `dpca_tasks.accounting.smooth_sensitivity.computed_movement`. The answer is the (d, k) matrix of noised directions
    as a vector, row by row.
    """

    name: ClassVar[str] = "SmoothNoise"

    shape: Shape
    shift: float
    smoothness: float
    epsilon: float
    delta: float

    @property
    def event(self) -> events.Event:
        """The privacy event of one noised answer, of which only epsilon and delta are known."""
        return events.approximate(self.epsilon, self.delta)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that determine the noise: the shape (as an index), the shift and the smoothness."""
        return (float(("gaussian", "spherical_t", "cauchy").index(self.shape)), self.shift, self.smoothness)

    def scale(self, solver: Eigensolver, pairs: Eigenpairs) -> float:
        """Return the scale of the noise, which depends on the eigengap and is secret."""
        bound = smooth_bound(
            pairs.gap,
            smoothness=self.smoothness,
            relation=solver.effective_relation,
            n_components=solver.n_components,
            n_features=solver.n_features,
        )
        return bound / self.shift

    def draw(self, key: SecretKey, solver: Eigensolver, pairs: Eigenpairs) -> NDArray[np.float64]:
        """Return the noised directions for computed eigenpairs, as a vector on the public grid."""
        noise = _normals(key, "noise", pairs.directions.size)
        if self.shape == "spherical_t":
            others = _normals(key, "radius", noise.size)
            noise /= math.sqrt(float((others * others).sum()) / noise.size)
        elif self.shape == "cauchy":
            noise /= _normals(key, "radius", noise.size)
        return on_output_grid(_rotated(pairs.directions, key).ravel() + self.scale(solver, pairs) * noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedGap(PerturbationMechanism):
    r"""A mechanism that releases a noisy lower bound on the eigengap, and directions with noise calibrated to it.

    Parameters
    ----------
    gap_epsilon, gap_delta : float
        The part of the guarantee for the noisy bound on the eigengap.
    noise_multiplier : float
        The noise multiplier of the Gaussian noise on the directions, for the rest of epsilon and delta.
    epsilon, delta : float
        The whole guarantee: the sums of both parts.

    Notes
    -----
    Let g be the certified lower bound on the eigengap. The answer is a noisy bound h, followed by the matrix of
    directions row by row. The noisy bound ``h = g + Laplace - margin`` is gap_epsilon-DP, and above g with probability
    at most gap_delta. If ``h <= threshold``, the test fails: the matrix is noise alone, which depends on no directions.
    If ``threshold < h <= g``, one record rotates the directions by at most ``L(g) <= L(h)``. Noise of std
    ``L(h) noise_multiplier`` hides this rotation, and its std may depend on h, which is public. By integration over h,
    the whole answer is (epsilon, delta)-DP.

    g is rounded down to a grid of step ``2^-16``, and the Laplace noise is an integer number of steps. So h and its
    sensitivity are exact numbers of steps.
    """

    name: ClassVar[str] = "ProposedGap"

    gap_epsilon: float
    gap_delta: float
    noise_multiplier: float
    epsilon: float
    delta: float

    @property
    def event(self) -> events.Event:
        """The privacy event of the whole answer, of which only epsilon and delta are known.

        The bound and the directions are private together, not as two separate answers.
        """
        return events.approximate(self.epsilon, self.delta)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that determine the noise of the eigengap bound and of the directions."""
        return (self.gap_epsilon, self.gap_delta, self.noise_multiplier)

    def threshold(self, solver: Eigensolver) -> float:
        """Return the largest bound on the eigengap for which the test fails.

        It exceeds the change of the eigengap by one record plus the tolerance of the eigensolver.
        """
        return 1.5 * solver.sensitivity(self.norm)

    def margin(self, solver: Eigensolver) -> float:
        """Return the margin by which the noisy bound is below the eigengap in the mean, in records at the clip norm.

        With this margin, the bound exceeds the eigengap with probability at most ``gap_delta``. It is rounded up.
        """
        return (math.ceil(self._scale_in_steps(solver) * math.log(0.5 / self.gap_delta)) + 1) / _GAP_STEPS

    def gap_scale(self, solver: Eigensolver) -> float:
        """Return the scale of the Laplace noise in the eigengap bound, in records at the clip norm."""
        return self._scale_in_steps(solver) / _GAP_STEPS

    def noise_std(self, bound: float, solver: Eigensolver) -> float:
        """Return the std of the noise on the directions, for a released bound on the eigengap.

        The std is public, because it follows from the released bound.
        """
        turned = local_sensitivity(
            bound,
            relation=solver.effective_relation,
            n_components=solver.n_components,
            n_features=solver.n_features,
            tolerance=TOLERANCE,
        )
        return self.noise_multiplier * float(turned)

    def draw(self, key: SecretKey, solver: Eigensolver, pairs: Eigenpairs) -> NDArray[np.float64]:
        """Return the noisy bound on the eigengap and the noised directions, as one vector."""
        laplace = Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=self.gap_epsilon))
        noise = int(laplace.draw(_part(key, "gap"), 1, scale_in_steps=self._scale_in_steps(solver))[0])
        steps = math.floor(pairs.gap * _GAP_STEPS) + noise
        bound = steps / _GAP_STEPS - self.margin(solver)
        matrix = _normals(key, "noise", pairs.directions.size)
        if bound > self.threshold(solver):
            matrix = _rotated(pairs.directions, key).ravel() + self.noise_std(bound, solver) * matrix
        return np.concatenate([[bound], on_output_grid(matrix)])

    def _scale_in_steps(self, solver: Eigensolver) -> float:
        """Return the scale of the Laplace noise in the eigengap bound, in grid steps.

        The eigengap is rounded down to the grid, which adds one step to its sensitivity.
        """
        sensitivity = math.ceil(computed_movement(solver.effective_relation) * _GAP_STEPS) + 1
        scale = math.nextafter(laplace_noise_multiplier(epsilon=self.gap_epsilon) * sensitivity, math.inf)
        check_scale(scale)  # plans call this function through `margin`, so an invalid scale fails before any charge
        return scale


def on_output_grid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round each value to `SIGNIFICANT_BITS` significant bits, and values near zero to multiples of ``2^-24``."""
    _, exponents = np.frexp(values)
    exponents = np.maximum(exponents - SIGNIFICANT_BITS, _FINEST_EXPONENT)
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -exponents)), exponents))


def random_rotation(key: SecretKey, order: int) -> NDArray[np.float64]:
    """Return a uniformly distributed random orthogonal matrix of the given order; for order 1 it is a random sign."""
    q, r = np.linalg.qr(_normals(key, "rotation", order * order).reshape(order, order))
    return np.asarray(q * np.where(np.diag(r) < 0, -1.0, 1.0))


def _rotated(directions: NDArray[np.float64], key: SecretKey) -> NDArray[np.float64]:
    with one_thread():
        return np.asarray(directions @ random_rotation(key, directions.shape[1]))


def _normals(key: SecretKey, part: str, count: int) -> NDArray[np.float64]:
    return normals(_part(key, part), start=0, stop=count)


def _part(key: SecretKey, part: str) -> SecretKey:
    return subkey(key.secret, label=part, info=b"")
