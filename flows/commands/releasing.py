"""What every command that releases does with a request: show it, ask, release, and print what became of it."""

import pkgutil
from typing import TYPE_CHECKING, Annotated

import typer

from flows.reports.activity import activity
from flows.reports.outcome import outcome_line
from flows.reports.terminal import STDERR, confirm, print_facts

if TYPE_CHECKING:
    from flows.requests.base import Request

Direct = Annotated[bool, typer.Option("--direct", help="Run without Prefect.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to spend.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Release = Annotated[bool, typer.Option("--release", help="Buy a private estimate, charged to the budget.")]


def release(
    request: "Request",
    job: str,
    *,
    workers: int | None,
    direct: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Plan a request, ask before it is charged, run it and print the public facts.

    Parameters
    ----------
    request : Request
    job : str
        The job of its family, such as ``flows.fit:run_fit``; it is loaded when there is something to release.
    workers, direct, dry_run, yes, as_json
        The options of the command.
    """
    with activity("planning"):
        from flows.families.table import family_of
        from flows.releases.preview import preview

    references = family_of(request).references
    for name, value in (("--epsilon", request.epsilon), ("--delta", request.delta)):
        if value is None and request.mechanism not in references:
            without = f"; only {', '.join(references)} does without" if references else ""
            raise typer.BadParameter(f"missing option {name}{without}.")
    with activity("planning"):
        seen = preview(request)
    for warning in seen.planned.plan.warnings:
        STDERR.print(f"warning: {warning}", style="yellow")
    if dry_run:
        print_facts(seen.facts(), as_json=as_json)
    if not seen.exists:
        family_of(request).refuse_noise(seen.planned)
    if seen.refusal is not None:
        raise seen.refusal
    if dry_run:
        return
    if not seen.exists:
        confirm(seen.question, yes=yes)
    with activity("starting"):
        from flows.releases.stages import Caller

        agreed = Caller(planned=seen.planned)
        report = pkgutil.resolve_name(job)(request, workers=workers, direct=direct, caller=agreed)
    if report["reused"]:
        STDERR.print("the same request was released before: this is that release, and nothing was spent")
    for warning in report["warnings"]:
        if warning not in seen.planned.plan.warnings:
            STDERR.print(f"warning: {warning}", style="yellow")
    if not as_json:
        typer.echo(outcome_line(report))
    print_facts(report, as_json=as_json)
