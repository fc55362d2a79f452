"""A run of thousands of sampled gradient steps as one request, of which only the states at some steps leave."""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.poisson_sampled import PoissonSampled
from dpca_tasks.queries.rounded_product import MomentProduct


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledPasses:
    """Repeat ``V <- orth(V + factor * (noisy sampled product with V))`` from public directions.

    Parameters
    ----------
    query : PoissonSampled or MomentProduct
        A sampled `MomentProduct`; its directions are the start, its sensitivity that of every step.
    steps : int
        The number of steps T.
    factor : float
        The step size for a product in units of the clip norm.
    snapshots : tuple of int
        The numbers of steps after which V is returned, increasing; 0 is the start, the last is usually T.
    """

    query: RowSum
    steps: int
    factor: float
    snapshots: tuple[int, ...]

    name: ClassVar[str] = "sampled_passes"
    version: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities: that of the query, which every step sums."""
        return self.query.kind

    @property
    def relation(self) -> Relation:
        """The relation of the query."""
        return self.query.relation

    @property
    def product(self) -> MomentProduct:
        """The product over all records; raises InvalidInput if a step sums anything else."""
        query = self.query.plain
        if not isinstance(query, MomentProduct):
            raise InvalidInput(f"steps of {query.name} have no fused loop; pass a sampled MomentProduct.")
        return query

    @property
    def rate(self) -> float:
        """The sampling probability of a record."""
        return self.query.rate if isinstance(self.query, PoissonSampled) else 1.0

    @property
    def steps_per_unit(self) -> int:
        """The grid steps in one unit of the query."""
        return self.query.steps_per_unit

    def sensitivity(self, norm: Norm) -> float:
        """Bound the change of the sum of one step by one record."""
        return self.query.sensitivity(norm)

    def event_of(self, noise: Event) -> Event:
        """Return the event of one step."""
        return self.query.event_of(noise)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return nothing: a run is not computed from a stored start."""
        return {}

    def digest(self) -> bytes:
        """Hash everything that determines the run except the rows and the key."""
        text = f"{self.name} {self.version} {self.steps} {self.factor.hex()} {self.snapshots} ".encode()
        return hashlib.sha256(text + self.query.digest()).digest()
