r"""Published noise formulas with their sources, conditions and actual privacy events.

Each row of `FORMULAS` states the noise formula of a paper and the conditions of its privacy claim. The actual guarantee
is the epsilon of the event ``row.event(settings)`` at delta, which can be compared with the claimed epsilon. Mechanisms
with the option ``calibration=paper`` take their noise from these formulas. All noise is stated for records of norm 1
and for the second moment ``S = X^T X``, not divided by the number of records.

>>> requested = Settings(epsilon=0.1, delta=1e-3)
>>> row = FORMULAS["analyze_gauss"]
>>> round(row.noise(requested), 2), row.broken(requested)
(37.76, None)
>>> round(row.bracket(requested).upper, 4)
0.0369

`ELSEWHERE` has the formulas of matrix completion, of sums over sites, and of the samplers in two libraries.

>>> requested = Settings(epsilon=5.0, delta=1e-5, n_components=50, steps=5)
>>> round(ELSEWHERE["dpals"].noise(requested), 2), round(ELSEWHERE["dpals"].bracket(requested).upper, 2)
(18.17, 5.58)
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import (
    correlated_inflation,
    inverted_sampler_loss,
    known,
    smooth_cauchy_bracket,
    smooth_gaussian_bracket,
    wishart_bracket,
    wishart_delta,
    wishart_epsilon,
)
from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket, epsilon_bracket
from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.smooth_sensitivity import smooth_cauchy_shift, smooth_gaussian_shift
from dpca_tasks.accounting.vrpca_movement import Epoch, movement_bracket, upper_event
from dpca_tasks.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Public parameters of the published noise formulas.

    Parameters
    ----------
    epsilon, delta : float
        The claimed guarantee.
    relation : Relation
        The relation of neighbors for which the event is stated.
    n_features : int
        d: the number of features.
    n_components : int
        k: the number of components, or the number of columns of a product of the matrix with directions.
    n_records : int
        n: the number of records.
    steps : int
        The number of steps, T or L in the papers; for DP-VRPCA the number of steps in an epoch.
    epochs : int
        The number of epochs, m in the papers.
    mix : float, optional
        The free parameter ``mu`` of DP-SPCA; by default the allowed value with the least noise.
    gradient : float
        For DP-SPCA: how far one record actually moves a step, divided by the G of the formula. This is 2 if G is the
        bound for half the squared projection, but the step takes the gradient of the whole squared projection.
    sites, colluders : int
        For a sum over sites: the number of sites, and the number of sites that share their secrets with the aggregator.
    largest_entry : float, optional
        For the noisy power method: the largest entry of the directions; by default the least possible value,
        ``1 / sqrt d``.
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = "add_remove"
    n_features: int = 2
    n_components: int = 1
    n_records: int = 1
    steps: int = 1
    epochs: int = 1
    mix: float | None = None
    gradient: float = 1.0
    largest_entry: float | None = None
    sites: int = 1
    colluders: int = 0


type Bound = Literal["between", "at most", "at least"]
"""The ends of a bracket that apply to the published mechanism: both, the upper or the lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A published noise formula, the conditions of its claim, and its actual privacy event.

    Attributes
    ----------
    source : str
        The paper, and the theorem or algorithm.
    measures : str
        What the noise formula states, with its unit.
    noise : callable
        Returns the noise that the paper prints for given settings.
    event : callable
        Returns the actual privacy event of a release with that noise, for the relation in the settings.
    broken : callable
        Returns, in words, the condition of the paper's claim that the settings break; None if they break none.
    closed_form : callable, optional
        Returns bounds of the true epsilon for given settings and delta. It is used where the event is only an
        (epsilon, delta) guarantee instead of the exact mathematics.
    bound : {"between", "at most", "at least"}
        Which bounds of `bracket` hold for the published mechanism: both, only the upper, or only the lower bound. The
        other bound holds for the event only.
    """

    source: str
    measures: str
    noise: Callable[[Settings], float]
    event: Callable[[Settings], events.Event]
    broken: Callable[[Settings], str | None] = lambda _: None
    closed_form: Callable[[Settings, float], EpsilonBracket] | None = None
    bound: Bound = "between"

    def bracket(self, settings: Settings, *, delta: float | None = None) -> EpsilonBracket:
        """Return lower and upper bounds of the true epsilon at ``delta``, which is the claimed delta by default."""
        delta = settings.delta if delta is None else delta
        if self.closed_form is not None:
            return self.closed_form(settings, delta)
        return epsilon_bracket(self.event(settings), delta=delta)


_AGN_SOURCE = "Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise: AGN"
_SQRT_2_UP = math.nextafter(math.sqrt(2.0), 2.0)


def _agn_noise(requested: Settings) -> float:
    """Return the noise multiplier of AGN, ``sqrt(2 ln(1.25 / (delta / 2))) / (epsilon / 2)``.

    This is the classical Gaussian formula for half of epsilon and half of delta.
    """
    return math.nextafter(2 * math.sqrt(2 * math.log(2.5 / requested.delta)) / requested.epsilon, math.inf)


def _agn_too_large(requested: Settings) -> str | None:
    if requested.epsilon < 2:
        return None
    return f"epsilon / 2 = {requested.epsilon / 2:.3g} breaks the theorem of calibration=paper, which needs less than 1"


def _agn_replaced(requested: Settings) -> str | None:
    if requested.relation != "replace_one":
        return None
    return "calibration=paper states sensitivity 1 of the second moment, which replace_one breaks (it moves by sqrt 2)"


def _agn_broken_of_mixtures(requested: Settings) -> str | None:
    return (
        "; ".join(condition for condition in (_agn_too_large(requested), _agn_replaced(requested)) if condition) or None
    )


def _agn_event_of_mixtures(requested: Settings) -> events.Event:
    moved = _SQRT_2_UP if requested.relation == "replace_one" else 1.0
    return events.composed(events.gaussian(_agn_noise(requested) / moved), events.gaussian(_agn_noise(requested)))


AGN: dict[str, Formula] = {
    "agn_of_topics": Formula(
        source=f"{_AGN_SOURCE}, single topics",
        measures="stds of the noise in the second and the third moment, each divided by its sensitivity",
        noise=_agn_noise,
        event=lambda requested: events.self_composed(events.gaussian(_agn_noise(requested)), 2),
        broken=_agn_too_large,
    ),
    "agn_of_mixtures": Formula(
        source=f"{_AGN_SOURCE}, mixtures of Gaussians; the third moment for a public variance of its noise",
        measures="std of the second and of the third moment, each over its printed sensitivity",
        noise=_agn_noise,
        event=_agn_event_of_mixtures,
        broken=_agn_broken_of_mixtures,
    ),
}
"""Formulas of ``calibration=paper``, by model."""


def product_distance(relation: Relation, *, n_components: int) -> float:
    """Return how far one record moves the sum over records of ``x (V^T x)^T``, in the Frobenius norm.

    Records x have norm at most 1, and V has ``n_components`` orthonormal columns.
    """
    return _SQRT_2_UP if relation == "replace_one" and n_components > 1 else 1.0


def _one_owner_noise(requested: Settings) -> float:
    """Return the std of one step of DPS-PCA for one owner, ``2 T sqrt(2 ln(2 T / delta)) / epsilon``.

    This is the classical Gaussian formula for ``epsilon / T`` and a sensitivity of 2.
    """
    steps = requested.steps
    return math.nextafter(
        2 * steps * math.sqrt(2 * math.log(2 * steps / requested.delta)) / requested.epsilon, math.inf
    )


def _one_owner_event(requested: Settings) -> events.Event:
    multiplier = _one_owner_noise(requested) / product_distance(requested.relation, n_components=requested.n_components)
    return events.self_composed(events.gaussian(multiplier), requested.steps)


def _one_owner_broken(requested: Settings) -> str | None:
    each = requested.epsilon / requested.steps
    if each < 1:
        return None
    return f"epsilon / T = {each:.3g} breaks the theorem of calibration=paper, which needs less than 1 in each step"


DPS_PCA_OF_ONE_OWNER = Formula(
    source="Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA, Algorithm 1 for one provider",
    measures="std of a product of rows that are clipped to norm 1",
    noise=_one_owner_noise,
    event=_one_owner_event,
    broken=_one_owner_broken,
)
"""Formula used by ``calibration=paper``; with several providers it gives no guarantee."""


def _dpals(settings: Settings) -> float:
    """Return the noise of DPALS, ``sqrt(2 k T (epsilon + ln(1 / delta))) / epsilon``.

    This is the std of each sum of a round, divided by the bound of the sum.
    """
    rounds = settings.n_components * settings.steps
    return math.sqrt(2 * rounds * (settings.epsilon + math.log(1 / settings.delta))) / settings.epsilon


def _dpals_event(settings: Settings) -> events.Event:
    """Return the privacy event of DPALS: two Gaussian releases per round, which a user with k items affects."""
    step = events.gaussian(_dpals(settings) / math.sqrt(settings.n_components))
    return events.self_composed(step, 2 * settings.steps)


def _dpfw(settings: Settings) -> float:
    """Return the noise of DPFW, ``sqrt(64 T ln(1 / delta)) / epsilon``: the std over the squared norm of a row."""
    return math.sqrt(64 * settings.steps * math.log(1 / settings.delta)) / settings.epsilon


def _dpfw_event(settings: Settings) -> events.Event:
    """Return the privacy event of DPFW: T Gaussian releases of a second moment.

    A replaced row moves the moment sqrt 2 times as far as an added row.
    """
    bound = math.sqrt(2.0) if settings.relation == "replace_one" else 1.0
    return events.self_composed(events.gaussian(_dpfw(settings) / bound), settings.steps)


def _classical(settings: Settings) -> float:
    return math.sqrt(2 * math.log(1.25 / settings.delta)) / settings.epsilon


def _least(settings: Settings) -> float:
    return gaussian_noise_multiplier(epsilon=settings.epsilon, delta=settings.delta)


def _view(settings: Settings, multiplier: float) -> events.Event:
    return events.gaussian(multiplier / correlated_inflation(sites=settings.sites, colluders=settings.colluders))


def _dps_pca(settings: Settings) -> float:
    return 2 * settings.steps * math.sqrt(2 * math.log(2 * settings.steps / settings.delta)) / settings.epsilon


def _inverted(settings: Settings) -> float:
    return inverted_sampler_loss(slope=settings.epsilon / 4, n_features=settings.n_features)


def _inverted_broken(_: Settings) -> str:
    return "the acceptance test divides by a density ratio instead of multiplying: this is no exponential mechanism"


def _sampler(library: str) -> Formula:
    return Formula(
        source=f"{library}: one eigenvector by rejection from an angular central Gaussian; read from its source",
        measures="scale of the score v^T S v",
        noise=lambda requested: 4 / requested.epsilon,
        event=lambda requested: events.approximate(_inverted(requested), 0.0),
        broken=_inverted_broken,
        closed_form=lambda requested, _: known(_inverted(requested)),
        bound="at least",
    )


_CAPE = "Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise: CAPE"
_JOINT = "stated for one site's message; the aggregator receives the messages of all sites, whose masks cancel"

ELSEWHERE: Mapping[str, Formula] = {
    "dpals": Formula(
        source="Chien et al. (2021), Private alternating least squares, Theorem 1",
        measures="std of both sums of a round, over their bounds; k items of a user, T rounds",
        noise=_dpals,
        event=_dpals_event,
        broken=lambda _: "the theorem counts one of the two noised sums of a round: rho^2 is k T / sigma^2",
    ),
    "dpfw": Formula(
        source="Jain, Thakkar and Thakurta (2018), Differentially private matrix completion revisited, Algorithm 2",
        measures="std of an entry of a round's moment, over the squared norm of a row; T rounds",
        noise=_dpfw,
        event=_dpfw_event,
    ),
    "cape": Formula(
        source=f"{_CAPE}, with sqrt(2 ln(1.25 / delta)) / epsilon",
        measures="std of the noise in one site's message, divided by the sensitivity of the message",
        noise=_classical,
        event=lambda requested: _view(requested, _classical(requested)),
        broken=lambda _: _JOINT,
    ),
    "cape_of_least_noise": Formula(
        source=f"{_CAPE}, with the least noise that keeps one message's claim",
        measures="std of the noise in one site's message, divided by the sensitivity of the message",
        noise=_least,
        event=lambda requested: _view(requested, _least(requested)),
        broken=lambda _: _JOINT,
    ),
    "dps_pca": Formula(
        source="Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA, Algorithm 1 as printed",
        measures="std of the one noise matrix that every provider adds, divided by its number of rows",
        noise=_dps_pca,
        event=lambda _: events.non_private(),
        broken=lambda _: "all providers add the same noise, so the difference of two messages contains no noise",
    ),
    "diffprivlib_eigenvector": _sampler("diffprivlib 0.6.6"),
    "opendp_eigenvector": _sampler("OpenDP 0.16.0"),
}
"""Further printed formulas."""


def published_noise(name: str, settings: Settings) -> float:
    """Return the noise that the paper of a mechanism prints for given settings.

    Raises
    ------
    Refused
        If the settings break a condition of the paper's privacy claim.
    """
    if FORMULAS[name].broken(settings):
        raise refusal(name, settings)
    return FORMULAS[name].noise(settings)


def refusal(name: str, settings: Settings) -> Refused:
    """Return the error whose message states which condition of a paper's privacy claim the settings break."""
    return Refused(f"{FORMULAS[name].broken(settings)}; use calibration=tight.")


