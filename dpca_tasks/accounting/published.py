r"""Published noise formulas: each with its source, its conditions, and its actual privacy event.

A row of `FORMULAS` states what a paper claims for some settings, and the event lets anyone compute what is true: the
epsilon of ``row.event(settings)`` at delta, beside the one claimed. Mechanisms take their ``calibration=paper`` from
here. All noise is for records of norm 1 and for ``S = X^T X``, not divided by n.

>>> asked = Settings(epsilon=0.1, delta=1e-3)
>>> row = FORMULAS["analyze_gauss"]
>>> round(row.noise(asked), 2), row.broken(asked)
(37.76, None)
>>> round(row.bracket(asked).upper, 4)
0.0369
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.closed_brackets import (
    known,
    smooth_cauchy_bracket,
    smooth_gaussian_bracket,
    wishart_bracket,
)
from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket
from dpca_tasks.accounting.formula import Formula, Settings
from dpca_tasks.accounting.published_agn import AGN
from dpca_tasks.accounting.published_dps_pca import DPS_PCA_OF_ONE_OWNER
from dpca_tasks.accounting.published_elsewhere import ELSEWHERE
from dpca_tasks.accounting.smooth_sensitivity import smooth_cauchy_shift, smooth_gaussian_shift
from dpca_tasks.accounting.wishart_tails import wishart_delta, wishart_epsilon
from dpca_tasks.errors import Refused

__all__ = ["FORMULAS", "Formula", "Settings", "published_noise", "refusal"]

_SQRT_2_UP = math.nextafter(math.sqrt(2.0), 2.0)


def published_noise(name: str, settings: Settings) -> float:
    """Return the noise that is printed for a mechanism.

    Raises
    ------
    Refused
        If the settings break a condition of the claim.
    """
    if FORMULAS[name].broken(settings):
        raise refusal(name, settings)
    return FORMULAS[name].noise(settings)


def refusal(name: str, settings: Settings) -> Refused:
    """Return the error that says which condition of a claim the settings break."""
    return Refused(f"{FORMULAS[name].broken(settings)}; use calibration=tight.")


def classical_gaussian(settings: Settings) -> float:
    """Return ``sqrt(2 ln(1.25 / delta)) / epsilon``, the std over the L2 sensitivity; proved for epsilon below 1."""
    return math.nextafter(math.sqrt(2 * math.log(1.25 / settings.delta)) / settings.epsilon, math.inf)


def _mod_sulq(settings: Settings) -> float:
    """Return ``(d + 1) / epsilon sqrt(2 ln((d^2 + d) / (2 delta sqrt(2 pi)))) + 1 / sqrt(epsilon)``, n times beta."""
    d, epsilon = settings.n_features, settings.epsilon
    argument = (d * d + d) / (2 * settings.delta * math.sqrt(2 * math.pi))
    return (d + 1) / epsilon * math.sqrt(2 * math.log(argument)) + 1 / math.sqrt(epsilon)


def _sheffet_degrees(settings: Settings) -> float:
    """Return ``d + floor(28 ln(4 / delta) / epsilon^2)`` degrees of freedom of a Wishart matrix of scale 1."""
    return settings.n_features + math.floor(28 * math.log(4 / settings.delta) / settings.epsilon**2)


def _schur_degrees(settings: Settings) -> float:
    return _sheffet_degrees(settings) - settings.n_features + 1


def _sheffet_event(settings: Settings) -> events.Event:
    degrees = _schur_degrees(settings)
    return events.approximate(wishart_epsilon(degrees, scale=1.0, delta=settings.delta), settings.delta)


def _smooth_bracket(settings: Settings, delta: float, *, size: int) -> EpsilonBracket:
    """Bracket the epsilon of printed smooth noise, of a smoothness for ``size`` coordinates, on all d k of them."""
    shift, smoothness = smooth_gaussian_shift(epsilon=settings.epsilon, delta=settings.delta, size=size)
    whole = settings.n_features * settings.n_components
    return smooth_gaussian_bracket(shift=shift, smoothness=smoothness, size=whole, delta=delta)


def _smooth_event(settings: Settings, *, size: int) -> events.Event:
    return events.approximate(_smooth_bracket(settings, settings.delta, size=size).upper, settings.delta)


def _smooth_cauchy_bracket(settings: Settings, _: float) -> EpsilonBracket:
    size = settings.n_features * settings.n_components
    shift, smoothness = smooth_cauchy_shift(epsilon=settings.epsilon, size=size)
    return smooth_cauchy_bracket(shift=shift, smoothness=smoothness, size=size)


def dp_spca_variances(settings: Settings, mixes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a fourth of the printed variance over ``G^2`` at each mu, and whether the lemma's order (c) covers it.

    ``s = 5 T alpha / (n^2 epsilon mu)`` with ``alpha = ln(1 / delta) / ((1 - mu) epsilon) + 1``. The lemma of
    subsampling behind it needs ``alpha <= ln(n / (1 + s))`` or ``alpha - 1 <= 2/3 s ln(n / (alpha (1 + s)))``.
    """
    n, epsilon = settings.n_records, settings.epsilon
    orders = math.log(1 / settings.delta) / ((1 - mixes) * epsilon) + 1
    variances = 5 * orders / (n * epsilon * mixes) * (settings.steps / n)
    with np.errstate(divide="ignore"):
        fits = orders <= np.log(n / (1 + variances))
        fits |= orders - 1 <= 2 / 3 * variances * np.log(n / (orders * (1 + variances)))
    return variances, fits


