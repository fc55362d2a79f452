"""The forecast of a subspace before its release: what a dry run shows of it, and when a request refuses noise."""

import math
from collections.abc import Mapping
from typing import Any

from dpca_tasks.advisor import expect
from dpca_tasks.errors import Refused
from dpca_tasks.forecast.noise_forecast import Forecast, epsilon_needed, forecast_of
from dpca_tasks.mechanisms.base import Mechanism, Subspace
from dpca_tasks.mechanisms.prior_releases import main_mechanism
from flows.families.base import PlannedRelease
from flows.requests.subspace import SubspaceRequest

type Planned = PlannedRelease[SubspaceRequest]


def forecast_facts(planned: Planned) -> Mapping[str, Any]:
    """Return what a dry run says of the components that can stand above the noise; nothing without a level of noise."""
    found = _forecast(planned)
    if found is None:
        return {}
    epsilon = _epsilon(planned, found)
    low, high = expect(planned.mechanism, planned.plan).captured
    return {
        "expected_captured_variance": [low, high],
        "components_above_noise": found.above_noise,
        "records_needed": found.records_needed,
        "epsilon_needed": epsilon,
        "forecast": _sentence(planned, found, epsilon),
    }


def expected_noise(planned: Planned) -> str | None:
    """Say that all components will be noise, and what would change that; None where some can stand above it."""
    found = _forecast(planned)
    if found is None or not _is_noise(planned, found):
        return None
    return _sentence(planned, found, _epsilon(planned, found))


def refuse_noise(planned: Planned) -> None:
    """Refuse a release of noise where its request says so.

    Raises
    ------
    Refused
        With what was found and what would do; nothing was charged.
    """
    if planned.request.on_noise != "refuse":
        return
    noise = expected_noise(planned)
    if noise is not None:
        raise Refused(
            f"{noise}; on_noise=refuse releases no noise, and nothing was charged: ask with that, for fewer "
            "components or of another mechanism, or insist with on_noise=warn."
        )


def _forecast(planned: Planned) -> Forecast | None:
    return forecast_of(planned.plan, n_components=main_mechanism(planned.mechanism).n_components)


def _epsilon(planned: Planned, found: Forecast) -> float | None:
    if not found.problem.records_declared:
        return None
    mechanism: Mechanism[Subspace] = planned.mechanism
    return epsilon_needed(mechanism, planned.plan, strength=found.strength)


def _is_noise(planned: Planned, found: Forecast) -> bool:
    """Return whether noise is expected: by the advisor where a spectrum and records are declared, else by the level."""
    if found.problem.spectrum and found.problem.records_declared:
        return expect(planned.mechanism, planned.plan).is_noise
    return found.expects_noise


def _sentence(planned: Planned, found: Forecast, epsilon: float | None) -> str:
    """Say how many components can stand above the noise, and with what the last one could."""
    kth, opening = f"component {found.n_components}", _opening(found, noise=_is_noise(planned, found))
    if math.isinf(found.records_needed):
        return f"{opening}; the declared spectrum leaves {kth} nothing, so neither records nor epsilon would do"
    needs = f"{math.ceil(found.records_needed):,} records at the clip norm"
    if epsilon is not None and math.isfinite(epsilon):
        needs += f" or epsilon {epsilon:.3g}"
    return f"{opening}; {kth} could with at least {needs}"


def _opening(found: Forecast, *, noise: bool) -> str:
    if found.above_noise is None:
        return "no number of records is declared, so none can be compared with the noise"
    if noise:
        most = found.problem.records_at_most
        return f"expect noise: with records_at_most={most} all components will be noise"
    return f"at most {found.above_noise} of {found.n_components} components can stand above the noise"
