"""Expected errors of completion mechanisms from public facts alone; the advice of a dry run is based on them.

The forecast reads no row. It assumes that all items are rated equally often, and that every user rates K items, the
largest number of ratings that are counted for one user. It also assumes that the factors explain a stated part of the
variance of the ratings, after the items' offsets are subtracted.

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
"""The part of the variance of ratings, after offsets are subtracted, that factors explain if no part is declared."""
TOTALS, ROUNDS, OUTER, POOLED = 0.1, 4, 0.41, 2
"""Defaults of `dpals`: budget share of the item totals, number of rounds, share of H, and number of averaged rounds."""
_REPLACED = 1.5
"""The factor by which the replace_one relation increases the noise of `dpals`; for a moment the factor is sqrt 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected error of a completion mechanism.

    Parameters
    ----------
    mechanism : str
        The name of the mechanism.
    error : float, in the units of ratings
        The expected RMSE of predictions for ratings that users did not give.
    missed : float
        The approximate expected error of the item factors' directions, relative to their length. Infinite if the
        mechanism releases no factors.
    """

    mechanism: str
    error: float
    missed: float

    @property
    def captured(self) -> float:
        """The expected variance that released factors explain, divided by the variance that exact factors explain."""
        return 1.0 / (1.0 + self.missed**2)


def forecast(
    problem: RatingsProblem, target: PrivacyTarget, *, rank: int, signal: float | None = None
) -> list[Forecast]:
    r"""Forecast the errors of `dpals`, `one_shot` and `item_means`; the mechanism with the least error is first.

    Notes
    -----
    Let n be the number of users, m the number of items, K the number of ratings per user, r the rank and ``p = K / m``.
    Let q be the part of the ratings' variance that factors explain (``signal``). Let ``z = 1 / mu`` be the noise
    multiplier of one Gaussian step with the whole budget. Then the item factors' directions have the following relative
    errors, to first order in the noise:

    - *one_shot* releases the moment of the users' rows. A row of norm 1 adds ``p q / r`` to the moment along each
      factor direction, so n rows add ``L = n p q / r``. The isometric noise has the std ``z / sqrt 2`` off the
      diagonal. So the product of the noise with a unit vector has the norm ``z sqrt(m / 2)``. Because of missing
      ratings, the product of the moment itself with a unit vector has the error
      ``sqrt(n (p q / r + (1 - q) / m) (1 - p))``. The relative errors are both errors divided by L.
    - *dpals* releases for each item the Gram matrix H of its users' factors, and the vector w of the factors weighted
      by the ratings. Each item has ``N = n K / m`` users with factors of norm 1, so ``H = (N / r) I``. The noise of w
      has the std ``z_w sqrt(K) g / sqrt m`` on each of r coordinates, where g is the clip of ratings in multiples of
      ``1 / sqrt m``. The noise of H has the std ``z_h sqrt(K / 2)``, and is multiplied by the norm ``sqrt(r / m)`` of
      an item's factor. Relative to that norm, the errors are ``r z_w sqrt(K) g / N`` and ``r z_h sqrt(K r / 2) / N``.
      The noise multipliers ``z_w`` and ``z_h`` follow from the budget of the rounds whose results are averaged. The
      part ``1 - q`` of the ratings' variance adds the error ``sqrt((1 - q) / q  r / N)``.

    If directions have the relative error d, factors explain the part ``q / (1 + d^2)`` of the variance. A user's
    regression on K ratings adds the unexplained variance times ``r / K``, reduced by the ridge of the regression. The
    offsets are assumed to be shrunk by the factor for which their error is least.
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
    """Return the expected squared error of shrunk item offsets.

    The std of the exact offsets over the items is assumed to be half the std of ratings.
    """
    count = problem.records_at_most * problem.most / problem.n_features
    share = 1.0 - COUNT_SHARE
    noise = multiplier * math.sqrt(problem.most / share) * _replaced(problem, math.sqrt(max(2.0, 4.0 * share)))
    blur = _variance(problem) / count + (noise * 2.0 * SPREAD * (problem.high - problem.low) / count) ** 2
    offset = _variance(problem) / 4.0
    return offset * blur / (offset + blur)


def _with_factors(
    name: str, problem: RatingsProblem, rank: int, part: float, multiplier: float, missed: float
) -> Forecast:
    """Forecast a mechanism whose factors have the relative error ``missed``; its offsets get the share `TOTALS`."""
    found = part / (1.0 + missed**2)
    left, own = 1.0 - found, rank / problem.most
    weight = 1.0 / (1.0 + own)  # the ridge multiplies the solution of a user's regression by this factor
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
