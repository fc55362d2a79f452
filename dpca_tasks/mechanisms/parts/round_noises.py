"""The noise of every step of alternating least squares, from one target or from the published formula."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpca_tasks.accounting import events
from dpca_tasks.accounting.formula import Settings
from dpca_tasks.accounting.published import FORMULAS
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.parts.ratings import RatingsProblem, joint_noise
from dpca_tasks.noise.joint import JointGaussian

CENTRE_SHARE = Fraction(1, 5)
"""The share of the totals' squared loss that a private centre takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNoises:
    """The noise of each step, in the order in which they run; None for a step that is left out."""

    centre: JointGaussian | None
    totals: JointGaussian | None
    start: JointGaussian | None
    rounds: tuple[JointGaussian, ...]

    def __iter__(self) -> Iterator[JointGaussian]:
        """Iterate over the noise of the steps that there are."""
        yield from (noise for noise in (self.centre, self.totals, self.start, *self.rounds) if noise is not None)

    @property
    def event(self) -> events.Event:
        """The event of all steps."""
        return events.composed(*(noise.event for noise in self))


def split_noises(
    target: PrivacyTarget,
    *,
    rounds: int,
    growth: float,
    totals_share: float,
    centre: bool,
    totals: bool,
    start_share: float | None,
) -> RoundNoises:
    """Split a target exactly: shares for centre, totals and start, where they are asked for, and rounds that grow."""
    share = Fraction(totals_share)
    first = CENTRE_SHARE * share if centre else Fraction(0)
    second = share - first if totals else Fraction(0)
    third = Fraction(start_share or 0)
    weights = [Fraction(weight) for weight in np.geomspace(1.0, growth, rounds).tolist()]
    return RoundNoises(
        centre=joint_noise(target, first) if centre else None,
        totals=joint_noise(target, second) if totals else None,
        start=joint_noise(target, third) if third else None,
        rounds=tuple(joint_noise(target, (1 - first - second - third) * weight / sum(weights)) for weight in weights),
    )


def with_published_rounds(
    noises: RoundNoises, problem: RatingsProblem, target: PrivacyTarget, *, scale: float
) -> RoundNoises:
    """Return noises with the printed noise in every round, which the paper grants the whole target.

    Parameters
    ----------
    noises : RoundNoises
        Of centre, totals and start, which keep theirs.
    problem, target
        The request.
    scale : float
        The std of each sum of a round at noise multiplier 1, in units of its bound for one rating.

    Raises
    ------
    Refused
        When a user replaces another, which the theorem does not cover.
    """
    if problem.relation == "replace_one":
        raise Refused(
            "calibration=paper is stated for a removed user, not for replace_one, which moves both sums of a round "
            "further; use calibration=tight."
        )
    asked = Settings(
        epsilon=target.epsilon,
        delta=target.delta,
        relation=problem.relation,
        n_components=problem.most,
        steps=len(noises.rounds),
    )
    one = JointGaussian(noise_multiplier=math.nextafter(FORMULAS["dpals"].noise(asked) / scale, math.inf))
    return dataclasses.replace(noises, rounds=(one,) * len(noises.rounds))
