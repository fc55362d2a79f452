"""Attacks on mechanisms: neighboring datasets, and an attacker who distinguishes them by a mechanism's output.

*Neighboring datasets.* The pairs of datasets are chosen so that a privacy violation is most visible. If the code is
correct, the record by which they differ attains the sensitivity. This record is stored so that an error in any
processing step becomes visible. Its norm is far above the clip norm, it has two rows, and each row stores each column
four times and out of order. If the code omits clipping, clips each row instead of the record, or clips before it merges
duplicate entries, the record contributes more than the clip norm.

>>> [pair.name for pair in worst_neighbours("replace_one", n_features=2, clip_norm=1.0)]
['along axes', 'between axes']

*Families.* `AuditSubject` collects the functions with which an audit attacks one family of mechanisms.

*The attacker.* The attacker is given two neighboring datasets (called left and right) and all answers of a run, and
must find out which dataset was used. For this purpose, the attacker computes a few statistics of the run. Each
statistic tends to be larger if the left dataset was used:

- *likelihood*: the log likelihood ratio of all answers of the curator. The attacker computes the exact answer to each
  request for both datasets, and compares the two residuals. This is optimal for Laplace noise and for isotropic
  Gaussian noise. For directions that were drawn by their score, the two scores are compared, which is optimal for a
  single direction. For directions with added noise, the two densities are compared. If one run computes several steps,
  the answers of the steps that the released states determine are reconstructed first.
- *reuse*: a test for noise that was used twice. If two answers of a release contain the same noise, their residuals are
  equal for the dataset that was used, but not for the other dataset.
- *published*: a statistic of the published result alone, such as components and eigenvalues. It contains the part of
  the likelihood ratio that is left in the result.

The density of directions with added noise is computed from the eigenpairs of a dataset. The directions were rotated at
random before their release. The attacker uses the best fitting rotation instead of the unknown one, which loses nothing
if the noise is small.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Terms
from dpca_tasks.noise.bingham import DirectionMechanism
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, NoiseDistribution, Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator, TiledAnswer
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.gate import Reservation
from dpca_tasks.privacy.noised_directions import PerturbationMechanism, ProposedGap, SmoothNoise
from dpca_tasks.privacy.request import part_in_data_units
from dpca_tasks.privacy.tiled_noise import NoisedOperator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum, TiledSum
from dpca_tasks.queries.operator_product import DIRECTION_BITS
from dpca_tasks.queries.poisson_sampled import PoissonSampled, SampledPasses
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks, BlockSource
from dpca_tasks.sums.exact_sum import exact_sum

OVERSIZE = 3.0
PARTS = 4
BYSTANDERS = 400

type Direction = tuple[float, float]
_BETWEEN = ("between axes", (1.0, 1.0), (1.0, -1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """A pair of neighboring datasets, called left and right, of a neighboring relation."""

    name: str
    left: BlockSource
    right: BlockSource


def worst_neighbours(relation: Relation, *, n_features: int, clip_norm: float) -> tuple[Neighbours, ...]:
    """Return two pairs of neighbors: their differing record lies along an axis, or halfway between two axes.

    If a record is replaced, both records are orthogonal. Along axes, they change only the diagonal of the second
    moment; between axes, they change only the off-diagonal entries. So too little noise on the diagonal or off the
    diagonal is detected separately.

    Raises
    ------
    InvalidInput
        If there are fewer than two features.
    """
    if n_features < 2:
        raise InvalidInput(f"n_features={n_features} must be at least 2 for two directions; use at least 2 features.")
    pairs = []
    for name, mine, other in (("along axes", (1.0, 0.0), (0.0, 1.0)), _BETWEEN):
        bystander = _record((0.0, 1.0), n_features, clip_norm)
        here, there = (
            _source([bystander, *records]) for records in _differing(relation, mine, other, n_features, clip_norm)
        )
        pairs.append(Neighbours(name=name, left=here, right=there))
    return tuple(pairs)


def gapped_neighbours(relation: Relation, *, n_features: int, clip_norm: float) -> tuple[Neighbours, ...]:
    """Return a pair of neighbors for mechanisms whose noise depends on the eigengap.

    The differing record rotates the leading direction as much as possible. `BYSTANDERS` other records lie along the
    first axis, and the differing record lies halfway between the first and the second axis. It rotates the leading
    direction by the whole local sensitivity, up to an error of order ``BYSTANDERS^-2``.
    """
    bystander = sparse.csr_array(([clip_norm], [0], [0, 1]), shape=(1, n_features))
    _, mine, other = _BETWEEN
    here, there = (
        _source([bystander] * BYSTANDERS + records, block_records=BYSTANDERS + 1)
        for records in _differing(relation, mine, other, n_features, clip_norm)
    )
    return (Neighbours(name="turned", left=here, right=there),)


def _differing(
    relation: Relation, mine: Direction, other: Direction, n_features: int, clip_norm: float
) -> tuple[list[sparse.csr_array], list[sparse.csr_array]]:
    """Return the records by which two neighbors differ: one in the left dataset, its counterpart in the right.

    By the relation, the counterpart is no record, an empty record, or another record.
    """
    here = [_record(mine, n_features, clip_norm)]
    match relation:
        case "add_remove":
            return here, []
        case "zero_out":
            return here, [_record((0.0, 0.0), n_features, clip_norm)]
        case "replace_one":
            return here, [_record(other, n_features, clip_norm)]


def _record(direction: Direction, n_features: int, clip_norm: float) -> sparse.csr_array:
    """Return a record of two equal rows; each entry of a row is stored as several equal parts that have to be added."""
    part = np.array(direction) * (OVERSIZE * clip_norm / PARTS)
    stored = 2 * PARTS
    rows = (np.tile(part, stored), np.tile([0, 1], stored), [0, stored, 2 * stored])
    return sparse.csr_array(rows, shape=(2, n_features))


def _source(records: list[sparse.csr_array], *, block_records: int = 1) -> ArrayBlocks:
    values, columns, lengths = (
        np.concatenate(parts)
        for parts in zip(*((one.data, one.indices, np.diff(one.indptr)) for one in records), strict=True)
    )
    row_ptr = np.concatenate([[0], np.cumsum(lengths)])
    rows = sparse.csr_array((values, columns, row_ptr), shape=(lengths.size, records[0].shape[1]))
    return ArrayBlocks(rows, record_rows=[one.shape[0] for one in records], block_records=block_records)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The functions with which an audit attacks one family of mechanisms.

    Parameters
    ----------
    names : tuple of str
        The names of the mechanisms to audit.
    build : callable
        Takes the name of a mechanism, and builds the mechanism with settings for a fast run.
    problem : callable
        Takes a neighboring relation, and returns the public facts of the problem on which mechanisms are audited.
    neighbours : callable
        Takes the name of a mechanism and a problem, and returns the worst known pairs of neighboring datasets.
    published : callable
        Takes a pair of neighbors and a problem, and returns a function. This function maps a published result to a
        number that tends to be larger if the left dataset was used.
    """

    names: tuple[str, ...]
    build: Callable[[str], Mechanism[Any]]
    problem: Callable[[Relation], Terms]
    neighbours: Callable[[str, Any], tuple[Neighbours, ...]]
    published: Callable[[Neighbours, Any], Callable[[Any], float]]


