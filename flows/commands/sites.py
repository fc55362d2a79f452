"""Commands of ``dpca sites`` and ``dpca site``.

``dpca sites`` fits one subspace or set of components over several datasets, each with its own population and budget.
``dpca site`` is for the operator of one party of a roster: a site, or the helper, which provides masks.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.app import App
from flows.commands.releasing import Direct, Json, Yes
from flows.options import DryRun, Workers, command_option, with_options
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, confirm, joint_line, print_facts
from flows.requests import SitesRequest

app = App(
    help="Fit one private subspace, or components of a model, over several datasets, each charged to its own budget."
)
site_app = App(help="Take part in joint releases as a site, with its own keys, dataset and budget.")

Config = Annotated[Path, typer.Option("--config", help="The configuration file of this party.")]


@app.callback()
def sites() -> None:
    """Fit one private subspace, or components of a model, over several datasets, each charged to its own budget."""


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
    """Release a private subspace, or components, of several datasets or a roster's sites as a version of a name.

    The budgets of all sites are checked before any is charged. If the command is repeated, it finds its reservations
    and continues where it stopped, at no further charge.
    """
    with activity("planning"):
        from flows.sites.releases import preview_sites

        requested = SitesRequest(**request)
        seen = preview_sites(requested)
    for warning in seen.planned.plan.total.warnings:
        STDERR.print(f"warning: {warning}", style="yellow")
    if dry_run:
        print_facts(seen.facts(), as_json=as_json)
    if seen.quotes.refusal is not None:
        raise seen.quotes.refusal
    if dry_run:
        return
    if not seen.exists:
        confirm(seen.question, yes=yes)
    with activity("starting"):
        if direct:
            from flows.sites.releases import fit_sites_directly as run_sites_fit
        else:
            from flows.jobs import run_sites_fit
        report = run_sites_fit(requested, workers=workers)
    if report["reused"]:
        STDERR.print("this request was released before: the release is reused, and nothing was spent")
    if not as_json:
        typer.echo(joint_line(report))
    print_facts(report, as_json=as_json)


@app.command()
def demo(
    *,
    sites: Annotated[int, typer.Option(min=2, max=32, help="Number S of sites.")] = 3,
    method: Annotated[str, typer.Option(help="A method that releases a subspace.")] = "cape_pca",
    masks: Annotated[str, typer.Option(help="Source of the masks: helper or secure_sum.")] = "helper",
    features: Annotated[int, typer.Option(min=2, help="Number of columns of the synthetic rows.")] = 20,
    records: Annotated[int, typer.Option(min=10, help="Number of rows of each site.")] = 2000,
    components: Annotated[int, typer.Option(min=1, help="Number of components k.")] = 3,
    epsilon: Annotated[float, typer.Option(help="Privacy loss of each site's records.")] = 1.0,
    folder: Annotated[Path | None, typer.Option(help="A folder that is kept; by default a temporary one.")] = None,
    as_json: Json = False,
) -> None:
    """Start S sites as processes on loopback, with keys, homes and synthetic rows, and fit over them.

    With --masks helper, a helper process runs as well. Each site has its own home, ledger and budget. No other home on
    this machine is read or charged.
    """
    with activity("starting the sites"):
        from flows.demo import run_demo

        report = run_demo(
            sites,
            method=method,
            masks=masks,
            features=features,
            records=records,
            components=components,
            epsilon=epsilon,
            folder=folder,
        )
    print_facts(report, as_json=as_json)


@site_app.callback()
def site() -> None:
    """Take part in joint releases as a site, with its own keys, dataset and budget."""


@site_app.command()
def key(
    name: Annotated[str, typer.Argument(help="Name of the party in the roster.")],
    folder: Annotated[Path, typer.Option(help="Folder of both files.")] = Path(),
    as_json: Json = False,
) -> None:
    """Create a private key and its certificate; NAME.key stays here, NAME.pem goes into the roster."""
    from flows.parties.certificates import identity_facts

    print_facts(identity_facts(name, folder), as_json=as_json)


@site_app.command()
def serve(*, config: Config) -> None:
    """Answer the aggregator that the roster names, within this operator's limits, until the process is terminated.

    Each request is planned here and charged to the budget of the dataset's population. Only noised, masked sums or
    noised releases leave the site.
    """
    from flows.sites.roster import read_config
    from flows.sites.services import serve_site

    serve_site(read_config(config), ready=_print)


@site_app.command()
def helper(*, config: Config) -> None:
    """Distribute the seeds of masks to the roster's sites, until the process is terminated.

    Masks hide each site's sum and cancel in the total. The helper has no dataset and sees no message. Run it where
    neither the aggregator nor a site has control.
    """
    from flows.sites.masks import serve_helper
    from flows.sites.roster import read_config

    serve_helper(read_config(config), ready=_print)


@site_app.command()
def status(*, config: Config, as_json: Json = False) -> None:
    """Show the roster, dataset, limits, budget and joint releases of this site, for its operator."""
    from flows.sites.roster import read_config
    from flows.sites.services import status_of

    print_facts(status_of(read_config(config)), as_json=as_json)


def _print(address: str) -> None:
    typer.echo(f"listening at {address}")
