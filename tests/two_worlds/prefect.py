"""Content of a Prefect server about the runs of one world: states, parameters, logs, artifacts and events."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

DRAWN = (
    *("id", "flow_id", "flow_run_id", "task_run_id", "deployment_id", "state_id", "parent_task_run_id", "task_run_ids"),
    *("created", "updated", "start_time", "end_time", "expected_start_time", "next_scheduled_start_time", "timestamp"),
    *("total_run_time", "estimated_run_time", "estimated_start_time_delta", "created_by", "run_id", "worker_id"),
    *("dynamic_key", "idempotency_key", "occurred", "received", "follows", "related", "run_input_keyset", "__parents"),
    "transition_id",
)
"""Fields that Prefect draws, or that contain an instant or a duration."""
_QUOTED = re.compile(r"(Flow|Task) run '[^']*'")
_SUFFIX = re.compile(r"-[0-9a-f]{3}$")
"""Suffix that Prefect adds to the name of a task run; the whole name of a flow run is drawn."""
_STILL = 3
"""Number of unchanged readings, a second apart, after which the content counts as complete."""
_known: set[str] = set()


def remember() -> None:
    """Record the runs that the server already has, so that none of them counts as a run of this world."""
    _known.clear()
    _known.update(str(item.id) for read in _reads() for item in _pages(read))


def shown() -> dict[str, bytes]:
    """Return the server's content about this world's runs, by kind, when it no longer changes."""
    found, again = _read_all(), 0
    while again < _STILL:  # logs and events are sent in the background
        time.sleep(1.0)
        before, found = found, _read_all()
        again = again + 1 if found == before else 0
    return found


def _read_all() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for kind, read in zip(("flow runs", "task runs", "artifacts"), _reads(), strict=True):
        items = [item for item in _pages(read) if str(item.id) not in _known]
        texts = sorted(_plain(_named(kind, item.model_dump(mode="json"))) for item in items)
        found[f"Prefect's {kind}"] = "\n".join(texts).encode()
    found["Prefect's logs"] = "\n".join(sorted(_logs())).encode()
    found["Prefect's events"] = "\n".join(sorted(_events())).encode()
    return found


def _reads() -> tuple[Callable[..., list[Any]], ...]:
    from prefect.client.orchestration import get_client

    client = get_client(sync_client=True)
    return client.read_flow_runs, client.read_task_runs, client.read_artifacts


def _pages(read: Callable[..., list[Any]]) -> Iterator[Any]:
    seen = 0
    while page := read(offset=seen):
        yield from page
        seen += len(page)


def _new_runs() -> list[str]:
    flow_runs, _, _ = _reads()
    return [str(run.id) for run in _pages(flow_runs) if str(run.id) not in _known]


def _logs() -> Iterator[str]:
    for entry in _post("/logs/filter", {"logs": {"flow_run_id": {"any_": _new_runs()}}, "limit": 200}):
        message = _QUOTED.sub("a run", entry["message"])
        yield _plain({"name": entry["name"], "level": entry["level"], "message": message})


def _events() -> Iterator[str]:
    """Yield the product's own events; Prefect's events are about states, which are already compared."""
    page = _post("/events/filter", {"filter": {"event": {"prefix": ["dpca."]}}, "limit": 50})
    for event in page["events"]:
        runs = [str(part.get("prefect.resource.id", "")).rpartition(".")[2] for part in event["related"]]
        if set(runs) & set(_new_runs()):
            yield _plain({name: event[name] for name in ("event", "resource", "payload")})


def _post(path: str, body: dict[str, Any]) -> Any:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        answer = client._client.post(path, json=body)
        answer.raise_for_status()
        return answer.json()


def _plain(facts: Any) -> str:
    return json.dumps(_kept(facts), sort_keys=True)


def _named(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts of a run, without the random part of its name."""
    if kind == "flow runs":
        return {**facts, "name": "drawn"}
    return {**facts, "name": _SUFFIX.sub("", facts["name"])} if kind == "task runs" else facts


def _kept(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {name: _kept(value) for name, value in facts.items() if name not in DRAWN}
    return [_kept(value) for value in facts] if isinstance(facts, list) else facts
