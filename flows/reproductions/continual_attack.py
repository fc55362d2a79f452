"""Attacks on all ticks of a stream together: a canary that stays, changes or returns, and planted mistakes.

The attacker tests, by the best linear score of all answers, whether a canary was there. Every diagonal entry has a
canary of its own, so one stream makes as many trials as there are features. Answers come from the whole program.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import gaussian
from dpca_tasks.accounting.factorisation import Weights, choose_weights
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.sources import ArrayBlocks

TICKS, FEATURES, TRIALS = 16, 40, 4000
WEIGHTS = choose_weights("sqrt", ticks=TICKS)
STAYS = (1.0,) * TICKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What a canary does, and what the program gets wrong.

    Parameters
    ----------
    squares : tuple of float
        The squared norm of its record at every tick; 0: erased.
    arrivals : tuple of int
        The arrival that it is given at every tick.
    multiplier : float
        The std of the noise over what the program takes for the sensitivity, where the claim is mu 1.
    weights : Weights
        Those of the program.
    """

    squares: tuple[float, ...] = STAYS
    arrivals: tuple[int, ...] = (1,) * TICKS
    multiplier: float = 1.0
    weights: Weights = WEIGHTS

    @property
    def shown(self) -> NDArray[np.float64]:
        """What the canary adds to each tick."""
        pairs = enumerate(zip(self.arrivals, self.squares, strict=True), start=1)
        added = [self.weights.weight(tick - at) * square for tick, (at, square) in pairs]
        return np.array(added) / (1 << self.weights.bits)

    @property
    def expected(self) -> float:
        """Mu of the best attack."""
        return float(np.linalg.norm(self.shown)) / (self.multiplier * self.weights.zeta(TICKS))

    @property
    def is_found(self) -> bool:
        """Whether the attack shows more than the claim."""
        return self.expected > 1.0 + 1e-9


def _zeta(weights: Weights) -> float:
    return weights.zeta(TICKS)


_FULL = Weights(strategy="sqrt", weights=(1,) * TICKS, bits=0)

ATTACKS: Mapping[str, Attack] = {
    "a canary that stays": Attack(),
    "a canary that is edited, erased and back": Attack(squares=(*(1.0,) * 4, *(0.7,) * 4, *(0.0,) * 4, *(1.0,) * 4)),
    "noise of one release for all ticks": Attack(multiplier=1.0 / _zeta(WEIGHTS)),
    "full weight every night": Attack(multiplier=_zeta(WEIGHTS) / _zeta(_FULL), weights=_FULL),
    "a returned id that counts as new": Attack(arrivals=(*(1,) * 8, *(9,) * 8)),
}


def attack(each: Attack, *, trials: int = TRIALS) -> tuple[float, float]:
    """Return the measured mu, whose claim is 1, and its standard error."""
    streams = range(-(-trials // FEATURES))
    empty, there = (
        np.concatenate([each.shown @ _diagonals(each, stream=stream, there=there) for stream in streams])
        for there in (False, True)
    )
    spread = math.sqrt((empty.var(ddof=1) + there.var(ddof=1)) / 2)
    return float((there.mean() - empty.mean()) / spread), math.sqrt(2 / len(there) + each.expected**2 / 4 / len(there))


def _diagonals(each: Attack, *, stream: int, there: bool) -> NDArray[np.float64]:
    moment = SecondMoment(n_features=FEATURES, clip_norm=1.0, relation="add_remove", bits=8)
    noise = Symmetric(noise_multiplier=each.multiplier)
    found = []
    for tick, (arrival, square) in enumerate(zip(each.arrivals, each.squares, strict=True), start=1):
        rows = math.sqrt(square) * np.eye(FEATURES) if there and square else np.empty((0, FEATURES))
        query = StreamedMoment.of_moment(
            moment, weights=each.weights, horizon=TICKS, tick=tick, arrivals=tuple(range(1, tick + 1))
        )
        key = hashlib.sha256(f"continual attack {stream} {there} {tick}".encode()).digest()
        reservation = InMemoryReservation(event=gaussian(each.multiplier), key=key)
        source = ArrayBlocks(rows, first_seen=np.full(len(rows), arrival))
        found.append(np.diag(Curator(source, reservation).release(query, noise)))
    return np.array(found)
