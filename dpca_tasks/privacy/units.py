"""From sensitivities to scales of noise in grid steps, and from grid steps to data units."""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.distributions import NoiseDistribution
from dpca_tasks.noise.grid import MAX_NOISE_STEPS
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.sampled_passes import SampledPasses


def scale_in_steps(query: RowSum | SampledPasses, distribution: NoiseDistribution) -> tuple[float]:
    """Return the noise scale in grid steps, rounded up: the number of a request for a noisy sum."""
    scale = math.nextafter(distribution.noise_multiplier * query.sensitivity(distribution.norm), math.inf)
    scale *= query.steps_per_unit
    if not 0 < scale <= MAX_NOISE_STEPS:
        raise InvalidInput(f"a noise scale of {scale:.3g} grid steps is outside 0 .. 2^28; take a coarser grid.")
    return (scale,)


def in_data_units(answer: NDArray[np.int64], query: RowSum) -> NDArray[np.float64]:
    """Return a packed answer in grid steps as numbers in data units: the full matrix for a symmetric layout."""
    numbers = answer.astype(np.float64)
    numbers *= query.unit / query.steps_per_unit  # steps are a power of two: nothing is rounded twice
    return unpack_symmetric(numbers, query.layout.order) if query.layout.kind == "symmetric" else numbers