def log_density(
    mechanism: PerturbationMechanism, solver: Eigensolver, pairs: Eigenpairs, answer: NDArray[np.float64]
) -> float:
    """Return the log density of an answer (directions with added noise), up to a constant, given exact eigenpairs."""
    if isinstance(mechanism, ProposedGap):
        bound, noised = float(answer[0]), answer[1:]
        likely = -abs(bound - (pairs.gap - mechanism.margin(solver))) / mechanism.gap_scale(solver)
        if bound <= mechanism.threshold(solver):
            return likely
        return likely + _noise_density("gaussian", _residual(noised, pairs), mechanism.noise_std(bound, solver))
    assert isinstance(mechanism, SmoothNoise), "all mechanisms"
    return _noise_density(mechanism.shape, _residual(answer, pairs), mechanism.scale(solver, pairs))


def _residual(noised: NDArray[np.float64], pairs: Eigenpairs) -> NDArray[np.float64]:
    matrix = noised.reshape(pairs.directions.shape)
    left, _, right = np.linalg.svd(pairs.directions.T @ matrix)
    return matrix - pairs.directions @ (left @ right)


def _noise_density(shape: str, residual: NDArray[np.float64], scale: float) -> float:
    size, squares = residual.size, np.square(residual / scale)
    match shape:
        case "gaussian":
            density = -float(squares.sum()) / 2.0
        case "spherical_t":
            density = -size * math.log1p(float(squares.sum()) / size)
        case _:
            density = -float(np.log1p(squares).sum())
    return density - size * math.log(scale)


type Queried = RowSum | Eigensolver
type Drawn = NoiseDistribution | JointGaussian | DirectionMechanism | PerturbationMechanism
type Answer = tuple[Queried, Drawn, Any]

