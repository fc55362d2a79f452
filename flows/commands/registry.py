"""``dpca registry``: list, inspect, verify, promote and export what was published."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands import signing
from flows.reports.terminal import SHOWN, print_earlier, print_facts, print_rows

if TYPE_CHECKING:
    from flows.reports.spectrum import Spectrum
    from storage.registry.reader import Registry

app = typer.Typer(help="List, verify, promote, export, sign and trust what was published.")
app.add_typer(signing.key_app, name="key")
app.add_typer(signing.root_app, name="root")
app.command()(signing.trust)
app.command()(signing.resign)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="name, name@3, name@alias or name@sha256:...")]
Required = Annotated[
    bool, typer.Option("--require-signature", help="Refuse a registry for which no root key is pinned.")
]


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="One name alone; all by default.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="List as many of the newest versions of a name; 0 lists all.")
    ] = SHOWN,
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """List the newest versions of every name."""
    from storage.registry.reader import Registry

    found = Registry.open(require_signature=require_signature or None).list(name, newest=limit or None)
    said = {True: True, False: False} if as_json else {True: "yes", False: "NOT PRIVATE"}
    rows = [
        {"artifact": str(row), "private": said[row.private], "digest": row.digest, "aliases": [*row.aliases]}
        for row in found
    ]
    oldest: dict[str, int] = {}
    for row in found:
        oldest.setdefault(row.name, row.version)
    print_earlier(sum(version - 1 for version in oldest.values()) if limit else 0, "versions")
    columns = ("artifact", "private", "aliases", "digest")
    print_rows(rows, columns, as_json=as_json, empty="nothing is published yet")


@app.command()
def show(
    reference: Ref,
    spectrum: Annotated[bool, typer.Option("--spectrum", help="Show eigenvalues and how far noise reaches.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the spectrum to this PNG or SVG.")] = None,
    component: Annotated[
        int | None, typer.Option(help="With --plot: draw the largest loadings of this one, from 1, instead.")
    ] = None,
    theme: Annotated[str, typer.Option(help="Of the plot: light or dark.")] = "light",
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """Show an artifact's public facts and lineage."""
    from storage.registry.reader import Registry

    registry = Registry.open(require_signature=require_signature or None)
    facts = registry.show(reference)
    if component is not None and plot is None:
        raise typer.BadParameter("--component chooses what --plot draws; name a file with --plot.")
    found = _spectrum(registry, reference) if spectrum or (plot is not None and component is None) else None
    if plot is not None:
        _draw(registry, reference, plot, spectrum=found, component=component, name=facts["artifact"], theme=theme)
    print_facts(facts if found is None or not as_json else facts | {"spectrum": found.facts()}, as_json=as_json)
    if found is not None and not as_json:
        typer.echo(found.text())


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
def history(
    name: Annotated[str, typer.Argument(help="A published name.")],
    limit: Annotated[int, typer.Option(min=0, help="Show as many of the newest moves; 0 shows all.")] = SHOWN,
    as_json: Json = False,
) -> None:
    """Show when each alias of a name was moved, by whom, from which version to which, and why."""
    from storage.workspace import Workspace

    moves = Workspace.read_only().alias_history(name, newest=limit + 1 if limit else None)
    if limit and len(moves) > limit:
        moves = moves[1:]
        print_earlier(None, "moves")
    rows: list[dict[str, Any]] = [
        {
            "time": move.time,
            "alias": move.alias,
            "from": move.before,
            "to": move.version,
            "actor": move.actor,
            "why": dict(move.why) if as_json else ", ".join(f"{fact} {value}" for fact, value in move.why.items()),
        }
        for move in moves
    ]
    columns = ("time", "alias", "from", "to", "actor", "why")
    print_rows(rows, columns, as_json=as_json, empty=f"no alias of {name} was moved yet")


@app.command()
def verify(
    reference: Ref,
    registry: Annotated[
        str | None, typer.Option(help="Its folder, s3:// or https:// address; by default this home's.")
    ] = None,
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """Read an artifact and check every byte against its digest, and with a pinned root key who signed it."""
    from storage.registry.reader import Registry

    opened = Registry.open(registry, require_signature=require_signature or None)
    found = opened.verify(reference)
    signed = {} if opened.trust is None else {"signed": True}
    print_facts({"artifact": str(found), "digest": found.digest, "verified": True, **signed}, as_json=as_json)


@app.command()
def export(
    reference: Ref,
    output: Annotated[Path, typer.Option(help="File to write, or the new folder of mlflow.")],
    format_: Annotated[
        str, typer.Option("--format", help="npz (arrays and facts); of a subspace also onnx, mlflow and sklearn.")
    ] = "npz",
    require_signature: Required = False,
    as_json: Json = False,
) -> None:
    """Write an artifact as one portable file, or as a model of ONNX, MLflow or scikit-learn."""
    from storage.registry.reader import Registry

    found = Registry.open(require_signature=require_signature or None).export(reference, output, format=format_)
    print_facts({"artifact": str(found), "output": str(output)}, as_json=as_json)


def _spectrum(registry: "Registry", reference: str) -> "Spectrum":
    from flows.families.restated_subspace import noise_edge_of
    from flows.reports.spectrum import Spectrum
    from storage.artifacts.subspace import PrivateSubspace

    artifact = registry.load(reference, PrivateSubspace)
    return Spectrum.of(artifact, noise_edge=noise_edge_of(artifact))


def _draw(
    registry: "Registry",
    reference: str,
    plot: Path,
    *,
    spectrum: "Spectrum | None",
    component: int | None,
    name: str,
    theme: str,
) -> None:
    from flows.reports.charts import check_chart_file, write_chart
    from flows.reports.release_charts import loadings_chart, scree_chart
    from flows.reports.spectrum import top_loadings
    from storage.artifacts.subspace import PrivateSubspace

    check_chart_file(plot)
    if component is None and spectrum is not None:
        write_chart(scree_chart(spectrum, name=name, theme=theme), plot)
    elif component is not None:
        rows = top_loadings(registry.load(reference, PrivateSubspace), component=component)
        write_chart(loadings_chart(rows, component=component, name=name, theme=theme), plot)
