"""``dpca completion``: release item embeddings, and predict ratings with them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.releasing import Direct, Json, Release, Yes, release
from flows.options import DryRun, Workers, command_option, with_options
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, print_facts, print_rows
from flows.requests.completion import CompletionRequest
from flows.requests.evaluation import CompletionEvaluationRequest

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
    asked = CompletionRequest(**request)
    release(
        asked,
        "flows.complete:run_completion",
        workers=workers,
        direct=direct,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@app.command()
@with_options(CompletionEvaluationRequest, annotation=command_option, omitted_is_none=True)
def evaluate(
    *,
    buys: Release = False,
    workers: Workers = None,
    direct: Direct = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Show how well item embeddings predict ratings of DATASET: to the curator, or, with --release, to all.

    A fifth of each user's ratings is hidden and predicted from the others. Without --release the numbers are exact and
    NOT private: nothing is charged, nothing is stored, and they must not be published. With --release they get noise,
    are charged to the budget of the dataset's population, and are published.
    """
    if buys:
        asked, job = CompletionEvaluationRequest(**request), "flows.evaluate:run_completion_evaluation"
        release(asked, job, workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if dry_run or request["epsilon"] is not None:
        raise typer.BadParameter("diagnostics cost nothing; --epsilon and --dry-run are for --release, so add it.")
    named = {name: request[name] for name in ("artifact", "dataset", "count")}
    with activity("starting"):
        from flows.evaluate import diagnose_completion

        found = diagnose_completion(**named, workers=workers)
    STDERR.print(f"warning: {found['notice']}", style="yellow")
    print_facts(found, as_json=as_json)


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


@app.command()
def tune(
    *,
    dataset: Annotated[
        str | None, typer.Argument(help="Leave it out: no settings are searched on private rows.")
    ] = None,
    users: Annotated[int, typer.Option(min=2, help="Declared number of users.")],
    items: Annotated[int, typer.Option(min=2, help="Number of items.")],
    rank: Annotated[int, typer.Option(min=1, help="Number of factors of an item.")],
    ratings_per_user: Annotated[int, typer.Option(min=1, help="How many ratings of one user are counted at most.")],
    epsilon: Annotated[float, typer.Option(help="Privacy loss of the release that settings are for.")],
    delta: Annotated[float, typer.Option(help="Failure probability of its guarantee.")],
    mechanism: Annotated[str, typer.Option(help="The mechanism whose settings are searched.")] = "dpals",
    task: Annotated[str, typer.Option(help="Made ratings: skewed (stars with errors) or low-rank (none).")] = "skewed",
    tried: Annotated[list[str] | None, typer.Option("--try", help="Values of a setting.", metavar="KEY=V1,V2")] = None,
    draws: Annotated[int, typer.Option(min=1, help="How many makings each combination is run on.")] = 1,
    as_json: Json = False,
) -> None:
    """Search settings on made ratings of the declared size; nothing is charged, and no private row is read."""
    from flows.tune import Search, refuse_private_rows, search, values_of

    asked = Search(
        task=task,
        users=users,
        items=items,
        rank=rank,
        ratings_per_user=ratings_per_user,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        tried=values_of(tried or ()),
        draws=draws,
    )
    if dataset is not None:
        refuse_private_rows(asked)
    with activity("trying settings") as seen:
        rows = search(asked, progress=seen.parts)
    print_rows(rows, ("settings", "rmse"), as_json=as_json, empty="nothing was tried")
