"""Reproduce that the advisor is right: warnings before noise, the first choice, and the variance it expects.

Five mechanisms run at three epsilons on real second moments and on one of flat spectrum. The advisor sees the number of
rows, of features, and the leading parts of all variance, rounded: what a user would declare. Runs draw their noise from
seeds; samples of `dp_spca` are taken as whole passes of the same noise, and beyond `LARGE` features the exponential
mechanism draws its directions without taking out earlier ones, which saves an eigenproblem a direction.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.advisor import Advice, advise
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.noisy_moment import NoisyMoment
from dpca_tasks.mechanisms.parts.refinement import refine
from dpca_tasks.metrics import captured_variance
from dpca_tasks.noise.bingham import (
    STEPS_PER_UNIT,
    Peeling,
    envelope_width,
    log_acceptance,
    proposals_at_once,
)
from dpca_tasks.noise.keystream import subkey
from flows.orchestration import form_fields
from flows.reproductions import second_moments
from flows.reproductions.checks import Check, Report, at_least, at_most, near, report, reported_by_flow
from flows.reproductions.second_moments import a9a, mnist, reuters
from flows.reproductions.wide_text import check_wide_text

type Matrix = NDArray[np.float64]

MECHANISMS = ("analyze_gauss", "noisy_power", "dp_spca", "wishart", "exponential")
EPSILONS = (0.1, 1.0, 4.0)
DELTA, COMPONENTS, DECLARED, DIGITS = 1e-6, 10, 40, 3
LARGE = 1_000

_SEED, _SMALL_RUNS, _SMALL = 11, 3, 300
_FLAT_ROWS, _FLAT_FEATURES = 20_000, 200
_NOISE, _CLOSE, _PREDICTED, _FALSE = 1.2, 0.95, 0.1, 0.1
_RIGHT = 11 / 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mechanism at an epsilon on some data: what was expected, and what it captured over the best k."""

    data: str
    epsilon: float
    advice: Advice
    captured: float
    random: float

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.data} epsilon={self.epsilon:g} {self.advice.plan.mechanism}"

    @property
    def is_noise(self) -> bool:
        """Whether the run was no better than random directions."""
        return self.captured <= _NOISE * self.random

    def facts(self) -> dict[str, Any]:
        """Return the row of the grid."""
        expected = self.advice.expected
        return {
            "data": self.data,
            "epsilon": self.epsilon,
            "mechanism": self.advice.plan.mechanism,
            "captured": round(self.captured, 4),
            "random": round(self.random, 4),
            "expected": None if expected.likely is None else round(expected.likely, 4),
            "from_to": [round(end, 4) for end in expected.captured],
            "expects_noise": self.advice.expects_noise,
            "is_noise": self.is_noise,
        }


def check_advice(*, data: str = "data", wide: bool = False, epsilons: Sequence[float] = EPSILONS) -> Report:
    """Compare what the advisor says with runs.

    Parameters
    ----------
    data : str
        The folder that ``make data`` filled; what is not there is left out.
    wide : bool
        Whether to check sparse text of 20,958 columns too, which takes minutes.
    epsilons : sequence of float
    """
    loaded, left_out = _data(Path(data))
    if not wide:
        left_out.append("text of 20,958 columns: takes minutes; ask for it with --wide")
    grid: list[dict[str, Any]] = []
    checks = itertools.chain(_checks(loaded, grid, epsilons), check_wide_text() if wide else ())
    return report(checks, left_out=left_out, grid=grid)


@flow(name="reproduce-advice", persist_result=False, log_prints=False)
def reproduce_advice(data: form_fields.DataFolder = "data", *, wide: form_fields.Wide = False) -> Report | State[Any]:
    """Compare what the advisor says with runs on public data; nothing is charged."""
    return reported_by_flow(check_advice, data=data, wide=wide)


