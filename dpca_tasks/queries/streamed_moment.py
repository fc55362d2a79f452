"""The weighted second moment that a continual release (a stream) publishes with noise after each tick (period).

The weight of a record is an integer that depends on the number of ticks since the record arrived.

>>> import numpy as np
>>> from dpca_tasks.accounting.factorisation import choose_weights
>>> moment = SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=8)
>>> weights = choose_weights("sqrt", ticks=7)
>>> tick = StreamedMoment.of_moment(moment, weights=weights, horizon=7, tick=3, arrivals=(1, 1, 4))
>>> [tick.weight_of(first_seen) for first_seen in (None, 1, 2, 4, 5)]
[3, 3, 8, 8, 0]
>>> tick.sensitivity("l2") == weights.zeta(7)
True
"""

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import root_up
from dpca_tasks.accounting.factorisation import Weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import MAX_STEP_BITS, Norm, RowSum
from dpca_tasks.queries.mapped_moment import MappedMoment
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock

type Moment = SecondMoment | CentredMoment | MappedMoment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamedMoment(RowSum):
    r"""Sum ``w_(t-j(u)) M_u`` over records u, for tick (period) t of a stream.

    ``M_u`` is the contribution of u to a second moment, j(u) is the tick at which u arrived, and ``w_i`` is the weight
    at age i.

    Parameters
    ----------
    of : SecondMoment, CentredMoment or MappedMoment
        The query of the second moment. The other public parameters are copied from this query. Map, mean and norm of a
        `MappedMoment` may differ at each tick.
    weights : Weights
        The integer weights by age, the same at every tick of the stream.
    horizon : int
        The number of ticks for which the noise was calibrated.
    tick : int
        The tick t, from 1. A tick beyond the horizon belongs to an extension of the stream, whose event the ledger
        charges separately. Noise and sensitivity remain those of the horizon.
    arrivals : tuple of int
        Public: the ingest numbers of the snapshots of ticks 1 to t, never decreasing.

    Notes
    -----
    *Arrival.* All records of a block have the same `first_seen`, the number n of the ingest that added their ids. They
    arrive at the first tick whose snapshot has an ingest number of at least n, or at tick 1 if n is unknown. If the
    current snapshot is older than n, the weight is 0. So j(u) depends only on the id of u and on public numbers.

    *Joint sensitivity.* Individuals may have any history. The record ``X_u(t)`` of u at tick t may be chosen with
    knowledge of all earlier answers, and may be absent, leave or return. Each record is clipped and rounded separately,
    as in any release. So ``M_u(t)`` is positive semi-definite with Frobenius norm at most 1, in whole steps of
    ``4^-b``. This also holds if map, mean and norm of a `MappedMoment` are functions of all earlier answers: its proof
    bounds the norm of ``M_u(t)`` for each choice, in the unit of that tick. The noise is stated in the same unit. Tick
    t releases ``y_t = sum_u c_(t-j(u)) M_u(t) + xi_t``, with ``c_i = w_i / 2^q`` and fresh isotropic noise ``xi_t`` of
    standard deviation sigma. Take two data sets that differ in the whole history of u.

    - *Removed or emptied.* Either u is missing (add_remove), or its record is emptied (zero_out). The contribution of u
      then changes by norm at most 1, as the notes of `SecondMoment` and `CentredMoment` prove. The answer of tick t
      changes by ``m_t sigma`` with ``m_t <= |c_(t-j)| / sigma``, for all earlier answers, and j does not depend on
      answers. So always
      ``sum_t m_t^2 <= (c_0^2 + ... + c_(T-j)^2) / sigma^2 <= zeta^2 / sigma^2 =: mu^2``.
    - *Emptied around a mean.* An emptied record keeps the image of a record without entries, so emptying replaces one
      record of the same arrival by another (`MappedMoment`), and the bound for replaced histories below holds.
    - *Likelihood ratio.* Let L be the log-likelihood ratio of all answers. Given the earlier answers, tick t adds to L
      a normal variable of mean ``-m_t^2 / 2`` and variance ``m_t^2``. After the last tick, add an independent normal
      variable that fills the total variance up to mu^2, with a mean of minus half its variance. Let S be the sum of
      ``m_t^2`` so far. Then ``exp(i h L + i h S / 2 + h^2 S / 2)`` is a bounded martingale. So L is exactly normal with
      mean ``-mu^2 / 2`` and variance ``mu^2``, as for one Gaussian release. The added variable is independent of the
      data, and leaving it out is post-processing.
    - *Replaced.* If the history of u is replaced by another (replace_one; arrivals may differ), the answer of tick t
      changes by ``||c M - c' M'||``. The square is at most ``c^2 + c'^2 + 2 max(0, -c c')``, since inner products of
      such M are in [0, 1]. The sum over all ticks is at most `Weights.replaced_squared`, which is ``2 zeta^2`` if no
      weight is negative.

    The proof uses only one property of the arrivals: no record has the same age at two ticks. So a stream may discard
    ingest numbers that are no longer reliable, and treat all records as arrived at tick 1 from some tick on. Ages then
    jump up once, and continue to increase.

    A record of norm 1 that arrives at tick 1 and stays attains all bounds. If one charge covers any number of ticks,
    zeta is computed over all weights. Answers and noise are integers on one grid of step ``4^-b 2^-q``.

    *Conditions that other code must ensure*: the arrival of an id is set once and never changed; sigma and the weights
    are those of the horizon at every tick; and a tick is answered once.
    """

    of: Moment
    weights: Weights
    horizon: int
    tick: int
    arrivals: tuple[int, ...]

    name: ClassVar[str] = "streamed_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the parameters, their agreement with the moment, and that the grid of the sum is not too fine."""
        RowSum.__post_init__(self)
        if type(self.of) not in (SecondMoment, CentredMoment, MappedMoment):
            raise InvalidInput(f"{self.of.name} cannot be streamed; use SecondMoment, CentredMoment or MappedMoment.")
        if 2 * self.bits + self.weights.bits > MAX_STEP_BITS:
            raise InvalidInput(
                f"bits={self.bits} is too many: products of two entries and a weight of {self.weights.bits} bits must "
                f"have at most {MAX_STEP_BITS} bits; use bits={(MAX_STEP_BITS - self.weights.bits) // 2} or fewer."
            )
        numbers = self.arrivals
        fall = any(before > after for before, after in itertools.pairwise(numbers))
        if len(numbers) != self.tick or min(numbers, default=-1) < 0 or fall:
            raise InvalidInput(
                f"arrivals must be the ingest numbers of the snapshots of ticks (periods) 1 to {self.tick}, at least 0 "
                "and never decreasing; bind every tick to a snapshot no older than that of the previous tick."
            )
        self.weights.zeta_squared(self.horizon)  # raises if there are fewer weights than the horizon needs

    @classmethod
    def of_moment(
        cls,
        moment: Moment,
        *,
        weights: Weights,
        horizon: int,
        tick: int,
        arrivals: tuple[int, ...],
    ) -> "StreamedMoment":
        """Return the query of one tick (period) of a stream, from the query of the second moment."""
        return cls(
            n_features=moment.n_features,
            clip_norm=moment.clip_norm,
            relation=moment.relation,
            bits=moment.bits,
            of=moment,
            weights=weights,
            horizon=horizon,
            tick=tick,
            arrivals=arrivals,
        )

    @property
    def layout(self) -> Layout:
        """The layout of the sum, equal to that of the moment."""
        return self.of.layout

    @property
    def kind(self) -> str:
        """The key of this query in the table of sensitivities, from the key of the moment and the sign of weights."""
        return f"{self.name} {self.version} of {self.of.kind}{' with signs' if self.weights.signed else ''}"

    @property
    def unit(self) -> float:
        """One unit of the output in data units, equal to that of the moment."""
        return self.of.unit

    @property
    def steps_per_unit(self) -> int:
        """The number of grid steps in one unit of the output: the steps of the moment times the steps of weight 1."""
        return self.of.steps_per_unit << self.weights.bits

    @property
    def zeta(self) -> float:
        """The largest l2 change of all answers within the horizon together, if a record of norm 1 is removed."""
        return self.weights.zeta(self.horizon)

    def sensitivity(self, norm: Norm) -> float:
        """Return the joint l2 sensitivity of all ticks together, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(f"a stream has no sensitivity in norm={norm!r}; use Symmetric noise (l2).")
        around_mean = isinstance(self.of, MappedMoment) and self.of.shift is not None
        if self.relation == "replace_one" or (self.relation == "zero_out" and around_mean):
            return root_up(self.weights.replaced_squared(self.horizon))
        return self.zeta

    def weight_of(self, first_seen: int | None) -> int:
        """Return the weight, at this tick, of records whose ids were added by ingest number ``first_seen``."""
        arrival = 0 if first_seen is None else bisect_left(self.arrivals, first_seen)
        return self.weights.weight(self.tick - 1 - arrival)

    def grid(self, block: Block) -> RowBlock:
        """Convert a stored block to the grid of the moment, and copy the ingest number ``first_seen`` of the block."""
        rows = self.of.grid(block)
        return rows if rows.first_seen == block.first_seen else replace(rows, first_seen=block.first_seen)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the moment of a block, multiplied by the weight of its records, to ``total``.

        With weights of q bits, one record adds at most ``4^bits 2^q <= 2^28`` steps to a coordinate, as in any query.
        """
        weight = self.weight_of(block.first_seen)
        if weight:
            moment = self.of.map(block)
            moment *= weight
            total += moment

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays of the moment, by field name."""
        return self.of.public_inputs()

    def with_inputs(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the query of a moment with other public arrays."""
        return replace(self, of=self.of.with_inputs(arrays))

    def digest(self) -> bytes:
        """Return a hash of the moment, the weights, the horizon, the tick and the ingest numbers of all ticks."""
        numbers = (self.horizon, self.tick, *self.arrivals)
        parts = (
            self.name.encode(),
            str(self.version).encode(),
            self.of.digest(),
            self.weights.to_json().encode(),
            " ".join(map(str, numbers)).encode(),
        )
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()
