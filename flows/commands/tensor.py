"""``dpca tensor``: release the components of a mixture, show them, and weigh them for rows of one's own."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.releasing import Direct, Json, Yes, release
from flows.commands.scoring import DropOthers, Format, Header, IdColumn
from flows.options import DryRun, Workers, command_option, with_options
from flows.reports.activity import activity
from flows.reports.terminal import print_facts, print_json, print_rows
from flows.requests.tensor import TensorRequest

app = typer.Typer(help="Find topics of documents, or centres of points, and say which of them a row belongs to.")

Reference = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="Published tensor components.")]


@app.command()
@with_options(TensorRequest, annotation=command_option, omitted_is_none=True)
def fit(
    *,
    workers: Workers = None,
    direct: Direct = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Release components of DATASET, one document or point a record, and publish them as a new version of a name."""
    asked = TensorRequest(**request)
    release(
        asked,
        "flows.decompose:run_decomposition",
        workers=workers,
        direct=direct,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@app.command()
def show(
    reference: Reference,
    top_words: Annotated[int, typer.Option(min=1, help="How many words, or columns, of each component.")] = 10,
    as_json: Json = False,
) -> None:
    """Show the weight of each component and its largest entries, by the names of columns where they were declared."""
    from flows.describe import describe_components

    found = describe_components(reference, top_words=top_words)
    if as_json:
        print_json(found)
        return
    rows = [
        {**row, "weight": f"{row['weight']:.4f}", "words": ", ".join(map(_word, row["words"]))}
        for row in found["components"]
    ]
    print_rows(rows, ("component", "weight", "words"), as_json=False, empty="the noise left no component")


@app.command()
def transform(
    reference: Reference,
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file of rows.")],
    output: Annotated[Path, typer.Option(help="Where to write posterior weights: .npy, or .parquet with ids of rows.")],
    format: Format = None,  # noqa: A002
    header: Header = None,
    id_column: IdColumn = None,
    drop_others: DropOthers = False,
    as_json: Json = False,
) -> None:
    """Write the posterior weights of the components, given each row of INPUT, which is read here and goes nowhere.

    INPUT is any file that `dpca subspace transform` takes: documents as counts of words, or points.
    """
    with activity("starting") as seen:
        from flows.transform import transform_file
        from storage.artifacts.tensor import TensorComponents

        seen.step("reading and weighing rows")
        found = transform_file(
            reference,
            source,
            output,
            kind=TensorComponents,
            format=format,
            header=header,
            id_column=id_column,
            drop_others=drop_others,
            watch=seen.rows,
        )
    print_facts(found, as_json=as_json)


def _word(found: dict[str, Any]) -> str:
    return f"{found['word']} {found['entry']:.3g}"
