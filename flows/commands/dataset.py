"""``dpca dataset``: ingest, list, show, verify, export and remove snapshots. What it prints is private."""

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
    source: Annotated[
        list[str], typer.Argument(help="Files, folders or patterns: svmlight, mtx, npz, npy, csv, parquet, zarr, h5ad.")
    ],
    name: Annotated[str, typer.Option(help="The dataset's name; a new snapshot each time.")],
    population: Annotated[str | None, typer.Option(help="Whose budget pays; the dataset's name by default.")] = None,
    features: Annotated[int | None, typer.Option(min=1, help="Declared columns; text and triplets need it.")] = None,
    feature_names: Annotated[str | None, typer.Option(help="File of column names or item ids, one a line.")] = None,
    public_items: Annotated[
        bool, typer.Option("--public-items", help="The item list is public: take it from rows.")
    ] = False,
    format: Annotated[str | None, typer.Option(help="Format, where the name does not tell.")] = None,  # noqa: A002
    columns: Annotated[str | None, typer.Option(help="Of triplets: row=USER,column=ITEM,value=RATING.")] = None,
    unit_column: Annotated[str | None, typer.Option(help="Column that says whose row it is.")] = None,
    units: Annotated[str | None, typer.Option(help=".npy file that says whose row each is.")] = None,
    max_rows_per_unit: Annotated[
        int | None, typer.Option(min=1, help="Keep the first rows of each individual.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="File of public factors of the columns, one a line.")] = None,
    records_at_most: Annotated[int | None, typer.Option(min=1, help="Public bound on the records.")] = None,
    block_nnz: Annotated[int | None, typer.Option(min=1, help="Stored values a block.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Stored type, such as float32; the source's by default.")] = None,
    on_error: Annotated[str, typer.Option(help="fail, or quarantine: leave bad rows out and note where.")] = "fail",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a killed ingest of the same stopped.")] = False,
    direct: Annotated[bool, typer.Option("--direct", help="Run without Prefect.")] = False,
    as_json: Json = False,
) -> None:
    """Stream SOURCE into a new immutable snapshot."""
    from flows.ingest import run_ingest

    with progress_bar("reading") as watch:
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
            units=units,
            max_rows_per_unit=max_rows_per_unit,
            scale=scale,
            records_at_most=records_at_most,
            block_nnz=block_nnz,
            dtype=dtype,
            on_error=on_error,
            resume=resume,
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


@app.command()
def export(
    name: Name,
    output: Annotated[str, typer.Option(help="The file to make; it must not exist.")],
    format: Annotated[str, typer.Option(help="h5ad, npz, svmlight or parquet.")],  # noqa: A002
    as_json: Json = False,
) -> None:
    """Write a dataset's rows to a file that only its owner may read."""
    from storage.export import export_rows

    catalog = _catalog()
    export_rows(catalog.open(catalog.current(name)), output, format=format)
    print_facts({"dataset": name, "format": format, "output": output}, as_json=as_json)


def _roles(text: str) -> dict[str, str]:
    """Read ``row=USER,column=ITEM``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(role and name for role, _, name in pairs):
        raise typer.BadParameter("write row=NAME,column=NAME,value=NAME, or some of them", param_hint="--columns")
    return {role.strip(): name for role, _, name in pairs}


def _catalog() -> "Catalog":
    from storage.catalog import Catalog
    from storage.home import store
    from storage.ledger import Ledger

    ledger = Ledger.open()
    return Catalog(ledger.engine, ledger.home, store())
