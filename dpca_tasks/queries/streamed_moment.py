"""The sum that a stream releases at one tick: second moments of records, weighted by how long ago each arrived.

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
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import root_up
from dpca_tasks.accounting.factorisation import Weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import MAX_STEP_BITS, Norm, RowSum
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamedMoment(RowSum):
    r"""Sum ``w_(t-j(u)) M_u`` over records u at tick t, where ``M_u`` is what u adds to a moment and j(u) its arrival.

    Parameters
    ----------
    of : SecondMoment or CentredMoment
        The moment; the other public parameters are copied from it.
    weights : Weights
        Integers by age, the same at every tick of the stream.
    horizon : int
        The ticks for which the noise was calibrated.
    tick : int
        t, from 1. Beyond the horizon it belongs to an extension, whose event the ledger charges for itself; the noise
        and what a tick states stay those of the horizon.
    arrivals : tuple of int
        The ingest numbers of the snapshots bound to ticks 1 to t; they never fall. Public.

    Notes
    -----
    *Arrival.* All records of a block have one `first_seen` n, the number of the ingest that brought their ids, and
    arrive at the first tick whose snapshot has a number of at least n; at tick 1 where n is not known. A record beyond
    tonight's number weighs 0. So j(u) depends on nothing but u's own id and public numbers.

    *Joint sensitivity.* Let individuals have any histories: u's record at tick t is ``X_u(t)``, chosen with knowledge
    of all answers before it, perhaps absent, gone or back. Each is clipped and gridded by itself as in any release, so
    ``M_u(t)`` is positive semi-definite with Frobenius norm at most 1, in whole steps of ``4^-b``, and tick t releases
    ``y_t = sum_u c_(t-j(u)) M_u(t) + xi_t`` with ``c_i = w_i / 2^q`` and fresh isotropic noise of std sigma. Take two
    collections of histories that differ in the whole history of u.

    - Without u (add_remove) or with its record emptied (zero_out; what it adds then differs from ``M_u(t)`` by norm at
      most 1, as the notes of `SecondMoment` and `CentredMoment` prove), tick t moves by ``m_t sigma`` with ``m_t <=
      |c_(t-j)| / sigma`` whatever was answered before, and j does not depend on answers. On every path ``sum_t m_t^2
      <= (c_0^2 + ... + c_(T-j)^2) / sigma^2 <= zeta^2 / sigma^2 =: mu^2``.
    - The log-likelihood ratio L of all answers adds, at tick t, a normal of mean ``-m_t^2 / 2`` and variance ``m_t^2``
      given the answers before. Add an independent normal of the variance that is missing from mu^2 and half of it,
      negative, as mean: then ``exp(i h L + i h S / 2 + h^2 S / 2)``, S the sum of ``m_t^2`` so far, is a bounded
      martingale, so L is exactly normal of mean ``-mu^2 / 2`` and variance ``mu^2``: that of one Gaussian release. What
      was added is independent of the data; leaving it out is post-processing.
    - Replaced by another history (replace_one; arrivals may differ), tick t moves by ``||c M - c' M'||``, whose square
      is at most ``c^2 + c'^2 + 2 max(0, -c c')`` since inner products of such M are in [0, 1]; over all ticks at most
      `Weights.replaced_squared`, which is ``2 zeta^2`` where no weight is negative.

    Of the arrivals this uses only that no age of a record comes twice. So a stream may give up numbers that it cannot
    trust any more, and take all arrivals as 1 from some tick on: ages then jump up, and go on rising.

    All of it is attained by a record at the bound that arrives at tick 1 and stays. Where one charge holds for ever,
    zeta is over all weights. Answers and noise are integers on one grid, ``4^-b 2^-q``, as in any release.

    *What must hold outside of this class*: arrivals are set once an id and never again, sigma and the weights are those
    of the horizon at every tick, and a tick is answered once.
    """

    of: SecondMoment | CentredMoment
    weights: Weights
    horizon: int
    tick: int
    arrivals: tuple[int, ...]

    name: ClassVar[str] = "streamed_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the parameters, those shared with the moment and the common grid."""
        RowSum.__post_init__(self)
        if type(self.of) not in (SecondMoment, CentredMoment):
            raise InvalidInput(f"{self.of.name} cannot be streamed; use a second moment, centred or not.")
        if 2 * self.bits + self.weights.bits > MAX_STEP_BITS:
            raise InvalidInput(
                f"bits={self.bits} and weights of {self.weights.bits} bits must give a grid of at most "
                f"2^{MAX_STEP_BITS} steps in one unit; use at most {(MAX_STEP_BITS - self.weights.bits) // 2} bits."
            )
        numbers = self.arrivals
        fall = any(before > after for before, after in itertools.pairwise(numbers))
        if len(numbers) != self.tick or min(numbers, default=-1) < 0 or fall:
            raise InvalidInput(
                f"arrivals must be the numbers of the snapshots of ticks 1 to {self.tick}, at least 0 and never "
                "falling; bind every tick to a snapshot that is no older than the one before."
            )
        self.weights.zeta_squared(self.horizon)  # refuses a horizon beyond the weights

    @classmethod
    def of_moment(
        cls,
        moment: SecondMoment | CentredMoment,
        *,
        weights: Weights,
        horizon: int,
        tick: int,
        arrivals: tuple[int, ...],
    ) -> "StreamedMoment":
        """Return a tick of the stream of a moment."""
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
        """The layout of the moment."""
        return self.of.layout

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities: that of the moment, and whether weights have signs."""
        return f"{self.name} {self.version} of {self.of.kind}{' with signs' if self.weights.signed else ''}"

    @property
    def unit(self) -> float:
        """The unit of the moment."""
        return self.of.unit

    @property
    def steps_per_unit(self) -> int:
        """The grid steps in one unit: those of the moment times those of a weight."""
        return self.of.steps_per_unit << self.weights.bits

    @property
    def zeta(self) -> float:
        """What a record of norm 1 moves all answers together, the unit in which the table states sensitivities."""
        return self.weights.zeta(self.horizon)

    def sensitivity(self, norm: Norm) -> float:
        """Return the joint sensitivity of all ticks, which the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for a stream; use Symmetric noise.")
        if self.relation == "replace_one":
            return root_up(self.weights.replaced_squared(self.horizon))
        return self.zeta

    def weight_of(self, first_seen: int | None) -> int:
        """Return tonight's weight of records whose ids came with an ingest."""
        arrival = 0 if first_seen is None else bisect_left(self.arrivals, first_seen)
        return self.weights.weight(self.tick - 1 - arrival)

    def grid(self, block: Block) -> RowBlock:
        """Put a stored block on the grid of the moment, with the number of its ingest."""
        rows = self.of.grid(block)
        return rows if rows.first_seen == block.first_seen else replace(rows, first_seen=block.first_seen)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the moment of a block times its weight.

        A coordinate of one record is at most ``4^bits 2^q <= 2^28`` steps, as in any sum.
        """
        weight = self.weight_of(block.first_seen)
        if weight:
            moment = self.of.map(block)
            moment *= weight
            total += moment

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the moment of a block times its weight."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total

    def digest(self) -> bytes:
        """Hash the moment, the weights, the horizon, the tick and the numbers of all arrivals."""
        numbers = (self.horizon, self.tick, *self.arrivals)
        parts = (
            self.name.encode(),
            str(self.version).encode(),
            self.of.digest(),
            self.weights.to_json().encode(),
            " ".join(map(str, numbers)).encode(),
        )
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()
