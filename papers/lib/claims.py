"""Claims of papers with verdicts, and slopes on logarithmic axes with confidence bands.

A check compares a result with an expected number, and fails if the code is wrong. A claim compares a statement of the
paper with a result. A claim that does not hold is not an error of the code.

>>> sentence(Claim(item="Figure 2", states="share below 1", measured="1.3", holds=False))
'Figure 2: the paper states share below 1; measured 1.3: does not hold'
>>> found = slope_of((1, 2, 4), [(1.0, 2.0, 4.0), (1.0, 2.1, 4.4), (1.0, 1.9, 3.6)])
>>> found.low < 1.0 < found.high
True
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of a paper, the measured result, and whether the statement holds (None if the run is too small)."""

    item: str
    states: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """The verdict as text: "holds", "does not hold" or "not judged"."""
        return {True: "holds", False: "does not hold", None: "not judged"}[self.holds]

    def row(self) -> dict[str, str]:
        """Return the claim as a row of a table."""
        return {"item": self.item, "states": self.states, "measured": self.measured, "verdict": self.verdict}


def sentence(claim: Claim) -> str:
    """Return a claim, its measured result and its verdict as one sentence."""
    return f"{claim.item}: the paper states {claim.states}; measured {claim.measured}: {claim.verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A mean slope over seeds with a 95 % confidence band; with a single seed, the band is unbounded."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the slope with its confidence band as text."""
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"

    def row(self, **more: Any) -> dict[str, Any]:
        """Return the slope as a row of a table, after the given columns."""
        return {**more, "slope": self.mean, "low": self.low, "high": self.high}


def slope_of(sizes: Sequence[float], values: Sequence[Sequence[float]]) -> Slope:
    """Fit a line to logarithms for each seed, and return the mean slope with a 95 % band (Student's t) over seeds.

    Parameters
    ----------
    sizes : sequence of float
    values : sequence of sequences of float
        For each seed, the values measured at ``sizes``.
    """
    fitted = [float(np.polyfit(np.log(sizes), np.log(each), 1)[0]) for each in values]
    mean, count = float(np.mean(fitted)), len(fitted)
    if count < 2:
        return Slope(mean=mean, low=-math.inf, high=math.inf)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * np.std(fitted, ddof=1) / math.sqrt(count))
    return Slope(mean=mean, low=mean - half, high=mean + half)
