"""``dpca audit``: attack the mechanisms and compare with what they claim; check an exported audit trail."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from flows.reports.activity import activity
from flows.reports.terminal import print_facts, print_rows

app = typer.Typer(invoke_without_command=True)

COLUMNS = ("mechanism", "relation", "epsilon", "delta", "bound", "confidence", "trials", "attack", "verdict")


@app.callback()
def audit(
    context: typer.Context,
    mechanism: Annotated[str | None, typer.Option(help="Audit this mechanism only.")] = None,
    trials: Annotated[int, typer.Option(min=2, help="Runs on each dataset of the pair attacked.")] = 4000,
    confidence: Annotated[float, typer.Option(help="Confidence of each bound.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bound the true epsilon of each mechanism from below by attacking it; no data are read, nothing is spent.

    A mechanism that keeps its claim is found to pass it with probability at most 1 - CONFIDENCE a row. The exit code
    is 1 when any does.
    """
    if context.invoked_subcommand is not None:
        return
    from contextlib import suppress
    from typing import get_args

    from dpca_tasks.accounting.relation import Relation
    from dpca_tasks.audit.trials import audit_mechanism
    from dpca_tasks.errors import InvalidInput, Refused
    from flows.families.table import FAMILIES

    subjects = {name: family.audit for family in FAMILIES.values() for name in family.audit.names}
    if mechanism is not None and mechanism not in subjects:
        raise InvalidInput(f"mechanism {mechanism!r} is unknown; choose one of {', '.join(sorted(subjects))}.")
    findings = []
    for name in [mechanism] if mechanism else subjects:
        subject = subjects[name]
        for relation in get_args(Relation):
            with activity(f"attacking {name}, {relation}") as seen, suppress(Refused):  # it makes no claim there
                findings.append(
                    audit_mechanism(
                        subject.build(name),
                        relation=relation,
                        subject=subject,
                        trials=trials,
                        confidence=confidence,
                        progress=seen.parts,
                    )
                )
    rows = [
        {**dataclasses.asdict(finding), "verdict": "passed" if finding.passed else "FAILED"} for finding in findings
    ]
    print_rows(rows, COLUMNS, as_json=as_json, empty="no mechanism is registered")
    raise typer.Exit(0 if all(finding.passed for finding in findings) else 1)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A file that `dpca budget export` wrote.")],
    key: Annotated[
        str | None, typer.Option(help="The ledger's public key, in hex, as its curator published it.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="An export of the same population got before, which this one must continue.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an exported audit trail, and compute what was spent from it alone: offline, without ledger or database."""
    from storage.trail.verification import read_trail, verify_trail

    before = None if earlier is None else read_trail(earlier)
    print_facts(verify_trail(read_trail(file), key=key, earlier=before), as_json=as_json)
