"""The progress card of a run in Prefect: one artifact, there while partitions are summed, and removed at the end.

A process that is killed leaves its card; the next run that shows one removes it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.context import TaskRunContext

from flows.orchestration.prefect_artifacts import artifact_key

UPDATE_EVERY = 2.0  # seconds
FORSAKEN = timedelta(minutes=10)
"""How long a card stays without an update before another run removes it; one that is still in use comes back."""


@contextmanager
def progress_card(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show the running task's progress in Prefect at most every `UPDATE_EVERY` seconds; remove it however that ends.

    Partitions done and in all are public numbers. Outside of a task, and when Prefect's server does not answer, it
    shows nothing: a release does not hang on its display.
    """
    if TaskRunContext.get() is None:
        yield lambda done, total: None
        return
    key, artifact, due = artifact_key("progress", label), cast("UUID | None", None), 0.0
    has_ended, one_at_a_time = False, Lock()  # a cluster reports from threads, some of them after the end
    with suppress(Exception), _client() as client:
        _remove_left(client, key)

    def show(done: int, total: int) -> None:
        nonlocal artifact, due
        if time.monotonic() < due and done < total:
            return
        due = time.monotonic() + UPDATE_EVERY
        share = 100.0 * done / total if total else 100.0
        with one_at_a_time, suppress(Exception):
            if has_ended:
                return
            if artifact is None:
                made = create_progress_artifact(share, key=key, description=label)
                artifact = cast("UUID", made)  # its types say that it may be awaited; outside of a loop it may not
            else:
                shown, artifact = artifact, None  # it is made anew where another run removed it
                update_progress_artifact(shown, share)
                artifact = shown

    try:
        yield show
    finally:
        with one_at_a_time:
            has_ended = True
            if artifact is not None:
                with suppress(Exception), _client() as client:
                    client.delete_artifact(artifact)


def _remove_left(client: SyncPrefectClient, key: str) -> None:
    """Remove cards that killed runs left: of this release, of runs that ended, and those without news for long."""
    kind = ArtifactFilter(type=ArtifactFilterType(any_=["progress"]), key=ArtifactFilterKey(like_="progress-%"))
    cards = client.read_artifacts(artifact_filter=kind)
    runs = FlowRunFilter(id=FlowRunFilterId(any_=[card.flow_run_id for card in cards if card.flow_run_id]))
    live = {run.id for run in client.read_flow_runs(flow_run_filter=runs) if run.state and not run.state.is_final()}
    for card in cards:
        silent = card.updated is not None and datetime.now(UTC) - card.updated > FORSAKEN
        if card.key == key or card.flow_run_id not in live or silent:
            with suppress(Exception):  # another run removed it first
                client.delete_artifact(card.id)


def _client() -> Any:
    return get_client(sync_client=True)
