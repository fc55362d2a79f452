"""``dpca reproduce``: check expected numbers on synthetic data."""

from typing import Annotated

import typer

from flows.reports.terminal import print_json, print_rows

app = typer.Typer(help="Reproduce expected numbers; each check states its tolerance.")


@app.callback()
def reproduce() -> None:
    """Reproduce expected numbers; each check states its tolerance."""


@app.command()
def mechanisms(
    runs: Annotated[int, typer.Option(min=1, help="Runs whose mean is compared.")] = 10,
    only: Annotated[list[str] | None, typer.Option("--mechanism", help="Only this mechanism's cases.")] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Run without Prefect.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the captured variance of every mechanism on a matrix like a9a; no data are read, nothing is spent."""
    from flows.reproductions.expected_variance import run_reproduction

    report = run_reproduction(runs=runs, mechanisms=tuple(only or ()), direct=direct)
    if as_json:
        print_json(report)
    else:
        columns = ("name", "expected", "tolerance", "got", "holds")
        print_rows(report["checks"], columns, as_json=False, empty="no such mechanism has an expected number")
    raise typer.Exit(0 if all(check["holds"] for check in report["checks"]) else 1)