def classical_gaussian(settings: Settings) -> float:
    """Return the classical noise multiplier of Gaussian noise, ``sqrt(2 ln(1.25 / delta)) / epsilon``.

    This is the std over the L2 sensitivity. The guarantee is proved for epsilon below 1.
    """
    return math.nextafter(math.sqrt(2 * math.log(1.25 / settings.delta)) / settings.epsilon, math.inf)


def _mod_sulq(settings: Settings) -> float:
    """Return n times the noise std beta that the MOD-SuLQ paper prints for the second moment divided by n.

    It is ``(d + 1) / epsilon sqrt(2 ln((d^2 + d) / (2 delta sqrt(2 pi)))) + 1 / sqrt(epsilon)``.
    """
    d, epsilon = settings.n_features, settings.epsilon
    argument = (d * d + d) / (2 * settings.delta * math.sqrt(2 * math.pi))
    return (d + 1) / epsilon * math.sqrt(2 * math.log(argument)) + 1 / math.sqrt(epsilon)


def _sheffet_degrees(settings: Settings) -> float:
    """Return the degrees of freedom that Sheffet prints for a Wishart matrix of scale 1.

    They are ``d + floor(28 ln(4 / delta) / epsilon^2)``.
    """
    return settings.n_features + math.floor(28 * math.log(4 / settings.delta) / settings.epsilon**2)


