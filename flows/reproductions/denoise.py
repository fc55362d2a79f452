"""Reproduce what refining gains at the same privacy, and that what a release says of itself is true.

Noise is drawn from seeds on second moments that are known exactly, so that every number can be made again; the data are
public, so nothing is charged.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.mechanisms.parts.assessment import Assessment, assess
from dpca_tasks.mechanisms.parts.fission import probes, public_noise, score_by_eigenvalues, score_by_fission
from dpca_tasks.mechanisms.parts.noise_edge import above_edge, edge_quantile
from dpca_tasks.mechanisms.parts.noisy_moment import NoisyMoment
from dpca_tasks.mechanisms.parts.refinement import CHOICE_SHARE, REQUESTS, refine
from dpca_tasks.mechanisms.parts.spectral_shrinkage import METHODS, Method, frames
from dpca_tasks.metrics import held_variance
from flows.orchestration import form_fields
from flows.reproductions import second_moments
from flows.reproductions.checks import Check, Report, at_least, at_most, near, report, reported_by_flow
from flows.reproductions.second_moments import SYNTHETIC, a9a, mnist, reuters, rotated, ruinous

type Matrix = NDArray[np.float64]

DELTA, RUNS, COVERED_RUNS, SCORED_RUNS = 1e-6, 5, 200, 100
"""Draws of a table's cell, of a coverage, and of a bias."""

