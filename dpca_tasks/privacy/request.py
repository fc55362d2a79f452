"""The request that the gate admits: a query, its noise, the scales in grid steps and the digest.

The functions at the end convert sensitivities to noise scales in grid steps, and grid steps to data units.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_cube, unpack_stack, unpack_symmetric
from dpca_tasks.noise.distributions import NoiseDistribution
from dpca_tasks.noise.joint import MAX_NOISE_STEPS, JointGaussian
from dpca_tasks.privacy.sensitivities import Named, Stated
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.poisson_sampled import SampledPasses


class Asked(Stated, Protocol):
    """The interface of a query that the gate uses."""

    def event_of(self, noise: Event, /) -> Event: ...  # noqa: D102
    def public_inputs(self) -> dict[str, NDArray[Any]]: ...  # noqa: D102
    def digest(self) -> bytes: ...  # noqa: D102


class Drawn(Named, Protocol):
    """The interface of a noise distribution or mechanism that the gate uses."""

    @property
    def event(self) -> Event: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Request[Q: Asked, L: Drawn]:
    """An admitted request: a query, its noise distribution, and the numbers that determine the noise, scale first."""

    step: int
    steps: int
    query: Q
    distribution: L
    numbers: tuple[float, ...]
    digest: bytes


def make_request[Q: Asked, L: Drawn](
    query: Q,
    distribution: L,
    *,
    numbers: Callable[[Q, L], tuple[float, ...]],
    content: str,
    step: int,
    steps: int,
    bound_to: bytes = b"",
) -> Request[Q, L]:
    """Return the request for a query and a distribution at a step, of the rows with a content digest."""
    found = numbers(query, distribution)
    digest = hash_request(content, step, query, distribution, found, bound_to=bound_to)
    return Request(step=step, steps=steps, query=query, distribution=distribution, numbers=found, digest=digest)


def hash_request(
    content: str, step: int, query: Asked, distribution: Drawn, numbers: tuple[float, ...], *, bound_to: bytes = b""
) -> bytes:
    """Hash all that determines an answer but the key: rows, step, query, noise, numbers, and the rest.

    Only an answer that is bound to something else has that part.
    """
    hasher = hashlib.sha256()
    for part in (
        bytes.fromhex(content),
        step.to_bytes(8, "little"),
        query.digest(),
        distribution.name.encode(),
        *(float(number).hex().encode() for number in numbers),
        *((b"bound to", bound_to) if bound_to else ()),
    ):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


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
