"""The sum that a stream releases at one tick, with records weighted by age.

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
    r"""Sum ``w_(t-j(u)) M_u`` over records u at tick t.

    ``M_u`` is the contribution of u to a moment, and j(u) is the arrival of u.

    Parameters
    ----------
    of : SecondMoment or CentredMoment
        The moment; the other public parameters are copied from it.
    weights : Weights
        Integers by age, the same at every tick of the stream.
    horizon : int
        The ticks for which the noise was calibrated.
    tick : int
        t, from 1. A tick beyond the horizon belongs to an extension, whose event the ledger charges separately. The
        noise and the stated properties of a tick remain those of the horizon.
    arrivals : tuple of int
        The ingest numbers of the snapshots bound to ticks 1 to t; they never fall. Public.

    Notes
    -----
    *Arrival.* All records of a block have one `first_seen` n, the number of the ingest that added their ids. They
    arrive at the first tick whose snapshot has a number of at least n, or at tick 1 where n is unknown. A record beyond
    the number of the current snapshot has weight 0. So j(u) depends only on the id of u and on public numbers.

    *Joint sensitivity.* Let individuals have any histories: u's record at tick t is ``X_u(t)``, chosen with knowledge
    of all earlier answers; it may be absent, leave or return. Each record is clipped and gridded separately as in any
    release. So ``M_u(t)`` is positive semi-definite with Frobenius norm at most 1, in whole steps of ``4^-b``. Tick t
    releases ``y_t = sum_u c_(t-j(u)) M_u(t) + xi_t`` with ``c_i = w_i / 2^q`` and fresh isotropic noise of std sigma.
    Take two collections of histories that differ in the whole history of u.

    - *Removed or emptied.* Either u is missing (add_remove), or its record is emptied (zero_out); then its contribution
      differs from ``M_u(t)`` by norm at most 1, as the notes of `SecondMoment` and `CentredMoment` prove. Tick t moves
      by ``m_t sigma`` with ``m_t <= |c_(t-j)| / sigma`` whatever the earlier answers were, and j does not depend on
      answers. On every path
      ``sum_t m_t^2 <= (c_0^2 + ... + c_(T-j)^2) / sigma^2 <= zeta^2 / sigma^2 =: mu^2``.
    - *Likelihood ratio.* The log-likelihood ratio L of all answers adds, at tick t, a normal of mean ``-m_t^2 / 2`` and
      variance ``m_t^2`` given the earlier answers. Add an independent normal whose variance is what is missing from
      mu^2, and whose mean is minus half of that. Then ``exp(i h L + i h S / 2 + h^2 S / 2)``, S the sum of ``m_t^2`` so
      far, is a bounded martingale. So L is exactly normal of mean ``-mu^2 / 2`` and variance ``mu^2``, as for one
      Gaussian release. The added normal is independent of the data; leaving it out is post-processing.
    - *Replaced* by another history (replace_one; arrivals may differ), tick t moves by ``||c M - c' M'||``. The square
      is at most ``c^2 + c'^2 + 2 max(0, -c c')`` since inner products of such M are in [0, 1]. Over all ticks it is at
      most `Weights.replaced_squared`, which is ``2 zeta^2`` where no weight is negative.

    The only property of the arrivals that this uses is that no age of a record occurs twice. So a stream may discard
    numbers that it can no longer trust, and treat all arrivals as 1 from some tick on: ages then jump up, and continue
    to rise.

    A record at the bound that arrives at tick 1 and stays attains all bounds. If one charge covers any number of ticks,
    zeta is over all weights. Answers and noise are integers on one grid, ``4^-b 2^-q``, as in any release.

    *Conditions outside this class*: arrivals are set once per id and never again, sigma and the weights are those of
    the horizon at every tick, and a tick is answered once.
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
        """Check the parameters, those shared with the moment, and the common grid."""
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
                "decreasing; bind every tick to a snapshot no older than that of the previous tick."
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
        """The key in the table of sensitivities: the key of the moment, and whether weights have signs."""
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
        """The distance by which a record of norm 1 moves all answers together, the unit of the stated sensitivities."""
        return self.weights.zeta(self.horizon)

    def sensitivity(self, norm: Norm) -> float:
        """Return the joint sensitivity of all ticks, which the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for a stream; use Symmetric noise.")
        if self.relation == "replace_one":
            return root_up(self.weights.replaced_squared(self.horizon))
        return self.zeta

    def weight_of(self, first_seen: int | None) -> int:
        """Return the weight at this tick of records whose ids were added by a given ingest."""
        arrival = 0 if first_seen is None else bisect_left(self.arrivals, first_seen)
        return self.weights.weight(self.tick - 1 - arrival)

    def grid(self, block: Block) -> RowBlock:
        """Convert a stored block to the grid of the moment, and keep the number of its ingest."""
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
