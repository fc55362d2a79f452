"""``dpca schema``: declare what the columns of a raw table are, in public."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.reports.activity import activity
from flows.reports.terminal import print_facts, print_rows

app = typer.Typer(help="Declare what the columns of a raw table are: ranges, categories, missing values, all public.")

File = Annotated[Path | None, typer.Option(help="The file to write; stdout by default.")]


@app.command()
def draft(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="CSV, TSV or Parquet; the first of several files.")],
    output: File = None,
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet; by file name by default.")] = None,  # noqa: A002
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether text begins with the names of columns.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="The sign between fields of text.")] = None,
    encoding: Annotated[str | None, typer.Option(help="The encoding of text; utf-8 by default.")] = None,
) -> None:
    """Write a first schema from the names and types of SOURCE, and mark what needs public knowledge.

    No value is read, so equal names and types give equal drafts. Text has no types: each of its columns is to be
    declared.
    """
    from storage.formats.table_heads import read_head
    from storage.schemas.draft import draft as drafted

    head, text = read_head(source, format=format, header=header, delimiter=delimiter, encoding=encoding)
    _write(drafted(head, text=text), output)


@app.command()
def check(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A raw table, or a folder or pattern of some.")],
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="A YAML file.")],
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet; by file name by default.")] = None,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all rows of FILE against SCHEMA: every violation at once, by column and rule, with the first three rows.

    Nothing is stored or charged. The output and the exit code describe rows, so they are for the owner of the data
    alone, and never for a schedule. The exit code is 1 when a rule is broken.
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


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="SCHEMA", help="A YAML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check SCHEMA, and show the features that it makes and the bound on the norm of their rows."""
    from storage.schemas.schema import read_schema

    schema = read_schema(path)
    facts = {"features": len(schema.feature_names), "norm_at_most": schema.norm_at_most, "unit": schema.unit}
    print_facts({**facts, "feature_names": list(schema.feature_names)}, as_json=as_json)


@app.command("json")
def json_(output: File = None) -> None:
    """Write the JSON Schema of schema files, with which editors complete and check them."""
    from storage.schemas.schema import json_schema

    _write(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n", output)


def _write(text: str, output: Path | None) -> None:
    from storage.backends.atomic_files import write_atomically, writing
    from storage.errors import Invalid

    if output is None:
        typer.echo(text, nl=False)
        return
    if output.exists() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a new file in an existing folder; name such a file")
    with writing(output.parent):
        write_atomically(output, text.encode())