def _schur_degrees(settings: Settings) -> float:
    return _sheffet_degrees(settings) - settings.n_features + 1


def _sheffet_event(settings: Settings) -> events.Event:
    degrees = _schur_degrees(settings)
    return events.approximate(wishart_epsilon(degrees, scale=1.0, delta=settings.delta), settings.delta)


def _smooth_bracket(settings: Settings, delta: float, *, size: int) -> EpsilonBracket:
    """Return lower and upper bounds of the true epsilon of the smooth Gaussian noise that a paper prints.

    The noise is added to all d k coordinates, but the printed formula chooses the smoothness for only ``size``
    coordinates.
    """
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
    """Return the relative noise variance s of DP-SPCA for each mu, and whether s meets condition (c) of its Lemma 1.

    ``s = 5 T alpha / (n^2 epsilon mu)`` with ``alpha = ln(1 / delta) / ((1 - mu) epsilon) + 1``. This is a fourth of
    the printed variance divided by ``G^2``. Condition (c) comes from the subsampling lemma behind the formula:
    ``alpha <= ln(n / (1 + s))`` or ``alpha - 1 <= 2/3 s ln(n / (alpha (1 + s)))``.

    Parameters
    ----------
    settings : Settings
    mixes : array of shape (n_mixes,)
        The values of the free parameter mu in (0, 1).
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
    """Return the largest epsilon that condition (a) of DP-SPCA's Lemma 1 allows: ``T / n^2``."""
    return settings.steps / settings.n_records / settings.n_records


