"""``dpca budget``: open a population's budget, and see what is left of it."""

from typing import Annotated

import typer

from flows.terminal import print_facts, print_json, print_rows

app = typer.Typer(help="Open privacy budgets and see what is left.")


@app.command("open")
def open_budget(
    population: Annotated[str, typer.Argument(help="The people behind the data, across all its snapshots.")],
    epsilon: Annotated[float, typer.Option(help="Total privacy loss allowed.")],
    delta: Annotated[float, typer.Option(help="Total failure probability allowed.")],
    relation: Annotated[str, typer.Option(help="add_remove, zero_out or replace_one.")] = "add_remove",
    filter_: Annotated[str, typer.Option("--filter", help="gdp or renyi.")] = "gdp",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Open the budget of POPULATION; its terms never change."""
    from flows.publish import budget_facts
    from storage.ledger import Ledger

    ledger = Ledger.open()
    ledger.open_budget(population, epsilon=epsilon, delta=delta, relation=relation, filter=filter_)
    print_facts(budget_facts(ledger.statement(population)), as_json=as_json)


@app.command()
def show(
    population: Annotated[str, typer.Argument(help="A population with a budget.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what was allowed, spent and left, and every release."""
    from flows.publish import budget_facts, release_rows
    from storage.ledger import Ledger

    statement = Ledger.open().statement(population)
    facts, rows = budget_facts(statement), release_rows(statement)
    if as_json:
        print_json({**facts, "releases": rows})
        return
    print_facts(facts, as_json=False)
    typer.echo()
    columns = ("release", "mechanism", "epsilon", "delta", "state", "artifact", "time")
    print_rows(rows, columns, as_json=False, empty="no release yet")
