"""Commands that make a release, or estimate the quality of a release, generated from a family's request class.

All families therefore have the same commands. Such a command shows its request, asks for confirmation, makes the
release, and prints the outcome. Options that several nouns share are declared here as well.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.options import DryRun, Workers, command_option, with_options
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, confirm, outcome_line, print_facts

if TYPE_CHECKING:
    from flows.requests import EvaluationRequest, Request

Direct = Annotated[bool, typer.Option("--direct", help="Run without Prefect.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to spend.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Release = Annotated[bool, typer.Option("--release", help="Release a private estimate, charged to the budget.")]


def fit_command(kind: type["Request"], text: str) -> Callable[..., None]:
    """Make the command that releases requests of a kind; ``text`` is its help."""

    @with_options(kind, annotation=command_option, omitted_is_none=True)
    def fit(
        *,
        workers: Workers = None,
        direct: Direct = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        as_json: Json = False,
        **request: Any,
    ) -> None:
        release(kind(**request), workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)

    fit.__doc__ = text
    return fit


def evaluation_command(kind: type["EvaluationRequest"], text: str) -> Callable[..., None]:
    """Make the command that computes the quality of a release, or releases an estimate of it; ``text`` is its help."""

    @with_options(kind, annotation=command_option, omitted_is_none=True)
    def evaluate(
        *,
        buys: Release = False,
        workers: Workers = None,
        direct: Direct = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        as_json: Json = False,
        **request: Any,
    ) -> None:
        requested = kind(**request)
        if buys:
            release(requested, workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)
            return
        if dry_run or requested.epsilon is not None:
            raise typer.BadParameter("diagnostics cost nothing; add --release to use --epsilon or --dry-run.")
        with activity("starting"):
            from flows.published import diagnose

            found = diagnose(requested, workers=workers)
        STDERR.print(f"warning: {found['notice']}", style="yellow")
        print_facts(found, as_json=as_json)

    evaluate.__doc__ = text
    return evaluate


def release(request: "Request", *, workers: int | None, direct: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Plan a request, confirm its charge, run it, and print the public facts; the options are those of the command."""
    with activity("planning"):
        from flows.families.base import family_of
        from flows.releases.verdicts import preview

        family = family_of(request)
    references = family.references
    for name, value in (("--epsilon", request.epsilon), ("--delta", request.delta)):
        if value is None and request.mechanism not in references:
            without = f"; only {', '.join(references)} runs without it" if references else ""
            raise typer.BadParameter(f"missing option {name}{without}.")
    with activity("planning"):
        if not dry_run:
            _begin_services(workers, direct=direct)
        seen = preview(request)
    for warning in seen.planned.plan.warnings:
        STDERR.print(f"warning: {warning}", style="yellow")
    if dry_run:
        print_facts(seen.facts(), as_json=as_json)
    if not seen.exists:
        family.refuse_noise(seen.planned)
    if seen.refusal is not None:
        raise seen.refusal
    if dry_run:
        return
    if not seen.exists:
        confirm(seen.question, yes=yes)
    with activity("starting"):
        from flows.releases.stages import Caller, release_directly

        agreed = Caller(planned=seen.planned)
        if direct:
            report = release_directly(request, workers=workers, caller=agreed)
        else:
            from flows.jobs import run_release

            report = run_release(request, workers=workers, caller=agreed)
    if report["reused"]:
        STDERR.print("this request was released before: the release is reused, and nothing was spent")
    for warning in report["warnings"]:
        if warning not in seen.planned.plan.warnings:
            STDERR.print(f"warning: {warning}", style="yellow")
    if not as_json:
        typer.echo(outcome_line(report))
    print_facts(report, as_json=as_json)


def _begin_services(workers: int | None, *, direct: bool) -> None:
    """Start the processes of the run in the background: a requested local cluster, and Prefect's temporary server."""
    from dpca.home import WORKERS, home
    from flows.clusters.connecting import begin_cluster
    from flows.settings import cluster_settings

    if not direct:
        from flows.orchestration.own_server import begin_server

        begin_server()
    begin_cluster(cluster_settings(workers), scratch=home() / WORKERS)
