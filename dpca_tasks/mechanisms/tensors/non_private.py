"""Orthogonal tensor decomposition without privacy (``otd``), a reference for the private tensor mechanisms.

This reference is not in the table of private mechanisms. It claims no guarantee and is not audited. A release requires
the option ``--i-know-this-is-not-private``. Words are counted and points are clipped as in the private mechanisms, so
that results differ only by the noise.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from dpca_tasks.accounting import events
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Components, Plan, PrivacyTarget
from dpca_tasks.mechanisms.tensors.tensor_releases import (
    POINT_FACTOR,
    SCORE_FACTOR,
    TensorProblem,
    TensorReleases,
    product_along,
)
from dpca_tasks.privacy.curator import Curator, DisclosingCurator

MOMENT_BITS, CORE_BITS = {"topics": 28, "mixture": 14}, 28


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate:
    """Disclose the second moment and the core of the third moment without noise, and decompose the core.

    Parameters
    ----------
    components, point_factor, score_factor
        As for `dpca_tasks.mechanisms.tensors.agn.Agn`.

    Notes
    -----
    The event of both steps is ``non_private``. The notes of `dpca_tasks.mechanisms.subspace.non_private.NonPrivate`
    describe its effect on a budget.
    """

    components: int
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})

    name: ClassVar[str] = "otd"

    def plan(self, problem: TensorProblem, target: PrivacyTarget) -> Plan:
        """Plan the disclosure of the second moment and of the core, without noise.

        Raises
        ------
        Refused
            When the target differs from `NO_GUARANTEE`, so the user has not acknowledged that the result is not
            private.
        """
        releases = self._releases(problem)
        releases.check()
        if target != NO_GUARANTEE:
            raise Refused(
                "otd gives no privacy guarantee: its result is marked as not private and voids the budget of its "
                "population; insist with --i-know-this-is-not-private, or choose another mechanism."
            )
        bits = MOMENT_BITS[problem.model]
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=0.0,
            bits=bits,
            event=events.self_composed(events.non_private(), 2),
            notes=(
                "the result is not private: it has no noise, and voids the budget of its population.",
                *releases.warnings(bits=bits),
            ),
            uncertified=True,
        )

    def run(self, curator: Curator, plan: Plan) -> Components:
        """Disclose the exact second moment and the exact core of the third moment, and decompose the core.

        Raises
        ------
        Refused
            When the curator is not a `DisclosingCurator`.
        """
        if not isinstance(curator, DisclosingCurator):
            raise Refused("otd needs exact answers, and this curator gives only noisy ones; use a DisclosingCurator.")
        releases = self._releases(plan.problem)
        space = releases.space(curator.disclose(releases.moment_query(bits=plan.bits)), std=0.0)
        query = curator.with_stored_inputs(releases.core_query(space, bits=CORE_BITS))
        return releases.components_from(curator.disclose(query), product_along(query, space))

    def _releases(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )
