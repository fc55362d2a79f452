r"""Forecast of the components and the noise of a planned tensor release, from public facts alone.

A tensor release has two parts: the second moment of the records, whose k leading eigenvectors U are computed, and the
core, which is the third moment tensor T along these directions, ``T(U, U, U)``. Suppose that n records belong to k
components of equal weight, each with a mean of length ``|mu|``. Then each component has the eigenvalue ``n |mu|^2 / k``
in the second moment and the value ``n |mu|^3 / k`` in the core. A component can be found if two conditions hold:

- The eigenvalue exceeds ``sqrt(2 D) std``. This is the spectral norm of the second moment's noise for D features, where
  ``std`` is the noise's standard deviation on the diagonal. Then the component has with the span of U the squared
  overlap ``o^2 = 1 - (sqrt(2 D) std / 2)^2 / eigenvalue^2``, which is at least 3/4.
- The value along U, ``n |mu|^3 o^3 / k``, exceeds ``1.657 sqrt(k) std``. This is the largest value of the core's noise
  along any direction, where ``std`` is the noise's standard deviation on the core's diagonal. The decomposition later
  whitens the core. Whitening divides the value and the noise by the same power of the eigenvalues. So the comparison
  is also valid for the whitened core, in which a component has the value ``(n / k)^(-1/2)``.

>>> def core_std(n_components, overlap):
...     return 100.0
>>> found = room_for(50, n_records=1e5, n_features=50, length=lambda k: 1.0, moment_std=100.0, core_std=core_std)
>>> found.room, round(found.eigenvalue), round(found.edge)
(49, 2000, 1000)

References
----------
Benaych-Georges and Nadakuditi (2011), for the overlap; Crisanti and Sommers (1992), for the largest value of a
spherical model of three spins.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpca_tasks.accounting import events
from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorReleases

LARGEST_CORE = 1.657
"""The largest value along any direction of isotropic noise on a symmetric k x k x k tensor, divided by ``sqrt(k)`` and
by the std of the diagonal entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A forecast for the requested components, and the largest number of components that can be found.

    Parameters
    ----------
    room : int
        The largest number of components of equal weight that can all be found; 0 if not even one can be found.
    eigenvalue, edge : float
        The eigenvalue of a requested component in the second moment, and the threshold that the eigenvalue must exceed.
    value, core_edge : float
        The value of a requested component in the core ``T(U, U, U)``, and the threshold that the value must exceed.
    """

    room: int
    eigenvalue: float
    edge: float
    value: float
    core_edge: float


def room_for(
    n_components: int,
    *,
    n_records: float,
    n_features: int,
    length: Callable[[int], float],
    moment_std: float,
    core_std: Callable[[int, float], float],
) -> Room:
    """Compare components of equal weight with the noise of a tensor release, in the second moment and in the core.

    Parameters
    ----------
    n_components : int
        The requested number of components.
    n_records, n_features : float and int
        The declared number of records, and the number of features.
    length : callable
        Returns the assumed length of each component's mean, as a function of the number of components.
    moment_std : float
        The std of the noise on the diagonal of the second moment.
    core_std : callable
        Returns the std of the noise on the diagonal of the core, as a function of the number of components and of
        their overlap with the released directions (`overlap_of`).
    """

    def compared(count: int) -> Room:
        each = n_records / count
        edge = math.sqrt(2.0 * n_features) * moment_std
        eigenvalue = each * length(count) ** 2
        overlap = overlap_of(eigenvalue, edge)
        return Room(
            room=count,
            eigenvalue=eigenvalue,
            edge=edge,
            value=each * (length(count) * overlap) ** 3,
            core_edge=LARGEST_CORE * math.sqrt(count) * core_std(count, overlap),
        )

    requested = compared(n_components)
    held = (found for found in map(compared, range(n_features - 1, 0, -1)) if _stands(found))
    room = max((found.room for found in held), default=0)
    return Room(**{name: getattr(requested, name) for name in ("eigenvalue", "edge", "value", "core_edge")}, room=room)


def overlap_of(eigenvalue: float, edge: float) -> float:
    """Return the cosine between a component and the span of the released directions; 0 if noise hides the component.

    The component has ``eigenvalue`` in the second moment, whose noise has the spectral norm ``edge``.
    """
    return math.sqrt(max(0.0, 1.0 - (edge / 2.0 / eigenvalue) ** 2)) if eigenvalue > 0 else 0.0


def longest_row(n_components: int, *, n_features: int, length: float, overlap: float) -> float:
    """Estimate the largest norm of a row of the released directions U, if topics divide the words evenly.

    Each row of U belongs to a word. Exact directions give each row the norm ``length``, in its topic's direction. Noise
    mixes the exact row with a row of a random orthonormal matrix, according to the ``overlap`` of U with the topics.
    """
    noise = (math.sqrt(n_components) + math.sqrt(2.0 * math.log(n_features))) ** 2 / n_features
    return math.sqrt(min(1.0, (length * overlap) ** 2 + (1.0 - overlap**2) * noise))


def _stands(found: Room) -> bool:
    return found.eigenvalue > found.edge and found.value > found.core_edge


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNoise:
    """Stds of a tensor release's noise, on the diagonal of the second moment and on the diagonal of the core.

    ``core_std`` is a function of the number of components and of their overlap with the released directions.
    """

    moment_std: float
    core_std: Callable[[int, float], float]


def lengths_of(releases: TensorReleases, *, declared: float | None) -> Callable[[int], float]:
    """Return a function of the number k of components, which gives the length of each component's mean.

    The length is ``declared``, if given. Otherwise topics are assumed to divide the words evenly, and the centres of a
    mixture are assumed to be as long as the clip norm permits.
    """
    problem = releases.problem
    if declared is not None:
        return lambda _: declared
    if problem.clip_norm is None:
        return lambda count: math.sqrt(count / problem.n_features)
    around = problem.n_features * (problem.noise_variance or 0.0)
    longest = math.sqrt(max((problem.clip_norm / releases.point_factor) ** 2 - around, 0.0))
    return lambda _: longest


def noise_of(plan: Plan, releases: TensorReleases, *, length: Callable[[int], float]) -> ExpectedNoise:
    """Return the stds of the noise that a plan adds to the second moment and to the core of a tensor release.

    Parameters
    ----------
    plan : Plan
        A plan of two steps: the second moment, and the core.
    releases : TensorReleases
        The two planned steps: the queries for the second moment and the core, and their public facts.
    length : callable
        The result of `lengths_of`. For topics, the rows of the exact directions are assumed to have this length.
    """
    moment, core = (_multiplier(step) for step in events.steps(plan.event))
    order = releases.problem.n_features
    over = moment(order * (order + 1) // 2)
    if plan.printed:
        over *= math.sqrt(2.0)  # the published noise has the same std on and off the diagonal of the moment

    def core_std(count: int, overlap: float) -> float:
        drawn = core(count * (count + 1) * (count + 2) // 6)
        return drawn * _core_sensitivity(releases, count, length=length(count), overlap=overlap)

    return ExpectedNoise(moment_std=releases.moment_std(noise_multiplier=over), core_std=core_std)


def _multiplier(step: events.Event) -> Callable[[int], float]:
    """Return a function of the number of coordinates: the noise's std in each coordinate, divided by the sensitivity.

    ``step`` is the event of a Gaussian step or of a pure step.
    """
    if step["name"] == "gaussian":
        return lambda _: float(step["noise_multiplier"])
    return lambda coordinates: math.sqrt(coordinates + 1.0) / float(step["epsilon"])


def _core_sensitivity(releases: TensorReleases, count: int, *, length: float, overlap: float) -> float:
    """Estimate the sensitivity of the core of a tensor release, in the units of the core's entries."""
    problem = releases.problem
    is_replaced = problem.relation == "replace_one"
    if problem.clip_norm is None:
        alone = longest_row(count, n_features=problem.n_features, length=length, overlap=overlap) ** 3
        return min(math.sqrt(2.0), 2.0 * alone) if is_replaced else alone
    variance = problem.noise_variance or 0.0
    usual = releases.score_factor * math.sqrt(length**2 + count * variance)
    square = min(problem.clip_norm, usual) ** 2
    largest = square**3 - 6.0 * variance * square**2 + (3 * count + 6) * variance**2 * square
    return math.sqrt(max(largest, 0.0)) * (2.0 if is_replaced else 1.0)
