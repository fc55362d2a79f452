"""Pacing of a budget: how many equal Gaussian releases still fit, and the largest epsilon of each of so many.

A filter decides whether a total is admitted, so it alone decides here: releases are charged one after another as the
ledger charges them, and the largest epsilon is the last float of which every release is admitted. Nothing is rounded
in between.

>>> from dpca_tasks.accounting.filters import build_filter
>>> rules = build_filter("gdp", epsilon=4.0, delta=1e-6)
>>> each = largest_epsilon(rules, rules.zero, runs=52, delta=1e-6)
>>> f"{each:.6f}", admitted_runs(rules, rules.zero, epsilon=each, delta=1e-6)
('0.465948', 52)
>>> admitted_runs(rules, rules.zero, epsilon=math.nextafter(each, 1.0), delta=1e-6)
51
"""

import math
from collections.abc import Callable

from dpca_tasks.accounting.calibration import check_count, check_guarantee, gaussian_noise_multiplier
from dpca_tasks.accounting.charges import Charge, add
from dpca_tasks.accounting.events import Event, gaussian
from dpca_tasks.accounting.filters import PrivacyFilter
from dpca_tasks.accounting.gaussian import largest_units, smallest_epsilon


def total_after_runs(rules: PrivacyFilter, total: Charge, *, runs: int, epsilon: float, delta: float) -> Charge | None:
    """Return the total after so many Gaussian releases of (epsilon, delta); None when one of them is not admitted."""
    event = gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta))
    return _after(rules, total, event, runs=runs, delta=delta)


def admitted_runs(rules: PrivacyFilter, total: Charge, *, epsilon: float, delta: float) -> int:
    """Return how many Gaussian releases of (epsilon, delta) are admitted one after another after a total."""
    event = gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta))

    def admitted(runs: int) -> bool:
        return _after(rules, total, event, runs=runs, delta=delta) is not None

    most = 1
    while admitted(most):
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if admitted(middle) else (least, middle)
    return least


def largest_epsilon(rules: PrivacyFilter, total: Charge, *, runs: int, delta: float) -> float:
    """Return the largest epsilon of which so many Gaussian releases are admitted after a total; 0 when none is.

    Parameters
    ----------
    rules : PrivacyFilter
        The budget's.
    total : Charge
        What was charged so far.
    runs : int
        How many releases share what is left equally.
    delta : float
        Of each release: its noise is calibrated to (epsilon, delta).
    """
    check_count("runs", runs)
    check_guarantee(delta=delta)

    def holds(epsilon: float) -> bool:
        if not (epsilon > 0 and largest_units(epsilon, delta) > 0):
            return False
        return total_after_runs(rules, total, runs=runs, epsilon=epsilon, delta=delta) is not None

    if not rules.admits(total):
        return 0.0
    shares = [smallest_epsilon(units, delta)] if (units := rules.units_left(total) // runs) > 0 else []
    if (alone := rules.own_left(total)) is not None:
        shares.append(alone[0] / runs)
    return max((_last(holds, share) for share in shares if share > 0), default=0.0)


def share_left(rules: PrivacyFilter, total: Charge) -> float:
    """Return the part of a budget that is left for Gaussian releases: half of it, after 26 of 52 equal ones."""
    if not rules.admits(total):
        return 0.0
    whole = rules.units_left(rules.zero)
    if whole <= 0:  # no Gaussian release is admitted at all, and what is left is left of epsilon
        return max(0.0, 1.0 - rules.spent(total) / rules.epsilon)
    return max(rules.units_left(total), 0) / whole


def _after(rules: PrivacyFilter, total: Charge, event: Event, *, runs: int, delta: float) -> Charge | None:
    """Charge an event so often; in a composition that has begun, each costs the same."""
    for left in range(runs, 0, -1):
        charge = rules.charge_after(total, event, delta=delta)
        if any(charge[2:]):
            whole = add(total, tuple(left * number for number in charge))
            return whole if rules.admits(whole) else None
        total = add(total, charge)
        if not rules.admits(total):
            return None
    return total


def _last(holds: Callable[[float], bool], guess: float) -> float:
    """Return the last float at which something holds that ends near a guess, and 0 when it holds nowhere below."""
    step = math.ulp(guess)
    if holds(guess):
        low = guess
        while holds(high := low + step):
            low, step = high, 2 * step
    else:
        high = guess
        while not holds(low := high - step):
            if low <= 0:
                return 0.0
            high, step = low, 2 * step
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
