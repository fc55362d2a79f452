"""A whole run of sampled gradient steps as one question: thousands of tiny steps, of which only the end leaves."""

import hashlib
from dataclasses import dataclass

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.queries.base import RowSum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledPasses:
    """Repeat ``V <- orth(V + factor * (noisy sampled product with V))`` from public directions.

    Parameters
    ----------
    query : PoissonSampled or MomentProduct
        A sampled `MomentProduct`; its directions are the start, its sensitivity that of every step.
    steps : int
        T.
    factor : float
        The step size for a product in units of the clip norm.
    snapshots : tuple of int
        After how many steps V is put out, increasing; 0 is the start, the last is usually T.
    """

    query: RowSum
    steps: int
    factor: float
    snapshots: tuple[int, ...]

    @property
    def relation(self) -> Relation:
        """The query's."""
        return self.query.relation

    def digest(self) -> bytes:
        """Hash all that determines the run but the rows and the key."""
        text = f"sampled_passes 1 {self.steps} {self.factor.hex()} {self.snapshots} ".encode()
        return hashlib.sha256(text + self.query.digest()).digest()
