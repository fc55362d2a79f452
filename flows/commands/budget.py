"""Commands of ``dpca budget`` and ``dpca ledger``.

They manage the budgets of populations, and serve a ledger from a separate process.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.app import App
from flows.commands.releasing import Json
from flows.reports.terminal import SHOWN, STDERR, confirm, print_earlier, print_facts, print_json, print_rows

LEDGER = "Hold the ledger in a separate process, with the database credentials and keys, and serve it to clients."

app = App(help="Open privacy budgets and show the remaining budget.")
ledger_app = App(help=LEDGER)

Limit = Annotated[int, typer.Option(min=0, help="Number of newest releases to show; 0 shows all.")]


@app.command("open")
def open_budget(
    population: Annotated[str, typer.Argument(help="The people behind the data, across all its snapshots.")],
    epsilon: Annotated[float, typer.Option(help="Total privacy loss allowed.")],
    delta: Annotated[float, typer.Option(help="Total failure probability allowed.")],
    relation: Annotated[
        str, typer.Option(help="Neighboring relation: add_remove, zero_out or replace_one.")
    ] = "add_remove",
    unit: Annotated[
        str | None,
        typer.Option(
            help="Name of the ids of individuals, such as patient_id; all rows of one id are protected "
            "together. By default each row alone."
        ),
    ] = None,
    rows_per_unit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of rows of one id in a dataset, as in --max-rows-per-unit at ingest."),
    ] = None,
    filter_: Annotated[str, typer.Option("--filter", help="Accounting of the total cost: gdp or renyi.")] = "gdp",
    failure_delta: Annotated[
        float | None,
        typer.Option(help="Part of delta reserved for releases that are not Gaussian; by default a tenth, 0 for none."),
    ] = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a delta that is not below 1/records.")
    ] = False,
    even_locked: Annotated[
        bool,
        typer.Option(
            "--even-locked",
            help="Open the budget even if the ledger is locked because the registry is newer; "
            "`accept-restored` unlocks it.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Open the budget of POPULATION; its terms never change."""
    from flows.reports.budget_facts import budget_facts
    from storage.database.engine import transaction
    from storage.ledger.budgets import other_units
    from storage.workspace import Workspace

    if failure_delta == 0:
        STDERR.print(
            "warning: with failure_delta 0 the first Gaussian release permanently excludes mechanisms with a failure "
            "probability and mechanisms that sample; the terms of a budget never change."
        )
    ledger = Workspace.open(even_locked=even_locked).ledger
    ledger.open_budget(
        population,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        filter=filter_,
        failure_delta=failure_delta,
        unit=unit,
        rows_per_unit=rows_per_unit,
        allow_large_delta=allow_large_delta,
    )
    with transaction(ledger.engine) as connection:
        for other in other_units(connection, population).values():
            STDERR.print(f"warning: {'; '.join(other)}.", markup=False)
    facts = budget_facts(ledger, population, newest=0)
    del facts["releases"], facts["earlier"]
    print_facts(facts, as_json=as_json)


