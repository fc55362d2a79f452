"""Prefect artifacts of a release.

They are a statement in words, the budget as a table, and a progress card. All contain public facts only.

The progress card is one artifact that exists while partitions are summed and is removed at the end. The card of a
killed process stays until the next run that shows a card removes it.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.context import TaskRunContext

from dpca.artifacts.base import Artifact
from flows.remote_ledger.workspaces import read_workspace
from flows.reports.budget_facts import budget_facts, event_text
from flows.reports.release_page import formatted, label, meaning, quality_of

MOST_ROWS = 100
"""Largest number of releases in the table of a budget; the newest ones are shown."""
COLUMNS = ("release", "mechanism", "event", "epsilon", "delta", "state", "artifact", "actor", "time")


def state_release(artifact: str) -> None:
    """Attach the statement of a published release, and the table of its budget, to the running flow."""
    workspace = read_workspace()
    ledger, registry = workspace.ledger, workspace.registry
    loaded: Artifact
    shown, loaded = registry.show(artifact), registry.load(artifact)
    create_markdown_artifact(
        key=artifact_key("release", artifact.partition("@")[0]),
        markdown=release_statement(shown, loaded.headline()),
        description=f"{artifact}: a {'private' if shown['private'] else 'NOT private'} {loaded.noun}",
    )
    _show_budget(budget_facts(ledger, ledger.release(shown["release"]).population, newest=MOST_ROWS))


def state_refusal(dataset: str, epsilon: float | None, delta: float | None) -> None:
    """Attach the refusal of a release by its budget, and the table of that budget, to the running flow."""
    workspace = read_workspace()
    facts = budget_facts(workspace.ledger, workspace.catalog.current(dataset).population, newest=MOST_ROWS)
    create_markdown_artifact(
        key=artifact_key("refusal", facts["population"]),
        markdown=refusal_statement(facts, epsilon=epsilon, delta=delta),
        description=f"budget of {facts['population']}: a release was refused, nothing was charged",
    )
    _show_budget(facts)


def state_verdict(publish: str, verdict: str, text: str) -> None:
    """Attach the verdict of a dry run (whether the budget admits the release) to the running flow."""
    create_markdown_artifact(
        key=artifact_key("dry-run", publish), markdown=f"# {verdict}\n\n{text}", description=f"dry run of {publish}"
    )


def artifact_key(kind: str, name: str) -> str:
    """Return a valid Prefect artifact key, which has lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", f"{kind}-{name.lower()}").strip("-")


def release_statement(shown: Mapping[str, Any], headline: str) -> str:
    """Return a Markdown statement of a release and its guarantee.

    ``shown`` is the result of `Registry.show`, ``headline`` the headline of the artifact.
    """
    privacy = shown["manifest"]["privacy"]
    outcome = shown["manifest"].get("outcome") or {}
    return "\n".join(
        (
            f"# {shown['artifact']}",
            "",
            f"{headline}, released by `{shown['mechanism']}` {_promise(shown)}",
            "",
            *((outcome["verdict"], "") if "verdict" in outcome else ()),
            "| fact | value | meaning |",
            "| --- | --- | --- |",
            *(
                f"| {label(name)} | {formatted(value, name=name)} | {meaning(name)} |"
                for name, value in quality_of(outcome).items()
            ),
            *([f"| clip norm | {shown['clip_norm']:g} | |"] if shown.get("clip_norm") is not None else []),
            f"| noise multiplier | {shown['noise_multiplier']:.6g} | noise over sensitivity |",
            f"| event | {event_text(privacy['event'])} | |",
            f"| release | `{shown['release']}` | |",
            f"| digest | `sha256:{shown['digest']}` | |",
            "",
            *(line for warning in shown["manifest"].get("warnings", ()) for line in (f"**Warning:** {warning}", "")),
            f'Load it with `Registry.open().load("{shown["artifact"]}")`.',
        )
    )


def refusal_statement(facts: Mapping[str, Any], *, epsilon: float | None, delta: float | None) -> str:
    """Return a Markdown statement of a refused charge and the remaining budget; ``facts`` come from `budget_facts`."""
    requested = "no privacy" if epsilon is None else f"epsilon {epsilon:g} at delta {delta or 0.0:g}"
    return "\n".join(
        (
            f"# The budget of {facts['population']} does not admit this release",
            "",
            f"Requested: {requested}. Left for one release: epsilon {facts['remaining']:.6g} at delta "
            f"{facts['delta']:g}. Nothing was charged, and no data were read.",
            "",
            f"Excluded mechanisms: {facts['excludes']}.",
            "",
            "Request less, or stop the schedule: a budget never grows.",
        )
    )


def _promise(shown: Mapping[str, Any]) -> str:
    if not shown["private"]:
        return "WITHOUT PRIVACY: a reference result without any guarantee for the people in the data."
    return f"with {shown['statement']}."


def budget_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one table row per release, oldest first; ``facts`` come from `budget_facts`."""
    return [{name: _cell(row[name]) for name in COLUMNS} for row in facts["releases"]]


def _show_budget(facts: Mapping[str, Any]) -> None:
    create_table_artifact(
        key=artifact_key("budget", facts["population"]),
        table=budget_rows(facts),
        description=(
            f"budget of {facts['population']}: epsilon {facts['epsilon']:g} at delta {facts['delta']:g} "
            f"({facts['filter']} filter), {facts['statement']}; spent {facts['spent']:.6g}, "
            f"left for one release {facts['remaining']:.6g}"
            + (f"; {facts['earlier']} earlier releases are not shown" if facts.get("earlier") else "")
        ),
    )


def _cell(value: Any) -> Any:
    if value is None:
        return "-"
    if isinstance(value, float) and not math.isfinite(value):
        return "infinite"
    return event_text(value) if isinstance(value, Mapping) else value


UPDATE_EVERY = 2.0  # seconds
FORSAKEN = timedelta(minutes=10)
"""Time without an update after which another run removes a card. A card that is still in use is created again."""


@contextmanager
def progress_card(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of the running task in Prefect, and remove the card at the end in all cases.

    The card is updated at most every `UPDATE_EVERY` seconds. The number of finished partitions and their total are
    public. Nothing is shown outside of a task or if Prefect's server does not answer, because a release must not depend
    on its display.
    """
    if TaskRunContext.get() is None:
        yield lambda done, total: None
        return
    key, artifact, due = artifact_key("progress", label), cast("UUID | None", None), 0.0
    has_ended, one_at_a_time = False, Lock()  # a cluster reports from several threads, even after the end
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
                artifact = cast("UUID", made)  # awaitable only inside an event loop
            else:
                shown, artifact = artifact, None  # if the update fails, the next call creates a new card
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
    """Remove old cards: cards of this release, cards of ended runs, and cards without an update for `FORSAKEN`."""
    kind = ArtifactFilter(type=ArtifactFilterType(any_=["progress"]), key=ArtifactFilterKey(like_="progress-%"))
    cards = client.read_artifacts(artifact_filter=kind)
    runs = FlowRunFilter(id=FlowRunFilterId(any_=[card.flow_run_id for card in cards if card.flow_run_id]))
    live = {run.id for run in client.read_flow_runs(flow_run_filter=runs) if run.state and not run.state.is_final()}
    for card in cards:
        silent = card.updated is not None and datetime.now(UTC) - card.updated > FORSAKEN
        if card.key == key or card.flow_run_id not in live or silent:
            with suppress(Exception):  # another run may have removed the card first
                client.delete_artifact(card.id)


def _client() -> Any:
    return get_client(sync_client=True)
