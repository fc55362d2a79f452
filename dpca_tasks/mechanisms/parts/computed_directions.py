"""What mechanisms share that noise computed directions: the eigensolver, its certificate, the steps, the finishing.

With ``center=private`` a mean is bought first, and the directions are those of records from which it was taken off
(`dpca_tasks.mechanisms.parts.private_mean`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, check_request, grid_warnings
from dpca_tasks.mechanisms.parts.eigenpairs import signed
from dpca_tasks.mechanisms.parts.noise_level import level_warnings
from dpca_tasks.mechanisms.parts.noisy_products import orthonormal
from dpca_tasks.mechanisms.parts.private_mean import MeanFirst, release_shift
from dpca_tasks.noise.distributions import check_tail
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationMechanism
from dpca_tasks.queries.eigensolver_product import BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class OnEigenpairs:
    """The parameters of a mechanism on computed directions.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    passes, oversampling : int
        Reads of the rows, and columns of a block beyond k + 1; see `Eigensolver`. Fixed before any row is read.
    allow_uncertified : bool
        Insist where the eigensolver may not converge, so that the guarantee has a condition; see
        `dpca_tasks.privacy.eigensolver`.
    """

    n_components: int
    passes: int = 24
    oversampling: int = 8
    allow_uncertified: bool = False

    def solver(self, problem: Problem, shift: NDArray[np.int64] | None = None) -> Eigensolver:
        """Return the solver for a problem: around a mean, or around zeros, which stand for it in a plan."""
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
        """Check a request, and return its solver.

        Raises
        ------
        InvalidInput, Refused
            As `check_request`; and when the solver may fail to converge, unless that is insisted on.
        """
        check_request(problem, target, n_components=self.n_components, pure=pure)
        solver = self.solver(problem)
        if not (solver.is_complete or self.allow_uncertified):
            raise Refused(
                f"passes={self.passes} of {solver.width} directions do not span n_features={problem.n_features}, so "
                "that the guarantee would rest on the convergence of the eigensolver; use analyze_gauss or "
                "noisy_power, or insist with allow_uncertified=true."
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
        real_epsilon: float | None = None,
    ) -> Plan:
        """Plan one noising of directions, perhaps after a mean; ``needs`` is the eigengap, in records of norm 1."""
        solver = self.solver(problem)
        check_tail(noise, draws=solver.layout.size + 1, delta=noise.event["delta"])
        warnings = level_warnings(problem, n_components=self.n_components, level=needs, together=True) or (
            f"the components are noise unless the eigengap behind component {self.n_components} is above about "
            f"{needs:,.0f} records at the clip norm.",
        )
        return Plan(
            mechanism=mechanism,
            problem=problem,
            target=target,
            noise_multiplier=noise_multiplier,
            bits=BITS,
            event=first.event(noise.event),
            warnings=warnings + grid_warnings(problem, bits=BITS) + (() if solver.is_complete else (UNCERTIFIED,)),
            real_epsilon=real_epsilon,
            certified=solver.is_complete,
        )

    def release(
        self, curator: Curator, problem: Problem, noise: PerturbationMechanism, *, first: MeanFirst
    ) -> tuple[Eigensolver, NDArray[np.float64]]:
        """Ask for the mean where one is planned, then for noised directions around it; tell what was asked too."""
        shift = release_shift(curator, problem, first.noise)
        solver = curator.with_stored_inputs(self.solver(problem, shift))
        return solver, curator.perturb(solver, noise)


UNCERTIFIED = (
    "the guarantee is proved for neighbouring datasets on which the eigensolver converges alike; more passes make "
    "others rarer."
)


def as_components(noised: NDArray[np.float64], n_components: int) -> NDArray[np.float64]:
    """Return noised directions, a matrix row by row, as orthonormal signed rows; none leads the others."""
    return signed(orthonormal(noised.reshape(-1, n_components)).T)
