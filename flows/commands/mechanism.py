"""Commands of ``dpca mechanism`` and ``dpca audit``.

They report facts, costs and advice on mechanisms, attack mechanisms, and check audit trails.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.app import App
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, print_facts, print_json, print_rows

app = App(help="Show the properties of mechanisms and of the formulas published for them; no data are read.")
audit_app = App(invoke_without_command=True)

AUDITED = ("mechanism", "relation", "epsilon", "delta", "bound", "confidence", "trials", "attack", "verdict")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def mechanism() -> None:
    """Report facts about mechanisms and the formulas published for them; no data are read."""


@app.command()
def truth(
    formula: Annotated[list[str] | None, typer.Option(help="Check only this formula; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Compute lower and upper bounds on the true epsilon of published formulas, next to the epsilon they claim."""
    from dpca_tasks.accounting.truth import Truth, cases_of, truth_of
    from flows.reports.mechanism_facts import TRUTH_COLUMNS, truth_cells, truth_facts

    cases = cases_of(formula or ())
    rows: list[Truth] = []
    with activity("computing formulas") as seen:
        for case in cases:
            seen.parts(len(rows), len(cases))
            rows.append(truth_of(case))
    if as_json:
        print_json([truth_facts(row) for row in rows])
    else:
        print_rows([truth_cells(row) for row in rows], TRUTH_COLUMNS, as_json=False, empty="there is no formula")


@app.command()
def advise(
    *,
    records_at_most: Annotated[int, typer.Option(min=1, help="Public bound on the number of records.")],
    features: Annotated[int, typer.Option(min=2, help="Number of columns.")],
    components: Annotated[int, typer.Option(min=1, help="Number of components k.")],
    epsilon: Annotated[float, typer.Option(help="Privacy loss of all releases together.")],
    delta: Annotated[float, typer.Option(help="Failure probability; 0 only for pure mechanisms.")],
    relation: Annotated[
        str, typer.Option(help="Neighboring relation: add_remove, zero_out or replace_one.")
    ] = "add_remove",
    center: Annotated[
        str, typer.Option(help="Center of the components: none (the origin) or private (a released mean).")
    ] = "none",
    spectrum: Annotated[
        str, typer.Option(help="Shares of variance of the components: 0.3,0.1,0.05, or decay:A, or flat.")
    ] = "",
    releases: Annotated[
        int, typer.Option(min=1, help="Number of scheduled releases that share epsilon and delta.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Rank the mechanisms for a request by their expected captured variance, from public facts alone."""
    from dpca_tasks.advisor import advise, public_problem
    from dpca_tasks.mechanisms.base import PrivacyTarget
    from flows.reports.mechanism_facts import COLUMNS, advice_cells, advice_facts

    problem = public_problem(
        records_at_most=records_at_most, n_features=features, relation=relation, center=center, spectrum=spectrum
    )
    target = PrivacyTarget(epsilon=epsilon, delta=delta)
    ranked = advise(problem, target, n_components=components, releases=releases)
    facts = advice_facts(problem, target, n_components=components, releases=releases, ranked=ranked)
    if as_json:
        print_json(facts)
        return
    print_rows(
        list(map(advice_cells, facts.pop("ranked"))),
        COLUMNS,
        as_json=False,
        empty="every mechanism refuses this request",
    )
    typer.echo()
    for name, reason in facts.pop("refused").items():
        STDERR.print(f"refused: {name}: {reason}", markup=False)
    print_facts(facts, as_json=False)


@app.command("list")
def list_mechanisms(*, as_json: Json = False) -> None:
    """List the mechanisms with the kind of their guarantee."""
    from flows.reports.mechanism_facts import listing

    print_rows(
        listing(), ("mechanism", "family", "guarantee", "what"), as_json=as_json, empty="there are no mechanisms"
    )


@app.command()
def explain(name: Annotated[str, typer.Argument(help="A mechanism from the list.")], *, as_json: Json = False) -> None:
    """Explain the guarantee, use, cost and source of a mechanism."""
    from flows.reports.mechanism_facts import explanation

    print_facts(explanation(name), as_json=as_json)


@audit_app.callback()
def audit(
    context: typer.Context,
    mechanism: Annotated[str | None, typer.Option(help="Audit this mechanism only.")] = None,
    trials: Annotated[int, typer.Option(min=2, help="Number of runs on each dataset of the attacked pair.")] = 4000,
    confidence: Annotated[float, typer.Option(help="Confidence of each bound.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bound the true epsilon of each mechanism from below by attacking it; no data are read, nothing is spent.

    For a mechanism that meets its claim, each row of the table fails with probability at most 1 - CONFIDENCE. The exit
    code is 1 if any row fails.
    """
    if context.invoked_subcommand is not None:
        return
    from contextlib import suppress
    from typing import get_args

    from dpca_tasks.accounting.events import Relation
    from dpca_tasks.audit.trials import audit_mechanism
    from dpca_tasks.errors import InvalidInput, Refused
    from flows.families.base import every_family

    subjects = {name: family.audit for family in every_family() for name in family.audit.names}
    if mechanism is not None and mechanism not in subjects:
        raise InvalidInput(f"mechanism {mechanism!r} is unknown; choose one of {', '.join(sorted(subjects))}.")
    findings = []
    for name in [mechanism] if mechanism else subjects:
        subject = subjects[name]
        for relation in get_args(Relation):
            with activity(f"attacking {name}, {relation}") as seen, suppress(Refused):  # no claim for this relation
                findings.append(
                    audit_mechanism(
                        subject.build(name),
                        relation=relation,
                        subject=subject,
                        trials=trials,
                        confidence=confidence,
                        progress=seen.parts,
                    )
                )
    rows = [
        {**dataclasses.asdict(finding), "verdict": "passed" if finding.passed else "FAILED"} for finding in findings
    ]
    print_rows(rows, AUDITED, as_json=as_json, empty="no mechanism is registered")
    raise typer.Exit(0 if all(finding.passed for finding in findings) else 1)


@audit_app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A file written by `dpca budget export`.")],
    key: Annotated[
        str | None, typer.Option(help="Public key of the ledger, in hex, as the ledger's operator published it.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="An earlier export of the same population, which this export must continue.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an exported audit trail without ledger or database, and compute what was spent from the trail alone."""
    from dpca.errors import Corrupt
    from storage.trail.verification import read_trail, verify_trail

    before, trail = None if earlier is None else read_trail(earlier), read_trail(file)
    try:
        facts = verify_trail(trail, key=key, earlier=before)
    except Corrupt as error:
        raise Corrupt(f"not valid: {error}") from error
    print_facts(facts, as_json=as_json)
