"""Conversions: from sensitivities to noise scales in grid steps, and from grid steps to data units."""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_cube, unpack_stack, unpack_symmetric
from dpca_tasks.noise.distributions import NoiseDistribution
from dpca_tasks.noise.grid import MAX_NOISE_STEPS
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.sampled_passes import SampledPasses


def scale_in_steps(query: RowSum | SampledPasses, distribution: NoiseDistribution) -> tuple[float]:
    """Return the noise scale in grid steps, rounded up: the only number of a request for a noisy sum."""
    scale = math.nextafter(distribution.noise_multiplier * query.sensitivity(distribution.norm), math.inf)
    scale *= query.steps_per_unit
    if not 0 < scale <= MAX_NOISE_STEPS:
        raise InvalidInput(f"a noise scale of {scale:.3g} grid steps is outside 0 .. 2^28; take a coarser grid.")
    return (scale,)


def part_scales_in_steps(query: JointSum, distribution: JointGaussian) -> tuple[float, ...]:
    """Return the noise scale of each part in its own grid steps, rounded up: the numbers of a request for parts."""
    scales = tuple(
        math.nextafter(distribution.noise_multiplier * part.scale, math.inf) * part.steps_per_unit
        for part in query.parts.values()
    )
    for name, scale in zip(query.parts, scales, strict=True):
        if not 0 < scale <= MAX_NOISE_STEPS:
            raise InvalidInput(
                f"a noise scale of {scale:.3g} grid steps in {name} is outside 0 .. 2^28; change its grid."
            )
    return scales


def part_in_data_units(answer: NDArray[np.int64], part: Part) -> NDArray[np.float64]:
    """Return a part in grid steps as numbers in data units: full matrices or tensors, but for vectors."""
    return _unpacked(answer, part.unit / part.steps_per_unit, part.layout)


def in_data_units(answer: NDArray[np.int64], query: RowSum) -> NDArray[np.float64]:
    """Convert a packed answer from grid steps to data units; return the full matrix or tensor, but for vectors."""
    return _unpacked(answer, query.unit / query.steps_per_unit, query.layout)


def _unpacked(answer: NDArray[np.int64], step: float, layout: Layout) -> NDArray[np.float64]:
    numbers = answer.astype(np.float64)
    numbers *= step  # steps are a power of two: nothing is rounded twice
    if layout.kind == "stack":
        return unpack_stack(numbers, layout.order)
    if layout.kind == "cube":
        return unpack_cube(numbers, layout.order)
    return unpack_symmetric(numbers, layout.order) if layout.kind == "symmetric" else numbers
