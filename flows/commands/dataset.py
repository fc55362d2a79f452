"""``dpca dataset``: ingest, list, show, verify and remove snapshots. Curator-side: what it prints is private."""

from typing import Annotated

import typer

from flows.terminal import STDERR, print_facts, print_rows, progress_bar

app = typer.Typer(help="Ingest and inspect datasets, inside the trust boundary.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="N", help="A dataset's name.")]


@app.command()
def ingest(
    source: Annotated[str, typer.Argument(help="A .svm, .svm.gz (svmlight) or .npz (SciPy CSR) file.")],
    name: Annotated[str, typer.Option(help="The dataset's name; a new snapshot each time.")],
    population: Annotated[str | None, typer.Option(help="Whose budget pays; the dataset's name by default.")] = None,
    features: Annotated[int | None, typer.Option(min=1, help="Declared columns; svmlight needs it.")] = None,
    records_at_most: Annotated[int | None, typer.Option(min=1, help="Public bound on the records.")] = None,
    block_nnz: Annotated[int | None, typer.Option(min=1, help="Stored values a block.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Stored type, such as float32; the source's by default.")] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Run without Prefect.")] = False,
    as_json: Json = False,
) -> None:
    """Stream SOURCE into a new immutable snapshot."""
    from flows.ingest import run_ingest

    with progress_bar("reading") as watch:
        report = run_ingest(
            source,
            name=name,
            population=population,
            features=features,
            records_at_most=records_at_most,
            block_nnz=block_nnz,
            dtype=dtype,
            direct=direct,
            watch=watch,
        )
    print_facts(report, as_json=as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the datasets and their current snapshots."""
    from storage.catalog import Catalog
    from storage.ledger import Ledger

    rows = [snapshot.facts() for snapshot in Catalog(Ledger.open()).list()]
    print_rows(rows, ("dataset", "population", "snapshot", "features"), as_json=as_json, empty="no dataset yet")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a dataset's current snapshot."""
    from storage.catalog import Catalog
    from storage.ledger import Ledger

    print_facts(Catalog(Ledger.open()).show(name), as_json=as_json)


@app.command()
def verify(name: Name, as_json: Json = False) -> None:
    """Read a dataset and compare its content with the digest of its ingest."""
    from storage.catalog import Catalog
    from storage.ledger import Ledger

    print_facts(Catalog(Ledger.open()).verify(name), as_json=as_json)


@app.command()
def remove(
    name: Name, force: Annotated[bool, typer.Option("--force", help="Even if a release names it.")] = False
) -> None:
    """Delete a dataset's snapshots; what was spent on them stays spent."""
    from storage.catalog import Catalog
    from storage.ledger import Ledger

    Catalog(Ledger.open()).remove(name, force=force)
    STDERR.print(f"dataset {name} removed; its population's budget is unchanged")
