"""The printed noise of DPS-PCA, of Ge, Wang, Wang and Liu (2018), for one owner of rows whose norm is enforced."""

import math

from dpca_tasks.accounting import events
from dpca_tasks.accounting.formula import Formula, Settings
from dpca_tasks.accounting.relation import Relation

_SQRT_2_UP = math.nextafter(math.sqrt(2.0), 2.0)


def product_distance(relation: Relation, *, n_components: int) -> float:
    """Return how far one record moves the sum of ``x (V^T x)^T``, for rows of norm 1 and k orthonormal directions."""
    return _SQRT_2_UP if relation == "replace_one" and n_components > 1 else 1.0


def _noise(asked: Settings) -> float:
    """Return ``2 T sqrt(2 ln(2 T / delta)) / epsilon``: the classical Gaussian at epsilon / T and sensitivity 2."""
    steps = asked.steps
    return math.nextafter(2 * steps * math.sqrt(2 * math.log(2 * steps / asked.delta)) / asked.epsilon, math.inf)


def _event(asked: Settings) -> events.Event:
    multiplier = _noise(asked) / product_distance(asked.relation, n_components=asked.n_components)
    return events.self_composed(events.gaussian(multiplier), asked.steps)


def _broken(asked: Settings) -> str | None:
    each = asked.epsilon / asked.steps
    if each < 1:
        return None
    return f"epsilon / T = {each:.3g} breaks the theorem of calibration=paper, which needs less than 1 in each step"


DPS_PCA_OF_ONE_OWNER = Formula(
    source="Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA, Algorithm 1 for one provider",
    measures="std of a product of rows that are clipped to norm 1",
    noise=_noise,
    event=_event,
    broken=_broken,
)
"""The formula that ``calibration=paper`` uses; with several providers it is no guarantee at all."""