def _checks(
    loaded: dict[str, Callable[[], Matrix]], grid: list[dict[str, Any]], epsilons: Sequence[float]
) -> Iterator[Check]:
    cells: list[Cell] = []
    right: list[bool] = []
    for name, load in loaded.items():
        spectrum = _Spectrum.of(load())
        for epsilon in epsilons:
            made = list(_cells(name, spectrum, epsilon))
            cells += made
            grid += [cell.facts() for cell in made]
            right.append(made[0].captured >= _CLOSE * max(cell.captured for cell in made))
            for cell in made:
                likely = cell.advice.expected.likely
                if likely is not None:
                    yield near(f"{cell.name}: captured", likely, _PREDICTED, got=cell.captured)
    unwarned = [cell.name for cell in cells if cell.is_noise and not cell.advice.expects_noise]
    false = [cell.name for cell in cells if cell.advice.expects_noise and not cell.is_noise]
    yield at_most(_listed("runs of noise without a warning", unwarned), 0.0, got=len(unwarned))
    yield at_most(_listed("false warnings, part of all runs", false), _FALSE, got=len(false) / len(cells))
    yield at_least("first choice within 5 % of the best, part of all settings", _RIGHT, got=float(np.mean(right)))


def _data(folder: Path) -> tuple[dict[str, Callable[[], Matrix]], list[str]]:
    """Return how to load what is there, and what is left out."""
    found: dict[str, Callable[[], Matrix]] = {"a9a": a9a, "flat": flat_rows}
    left_out = []
    if (folder / second_moments.MNIST).is_file():
        found["mnist"] = partial(mnist, folder)
    else:
        left_out.append(f"mnist: {folder / second_moments.MNIST} is not there; make data fetches it")
    if (folder / second_moments.REUTERS).is_dir() and find_spec("sklearn") is not None:
        found["reuters"] = partial(reuters, folder)
    else:
        left_out.append(f"reuters: needs {folder / second_moments.REUTERS}, which make data fetches, and scikit-learn")
    return found, left_out


def flat_rows() -> Matrix:
    """Return the second moment of rows in uniformly random directions."""
    rows = np.random.default_rng(_SEED).standard_normal((_FLAT_ROWS, _FLAT_FEATURES))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows.T @ rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Spectrum:
    """A second moment with its eigenvalues, descending."""

    second_moment: Matrix
    values: Matrix

    @classmethod
    def of(cls, second_moment: Matrix) -> "_Spectrum":
        return cls(second_moment=second_moment, values=np.linalg.eigvalsh(second_moment)[::-1])

    @property
    def declared(self) -> str:
        """The leading parts of all variance, as a user would write them."""
        shares = self.values[:DECLARED] / self.values.sum()
        return ",".join(f"{share:.{DIGITS}g}" for share in shares)

    def captured(self, rows: Matrix) -> float:
        """Return the variance that rows capture, over the most that as many can."""
        return captured_variance(self.second_moment, rows, values=self.values)


def _cells(name: str, spectrum: _Spectrum, epsilon: float) -> Iterator[Cell]:
    """Advise on a setting, and run each mechanism; the first choice comes first."""
    order = len(spectrum.values)
    problem = Problem(
        n_features=order,
        clip_norm=1.0,
        records_at_most=round(float(spectrum.values.sum())),
        spectrum=spectrum.declared,
    )
    target = PrivacyTarget(epsilon=epsilon, delta=DELTA)
    runs = _SMALL_RUNS if order <= _SMALL else 1
    random = COMPONENTS / order * float(spectrum.values.sum() / spectrum.values[:COMPONENTS].sum())
    for advice in advise(problem, target, n_components=COMPONENTS, only=MECHANISMS):
        release = _RUNS[advice.plan.mechanism]
        captured = [
            spectrum.captured(release(spectrum.second_moment, advice, np.random.default_rng((_SEED, draw))))
            for draw in range(runs)
        ]
        yield Cell(data=name, epsilon=epsilon, advice=advice, captured=float(np.mean(captured)), random=random)


