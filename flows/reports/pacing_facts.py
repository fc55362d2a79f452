"""What a budget still gives to runs to come: equal shares of the rest, in words and numbers. All of it is public."""

from dataclasses import asdict
from decimal import ROUND_DOWN, Context
from typing import Any

from storage.ledger.ledger import Ledger

_NINE_DIGITS = Context(prec=9, rounding=ROUND_DOWN)


def pacing_facts(ledger: Ledger, population: str, *, runs: int, delta: float | None = None) -> dict[str, Any]:
    """Return each run's share when so many Gaussian releases use up what is left equally.

    Parameters
    ----------
    ledger : Ledger
    population : str
        Whose budget pays.
    runs : int
        How many releases are still to come.
    delta : float, optional
        Of each release; the budget's own if left out, as what remains is stated at.

    Returns
    -------
    dict
        ``epsilon_each`` is the largest float with which all runs are admitted, 0 when there is none; ``remaining`` and
        ``after`` are the epsilon of one more release, now and after all runs; ``state`` is ``open``, ``exhausted`` or
        ``voided``.
    """
    pace = asdict(ledger.pace(population, runs=runs, delta=delta))
    return {"population": population, "runs_left": pace.pop("runs"), **pace}


def runs_that_fit(ledger: Ledger, population: str, *, epsilon: float, delta: float) -> int:
    """Return how many more Gaussian releases of (epsilon, delta) a population's budget admits."""
    return ledger.runs_that_fit(population, epsilon=epsilon, delta=delta)


def written_share(epsilon: float) -> float:
    """Return a share in nine digits, rounded down: it reads well, and every run still fits.

    What is cut off also covers the rounding of mechanisms whose event has several Gaussian steps.
    """
    return float(_NINE_DIGITS.create_decimal_from_float(epsilon))