def _dp_vrpca(settings: Settings) -> float:
    count = settings.steps * settings.epochs
    return math.sqrt(count * math.log(1 / settings.delta)) / (settings.n_records * settings.epsilon)


def _epoch(settings: Settings) -> Epoch:
    return Epoch(
        n_features=settings.n_features,
        n_records=settings.n_records,
        steps=settings.steps,
        noise_std=_dp_vrpca(settings),
        n_components=settings.n_components,
    )


def _largest_entry(settings: Settings) -> float:
    return settings.largest_entry or 1 / math.sqrt(settings.n_features)


def _replaced(settings: Settings, factor: float) -> float:
    """Return ``factor`` if the settings' neighbors differ by a replaced record, or else 1.

    ``factor`` is how many times as far a replaced record moves a sum as an added record.
    """
    return factor if settings.relation == "replace_one" else 1.0


def _below_one(settings: Settings) -> str | None:
    if settings.epsilon < 1:
        return None
    return f"epsilon={settings.epsilon} breaks the theorem of calibration=paper, which needs epsilon < 1"


def _analyze_gauss_broken(settings: Settings) -> str | None:
    if settings.relation == "replace_one":
        replaced = "calibration=paper assumes sensitivity 1, but under replace_one, one record changes X^T X by sqrt 2"
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
        event=lambda requested: events.gaussian(classical_gaussian(requested) / _replaced(requested, _SQRT_2_UP)),
        broken=_analyze_gauss_broken,
    ),
    "local_gaussian": Formula(
        source=f"Wang and Xu (2019), PCA in the local differential privacy model: {_BY_CLASSICAL}",
        measures="std of the upper triangle of one record's report, in which any two differ by up to sqrt 2",
        noise=classical_gaussian,
        event=lambda requested: events.gaussian(classical_gaussian(requested) / _SQRT_2_UP),
        broken=_below_one,
    ),
    "mod_sulq": Formula(
        source="Chaudhuri, Sarwate and Sinha (2013), A near-optimal algorithm for DP principal components, Algorithm 1",
        measures="std of the upper triangle of S",
        noise=_mod_sulq,
        event=lambda requested: events.gaussian(_mod_sulq(requested) / _replaced(requested, _SQRT_2_UP)),
        broken=_mod_sulq_broken,
    ),
    "wishart": Formula(
        source="Jiang, Xie and Zhang (2016), Wishart mechanism, Theorem 4: d + 1 degrees of freedom, 3 / (2 epsilon)",
        measures="scale of one Wishart matrix of d + 1 degrees of freedom on S",
        noise=lambda requested: 3 / (2 * requested.epsilon),
        event=_wishart_event,
        broken=_wishart_broken,
        closed_form=lambda requested, delta: wishart_bracket(2.0, scale=3 / (2 * requested.epsilon), delta=delta),
    ),
    "wishart_of_many_degrees": Formula(
        source="Sheffet (2015), Private approximations of the 2nd-moment matrix: W_d(m, I), m as in `noise`",
        measures="degrees of freedom of one Wishart matrix of scale 1 on S",
        noise=_sheffet_degrees,
        event=_sheffet_event,
        closed_form=lambda requested, delta: wishart_bracket(_schur_degrees(requested), scale=1.0, delta=delta),
    ),
    "laplace": Formula(
        source="Dwork, McSherry, Nissim and Smith (2006), Proposition 1, with the l1 sensitivity (d + 1) / 2",
        measures="scale of the upper triangle of S",
        noise=lambda requested: (requested.n_features + 1) / (2 * requested.epsilon) * _replaced(requested, 2.0),
        event=lambda requested: events.laplace(1 / requested.epsilon),
        closed_form=lambda requested, _: known(requested.epsilon / _replaced(requested, 2.0), requested.epsilon),
    ),
    "exponential": Formula(
        source="Chaudhuri, Sarwate and Sinha (2013), Algorithm 2 (PPCA): density exp(n epsilon / 2 tr(V^T A V))",
        measures="scale of the score tr(V^T S V)",
        noise=lambda requested: 2 / requested.epsilon,
        event=lambda requested: events.approximate(requested.epsilon * _replaced(requested, 2.0) / 2, 0.0),
        closed_form=lambda requested, _: known(requested.epsilon * _replaced(requested, 2.0) / 2),
    ),
    "noisy_power": Formula(
        source="Hardt and Price (2014), Algorithm 2: ||V||_max sqrt(4 p L ln(1 / delta)) / epsilon",
        measures="std of a product over ||V||_max, which is at least 1 / sqrt(d)",
        noise=lambda requested: (
            math.sqrt(4 * requested.n_components * requested.steps * math.log(1 / requested.delta)) / requested.epsilon
        ),
        event=lambda requested: events.self_composed(
            events.gaussian(FORMULAS["noisy_power"].noise(requested) * _largest_entry(requested)), requested.steps
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
        event=lambda requested: events.self_composed(
            events.poisson_sampled(events.gaussian(_dp_spca(requested) / requested.gradient), 1 / requested.n_records),
            requested.steps,
        ),
        broken=_dp_spca_broken,
    ),
    "dp_vrpca": Formula(
        source="Shang et al., PCA in the stochastic differential privacy model, Theorem 3",
        measures="std lambda_2 of a step over G = 1",
        noise=_dp_vrpca,
        event=lambda requested: upper_event(_epoch(requested), epochs=requested.epochs, delta=requested.delta),
        closed_form=lambda requested, delta: movement_bracket(_epoch(requested), epochs=requested.epochs, delta=delta),
        broken=lambda _: (
            "calibration=paper uses the full product without noise in every step, and noise that ignores how far the "
            "directions moved"
        ),
    ),
    "smooth_gaussian": Formula(
        source="Nissim, Raskhodnikova and Smith (2007), Lemma 2.7, for D = d k coordinates",
        measures="std over the smooth bound U",
        noise=lambda requested: 1 / smooth_gaussian_shift(epsilon=requested.epsilon, delta=requested.delta, size=1)[0],
        event=lambda requested: _smooth_event(requested, size=requested.n_features * requested.n_components),
        broken=_smooth_broken,
        closed_form=lambda requested, delta: _smooth_bracket(
            requested, delta, size=requested.n_features * requested.n_components
        ),
    ),
    "smooth_gaussian_of_rows": Formula(
        source="Gonen and Gilad-Bachrach (2018), Theorem 9 and Corollary 12: the same with d for D, whatever k is",
        measures="std over the smooth bound U",
        noise=lambda requested: 1 / smooth_gaussian_shift(epsilon=requested.epsilon, delta=requested.delta, size=1)[0],
        event=lambda requested: _smooth_event(requested, size=requested.n_features),
        broken=_smooth_broken,
        closed_form=lambda requested, delta: _smooth_bracket(requested, delta, size=requested.n_features),
    ),
    "smooth_cauchy": Formula(
        source="Gonen and Gilad-Bachrach (2018), Theorem 9 and Corollary 13: 6 U / epsilon, beta = epsilon / (6 D)",
        measures="scale over the smooth bound U in the l1 norm",
        noise=lambda requested: 6 / requested.epsilon,
        event=lambda requested: events.approximate(
            requested.epsilon / 3, 0.0
        ),  # the shift and the change of the scale cost epsilon / 6 each
        closed_form=_smooth_cauchy_bracket,
    ),
    **AGN,
    **ELSEWHERE,
}
"""Printed formulas by mechanism, including those of `ELSEWHERE`."""
