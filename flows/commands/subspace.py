"""Commands of ``dpca subspace`` and ``dpca stream``.

They fit a private subspace, once or for every slot of a schedule, and evaluate or refit published ones.
"""

from typing import Annotated, Any

import typer

from flows.commands.app import App
from flows.commands.releasing import (
    Direct,
    Json,
    Yes,
    evaluation_command,
    fit_command,
)
from flows.options import (
    Alias,
    DriftAtMost,
    DryRun,
    Releases,
    Settled,
    Slot,
    SnapshotId,
    StreamName,
    Workers,
    command_option,
    with_options,
)
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, confirm, outcome_line, print_facts, print_rows, stream_line
from flows.requests import NOT_IN_LOOPS, StreamRequest, SubspaceEvaluationRequest, SubspaceRequest
from storage.datasets.ingest_options import IngestOptions

app = App(help="Fit private subspaces, evaluate them, and project rows onto them.")
stream_app = App(help="Publish a private subspace at every slot of a schedule, from one release that is charged once.")

app.command("fit")(
    fit_command(SubspaceRequest, "Release a private subspace of DATASET and publish it as a new version of a name.")
)
app.command("evaluate")(
    evaluation_command(
        SubspaceEvaluationRequest,
        """Evaluate how much variance of DATASET a subspace captures, for the curator or, with --release, publicly.

        Without --release the numbers are exact and NOT private: nothing is charged, nothing is stored, and they must
        not be published. With --release they get noise, are charged to the budget of the dataset's population, and are
        published.
        """,
    )
)


@app.command()
@with_options(IngestOptions, SubspaceRequest, annotation=command_option, omitted_is_none=True, without=NOT_IN_LOOPS)
def refresh(
    inbox: Annotated[str, typer.Argument(help="A folder, a pattern of files, or s3://bucket/prefix.")],
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

    Each file is taken once. A file that cannot be read as a whole is set aside. A bad record becomes an empty one, and
    a private report lists it. A release is held if it is noise, or if it lacks the directions of the version that the
    alias points to. A held release is published, but the alias stays.
    """
    with activity("planning"):
        from flows.refresh import parted, question_of

        options, request = parted(given)
        question = "" if yes else question_of(request, options, releases=releases)
    confirm(question, yes=yes)
    found: list[dict[str, Any]] = []
    try:
        with activity("starting"):
            if direct:
                from flows.refresh import refresh_directly as run_refresh
            else:
                from flows.jobs import run_refresh
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
                notify=found.append,
                **loop,
            )
    finally:
        for report in found:  # reports are shown even if the run failed
            _show_refreshed(report, as_json=as_json)
    if found and found[-1]["set_aside"]:
        STDERR.print(
            f"set aside: {found[-1]['set_aside']}; `dpca dataset arrivals {request.dataset}` states "
            f"why, and `dpca dataset retry {request.dataset}` queues the files again",
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
def refit(
    reference: Annotated[str, typer.Argument(metavar="NAME[@REF]", help="A published subspace.")],
    components: Annotated[int, typer.Option(min=1, help="Number of components k.")],
    publish: Annotated[str, typer.Option(help="Name under which the new subspace is published.")],
    refine: Annotated[
        str | None, typer.Option(help="none, eb, spikes, all or auto; by default the refinement of the release.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a release again with another number of components; as post-processing, this costs nothing."""
    with activity("refining the release"):
        from flows.published import refit_release

        found = refit_release(reference, components=components, publish=publish, refine=refine)
    print_facts(found, as_json=as_json)


@stream_app.command("open")
@with_options(StreamRequest, annotation=command_option)
def open_stream(
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Open a stream on DATASET, charge all its ticks (versions) together, once, and fix its terms for its lifetime."""
    with activity("planning"):
        from flows.releases.streams import offer_stream
        from flows.releases.streams import open_stream as charge_stream

        requested = StreamRequest(**request)
        offer = offer_stream(requested)
    if _agreed(offer, dry_run=dry_run, yes=yes, as_json=as_json):
        with activity("charging the stream"):
            facts = charge_stream(requested)
        _show_stream(facts, as_json=as_json)


@stream_app.command()
@with_options(annotation=command_option)
def tick(
    name: StreamName,
    slot: Slot = None,
    snapshot: SnapshotId = None,
    workers: Workers = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Publish a stream's version for one slot of its schedule; nothing is charged.

    A slot has one tick (version), even if it is run again.

    Schedules call this command. A tick that an earlier slot began and a crash interrupted is finished first.
    """
    with activity("starting"):
        if direct:
            from flows.releases.streams import tick_directly as run_tick
        else:
            from flows.jobs import run_tick
        report = run_tick(name, slot=slot, snapshot=snapshot, workers=workers)
    if report["reused"]:
        STDERR.print("this slot has a version already, which is shown")
    for warning in report["warnings"]:
        STDERR.print(f"warning: {warning}", style="yellow")
    if not as_json:
        typer.echo(outcome_line(report))
    print_facts(report, as_json=as_json)


@stream_app.command()
@with_options(annotation=command_option)
def show(name: StreamName, as_json: Json = False) -> None:
    """Show the ticks (versions) used and left, the noise now and at the end, and what stopping or extending costs.

    A factor is the noise of an estimate, divided by the noise of one release with all of the stream's epsilon and
    delta.
    """
    from flows.releases.streams import show_stream

    print_facts(show_stream(name), as_json=as_json)


@stream_app.command("list")
def list_streams(as_json: Json = False) -> None:
    """List every stream of this ledger."""
    from flows.releases.streams import stream_rows

    columns = ("stream", "live", "population", "dataset", "ticks", "used", "id")
    print_rows(stream_rows(), columns, as_json=as_json, empty="no stream yet")


@stream_app.command()
@with_options(annotation=command_option)
def extend(
    name: StreamName,
    ticks: Annotated[int, typer.Option(min=1, help="Total number of charged ticks, including earlier ones.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Charge more ticks (versions) of a stream, for its next instalment or beyond the ticks that it was opened for."""
    with activity("planning"):
        from flows.releases.streams import extend_stream, offer_extension

        offer = offer_extension(name, ticks=ticks)
    if _agreed(offer, dry_run=dry_run, yes=yes, as_json=as_json):
        with activity("charging the stream"):
            facts = extend_stream(name, ticks=ticks)
        _show_stream(facts, as_json=as_json)


@stream_app.command()
@with_options(annotation=command_option)
def close(
    name: StreamName,
    tick: Annotated[
        int | None, typer.Option(min=1, help="Close only this tick (version), which began and was not published.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Close a stream, or one of its ticks (versions), for good; nothing is refunded, and published versions stay."""
    from flows.releases.streams import close_stream

    print_facts(close_stream(name, tick=tick), as_json=as_json)


def _show_stream(facts: dict[str, Any], *, as_json: bool) -> None:
    if not as_json:
        typer.echo(stream_line(facts))
    print_facts(facts, as_json=as_json)


def _agreed(offer: Any, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show an offered charge, ask the user to confirm it, and return whether to charge.

    If the budget does not admit the charge, raise its refusal, a `BudgetExhausted` error.
    """
    for warning in offer.terms.plan.warnings:
        STDERR.print(f"warning: {warning}", style="yellow")
    if dry_run:
        print_facts(offer.facts(), as_json=as_json)
    if offer.refusal is not None:
        raise offer.refusal
    if not dry_run and not offer.standing:
        confirm(offer.question, yes=yes)
    return not dry_run
