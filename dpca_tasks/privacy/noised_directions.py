r"""Mechanisms that add noise to computed directions, by smooth sensitivity or a tested eigengap.

A mechanism takes computed eigenpairs and a key and returns the noised answer ``V Q + scale * Z``. Here Q is uniform
among the orthogonal matrices of order k, and Z is keyed noise. Eigengap and scale stay inside the boundary; only
`ProposedGap` releases a noisy bound of the gap, from which its scale follows.

>>> from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
>>> from dpca_tasks.noise.keystream import subkey
>>> solver = Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=1)
>>> mechanism = SmoothNoise(shape="gaussian", shift=0.5, smoothness=0.1, epsilon=1.0, delta=0.1)
>>> pairs = Eigenpairs(directions=np.eye(3)[:, :1], gap=1e6)
>>> mechanism.draw(subkey(bytes(32), label="noise", info=b""), solver, pairs).shape
(3,)

Notes
-----
*Rotation.* Directions of equal span differ by an orthogonal W, and the choice of the solver may depend on any record.
With Q uniform, ``V W Q`` is distributed as ``V Q``, so neighbours can be coupled at the nearest W. Outputs are then
mixtures, with equal weights, of pairs whose means differ by at most ``min_W ||V - V' W||_F``. Without Q, the signs and
rotations of the basis would reveal the solver's choice.

*Floating point.* The scale is a float that depends on the rows, so the sums are not integers. They are rounded to a
public grid of `SIGNIFICANT_BITS` bits (and of step ``2^-24`` near zero). Its cells are at least ``2^20`` times wider
than the rounding errors of the sum. So the probability of a cell is off by a factor of at most about ``1 + 2^-20`` per
coordinate. This limits the information in low bits of V or of the scale. The privacy claim does not include this
factor.
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
_GAP_STEPS = 2**16  # grid steps of the gap per record


class PerturbationMechanism(ABC):
    """A mechanism that maps computed directions to noised ones."""

    __slots__ = ()

    name: ClassVar[str]
    """The name in digests. It never changes, even if the class is renamed."""
    norm: ClassVar[Literal["eigengap"]] = "eigengap"
    """The sensitivity that scales the noise: the movement of the gap bounds how far one record turns the directions."""
    tail_mass: ClassVar[float] = 4 * RESOLUTION
    """A bound, per coordinate of the output, on the probability that a uniform runs out of bits."""

    @property
    @abstractmethod
    def event(self) -> events.Event:
        """The event of a draw, for the ledger."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """The numbers that determine the distribution."""

    @abstractmethod
    def draw(self, key: SecretKey, solver: Eigensolver, pairs: Eigenpairs) -> NDArray[np.float64]:
        """Return the noised answer.

        Parameters
        ----------
        key : SecretKey
            A key used for this draw only.
        solver : Eigensolver
            The solver, with its public parameters.
        pairs : Eigenpairs
            Its result.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothNoise(PerturbationMechanism):
    """Noise of scale ``U / shift``, where the smooth bound U limits how far one record turns the directions.

    Parameters
    ----------
    shape : {"gaussian", "spherical_t", "cauchy"}
        Independent normals; normals divided by one common ``sqrt(chi^2_D / D)``; independent Cauchy variates.
    shift, smoothness : float
        Calibrated by `dpca_tasks.accounting.smooth_sensitivity` for the shape and the size D of the output.
    epsilon, delta : float
        The guarantee of that calibration.

    Notes
    -----
    U is evaluated at the certified gap, which one record moves by at most `computed_movement`. The answer is the
    matrix, row by row: (d, k).
    """

    name: ClassVar[str] = "SmoothNoise"

    shape: Shape
    shift: float
    smoothness: float
    epsilon: float
    delta: float

    @property
    def event(self) -> events.Event:
        """The event, known by its (epsilon, delta) only."""
        return events.approximate(self.epsilon, self.delta)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The shape (as an index), the shift and the smoothness."""
        return (float(("gaussian", "spherical_t", "cauchy").index(self.shape)), self.shift, self.smoothness)

    def scale(self, solver: Eigensolver, pairs: Eigenpairs) -> float:
        """Return the scale of the noise. Secret."""
        bound = smooth_bound(
            pairs.gap,
            smoothness=self.smoothness,
            relation=solver.effective_relation,
            n_components=solver.n_components,
            n_features=solver.n_features,
        )
        return bound / self.shift

    def draw(self, key: SecretKey, solver: Eigensolver, pairs: Eigenpairs) -> NDArray[np.float64]:
        """Return the noised directions."""
        noise = _normals(key, "noise", pairs.directions.size)
        if self.shape == "spherical_t":
            others = _normals(key, "radius", noise.size)
            noise /= math.sqrt(float((others * others).sum()) / noise.size)
        elif self.shape == "cauchy":
            noise /= _normals(key, "radius", noise.size)
        return on_output_grid(_rotated(pairs.directions, key).ravel() + self.scale(solver, pairs) * noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedGap(PerturbationMechanism):
    r"""Release a noisy lower bound of the eigengap, test it, and add Gaussian noise calibrated to it.

    Parameters
    ----------
    gap_epsilon, gap_delta : float
        The share of the guarantee that the noisy bound of the gap uses.
    noise_multiplier : float
        The multiplier of the Gaussian noise on the directions, which uses the rest of (epsilon, delta).
    epsilon, delta : float
        The sums of both parts.

    Notes
    -----
    The answer is the noisy bound h of the gap, then the matrix row by row. ``h = g + Laplace - margin`` is
    gap_epsilon-DP and above g with probability at most gap_delta. If ``h <= threshold``, the matrix is noise alone and
    depends on h only. If ``threshold < h <= g``, one record turns the directions by at most ``L(g) <= L(h)``. Since h
    is public, noise of std ``L(h) noise_multiplier`` hides this rotation. Integrated over h, the whole answer is
    (epsilon, delta)-DP.

    g is the certified bound, rounded down to a grid of step ``2^-16``, with integer Laplace noise: h is an exact
    number of steps, and so is its sensitivity.
    """

    name: ClassVar[str] = "ProposedGap"

    gap_epsilon: float
    gap_delta: float
    noise_multiplier: float
    epsilon: float
    delta: float

    @property
    def event(self) -> events.Event:
        """The event, known by its (epsilon, delta) only: the parts are private together, not separately."""
        return events.approximate(self.epsilon, self.delta)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The parameters of both parts."""
        return (self.gap_epsilon, self.gap_delta, self.noise_multiplier)

    def threshold(self, solver: Eigensolver) -> float:
        """Return the largest bound for which the test fails: above the movement by one record plus the tolerance."""
        return 1.5 * solver.sensitivity(self.norm)

    def margin(self, solver: Eigensolver) -> float:
        """Return the mean distance of the bound below the gap, in records: enough for gap_delta, rounded up."""
        return (math.ceil(self._scale_in_steps(solver) * math.log(0.5 / self.gap_delta)) + 1) / _GAP_STEPS

    def gap_scale(self, solver: Eigensolver) -> float:
        """Return the scale of the bound's noise, in records."""
        return self._scale_in_steps(solver) / _GAP_STEPS

    def noise_std(self, bound: float, solver: Eigensolver) -> float:
        """Return the noise std of the directions for a bound of the gap; public, because the bound is public."""
        turned = local_sensitivity(
            bound,
            relation=solver.effective_relation,
            n_components=solver.n_components,
            n_features=solver.n_features,
            tolerance=TOLERANCE,
        )
        return self.noise_multiplier * float(turned)

    def draw(self, key: SecretKey, solver: Eigensolver, pairs: Eigenpairs) -> NDArray[np.float64]:
        """Return the bound of the gap and the noised directions."""
        laplace = Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=self.gap_epsilon))
        noise = int(laplace.draw(_part(key, "gap"), 1, scale_in_steps=self._scale_in_steps(solver))[0])
        steps = math.floor(pairs.gap * _GAP_STEPS) + noise
        bound = steps / _GAP_STEPS - self.margin(solver)
        matrix = _normals(key, "noise", pairs.directions.size)
        if bound > self.threshold(solver):
            matrix = _rotated(pairs.directions, key).ravel() + self.noise_std(bound, solver) * matrix
        return np.concatenate([[bound], on_output_grid(matrix)])

    def _scale_in_steps(self, solver: Eigensolver) -> float:
        """Return the scale of the gap's noise in grid steps; rounding the gap down adds one step to the sensitivity."""
        sensitivity = math.ceil(computed_movement(solver.effective_relation) * _GAP_STEPS) + 1
        scale = math.nextafter(laplace_noise_multiplier(epsilon=self.gap_epsilon) * sensitivity, math.inf)
        check_scale(scale)  # here, so that plans are checked too: they use the margin
        return scale


def on_output_grid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to `SIGNIFICANT_BITS` significant bits, and near zero to multiples of ``2^-24``."""
    _, exponents = np.frexp(values)
    exponents = np.maximum(exponents - SIGNIFICANT_BITS, _FINEST_EXPONENT)
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -exponents)), exponents))


def random_rotation(key: SecretKey, order: int) -> NDArray[np.float64]:
    """Return a uniformly distributed matrix of O(order); for order 1 a random sign."""
    q, r = np.linalg.qr(_normals(key, "rotation", order * order).reshape(order, order))
    return np.asarray(q * np.where(np.diag(r) < 0, -1.0, 1.0))


def _rotated(directions: NDArray[np.float64], key: SecretKey) -> NDArray[np.float64]:
    with one_thread():
        return np.asarray(directions @ random_rotation(key, directions.shape[1]))


def _normals(key: SecretKey, part: str, count: int) -> NDArray[np.float64]:
    return normals(_part(key, part), start=0, stop=count)


def _part(key: SecretKey, part: str) -> SecretKey:
    return subkey(key.secret, label=part, info=b"")
