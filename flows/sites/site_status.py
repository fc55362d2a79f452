"""The state of a site for its operator: roster, dataset, limits, budget and joint releases."""

from typing import Any

from dpca_tasks.errors import InvalidInput
from flows.sites.site_config import PartyConfig
from flows.sites.site_releases import FAMILY
from storage.workspace import Workspace


def status_of(config: PartyConfig) -> dict[str, Any]:
    """Return what the operator of a site wants to know; nothing is charged, no row is read.

    Raises
    ------
    InvalidInput
        For a helper, which keeps nothing.
    """
    if config.limits is None:
        raise InvalidInput("a helper has no state: seeds are in its memory alone; ask for the status of a site.")
    workspace = Workspace.read_only()
    entry = workspace.catalog.current(config.dataset)
    statement = workspace.ledger.statement(entry.population)
    joint = [row for row in statement.releases if row.request.get("family") == FAMILY]
    return {
        "site": config.name,
        "address": config.post.address,
        "fingerprint": config.post.fingerprint,
        "roster": config.roster.digest,
        "sites": [site.name for site in config.roster.sites],
        "dataset": config.dataset,
        "population": entry.population,
        "epsilon_at_most": config.limits.epsilon,
        "delta_at_most": config.limits.delta,
        "methods": list(config.limits.methods),
        "spent": statement.spent,
        "remaining": statement.remaining,
        "releases": [
            {"release": row.id, "method": row.request["method"], "epsilon": row.epsilon, "state": row.state}
            for row in joint
        ],
    }
