"""The exponential mechanism of PCA: directions drawn by the variance they capture, without noise on a matrix.

Without a delta, use it if few components are requested and eigenvalues differ by less than ``(d + 1) / epsilon``.
Otherwise the symmetrised Wishart matrix captures more. No eigenvalue is released, so nothing can be refitted.
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
"""The records' grid: the finest one, since no noise limits it; around a mean it has half as many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Draw k directions V with density growing like ``exp(tr(V^T X^T X V))`` over a scale.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    sampler : {"peeling", "gibbs"}
        ``peeling``: one direction after the other, each an exact draw among those orthogonal to the earlier ones;
        ``gibbs``: all at once by a Markov chain, at k times the slope, without a certified guarantee.
    allow_uncertified : bool
        Accept ``gibbs``, whose guarantee is not certified.
    calibration : {"tight", "paper"}
        ``tight``: the largest slope that keeps the guarantee; ``paper``: the printed slope of ``epsilon / 2``, for one
        draw of all directions, which costs and is charged half of epsilon unless records are replaced.

    Notes
    -----
    *Score.* The score is ``tr(V^T S V)`` with ``S = X^T X`` of records of norm at most 1. One additional record changes
    it by ``||X_u V||_F^2``, within [0, 1] for every orthonormal V at once. A replaced record changes it by the
    difference of two such terms, within [-1, 1]. A draw has density proportional to ``exp(r tr(V^T S V))`` (``r / 2``
    for replace_one). So its privacy loss lies in an interval of length r that contains 0. This holds on all orthonormal
    V, and on the orthonormal V of a public subspace.

    *Cost.* Without a delta, r is epsilon divided among the k draws of peeling. With a delta, r is the largest value
    that `dpca_tasks.accounting.calibration` proves. It is exact for one draw; for several it is the better of an equal
    split and of zCDP. The requested guarantee is charged.

    *Gibbs.* The chain converges to one draw from the whole distribution, which costs epsilon once. A chain of finite
    length has no pure guarantee, and no guarantee is known for its 40 sweeps. So it is refused unless explicitly
    allowed, and marked in plan and artifact.

    *Centring.* The mean is released first (`dpca_tasks.mechanisms.noisy_products`), with Laplace noise if there is no
    delta. Then directions are scored by records from which the mean was subtracted and which were clipped again. So the
    slope is still the one that the rest of the target allows. For zero_out it is the slope of replace_one
    (`dpca_tasks.queries.recentred_moment`).

    *Noise.* Consider a draw of scale s, with one eigenvalue v above d equal others. It captures ``1 - d s / 2v`` of
    that direction, and nothing if v is below ``d s / 2``, where the entropy of directions outweighs the score. This
    value is the noise level. At twice this level, half of a direction is still noise.

    The components are in the order of their draws; a draw has no eigenvalue.

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
                f"calibration=paper prints one draw of all directions, and sampler=peeling makes {self.n_components}; "
                "use n_components=1, or use calibration=tight."
            )
        if self.calibration == "paper" and problem.center != "none":
            raise Refused(
                f"center={problem.center} releases a mean first, for which calibration=paper prints no noise; "
                "use calibration=tight, or center=none."
            )
        first = mean_first(problem, target)
        noise = self._noise(first.rest, problem)
        bits = BITS if problem.center == "none" else BITS - 1
        query = _query(problem, None, bits=bits)  # checks the problem's public facts
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
        """Draw the directions, around a mean if centred; removing the rounding of the grid is post-processing."""
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
