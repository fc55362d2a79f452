"""``dpca subspace``: fit a private subspace, and project rows onto one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.option_words import command_option
from flows.commands.releasing import Direct, DryRun, Json, Workers, Yes, release
from flows.orchestration.option_parameters import with_options
from flows.reports.terminal import print_facts
from flows.requests.subspace import SubspaceRequest

app = typer.Typer(help="Fit private subspaces and project rows onto them.")


@app.command()
@with_options(SubspaceRequest, annotation=command_option, omitted_is_none=True)
def fit(
    *,
    workers: Workers = None,
    direct: Direct = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Release a private subspace of DATASET and publish it as a new version of a name."""
    from flows.fit import run_fit

    asked = SubspaceRequest(**request)
    release(asked, run_fit, workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)


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
    as_json: Json = False,
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
    refine: Annotated[
        str | None, typer.Option(help="none, eb, spikes, all or auto; as the release was refined by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish another number of components of a release: post-processing, which costs nothing."""
    from flows.refit import refit_release

    print_facts(refit_release(reference, components=components, publish=publish, refine=refine), as_json=as_json)
