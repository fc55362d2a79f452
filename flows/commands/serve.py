"""``dpca serve``: show what was released in a browser."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str, typer.Option(help="Where to listen; beyond loopback only with a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")] = 8410,
    token_file: Annotated[
        Path | None, typer.Option(help="A file of mode 0600 with the token to ask for; else DPCA_SERVE_TOKEN is.")
    ] = None,
    curator: Annotated[bool, typer.Option("--curator", help="Show the list of datasets too.")] = False,
) -> None:
    """Show versions, verdicts, differences and budgets as web pages, until the process is told to end.

    The workspace is opened to read, and nothing is written. Every page has its facts as JSON beside it.
    """
    from flows.web.serving import serve_pages

    serve_pages(host=host, port=port, token_file=token_file, curator=curator, ready=_say)


def _say(address: str) -> None:
    typer.echo(f"listening at {address}")
