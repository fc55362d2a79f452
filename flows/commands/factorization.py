"""Commands of ``dpca completion`` and ``dpca tensor``.

They release factors of ratings or components of a mixture, and apply them.
"""

from typing import Annotated, Any

import typer

from flows.commands.app import App
from flows.commands.consuming import Embeddings, Ratings
from flows.commands.releasing import Json, evaluation_command, fit_command
from flows.reports.activity import activity
from flows.reports.terminal import print_json, print_rows
from flows.requests import CompletionEvaluationRequest, CompletionRequest, TensorRequest

app = App(help="Complete matrices of ratings, and predict a user's ratings on the user's machine.")
tensor_app = App(help="Find topics of documents or centres of points, and assign rows to them.")

Model = Annotated[str, typer.Argument(metavar="NAME[@REF]", help="Published tensor components.")]

app.command("fit")(
    fit_command(
        CompletionRequest,
        "Release item embeddings of DATASET, one row for each user, and publish them as a new version of a name.",
    )
)
app.command("evaluate")(
    evaluation_command(
        CompletionEvaluationRequest,
        """Evaluate how well item embeddings predict ratings of DATASET, for the curator or, with --release, publicly.

        A fifth of each user's ratings is hidden and predicted from the others. Without --release the numbers are exact
        and NOT private: nothing is charged, nothing is stored, and they must not be published. With --release they get
        noise, are charged to the budget of the dataset's population, and are published.
        """,
    )
)
tensor_app.command("fit")(
    fit_command(
        TensorRequest,
        "Release components of DATASET, one document or point for each record, and publish "
        "them as a new version of a name.",
    )
)


@app.command()
def predict(reference: Embeddings, source: Ratings, as_json: Json = False) -> None:
    """Predict the ratings of all items by the user of USER_FILE; the file stays on this machine."""
    from flows.transform import predict_ratings

    print_rows(predict_ratings(reference, source), ("item", "predicted"), as_json=as_json, empty="no item")


@app.command()
def tune(
    *,
    dataset: Annotated[
        str | None, typer.Argument(help="Not accepted: settings are never searched on private rows.")
    ] = None,
    users: Annotated[int, typer.Option(min=2, help="Number of synthetic users.")],
    items: Annotated[int, typer.Option(min=2, help="Number of items.")],
    rank: Annotated[int, typer.Option(min=1, help="Number of factors of an item.")],
    ratings_per_user: Annotated[int, typer.Option(min=1, help="Maximum number of ratings counted for one user.")],
    epsilon: Annotated[float, typer.Option(help="Privacy loss of the release that the settings are for.")],
    delta: Annotated[float, typer.Option(help="Failure probability of its guarantee.")],
    mechanism: Annotated[str, typer.Option(help="The mechanism whose settings are searched.")] = "dpals",
    task: Annotated[
        str, typer.Option(help="Synthetic ratings: skewed (stars with errors) or low-rank (without errors).")
    ] = "skewed",
    tried: Annotated[
        list[str] | None, typer.Option("--try", help="Values of a setting to try.", metavar="KEY=V1,V2")
    ] = None,
    draws: Annotated[
        int, typer.Option(min=1, help="Number of synthetic data sets on which each combination runs.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Search settings on synthetic ratings of the declared size; nothing is charged, and no private row is read."""
    from flows.tune import Search, refuse_private_rows, search, values_of

    requested = Search(
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
        refuse_private_rows(requested)
    with activity("trying settings") as seen:
        rows = search(requested, progress=seen.parts)
    print_rows(rows, ("settings", "rmse"), as_json=as_json, empty="no setting was tried")


@tensor_app.command()
def show(
    reference: Model,
    top_words: Annotated[int, typer.Option(min=1, help="Number of words, or columns, of each component.")] = 10,
    as_json: Json = False,
) -> None:
    """Show the weight and the largest entries of each component, by column name if names were declared."""
    from flows.transform import describe_components

    found = describe_components(reference, top_words=top_words)
    if as_json:
        print_json(found)
        return
    rows = [
        {**row, "weight": f"{row['weight']:.4f}", "words": ", ".join(map(_word, row["words"]))}
        for row in found["components"]
    ]
    print_rows(rows, ("component", "weight", "words"), as_json=False, empty="no component is above the noise")


def _word(found: dict[str, Any]) -> str:
    return f"{found['word']} {found['entry']:.3g}"
