"""Public facts of a budget, as text and rows.

They state the allowed, spent and remaining epsilon, every release, and the epsilon of each of several equal future
runs.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict
from decimal import ROUND_DOWN, Context
from typing import Any

import sqlalchemy as sa

from dpca.errors import Corrupt, NotFound, Refused
from dpca.registry.reader import Registry
from storage.database import tables
from storage.database.engine import reading
from storage.ledger.balance import BOUNDS, ReleaseLedger, Statement, knows_samples
from storage.ledger.budgets import Budget
from storage.ledger.ledger import Ledger


def budget_facts(ledger: ReleaseLedger, population: str, *, newest: int | None = None) -> dict[str, Any]:
    """Return a budget's terms, what is spent and left, and one row for each release, oldest first.

    In the row of a release, ``remaining`` is the epsilon that was left after the release, or None if the release was
    not charged. ``damaged`` is the name under which the release was published, if the pointer file of that name is
    damaged and the version is therefore unknown; else it is None. With ``newest``, only that many of the newest
    releases are returned, and ``earlier`` is the number of releases before them.
    """
    statement = ledger.statement(population, newest=newest, burn_down=True)
    budget = statement.budget
    names = {reference.partition("@")[0] for found in statement.published.values() for reference in found}
    names |= {str(row.request.get("publish")) for row in statement.releases}
    digests = {row.artifact_digest for row in statement.releases}
    published, damaged = _published(Registry.open(), names, digests)
    releases = [
        {
            "release": row.id,
            "mechanism": row.request.get("mechanism"),
            "event": row.event,
            "epsilon": row.epsilon,
            "delta": row.delta,
            "remaining": statement.left.get(row.id),
            "state": row.state,
            "artifact": ", ".join(published.get(row.artifact_digest or "", [])) or None,
            "damaged": row.request.get("publish") if row.request.get("publish") in damaged else None,
            "digest": row.artifact_digest,
            "actor": statement.actors.get(row.id),
            "time": row.updated_at,
        }
        for row in statement.releases
    ]
    return {
        "population": budget.population,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "relation": budget.relation,
        "filter": budget.filter,
        "failure_delta": budget.failure_delta,
        "excludes": exclusions(budget),
        **budget.privacy_unit.facts,
        "statement": budget.statement(statement.spent),
        "spent": statement.spent,
        "remaining": statement.remaining,
        **({"voided": True} if math.isinf(statement.spent) else {}),
        **({} if newest is None else {"earlier": statement.earlier}),
        "releases": releases,
    }


def populations_in(connection: sa.Connection) -> list[str]:
    """Return every population with a budget, sorted."""
    return sorted(connection.execute(sa.select(tables.budget.c.population)).scalars())


def balances(ledger: Ledger) -> list[dict[str, Any]]:
    """Return one row for each budget, with its terms, the spent and remaining epsilon, and the number of releases.

    Abandoned releases are not counted.
    """
    with reading(ledger.engine) as connection:
        populations = populations_in(connection)
    return [_balance(ledger.statement(population)) for population in populations]


def _balance(statement: Statement) -> dict[str, Any]:
    budget = statement.budget
    return {
        "population": budget.population,
        **{"epsilon": budget.epsilon, "delta": budget.delta, "relation": budget.relation},
        **budget.privacy_unit.facts,
        "statement": budget.statement(statement.spent),
        "spent": statement.spent,
        "remaining": statement.remaining,
        "releases": sum(row.state != "abandoned" for row in statement.releases),
    }


def _published(
    registry: Registry, names: Collection[str], digests: Collection[str | None]
) -> tuple[dict[str, list[str]], set[str]]:
    """Return the versions of each digest under the given names, and the names whose pointer files are damaged."""
    versions, damaged = dict[str, list[str]](), set[str]()
    for name in registry.names():
        if name not in names:
            continue
        try:
            found = registry.digests(name).items()
        except (Corrupt, NotFound, Refused):
            damaged.add(name)
        else:
            for version, digest in sorted(each for each in found if each[1] in digests):
                versions.setdefault(digest, []).append(f"{name}@{version}")
    return versions, damaged


def exclusions(budget: Budget) -> str:
    """Describe the mechanisms that the terms of a budget exclude after its first Gaussian release."""
    sampled = [] if knows_samples(budget) else ["dp_spca and dp_vrpca with samples"]
    kinds = ", ".join([*sampled, "propose_test_release", "smooth_sensitivity and exponential with a delta"])
    if budget.failure_delta:
        return (
            f"none: all mechanisms are still allowed. After the first Gaussian release, {kinds} share delta "
            f"{budget.failure_delta:g}, and a release that is not Gaussian is charged as {BOUNDS[budget.filter]}"
        )
    return f"after the first Gaussian release, because failure_delta is 0: {kinds}. Release those first"


def event_text(event: Mapping[str, Any]) -> str:
    """Write an event in a few characters, such as ``8 x gaussian(11.9)``."""
    match event:
        case {"name": "composed", "events": events}:
            return " + ".join(map(event_text, events))
        case {"name": "self_composed", "event": part, "count": count}:
            return f"{count} x {event_text(part)}"
        case {"name": "poisson_sampled", "event": part, "rate": rate}:
            return f"sampled({rate:g}, {event_text(part)})"
        case {"name": "stream_tick", "tick": tick}:
            return f"tick {tick}, paid by its stream"
        case {"name": name, **numbers}:
            return f"{name}({', '.join(f'{number:.4g}' for number in numbers.values())})"
    raise ValueError(f"event {event!r} has no name; create events with dpca_tasks.accounting.events.")


_NINE_DIGITS = Context(prec=9, rounding=ROUND_DOWN)


def pacing_facts(ledger: Ledger, population: str, *, runs: int, delta: float | None = None) -> dict[str, Any]:
    """Return the epsilon of each run if ``runs`` equal Gaussian releases spend the remaining budget.

    Parameters
    ----------
    ledger : Ledger
    population : str
        The population whose budget is charged.
    runs : int
        Number of releases still to come.
    delta : float, optional
        Delta of each release. By default it is the budget's delta, which is also the delta of the remaining epsilon.

    Returns
    -------
    dict
        ``epsilon_each`` is the largest epsilon with which the budget admits all runs, or 0 if there is none.
        ``remaining`` is the largest epsilon of one more release now, and ``after`` the largest one after all runs.
        ``state`` is ``open``, ``exhausted`` or ``voided``.
    """
    pace = asdict(ledger.pace(population, runs=runs, delta=delta))
    return {"population": population, "runs_left": pace.pop("runs"), **pace}


def runs_that_fit(ledger: Ledger, population: str, *, epsilon: float, delta: float) -> int:
    """Return how many more Gaussian releases of (epsilon, delta) a population's budget admits."""
    return ledger.runs_that_fit(population, epsilon=epsilon, delta=delta)


def written_share(epsilon: float) -> float:
    """Return the epsilon of one run, rounded down to nine digits, so that it is readable and all runs are admitted.

    The difference also covers rounding errors of mechanisms whose event has several Gaussian steps.
    """
    return float(_NINE_DIGITS.create_decimal_from_float(epsilon))
