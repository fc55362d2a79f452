"""``dpca dataset``: ingest, list, show, verify, export and remove snapshots. What it prints is private."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.reports.terminal import print_facts, print_rows, transfer_bar

if TYPE_CHECKING:
    from storage.datasets.catalog import Catalog

app = typer.Typer(help="Ingest and inspect datasets, inside the trust boundary.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="N", help="A dataset's name.")]


@app.command()
def ingest(
    source: Annotated[list[str], typer.Argument(help="Files, folders, patterns or s3:// URLs, read in this order.")],
    name: Annotated[str, typer.Option(help="The dataset's name; each ingest makes a new snapshot of it.")],
    population: Annotated[
        str | None, typer.Option(help="The people whose budget releases charge; the dataset's name by default.")
    ] = None,
    features: Annotated[
        int | None, typer.Option(min=1, help="Declared columns; svmlight, CSV, TSV and triplets need it, or names.")
    ] = None,
    feature_names: Annotated[
        str | None, typer.Option(help="Text file of column names or item ids, one a line, in order.")
    ] = None,
    public_items: Annotated[
        bool, typer.Option("--public-items", help="The list of item ids is public: take it from the triplets.")
    ] = False,
    format: Annotated[  # noqa: A002
        str | None, typer.Option(help="svmlight, mtx, npz, npy, csv, tsv, parquet, zarr or h5ad; by name by default.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of triplets: row=USER,column=ITEM,value=RATING, or some of them.")
    ] = None,
    unit_column: Annotated[
        str | None, typer.Option(help="Column of a table that says whose row it is; one individual is one record.")
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether CSV and TSV begin with names; else columns are 0, 1, 2 ..."),
    ] = None,
    units: Annotated[str | None, typer.Option(help="The same as a .npy file of ids, one for each row.")] = None,
    max_rows_per_unit: Annotated[
        int | None, typer.Option(min=1, help="Keep the first rows of each individual; all by default.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Text file of public positive factors of the columns, one a line.")
    ] = None,
    records_at_most: Annotated[
        int | None, typer.Option(min=1, help="Public bound on the number of records; more are refused.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(min=0, max=1, help="Public share of entries that are not 0: speed, nothing else.")
    ] = None,
    block_nnz: Annotated[
        int | None, typer.Option(min=1, help="Stored values in a block at most; about a million by default.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of stored values, such as float32; the source's by default.")
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="fail at the first bad row, or quarantine: leave bad rows out and note where they were.")
    ] = "fail",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last whole block of a killed ingest of the same request.")
    ] = False,
    allow_shared_rows: Annotated[
        bool, typer.Option("--allow-shared-rows", help="Insist on rows that another population holds already.")
    ] = False,
    direct: Annotated[bool, typer.Option("--direct", help="Run without Prefect: faster, no run history.")] = False,
    as_json: Json = False,
) -> None:
    """Stream SOURCE into a new immutable snapshot, whole or not at all; memory stays bounded.

    Reads svmlight, CSV, TSV and Matrix Market text (plain, .gz or .zst), Parquet, SciPy .npz (csr), NumPy .npy, .h5ad
    and Zarr. A CSV, TSV or Parquet table with the columns row, column and value holds triplets, in any order; any
    other is wide, one row a line. Names end in .svm, .svmlight, .libsvm, .csv, .tsv, .mtx, .parquet, .npz, .npy, .h5ad
    or .zarr; any other needs --format.
    """
    from flows.ingest import run_ingest

    with transfer_bar() as watch:
        report = run_ingest(
            source[0] if len(source) == 1 else source,
            name=name,
            population=population,
            features=features,
            feature_names=feature_names,
            public_items=public_items,
            format=format,
            columns=None if columns is None else _roles(columns),
            unit_column=unit_column,
            header=header,
            units=units,
            max_rows_per_unit=max_rows_per_unit,
            scale=scale,
            records_at_most=records_at_most,
            density=density,
            block_nnz=block_nnz,
            dtype=dtype,
            on_error=on_error,
            resume=resume,
            allow_shared_rows=allow_shared_rows,
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
    removed = _catalog(writes=True).remove(name, force=force)
    print_facts({"dataset": name, "removed": removed}, as_json=as_json)


@app.command()
def export(
    name: Name,
    output: Annotated[str, typer.Option(help="The file to make; it must not exist.")],
    format: Annotated[str, typer.Option(help="h5ad, npz, svmlight or parquet.")],  # noqa: A002
    as_json: Json = False,
) -> None:
    """Write a dataset's rows to a file that only its owner may read."""
    from storage.datasets.export import export_rows

    catalog = _catalog()
    export_rows(catalog.open(catalog.current(name)), output, format=format)
    print_facts({"dataset": name, "format": format, "output": output}, as_json=as_json)


def _roles(text: str) -> dict[str, str]:
    """Read ``row=USER,column=ITEM``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(role and name for role, _, name in pairs):
        raise typer.BadParameter("write row=NAME,column=NAME,value=NAME, or some of them", param_hint="--columns")
    return {role.strip(): name for role, _, name in pairs}


def _catalog(*, writes: bool = False) -> "Catalog":
    from storage.workspace import Workspace

    return (Workspace.open() if writes else Workspace.read_only()).catalog
