"""Analyze Gauss: the leading eigenvectors of a second moment with Gaussian noise.

This is the default mechanism for (epsilon, delta)-DP. The noise is isotropic on symmetric matrices with the Frobenius
norm: standard deviation s on the diagonal, and ``s / sqrt 2`` off the diagonal, because each entry off the diagonal
occurs twice. The published mechanism draws the upper triangle with one standard deviation, which is ``sqrt 2`` times
more noise off the diagonal than necessary.

*Dense form*: the noisy matrix is formed, in one release or in several rounds.

*Operator form*: for large d, the same release is used only through products with directions, and the matrix is never
formed. The client holds only a few blocks of directions, and the noise matrix stays on the workers. With
``center=private``, a public constant is appended to the rows, as in `dpca_tasks.mechanisms.released_moment`. The last
column of the matrix then gives mean and count, and each product is centred by post-processing.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.published import Settings, published_noise
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.eigenpairs import block_width, leading_eigenpairs_of
from dpca_tasks.mechanisms.noisy_products import Centre, start_directions
from dpca_tasks.mechanisms.registered import SEPARATE
from dpca_tasks.mechanisms.released_moment import decompose, moment_query, noise_facts, plan_moment, release_moment
from dpca_tasks.mechanisms.released_rounds import (
    ask_curator,
    check_count,
    plan_rounds,
    planned_rounds,
    release_rounds,
    round_noises,
)
from dpca_tasks.mechanisms.warm_start import plan_warm, release_warm
from dpca_tasks.noise.distributions import Symmetric, UpperTriangle
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.tiled_noise import NoisedOperator
from dpca_tasks.queries.operator_product import DIRECTION_BITS
from dpca_tasks.queries.second_moment import CONSTANT
from dpca_tasks.refinement.rounds import WIDEST


def decompose_unformed(curator: Curator, plan: Plan, noise: Symmetric, *, n_components: int) -> Subspace:
    """Release the planned noisy second moment as an operator, and return its k leading eigenpairs.

    Block Lanczos computes a few more eigenvectors than k. They are returned as ``further``, because the refinement
    method ``eb`` uses them too.
    """
    problem = plan.problem
    query = moment_query(problem, bits=plan.bits)
    operator, facts = curator.release_operator(query, noise), noise_facts(query, noise, problem)
    start = start_directions(problem.n_features, block_width(problem.n_features, n_components))
    if problem.center == "none":
        values, rows = leading_eigenpairs_of(operator.product, start, n_components)
        return _pairs(values, rows, n_components, mean=None, noise=facts)
    centred = _CentredOperator(operator, constant=CONSTANT * problem.clip_norm)
    values, rows = leading_eigenpairs_of(centred.product, start, n_components)
    return _pairs(values, rows, n_components, mean=centred.centre.mean, noise=facts)


def _pairs(
    values: NDArray[np.float64],
    rows: NDArray[np.float64],
    count: int,
    *,
    mean: NDArray[np.float64] | None,
    noise: Mapping[str, Any],
) -> Subspace:
    return Subspace(
        components=rows[:count],
        eigenvalues=values[:count],
        spectrum=np.minimum.accumulate(values),
        further=rows[count:] if count < len(rows) else None,
        mean=mean,
        noise=noise,
    )


class _CentredOperator:
    """The noisy second moment as an operator, around the released mean; the first product also computes the mean."""

    centre: Centre

    def __init__(self, operator: NoisedOperator, *, constant: float) -> None:
        self._operator, self._constant = operator, constant

    def product(self, directions: NDArray[np.int64]) -> NDArray[np.float64]:
        extended = np.vstack([directions, np.zeros_like(directions[:1])])
        if not hasattr(self, "centre"):
            last = np.zeros_like(extended[:, :1])
            last[-1] = 1 << DIRECTION_BITS
            images = self._operator.product(np.hstack([extended, last]))
            constant, column = self._constant, images[:, -1]
            self.centre = Centre(column[:-1] / constant, float(column[-1]) / constant**2)
            images = images[:, :-1]
        else:
            images = self._operator.product(extended)
        return self.centre.shifted(images[:-1], directions.astype(np.float64) * 2.0**-DIRECTION_BITS)


WIDE = 5_000
"""The largest number of features for which ``form="auto"`` forms the matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeGauss:
    """Release ``X^T X`` with isotropic Gaussian noise, and return the leading eigenpairs of the noisy matrix.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    calibration : {"tight", "paper"}
        ``tight``: the least noise that is (epsilon, delta)-DP; ``paper``: noise on the upper triangle with the
        published std ``sqrt(2 ln(1.25 / delta)) / epsilon``, proved for epsilon below 1 and one added or removed row,
        but charged by its exact privacy loss.
    form : {"auto", "dense", "operator"}
        Whether ``X^T X`` plus noise is formed (d^2 numbers, all eigenpairs) or only multiplied with directions (d k
        numbers, k eigenpairs, accurate to about 1e-3). Both are one release of the same noisy matrix. ``auto`` forms
        the matrix up to `WIDE` features.
    rounds : {"auto", 1, 2, 3}
        The number of rounds of the dense form, which together cost as much as one release. The first rounds find the
        strongest directions and the mean, so that later rounds need less noise
        (`dpca_tasks.mechanisms.released_rounds`). ``auto`` depends on public facts alone. It means three rounds, or two
        rounds for few components around a mean at a small epsilon (`dpca_tasks.refinement.rounds.best_rounds`). It
        means one round for ``calibration=paper``, for the operator form, and for rows too large to be made dense.
    warm : bool
        Whether the release has one round, whose map comes from an earlier release
        (`dpca_tasks.mechanisms.warm_start`). It replaces the rounds.
    start : callable, optional
        For a warm start: a function that returns the `dpca_tasks.mechanisms.warm_start.Start`. It is called at most
        once, when the release begins.
    serves_all : bool
        Whether the rounds are designed for all directions above the noise instead of k, because k is chosen after the
        release.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1. With ``calibration=tight`` the noise follows
    Balle and Wang (2018), Theorem 8, which is exact for every epsilon.
    """

    n_components: int
    calibration: Calibration = "tight"
    form: Literal["auto", "dense", "operator"] = "auto"
    rounds: int | Literal["auto"] = field(default="auto", metadata=SEPARATE)
    warm: bool = field(default=False, metadata=SEPARATE)
    start: Callable[[], Any] | None = field(default=None, metadata=SEPARATE, repr=False, compare=False)
    serves_all: bool = field(default=False, metadata=SEPARATE)

    name: ClassVar[str] = "analyze_gauss"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of the release, or of its rounds, to the target or by the published formula."""
        check_request(problem, target, n_components=self.n_components)
        if self.warm:
            self._check_warm(problem)
            multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
            return plan_warm(self.name, problem, target, self._noise(multiplier), n_components=self.n_components)
        rounds = self._rounds(problem, target)
        if rounds > 1:
            noises = round_noises(target, rounds=rounds)
            return plan_rounds(self.name, problem, target, noises, n_components=self.n_components)
        if self.calibration == "tight":
            multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
            return self._plan(problem, target, multiplier)
        requested = Settings(epsilon=target.epsilon, delta=target.delta, relation=problem.relation)
        multiplier = published_noise(self.name, requested)
        return self._plan(problem, target, multiplier)

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the noisy second moment, once or in rounds; the rest is post-processing."""
        if self.warm:
            assert self.start is not None
            return release_warm(curator, plan, start=self.start, n_components=self.n_components, served=self._served)
        if plan.rounds > 1:
            return release_rounds(ask_curator(curator), plan, n_components=self.n_components, served=self._served)
        noise = self._noise(plan.noise_multiplier)
        if not self._forms(plan.problem):
            return decompose_unformed(curator, plan, noise, n_components=self.n_components)
        return decompose(release_moment(curator, plan, noise), n_components=self.n_components)

    def _plan(self, problem: Problem, target: PrivacyTarget, multiplier: float) -> Plan:
        noise = self._noise(multiplier)
        plan = plan_moment(
            self.name,
            problem,
            target,
            noise,
            n_components=self.n_components,
            printed=self.calibration == "paper",
        )
        return dataclasses.replace(plan, moment_formed=self._forms(problem))

    @property
    def _served(self) -> int:
        """The number of components for which the maps of the rounds are designed."""
        return WIDEST if self.serves_all else self.n_components

    def _check_warm(self, problem: Problem) -> None:
        """Refuse a warm start with settings that exclude a map.

        Raises
        ------
        Refused
            If the noise follows the published formula, the matrix is not formed, or several rounds are requested.
        """
        if self.calibration != "tight" or not self._forms(problem) or self.rounds not in ("auto", 1):
            raise Refused(
                f"like needs calibration=tight, one round and the dense form, which auto uses up to {WIDE} features; "
                "leave out like, or use these settings."
            )

    def _rounds(self, problem: Problem, target: PrivacyTarget) -> int:
        """Return the number of rounds of a release, from the setting ``rounds`` and public facts alone."""
        allowed = self.calibration == "tight" and self._forms(problem)
        if self.rounds == "auto":
            return planned_rounds(problem, target, n_components=self._served) if allowed else 1
        check_count(self.rounds)
        if self.rounds > 1 and not allowed:
            raise Refused(
                f"rounds={self.rounds} needs calibration=tight and the dense form, which auto uses up to {WIDE} "
                "features; use rounds=1 or rounds=auto, or these settings."
            )
        return self.rounds

    def _forms(self, problem: Problem) -> bool:
        return self.form == "dense" or (self.form == "auto" and problem.n_features <= WIDE)

    def _noise(self, multiplier: float) -> Symmetric:
        return (Symmetric if self.calibration == "tight" else UpperTriangle)(noise_multiplier=multiplier)
