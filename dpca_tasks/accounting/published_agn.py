"""The printed noise of AGN, of Imtiaz and Sarwate (2018): two releases, each granted half of epsilon and of delta."""

import math

from dpca_tasks.accounting import events
from dpca_tasks.accounting.formula import Formula, Settings

_SOURCE = "Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise: AGN"
_SQRT_2_UP = math.nextafter(math.sqrt(2.0), 2.0)


def _noise(asked: Settings) -> float:
    """Return ``sqrt(2 ln(1.25 / (delta / 2))) / (epsilon / 2)``: the classical Gaussian, at half the target."""
    return math.nextafter(2 * math.sqrt(2 * math.log(2.5 / asked.delta)) / asked.epsilon, math.inf)


def _large(asked: Settings) -> str | None:
    if asked.epsilon < 2:
        return None
    return f"epsilon / 2 = {asked.epsilon / 2:.3g} breaks the theorem of calibration=paper, which needs less than 1"


def _replaced(asked: Settings) -> str | None:
    if asked.relation != "replace_one":
        return None
    return "calibration=paper states sensitivity 1 of the second moment, which replace_one breaks (it moves by sqrt 2)"


def _broken_of_mixtures(asked: Settings) -> str | None:
    return "; ".join(condition for condition in (_large(asked), _replaced(asked)) if condition) or None


def _event_of_mixtures(asked: Settings) -> events.Event:
    moved = _SQRT_2_UP if asked.relation == "replace_one" else 1.0
    return events.composed(events.gaussian(_noise(asked) / moved), events.gaussian(_noise(asked)))


AGN: dict[str, Formula] = {
    "agn_of_topics": Formula(
        source=f"{_SOURCE}, single topics",
        measures="std of the second and of the third moment, each over its sensitivity",
        noise=_noise,
        event=lambda asked: events.self_composed(events.gaussian(_noise(asked)), 2),
        broken=_large,
    ),
    "agn_of_mixtures": Formula(
        source=f"{_SOURCE}, mixtures of Gaussians; the third moment for a public variance of its noise",
        measures="std of the second and of the third moment, each over the sensitivity that is printed for it",
        noise=_noise,
        event=_event_of_mixtures,
        broken=_broken_of_mixtures,
    ),
}
"""The formulas of ``calibration=paper``, by model."""
