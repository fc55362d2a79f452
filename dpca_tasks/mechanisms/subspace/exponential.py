"""The exponential mechanism of PCA: random directions, drawn with a probability that grows with the captured variance.

No noise is added to a matrix, and no eigenvalue is released, so a released subspace cannot be refined later. For pure
epsilon-DP (delta = 0), use this mechanism if few components are requested and eigenvalues differ by less than
``(d + 1) / epsilon``. Otherwise the symmetrised Wishart mechanism captures more variance.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.errors import Refused
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Calibration, Plan, PrivacyTarget, Problem, Subspace, check_request, grid_warnings
from dpca_tasks.mechanisms.eigenpairs import signed
from dpca_tasks.mechanisms.noisy_products import mean_first, mean_of, orthonormal, release_shift
from dpca_tasks.noise.bingham import DirectionMechanism, GibbsChain, Peeling
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.recentred_moment import ShiftedMoment, moment_around
from dpca_tasks.queries.second_moment import SecondMoment

BITS = 14
"""The bits of the records' grid: the largest permitted number, because no noise limits the grid.

Around a mean the grid has one bit less.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Draw k orthonormal directions V with density proportional to ``exp(r tr(V^T X^T X V))`` for a slope r.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    sampler : {"peeling", "gibbs"}
        ``peeling``: exact draws of one direction after the other, each orthogonal to the earlier directions; ``gibbs``:
        one draw of all directions by a Markov chain, with k times the slope, but without a certified guarantee.
    allow_uncertified : bool
        Accept ``sampler=gibbs``, whose guarantee is not certified.
    calibration : {"tight", "paper"}
        ``tight``: the largest slope that keeps the guarantee; ``paper``: the published slope ``epsilon / 2`` for one
        draw of all directions, whose true cost, half of epsilon except for replace_one, is charged.

    Notes
    -----
    *Score.* The score of directions V is ``tr(V^T S V)``, where ``S = X^T X`` and records have norm at most 1. One
    additional record with rows ``X_u`` increases the score by ``||X_u V||_F^2``, a number in [0, 1] for every
    orthonormal V. A replaced record changes the score by the difference of two such numbers, which is in [-1, 1]. A
    draw has density proportional to ``exp(r tr(V^T S V))``, or with ``r / 2`` for replace_one. So the privacy loss of a
    draw is in an interval of length r that contains 0. This holds for a draw from all orthonormal V, and for a draw
    from the orthonormal V in a public subspace.

    *Slope.* For delta = 0, the slope r is epsilon divided by the number of draws of peeling. For a positive delta, r is
    the largest value that `dpca_tasks.accounting.calibration` proves. For one draw it is exact; for several draws it is
    the better of an equal split of the budget and of a bound by zCDP. The requested guarantee is charged.

    *Gibbs.* The Markov chain converges to one draw of all directions, which costs epsilon once. A chain of finite
    length is not pure epsilon-DP, and no guarantee is known for its 40 sweeps. So ``sampler=gibbs`` is refused unless
    ``allow_uncertified`` is set, and the plan and the artifact are marked as uncertified.

    *Centring.* With ``center=private`` the mean is released first (`dpca_tasks.mechanisms.noisy_products`), with
    Laplace noise for delta = 0. Then the mean is subtracted from the records, the records are clipped again, and the
    directions are drawn by the score of these records. The slope follows from the rest of the target. For zero_out the
    slope is the same as for replace_one (`dpca_tasks.queries.recentred_moment`).

    *Noise level.* Let the density be ``exp(v^T S v / s)`` for a scale s, and let S have one eigenvalue that exceeds d
    equal eigenvalues by v. Then a draw captures the part ``1 - d s / 2v`` of the leading direction. If v is below
    ``d s / 2``, a draw captures nothing, because random directions are too numerous. So ``d s / 2`` is the noise level.
    At twice this level, half of a drawn direction is still noise.

    The components are in the order of the draws, and have no eigenvalues.

    References
    ----------
    Chaudhuri, Sarwate and Sinha (2013), A near-optimal algorithm for differentially-private principal components: PPCA,
    whose published ``n epsilon / 2`` applies to replace_one. Kapralov and Talwar (2013): peeling.
    """

    n_components: int
    sampler: Literal["peeling", "gibbs"] = "peeling"
    allow_uncertified: bool = False
    calibration: Calibration = "tight"

    name: ClassVar[str] = "exponential"

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Calibrate the draws to the target."""
        check_request(problem, target, n_components=self.n_components, pure=True)
        certified = self.sampler == "peeling"
        if not (certified or self.allow_uncertified):
            raise Refused(
                "sampler=gibbs has no certificate: a Markov chain of finite length only approaches the private "
                "distribution; use sampler=peeling, or insist with allow_uncertified=true."
            )
        if self.calibration == "paper" and certified and self.n_components > 1:
            raise Refused(
                f"calibration=paper is published for one draw of all directions, and sampler=peeling makes "
                f"{self.n_components} draws; use n_components=1, or use calibration=tight."
            )
        if self.calibration == "paper" and problem.center != "none":
            raise Refused(
                f"center={problem.center} releases a mean first, for which no noise is published; use "
                "calibration=tight, or center=none."
            )
        first = mean_first(problem, target)
        noise = self._noise(first.rest, problem)
        bits = BITS if problem.center == "none" else BITS - 1
        query = _query(problem, None, bits=bits)  # raises if the problem's public facts are invalid
        level = problem.n_features * noise.noise_multiplier * query.sensitivity(noise.norm) / 2.0
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=bits,
            event=first.event(noise.event),
            notes=forecast(problem, n_components=self.n_components, level=level).warnings()
            + grid_warnings(problem, bits=bits)
            + (() if certified else (UNCERTIFIED,)),
            uncertified=not certified,
            level=level,
            printed=self.calibration == "paper",
        )

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Release the mean if the problem is centred, then draw the directions.

        Directions are drawn on a grid. Their orthonormalisation is post-processing.
        """
        first = mean_first(plan.problem, plan.target)
        shift = release_shift(curator, plan.problem, first.noise)
        query = curator.with_stored_inputs(_query(plan.problem, shift, bits=plan.bits))
        rows = curator.sample(query, self._noise(first.rest, plan.problem))
        return Subspace(components=signed(orthonormal(rows.T).T), mean=mean_of(query))

    def _noise(self, target: PrivacyTarget, problem: Problem) -> DirectionMechanism:
        kind = Peeling if self.sampler == "peeling" else GibbsChain
        if self.calibration == "paper":
            requested = Settings(epsilon=target.epsilon, relation=problem.relation)
            real = FORMULAS[self.name].event(requested)["epsilon"]
            return kind(n_components=self.n_components, epsilon=real, delta=0.0)
        return kind(n_components=self.n_components, epsilon=target.epsilon, delta=target.delta)


UNCERTIFIED = (
    "sampler=gibbs is not certified: epsilon and delta are proved for the limit of its chain, not for a finite chain."
)


def _query(problem: Problem, shift: NDArray[np.int64] | None, *, bits: int) -> SecondMoment | ShiftedMoment:
    return moment_around(
        shift, n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=bits
    )
