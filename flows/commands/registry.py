"""``dpca registry``: list, inspect, verify, promote and export what was published."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.reports.terminal import print_facts, print_rows

if TYPE_CHECKING:
    from flows.reports.spectrum import Spectrum

app = typer.Typer(help="List, verify, promote and export published subspaces.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="name, name@3, name@alias or name@sha256:...")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every version of every name."""
    from storage.registry.reader import Registry

    rows = [
        {"artifact": str(row), "private": row.private, "digest": row.digest, "aliases": list(row.aliases)}
        for row in Registry.open().list()
    ]
    shown = [{**row, "private": "yes" if row["private"] else "NOT PRIVATE"} for row in rows]
    columns = ("artifact", "private", "aliases", "digest")
    print_rows(rows if as_json else shown, columns, as_json=as_json, empty="nothing is published yet")


@app.command()
def show(
    reference: Ref,
    spectrum: Annotated[bool, typer.Option("--spectrum", help="Show eigenvalues and how far noise reaches.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the spectrum to this PNG or SVG.")] = None,
    as_json: Json = False,
) -> None:
    """Show an artifact's public facts and lineage."""
    from storage.registry.reader import Registry

    facts = Registry.open().show(reference)
    found = _spectrum(reference) if spectrum or plot is not None else None
    print_facts(facts if found is None or not as_json else facts | {"spectrum": found.facts()}, as_json=as_json)
    if found is not None and not as_json:
        typer.echo(found.text())
    if found is not None and plot is not None:
        from flows.reports.charts import draw_spectrum

        draw_spectrum(found, plot, name=facts["artifact"])


@app.command()
def promote(
    artifact: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The version to point at.")],
    alias: Annotated[str, typer.Argument(help="The alias to move.")],
    as_json: Json = False,
) -> None:
    """Point an alias at a version."""
    from flows.releases.publish import promote_version

    print_facts(promote_version(artifact, alias), as_json=as_json)


@app.command()
def verify(reference: Ref, as_json: Json = False) -> None:
    """Read an artifact and check every byte against its digest."""
    from storage.registry.reader import Registry

    found = Registry.open().verify(reference)
    print_facts({"artifact": str(found), "digest": found.digest, "verified": True}, as_json=as_json)


@app.command()
def export(
    reference: Ref,
    output: Annotated[Path, typer.Option(help="File to write, or the new folder of mlflow.")],
    format_: Annotated[
        str, typer.Option("--format", help="npz (arrays and facts); of a subspace also onnx, mlflow and sklearn.")
    ] = "npz",
    as_json: Json = False,
) -> None:
    """Write an artifact as one portable file, or as a model of ONNX, MLflow or scikit-learn."""
    from storage.registry.reader import Registry

    found = Registry.open().export(reference, output, format=format_)
    print_facts({"artifact": str(found), "output": str(output)}, as_json=as_json)


def _spectrum(reference: str) -> "Spectrum":
    from flows.families.restated_subspace import noise_edge_of
    from flows.reports.spectrum import Spectrum
    from storage.artifacts.subspace import PrivateSubspace
    from storage.registry.reader import Registry

    artifact = Registry.open().load(reference, PrivateSubspace)
    return Spectrum.of(artifact, noise_edge=noise_edge_of(artifact))
