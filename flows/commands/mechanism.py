"""``dpca mechanism``: what is known of every mechanism, from public facts alone."""

from typing import Annotated

import typer

from flows.reports.terminal import print_json, print_rows, progress_bar

app = typer.Typer(help="Tell what is known of mechanisms and of the formulas printed for them; no data are read.")


@app.callback()
def mechanism() -> None:
    """Tell what is known of mechanisms and of the formulas printed for them; no data are read."""


@app.command()
def truth(
    formula: Annotated[list[str] | None, typer.Option(help="Only this formula; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the epsilon that printed formulas really give, beside the one they claim, from below and from above."""
    from dpca_tasks.accounting.truth import Truth, cases_of, truth_of
    from flows.reports.truth_facts import COLUMNS, truth_cells, truth_facts

    cases = cases_of(formula or ())
    rows: list[Truth] = []
    with progress_bar("formulas") as progress:
        for case in cases:
            progress(len(rows), len(cases))
            rows.append(truth_of(case))
    if as_json:
        print_json([truth_facts(row) for row in rows])
    else:
        print_rows([truth_cells(row) for row in rows], COLUMNS, as_json=False, empty="no formula has such a case")
