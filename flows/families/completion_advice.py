"""The advice of a dry run on completion: which mechanism is expected to predict best, and why, from public facts."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dpca_tasks.errors import DpcaError
from dpca_tasks.forecast.rating_forecast import SIGNAL, Forecast, forecast
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion import MECHANISMS
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem


def advised(
    problem: RatingsProblem, target: PrivacyTarget, *, rank: int, signal: float | None = None
) -> list[Forecast]:
    """Return the forecasts of mechanisms that accept a request by default, the least expected error first."""
    accepted = []
    for found in forecast(problem, target, rank=rank, signal=signal):
        with suppress(DpcaError):
            MECHANISMS[found.mechanism](rank=rank).plan(problem, target)
            accepted.append(found)
    return accepted


def advice_facts(
    problem: RatingsProblem, target: PrivacyTarget, *, rank: int, signal: float | None = None
) -> Mapping[str, Any]:
    """Return what a dry run says: a sentence, and the expected errors with the part of the signal that is found."""
    ranked = advised(problem, target, rank=rank, signal=signal)
    return {
        "advice": _sentence(ranked, problem, signal=signal),
        "expected_errors": {each.mechanism: round(each.error, 4) for each in ranked},
        "expected_signal_found": {each.mechanism: round(each.captured, 4) for each in ranked},
    }


def _sentence(ranked: list[Forecast], problem: RatingsProblem, *, signal: float | None) -> str:
    if not problem.records_declared:
        return "no number of users is declared, so none can be compared with the noise; ingest with --records-at-most."
    if not ranked:
        return "dpals, one_shot and item_means all refuse this request; name one, and its refusal says what to change."
    best, *others = ranked
    users = f"{problem.records_at_most:,} users, {problem.most} ratings of each"
    reason = f"with {users}, it is expected to find {best.captured:.0%} of what factors explain"
    if best.mechanism == "item_means":
        most = max((each.captured for each in others), default=0.0)
        reason = f"with {users}, noise would leave factors {most:.0%} of what they explain, less than they cost"
    rest = "".join(f", {each.mechanism} {each.error:.3g}" for each in others)
    taken, part = "declared" if signal is not None else "assumed", SIGNAL if signal is None else signal
    return (
        f"use {best.mechanism}: {reason}; expected RMSE {best.error:.3g}{rest}. Items are taken to be rated alike, the "
        f"std of ratings without offsets to be a quarter of their range, and {part:.0%} of its square to be explained "
        f"by factors ({taken})."
    )
