"""``dpca dataset``: ingest, list, show, verify and remove snapshots. Curator-side: what it prints is private."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.terminal import print_facts, print_rows, progress_bar

if TYPE_CHECKING:
    from storage.catalog import Catalog

app = typer.Typer(help="Ingest and inspect datasets, inside the trust boundary.")

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
    from flows.ingest import snapshot_facts

    catalog = _catalog()
    rows = [snapshot_facts(catalog, entry) for entry in catalog.entries()]
    columns = ("dataset", "population", "snapshot", "features", "created_at")
    print_rows(rows, columns, as_json=as_json, empty="no dataset yet")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a dataset's current snapshot."""
    from flows.ingest import snapshot_facts

    catalog = _catalog()
    print_facts(snapshot_facts(catalog, catalog.current(name)), as_json=as_json)


@app.command()
def verify(name: Name, as_json: Json = False) -> None:
    """Read a dataset and compare its content with the digest of its ingest."""
    digest = _catalog().verify(name)
    print_facts({"dataset": name, "content_digest": digest, "verified": True}, as_json=as_json)


@app.command()
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Even if a release names it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a dataset's snapshots; what was spent on them stays spent."""
    removed = _catalog().remove(name, force=force)
    print_facts({"dataset": name, "removed": removed}, as_json=as_json)


def _catalog() -> "Catalog":
    from storage.catalog import Catalog
    from storage.ledger import Ledger

    ledger = Ledger.open()
    return Catalog(ledger.engine, ledger.home)