def _mixes(settings: Settings) -> NDArray[np.float64]:
    if settings.mix is not None:
        return np.array([settings.mix])
    spread = np.geomspace(1e-9, 0.5, 4000)
    return np.concatenate([spread, 1 - spread])


def _dp_spca(settings: Settings) -> float:
    variances, fits = dp_spca_variances(settings, _mixes(settings))
    covered = variances if settings.mix is not None else variances[(variances >= 1.5) & fits]
    return math.nextafter(2 * math.sqrt(float(covered.min())), math.inf)


def _dp_spca_broken(settings: Settings) -> str | None:
    variances, fits = dp_spca_variances(settings, _mixes(settings))
    large = variances >= 1.5
    for condition, holds in (("(b) s >= 1.5", large), ("(c) the order of the subsampling lemma", large & fits)):
        if not holds.any():
            held = "holds for no mu in (0, 1)" if settings.mix is None else f"does not hold at mu={settings.mix:g}"
            return (
                f"calibration=paper: condition {condition} {held} at epsilon "
                f"{settings.epsilon:g}, delta {settings.delta:g} and {settings.n_records} records"
            )
    return None


def dp_spca_bound(settings: Settings) -> float:
    """Return ``T / n^2``, up to which condition (a) of DP-SPCA's Lemma 1 has epsilon."""
    return settings.steps / settings.n_records / settings.n_records


def _dp_vrpca(settings: Settings) -> float:
    count = settings.steps * settings.epochs
    return math.sqrt(count * math.log(1 / settings.delta)) / (settings.n_records * settings.epsilon)


def _dp_vrpca_event(settings: Settings) -> events.Event:
    """Return the event of the full products and of the corrections, each granted the whole noise."""
    noise, count = _dp_vrpca(settings), settings.steps * settings.epochs
    full = events.gaussian(settings.n_records * noise)
    correction = events.poisson_sampled(events.gaussian(noise / settings.distance), 1 / settings.n_records)
    return events.composed(events.self_composed(full, count), events.self_composed(correction, count))


def _largest_entry(settings: Settings) -> float:
    return settings.largest_entry or 1 / math.sqrt(settings.n_features)


def _replaced(settings: Settings, factor: float) -> float:
    """Return how much more a replaced record moves a sum than one more, less or emptied: a factor, or 1."""
    return factor if settings.relation == "replace_one" else 1.0


def _below_one(settings: Settings) -> str | None:
    if settings.epsilon < 1:
        return None
    return f"epsilon={settings.epsilon} breaks the theorem of calibration=paper, which needs epsilon < 1"


