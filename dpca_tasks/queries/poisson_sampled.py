"""Sums over Poisson samples of the records, and runs of thousands of sampled gradient steps.

`PoissonSampled` sums another query over a Poisson sample: a secret random coin decides for each record whether the
record is included. `SampledPasses` is a single request for thousands of sampled gradient steps. Only the states after
some of the steps are published.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

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
    """Sum another query over a Poisson sample: each record is included independently with probability ``rate``.

    Parameters
    ----------
    query : RowSum
        The query to sum over the sample. The other public parameters are copied from this query.
    rate : float
        The sampling probability of a record, in (0, 1].
    coin_key : SecretKey, optional
        The key that determines the sample of a step; set by the curator. Neither digest nor repr contains the key.

    Notes
    -----
    Sensitivity. Whether a record is included (its coin) is independent of the data: it is a function only of the key
    and of the ordinal of the record in the snapshot. For any sample, one record changes the sum by at most the
    sensitivity of the query. Since the sample is secret, this is Poisson subsampling of the query. An added record has
    a new ordinal and so a new coin. It may shift the ordinals of later records, whose new coins are equally
    independent.

    Under replace_one the sensitivity is stated for an emptied record, the case for which privacy amplification by
    subsampling is computed. For a fixed sample, a record is replaced in two steps: it is emptied, then filled. Plans
    and accounting compose both steps. If each step is (e, d)-DP, both together are (2 e, (1 + e^e) d)-DP. A sample with
    ``rate=1`` contains all records. Its event states that the step is accounted for in this way, like the sampled steps
    of the same release.

    ``map`` needs no secret: records outside the sample are emptied when a block is converted to the grid.
    """

    query: RowSum
    rate: float
    coin_key: SecretKey | None = field(default=None, repr=False)

    name: ClassVar[str] = "poisson_sampled"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Check the sampling rate, and that all parameters shared with the sampled query are equal."""
        RowSum.__post_init__(self)
        if not 0 < self.rate <= 1:
            raise InvalidInput(f"rate={self.rate} must be in (0, 1]; pass the sampling probability of a record.")

    @property
    def layout(self) -> Layout:
        """The layout of the sum, equal to that of the sampled query."""
        return self.query.layout

    @property
    def kind(self) -> str:
        """The key of this query in the table of sensitivities: "sampled", then the key of the sampled query."""
        return f"sampled {self.query.kind}"

    @property
    def noises_itself(self) -> bool:
        """True if `map` of the sampled query itself adds the noise of the release."""
        return self.query.noises_itself

    def with_secrets(self, secrets: StepSecrets) -> RowSum:
        """Return this query with the key that determines the sample, and with all secrets of the sampled query."""
        return dataclasses.replace(self, coin_key=secrets.step_coins, query=self.query.with_secrets(secrets))

    @property
    def plain(self) -> RowSum:
        """The query over all records instead of a sample."""
        return self.query

    def event_of(self, noise: Event) -> Event:
        """Return the DP event of a noisy sum over a Poisson sample, given the event of the noise."""
        return poisson_sampled(noise, self.rate)

    @property
    def steps_per_unit(self) -> int:
        """The number of grid steps in one unit of the output, as for the sampled query."""
        return self.query.steps_per_unit

    @property
    def unit(self) -> float:
        """One unit of the output in data units, as for the sampled query."""
        return self.query.unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        query = dataclasses.replace(self.query, relation="zero_out") if self.relation == "replace_one" else self.query
        return query.sensitivity(norm)

    def grid(self, block: Block) -> RowBlock:
        """Empty the records of a block that are outside the sample, and convert the others to the grid of the query."""
        return self.query.grid(CsrBlock(**self._sample(block)))

    def select(self, rows: RowBlock) -> RowBlock:
        """Empty the records outside the sample, given a block that is already on the grid.

        The result equals `grid` of the stored block, because each record is converted to the grid independently.
        """
        return dataclasses.replace(rows, **self._sample(rows))

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the query's total over the sampled records of a block."""
        self.query.add(block, total)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays of the sampled query, by field name."""
        return self.query.public_inputs()

    def with_inputs(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the sample of a query with other public arrays."""
        return replace(self, query=self.query.with_inputs(arrays))

    def digest(self) -> bytes:
        """Return a hash of the sampling rate and of the sampled query; the secret key of the sample is not included."""
        parts = (self.name.encode(), str(self.version).encode(), self.rate.hex().encode(), self.query.digest())
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()

    def _sample(self, block: Block) -> dict[str, Any]:
        """Return the fields of a block in which all records outside the sample are emptied."""
        if self.coin_key is None:
            raise InvalidInput("a sample needs a key (coin_key); release it through the curator, which sets the key.")
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
    """Return a query over a Poisson sample of rate ``rate``, or the query itself at rate 1.

    With ``halved``, a `PoissonSampled` query is returned even at rate 1. It marks a release whose accounting replaces a
    record in two steps: the record is emptied, then filled.
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
    """A run of noisy gradient steps ``V <- orth(V + factor * P)`` from public start directions V.

    P is the noisy product of a fresh sample's second moment with V, and orth makes columns orthonormal.

    Parameters
    ----------
    query : PoissonSampled or MomentProduct
        The query of the first step: a `MomentProduct`, usually sampled. The start V are the directions of this query,
        and every step has its sensitivity.
    steps : int
        The number of steps T.
    factor : float
        The step size, for a product in units of the clip norm.
    snapshots : tuple of int
        The numbers of steps after which V is returned, increasing; 0 is the start, and the last is usually T.
    """

    query: RowSum
    steps: int
    factor: float
    snapshots: tuple[int, ...]

    name: ClassVar[str] = "sampled_passes"
    version: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities, equal to that of the query in every step."""
        return self.query.kind

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of the query."""
        return self.query.relation

    @property
    def product(self) -> MomentProduct:
        """The query of a step, over all records instead of a sample.

        Raises
        ------
        InvalidInput
            If the query is not a `MomentProduct`.
        """
        query = self.query.plain
        if not isinstance(query, MomentProduct):
            raise InvalidInput(f"a run of steps needs a MomentProduct (got {query.name}); pass one, usually sampled.")
        return query

    @property
    def rate(self) -> float:
        """The sampling probability of a record in each step."""
        return self.query.rate if isinstance(self.query, PoissonSampled) else 1.0

    @property
    def steps_per_unit(self) -> int:
        """The number of grid steps in one unit of the query's output."""
        return self.query.steps_per_unit

    def sensitivity(self, norm: Norm) -> float:
        """Return a bound on the change of the sum in one step by one record, in the given norm."""
        return self.query.sensitivity(norm)

    def event_of(self, noise: Event) -> Event:
        """Return the DP event of one step, given the event of its noise."""
        return self.query.event_of(noise)

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return no arrays, because a resumed run does not take its start directions from an earlier run."""
        return {}

    def with_inputs(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the run unchanged: it has no public inputs."""
        del arrays
        return self

    def digest(self) -> bytes:
        """Return a hash of everything that determines the run except the private rows and the secret keys."""
        text = f"{self.name} {self.version} {self.steps} {self.factor.hex()} {self.snapshots} ".encode()
        return hashlib.sha256(text + self.query.digest()).digest()
