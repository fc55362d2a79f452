"""The question of a step: a digest of all that determines its answer, and the forms in which versions asked it.

>>> from dpca_tasks.noise.distributions import Symmetric
>>> [law.name for _, law in forms_of(None, Symmetric(noise_multiplier=4.0))]
['Symmetric 2', 'Symmetric']
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.bingham import DirectionLaw
from dpca_tasks.noise.distributions import NoiseLaw
from dpca_tasks.noise.grid import MAX_NOISE_STEPS
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationLaw
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.sampled_passes import SampledPasses

type Asked = RowSum | SampledPasses | Eigensolver
type Law = NoiseLaw | DirectionLaw | PerturbationLaw


def digest_of(query: Asked, law: Law | None, *numbers: float, content: str, step: int) -> bytes:
    """Return the digest of all that determines an answer: rows, step, query, and the law with its version and scale."""
    hasher = hashlib.sha256()
    for part in (
        bytes.fromhex(content),
        step.to_bytes(8, "little"),
        query.digest(),
        (law.name if isinstance(law, NoiseLaw) else type(law).__name__).encode(),
        *(float(number).hex().encode() for number in numbers),
    ):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def forms_of(query: Any, law: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over a query and a law as they are asked now, and as earlier versions asked them."""
    queries = [query, *query.former()] if isinstance(query, RowSum) else [query]
    laws = [law] if law is None or law.earlier == law else [law, law.earlier]
    return ((form, drawn) for form in queries for drawn in laws)


def steps_std(query: RowSum | SampledPasses, law: NoiseLaw) -> float:
    """Return the noise scale in grid steps, rounded up."""
    summed = query.query if isinstance(query, SampledPasses) else query
    scale = math.nextafter(law.noise_multiplier * summed.sensitivity(law.norm), math.inf) * summed.steps_per_unit
    if not 0 < scale <= MAX_NOISE_STEPS:
        raise InvalidInput(f"a noise scale of {scale:.3g} grid steps is outside 0 .. 2^28; take a coarser grid.")
    return scale
