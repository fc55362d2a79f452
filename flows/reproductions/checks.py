"""One shape of a check, and one way to run and to print the checks of a reproduction.

A reproduction is one file: a function that returns `report` of its checks, and a Prefect flow that calls it by
`in_flow`. `run_reproduction` runs either; `print_checks` prints what came of it and sets the exit code.

>>> near("sum", 1.0, 0.1, got=1.05)["holds"]
True
>>> at_least("share", 0.5, got=0.4) == {
...     "name": "share, at least", "expected": 0.5, "tolerance": 0.0, "got": 0.4, "holds": False
... }
True
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

import typer
from prefect import Flow
from prefect.client.schemas.objects import State

from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_stages import Runner, finish, in_flow
from flows.reports.activity import activity
from flows.reports.terminal import STDERR, print_json, print_rows

type Check = dict[str, Any]
type Report = dict[str, Any]

COLUMNS = ("name", "expected", "tolerance", "got", "holds")

_progress: ContextVar[Callable[[int, int | None], None] | None] = ContextVar("progress", default=None)


def near(name: str, expected: float, tolerance: float, *, got: float) -> Check:
    """Return a check that holds when ``got`` is within the tolerance of what is expected."""
    return _check(name, expected, tolerance, got, holds=abs(got - expected) <= tolerance)


def at_least(name: str, floor: float, *, got: float, tolerance: float = 0.0) -> Check:
    """Return a check that holds when ``got`` is no more than the tolerance below a floor; its name says so."""
    return _check(f"{name}, at least", floor, tolerance, got, holds=got >= floor - tolerance)


def at_most(name: str, ceiling: float, *, got: float, tolerance: float = 0.0) -> Check:
    """Return a check that holds when ``got`` is no more than the tolerance above a ceiling; its name says so."""
    return _check(f"{name}, at most", ceiling, tolerance, got, holds=got <= ceiling + tolerance)


def report(checks: Iterable[Check], *, left_out: Sequence[str] = (), **more: Any) -> Report:
    """Make the checks one by one, and return them with whatever else a reproduction reports.

    Parameters
    ----------
    checks : iterable of Check
        May be a generator that computes: the terminal shows how many are done.
    left_out : sequence of str
        What could not be checked, and why.
    more : JSON values
        Other parts of the report, such as tables.
    """
    made, told = [], _progress.get()
    for check in checks:
        made.append(check)
        if told is not None:
            told(len(made), None)
    return {"checks": made, "left_out": list(left_out), **more}


def run_reproduction(
    reproduction: Flow[..., Any], made_by: Callable[..., Report], *, direct: bool, **settings: Any
) -> Report:
    """Reproduce from this process: as a Prefect flow, or directly.

    Parameters
    ----------
    reproduction : Flow
        Returns `reported_by_flow` of the same function.
    made_by : function
        Computes the checks, and returns their `report`.
    direct : bool
        Whether to leave Prefect out.
    settings
        Passed on to either, by name.
    """
    with activity("checks") as seen:
        token = _progress.set(seen.parts)
        try:
            if direct:
                return made_by(**settings)
            with prefect_server():
                # A flow's own overloads cannot tell that the function is synchronous.
                call: Callable[..., Any] = reproduction
                found: Report = finish(lambda: call(**settings, return_state=True))
                return found
        finally:
            _progress.reset(token)


def reported_by_flow(made_by: Callable[..., Report], **settings: Any) -> Report | State[Any]:
    """Compute a report as the one task of a flow: what the body of a reproduction's flow returns."""

    def body(run: Runner) -> Report:
        return run(made_by, **settings)

    return in_flow(body)


def print_checks(found: Report, *, as_json: bool, empty: str = "there was nothing to check") -> NoReturn:
    """Print checks as a table or the whole report as JSON, and end with 0 if all hold, or else with 1."""
    if as_json:
        print_json(found)
    else:
        print_rows(found["checks"], COLUMNS, as_json=False, empty=empty)
        for each in found.get("notes", ()):
            STDERR.print(each, markup=False)
        for each in found["left_out"]:
            STDERR.print(f"left out: {each}", markup=False)
    raise typer.Exit(0 if all(check["holds"] for check in found["checks"]) else 1)


def _check(name: str, expected: float, tolerance: float, got: float, *, holds: bool) -> Check:
    return {
        "name": name,
        "expected": float(expected),
        "tolerance": float(tolerance),
        "got": float(got),
        "holds": bool(holds),
    }
