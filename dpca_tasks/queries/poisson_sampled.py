"""Any sum over a Poisson sample of the records: each is in by its own secret coin."""

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event, poisson_sampled
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.noise.uniform import coins
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.step_secrets import StepSecrets
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoissonSampled(RowSum):
    """Sum another query over the records whose coin falls.

    Parameters
    ----------
    query : RowSum
        What is summed. The other public parameters are its own.
    rate : float
        The probability of a record's coin, in (0, 1].
    coin_key : SecretKey, optional
        The curator's: a step's own key, given when the step is asked for. It determines every coin of the step,
        enters no digest, and prints as nothing.

    Notes
    -----
    Sensitivity. Coins are independent of the records: a record's coin is a function of the key and of its ordinal
    in the snapshot alone. Whatever the coins, one record moves the sum by at most the query's sensitivity, or not at
    all; with its coin secret, this is the Poisson subsampling of the query. An added record has an ordinal and a coin
    of its own: it may shift the ordinals of those behind it, whose coins are as independent there.

    Under replace_one the sensitivity is that of an emptied record, which is what a sample's price knows: sampled with
    the same coins, a record and another are two such steps apart, through the empty record. Whoever plans or prices
    sampled steps there goes the same way: (e, d) for each half is (2 e, (1 + e^e) d) for both. A sample of rate 1, of
    all records, is for steps that are priced together with such ones: its event says so.

    ``map`` takes no secret: a record without its coin is dropped when a block is put on the grid.
    """

    query: RowSum
    rate: float
    coin_key: SecretKey | None = field(default=None, repr=False)

    name: ClassVar[str] = "poisson_sampled"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Check the rate, and what is shared with the query."""
        RowSum.__post_init__(self)
        if not 0 < self.rate <= 1:
            raise InvalidInput(f"rate={self.rate} must be in (0, 1]; pass the sampling probability of a record.")

    @property
    def layout(self) -> Layout:
        """The query's."""
        return self.query.layout

    @property
    def kind(self) -> str:
        """A sample of the query's kind."""
        return f"sampled {self.query.kind}"

    @property
    def noises_itself(self) -> bool:
        """As the query."""
        return self.query.noises_itself

    def with_secrets(self, secrets: StepSecrets) -> RowSum:
        """Take the step's coins, and whatever the query takes."""
        return dataclasses.replace(self, coin_key=secrets.step_coins, query=self.query.with_secrets(secrets))

    @property
    def plain(self) -> RowSum:
        """The query on all records."""
        return self.query

    def event_of(self, noise: Event) -> Event:
        """Return the event of a sample's noisy sum."""
        return poisson_sampled(noise, self.rate)

    @property
    def steps_per_unit(self) -> int:
        """The query's."""
        return self.query.steps_per_unit

    @property
    def unit(self) -> float:
        """The query's."""
        return self.query.unit

    def sensitivity(self, norm: Norm) -> float:
        """See the class notes for the proof."""
        query = dataclasses.replace(self.query, relation="zero_out") if self.relation == "replace_one" else self.query
        return query.sensitivity(norm)

    def grid(self, block: Block) -> RowBlock:
        """Empty the records whose coin did not fall, and put the others on the query's grid."""
        return self.query.grid(CsrBlock(**self._sample(block)))

    def select(self, rows: RowBlock) -> RowBlock:
        """Empty the records whose coin did not fall. Records are gridded one by one, so this is `grid`."""
        return dataclasses.replace(rows, **self._sample(rows))

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Add the query's contributions of the sample."""
        return self.query.map(block)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the query's public arrays."""
        return self.query.public_inputs()

    def digest(self) -> bytes:
        """Hash the rate and all that determines the query; the coins are determined by the release's key."""
        parts = (self.name.encode(), str(self.version).encode(), self.rate.hex().encode(), self.query.digest())
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()

    def _sample(self, block: Block) -> dict[str, Any]:
        """Return the rows of a block, the records without their coin emptied."""
        if self.coin_key is None:
            raise InvalidInput("a sample without its coins; ask the curator, which has the key.")
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
        }


def sampled(query: RowSum, *, rate: float, halved: bool = False) -> RowSum:
    """Return the query on a Poisson sample; the query itself at rate 1, where every record is in.

    ``halved`` keeps the sample of rate 1: in a release that is priced through the empty record.
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
