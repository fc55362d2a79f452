"""Lower bounds on epsilon from counts of an event on two neighbouring datasets.

If a mechanism is (epsilon, delta)-DP, then ``P(event | D) <= e^epsilon P(event | D') + delta`` for every event.
Counting an event on both sides therefore proves ``epsilon >= log((p - delta) / q)``, with ``p`` bounded from below
and ``q`` from above (Clopper and Pearson). The event is chosen on other trials than those on which it is counted, so
only one event is tested, and the confidence needs no correction.

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
"""The error probability of the bounds that rank events; it is small, so that a rare event does not win by chance."""

type Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The values of a statistic in trials on the left and on the right dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The event that a statistic reaches a threshold: upwards it indicates the left dataset, downwards the right."""

    statistic: str
    threshold: float
    upwards: bool

    def count(self, samples: Samples) -> tuple[int, int]:
        """Count the event on the dataset that it indicates, and on the other."""
        left, right = (
            int(np.count_nonzero(values >= self.threshold if self.upwards else values <= self.threshold))
            for values in samples
        )
        return (left, right) if self.upwards else (right, left)


def proportion_bounds(count: ArrayLike, *, trials: int, miss: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bound a probability from below and from above; each bound is wrong with probability at most `miss`."""
    seen = np.asarray(count, np.float64)
    low = np.where(seen > 0, betaincinv(np.maximum(seen, 1.0), trials - seen + 1.0, miss), 0.0)
    high = np.where(seen < trials, betaincinv(seen + 1.0, np.maximum(trials - seen, 1.0), 1.0 - miss), 1.0)
    return low, high


def epsilon_bound(count: ArrayLike, other: ArrayLike, *, trials: int, delta: float, miss: float) -> NDArray[np.float64]:
    """Bound epsilon from below by the counts of an event on two neighbours; 0 where they prove nothing.

    Parameters
    ----------
    count, other : int or array of int
        The number of occurrences of the event in `trials` trials on each dataset.
    trials : int
        The number of trials on each dataset.
    delta : float
        The delta of the claim.
    miss : float
        The error probability of the bound of each of the two proportions; that of the result is twice as large.
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
