"""Commands of ``dpca site``, for the operator of one party of a roster: a site, or the helper, which provides masks."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.app import App
from flows.commands.releasing import Json
from flows.reports.terminal import print_facts

HELP = "Take part in joint releases as a site, with its own keys, dataset and budget."

app = App(help=HELP)

Config = Annotated[Path, typer.Option("--config", help="The configuration file of this party.")]


@app.callback(help=HELP)
def site() -> None:
    """Take part in joint releases as a site with its own keys, dataset and budget."""


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Name of the party in the roster.")],
    folder: Annotated[Path, typer.Option(help="Folder of both files.")] = Path(),
    as_json: Json = False,
) -> None:
    """Create a private key and its certificate; NAME.key stays here, NAME.pem goes into the roster."""
    from flows.parties.certificates import identity_facts

    print_facts(identity_facts(name, folder), as_json=as_json)


@app.command()
def serve(*, config: Config) -> None:
    """Answer the aggregator that the roster names, within this operator's limits, until the process is terminated.

    Each request is planned here and charged to the budget of the dataset's population. Only noised, masked sums or
    noised releases leave the site.
    """
    from flows.sites.roster import read_config
    from flows.sites.services import serve_site

    serve_site(read_config(config), ready=_print)


@app.command()
def helper(*, config: Config) -> None:
    """Distribute the seeds of masks to the roster's sites, until the process is terminated.

    Masks hide each site's sum and cancel in the total. The helper has no dataset and sees no message. Run it where
    neither the aggregator nor a site has control.
    """
    from flows.sites.masks import serve_helper
    from flows.sites.roster import read_config

    serve_helper(read_config(config), ready=_print)


@app.command()
def status(*, config: Config, as_json: Json = False) -> None:
    """Show the roster, dataset, limits, budget and joint releases of this site, for its operator."""
    from flows.sites.roster import read_config
    from flows.sites.services import status_of

    print_facts(status_of(read_config(config)), as_json=as_json)


def _print(address: str) -> None:
    typer.echo(f"listening at {address}")
