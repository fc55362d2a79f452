"""Commands of ``dpca transform`` and ``dpca recommend``.

A consumer applies a release to a local file, which is sent nowhere.
"""

from pathlib import Path
from typing import Annotated

import typer

from flows.reports.activity import activity
from flows.reports.terminal import print_facts, print_rows
from storage.formats.registry import option_help

Embeddings = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="Published item embeddings.")]
Ratings = Annotated[
    Path, typer.Argument(metavar="USER_FILE", help="CSV file of one user, with columns item and rating.")
]
Format = Annotated[str | None, typer.Option(help=option_help())]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Whether CSV and TSV files begin with column names.")
]
IdColumn = Annotated[
    str | None, typer.Option(help="Column with the id of each row, for .parquet; .h5ad files contain row names.")
]
DropOthers = Annotated[
    bool,
    typer.Option("--drop-others", help="Ignore columns that the release does not have, instead of refusing the file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def transform(
    reference: Annotated[str, typer.Argument(metavar="NAME[@REF]", help="A published subspace, or tensor components.")],
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file of rows.")],
    output: Annotated[Path, typer.Option(help="Output file of the scores: .npy, or .parquet with the row ids.")],
    format: Format = None,  # noqa: A002
    header: Header = None,
    id_column: IdColumn = None,
    drop_others: DropOthers = False,
    as_json: Json = False,
) -> None:
    """Project the rows of INPUT onto a published subspace, or compute their weights for tensor components.

    The suffix of INPUT selects one of the formats that --format lists. Text may also end in .gz or .zst. Tables must be
    wide, with one row a line. If INPUT and the subspace both name their columns, the columns are matched by name, in
    any order.
    """
    with activity("starting") as seen:
        from flows.transform import transform_file

        seen.step("reading and projecting rows")
        found = transform_file(
            reference,
            source,
            output,
            format=format,
            header=header,
            id_column=id_column,
            drop_others=drop_others,
            watch=seen.rows,
        )
    print_facts(found, as_json=as_json)


def recommend(
    reference: Embeddings,
    source: Ratings,
    count: Annotated[int, typer.Option(min=1, help="Number of recommended items.")] = 10,
    as_json: Json = False,
) -> None:
    """List the items with the highest predicted ratings of the user of USER_FILE; the file stays on this machine."""
    from flows.transform import recommend_items

    rows = recommend_items(reference, source, count=count)
    print_rows(rows, ("item", "predicted"), as_json=as_json, empty="the user has rated every item")
