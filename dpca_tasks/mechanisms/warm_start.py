"""Plan and release of a second moment in one round, with a public map of records that an earlier release provides.

An earlier release of the same columns gives a public estimate of the second moment. The round subtracts a mean from the
records, multiplies them by a map (a matrix), and clips the result. Map, mean and clip norm are computed from this
estimate, as for the last round of `dpca_tasks.mechanisms.released_rounds`. So the whole budget goes into one accurate
round, and the rows are read once.

*Privacy.* The earlier release is public, and so are the map, the mean and the clip norm. The round is one Gaussian
answer of `dpca_tasks.queries.mapped_moment`, whose sensitivity is proved for any public map. Its event equals the
event of an ordinary release of the second moment with the same guarantee. Privacy holds for any rows. Accuracy requires
similar rows in both releases, because dissimilar rows are clipped more.

>>> from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
>>> problem, target = Problem(n_features=123, clip_norm=1.0), PrivacyTarget(epsilon=1.0, delta=1e-6)
>>> noise = Symmetric(noise_multiplier=gaussian_noise_multiplier(epsilon=1.0, delta=1e-6))
>>> plan = plan_warm("analyze_gauss", problem, target, noise, n_components=10)
>>> plan.event["name"], round(plan.epsilon_at_most, 9)
('gaussian', 1.0)
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace, grid_warnings
from dpca_tasks.mechanisms.noise_level import least_visible
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.mechanisms.released_rounds import (
    as_answer,
    check_size,
    mapped,
    noise_std,
    noises_of,
    round_facts,
    unmapped,
)
from dpca_tasks.noise.distributions import Symmetric, check_tail
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.mapped_moment import MappedMoment
from dpca_tasks.queries.recentred_moment import SHIFT_STEP
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.refined_release import moment_of
from dpca_tasks.refinement.refined_rounds import Rounds
from dpca_tasks.refinement.rounds import Answer, Estimate, Round, begun, proposed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """The public facts of an earlier release that a warm start uses, in data units.

    Parameters
    ----------
    matrix : float64 array of shape (d, d), data units squared
        The estimated second moment, around ``mean`` if given.
    noise_std : float, data units squared
        The standard deviation of off-diagonal noise entries in ``T matrix T^T``, where T is ``map``.
    n_records : float
        The released number of records, or a public bound on it; never the exact number.
    map : PublicMap
        The map T for which the noise of ``T matrix T^T`` is approximately isotropic.
    mean : float64 array of shape (d,), data units, optional
    """

    matrix: NDArray[np.float64]
    noise_std: float
    n_records: float
    map: PublicMap
    mean: NDArray[np.float64] | None = None

    @property
    def mean_square(self) -> float:
        """The mean of the records' squared norms around the origin, in data units squared; positive."""
        energy = float(np.trace(self.matrix)) / self.n_records
        if self.mean is not None:
            energy += float(self.mean @ self.mean)
        return max(energy, np.finfo(float).tiny)

    def estimate(self, *, clip_norm: float, centred: bool) -> Estimate:
        """Convert the start to an `Estimate` in units of ``clip_norm``.

        The estimate is around the mean if ``centred`` is true, and else around the origin.

        Raises
        ------
        Refused
            If ``centred`` is true, but the earlier release has no mean.
        """
        matrix, mean = self.matrix, self.mean
        if centred and mean is None:
            raise Refused(
                "center=private needs the mean of the earlier release, but the release named by like has no mean; name "
                "a release with center=private, or leave out like."
            )
        if not centred and mean is not None:
            matrix, mean = matrix + self.n_records * np.outer(mean, mean), None
        if mean is not None:
            mean = mean / clip_norm
            mean = mean / max(1.0, float(np.linalg.norm(mean)))
        unit = clip_norm**2
        std = self.noise_std / unit
        return Estimate(
            matrix=matrix / unit,
            noise_std=std,
            rounds=(Round(map=self.map, matrix=matrix / unit, noise_std=std),),
            n_records=self.n_records,
            mean=mean,
        )


def gives_start(released: Subspace) -> bool:
    """Return whether a warm start can use a release: whether it has a second moment with isotropic normal noise."""
    is_single = released.released is not None and released.noise is not None
    return released.rounds is not None or (is_single and (released.noise or {})["law"] == "isometric")


