"""The exponential mechanism of PCA: directions drawn by the variance they capture, without noise on a matrix.

The choice without a delta where eigenvalues are close, below ``(d + 1) / epsilon`` apart, and few components are asked
for; elsewhere the symmetrised Wishart matrix captures more. No eigenvalue is released, so nothing can be refitted.
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
"""The records' grid: the finest one, as no noise limits it; around a mean it has half of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Draw k directions V with density growing like ``exp(tr(V^T X^T X V))`` over a scale.

    Parameters
    ----------
    n_components : int
        k, below the number of features.
    sampler : {"peeling", "gibbs"}
        ``peeling``: one direction after the other, each an exact draw among those orthogonal to the ones before it;
        ``gibbs``: all at once by a Markov chain, at k times the slope; without a certified guarantee.
    allow_uncertified : bool
        Insist on ``gibbs``.
    calibration : {"tight", "paper"}
        ``tight``: the largest slope that keeps the guarantee; ``paper``: the printed slope of ``epsilon / 2``, for one
        draw of all directions, which costs and is charged half of epsilon unless records are replaced.

    Notes
    -----
    *Score.* ``tr(V^T S V)`` with ``S = X^T X`` of records of norm at most 1. One record more moves it by
    ``||X_u V||_F^2``, within [0, 1] for every orthonormal V at once; a replaced one by the difference of two such,
    within [-1, 1]. So a draw with density proportional to ``exp(r tr(V^T S V))`` (``r / 2`` for replace_one) has a
    privacy loss within an interval of length r that holds 0, on all orthonormal V, or on those of a public subspace.

    *Cost.* Without a delta r is epsilon, divided among the k draws of peeling. With one it is the largest r that
    `dpca_tasks.accounting.calibration` proves: exact for one draw, and for several the better of a share each and of
    zCDP. The requested guarantee is charged.

    *Gibbs.* Its chain tends to one draw from the whole distribution, which costs epsilon once. A chain of finite length
    has no pure guarantee, and none is known of 40 sweeps: refused unless insisted on, and marked in plan and artifact.

    *Centring.* The mean is released first (`dpca_tasks.mechanisms.noisy_products`), with Laplace noise where there
    is no delta; then directions are scored by records from which it was taken off, clipped again, so that the slope
    stays what the rest of the target allows (that of replace_one for zero_out: `dpca_tasks.queries.recentred_moment`).

    *Noise.* A draw of scale s with one eigenvalue v above d equal others captures ``1 - d s / 2v`` of it, and nothing
    below ``d s / 2``: the entropy of directions outweighs the score. That is the level of its noise; at twice as much
    half of a direction is noise still.

    The components are in the order of their draws; a draw has no eigenvalue.

    References
    ----------
    Chaudhuri, Sarwate and Sinha (2013), A near-optimal algorithm for differentially-private principal components: PPCA,
    whose published ``n epsilon / 2`` is that of replace_one. Kapralov and Talwar (2013): peeling.
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
                "ask for n_components=1, or use calibration=tight."
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
        """Draw the directions, around a mean if asked; removing the rounding of the grid is post-processing."""
        first = mean_first(plan.problem, plan.target)
        shift = release_shift(curator, plan.problem, first.noise)
        query = curator.with_stored_inputs(_query(plan.problem, shift, bits=plan.bits))
        rows = curator.sample(query, self._noise(first.rest, plan.problem))
        return Subspace(components=signed(orthonormal(rows.T).T), mean=mean_of(query))

    def _noise(self, target: PrivacyTarget, problem: Problem) -> DirectionMechanism:
        kind = Peeling if self.sampler == "peeling" else GibbsChain
        if self.calibration == "paper":
            asked = Settings(epsilon=target.epsilon, relation=problem.relation)
            real = FORMULAS[self.name].event(asked)["epsilon"]
            return kind(n_components=self.n_components, epsilon=real, delta=0.0)
        return kind(n_components=self.n_components, epsilon=target.epsilon, delta=target.delta)


UNCERTIFIED = (
    "sampler=gibbs is not certified: epsilon and delta are those of the limit of its chain, not proved for it."
)


def _query(problem: Problem, shift: NDArray[np.int64] | None, *, bits: int) -> SecondMoment | ShiftedMoment:
    return moment_around(
        shift, n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=bits
    )
