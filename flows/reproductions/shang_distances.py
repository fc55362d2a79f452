"""Figure 1 of Shang et al.: distance and captured variance against epsilon, on all records of a data set."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import DpcaError
from flows.reproductions.checks import Check, at_least, at_most, near
from flows.reproductions.labelled_rows import LabelledRows
from flows.reproductions.printed_algorithms import ascend
from flows.reproductions.shang_losses import PRINTED_DELTA, RANDOM, SMALL_DELTA
from flows.reproductions.subspace_arms import (
    ANALYZE_GAUSS,
    ARMS,
    BOUNDS,
    COMPARED,
    DP_SPCA,
    DP_VRPCA,
    PRINTED_SPCA,
    PRINTED_VRPCA,
    SMALL,
    Arm,
    Rows,
)
from flows.reproductions.svm_protocol import Reference, random_subspace

EPSILONS = (0.1, 0.3, 1.0, 4.0)
COLUMNS = (
    *("data", "k", "arm", "claimed epsilon", "true epsilon", "bound", "delta"),
    *("distance", "captured", "beyond", "refused"),
)

_SEED, _FIRST_ORDER_DRAWS = 1, 20
_NEAR_START, _FIRST_ORDER, _GROWS = 0.25, 0.3, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An arm at one epsilon and delta: means of what `Reference.measured` returns, or why it refused."""

    arm: str
    epsilon: float | None
    delta: float | None
    measured: Mapping[str, float]
    true_epsilon: float | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The points of one data set."""

    data: LabelledRows
    points: tuple[Point, ...]

    def distances(self, arm: str, delta: float | None) -> list[float]:
        """Return an arm's distances, epsilon ascending."""
        return [p.measured["distance"] for p in self.points if (p.arm, p.delta) == (arm, delta) and p.measured]

    def captured(self, arm: str) -> list[float]:
        """Return what an arm captured at the printed delta, epsilon ascending."""
        return [p.measured["captured"] for p in self.points if (p.arm, p.delta) == (arm, PRINTED_DELTA) and p.measured]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of the table."""
        for point in self.points:
            row = {"data": self.data.name, "k": self.data.n_components, "arm": point.arm, **point.measured}
            if point.epsilon is not None:
                row |= {"claimed epsilon": point.epsilon, "true epsilon": point.true_epsilon, "delta": point.delta}
                row["bound"] = BOUNDS[point.arm]
            yield row if point.refused is None else row | {"refused": point.refused}


def trace(data: LabelledRows, *, draws: int, epsilons: Sequence[float] = EPSILONS) -> Curves:
    """Run the arms over epsilon, on all records.

    Parameters
    ----------
    data : LabelledRows
    draws : int
        Of each arm on a small data set; arms that are dear and larger data sets have one.
    epsilons : sequence of float
        Ascending.
    """
    rows, k = Rows.of(data.rows), data.n_components
    reference = Reference.of(data.rows, n_components=k)
    guesses = [random_subspace(data.n_features, k, seed=(_SEED, draw)) for draw in range(10)]
    points = [Point(arm=RANDOM, epsilon=None, delta=None, measured=_means(reference, guesses))]
    points += [
        _point(arm, rows, reference, epsilon, delta, draws=1 if arm.dear or data.n_features > SMALL else draws)
        for arm, delta in _planned(data)
        for epsilon in epsilons
    ]
    return Curves(data=data, points=tuple(points))


def check_distances(found: Curves) -> Iterator[Check]:
    """Check the figure's order, which valid noise reverses, and that the printed step size stays where it starts."""
    name = found.data.name
    tight = found.distances(ANALYZE_GAUSS.name, PRINTED_DELTA)
    for arm in (DP_SPCA, DP_VRPCA):
        beside = found.distances(arm.name, PRINTED_DELTA)
        if beside:
            least = min(theirs / ours for theirs, ours in zip(beside, tight, strict=True))
            yield at_least(
                f"{name}: distance of {arm.name} over that of {ANALYZE_GAUSS.name}, least over epsilon", 1.0, got=least
            )
    grows = max(later / earlier for earlier, later in itertools.pairwise(tight))
    yield at_most(
        f"{name}: distance of {ANALYZE_GAUSS.name} over that at the epsilon before", 1.0, got=grows, tolerance=_GROWS
    )
    for arm in (PRINTED_SPCA, PRINTED_VRPCA):
        captured = found.captured(arm.name)
        if captured:
            yield at_most(f"{name}: captured by {arm.name}, most over epsilon", _NEAR_START, got=max(captured))