_SEED, _OWN_STREAMS, _SCORED = 7, 1_000, 10
_SAME, _NEAR_BEST, _SEEN = 0.001, 0.003, 2
_COVERAGE, _UNREFINED, _ROUNDING = 0.93, 0.8, 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a method is expected to capture of a second moment: the mean of five draws, 1 for the best k directions.

    ``floor`` is what ``auto`` has to capture at least, where that is stated.
    """

    data: str
    n_components: int
    epsilon: float
    expected: dict[str, float]
    tolerance: dict[str, float]
    floor: float | None = None

    @property
    def name(self) -> str:
        """Data, k and epsilon."""
        return f"{self.data} k={self.n_components} epsilon={self.epsilon}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """A noisy second moment, and what is known about the one without noise."""

    second_moment: Matrix
    moment: NoisyMoment
    n_components: int

    def captured(self, rows: Matrix) -> float:
        """Return the variance that rows capture, over the most that as many can."""
        return self.held(rows) / self.most

    def held(self, rows: Matrix) -> float:
        """Return the variance that rows capture."""
        return held_variance(self.second_moment, rows)

    @property
    def above_noise(self) -> int:
        """The eigenvalues that stand above the noise."""
        values = np.linalg.eigvalsh(self.moment.matrix) / self.moment.noise_std
        return above_edge(values, edge=edge_quantile(len(values)))

    @property
    def most(self) -> float:
        """The variance that the best k directions capture."""
        return float(np.linalg.eigvalsh(self.second_moment)[-self.n_components :].sum())


def _cell(
    data: str,
    n_components: int,
    epsilon: float,
    *,
    auto: float,
    tolerance: float,
    unguarded: float | None = None,
    floor: float | None = None,
    **others: float,
) -> Cell:
    """Return a cell; ``unguarded`` is the tolerance of the methods that are not chosen, where it is another."""
    expected = {**others, "auto": auto}
    tolerances = dict.fromkeys(others, tolerance if unguarded is None else unguarded) | {"auto": tolerance}
    return Cell(
        data=data, n_components=n_components, epsilon=epsilon, expected=expected, tolerance=tolerances, floor=floor
    )


# Data, k, epsilon; the mean captured variance by method
SHIPPED = (
    _cell(
        "a9a", 10, 0.1, none=0.9589, eb=0.9799, spikes=0.9807, all=0.9808, auto=0.9807, tolerance=0.0037, floor=0.977
    ),
    _cell(
        "a9a", 30, 0.1, none=0.8940, eb=0.9529, spikes=0.9523, all=0.9476, auto=0.9523, tolerance=0.0053, floor=0.947
    ),
)
# One component of Reuters stands above the noise, and the next are at its edge: draws of eb differ much (a deviation of
# .03 in 15 draws, in which eb captures .628 and spikes .636), so a mean of five is off by .014, and so is the table's.
_REUTERS = {"none": 0.3820, "eb": 0.6449, "spikes": 0.6515, "all": 0.7051}
FETCHED = (
    _cell(
        "mnist", 10, 0.1, none=0.9211, eb=0.9565, spikes=0.9609, all=0.9620, auto=0.9620, tolerance=0.004, floor=0.958
    ),
    _cell("mnist", 50, 0.1, none=0.7621, eb=0.8318, spikes=0.8338, all=0.8312, auto=0.8332, tolerance=0.01),
    _cell("mnist", 50, 0.3, none=0.8880, eb=0.9247, spikes=0.9265, all=0.9287, auto=0.9287, tolerance=0.005),
    _cell("mnist 5,000", 10, 0.1, none=0.5409, eb=0.5741, spikes=0.5754, all=0.5783, auto=0.5765, tolerance=0.03),
    _cell("mnist 5,000", 10, 0.3, none=0.6409, eb=0.7006, spikes=0.7058, all=0.7185, auto=0.7169, tolerance=0.02),
    _cell("mnist 5,000", 10, 1.0, none=0.8629, eb=0.9164, spikes=0.9221, all=0.9289, auto=0.9289, tolerance=0.01),
    _cell("reuters", 10, 0.1, **_REUTERS, auto=0.7051, tolerance=0.0151, unguarded=0.03, floor=0.69),
    _cell("reuters", 10, 0.3, none=0.6635, eb=0.8006, spikes=0.8092, all=0.8475, auto=0.8475, tolerance=0.01),
    _cell("reuters", 10, 1.0, none=0.8323, eb=0.9253, spikes=0.9431, all=0.9497, auto=0.9497, tolerance=0.005),
)
MADE = (
    _cell("giant", 3, 0.1, none=0.9275, eb=0.9293, spikes=0.9309, all=0.9341, auto=0.9341, tolerance=0.02),
    _cell("sparse", 5, 0.1, none=0.717, eb=0.886, spikes=0.898, all=0.917, auto=0.917, tolerance=0.02),
    _cell("anti", 4, 0.1, none=0.9573, eb=0.9504, spikes=0.9478, all=0.9477, auto=0.9573, tolerance=0.0073),
)


def check_denoising(*, runs: int = RUNS, covered_runs: int = COVERED_RUNS, data: str = "data") -> Report:
    """Check refinements and what releases say of themselves.

    Parameters
    ----------
    runs : int
        Draws of each cell of the table.
    covered_runs : int
        Draws of each of five settings in which lower bounds are compared with the truth.
    data : str
        The folder that ``make data`` filled; cells whose data are not there are left out, and the report says so.
    """
    fetched, left_out = _fetched(Path(data))
    return report(_checks(runs, covered_runs, fetched), left_out=left_out)


@flow(name="reproduce-denoise", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_denoise(runs: form_fields.Runs = RUNS, data: form_fields.DataFolder = "data") -> Report | State[Any]:
    """Check what refining gains on public data, and that releases state their quality truly."""
    return reported_by_flow(check_denoising, runs=runs, data=data)


def _checks(runs: int, covered_runs: int, fetched: Mapping[str, Callable[[], Matrix]]) -> Iterator[Check]:
    shipped = {name: made() for name, (made, _) in SYNTHETIC.items()} | {"a9a": a9a()}
    for cell in (*SHIPPED, *MADE):
        yield from _check_cell(cell, shipped[cell.data], runs)
    for data, load in fetched.items():
        second_moment = load()
        for cell in FETCHED:
            if cell.data == data:
                yield from _check_cell(cell, second_moment, runs)
    controls = {"flat": 3, "low rank": 4, "rotated a9a": 10}
    for name, n_components in controls.items():
        second_moment = rotated(shipped["a9a"]) if name == "rotated a9a" else shipped[name]
        yield _check_control(name, second_moment, n_components, runs)
    noise_std = _noise_std(0.1)
    for name, second_moment, n_components in (("anti", shipped["anti"], 4), ("ruinous", ruinous(noise_std), 7)):
        found = [refine(draw.moment, n_components=n_components) for draw in _draws(second_moment, n_components, runs)]
        unrefined = sum(each.refined_by == "none" for each in found) / runs
        yield at_least(f"{name}: part of the draws that auto leaves as they are", _UNREFINED, got=unrefined)
    yield from _check_bias(shipped["a9a"])
    for name, n_components in {"a9a": 10, "giant": 3, "low rank": 4, "flat": 3}.items():
        yield from _check_coverage(name, shipped[name], n_components, covered_runs)
    yield from _check_coverage("a9a", shipped["a9a"], 30, covered_runs)


def _fetched(data: Path) -> tuple[dict[str, Callable[[], Matrix]], list[str]]:
    """Return how to load what ``make data`` fetched, and what is missing."""
    found: dict[str, Callable[[], Matrix]] = {}
    left_out = []
    if (data / second_moments.MNIST).is_file():
        found["mnist"] = partial(mnist, data)
        found["mnist 5,000"] = partial(mnist, data, n_rows=second_moments.FEW)
    else:
        left_out.append(f"mnist: {data / second_moments.MNIST} is not there; make data fetches it")
    if not (data / second_moments.REUTERS).is_dir():
        left_out.append(f"reuters: {data / second_moments.REUTERS} is not there; make data fetches it")
    elif find_spec("sklearn") is None:
        left_out.append("reuters: scikit-learn is not installed; it comes with the extra named reproduce")
    else:
        found["reuters"] = partial(reuters, data)
    return found, left_out


def _noise_std(epsilon: float) -> float:
    """Return the std off the diagonal of a release of rows of norm 1."""
    return gaussian_noise_multiplier(epsilon=epsilon, delta=DELTA) / math.sqrt(2.0)


def _draws(second_moment: Matrix, n_components: int, runs: int, epsilon: float = 0.1) -> Iterator[Draw]:
    order, noise_std = len(second_moment), _noise_std(epsilon)
    for run in range(runs):
        square = np.random.default_rng((_SEED, run)).standard_normal((order, order)) * (noise_std / math.sqrt(2.0))
        noisy = (second_moment + second_moment.T) / 2.0 + (square + square.T)
        moment = NoisyMoment(matrix=noisy, noise_std=noise_std)
        yield Draw(second_moment=second_moment, moment=moment, n_components=n_components)


def _check_cell(cell: Cell, second_moment: Matrix, runs: int) -> Iterator[Check]:
    """Compare the variance that each method captures with the table, and auto with its floor and with the best."""
    captured: dict[str, list[float]] = {method: [] for method in REQUESTS}
    above = []
    for draw in _draws(second_moment, cell.n_components, runs, cell.epsilon):
        above.append(draw.above_noise)
        for method in REQUESTS:
            rows = refine(draw.moment, n_components=cell.n_components, method=method).components
            captured[method].append(draw.captured(rows))
    means = {method: float(np.mean(values)) for method, values in captured.items()}
    for asked, expected in cell.expected.items():
        yield near(f"{cell.name} {asked}", expected, cell.tolerance[asked], got=means[asked])
    if cell.floor is not None:
        yield at_least(f"{cell.name} auto", cell.floor, got=means["auto"])
    if min(above) >= _SEEN:
        yield at_most(f"{cell.name} best less auto", _NEAR_BEST, got=max(means.values()) - means["auto"])


def _check_control(name: str, second_moment: Matrix, n_components: int, runs: int) -> Check:
    """Compare auto with none where there is nothing to gain."""
    gains = []
    for draw in _draws(second_moment, n_components, runs):
        auto, none = (refine(draw.moment, n_components=n_components, method=m) for m in ("auto", "none"))
        gains.append(draw.captured(auto.components) - draw.captured(none.components))
    return near(f"{name}: auto less none", 0.0, _SAME, got=float(np.mean(gains)))


def _check_bias(second_moment: Matrix) -> Iterator[Check]:
    """Compare scores with what they estimate: their mean error over its standard error, over many draws.

    Each draw has probes of its own: a constant one has an error of its own, which the score's deviation counts.
    """
    errors: dict[str, list[float]] = {name: [] for name in ("eigenvalues", *(f"fission {each}" for each in METHODS))}
    for run, draw in enumerate(_draws(second_moment, _SCORED, SCORED_RUNS)):
        standard, stream = draw.moment.standard, _OWN_STREAMS + run
        truth = draw.second_moment[np.ix_(standard.order, standard.order)] * np.outer(standard.signs, standard.signs)
        found = frames(standard.moment, n_components=_SCORED, methods=METHODS)
        subspaces = {method: columns for method, (_, columns) in found.items()}
        by_eigenvalues = score_by_eigenvalues(standard, np.linalg.eigvalsh(standard.moment)[::-1], n_components=_SCORED)
        if by_eigenvalues is not None:
            held_by_none = held_variance(truth, subspaces["none"].T) / draw.moment.noise_std
            errors["eigenvalues"].append(by_eigenvalues.total - held_by_none)
        scores = score_by_fission(standard, subspaces, share=CHOICE_SHARE, stream=stream)
        held: dict[Method, list[float]] = {method: [] for method in METHODS}
        for probe, sign in product(range(probes(len(truth))), (1.0, -1.0)):
            noise = sign * public_noise(len(truth), stream=stream, probe=probe)
            louder = (standard.moment + CHOICE_SHARE * math.sqrt(2.0) * noise) / math.hypot(1.0, CHOICE_SHARE)
            for method, (_, columns) in frames(louder, n_components=_SCORED, methods=METHODS).items():
                held[method].append(held_variance(truth, columns.T) / draw.moment.noise_std)
        for method in METHODS:
            errors[f"fission {method}"].append(scores[method].total - float(np.mean(held[method])))
    for name, values in errors.items():
        error = np.mean(values) / (np.std(values, ddof=1) / math.sqrt(len(values)))
        yield near(f"bias of scores by {name}, standard errors", 0.0, 4.0, got=float(error))


def _check_coverage(name: str, second_moment: Matrix, n_components: int, runs: int) -> Iterator[Check]:
    """Count the draws in which the lower bounds hold, and look at the sum of ratios."""
    held, sums = {"captured": 0, "share": 0, "captured variance": 0}, []
    for draw in _draws(second_moment, n_components, runs):
        refinement = refine(draw.moment, n_components=n_components)
        told = assess(draw.moment, refinement)
        for bound, holds in _bounds_hold(draw, refinement.components, told).items():
            held[bound] += holds
        sums.append(math.fsum(told.explained_variance_ratio or ()))
    for bound, count in held.items():
        yield at_least(f"{name} k={n_components}: coverage of the lower bound of {bound}", _COVERAGE, got=count / runs)
    yield at_most(f"{name} k={n_components}: largest sum of ratios", 1.0, got=max(sums), tolerance=_ROUNDING)


def _bounds_hold(draw: Draw, rows: Matrix, told: Assessment) -> dict[str, bool]:
    """Compare each lower bound with the truth; one that is not stated does not fail."""
    held, trace = draw.held(rows), float(np.trace(draw.second_moment))
    return {
        "captured": (told.captured_low or 0.0) <= held,
        "share": (told.share_low or 0.0) <= held / trace,
        "captured variance": (told.captured_variance_low or 0.0) <= held / draw.most,
    }
