"""Sums over Poisson samples of the records, and runs of thousands of sampled steps.

`PoissonSampled` is any sum over a Poisson sample: a secret coin of each record decides whether the record is included.
`SampledPasses` is a run of thousands of sampled gradient steps in one request, of which only the states after some
steps are published.
"""

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, Relation, poisson_sampled
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.keystream import SecretKey, coins
from dpca_tasks.queries.base import Norm, RowSum, StepSecrets
from dpca_tasks.queries.rounded_product import MomentProduct
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoissonSampled(RowSum):
    """Sum another query over the records whose coin is heads.

    Parameters
    ----------
    query : RowSum
        The query to sample; the other public parameters are copied from it.
    rate : float
        The sampling probability of a record, in (0, 1].
    coin_key : SecretKey, optional
        The coin key of the step, passed by the curator. It determines every coin of the step. Neither digest nor repr
        contains it.

    Notes
    -----
    Sensitivity. Coins are independent of the records: the coin of a record is a function only of the key and of its
    ordinal in the snapshot. For any coins, one record moves the sum by at most the sensitivity of the query. Since its
    coin is secret, this is the Poisson subsampling of the query. An added record has a separate ordinal and coin. It
    may shift the ordinals of later records, whose new coins are equally independent.

    Under replace_one the sensitivity is stated for an emptied record, for which subsampling is priced. With the same
    coins, replacing a record takes two such steps, through the empty record, and plans and prices use both. (e, d) for
    each half is (2 e, (1 + e^e) d) for both. A sample of rate 1, of all records, is for steps that are priced together
    with such steps; its event records this.

    ``map`` needs no secret: records outside the sample are dropped when a block is converted to the grid.
    """

    query: RowSum
    rate: float
    coin_key: SecretKey | None = field(default=None, repr=False)

    name: ClassVar[str] = "poisson_sampled"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Check the rate, and the parameters shared with the query."""
        RowSum.__post_init__(self)
        if not 0 < self.rate <= 1:
            raise InvalidInput(f"rate={self.rate} must be in (0, 1]; pass the sampling probability of a record.")

    @property
    def layout(self) -> Layout:
        """The layout of the query."""
        return self.query.layout

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities: the key of the query, marked as sampled."""
        return f"sampled {self.query.kind}"

    @property
    def noises_itself(self) -> bool:
        """True if `map` of the query adds the noise."""
        return self.query.noises_itself

    def with_secrets(self, secrets: StepSecrets) -> RowSum:
        """Return the sample with the coins of its step, and the query with the secrets that it needs."""
        return dataclasses.replace(self, coin_key=secrets.step_coins, query=self.query.with_secrets(secrets))

    @property
    def plain(self) -> RowSum:
        """The query on all records."""
        return self.query

    def event_of(self, noise: Event) -> Event:
        """Return the event of a noisy sum over a Poisson sample."""
        return poisson_sampled(noise, self.rate)

    @property
    def steps_per_unit(self) -> int:
        """The grid steps in one unit of the query."""
        return self.query.steps_per_unit

    @property
    def unit(self) -> float:
        """The unit of the query."""
        return self.query.unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        query = dataclasses.replace(self.query, relation="zero_out") if self.relation == "replace_one" else self.query
        return query.sensitivity(norm)

    def grid(self, block: Block) -> RowBlock:
        """Empty the records outside the sample, and convert the others to the grid of the query."""
        return self.query.grid(CsrBlock(**self._sample(block)))

    def select(self, rows: RowBlock) -> RowBlock:
        """Empty the records outside the sample. Records are gridded separately, so the result equals `grid`."""
        return dataclasses.replace(rows, **self._sample(rows))

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the query's total over the sampled records of a block."""
        self.query.add(block, total)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays of the query."""
        return self.query.public_inputs()

    def digest(self) -> bytes:
        """Hash the rate and everything that determines the query; the key of the release determines the coins."""
        parts = (self.name.encode(), str(self.version).encode(), self.rate.hex().encode(), self.query.digest())
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()

    def _sample(self, block: Block) -> dict[str, Any]:
        """Return the rows of a block with the records outside the sample emptied."""
        if self.coin_key is None:
            raise InvalidInput("a sample needs a coin key; release it through the curator, which has it.")
        start, sizes = block.first_record, np.diff(block.record_ptr)
        chosen = coins(self.coin_key, start=start, stop=start + sizes.size, rate=self.rate)
        rows = np.repeat(chosen, sizes)
        lengths = np.diff(block.row_ptr)
        stored = np.repeat(rows, lengths)
        return {
            "values": np.asarray(block.values)[stored],
            "indices": np.asarray(block.indices)[stored],
            "row_ptr": np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[rows])]),
            "record_ptr": np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(chosen, sizes, 0))]),
            "first_record": start,
            "density": block.density,
            "first_seen": block.first_seen,
        }


def sampled(query: RowSum, *, rate: float, halved: bool = False) -> RowSum:
    """Return the query on a Poisson sample, or the query itself at rate 1.

    With ``halved``, a sample of rate 1 remains a sample, for a release that is priced through the empty record.
    """
    if rate == 1.0 and not halved:
        return query
    return PoissonSampled(
        n_features=query.n_features,
        clip_norm=query.clip_norm,
        relation=query.relation,
        bits=query.bits,
        query=query,
        rate=rate,
    )


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
        The increasing numbers of steps after which V is returned; 0 is the start, the last is usually T.
    """

    query: RowSum
    steps: int
    factor: float
    snapshots: tuple[int, ...]

    name: ClassVar[str] = "sampled_passes"
    version: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities: the key of the query, which every step sums."""
        return self.query.kind

    @property
    def relation(self) -> Relation:
        """The relation of the query."""
        return self.query.relation

    @property
    def product(self) -> MomentProduct:
        """The product over all records; raises InvalidInput if the steps sum another query."""
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
        """Return nothing, because a run does not depend on a stored start."""
        return {}

    def digest(self) -> bytes:
        """Hash everything that determines the run except the rows and the key."""
        text = f"{self.name} {self.version} {self.steps} {self.factor.hex()} {self.snapshots} ".encode()
        return hashlib.sha256(text + self.query.digest()).digest()