def check_without_noise(data: LabelledRows) -> Check:
    """Check that DP-SPCA's printed step size ``1 / 2n`` with ``T = n`` ends near its random start without any noise."""
    k = data.n_components
    reference = Reference.of(data.rows, n_components=k)
    found = ascend(data.rows, k, noise_std=0.0, rng=np.random.default_rng(_SEED))
    captured = reference.measured(found)["captured"]
    return at_most(f"{data.name}: captured by DP-SPCA's printed steps WITHOUT noise", _NEAR_START, got=captured)


def check_first_order(data: LabelledRows, *, epsilon: float = 0.1) -> Check:
    """Check Analyze Gauss at k = 1 against ``sigma^2 / 2 sum_j (lambda_1 - lambda_j)^-2``."""
    rows, dense = Rows.of(data.rows), data.rows.toarray()
    values = np.linalg.eigvalsh(dense.T @ dense)[::-1]
    sigma = gaussian_noise_multiplier(epsilon=epsilon, delta=PRINTED_DELTA)
    expected = sigma**2 / 2 * float(((values[0] - values[1:]) ** -2.0).sum())
    reference = Reference.of(data.rows, n_components=1)
    found = [
        ANALYZE_GAUSS.run(rows, n_components=1, epsilon=epsilon, delta=PRINTED_DELTA, seed=(_SEED, draw))
        for draw in range(_FIRST_ORDER_DRAWS)
    ]
    got = float(np.mean([reference.measured(each)["distance"] for each in found]))
    text = f"{data.name}: distance of Analyze Gauss at k = 1, epsilon {epsilon:g}, over its first-order value"
    return near(text, 1.0, _FIRST_ORDER, got=got / expected)


def _planned(data: LabelledRows) -> list[tuple[Arm, float]]:
    """Return the arms and deltas: all where d is small, else those that the paper compares and that are not dear."""
    fitting = [arm for arm in ARMS if arm.fits(data.n_features)]
    main = [arm for arm in fitting if arm in (*COMPARED, DP_SPCA, DP_VRPCA)]
    if data.n_features > SMALL:
        fitting = [arm for arm in fitting if arm in main or arm.mechanism == "noisy_power"]
    return [(arm, PRINTED_DELTA) for arm in fitting] + [(arm, SMALL_DELTA) for arm in main]


def _point(arm: Arm, rows: Rows, reference: Reference, epsilon: float, delta: float, *, draws: int) -> Point:
    k = len(reference.best)
    try:
        truth = arm.true_epsilon(rows, n_components=k, epsilon=epsilon, delta=delta)
        found = [
            arm.run(rows, n_components=k, epsilon=epsilon, delta=delta, seed=(_SEED, draw)) for draw in range(draws)
        ]
    except DpcaError as error:
        return Point(arm=arm.name, epsilon=epsilon, delta=delta, measured={}, refused=str(error))
    return Point(arm=arm.name, epsilon=epsilon, delta=delta, measured=_means(reference, found), true_epsilon=truth)


def _means(reference: Reference, found: Sequence[Any]) -> dict[str, float]:
    seen = [reference.measured(each) for each in found]
    return {name: float(np.mean([each[name] for each in seen])) for name in seen[0]}
