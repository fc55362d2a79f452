"""Shared parts of the mechanisms that compute the exact leading directions and then add noise to them.

These parts are the settings of the eigensolver, the check that it is certain to converge, the plan and the release.
With ``center=private``, a mean is released first and subtracted from the records
(`dpca_tasks.mechanisms.noisy_products`).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, check_request, grid_warnings
from dpca_tasks.mechanisms.eigenpairs import signed
from dpca_tasks.mechanisms.noisy_products import MeanFirst, orthonormal, release_shift
from dpca_tasks.noise.distributions import check_tail
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationMechanism
from dpca_tasks.queries.operator_product import BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class OnEigenpairs:
    """Base class of the mechanisms that add noise to computed leading directions.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    passes : int
        The number of passes of the eigensolver over the rows, fixed before any row is read.
    oversampling : int
        The number of columns in a block of the eigensolver beyond k + 1, fixed before any row is read.
    allow_uncertified : bool
        Accept an eigensolver that may not converge, so that the guarantee holds only if it converges. See
        `dpca_tasks.privacy.eigensolver`.
    """

    n_components: int
    passes: int = field(default=24, metadata={"ge": 1})
    oversampling: int = field(default=8, metadata={"ge": 0})
    allow_uncertified: bool = False

    def solver(self, problem: Problem, shift: NDArray[np.int64] | None = None) -> Eigensolver:
        """Return the eigensolver for the problem's records, from which the mean ``shift`` is subtracted.

        Before the mean is released, ``shift`` is None; zeros then replace the mean of a centred problem.
        """
        if shift is None and problem.center == "private":
            shift = np.zeros(problem.n_features, np.int64)
        return Eigensolver(
            n_features=problem.n_features,
            clip_norm=problem.clip_norm,
            relation=problem.relation,
            n_components=self.n_components,
            passes=self.passes,
            oversampling=self.oversampling,
            shift=shift,
        )

    def check(self, problem: Problem, target: PrivacyTarget, *, pure: bool = False) -> Eigensolver:
        """Refuse an invalid request, and return the eigensolver for a valid request.

        Raises
        ------
        InvalidInput, Refused
            As for `check_request`. Also when the eigensolver may fail to converge and ``allow_uncertified`` is false.
        """
        check_request(problem, target, n_components=self.n_components, pure=pure)
        solver = self.solver(problem)
        if not (solver.is_complete or self.allow_uncertified):
            raise Refused(
                f"passes={self.passes} with {solver.width} directions each give fewer than "
                f"n_features={problem.n_features} directions, so the guarantee would depend on the convergence of the "
                "eigensolver; use analyze_gauss or noisy_power, or accept this with allow_uncertified=true."
            )
        return solver

    def plan_directions(
        self,
        problem: Problem,
        target: PrivacyTarget,
        noise: PerturbationMechanism,
        *,
        first: MeanFirst,
        mechanism: str,
        noise_multiplier: float,
        needs: float,
        printed: bool = False,
    ) -> Plan:
        """Plan one release of noised directions, after the release of a mean if the problem is centred.

        ``needs`` is the eigengap below which the directions are mostly noise, in squared clip norms.
        """
        solver = self.solver(problem)
        check_tail(noise, draws=solver.layout.size + 1, delta=noise.event["delta"])
        seen = forecast(problem, n_components=self.n_components, level=needs, together=True)
        warnings = seen.warnings() or (
            f"the components are noise unless the eigengap after component {self.n_components} exceeds about "
            f"{needs:,.0f} squared clip norms.",
        )
        return Plan(
            mechanism=mechanism,
            problem=problem,
            target=target,
            noise_multiplier=noise_multiplier,
            bits=BITS,
            event=first.event(noise.event),
            notes=warnings + grid_warnings(problem, bits=BITS) + (() if solver.is_complete else (UNCERTIFIED,)),
            printed=printed,
            uncertified=not solver.is_complete,
            level=needs,
            together=True,
        )

    def release(
        self, curator: Curator, problem: Problem, noise: PerturbationMechanism, *, first: MeanFirst
    ) -> tuple[Eigensolver, NDArray[np.float64]]:
        """Release the mean, if planned, and then the noised directions of the records around this mean.

        The result is the eigensolver, which contains the released mean, and the noised directions.
        """
        shift = release_shift(curator, problem, first.noise)
        solver = curator.with_stored_inputs(self.solver(problem, shift))
        return solver, curator.perturb(solver, noise)


UNCERTIFIED = (
    "the guarantee is not proved for neighbouring datasets if the eigensolver converges on only one of them; more "
    "passes make this case rarer."
)


def as_components(noised: NDArray[np.float64], n_components: int) -> NDArray[np.float64]:
    """Return noised directions as orthonormal rows with fixed signs, in no particular order.

    ``noised`` holds the d x k matrix of directions as a vector, row by row.
    """
    return signed(orthonormal(noised.reshape(-1, n_components)).T)
