"""Gaussian noise on several parts of one statistic, with one noise multiplier and one event."""

from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting import events
from dpca_tasks.noise.distributions import Cube, Gaussian, NoiseDistribution, Symmetric
from dpca_tasks.noise.symmetric_stack import SymmetricStack

_OF_LAYOUT: dict[str, type[Gaussian]] = {kind.layout: kind for kind in (Gaussian, Symmetric, Cube, SymmetricStack)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGaussian:
    """Independent Gaussian noise for each part of a `dpca_tasks.queries.joint_sum.JointSum`, scaled by its bound.

    The multiplier is the std divided by the sensitivity of the statistic whose parts are divided by their bounds.

    >>> JointGaussian(noise_multiplier=2.0).event
    {'name': 'gaussian', 'noise_multiplier': 2.0}
    """

    name: ClassVar[str] = "JointGaussian"
    norm: ClassVar[str] = "joint"

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse a multiplier that is not positive and finite."""
        _ = self.event

    @property
    def event(self) -> events.Event:
        """The event of one Gaussian mechanism, for any number of parts."""
        return events.gaussian(self.noise_multiplier)

    def part(self, layout: str) -> NoiseDistribution:
        """Return the noise distribution of a part with a given layout."""
        return _OF_LAYOUT[layout](noise_multiplier=self.noise_multiplier)
