"""What is made of second moments that each site noised by itself: their sum, the sum of their leading parts, or one.

The records of two sites are different people, so each site keeps the whole guarantee with the noise of one release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, check_request
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.parts.released_moment import Moment, decompose, plan_moment, release_moment
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Add the noised second moments: conventional distributed PCA, with sqrt(S) times the std of pooled noise.

    Parameters
    ----------
    n_components : int
        k, below the number of features.

    References
    ----------
    Imtiaz and Sarwate (2018), whose own baseline divides epsilon by the number of sites; that is not needed.
    """

    n_components: int

    name: ClassVar[str] = "conv"

    def plan(self, problems: Sequence[Problem], targets: Sequence[PrivacyTarget]) -> tuple[Plan, ...]:
        """Plan one release at each site that takes part."""
        check_sites(problems)
        return tuple(
            _plan(self.name, problem, target, n_components=self.n_components)
            for problem, target in zip(problems, targets, strict=True)
        )

    def run(self, curators: Sequence[Curator], plans: Sequence[Plan]) -> Subspace:
        """Release each site's moment; the rest is post-processing."""
        total = _released(curators[0], plans[0])
        for curator, plan in zip(curators[1:], plans[1:], strict=True):
            total += _released(curator, plan)
        return decompose(Moment(matrix=total), n_components=self.n_components)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpDis:
    """Add the leading parts of the noised second moments, each of rank ``2 k`` at most.

    Parameters
    ----------
    n_components : int
        k, below the number of features.

    Notes
    -----
    A site sends ``U sqrt(L)``, d by R numbers in place of d (d + 1) / 2. The eigenvalues of noise add up, since each
    site keeps positive ones only: the sum is biased upward.

    References
    ----------
    Imtiaz and Sarwate (2018), the baseline of earlier work; R = 2 k is that of their code.
    """

    n_components: int

    name: ClassVar[str] = "dp_dis"

    def plan(self, problems: Sequence[Problem], targets: Sequence[PrivacyTarget]) -> tuple[Plan, ...]:
        """Plan one release at each site that takes part."""
        check_sites(problems)
        return tuple(
            _plan(self.name, problem, target, n_components=self.n_components)
            for problem, target in zip(problems, targets, strict=True)
        )

    def run(self, curators: Sequence[Curator], plans: Sequence[Plan]) -> Subspace:
        """Release each site's moment; the rest is post-processing."""
        order = plans[0].problem.n_features
        total = np.zeros((order, order))
        for curator, plan in zip(curators, plans, strict=True):
            values, rows = leading_eigenpairs(_released(curator, plan), min(2 * self.n_components, order))
            sent = rows[values > 0] * np.sqrt(values[values > 0])[:, None]
            total += sent.T @ sent
        return decompose(Moment(matrix=total), n_components=self.n_components)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Use the first site's noised second moment alone; no other site is read or charged.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    """

    n_components: int

    name: ClassVar[str] = "local"

    def plan(self, problems: Sequence[Problem], targets: Sequence[PrivacyTarget]) -> tuple[Plan, ...]:
        """Plan one release at the first site."""
        check_sites(problems)
        return (_plan(self.name, problems[0], targets[0], n_components=self.n_components),)

    def run(self, curators: Sequence[Curator], plans: Sequence[Plan]) -> Subspace:
        """Release the site's moment; the rest is post-processing."""
        return decompose(Moment(matrix=_released(curators[0], plans[0])), n_components=self.n_components)


def check_sites(problems: Sequence[Problem]) -> None:
    """Refuse fewer than two sites, unlike numbers of columns, and rows around a mean.

    Raises
    ------
    InvalidInput
        With the numbers, all of which are public.
    """
    if len(problems) < 2:
        raise InvalidInput(
            f"{len(problems)} site is too few for a sum over sites; name two at least, or fit one with dpca subspace."
        )
    columns = [problem.n_features for problem in problems]
    if len(set(columns)) > 1:
        raise InvalidInput(
            f"the sites have {', '.join(str(count) for count in columns)} columns, and a sum over sites needs the same "
            "at each; ingest them with one schema."
        )
    if any(problem.center != "none" for problem in problems):
        raise InvalidInput("center=private is for one owner's rows; sites release moments around the origin.")


def _plan(mechanism: str, problem: Problem, target: PrivacyTarget, *, n_components: int) -> Plan:
    check_request(problem, target, n_components=n_components)
    noise = Symmetric(noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta))
    return plan_moment(mechanism, problem, target, noise, n_components=n_components)


def _released(curator: Curator, plan: Plan) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    return release_moment(curator, plan, Symmetric(noise_multiplier=plan.noise_multiplier)).matrix
