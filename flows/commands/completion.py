"""``dpca completion``: release item embeddings, and predict ratings with them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.option_words import command_option
from flows.commands.releasing import Direct, DryRun, Json, Workers, Yes, release
from flows.orchestration.option_parameters import with_options
from flows.reports.terminal import print_rows
from flows.requests.completion import CompletionRequest

app = typer.Typer(help="Complete matrices of ratings, and predict a user's ratings on the user's machine.")

Reference = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="Published item embeddings.")]
Ratings = Annotated[Path, typer.Argument(metavar="USER_FILE", help="CSV of one user: columns item and rating.")]


@app.command()
@with_options(CompletionRequest, annotation=command_option, omitted_is_none=True)
def fit(
    *,
    workers: Workers = None,
    direct: Direct = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Release item embeddings of DATASET, one row a user, and publish them as a new version of a name."""
    from flows.complete import run_completion

    asked = CompletionRequest(**request)
    release(asked, run_completion, workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def recommend(
    reference: Reference,
    source: Ratings,
    count: Annotated[int, typer.Option(min=1, help="How many items.")] = 10,
    as_json: Json = False,
) -> None:
    """List the items that the user of USER_FILE would rate highest; the file is read here and goes nowhere."""
    from flows.recommend import recommend_items

    rows = recommend_items(reference, source, count=count)
    print_rows(rows, ("item", "predicted"), as_json=as_json, empty="the user has rated every item")


@app.command()
def predict(reference: Reference, source: Ratings, as_json: Json = False) -> None:
    """Predict the ratings of all items by the user of USER_FILE; the file is read here and goes nowhere."""
    from flows.recommend import predict_ratings

    print_rows(predict_ratings(reference, source), ("item", "predicted"), as_json=as_json, empty="no item")
