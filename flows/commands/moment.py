"""Commands of ``dpca moment`` and ``dpca derive``.

They release a second moment, and publish what follows from one that is released already.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.app import App
from flows.commands.releasing import Json, fit_command
from flows.reports.activity import activity
from flows.reports.terminal import print_facts, print_json, print_rows
from flows.requests import MomentRequest

if TYPE_CHECKING:
    from dpca.artifacts.base import Artifact
    from dpca.artifacts.moment import PrivateMoment

app = App(help="Release the second moment of a dataset, with its mean, as one noisy matrix.")
derive_app = App(help="Derive models from a released moment, at no charge and without reading a row.")

SHOWN = 12

Release = Annotated[
    str, typer.Argument(metavar="NAME[@REF]", help="A published moment, or a subspace that kept its matrix.")
]
Publish = Annotated[str | None, typer.Option(help="Name of the new artifact; by default NAME and the model's name.")]
Plot = Annotated[Path | None, typer.Option(help="Draw a chart into this .svg or .png file.")]
Theme = Annotated[str, typer.Option(help="Colours of the chart: light or dark.")]
L2 = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Penalty, in squared data units summed over rows; by default the noise edge (bound on "
        "eigenvalues of the noise).",
    ),
]


@app.callback()
def moment() -> None:
    """Release the second moment of a dataset, with its mean, as one noisy matrix."""


app.command("fit")(
    fit_command(MomentRequest, "Release the second moment of DATASET and publish it as a new version of a name.")
)


@derive_app.command()
def ridge(
    reference: Release,
    target: Annotated[str, typer.Option(help="Column to predict; a categorical column is classified.")],
    l2: L2 = None,
    classes: Annotated[
        str | None, typer.Option(help="A,B: the two values of a numeric target that marks two classes.")
    ] = None,
    publish: Publish = None,
    plot: Plot = None,
    theme: Theme = "light",
    as_json: Json = False,
) -> None:
    """Regress a column on all others, with intervals from the noise of the release."""
    values = None if classes is None else _two(classes)
    _derive(
        reference,
        "ridge",
        lambda found, parent: found.ridge(target, l2=l2, classes=values, parent=parent),
        publish=publish,
        plot=plot,
        theme=theme,
        as_json=as_json,
    )


@derive_app.command()
def lda(
    reference: Release,
    label: Annotated[str, typer.Option(help="Category whose values are the classes.")],
    l2: L2 = None,
    publish: Publish = None,
    plot: Plot = None,
    theme: Theme = "light",
    as_json: Json = False,
) -> None:
    """Compute linear discriminant functions of the values of a category."""
    _derive(
        reference,
        "lda",
        lambda found, parent: found.lda(label, l2=l2, parent=parent),
        publish=publish,
        plot=plot,
        theme=theme,
        as_json=as_json,
    )


@derive_app.command()
def pca(
    reference: Release,
    components: Annotated[int, typer.Option(min=1, help="Number of components k.")],
    whiten: Annotated[bool, typer.Option("--whiten", help="Divide each score by its standard deviation.")] = False,
    scale: Annotated[
        str,
        typer.Option(help="Weights of columns: none, standard, mca (for categories), or famd (for mixed columns)."),
    ] = "none",
    publish: Publish = None,
    plot: Plot = None,
    theme: Theme = "light",
    as_json: Json = False,
) -> None:
    """Compute principal components with loadings; on request, whiten the scores or weight the columns."""
    _derive(
        reference,
        "pca",
        lambda found, parent: found.pca(components, whiten=whiten, scale=scale, parent=parent),
        publish=publish,
        plot=plot,
        theme=theme,
        as_json=as_json,
    )


@derive_app.command()
def correlation(
    reference: Release, publish: Publish = None, plot: Plot = None, theme: Theme = "light", as_json: Json = False
) -> None:
    """Compute correlations and partial correlations, with standard errors from the noise of the release."""
    _derive(
        reference,
        "correlation",
        lambda found, parent: found.correlations(parent=parent),
        publish=publish,
        plot=plot,
        theme=theme,
        as_json=as_json,
    )


@derive_app.command()
def sample(
    reference: Release,
    rows: Annotated[int, typer.Option(min=1, help="Number of synthetic rows.")],
    output: Annotated[Path, typer.Option(help="File of the rows: .csv or .parquet.")],
    seed: Annotated[int, typer.Option(min=0, help="Public seed of the draws.")] = 0,
    as_json: Json = False,
) -> None:
    """Draw normal rows with the released mean and covariance, decoded by the schema.

    The rows match means and correlations up to the noise, and nothing else. A report compares them with the release.
    """
    with activity("drawing rows"):
        from flows.published import sample_release

        found = sample_release(reference, output, n_rows=rows, seed=seed)
    print_facts(found, as_json=as_json)


def _derive(
    reference: str,
    name: str,
    made: "Callable[[PrivateMoment, str], Artifact]",
    *,
    publish: str | None,
    plot: Path | None,
    theme: str,
    as_json: bool,
) -> None:
    """Publish the artifact that ``made`` derives from a moment, plot it on request, and print facts and first rows."""
    with activity("deriving from the release"):
        from dpca.artifacts.derived import Correlations, DerivedModel
        from flows.published import derive_release
        from flows.reports.derived_charts import check_chart_file, derived_chart, write_chart

        if plot is not None:
            check_chart_file(plot)
        facts, artifact = derive_release(reference, made, publish=publish or f"{reference.partition('@')[0]}.{name}")
        assert isinstance(artifact, Correlations | DerivedModel)
        if plot is not None:
            write_chart(derived_chart(artifact, theme=theme), plot)
    rows, facts = artifact.rows(), {**facts, **artifact.summary()}
    if as_json:
        print_json({**facts, "rows": rows})
        return
    print_facts({name: value for name, value in facts.items() if not isinstance(value, dict)}, as_json=False)
    print_rows(rows[:SHOWN], tuple(rows[0]), as_json=False, empty="")


def _two(text: str) -> tuple[float, float]:
    """Parse the text ``A,B`` as two numbers."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not A,B with two numbers.", param_hint="--classes") from None
    return low, high
