"""A budget in words and rows: what was allowed, spent and left, and every release. All of it is public."""

import math
from collections.abc import Mapping
from typing import Any

from storage.ledger import Ledger
from storage.registry import Registry


def budget_facts(ledger: Ledger, population: str) -> dict[str, Any]:
    """Return a budget's terms, what was spent and is left of it, and one row a release, oldest first."""
    statement = ledger.statement(population)
    budget = statement.budget
    published: dict[str, list[str]] = {}
    for version in Registry.open().list():
        published.setdefault(version.digest, []).append(str(version))
    releases = [
        {
            "release": row.id,
            "mechanism": row.request.get("mechanism"),
            "event": row.event,
            "epsilon": row.epsilon,
            "delta": row.delta,
            "state": row.state,
            "artifact": ", ".join(published.get(row.artifact_digest or "", [])) or None,
            "digest": row.artifact_digest,
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
        "unit": budget.unit,
        "spent": statement.spent,
        "remaining": statement.remaining,
        **({"voided": True} if math.isinf(statement.spent) else {}),
        "releases": releases,
    }


def event_text(event: Mapping[str, Any]) -> str:
    """Write an event in a few characters, such as ``8 x gaussian(11.9)``."""
    match event:
        case {"name": "composed", "events": events}:
            return " + ".join(map(event_text, events))
        case {"name": "self_composed", "event": part, "count": count}:
            return f"{count} x {event_text(part)}"
        case {"name": "poisson_sampled", "event": part, "rate": rate}:
            return f"sampled({rate:g}, {event_text(part)})"
        case {"name": name, **numbers}:
            return f"{name}({', '.join(f'{number:.4g}' for number in numbers.values())})"
    raise ValueError(f"event {event!r} has no name; record events through dpca_tasks.privacy.events.")
