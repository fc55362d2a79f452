"""The facts of one budget: allowed, spent and left over time, what runs to come may still get, and its streams."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from flows.reports.budget_facts import budget_facts, event_text
from flows.reports.pacing_facts import pacing_facts, runs_that_fit
from flows.web.absent import Absent
from flows.web.listing import populations_in
from storage.database.engine import reading
from storage.ledger.ledger import Ledger
from storage.ledger.stream_rows import streams_in, ticks_of
from storage.workspace import Workspace

RUNS = (1, 2, 4, 12, 26, 52)
"""Numbers of runs to come that a page states the shares of."""
_PLAIN = r"[a-z0-9][a-z0-9._-]{0,99}"
_RELEASE = ("release", "mechanism", "epsilon", "delta", "state", "artifact", "damaged", "time")


def address_of(population: str) -> str:
    """Return a population's part of an address: its name where that is plain, else a digest of it."""
    if re.fullmatch(_PLAIN, population):
        return population
    return "~" + hashlib.sha256(population.encode()).hexdigest()[:24]


def population_at(connection: sa.Connection, address: str) -> str:
    """Return the population of a part of an address, or raise `Absent`."""
    for population in populations_in(connection):
        if address_of(population) == address:
            return population
    raise Absent("No population of that name has a budget here.")


def budget_page(workspace: Workspace, address: str) -> dict[str, Any]:
    """Return all that the page of a budget shows."""
    ledger = workspace.ledger
    with reading(ledger.engine) as connection:
        population = population_at(connection, address)
        streams = [
            {
                "stream": stream.name,
                "live": stream.is_live,
                "dataset": stream.terms.get("dataset"),
                "ticks": stream.ticks,
                "used": len(ticks_of(connection, stream.id)),
            }
            for stream in streams_in(connection)
            if stream.population == population
        ]
    facts = budget_facts(ledger, population)
    gaussian = [row for row in facts["releases"] if row["event"]["name"] == "gaussian" and row["state"] != "abandoned"]
    releases = [
        {**{name: row[name] for name in _RELEASE}, "event": event_text(row["event"])} for row in facts.pop("releases")
    ]
    history = [
        {"time": row["time"], "release": row["release"], "spent": row["spent"], "remaining": row["remaining"]}
        for row in ledger.history(population)
    ]
    return {
        **facts,
        "voided": facts.get("voided", False),
        "releases": releases,
        "history": history,
        "streams": streams,
        "pacing": [pacing_facts(ledger, population, runs=runs) for runs in RUNS],
        "same_again": _same_again(ledger, population, gaussian),
        "charts": {"burn_down": f"budgets/{address}/burn-down" if history else None},
    }


def _same_again(ledger: Ledger, population: str, gaussian: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return how many releases like the newest Gaussian one still fit; None where there was none."""
    if not gaussian:
        return None
    epsilon, delta = gaussian[-1]["epsilon"], gaussian[-1]["delta"]
    runs = runs_that_fit(ledger, population, epsilon=epsilon, delta=delta)
    return {"epsilon": epsilon, "delta": delta, "runs": runs}
