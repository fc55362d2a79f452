"""Unattended refresh of the champion version by files that arrive in an inbox.

A release of mere noise is withheld, and a low budget pauses the refresh loop.
"""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.schemas.responses import DeploymentResponse

from tests.flows.arriving import DATASET, DELTA, FEATURES, NAME, Webhook, drop, listening
from tests.integration.processes import BIN, check, wait_until
from tests.integration.services import Job, Stack

# one release of epsilon 4 at this delta leaves 51 percent of the budget, two leave 1 percent
EPSILON, NOISE, BUDGET = 4.0, 1e-3, 6.0
DEPLOYMENT, AUTOMATIONS = "refresh-subspace/release-arrivals", "deployments/automations.yaml"
BLOCK = "import sys; from prefect.blocks.system import Secret; Secret(value=sys.argv[1]).save('dpca-webhook-url')"


def refresh_unattended(stack: Stack) -> int:
    """Let a schedule process two files; return the number of notices that its webhook received."""
    inbox = stack.root / "inbox"
    arrived = f"arrived-{DATASET}"
    requested: dict[str, Any] = {"inbox": str(inbox), "dataset": arrived, "population": arrived, "features": FEATURES}
    requested |= {
        "records_at_most": 4_000,
        "components": 2,
        "delta": DELTA,
        "clip_norm": 2.0,
        "publish": f"arrived-{NAME}",
    }
    requested |= {"settled": 0.0, "releases": None}
    stack.dpca("budget", "open", arrived, "--epsilon", BUDGET, "--delta", DELTA)
    with listening() as hook:
        environment = stack.prefect_access
        stack.processes.expect(BIN / "python", "-c", BLOCK, hook.url, environment=environment)
        create = ("--no-prompt", "automation", "create", "--from-file", AUTOMATIONS)
        stack.processes.expect(BIN / "prefect", *create, environment=environment)
        _by_hand(stack, requested, drop(inbox, "first.npy", seed=1))
        check(_champion(stack, requested) == 1, "the first file that arrived did not become the champion")

        def job() -> Job:
            return Job(stack, DEPLOYMENT, {**requested, "epsilon": EPSILON})

        for number, fire, meant in (
            (2, lambda: _once(stack, {**requested, "epsilon": NOISE}), 1),
            (3, lambda: job().fire(), 3),
        ):
            drop(inbox, f"{number}.npy", seed=number)
            ended = job().ending(fire())
            assert ended.state is not None
            check(ended.state.is_completed(), f"run {number} of the loop ended {ended.state.name}")
            check(
                _champion(stack, requested) == meant,
                f"after file {number} the champion is {_champion(stack, requested)}",
            )
        _check_notices(hook)
        wait_until("the automation pauses the loop", lambda: _deployed(stack).paused or None)
    return len(hook.reported)


def _by_hand(stack: Stack, requested: dict[str, Any], _: Path) -> None:
    """Process the first file by the command, because there is no champion version to compare it with."""
    stack.dpca(
        *("subspace", "refresh", requested["inbox"], requested["dataset"], "--population", requested["population"]),
        *("--features", FEATURES, "--records-at-most", 4_000, "--components", 2, "--epsilon", EPSILON),
        *("--delta", DELTA, "--clip-norm", 2.0, "--publish", requested["publish"], "--settled", 0, "--direct", "--yes"),
    )


def _once(stack: Stack, parameters: dict[str, Any]) -> UUID:
    """Create one run of the deployment; a schedule could leave a second run behind, which would take the next file."""
    with stack.client() as client:
        run = client.create_flow_run_from_deployment(_deployed(stack).id, parameters=parameters).id
    return run


def _champion(stack: Stack, requested: dict[str, Any]) -> int:
    shown = json.loads(stack.dpca("registry", "show", f"{requested['publish']}@champion", "--json"))
    return int(str(shown["artifact"]).rpartition("@")[2])


def _check_notices(hook: Webhook) -> None:
    """Check the notices that the worker's runs sent; only a Prefect block contains the webhook's address."""
    found = [reported["event"].removeprefix("dpca.") for reported in hook.reported]
    check(found.count("release.held") == 1, f"the webhook was told {found}")
    check(found.count("release.promoted") == 1, f"the webhook was told {found}")
    low = [reported["percent_left"] for reported in hook.reported if reported["event"] == "dpca.budget.low"]
    check(low == [50, 20, 5], f"the webhook was told of {low} percent left")


def _deployed(stack: Stack) -> DeploymentResponse:
    with stack.client() as client:
        return client.read_deployment_by_name(DEPLOYMENT)
