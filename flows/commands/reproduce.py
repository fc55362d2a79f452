"""``dpca reproduce``: check expected numbers on synthetic and public data."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Reproduce expected numbers; each check states its tolerance.")

Direct = Annotated[bool, typer.Option("--direct", help="Run without Prefect.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Data = Annotated[Path, typer.Option(help="The folder that make data filled; what is not there is left out.")]


@app.callback()
def reproduce() -> None:
    """Reproduce expected numbers; each check states its tolerance."""


@app.command()
def mechanisms(
    runs: Annotated[int, typer.Option(min=1, help="Runs whose mean is compared.")] = 10,
    only: Annotated[list[str] | None, typer.Option("--mechanism", help="Only this mechanism's cases.")] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check the captured variance of every mechanism on a matrix like a9a; no data are read, nothing is spent."""
    from flows.reproductions import expected_variance as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(of.reproduce_mechanisms, of.check_mechanisms, direct=direct, runs=runs, mechanisms=only)
    print_checks(found, as_json=as_json, empty="no such mechanism has an expected number")


@app.command()
def denoise(
    runs: Annotated[int, typer.Option(min=1, help="Draws whose mean is compared; tolerances are for 5.")] = 5,
    data: Data = Path("data"),
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check what refining gains on a9a, MNIST, Reuters and made data, and what releases say of their own quality.

    The data are public and the noise comes from seeds, so nothing is spent. It takes about ten minutes of one
    processor, most of it for MNIST and Reuters.
    """
    from flows.reproductions import denoise as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(of.reproduce_denoise, of.check_denoising, direct=direct, runs=runs, data=str(data))
    print_checks(found, as_json=as_json)
