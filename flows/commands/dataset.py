"""Commands of ``dpca dataset`` and ``dpca schema``.

They manage snapshots of rows, arrived files, and schemas of raw tables. The output of ``dpca dataset`` is private.
Everything in a schema is public.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.app import App
from flows.options import NewName, command_option, with_options
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, confirm, print_facts, print_rows
from storage.datasets.ingest_options import IngestOptions

if TYPE_CHECKING:
    from storage.datasets.catalog import Catalog
    from storage.datasets.erase import FoundUnit
    from storage.datasets.inbox import Arrival

app = App(help="Ingest and inspect datasets, inside the trust boundary.")
schema_app = App(help="Declare the columns of a raw table: ranges, categories and missing values, all public.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="N", help="Name of a dataset.")]
File = Annotated[Path | None, typer.Option(help="The file to write; stdout by default.")]


@app.command()
@with_options(IngestOptions, annotation=command_option)
def ingest(
    source: Annotated[list[str], typer.Argument(help="Files, folders, patterns or s3:// URLs, read in this order.")],
    name: NewName,
    *,
    direct: Annotated[
        bool, typer.Option("--direct", help="Run without Prefect: faster, but without run history.")
    ] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Stream SOURCE into a new immutable snapshot, whole or not at all, in bounded memory.

    The suffix of a file selects one of the formats that --format lists; text may also end in .gz or .zst. A CSV, TSV or
    Parquet table with the columns row, column and value holds triplets, in any order. Any other table is wide, with one
    row a line. With --table-schema, a raw CSV, TSV or Parquet table is encoded: numbers are scaled to public ranges,
    and categories become 0 and 1.
    """
    with activity("starting") as seen:
        if direct:
            from flows.ingest import ingest_directly as run_ingest
        else:
            from flows.jobs import run_ingest
        report = run_ingest(
            source[0] if len(source) == 1 else source,
            name=name,
            options=IngestOptions(**options),
            watch=seen.transfer,
        )
    if (bound := report.get("norm_at_most")) is not None:
        STDERR.print(
            f"hint: the schema limits the norm of a record to {bound}, so --clip-norm {bound} clips "
            "nothing; a smaller norm adds less noise and clips some",
            markup=False,
        )
    print_facts(report, as_json=as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the datasets and their current snapshots."""
    from flows.reports.snapshot_facts import snapshot_facts

    catalog = _catalog()
    rows = [snapshot_facts(catalog, entry) for entry in catalog.entries()]
    columns = ("dataset", "population", "snapshot", "features", "created_at")
    print_rows(rows, columns, as_json=as_json, empty="no dataset yet")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a dataset's current snapshot."""
    from flows.reports.snapshot_facts import snapshot_facts

    catalog = _catalog()
    print_facts(snapshot_facts(catalog, catalog.current(name)), as_json=as_json)


@app.command()
def verify(name: Name, as_json: Json = False) -> None:
    """Read a dataset, and compare its content with the digest recorded at ingest."""
    with activity("reading all rows"):
        digest = _catalog().verify(name)
    print_facts({"dataset": name, "content_digest": digest, "verified": True}, as_json=as_json)


@app.command()
def erase(
    name: Name,
    unit: Annotated[
        str,
        typer.Option(
            prompt="Id of the individual",
            help="The id as written in the source; prompted for if omitted, so that no shell history stores it.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Make a snapshot without any row of one individual, and list what else may hold their rows.

    The id is written as the source writes it: in --unit-column, in the file of --units, in the schema's unit, in the
    row column of triplets, or as a row name of .h5ad. Nothing is charged. Older snapshots stay until `dpca dataset
    remove N --older`. Earlier releases stay, and their guarantee covers this individual. The id is stored nowhere.
    """

    def agree(found: "FoundUnit") -> None:
        rows = f"{found.rows} row{'s' if found.rows > 1 else ''}"
        confirm(
            f"Replace the current snapshot of {name} by one without {rows} of this individual?",
            yes=yes,
            before="this makes another snapshot the current one",
            after="nothing was changed",
        )

    from flows.ingest import run_erase

    report = run_erase(name, unit, agree=agree)
    if as_json:
        print_facts(report, as_json=True)
        return
    remains = report.pop("remains")
    print_facts(report, as_json=False)
    typer.echo("\nData that may still contain their rows, and results computed from these rows:")
    print_rows(remains, ("what", "do"), as_json=False, empty="")


@app.command()
def remove(
    name: Name,
    older: Annotated[bool, typer.Option("--older", help="Keep the current snapshot, and delete all others.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a snapshot even if a release was made from it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete the snapshots of a dataset; budget spent on them stays spent."""
    catalog = _catalog(writes=True)
    if older:
        found = [entry.snapshot for entry in catalog.older(name)]
        removed = [each for snapshot in found for each in catalog.remove(name, snapshot=snapshot, force=force)]
    else:
        removed = catalog.remove(name, force=force)
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


@app.command()
def arrivals(name: Name, as_json: Json = False) -> None:
    """List the files that arrived for a dataset, with the state of each.

    A file is waiting, was released, was set aside because it cannot be read as a whole, or was refused by the budget.
    The list is private, because file names are.
    """
    print_rows(_arrivals(name), ("file", "state", "reason", "token"), as_json=as_json, empty="nothing arrived")


@app.command()
def retry(
    name: Name,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files, or their tokens from `dpca dataset arrivals`; by default all."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Return files that were set aside or refused to the waiting state, so that the next refresh takes them.

    The next refresh applies its own options. Released files stay released. A file that was changed or replaced since
    then is a new arrival anyway.
    """
    from dpca.errors import NotFound
    from storage.datasets.inbox import RETRIED, Inbox
    from storage.workspace import Workspace

    home, ended = Workspace.open().home, [row for row in _arrivals(name) if row["state"] in RETRIED]
    wanted = {Path(file).name if "://" not in file else file for file in files or ()} | set(files or ())
    chosen = [row for row in ended if not files or wanted & {row["token"], row["file"], Path(row["file"]).name}]
    if not chosen:
        raise NotFound(f"no such file of {name!r} was set aside or refused; `dpca dataset arrivals {name}` lists them")
    for row in chosen:
        Inbox(home, name).forget(row["token"])
    print_rows([{**row, "state": "waiting"} for row in chosen], ("file", "state", "token"), as_json=as_json, empty="")


@schema_app.command()
def draft(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A CSV, TSV or Parquet file; the first of several files.")
    ],
    output: File = None,
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet; by default from the file name.")] = None,  # noqa: A002
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether a text file begins with column names.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Delimiter of the fields of a text file.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of a text file; by default utf-8.")] = None,
) -> None:
    """Write a draft schema from the column names and types of SOURCE, and mark what needs public knowledge.

    No value is read, so equal names and types give equal drafts. Text has no types, so each of its columns must be
    declared.
    """
    from dpca.schemas.schema import draft as drafted
    from storage.formats.violations import read_head

    head, text = read_head(source, format=format, header=header, delimiter=delimiter, encoding=encoding)
    _write(drafted(head, text=text), output)


@schema_app.command()
def check(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A raw table, or a folder or pattern of raw tables.")],
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="A YAML file.")],
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet; by default from the file name.")] = None,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all rows of FILE against SCHEMA, and list the violations by column and rule with their first three rows.

    Nothing is stored or charged. The output and the exit code depend on rows, so they are for the owner of the data
    alone, and never for a schedule. The exit code is 1 if a rule is broken.
    """
    with activity("starting") as seen:
        from storage.formats.violations import check_tables

        checked = check_tables(source, schema, format=format, progress=seen.transfer)
    found = [asdict(violation) for violation in checked.violations]
    if as_json:
        print_facts({"rows": checked.rows, "violations": found}, as_json=True)
    else:
        print_rows(found, ("column", "rule", "count", "first"), as_json=False, empty="no violation")
        typer.echo(f"rows checked: {checked.rows}; rules broken: {len(found)}")
    if found:
        raise typer.Exit(1)


@schema_app.command("show")
def show_schema(
    path: Annotated[Path, typer.Argument(metavar="SCHEMA", help="A YAML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check SCHEMA, and show its features and the bound on the norm of a row."""
    from dpca.schemas.schema import read_schema

    schema = read_schema(path)
    facts = {"features": len(schema.feature_names), "norm_at_most": schema.norm_at_most, "unit": schema.unit}
    print_facts({**facts, "feature_names": list(schema.feature_names)}, as_json=as_json)


@schema_app.command("json")
def json_(output: File = None) -> None:
    """Write the JSON Schema of schema files, with which editors complete and check such files."""
    from dpca.schemas.schema import json_schema

    _write(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n", output)


def _arrivals(name: str) -> list[dict[str, Any]]:
    from flows.reports.snapshot_facts import reported_fault
    from storage.datasets.catalog import check_name
    from storage.datasets.inbox import Inbox
    from storage.workspace import Workspace

    home = Workspace.read_only().home
    inbox = Inbox(home, check_name(name))

    def reason(arrival: "Arrival") -> str | None:
        if arrival.end != "set_aside":
            return None
        return reported_fault(home, name, arrival.address) or inbox.reason(arrival.token)

    return [
        {
            "file": arrival.address,
            "state": arrival.end or "waiting",
            "reason": reason(arrival),
            "token": arrival.token,
        }
        for arrival in inbox.arrivals()
    ]


def _catalog(*, writes: bool = False) -> "Catalog":
    from storage.workspace import Workspace

    return (Workspace.open() if writes else Workspace.read_only()).catalog


def _write(text: str, output: Path | None) -> None:
    from dpca.backends.atomic_files import write_atomically, writing
    from dpca.errors import Invalid

    if output is None:
        typer.echo(text, nl=False)
        return
    if output.exists() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a new file in an existing folder; name such a file")
    with writing(output.parent):
        write_atomically(output, text.encode())
