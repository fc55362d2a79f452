"""The exact leading directions without privacy, as a reference for private mechanisms.

This reference is not in the table of private mechanisms. It claims no guarantee and is not audited. A release requires
the option ``--i-know-this-is-not-private``. Records are clipped as in the private mechanisms, so that results differ
only by the noise.
"""

from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.accounting import events
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Plan, PrivacyTarget, Problem, Subspace, check_shape
from dpca_tasks.mechanisms.released_moment import decompose, measured_noise, moment_from, moment_query
from dpca_tasks.privacy.curator import Curator, DisclosingCurator

BITS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate:
    """Disclose ``X^T X`` without noise, and return its leading eigenpairs.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.

    Notes
    -----
    The event is ``non_private``, whose epsilon is infinite, so no budget covers the event. If a user overrides this
    explicitly, the ledger records the event, and the budget is void from then on. No finite epsilon can be guaranteed
    to the individuals of this population any more, so the ledger admits no further private release. To compare
    mechanisms, use data of another population, or make the private releases first.
    """

    n_components: int

    name: ClassVar[str] = "non_private"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Plan the disclosure of the exact second moment, without noise.

        Raises
        ------
        Refused
            When the target differs from `NO_GUARANTEE`, so the user has not acknowledged that the result is not
            private.
        """
        check_shape(problem, n_components=self.n_components)
        if target != NO_GUARANTEE:
            raise Refused(
                "non_private gives no privacy guarantee: its result is marked as not private and voids the budget of "
                "its population; insist with --i-know-this-is-not-private, or choose another mechanism."
            )
        moment_query(problem, bits=BITS)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=0.0,
            bits=BITS,
            event=events.non_private(),
            notes=("the result is not private: it has no noise, and voids the budget of its population.",),
            uncertified=True,
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Disclose the exact second moment, and compute its leading eigenpairs.

        Raises
        ------
        Refused
            When the curator is not a `DisclosingCurator`.
        """
        if not isinstance(curator, DisclosingCurator):
            raise Refused(
                "non_private needs exact answers, and this curator gives only noisy ones; use a DisclosingCurator."
            )
        exact = curator.disclose(moment_query(plan.problem, bits=plan.bits))
        noise = measured_noise(plan.problem, law="isometric", std=0.0, step=0.0)
        return decompose(moment_from(exact, plan.problem, noise=noise), n_components=self.n_components)