def _analyze_gauss_broken(settings: Settings) -> str | None:
    if settings.relation == "replace_one":
        replaced = "calibration=paper states sensitivity 1, which replace_one breaks (it moves X^T X by sqrt 2)"
        return _below_one(settings) or replaced
    return _below_one(settings)


def _mod_sulq_broken(settings: Settings) -> str | None:
    if settings.relation == "replace_one":
        return None
    return f"calibration=paper is stated for replace_one with a public number of records, not for {settings.relation}"


def _wishart_event(settings: Settings) -> events.Event:
    third = settings.epsilon / 3
    return events.approximate(third, wishart_delta(2.0, scale=1 / (2 * third), epsilon=third))


def _wishart_broken(settings: Settings) -> str:
    delta = _wishart_event(settings)["delta"]
    return (
        "calibration=paper adds one Wishart matrix, whose support distinguishes neighbours: its delta is "
        f"{delta:.3g} at epsilon={settings.epsilon}, not 0"
    )


def _smooth_broken(settings: Settings) -> str | None:
    return None if settings.epsilon < 1 else f"epsilon={settings.epsilon} must be below 1 for calibration=paper"


_BY_CLASSICAL = "sqrt(2 ln(1.25 / delta)) / epsilon by Dwork and Roth (2014), Theorem A.1"

FORMULAS: Mapping[str, Formula] = {
    "analyze_gauss": Formula(
        source=f"Dwork, Talwar, Thakurta and Zhang (2014), Analyze Gauss, Algorithm 1: {_BY_CLASSICAL}",
        measures="std of the upper triangle of S",
        noise=classical_gaussian,
        event=lambda asked: events.gaussian(classical_gaussian(asked) / _replaced(asked, _SQRT_2_UP)),
        broken=_analyze_gauss_broken,
    ),
    "local_gaussian": Formula(
        source=f"Wang and Xu (2019), PCA in the local differential privacy model: {_BY_CLASSICAL}",
        measures="std of the upper triangle of one record's report, in which any two differ by up to sqrt 2",
        noise=classical_gaussian,
        event=lambda asked: events.gaussian(classical_gaussian(asked) / _SQRT_2_UP),
        broken=_below_one,
    ),
    "mod_sulq": Formula(
        source="Chaudhuri, Sarwate and Sinha (2013), A near-optimal algorithm for DP principal components, Algorithm 1",
        measures="std of the upper triangle of S",
        noise=_mod_sulq,
        event=lambda asked: events.gaussian(_mod_sulq(asked) / _replaced(asked, _SQRT_2_UP)),
        broken=_mod_sulq_broken,
    ),
    "wishart": Formula(
        source="Jiang, Xie and Zhang (2016), Wishart mechanism, Theorem 4: d + 1 degrees of freedom, 3 / (2 epsilon)",
        measures="scale of one Wishart matrix of d + 1 degrees of freedom on S",
        noise=lambda asked: 3 / (2 * asked.epsilon),
        event=_wishart_event,
        broken=_wishart_broken,
        closed_form=lambda asked, delta: wishart_bracket(2.0, scale=3 / (2 * asked.epsilon), delta=delta),
    ),
    "wishart_of_many_degrees": Formula(
        source="Sheffet (2015), Private approximations of the 2nd-moment matrix: W_d(m, I), m as in `noise`",
        measures="degrees of freedom of one Wishart matrix of scale 1 on S",
        noise=_sheffet_degrees,
        event=_sheffet_event,
        closed_form=lambda asked, delta: wishart_bracket(_schur_degrees(asked), scale=1.0, delta=delta),
    ),
    "laplace": Formula(
        source="Dwork, McSherry, Nissim and Smith (2006), Proposition 1, with the l1 sensitivity (d + 1) / 2",
        measures="scale of the upper triangle of S",
        noise=lambda asked: (asked.n_features + 1) / (2 * asked.epsilon) * _replaced(asked, 2.0),
        event=lambda asked: events.laplace(1 / asked.epsilon),
        closed_form=lambda asked, _: known(asked.epsilon / _replaced(asked, 2.0), asked.epsilon),
    ),
    "exponential": Formula(
        source="Chaudhuri, Sarwate and Sinha (2013), Algorithm 2 (PPCA): density exp(n epsilon / 2 tr(V^T A V))",
        measures="scale of the score tr(V^T S V)",
        noise=lambda asked: 2 / asked.epsilon,
        event=lambda asked: events.approximate(asked.epsilon * _replaced(asked, 2.0) / 2, 0.0),
        closed_form=lambda asked, _: known(asked.epsilon * _replaced(asked, 2.0) / 2),
    ),
    "noisy_power": Formula(
        source="Hardt and Price (2014), Algorithm 2: ||V||_max sqrt(4 p L ln(1 / delta)) / epsilon",
        measures="std of a product over ||V||_max, which is at least 1 / sqrt(d)",
        noise=lambda asked: math.sqrt(4 * asked.n_components * asked.steps * math.log(1 / asked.delta)) / asked.epsilon,
        event=lambda asked: events.self_composed(
            events.gaussian(FORMULAS["noisy_power"].noise(asked) * _largest_entry(asked)), asked.steps
        ),
        broken=lambda _: (
            "calibration=paper protects one entry of the matrix, not a record, whose whole row moves the product"
        ),
    ),
    "dps_pca_of_one_owner": DPS_PCA_OF_ONE_OWNER,
    "dp_spca": Formula(
        source="Shang et al., PCA in the stochastic differential privacy model, Theorem 1, equation (11)",
        measures="std lambda_1 of a step of one row over G = 1",
        noise=_dp_spca,
        event=lambda asked: events.self_composed(
            events.poisson_sampled(events.gaussian(_dp_spca(asked) / asked.gradient), 1 / asked.n_records), asked.steps
        ),
        broken=_dp_spca_broken,
    ),
    "dp_vrpca": Formula(
        source="Shang et al., PCA in the stochastic differential privacy model, Theorem 3",
        measures="std lambda_2 of a step over G = 1",
        noise=_dp_vrpca,
        event=_dp_vrpca_event,
        bound="at least",
        broken=lambda _: (
            "calibration=paper uses the full product without noise in every step, and noise that ignores how far the "
            "directions moved"
        ),
    ),
    "smooth_gaussian": Formula(
        source="Nissim, Raskhodnikova and Smith (2007), Lemma 2.7, for D = d k coordinates",
        measures="std over the smooth bound U",
        noise=lambda asked: 1 / smooth_gaussian_shift(epsilon=asked.epsilon, delta=asked.delta, size=1)[0],
        event=lambda asked: _smooth_event(asked, size=asked.n_features * asked.n_components),
        broken=_smooth_broken,
        closed_form=lambda asked, delta: _smooth_bracket(asked, delta, size=asked.n_features * asked.n_components),
    ),
    "smooth_gaussian_of_rows": Formula(
        source="Gonen and Gilad-Bachrach (2018), Theorem 9 and Corollary 12: the same with d for D, whatever k is",
        measures="std over the smooth bound U",
        noise=lambda asked: 1 / smooth_gaussian_shift(epsilon=asked.epsilon, delta=asked.delta, size=1)[0],
        event=lambda asked: _smooth_event(asked, size=asked.n_features),
        broken=_smooth_broken,
        closed_form=lambda asked, delta: _smooth_bracket(asked, delta, size=asked.n_features),
    ),
    "smooth_cauchy": Formula(
        source="Gonen and Gilad-Bachrach (2018), Theorem 9 and Corollary 13: 6 U / epsilon, beta = epsilon / (6 D)",
        measures="scale over the smooth bound U in the l1 norm",
        noise=lambda asked: 6 / asked.epsilon,
        event=lambda asked: events.approximate(asked.epsilon / 3, 0.0),  # a sixth for the shift, one for the scale
        closed_form=_smooth_cauchy_bracket,
    ),
    **AGN,
    **ELSEWHERE,
}
"""The printed formulas, by mechanism, and those of `dpca_tasks.accounting.published_elsewhere`."""
