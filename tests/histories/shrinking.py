"""Minimization of a plan whose history fails: remove faults, actions and processes one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.histories.plans import Plan

MOST_REPLAYS = 60

Fails = Callable[[Plan], bool]


def least(plan: Plan, fails: Fails) -> Plan:
    """Return a failing plan from which nothing can be removed, or the smallest one after `MOST_REPLAYS` replays."""
    replays, is_smaller = 0, True
    while is_smaller and replays < MOST_REPLAYS:
        is_smaller = False
        for smaller in _smaller(plan):
            replays += 1
            if fails(smaller):
                plan, is_smaller = smaller, True
                break
            if replays == MOST_REPLAYS:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with one process, one fault or one action less; the other processes keep their names."""
    for at, script in enumerate(plan.scripts):
        if script:
            yield replace(plan, scripts=(*plan.scripts[:at], (), *plan.scripts[at + 1 :]))
    for at in range(len(plan.faults)):
        yield replace(plan, faults=(*plan.faults[:at], *plan.faults[at + 1 :]))
    for at, script in enumerate(plan.scripts):
        for act in range(len(script)) if len(script) > 1 else ():
            yield replace(
                plan, scripts=(*plan.scripts[:at], (*script[:act], *script[act + 1 :]), *plan.scripts[at + 1 :])
            )
