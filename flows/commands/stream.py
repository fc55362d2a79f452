"""``dpca stream``: a private subspace for every night of a schedule, charged once."""

from typing import Annotated, Any

import typer

from flows.commands.releasing import Direct, Json, Yes
from flows.options import DryRun, Slot, SnapshotId, StreamName, Workers, command_option, with_options
from flows.reports.activity import activity
from flows.reports.outcome import outcome_line, stream_line
from flows.reports.terminal import STDERR, confirm, print_facts, print_rows
from flows.requests.stream import StreamRequest

app = typer.Typer(help="Publish a private subspace every night, from one release that is charged once.")


@app.command("open")
@with_options(StreamRequest, annotation=command_option)
def open_stream(
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    **request: Any,
) -> None:
    """Open a stream on DATASET: charge all its ticks together, once, and fix everything else for its life."""
    with activity("planning"):
        from flows.releases.stream_acts import offer_stream
        from flows.releases.stream_acts import open_stream as charge_stream

        asked = StreamRequest(**request)
        offer = offer_stream(asked)
    if _agreed(offer, dry_run=dry_run, yes=yes, as_json=as_json):
        with activity("charging the stream"):
            facts = charge_stream(asked)
        _show(facts, as_json=as_json)


@app.command()
def tick(
    name: StreamName,
    slot: Slot = None,
    snapshot: SnapshotId = None,
    workers: Workers = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Publish the version of a slot: nothing is charged, and a slot that is run again is the same tick.

    This is what a schedule calls. What an earlier slot began and a crash left is finished first.
    """
    with activity("starting"):
        from flows.stream import run_tick

        report = run_tick(name, slot=slot, snapshot=snapshot, workers=workers, direct=direct)
    if report["reused"]:
        STDERR.print("this slot has its tick already: this is that version")
    for warning in report["warnings"]:
        STDERR.print(f"warning: {warning}", style="yellow")
    if not as_json:
        typer.echo(outcome_line(report))
    print_facts(report, as_json=as_json)


@app.command()
def show(name: StreamName, as_json: Json = False) -> None:
    """Show the ticks used and left, the noise now and at the end, and what stopping or extending costs.

    A factor is the noise of an estimate over that of one release with all of the stream's privacy.
    """
    from flows.releases.stream_acts import show_stream

    print_facts(show_stream(name), as_json=as_json)


@app.command("list")
def list_streams(as_json: Json = False) -> None:
    """List every stream of this ledger."""
    from flows.releases.stream_acts import stream_rows

    columns = ("stream", "live", "population", "dataset", "ticks", "used", "id")
    print_rows(stream_rows(), columns, as_json=as_json, empty="no stream yet")


@app.command()
def extend(
    name: StreamName,
    ticks: Annotated[int, typer.Option(min=1, help="Ticks that are paid for in all, with those before.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Charge more ticks of a stream: the next instalment, or ticks beyond those it was opened for."""
    with activity("planning"):
        from flows.releases.stream_acts import extend_stream, offer_extension

        offer = offer_extension(name, ticks=ticks)
    if _agreed(offer, dry_run=dry_run, yes=yes, as_json=as_json):
        with activity("charging the stream"):
            facts = extend_stream(name, ticks=ticks)
        _show(facts, as_json=as_json)


@app.command()
def close(
    name: StreamName,
    tick: Annotated[
        int | None, typer.Option(min=1, help="Give up this tick alone, which began and was not published.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Close a stream for good, or one tick of it. Nothing is given back; published versions stay."""
    from flows.releases.stream_acts import close_stream

    print_facts(close_stream(name, tick=tick), as_json=as_json)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if not as_json:
        typer.echo(stream_line(facts))
    print_facts(facts, as_json=as_json)


def _agreed(offer: Any, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show what would be charged, refuse what the budget does not admit, and ask."""
    for warning in offer.terms.plan.warnings:
        STDERR.print(f"warning: {warning}", style="yellow")
    if dry_run:
        print_facts(offer.facts(), as_json=as_json)
    if offer.refusal is not None:
        raise offer.refusal
    if not dry_run and not offer.standing:
        confirm(offer.question, yes=yes)
    return not dry_run
