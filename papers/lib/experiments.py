"""Checks, reports, command-line options and in-memory releases that all papers share.

>>> near("sum", 1.0, 0.1, got=1.05)["holds"]
True
>>> at_least("share", 0.5, got=0.4) == {
...     "name": "share, at least", "expected": 0.5, "tolerance": 0.0, "got": 0.4, "holds": False
... }
True
>>> [check["holds"] for check in judged([at_least("share", 0.5, got=0.4)], full=False)]
[None]
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import BlockSource
from flows.reports.activity import activity

type Check = dict[str, Any]
type Report = dict[str, Any]
type Matrix = NDArray[np.float64]

Runs = Annotated[int, typer.Option(min=1, help="Number of random draws; checks are for the default number.")]
DataFolder = Annotated[Path, typer.Option(help="Folder that `make data` fills; checks of missing data are skipped.")]
OutFolder = Annotated[Path | None, typer.Option(help="A folder for tables (CSV) and figures (SVG, PNG).")]


def near(name: str, expected: float, tolerance: float, *, got: float) -> Check:
    """Return a check that holds if ``got`` is within the tolerance of the expected value."""
    return _check(name, expected, tolerance, got, holds=abs(got - expected) <= tolerance)


def at_least(name: str, floor: float, *, got: float, tolerance: float = 0.0) -> Check:
    """Return a check, named as a lower bound, that holds if ``got`` is at least ``floor - tolerance``."""
    return _check(f"{name}, at least", floor, tolerance, got, holds=got >= floor - tolerance)


def at_most(name: str, ceiling: float, *, got: float, tolerance: float = 0.0) -> Check:
    """Return a check, named as an upper bound, that holds if ``got`` is at most ``ceiling + tolerance``."""
    return _check(f"{name}, at most", ceiling, tolerance, got, holds=got <= ceiling + tolerance)


def judged(checks: Iterable[Check], *, full: bool) -> Iterator[Check]:
    """Yield checks unchanged for a full run; for a smaller run, set ``holds`` to None ("not judged")."""
    for check in checks:
        yield check if full else check | {"holds": None}


def report(checks: Iterable[Check], *, left_out: Sequence[str] = (), **more: Any) -> Report:
    """Compute the checks one by one, and return a report that contains them and all other parts.

    Parameters
    ----------
    checks : iterable of Check
        A generator may compute the checks; the terminal then shows how many are done.
    left_out : sequence of str
        The checks that could not be computed, with the reasons.
    more : JSON values
        Other parts of the report, such as tables.
    """
    made = []
    with activity("checks") as seen:
        for check in checks:
            made.append(check)
            seen.parts(len(made), None)
    return {"checks": made, "left_out": list(left_out), **more}


def side_by_side[T](calls: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Make calls in two new processes, and yield their results in the order of the calls.

    Calls and results must be picklable.
    """
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield from (each.result() for each in [pool.submit(call) for call in calls])


def run_mechanism(
    mechanism: Any, problem: Any, target: PrivacyTarget, source: BlockSource, *, key: bytes | None = None
) -> Any:
    """Plan and run a mechanism on rows in memory, without charging a ledger.

    By default, the key comes from the operating system.
    """
    plan = mechanism.plan(problem, target)
    keyed: dict[str, Any] = {} if key is None else {"key": key}
    reservation = InMemoryReservation(event=plan.event, relation=plan.problem.relation, **keyed)
    return mechanism.run(Curator(source, reservation), plan)


def isotropic(rng: np.random.Generator, order: int) -> Matrix:
    """Draw a symmetric Gaussian matrix with std 1 on the diagonal and sqrt(1/2) off the diagonal."""
    drawn = rng.standard_normal((order, order))
    return np.asarray((drawn + drawn.T) / 2.0)


def upper_noise(rng: np.random.Generator, order: int) -> Matrix:
    """Draw a symmetric Gaussian matrix with std 1 in every entry."""
    upper = np.triu(rng.standard_normal((order, order)))
    return np.asarray(upper + np.triu(upper, 1).T)


def orthonormal(columns: Matrix) -> Matrix:
    """Return an orthonormal basis of columns."""
    return np.asarray(np.linalg.qr(columns)[0])


def mean_rows(draws: Sequence[Sequence[dict[str, Any]]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Average the tables of several draws row by row.

    For each column in ``measures``, the result has the mean, and with several draws also the std, as ``NAME std``.
    """
    return [same[0] | summary_of(same, measures) for same in zip(*draws, strict=True)]


def summary_of(rows: Sequence[dict[str, Any]], measures: Sequence[str]) -> dict[str, float]:
    """Return the mean over rows of each column in ``measures``, and with several rows the std, as ``NAME std``."""
    found = {name: float(np.mean([row[name] for row in rows])) for name in measures}
    if len(rows) > 1:
        found |= {f"{name} std": float(np.std([row[name] for row in rows], ddof=1)) for name in measures}
    return found


def _check(name: str, expected: float, tolerance: float, got: float, *, holds: bool) -> Check:
    return {
        "name": name,
        "expected": float(expected),
        "tolerance": float(tolerance),
        "got": float(got),
        "holds": bool(holds),
    }
