"""``dpca subspace``: fit a private subspace, evaluate one, and project rows onto one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.releasing import Direct, Json, Release, Yes, release
from flows.commands.scoring import DropOthers, Format, Header, IdColumn
from flows.options import Alias, DriftAtMost, DryRun, Releases, Settled, Workers, command_option, with_options
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, confirm, print_facts, print_rows
from flows.requests.base import NO_LOOP_ASKS
from flows.requests.evaluation import SubspaceEvaluationRequest
from flows.requests.subspace import SubspaceRequest
from storage.datasets.ingest_options import IngestOptions

app = typer.Typer(help="Fit private subspaces, evaluate them, and project rows onto them.")


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
    asked = SubspaceRequest(**request)
    release(asked, "flows.fit:run_fit", workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
@with_options(SubspaceEvaluationRequest, annotation=command_option, omitted_is_none=True)
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
    """Show how much of the variance of DATASET a published subspace holds: to the curator, or, with --release, to all.

    Without --release the numbers are exact and NOT private: nothing is charged, nothing is stored, and they must not be
    published. With --release they get noise, are charged to the budget of the dataset's population, and are published.
    """
    if buys:
        asked, job = SubspaceEvaluationRequest(**request), "flows.evaluate:run_subspace_evaluation"
        release(asked, job, workers=workers, direct=direct, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if dry_run or request["epsilon"] is not None:
        raise typer.BadParameter("diagnostics cost nothing; --epsilon and --dry-run are for --release, so add it.")
    with activity("starting"):
        from flows.evaluate import diagnose_subspace

        found = diagnose_subspace(request["artifact"], request["dataset"], workers=workers)
    STDERR.print(f"warning: {found['notice']}", style="yellow")
    print_facts(found, as_json=as_json)


@app.command()
@with_options(IngestOptions, annotation=command_option, without=NO_LOOP_ASKS)
@with_options(SubspaceRequest, annotation=command_option, omitted_is_none=True, without=NO_LOOP_ASKS)
def refresh(
    inbox: Annotated[str, typer.Argument(help="A folder, a pattern in one, or s3://bucket/prefix.")],
    *,
    releases: Releases = None,
    alias: Alias = "champion",
    drift_at_most: DriftAtMost = 0.5,
    settled: Settled = 10.0,
    workers: Workers = None,
    direct: Direct = False,
    yes: Yes = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Ingest each file that arrived in INBOX as DATASET, release it, and promote or hold the release.

    Each file is taken once. One that cannot be read as a whole is set aside; a bad record becomes an empty one, which a
    private report names. A release of noise, or one that lacks the directions of the version that the alias means, is
    held: it is published, and the alias stays.
    """
    with activity("planning"):
        from flows.refresh import parted, question_of, run_refresh

        options, request = parted(given)
        question = "" if yes else question_of(request, options, releases=releases)
    confirm(question, yes=yes)
    found: list[dict[str, Any]] = []
    try:
        with activity("starting"):
            loop: dict[str, Any] = {
                "releases": releases,
                "alias": alias,
                "drift_at_most": drift_at_most,
                "settled": settled,
            }
            run_refresh(
                inbox,
                request,
                options,
                workers=workers,
                direct=direct,
                tell=found.append,
                **loop,
            )
    finally:
        for report in found:  # also of a run that then fails
            _show_refreshed(report, as_json=as_json)
    if found and found[-1]["set_aside"]:
        STDERR.print(
            f"set aside: {found[-1]['set_aside']}; `dpca dataset arrivals {request.dataset}` states why, and "
            f"`dpca dataset retry {request.dataset}` lets the files wait again",
            markup=False,
        )
        raise typer.Exit(1)


def _show_refreshed(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_facts(report, as_json=True)
        return
    typer.echo(f"{report['outcome']}.")
    if report["decisions"]:
        print_rows(report["decisions"], ("artifact", "decision", "reason", "verdict"), as_json=False, empty="")


@app.command()
def transform(
    reference: Annotated[str, typer.Argument(metavar="NAME[@REF]", help="A published subspace.")],
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file of rows.")],
    output: Annotated[Path, typer.Option(help="Where to write the scores: .npy, or .parquet with the ids of rows.")],
    format: Format = None,  # noqa: A002
    header: Header = None,
    id_column: IdColumn = None,
    drop_others: DropOthers = False,
    as_json: Json = False,
) -> None:
    """Project the rows of INPUT onto a published subspace.

    The suffix of INPUT chooses one of the formats that --format lists; text may also end in .gz or .zst, and tables are
    wide. Where INPUT and the subspace both name their columns, these are matched by name, in any order.
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
    with activity("refining the release"):
        from flows.refit import refit_release

        found = refit_release(reference, components=components, publish=publish, refine=refine)
    print_facts(found, as_json=as_json)
