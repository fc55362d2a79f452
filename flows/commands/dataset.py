"""``dpca dataset``: ingest, list, show, verify, export and remove snapshots. Its output is private."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.option_words import command_option
from flows.orchestration.option_parameters import with_options
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, print_facts, print_rows
from storage.datasets.ingest_options import IngestOptions

if TYPE_CHECKING:
    from storage.datasets.catalog import Catalog

app = typer.Typer(help="Ingest and inspect datasets, inside the trust boundary.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="N", help="A dataset's name.")]


@app.command()
@with_options(IngestOptions, annotation=command_option)
def ingest(
    source: Annotated[list[str], typer.Argument(help="Files, folders, patterns or s3:// URLs, read in this order.")],
    name: Annotated[str, typer.Option(help="The dataset's name; each ingest makes a new snapshot of it.")],
    *,
    direct: Annotated[bool, typer.Option("--direct", help="Run without Prefect: faster, no run history.")] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Stream SOURCE into a new immutable snapshot, whole or not at all; memory stays bounded.

    Reads svmlight, CSV, TSV and Matrix Market text (plain, .gz or .zst), Parquet, SciPy .npz (csr), NumPy .npy, .h5ad
    and Zarr. A CSV, TSV or Parquet table with the columns row, column and value holds triplets, in any order; any
    other is wide, one row a line. Names end in .svm, .svmlight, .libsvm, .csv, .tsv, .mtx, .parquet, .npz, .npy, .h5ad
    or .zarr; any other needs --format. With --schema, a raw CSV, TSV or Parquet table is encoded: numbers are scaled to
    public ranges, categories become 0 and 1.
    """
    with activity("starting") as seen:
        from flows.ingest import run_ingest

        report = run_ingest(
            source[0] if len(source) == 1 else source,
            name=name,
            options=IngestOptions(**options),
            direct=direct,
            watch=seen.transfer,
        )
    if (bound := report.get("norm_at_most")) is not None:
        STDERR.print(
            f"hint: by the schema no record has a norm above {bound}, so --clip-norm {bound} clips nothing; a smaller "
            "one gets less noise, and clips some",
            markup=False,
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
    with activity("reading all rows"):
        digest = _catalog().verify(name)
    print_facts({"dataset": name, "content_digest": digest, "verified": True}, as_json=as_json)


@app.command()
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Remove it even if a release was made from it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a dataset's snapshots; budget spent on them stays spent."""
    removed = _catalog(writes=True).remove(name, force=force)
    print_facts({"dataset": name, "removed": removed}, as_json=as_json)


@app.command()
def export(
    name: Name,
    output: Annotated[str, typer.Option(help="The file to write; it must not exist.")],
    format: Annotated[str, typer.Option(help="h5ad, npz, svmlight or parquet.")],  # noqa: A002
    as_json: Json = False,
) -> None:
    """Write a dataset's rows to a file that only its owner may read."""
    with activity("writing the rows"):
        from storage.datasets.export import export_rows

        catalog = _catalog()
        export_rows(catalog.open(catalog.current(name)), output, format=format)
    print_facts({"dataset": name, "format": format, "output": output}, as_json=as_json)


def _catalog(*, writes: bool = False) -> "Catalog":
    from storage.workspace import Workspace

    return (Workspace.open() if writes else Workspace.read_only()).catalog
