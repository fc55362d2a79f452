"""What Prefect shows of a release: a statement in words and the budget as a table, from public facts alone."""

import re
from collections.abc import Mapping
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.budget import budget_facts, event_text
from storage.ledger import Ledger
from storage.registry import Registry

COLUMNS = ("release", "mechanism", "event", "epsilon", "delta", "state", "artifact", "time")


def state_release(artifact: str) -> None:
    """Attach the statement of a published release, and the table of its budget, to the running flow."""
    shown = Registry.open().show(artifact)
    ledger = Ledger.open()
    facts = budget_facts(ledger, ledger.release(shown["release"]).population)
    create_markdown_artifact(
        key=artifact_key("release", artifact.partition("@")[0]),
        markdown=release_statement(shown),
        description=f"{artifact}: a private subspace",
    )
    create_table_artifact(
        key=artifact_key("budget", facts["population"]),
        table=budget_rows(facts),
        description=(
            f"budget of {facts['population']}: epsilon {facts['epsilon']:g} at delta {facts['delta']:g} "
            f"({facts['relation']}, {facts['filter']} filter); spent {facts['spent']:.6g}, "
            f"left for one release {facts['remaining']:.6g}"
        ),
    )


def artifact_key(kind: str, name: str) -> str:
    """Write a name as Prefect wants its keys: lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", f"{kind}-{name.lower()}").strip("-")


def release_statement(shown: Mapping[str, Any]) -> str:
    """State in Markdown what was released and what it guarantees; ``shown`` is what `Registry.show` says."""
    privacy = shown["manifest"]["privacy"]
    return "\n".join(
        (
            f"# {shown['artifact']}",
            "",
            f"{shown['n_components']} components of {shown['n_features']} features, released by "
            f"`{shown['mechanism']}` with ({shown['epsilon']:g}, {shown['delta']:g})-differential privacy "
            f"per {privacy['unit']} (`{shown['relation']}`).",
            "",
            "| fact | value |",
            "| --- | --- |",
            f"| clip norm | {shown['clip_norm']:g} |",
            f"| noise multiplier | {shown['noise_multiplier']:.6g} |",
            f"| event | {event_text(privacy['event'])} |",
            f"| release | `{shown['release']}` |",
            f"| digest | `sha256:{shown['digest']}` |",
            "",
            f'Load it with `Registry.open().load("{shown["artifact"]}")`.',
        )
    )


def budget_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row a release for a table, oldest first; ``facts`` is what `budget_facts` says."""
    return [{name: _cell(row[name]) for name in COLUMNS} for row in facts["releases"]]


def _cell(value: Any) -> Any:
    if value is None:
        return "-"
    return event_text(value) if isinstance(value, Mapping) else value
