"""Printed formulas of what is no subspace mechanism here: completion, sums over sites, and samplers of two libraries.

>>> from dpca_tasks.accounting.formula import Settings
>>> asked = Settings(epsilon=5.0, delta=1e-5, n_components=50, steps=5)
>>> round(ELSEWHERE["dpals"].noise(asked), 2), round(ELSEWHERE["dpals"].bracket(asked).upper, 2)
(18.17, 5.58)
"""

import math
from collections.abc import Mapping

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import known
from dpca_tasks.accounting.formula import Formula, Settings
from dpca_tasks.accounting.joint_releases import correlated_inflation, inverted_sampler_loss


def _dpals(settings: Settings) -> float:
    """Return ``sqrt(2 k T (epsilon + ln(1 / delta))) / epsilon``, over the bounds of what is summed."""
    rounds = settings.n_components * settings.steps
    return math.sqrt(2 * rounds * (settings.epsilon + math.log(1 / settings.delta))) / settings.epsilon


def _dpals_event(settings: Settings) -> events.Event:
    """Return the event of two Gaussians a round, each of a user with k items."""
    step = events.gaussian(_dpals(settings) / math.sqrt(settings.n_components))
    return events.self_composed(step, 2 * settings.steps)


def _dpfw(settings: Settings) -> float:
    """Return ``sqrt(64 T ln(1 / delta)) / epsilon``, over the squared norm of a row."""
    return math.sqrt(64 * settings.steps * math.log(1 / settings.delta)) / settings.epsilon


def _dpfw_event(settings: Settings) -> events.Event:
    """Return the event of T Gaussians; a row that replaces another moves a moment sqrt 2 times as far."""
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
    return "the accept test divides by the ratio of densities that it should multiply by: the law is no exponential one"


def _sampler(library: str) -> Formula:
    return Formula(
        source=f"{library}: one eigenvector by rejection from an angular central Gaussian; read from its source",
        measures="scale of the score v^T S v",
        noise=lambda asked: 4 / asked.epsilon,
        event=lambda asked: events.approximate(_inverted(asked), 0.0),
        broken=_inverted_broken,
        closed_form=lambda asked, _: known(_inverted(asked)),
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
        measures="std of one site's message over its sensitivity",
        noise=_classical,
        event=lambda asked: _view(asked, _classical(asked)),
        broken=lambda _: _JOINT,
    ),
    "cape_of_least_noise": Formula(
        source=f"{_CAPE}, with the least noise that keeps one message's claim",
        measures="std of one site's message over its sensitivity",
        noise=_least,
        event=lambda asked: _view(asked, _least(asked)),
        broken=lambda _: _JOINT,
    ),
    "dps_pca": Formula(
        source="Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA, Algorithm 1 as printed",
        measures="std of one matrix of noise that all providers add, each over its number of rows",
        noise=_dps_pca,
        event=lambda _: events.non_private(),
        broken=lambda _: "all providers add the same draw, so the server takes the difference of two without noise",
    ),
    "diffprivlib_eigenvector": _sampler("diffprivlib 0.6.6"),
    "opendp_eigenvector": _sampler("OpenDP 0.16.0"),
}
"""Further printed formulas."""
