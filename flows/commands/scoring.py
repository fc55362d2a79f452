"""The options of commands that make scores of a file of rows with a release."""

from typing import Annotated

import typer

from storage.formats.registry import option_help

Format = Annotated[str | None, typer.Option(help=option_help())]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Whether CSV and TSV begin with the names of columns.")
]
IdColumn = Annotated[
    str | None, typer.Option(help="Column of a table with the id of each row, for .parquet; .h5ad has names of rows.")
]
DropOthers = Annotated[
    bool, typer.Option("--drop-others", help="Leave out columns that the release does not know; else refused.")
]