def _analyze_gauss(second_moment: Matrix, advice: Advice, rng: np.random.Generator) -> Matrix:
    std = advice.plan.moment_std
    assert std is not None
    square = rng.standard_normal(second_moment.shape) * (std / math.sqrt(2.0))
    moment = NoisyMoment(matrix=(second_moment + second_moment.T) / 2.0 + (square + square.T), noise_std=std)
    return refine(moment, n_components=COMPONENTS).components


def _wishart(second_moment: Matrix, advice: Advice, rng: np.random.Generator) -> Matrix:
    order, scale = len(second_moment), 1.0 / (2.0 * advice.plan.target.epsilon)
    one, other = (rng.standard_normal((order + 1, order)) for _ in range(2))
    return _leading(second_moment + scale * (one.T @ one - other.T @ other))


def _noisy_power(second_moment: Matrix, advice: Advice, rng: np.random.Generator) -> Matrix:
    mechanism, bases = advice.mechanism, []
    shape = (len(second_moment), COMPONENTS + mechanism.oversampling)
    directions = np.linalg.qr(rng.standard_normal(shape))[0]
    for _ in range(mechanism.iterations):
        noise = advice.plan.noise_multiplier * rng.standard_normal(shape)
        directions = np.linalg.qr(second_moment @ directions + noise)[0]
        bases.append(directions)
    return _of_projectors(bases[mechanism.iterations // 2 :])


def _dp_spca(second_moment: Matrix, advice: Advice, rng: np.random.Generator) -> Matrix:
    mechanism, bases = advice.mechanism, []
    size = mechanism.integrated_time / (mechanism.steps * advice.plan.problem.records_at_most)
    directions = np.linalg.qr(rng.standard_normal((len(second_moment), COMPONENTS)))[0]
    for _ in range(mechanism.steps):
        bases.append(directions)
        noise = advice.plan.noise_multiplier / mechanism.rate * rng.standard_normal(directions.shape)
        directions = np.linalg.qr(directions + size * (second_moment @ directions + noise))[0]
    return _of_projectors(bases[mechanism.steps // 2 :])


def _exponential(second_moment: Matrix, advice: Advice, rng: np.random.Generator) -> Matrix:
    order, epsilon = len(second_moment), advice.plan.target.epsilon
    peeling = Peeling(n_components=COMPONENTS, epsilon=epsilon, delta=DELTA)
    scale = peeling.noise_multiplier
    values, vectors = np.linalg.eigh(second_moment)
    if order <= LARGE:
        key = subkey(rng.bytes(32), label="noise", info=b"advice")
        found = peeling.draw(key, np.diag(values), scale=scale) / STEPS_PER_UNIT
    else:
        found = np.array([_direction(values, scale, rng) for _ in range(COMPONENTS)])
    return np.asarray((vectors @ np.linalg.qr(found.T)[0]).T)


def _direction(values: Matrix, scale: float, rng: np.random.Generator) -> Matrix:
    """Draw a direction by the exponential mechanism, in the eigenbasis."""
    excess = (values.max() - values) / scale
    width = envelope_width(excess)
    while True:
        points = rng.standard_normal((proposals_at_once(len(values)), len(values)))
        points /= np.sqrt(1.0 + 2.0 * excess / width)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        chances = log_acceptance(points**2 @ excess, width=width, order=len(values))
        accepted = np.flatnonzero(np.log(rng.random(len(points))) < chances)
        if accepted.size:
            return np.asarray(points[accepted[0]])


def _leading(matrix: Matrix) -> Matrix:
    return np.asarray(np.linalg.eigh(matrix)[1][:, -COMPONENTS:].T)


def _of_projectors(bases: list[Matrix]) -> Matrix:
    return np.asarray(np.linalg.svd(np.hstack(bases), full_matrices=False)[0][:, :COMPONENTS].T)


def _listed(what: str, names: list[str]) -> str:
    return f"{what} ({', '.join(names)})" if names else what


_RUNS: dict[str, Callable[[Matrix, Advice, np.random.Generator], Matrix]] = {
    "analyze_gauss": _analyze_gauss,
    "noisy_power": _noisy_power,
    "dp_spca": _dp_spca,
    "wishart": _wishart,
    "exponential": _exponential,
}