@app.command("list")
def list_budgets(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every budget with its privacy unit, and what is spent and left."""
    from flows.reports.budget_facts import balances
    from storage.workspace import Workspace

    columns = ("population", "epsilon", "delta", "spent", "remaining", "unit", "rows_per_unit", "releases")
    empty = "no budget is open; `dpca budget open POPULATION --epsilon E --delta D` opens one"
    print_rows(balances(Workspace.read_only().ledger), columns, as_json=as_json, empty=empty)


@app.command()
def show(
    population: Annotated[str, typer.Argument(help="A population with a budget.")],
    limit: Limit = SHOWN,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what POPULATION's budget allows, what is spent and left, and the newest releases."""
    from flows.remote_ledger.workspaces import read_workspace
    from flows.reports.budget_facts import budget_facts, event_text

    facts = budget_facts(read_workspace().ledger, population, newest=limit or None)
    if as_json:
        print_json(facts)
        return
    rows = [{**row, "event": event_text(row["event"])} for row in facts.pop("releases")]
    for row in rows:
        row["artifact"] = f"{row['damaged']} (pointer file damaged)" if row["damaged"] else row["artifact"]
    earlier = facts.pop("earlier", 0)
    print_facts(facts, as_json=False)
    typer.echo()
    print_earlier(earlier, "releases")
    columns = ("release", "mechanism", "event", "epsilon", "delta", "state", "artifact", "actor", "time")
    print_rows(rows, columns, as_json=False, empty="no release yet")


@app.command()
def history(
    population: Annotated[str, typer.Argument(help="A population with a budget.")],
    limit: Limit = SHOWN,
    plot: Annotated[Path | None, typer.Option(help="Draw the burn-down to this PNG or SVG file.")] = None,
    theme: Annotated[str, typer.Option(help="Theme of the plot: light or dark.")] = "light",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how the newest releases spent POPULATION's budget over time."""
    from flows.remote_ledger.workspaces import read_workspace

    ledger = read_workspace().ledger
    ledger.budget(population)
    if plot is not None:
        from flows.reports.budget_facts import budget_facts
        from flows.reports.release_charts import budget_chart, check_chart_file, write_chart

        check_chart_file(plot)
        write_chart(budget_chart(budget_facts(ledger, population), theme=theme), plot)
    rows = ledger.history(population, newest=limit + 1 if limit else None)
    if limit and len(rows) > limit:
        rows = rows[1:]
        print_earlier(None, "releases")
    columns = ("time", "release", "actor", "spent", "remaining")
    print_rows(rows, columns, as_json=as_json, empty="nothing spent yet")


@app.command()
def pace(
    population: Annotated[str, typer.Argument(help="A population with a budget.")],
    runs: Annotated[
        int, typer.Option(min=1, help="Number of further Gaussian releases that share the remaining budget.")
    ],
    delta: Annotated[float | None, typer.Option(help="Delta of each release; by default the budget's delta.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the largest epsilon for each of RUNS more Gaussian releases that fit what is left; nothing is charged."""
    from flows.reports.budget_facts import pacing_facts, written_share
    from storage.workspace import Workspace

    facts = pacing_facts(Workspace.read_only().ledger, population, runs=runs, delta=delta)
    shown = facts if as_json else {**facts, "epsilon_each": f"{written_share(facts['epsilon_each']):.9g}"}
    print_facts(shown, as_json=as_json)
    if facts["state"] != "open":
        STDERR.print(f"budget {population!r} is {facts['state']} and admits no further release of this population.")
    elif not facts["epsilon_each"]:
        STDERR.print(f"budget {population!r} is too small for {runs} more releases; plan fewer.")


@app.command()
def abandon(
    release: Annotated[str, typer.Argument(help="A reserved release that never began.")],
) -> None:
    """Abandon a reserved RELEASE, which then costs nothing and can never begin."""
    from storage.workspace import Workspace

    Workspace.open().ledger.abandon(release)
    STDERR.print(f"release {release} is abandoned; it costs nothing")


@app.command()
def close(
    release: Annotated[str, typer.Argument(help="A release that began and was not published.")],
) -> None:
    """Close a RELEASE that began; it stays charged, and its noise key and stored answers are erased."""
    from storage.workspace import Workspace

    Workspace.open().ledger.close(release)
    STDERR.print(f"release {release} is closed; its charge stays")


@app.command("accept-restored")
def accept_restored(
    reason: Annotated[str, typer.Option(help="Reason for resuming from this copy; recorded in the journal.")],
    charge: Annotated[
        str | None,
        typer.Option(
            metavar="POPULATION",
            help="Population charged for published releases recorded neither in the ledger nor in the witness, its "
            "record outside the database.",
        ),
    ] = None,
    another_ledger: Annotated[
        bool,
        typer.Option(
            "--another-ledger",
            help="Published releases that this ledger does not record belong to another ledger with the same registry.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Agree that the charges of releases that neither the witness nor the registry records are lost.",
        ),
    ] = False,
) -> None:
    """Resume with a restored ledger, and charge again the releases that it lacks.

    These are the releases that the registry, or the witness (the ledger's record outside the database), records.
    """
    from storage.database.engine import reading
    from storage.registry.restored import accepted_before
    from storage.workspace import Workspace

    confirm("Resume with a ledger that may lack charges made since the copy?", yes=yes)
    workspace = Workspace.open(accept_restored=reason, charge_to=charge, another_ledger=another_ledger)
    rows = [{**asdict(item), "versions": ", ".join(item.versions) or None} for item in workspace.recharged]
    print_rows(
        rows,
        ("release", "population", "epsilon", "delta", "versions"),
        as_json=as_json,
        empty="nothing to charge again",
    )
    with reading(workspace.ledger.engine) as connection:
        before = accepted_before(connection)
    STDERR.print(f"the restored ledger is accepted; {_shown(len(rows), before)}")


@app.command()
def export(
    population: Annotated[str, typer.Argument(help="A population with a budget.")],
    output: Annotated[Path, typer.Option(help="The JSON file to write; it contains only public facts.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write POPULATION's part of the journal, signed, so that `dpca audit verify` can check it without this ledger."""
    import json

    from dpca.backends.atomic_files import write_atomically, writing
    from dpca.home import key_folder
    from storage.ledger.trail_export import export_trail
    from storage.trail.verification import verify_trail
    from storage.workspace import Workspace

    workspace = Workspace.open()
    with workspace.ledger.transaction() as connection:
        trail = export_trail(connection, population, place=workspace.store, keys=key_folder())
    facts = verify_trail(trail)
    with writing(output.parent):
        write_atomically(output.absolute(), json.dumps(trail).encode())
    print_facts({"file": str(output), **facts}, as_json=as_json)


@ledger_app.callback(help=LEDGER)
def ledger() -> None:
    """Serve the ledger from a separate process."""


@ledger_app.command()
def key(
    name: Annotated[str, typer.Argument(help="Name of the client in the configuration, or `ledger` for the service.")],
    folder: Annotated[Path, typer.Option(help="Folder of both files.")] = Path(),
    as_json: Json = False,
) -> None:
    """Create a private key and its certificate; NAME.key stays here, NAME.pem goes to the other side."""
    from flows.parties.certificates import identity_facts

    print_facts(identity_facts(name, folder), as_json=as_json)


@ledger_app.command()
def serve(*, config: Annotated[Path, typer.Option("--config", help="The configuration file of the service.")]) -> None:
    """Serve the ledger of this process to the configured clients, until the process is terminated.

    Work that a crash left unfinished is completed first. Clients need neither DPCA_DATABASE_URL nor DPCA_KEY_FOLDER.
    """
    from flows.remote_ledger.service import read_config, serve_ledger

    serve_ledger(read_config(config), ready=lambda address: typer.echo(f"listening at {address}"))


def _shown(charged: int, before: str | None) -> str:
    """Return a sentence about the releases that accepting a restored ledger charged again.

    ``charged`` is their number, and ``before`` is the time of an earlier acceptance, if there was one.
    """
    if charged:
        return f"{charged} release{'s are' if charged > 1 else ' is'} charged again, as the journal records"
    if before is None:
        return "no release is missing, as the journal records"
    return (
        f"no release is missing, and the charges added when this ledger was accepted before, at {before[:19]} UTC, stay"
    )
