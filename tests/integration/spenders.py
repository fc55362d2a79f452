"""Process that makes releases one after another, and records every change that the ledger acknowledged.

``python -m tests.integration.spenders NUMBER FOLDER`` runs until ``FOLDER/stop`` exists. While the database is
unavailable, the process repeats the same request, as an operator or a scheduler would.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import Refused, Unavailable
from storage.workspace import Workspace

PEOPLE, STEPS = "crowd", 2
EVENT: dict[str, Any] = {"name": "gaussian", "noise_multiplier": 40.0}
EPSILON, DELTA = 0.1, 1e-6
TERMS: dict[str, float] = {"epsilon": 60.0, "delta": DELTA, "failure_delta": 0.0}
LOST, REFUSED = 0, 3
"""Exit statuses of a spender: after a stop request, and after a refusal of the ledger."""

type Notify = Callable[..., None]


def main() -> int:
    """Make releases until the file ``stop`` exists; return the exit status."""
    number, folder = sys.argv[1], Path(sys.argv[2])
    with (folder / f"{number}.jsonl").open("a") as log:

        def notify(what: str, **facts: Any) -> None:
            log.write(json.dumps({"what": what, "by": number, **facts}) + "\n")
            log.flush()

        for turn in count():
            while True:
                if (folder / "stop").exists():
                    return LOST
                try:
                    spend(Workspace.open(), f"{number}-{turn}", notify)
                    break
                except Unavailable as error:
                    notify("lost", line=str(error))
                    time.sleep(0.1)
                except Refused as error:
                    notify("refused", line=str(error))
                    return REFUSED
    return 0


def spend(workspace: Workspace, run_key: str, notify: Notify) -> None:
    """Make or resume one release from its charge to its version; call ``notify`` for each acknowledged change."""
    ledger, name = workspace.ledger, f"map-{run_key.partition('-')[0]}"
    grant = ledger.reserve(
        PEOPLE, run_key=run_key, fingerprint=run_key, event=EVENT, epsilon=EPSILON, delta=DELTA, snapshot_id="s" * 32,
        request={},
    )  # fmt: skip
    notify("charged", run=run_key, release=grant.release_id)
    digest = ledger.release(grant.release_id).artifact_digest
    if digest is None:
        digest = _compute(workspace, grant.release_id, run_key, notify)
    version = workspace.publish(grant.release_id, name=name, artifact_digest=digest)
    notify("published", run=run_key, name=name, version=version, digest=digest)


def _compute(workspace: Workspace, release_id: str, run_key: str, notify: Notify) -> str:
    reservation = workspace.ledger.begin(release_id)
    notify("begun", run=run_key, release=release_id)
    total = np.zeros(2)
    for step in range(STEPS):
        kept = reservation.kept(step)
        if kept is None:
            drawn = hashlib.sha256(reservation.key + bytes([step])).digest()
            kept = reservation.keep(step, {"answer": np.frombuffer(drawn, np.uint8).astype(np.float64)})
        total += kept["answer"][:2]
        notify("kept", run=run_key, step=step, digest=hashlib.sha256(kept["answer"].tobytes()).hexdigest())
    privacy = {"epsilon": EPSILON, "delta": DELTA, "relation": "add_remove", "event": EVENT}
    facts = {"mechanism": "analyze_gauss", "privacy": privacy, "release": release_id}
    values = np.sort(total)[::-1]
    made = PrivateSubspace(components=np.eye(2, 6), eigenvalues=values, manifest=facts)
    return write_artifact(made, home=workspace.home, place=workspace.store)


if __name__ == "__main__":
    sys.exit(main())
