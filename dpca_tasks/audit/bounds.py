"""From counts of an event on two neighbouring datasets to a lower bound on epsilon.

If a mechanism is (epsilon, delta)-DP, then ``P(event | D) <= e^epsilon P(event | D') + delta`` for every event.
Counting an event on both sides therefore proves ``epsilon >= log((p - delta) / q)``, with ``p`` bounded from below
and ``q`` from above (Clopper and Pearson). The event is chosen on other trials than those it is counted on, so
however many were tried, one is tested, and the confidence needs no correction.

>>> import numpy as np
>>> noise = np.random.default_rng(0).standard_normal((2, 4000))
>>> event = choose_event({"shift": (noise[0] + 1.0, noise[1])}, delta=0.01)
>>> event.statistic
'shift'
>>> bool(0.5 < epsilon_bound(2300, 500, trials=4000, delta=0.01, miss=0.025) < 1.6)
True
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

CAUTION = 1e-5
"""The miss of the bounds that rank events: a rare event with a lucky count loses against a common one."""

type Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A statistic's values in trials on the left and on the right dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A statistic at or beyond a threshold: upwards it speaks for the left dataset, downwards for the right."""

    statistic: str
    threshold: float
    upwards: bool

    def count(self, samples: Samples) -> tuple[int, int]:
        """Count the event on the dataset that it speaks for, and on the other."""
        left, right = (
            int(np.count_nonzero(values >= self.threshold if self.upwards else values <= self.threshold))
            for values in samples
        )
        return (left, right) if self.upwards else (right, left)


def proportion_bounds(count: ArrayLike, *, trials: int, miss: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bound a probability from below and from above; each bound misses with probability at most `miss`."""
    seen = np.asarray(count, np.float64)
    low = np.where(seen > 0, betaincinv(np.maximum(seen, 1.0), trials - seen + 1.0, miss), 0.0)
    high = np.where(seen < trials, betaincinv(seen + 1.0, np.maximum(trials - seen, 1.0), 1.0 - miss), 1.0)
    return low, high


def epsilon_bound(count: ArrayLike, other: ArrayLike, *, trials: int, delta: float, miss: float) -> NDArray[np.float64]:
    """Bound epsilon from below by an event's counts on two neighbours; 0 where they prove nothing.

    Parameters
    ----------
    count, other : int or array of int
        How often the event was seen in `trials` trials on either dataset.
    trials : int
        Trials on each.
    delta : float
        The delta of the claim.
    miss : float
        Each of the two proportions is bounded with this chance of being wrong, so the result has twice that.
    """
    ratio = _bounded_ratio(count, other, trials=trials, delta=delta, miss=miss)
    return np.log(np.maximum(ratio, 1.0))


def choose_event(samples: Mapping[str, Samples], *, delta: float) -> Event:
    """Return the event with the largest cautious bound, over statistics, directions and thresholds."""
    best, chosen = -math.inf, None
    for statistic, (left, right) in samples.items():
        thresholds = np.unique(np.concatenate([left, right]))
        below_left, below_right = (np.searchsorted(np.sort(part), thresholds) for part in (left, right))
        upto_left, upto_right = (np.searchsorted(np.sort(part), thresholds, "right") for part in (left, right))
        trials = left.size
        for upwards, count, other in (
            (True, trials - below_left, trials - below_right),
            (False, upto_right, upto_left),
        ):
            ratios = _bounded_ratio(count, other, trials=trials, delta=delta, miss=CAUTION)
            at = int(ratios.argmax())
            if ratios[at] > best:
                best = float(ratios[at])
                chosen = Event(statistic=statistic, threshold=float(thresholds[at]), upwards=upwards)
    assert chosen is not None, "at least one statistic"
    return chosen


def _bounded_ratio(
    count: ArrayLike, other: ArrayLike, *, trials: int, delta: float, miss: float
) -> NDArray[np.float64]:
    low, _ = proportion_bounds(count, trials=trials, miss=miss)
    _, high = proportion_bounds(other, trials=trials, miss=miss)
    return (low - delta) / high
