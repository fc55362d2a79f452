"""``dpca ledger``: hold the ledger in a process of its own, and make the keys by which it and its clients are known."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.releasing import Json
from flows.reports.terminal import print_facts

HELP = "Hold the ledger in a process of its own, with the database's credentials and keys; others ask it."

app = typer.Typer(help=HELP)


@app.callback(help=HELP)
def ledger() -> None:
    """Hold the ledger in a process of its own."""


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="The client's name in the configuration, or ledger.")],
    folder: Annotated[Path, typer.Option(help="Where both files are written.")] = Path(),
    as_json: Json = False,
) -> None:
    """Make a private key and its certificate: NAME.key stays here, NAME.pem goes to the other side."""
    from flows.parties.certificates import identity_facts

    print_facts(identity_facts(name, folder), as_json=as_json)


@app.command()
def serve(*, config: Annotated[Path, typer.Option("--config", help="The configuration file of the service.")]) -> None:
    """Answer the clients of the configuration from the ledger of this process, until the process is told to end.

    What a crash left is finished first. Clients need neither DPCA_DATABASE_URL nor DPCA_KEY_FOLDER.
    """
    from flows.remote_ledger.config import read_config
    from flows.remote_ledger.service import serve_ledger

    serve_ledger(read_config(config), ready=lambda address: typer.echo(f"listening at {address}"))