_CLOSEST = 1e-12


class RecordingCurator(Curator):
    """A curator that answers requests like the curator in production, and also records every answer."""

    def __init__(self, source: BlockSource, reservation: Reservation) -> None:
        super().__init__(source, reservation)
        self.recorded: list[Answer] = []

    def release(self, query: RowSum, distribution: NoiseDistribution) -> NDArray[np.float64]:
        """Release a noisy sum, and record it."""
        noisy = super().release(query, distribution)
        self.recorded.append((query, distribution, noisy))
        return noisy

    def release_parts(self, query: JointSum, distribution: JointGaussian) -> dict[str, NDArray[np.float64]]:
        """Release the noisy parts of a joint sum, and record them."""
        parts = super().release_parts(query, distribution)
        self.recorded.append((query, distribution, parts))
        return parts

    def release_tiles(self, query: TiledSum, distribution: JointGaussian) -> TiledAnswer:
        """Release the noisy parts of a joint sum tile by tile, and record all parts together."""
        answer = super().release_tiles(query, distribution)
        self.recorded.append((query, distribution, answer.whole()))
        return answer

    def release_operator(self, query: SecondMoment | CentredMoment, distribution: Symmetric) -> NoisedOperator:
        """Release a noisy matrix as a linear operator, and record the whole matrix."""
        operator = super().release_operator(query, distribution)
        identity = np.eye(operator.order, dtype=np.int64) << DIRECTION_BITS
        self.recorded.append((query, distribution, operator.product(identity)))
        return operator

    def sequential(self, passes: SampledPasses, distribution: Gaussian) -> NDArray[np.float64]:
        """Run sampled steps with noise, and record every noisy product that the released states determine."""
        states = super().sequential(passes, distribution)
        self.recorded += [(query, distribution, product) for query, product in rebuilt_products(passes, states)]
        return states

    def sample(self, score: RowSum, mechanism: DirectionMechanism) -> NDArray[np.float64]:
        """Draw directions by their score, and record them."""
        directions = super().sample(score, mechanism)
        self.recorded.append((score, mechanism, directions))
        return directions

    def perturb(self, solver: Eigensolver, mechanism: PerturbationMechanism) -> NDArray[np.float64]:
        """Release directions with added noise, and record them."""
        noised = super().perturb(solver, mechanism)
        self.recorded.append((solver, mechanism, noised))
        return noised


def rebuilt_products(passes: SampledPasses, states: NDArray[np.float64]) -> list[tuple[RowSum, NDArray[np.float64]]]:
    """Reconstruct the noisy products G of steps that one run computed, if the states before and after are released.

    G is in data units. A step maps the directions V to V' by ``V' R = V + f G`` with an upper triangular R and a known
    factor f. So ``V^T V' R = I + f V^T G``, from which R and then G follow. ``V^T G`` is released as a mean over an
    interval of steps. If the interval has one step, this mean is the value of the step.
    """
    sample = passes.query
    query = sample.query if isinstance(sample, PoissonSampled) else sample
    found = []
    for (before, after), (first, last) in zip(
        itertools.pairwise(states), itertools.pairwise(passes.snapshots), strict=True
    ):
        start, end, seen = before[: query.n_features], after[: query.n_features], after[query.n_features :]
        if last - first == 1 and seen.any():
            triangle = np.linalg.solve(start.T @ end, np.eye(len(seen)) + passes.factor * seen)
            product = (end @ triangle - start) / passes.factor
            requested = dataclasses.replace(query, directions=on_direction_grid(start))  # type: ignore[call-arg]
            sampled_so = (
                dataclasses.replace(sample, query=requested) if isinstance(sample, PoissonSampled) else requested
            )
            found.append((sampled_so, product.ravel() * query.unit))
    return found