def start_of(released: Subspace, *, clip_norm: float, records_at_most: int | None) -> Start | None:
    """Return the facts of an earlier release that a warm start uses; None if `gives_start` is false.

    Parameters
    ----------
    released : Subspace
        A result with ``rounds``, or with ``released`` and ``noise`` of one answer with isotropic normal noise.
    clip_norm : float, data units
        The clip norm of the earlier release.
    records_at_most : int, optional
        The declared bound on the number of records. It is used if the number itself was not released. Without this
        bound, the number is estimated as if the norm of each record were the clip norm.
    """
    if released.rounds is not None:
        rounds: Rounds = released.rounds
        found = rounds.estimate
        return Start(
            matrix=found.matrix * rounds.unit,
            noise_std=found.noise_std * rounds.unit,
            n_records=float((released.outcome or {})["rounds"]["noised_records"]),
            map=found.map,
            mean=released.mean,
        )
    if not gives_start(released):
        return None
    moment = moment_of(released)
    matrix = moment.centred()
    counted = float(records_at_most or np.trace(matrix) / clip_norm**2)
    if moment.constant is not None:
        counted = float(moment.matrix[-1, -1]) / moment.constant**2
    return Start(
        matrix=matrix,
        noise_std=moment.noise_std,
        n_records=max(counted, 1.0),
        map=PublicMap.identity(len(matrix)),
        mean=released.mean,
    )


def plan_warm(mechanism: str, problem: Problem, target: PrivacyTarget, noise: Symmetric, *, n_components: int) -> Plan:
    """Plan a release of the second moment with given noise and a map from an earlier release.

    The plan does not depend on the earlier release.
    """
    check_size(problem, setting="like")
    query = _query(problem, noise)
    check_tail(noise, draws=query.layout.size, delta=target.delta)
    std = noise_std(query, noise)
    level = std * least_visible(problem.n_features)
    return Plan(
        mechanism=mechanism,
        problem=problem,
        target=target,
        noise_multiplier=noise.noise_multiplier,
        bits=query.bits,
        event=noise.event,
        notes=(
            *forecast(problem, n_components=n_components, level=level).warnings(),
            *grid_warnings(problem, bits=query.bits),
        ),
        moment_noise="isometric",
        moment_std=std,
        level=level,
    )


def release_warm(
    curator: Curator, plan: Plan, *, start: Callable[[], Start], n_components: int, served: int
) -> Subspace:
    """Release the planned round, and return the leading eigenpairs of the second moment.

    A resumed release uses the stored map, and does not call ``start``. The map is designed for ``served`` components.
    """
    (noise,) = noises_of(plan.event)
    query = _query(plan.problem, noise)
    stored = curator.with_stored_inputs(query)
    query = started(query, start(), noise, served=served) if stored is query else stored
    return warm_subspace(as_answer(curator.release(query, noise), query, noise), query, plan, n_components=n_components)


def started(query: MappedMoment, start: Start, noise: Symmetric, *, served: int) -> MappedMoment:
    """Return the query of the round, with the map, mean and clip norm that follow from an earlier release.

    The map is designed for ``served`` components.
    """
    known = start.estimate(clip_norm=query.clip_norm, centred=query.shift is not None)
    return mapped(query, known, proposed(known, n_components=served, noise_std=noise_std(query, noise)))


def warm_subspace(answer: Answer, query: MappedMoment, plan: Plan, *, n_components: int) -> Subspace:
    """Return the leading eigenpairs of the second moment that the answer of the round estimates.

    Without centring, the number of records is not released. It is estimated from the trace of the moment, as if the
    records of both releases had the same mean squared norm.
    """
    problem = plan.problem
    assert plan.start is not None
    estimate = begun(answer, centred=query.shift is not None)
    mean = None
    if query.shift is not None:
        assert estimate.mean is not None
        mean = (query.shift * SHIFT_STEP + estimate.mean) * problem.clip_norm
    unit = problem.clip_norm**2
    found = decompose(Moment(matrix=estimate.matrix * unit, mean=mean), n_components=n_components)
    if mean is None:
        count = max(float(np.trace(estimate.matrix)) * unit / plan.start["mean_square"], 1.0)
        estimate = dataclasses.replace(estimate, n_records=count)
    facts = {**round_facts(estimate, [answer], shares=[1.0]), "like": plan.start["artifact"]}
    rounds = Rounds(answers=(answer,), unit=unit, centred=mean is not None)
    return dataclasses.replace(found, outcome={"rounds": facts}, rounds=rounds)


def _query(problem: Problem, noise: Symmetric) -> MappedMoment:
    return unmapped(problem, noise, first=False)
