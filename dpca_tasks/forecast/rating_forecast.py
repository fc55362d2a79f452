"""Expected errors of completion mechanisms from public facts alone, on which a dry run bases its advice.

Where public facts are missing, the forecast assumes that all items are rated equally often and that every user rates K
of them. It also assumes that the factors explain a stated part of the variance of ratings without offsets. No row is
read.

>>> problem = RatingsProblem(n_features=1000, low=-4.0, high=4.0, ratings_per_user=200, records_at_most=50_000)
>>> best, *others = forecast(problem, PrivacyTarget(epsilon=1.0, delta=1e-5), rank=5)
>>> best.mechanism, round(best.missed, 2)
('one_shot', 0.09)
>>> few = RatingsProblem(n_features=2500, low=0.5, high=5.0, ratings_per_user=50, records_at_most=8_000)
>>> forecast(few, PrivacyTarget(epsilon=1.0, delta=1e-5), rank=8)[0].mechanism
'item_means'
"""

import math
from dataclasses import dataclass

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.ratings import COUNT_SHARE, SPREAD, RatingsProblem

SIGNAL = 0.5
"""The assumed part of the variance of ratings without offsets that factors explain, if none is declared."""
TOTALS, ROUNDS, OUTER, POOLED = 0.1, 4, 0.41, 2
"""Defaults of `dpals`: the share of totals, the number of rounds, the share of H, and the number of averaged rounds."""
_REPLACED = 1.5
"""The factor on the noise of `dpals` under replace_one; for a moment it is sqrt 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected error of a mechanism.

    Parameters
    ----------
    mechanism : str
    error : float, ratings
        The expected RMSE of ratings that were not given.
    missed : float
        The approximate expected relative error of the directions of factors; infinite if there are no factors.
    """

    mechanism: str
    error: float
    missed: float

    @property
    def captured(self) -> float:
        """The part of the factors' variance that is expected to be found."""
        return 1.0 / (1.0 + self.missed**2)


def forecast(
    problem: RatingsProblem, target: PrivacyTarget, *, rank: int, signal: float | None = None
) -> list[Forecast]:
    r"""Forecast `dpals`, `one_shot` and `item_means`, the least expected error first.

    Notes
    -----
    Let there be n users and m items, with ``p = K / m``. Let q be the part of variance that is signal, and
    ``z = 1 / mu`` the noise multiplier of one step with the whole budget. Then the relative errors of the directions
    are, to first order in the noise:

    - *one_shot.* A row of norm 1 adds ``p q / r`` to the moment along each direction, and n rows add ``L = n p q / r``.
      The isometric noise has the std ``z / sqrt 2`` off the diagonal, and norm ``z sqrt(m / 2)`` on one direction.
      Missing ratings make rows differ by ``sqrt(n (p q / r + (1 - q) / m) (1 - p))`` on one direction. Both errors are
      divided by L.
    - *dpals.* An item is regressed on ``N = n K / m`` users of norm 1, with ``H = (N / r) I``. The noise of w has the
      std ``z_w sqrt(K) g / sqrt m`` on each of r coordinates. The noise of H has the std ``z_h sqrt(K / 2)`` times an
      item's norm ``sqrt(r / m)``. Relative to that norm, the errors are ``r z_w sqrt(K) g / N`` and
      ``r z_h sqrt(K r / 2) / N``, with the clip g in its multiples, and the budgets of the averaged rounds. If the
      ratings themselves are noisy, an item has the additional error ``sqrt((1 - q) / q  r / N)``.

    A relative error d leaves ``1 / (1 + d^2)`` of the signal. A user's regression on K ratings has the variance of the
    rest times ``rank / K``, reduced by its ridge. Offsets have the error that their shrinkage expects.
    """
    part = SIGNAL if signal is None else signal
    if not 0 < part <= 1:
        raise InvalidInput(f"signal={part!r} must be in (0, 1]; state the part of variance that factors explain.")
    multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
    factors = multiplier / math.sqrt(1.0 - TOTALS)
    found = [
        _with_factors("dpals", problem, rank, part, multiplier, _alternating(problem, target, rank, part, factors)),
        _with_factors("one_shot", problem, rank, part, multiplier, _one_moment(problem, rank, part, factors)),
        Forecast(
            mechanism="item_means",
            error=math.sqrt(_variance(problem) + _left_of_offsets(problem, multiplier)),
            missed=math.inf,
        ),
    ]
    return sorted(found, key=lambda each: each.error)


def _variance(problem: RatingsProblem) -> float:
    return (SPREAD * (problem.high - problem.low)) ** 2


def _left_of_offsets(problem: RatingsProblem, multiplier: float) -> float:
    """Return the expected squared error of shrunk offsets of items, whose std is half the std of ratings."""
    count = problem.records_at_most * problem.most / problem.n_features
    share = 1.0 - COUNT_SHARE
    noise = multiplier * math.sqrt(problem.most / share) * _replaced(problem, math.sqrt(max(2.0, 4.0 * share)))
    blur = _variance(problem) / count + (noise * 2.0 * SPREAD * (problem.high - problem.low) / count) ** 2
    offset = _variance(problem) / 4.0
    return offset * blur / (offset + blur)


def _with_factors(
    name: str, problem: RatingsProblem, rank: int, part: float, multiplier: float, missed: float
) -> Forecast:
    """Return the forecast for factors with relative error ``missed``, after offsets with the totals' share."""
    found = part / (1.0 + missed**2)
    left, own = 1.0 - found, rank / problem.most
    weight = 1.0 / (1.0 + own)  # shrinkage of a user's regression by its ridge
    regression = (1.0 - weight) ** 2 * found + weight**2 * own * left
    offsets = _left_of_offsets(problem, multiplier / math.sqrt(TOTALS))
    return Forecast(mechanism=name, error=math.sqrt(_variance(problem) * (left + regression) + offsets), missed=missed)


def _one_moment(problem: RatingsProblem, rank: int, part: float, multiplier: float) -> float:
    users, items, rated = problem.records_at_most, problem.n_features, problem.most / problem.n_features
    strength = users * rated * part / rank
    noise = multiplier * _replaced(problem, math.sqrt(2.0)) * math.sqrt(items / 2.0)
    others = math.sqrt(users * (rated * part / rank + (1.0 - part) / items) * (1.0 - rated))
    return math.hypot(noise, others) / strength


def _alternating(problem: RatingsProblem, target: PrivacyTarget, rank: int, part: float, multiplier: float) -> float:
    count = problem.records_at_most * problem.most / problem.n_features
    weights = [2.0 ** (step / (ROUNDS - 1)) for step in range(ROUNDS)]
    each = multiplier * _replaced(problem, _REPLACED) * math.sqrt(problem.most * sum(weights) / sum(weights[-POOLED:]))
    clip = max(1.0, 1.7 + 0.4 * math.log2(target.epsilon))
    noise = rank * each / count * math.hypot(clip / math.sqrt(1.0 - OUTER), math.sqrt(rank / 2.0 / OUTER))
    return math.hypot(noise, math.sqrt((1.0 - part) / part * rank / count))


def _replaced(problem: RatingsProblem, factor: float) -> float:
    return factor if problem.relation == "replace_one" else 1.0
