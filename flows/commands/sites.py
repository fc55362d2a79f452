"""``dpca sites``: one subspace or set of components of several datasets, each with people and a budget of its own."""

from typing import Any

import typer

from flows.commands.option_words import command_option
from flows.commands.releasing import Direct, DryRun, Json, Workers, Yes
from flows.orchestration.option_parameters import with_options
from flows.reports.terminal import STDERR, confirm, print_facts
from flows.requests.sites import SitesRequest

app = typer.Typer(
    help="Fit one private subspace, or components of a model, over several datasets, each charged in its own budget."
)


@app.callback()
def sites() -> None:
    """Fit one private subspace, or components of a model, over several datasets, each charged in its own budget."""


@app.command()
@with_options(SitesRequest, annotation=command_option)
def fit(
    *,
    workers: Workers = None,
    direct: Direct = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Release one private subspace, or components, of several datasets as a new version of a name.

    The budgets of all sites are asked before any is charged. The same command again finds what was reserved, and goes
    on where it stopped, at no further charge.
    """
    from flows.federate import preview_sites, run_sites_fit

    asked = SitesRequest(**request)
    seen = preview_sites(asked)
    for warning in seen.planned.plan.total.warnings:
        STDERR.print(f"warning: {warning}", style="yellow")
    if dry_run:
        print_facts(seen.facts(), as_json=as_json)
    if seen.refusal is not None:
        raise seen.refusal
    if dry_run:
        return
    if not seen.exists:
        confirm(seen.question, yes=yes)
    report = run_sites_fit(asked, workers=workers, direct=direct)
    if report["reused"]:
        STDERR.print("the same request was released before: this is that release, and nothing was spent")
    print_facts(report, as_json=as_json)