class Attacker:
    """An attacker who has two neighboring datasets, and infers from a mechanism's output which one was used.

    Parameters
    ----------
    neighbours : Neighbours
        The two datasets, left and right.
    published : callable
        Maps a published result to a number that tends to be larger if the left dataset was used.
    """

    def __init__(self, neighbours: Neighbours, published: Callable[[Any], float]) -> None:
        self._sources = (neighbours.left, neighbours.right)
        self._published = published
        self._known: dict[bytes, tuple[NDArray[Any], ...]] = {}
        self._found: dict[bytes, tuple[Eigenpairs, ...]] = {}

    def statistics(self, recorded: list[Answer], published: Any) -> dict[str, float]:
        """Compute the statistics of a run by name; each tends to be larger if the left dataset was used."""
        likelihood = 0.0
        residuals: list[tuple[NDArray[np.float64], ...]] = []
        for query, drawn, noisy in recorded:
            match query, drawn:
                case Eigensolver(), PerturbationMechanism():
                    here, there = (log_density(drawn, query, pairs, noisy) for pairs in self._pairs(query))
                    likelihood += here - there
                case RowSum(), DirectionMechanism():
                    here, there = (float(np.vdot(noisy @ exact, noisy)) for exact in self._exact(query))
                    likelihood += (here - there) / _scale(query, drawn)
                case JointSum(), JointGaussian():
                    here, there = (_joint_loss(query, drawn, noisy, exact) for exact in self._totals(query))
                    likelihood += there - here
                case RowSum(), NoiseDistribution():
                    left, right = ((noisy - exact) / _scale(query, drawn) for exact in self._exact(query.plain))
                    likelihood += _minus_log_density(drawn, right) - _minus_log_density(drawn, left)
                    residuals.append((left, right))
        found = {"likelihood": likelihood, "published": self._published(published)}
        if len(residuals) > 1:
            found["reuse"] = _closest(residuals, 1) - _closest(residuals, 0)
        return found

    def _exact(self, query: RowSum) -> tuple[NDArray[np.float64], ...]:
        """Return the exact answers to a query on both datasets; cached if the query is the same in every run."""
        if query.public_inputs():
            return tuple(exact_answer(source, query) for source in self._sources)
        name = query.digest()
        if name not in self._known:
            self._known[name] = tuple(exact_answer(source, query) for source in self._sources)
        return self._known[name]

    def _totals(self, query: JointSum) -> tuple[NDArray[Any], ...]:
        """Return the exact answers to a joint sum on both datasets, all parts packed into one vector; cached."""
        name = query.digest()
        if name not in self._known:
            self._known[name] = tuple(exact_sum(source, query) for source in self._sources)
        return self._known[name]

    def _pairs(self, solver: Eigensolver) -> tuple[Eigenpairs, ...]:
        """Return the exact eigenpairs of both datasets, cached.

        The signs and the rotation of the eigenvectors do not matter, because the attack fits a rotation.
        """
        name = solver.digest()
        if name in self._found:
            return self._found[name]
        key = subkey(bytes(32), label="start", info=name)
        found = tuple(solver.solve(source, key) for source in self._sources)
        if not solver.public_inputs():
            self._found[name] = found
        return found


def _scale(query: RowSum, distribution: NoiseDistribution | DirectionMechanism) -> float:
    return distribution.noise_multiplier * query.sensitivity(distribution.norm) * query.unit


def exact_answer(source: BlockSource, query: RowSum) -> NDArray[np.float64]:
    """Return the exact answer to a query, without noise, in data units."""
    total = exact_sum(source, query)
    exact = query.matrix(total) if query.layout.kind == "symmetric" else total / query.steps_per_unit
    return exact * query.unit


def _joint_loss(query: JointSum, noise: JointGaussian, noisy: Mapping[str, Any], total: NDArray[np.int64]) -> float:
    """Return minus the log density of the noise that explains a noisy joint sum, given the exact total.

    The result is correct up to a constant.
    """
    loss = 0.0
    for name, packed in query.split(total).items():
        part = query.parts[name]
        residual = noisy[name] - part_in_data_units(packed, part)
        loss += float(np.vdot(residual, residual)) / (noise.noise_multiplier * part.scale * part.unit) ** 2
    return loss / 2.0


def _minus_log_density(distribution: NoiseDistribution, residual: NDArray[np.float64]) -> float:
    """Return minus the log density of a residual, in units of the noise scale, up to a constant.

    The Gaussian density is used for noise distributions without a closed form.
    """
    if distribution.norm == "l1":
        packed = residual[np.triu_indices(len(residual))] if distribution.layout == "symmetric" else residual
        return float(np.abs(packed).sum())
    return float(np.vdot(residual, residual)) / 2.0


def _closest(residuals: list[tuple[NDArray[np.float64], ...]], side: int) -> float:
    """Return the log of the least distance between two residuals of equal shape, for dataset number ``side``."""
    gaps = [
        float(np.abs(one[side] - two[side]).max())
        for one, two in itertools.combinations(residuals, 2)
        if one[side].shape == two[side].shape
    ]
    return float(np.log(max(min(gaps, default=1.0), _CLOSEST)))
