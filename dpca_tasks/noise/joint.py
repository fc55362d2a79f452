"""Gaussian noise on several parts of one statistic, of one noise multiplier and one event."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dpca_tasks.accounting import events
from dpca_tasks.noise.distributions import Cube, Gaussian, NoiseDistribution, Symmetric

_OF_LAYOUT: dict[str, type[Gaussian]] = {kind.layout: kind for kind in (Gaussian, Symmetric, Cube)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGaussian:
    """Independent Gaussian noise for each part of a `dpca_tasks.queries.joint_sum.JointSum`, by the part's own bound.

    The multiplier is the std over the sensitivity of the statistic whose parts were divided by their bounds.

    >>> JointGaussian(noise_multiplier=2.0).event
    {'name': 'gaussian', 'noise_multiplier': 2.0}
    """

    name: ClassVar[str] = "JointGaussian"
    norm: ClassVar[str] = "joint"
    version: ClassVar[int] = 1
    is_former: ClassVar[bool] = False

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse a multiplier that is no event."""
        _ = self.event

    @property
    def event(self) -> events.Event:
        """One Gaussian mechanism, whatever the number of parts."""
        return events.gaussian(self.noise_multiplier)

    def former(self) -> Iterator[Any]:
        """Iterate over earlier versions: there are none."""
        return iter(())

    def part(self, layout: str) -> NoiseDistribution:
        """Return the distribution of a part of a layout."""
        return _OF_LAYOUT[layout](noise_multiplier=self.noise_multiplier)
