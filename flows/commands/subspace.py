"""``dpca subspace``: fit a private subspace, and project rows onto one."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.releasing import parse_settings, release
from flows.reports.terminal import print_facts

app = typer.Typer(help="Fit private subspaces and project rows onto them.")


@app.command()
def fit(
    dataset: Annotated[str, typer.Argument(help="A dataset's name.")],
    components: Annotated[int, typer.Option(min=1, help="Number of components k.")],
    clip_norm: Annotated[
        str, typer.Option(help="Bound on a record's norm, from public knowledge; or quantile:0.9, chosen privately.")
    ],
    publish: Annotated[str, typer.Option(help="Name under which the subspace is published.")],
    epsilon: Annotated[float | None, typer.Option(help="Privacy loss to spend; positive.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Failure probability of the guarantee; below 1/records, 0 for pure mechanisms.")
    ] = None,
    mechanism: Annotated[str, typer.Option(help="Mechanism to use.")] = "analyze_gauss",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the mechanism.")
    ] = None,
    run_key: Annotated[str | None, typer.Option(help="Names the release; same key, same release.")] = None,
    row_policy: Annotated[str, typer.Option(help="clip, or normalise: all records to the clip norm.")] = "clip",
    center: Annotated[str, typer.Option(help="none, or private: around a mean that is released too.")] = "none",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of a local cluster.")] = None,
    allow_large_delta: Annotated[bool, typer.Option("--allow-large-delta")] = False,
    i_know_this_is_not_private: Annotated[
        bool,
        typer.Option(
            "--i-know-this-is-not-private",
            help="Insist on mechanism non_private: its result is marked for ever, and voids the budget.",
        ),
    ] = False,
    direct: Annotated[bool, typer.Option("--direct", help="Run without Prefect.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show noise and cost; touch nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to spend.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Release a private subspace of DATASET and publish it as a new version of a name."""
    from flows.families.subspace import SubspaceRequest
    from flows.fit import run_fit

    request = SubspaceRequest(
        dataset=dataset,
        components=components,
        epsilon=epsilon,
        delta=delta,
        clip_norm=_parse_clip_norm(clip_norm),
        publish=publish,
        mechanism=mechanism,
        settings=parse_settings(settings or []),
        run_key=run_key,
        allow_large_delta=allow_large_delta,
        row_policy=row_policy,
        center=center,
        i_know_this_is_not_private=i_know_this_is_not_private,
    )
    release(request, run_fit, workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def transform(
    reference: Annotated[str, typer.Argument(metavar="NAME[@REF]", help="A published subspace.")],
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file of rows.")],
    output: Annotated[Path, typer.Option(help="Where to write the scores, as .npy.")],
    format: Annotated[  # noqa: A002
        str | None, typer.Option(help="svmlight, npz, npy, csv, tsv, parquet, zarr or h5ad; by name by default.")
    ] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether CSV and TSV begin with the names of columns.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Project the rows of INPUT onto a published subspace.

    INPUT is NumPy .npy, SciPy .npz (csr), svmlight (.svm, .svmlight, .libsvm), wide CSV or TSV, wide Parquet, .h5ad or
    Zarr; text also as .gz or .zst. Any other name needs --format.
    """
    from flows.transform import transform_file

    print_facts(transform_file(reference, source, output, format=format, header=header), as_json=as_json)


@app.command()
def refit(
    reference: Annotated[str, typer.Argument(metavar="NAME[@REF]", help="A published subspace.")],
    components: Annotated[int, typer.Option(min=1, help="Number of components k.")],
    publish: Annotated[str, typer.Option(help="Name under which the new subspace is published.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Publish another number of components of a release: post-processing, which costs nothing."""
    from flows.refit import refit_release

    print_facts(refit_release(reference, components=components, publish=publish), as_json=as_json)


def _parse_clip_norm(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
