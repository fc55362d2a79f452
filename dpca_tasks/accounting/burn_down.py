"""The budget spent and left after each of many releases, in time linear in their number.

A budget's numbers of today are searched for with 50 digits (`dpca_tasks.accounting.gaussian`), which takes
milliseconds. A history needs them for every release, and there floats are enough: these numbers are computed together
and moved to the safe side by more than their error, so that nothing is shown as less than was spent or as more than was
left.
"""

import math
from collections.abc import Sequence

import numpy as np

from dpca_tasks.accounting.charges import Charge
from dpca_tasks.accounting.filters import GdpFilter, PrivacyFilter
from dpca_tasks.accounting.gaussian import UNITS, float_epsilons
from dpca_tasks.accounting.prices import MOST

_MARGIN = 1e-11
"""A tolerance relative to 1 + epsilon; the error of `float_epsilons` is at most a fifth of it, at the smallest mu."""


def burn_down(rules: PrivacyFilter, totals: Sequence[Charge]) -> list[tuple[float, float]]:
    """Return (spent, remaining) after each total of a growing sequence.

    Guarantees
    ----------
    The last pair is that of `PrivacyFilter.spent` and `PrivacyFilter.remaining`. The others differ from it, where
    they do, by at most ``2e-11 (1 + epsilon)`` more spent, and a part in 1e8 less remaining.
    """
    sure = {len(totals) - 1}
    sure |= {at for at, total in enumerate(totals) if not any(total[2:]) or max(total) >= MOST}
    others = [at for at in range(len(totals)) if at not in sure]
    spent, remaining = _spent(rules, [totals[at] for at in others]), _remaining(rules, [totals[at] for at in others])
    found = dict(zip(others, zip(spent, remaining, strict=True), strict=True))
    return [
        found[at] if at in found else (rules.spent(total), rules.remaining(total)) for at, total in enumerate(totals)
    ]


def _spent(rules: PrivacyFilter, totals: Sequence[Charge]) -> list[float]:
    if not isinstance(rules, GdpFilter):
        return [rules.spent(total) for total in totals]  # a few sums of floats
    deltas = {failed: 0.0 for failed in {total[1] + total[-1] for total in totals}}
    for failed in deltas:
        deltas[failed] = rules.delta_unspent((0, failed, 0, 0))
    rough = float_epsilons(
        np.array([total[2] / UNITS for total in totals]), np.array([deltas[total[1] + total[-1]] for total in totals])
    )
    safe = (rough + _MARGIN * (1.0 + rough)).tolist()
    return [
        rules.spent(total) if math.isnan(composed) else composed + rules.own_spent(total) if total[0] else composed
        for total, composed in zip(totals, safe, strict=True)
    ]


def _remaining(rules: PrivacyFilter, totals: Sequence[Charge]) -> list[float]:
    beside = {(total[0], total[1], *(0,) * (len(total) - 3), total[-1]) for total in totals}  # all but mu squared
    within = {(total[0], total[1], total[-1]): rules.admits(total) for total in beside}
    if isinstance(rules, GdpFilter):  # what is left of mu squared is a limit less what was taken
        limits = {(total[0], total[1], total[-1]): rules.units_left(total) for total in beside}
        lefts = [limits[total[0], total[1], total[-1]] - total[2] for total in totals]
    else:
        lefts = [rules.units_left(total) for total in totals]
    units = [
        max(left, 0) if within[total[0], total[1], total[-1]] else 0 for total, left in zip(totals, lefts, strict=True)
    ]
    rough = float_epsilons(np.array([left / UNITS for left in units]), np.full(len(units), rules.delta))
    safe = (rough - _MARGIN * (1.0 + rough)).tolist()
    return [
        0.0 if not left else _shortened(asked) if asked > 0 else rules.remaining(total)
        for total, left, asked in zip(totals, units, safe, strict=True)
    ]


def _shortened(asked: float) -> float:
    """Return a number of nine digits that is not above another, or of twelve."""
    short = float(f"{asked:.9g}")
    return short if short <= asked else float(f"{asked * (1.0 - 1e-11):.12g}")
