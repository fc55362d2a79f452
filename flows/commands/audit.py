"""``dpca audit``: attack the mechanisms on worst-case neighbours and compare with what they claim."""

import dataclasses
from typing import Annotated

import typer

from flows.reports.terminal import print_rows, progress_bar

COLUMNS = ("mechanism", "relation", "epsilon", "delta", "bound", "confidence", "trials", "attack", "verdict")


def audit(
    mechanism: Annotated[str | None, typer.Option(help="Audit this mechanism only.")] = None,
    trials: Annotated[int, typer.Option(min=2, help="Runs on each dataset of the pair attacked.")] = 4000,
    confidence: Annotated[float, typer.Option(help="Confidence of each bound.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bound the true epsilon of each mechanism from below by attacking it; no data are read, nothing is spent.

    A mechanism that keeps its claim is found to pass it with probability at most 1 - CONFIDENCE a row. The exit code
    is 1 when any does.
    """
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
            with progress_bar(f"{name}, {relation}") as watch, suppress(Refused):  # it makes no claim there
                findings.append(
                    audit_mechanism(
                        subject.build(name),
                        relation=relation,
                        subject=subject,
                        trials=trials,
                        confidence=confidence,
                        progress=watch,
                    )
                )
    rows = [
        {**dataclasses.asdict(finding), "verdict": "passed" if finding.passed else "FAILED"} for finding in findings
    ]
    print_rows(rows, COLUMNS, as_json=as_json, empty="no mechanism is registered")
    raise typer.Exit(0 if all(finding.passed for finding in findings) else 1)
