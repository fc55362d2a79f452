"""``dpca doctor``: check everything that a run depends on, and report what to fix."""

from dataclasses import asdict
from typing import Annotated

import typer

from flows.reports.activity import activity
from flows.reports.terminal import print_json


def doctor(
    everything: Annotated[
        bool, typer.Option("--all", help="Look at all entries, rows and manifests, and not at new and some old ones.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check settings, versions, permissions, database, ledger, store, cluster, clock and Prefect; report what to fix.

    No dataset is read and nothing is charged. The exit code is 1 when something must be fixed. A run looks at all that
    is new in ledger and registry, at what was spent, and at the next part of what earlier runs saw.
    """
    with activity("examining"):
        from flows.doctor import examine

        findings = examine(everything=everything)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(f"{finding.verdict:<4}  {finding.check:<8}  {finding.found}")
            if finding.advice:
                typer.echo(f"{'':<16}-> {finding.advice}")
    if any(finding.verdict == "fix" for finding in findings):
        raise typer.Exit(1)
