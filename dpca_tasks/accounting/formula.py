"""The shape of a printed formula: its public parameters, its noise, its event, and the conditions of its claim."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import EpsilonBracket, epsilon_bracket
from dpca_tasks.accounting.relation import Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The public parameters of published noise.

    Parameters
    ----------
    epsilon, delta : float
        What is claimed.
    relation : Relation
        Of the neighbours that the event is stated for.
    n_features, n_components, n_records : int
        d; k, or the width of a product; n.
    steps, epochs : int
        T or L, and m.
    mix : float, optional
        The free ``mu`` of DP-SPCA; without it, the one of least noise that its conditions allow.
    distance : float
        How far DP-VRPCA's directions are from those of its last full product; at most 2.
    gradient : float
        How far a record really moves a step of DP-SPCA over the G of its formula: 2 where G is that of half the
        squared projection and the step takes the gradient of the whole.
    sites, colluders : int
        Of a sum over sites: how many there are, and how many of them tell the aggregator what they know.
    largest_entry : float, optional
        Of the directions of the noisy power method; without it, the least that they can have, ``1 / sqrt d``.
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
    distance: float = 2.0
    gradient: float = 1.0
    largest_entry: float | None = None
    sites: int = 1
    colluders: int = 0


type Bound = Literal["between", "at most", "at least"]
"""Which ends of a bracket are about what was published: both, the upper or the lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A row: a printed formula and what is true of it.

    Attributes
    ----------
    source : str
        Paper and place.
    measures : str
        What the noise is: its unit.
    noise : callable
        The printed noise at some settings.
    event : callable
        What a release with that noise really is, for one record of the settings' relation.
    broken : callable
        The condition of the claim that the settings break, in words, or None.
    closed_form : callable, optional
        The bracket of the true epsilon at some settings and a delta, where the event only summarises the truth.
    bound : {"between", "at most", "at least"}
        Which ends of the bracket are about what was published; the other end is about the event alone.
    """

    source: str
    measures: str
    noise: Callable[[Settings], float]
    event: Callable[[Settings], events.Event]
    broken: Callable[[Settings], str | None] = lambda _: None
    closed_form: Callable[[Settings, float], EpsilonBracket] | None = None
    bound: Bound = "between"

    def bracket(self, settings: Settings, *, delta: float | None = None) -> EpsilonBracket:
        """Bracket the true epsilon at the claimed delta, or at another one."""
        delta = settings.delta if delta is None else delta
        if self.closed_form is not None:
            return self.closed_form(settings, delta)
        return epsilon_bracket(self.event(settings), delta=delta)
