"""A comparison of the advisor's noise warnings, first choices and expected variances with runs.

Five mechanisms run at three epsilons on real rows and on rows with a flat spectrum. The advisor receives what a user
would declare: the numbers of rows and features, and the leading shares of the total variance, rounded. Beyond `LARGE`
features pure mechanisms take minutes per run and are left out.

Sparse text of 72,309 by 20,958 is too wide to form a matrix. Its noisy operator is instead applied with noise
regenerated from a seed, tile by tile, at each application.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse
from scipy.sparse.linalg import eigsh

from dpca_tasks.advisor import BARELY, Advice, advise
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.metrics import captured_variance
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from papers.lib.experiments import (
    Check,
    DataFolder,
    Matrix,
    Report,
    at_least,
    at_most,
    near,
    orthonormal,
    report,
    run_mechanism,
)
from papers.lib.public_data import TEXT_FEATURES, TEXT_RECORDS, available, made_text, second_moment, unit_rows

type Rows = sparse.csr_array | Matrix

MECHANISMS, PURE = ("analyze_gauss", "noisy_power", "dp_spca"), ("wishart", "exponential")
EPSILONS = (0.1, 1.0, 4.0)
DELTA, COMPONENTS, DECLARED, DIGITS = 1e-6, 10, 40, 3
LARGE = 1_000

_SEED, _SMALL_RUNS, _SMALL = 11, 3, 300
_FLAT_ROWS, _FLAT_FEATURES = 20_000, 200
_NOISE, _CLOSE, _PREDICTED, _FALSE = 1.2, 0.95, 0.1, 0.1
_RIGHT = 11 / 12
_TEXT_SEED, _TILE, _PASSES, _WIDTH, _FOUND = 5, 2_048, 12, 18, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mechanism at an epsilon on a data set, with its advice and its captured variance relative to the best k."""

    data: str
    epsilon: float
    advice: Advice
    captured: float
    random: float

    @property
    def name(self) -> str:
        """The cell's data, epsilon and mechanism as text."""
        return f"{self.data} epsilon={self.epsilon:g} {self.advice.plan.mechanism}"

    @property
    def is_noise(self) -> bool:
        """True if the run was about as poor as random directions."""
        return self.captured <= _NOISE * self.random

    def facts(self) -> dict[str, Any]:
        """Return the cell as a row of the grid."""
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


def reproduce(
    *,
    data: DataFolder = Path("data"),
    wide: Annotated[bool, typer.Option("--wide", help="Also check sparse text of 20,958 columns.")] = False,
) -> Report:
    """Compare the advisor's warnings, choices and expectations with runs on a9a, flat data, MNIST and Reuters.

    The data are public and keys come from seeds, so no budget is spent. MNIST, Reuters and wide text take minutes.
    """
    loaders, left_out = available(data, "a9a", "mnist", "reuters")
    if not wide:
        left_out.append("text of 20,958 columns: takes minutes; include it with --wide")
    grid: list[dict[str, Any]] = []
    checks = itertools.chain(_checks({**loaders, "flat": flat_rows}, grid), check_wide_text() if wide else ())
    return report(checks, left_out=left_out, grid=grid)


def _checks(loaders: dict[str, Callable[[], Any]], grid: list[dict[str, Any]]) -> Iterator[Check]:
    cells: list[Cell] = []
    right: list[bool] = []
    for name, load in loaders.items():
        rows = load()
        moment = rows.T @ rows if isinstance(rows, np.ndarray) else second_moment(rows)
        values = np.linalg.eigvalsh(moment)[::-1]
        for epsilon in EPSILONS:
            made = list(_cells(name, rows, moment, values, epsilon))
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


def flat_rows() -> Matrix:
    """Return rows in uniformly random directions."""
    return unit_rows(np.random.default_rng(_SEED).standard_normal((_FLAT_ROWS, _FLAT_FEATURES)))


def _cells(name: str, rows: Rows, moment: Matrix, values: Matrix, epsilon: float) -> Iterator[Cell]:
    """Get advice on a setting and run each mechanism, in the order of the advice."""
    n, order = rows.shape
    shares = values[:DECLARED] / values.sum()
    declared = ",".join(f"{share:.{DIGITS}g}" for share in shares)
    problem = Problem(n_features=order, clip_norm=1.0, records_at_most=n, spectrum=declared)
    target, source = PrivacyTarget(epsilon=epsilon, delta=DELTA), ArrayBlocks(rows)
    random = COMPONENTS / order * float(values.sum() / values[:COMPONENTS].sum())
    mechanisms = MECHANISMS if order > LARGE else MECHANISMS + PURE
    for advice in advise(problem, target, n_components=COMPONENTS, only=mechanisms):
        captured = []
        for draw in range(_SMALL_RUNS if order <= _SMALL else 1):
            found = run_mechanism(advice.mechanism, problem, target, source, key=bytes([_SEED, draw] * 16))
            if advice.plan.mechanism == "analyze_gauss":
                found = refine_release(found, n_components=COMPONENTS, method="auto").subspace
            captured.append(captured_variance(moment, found.components, values=values))
        yield Cell(data=name, epsilon=epsilon, advice=advice, captured=float(np.mean(captured)), random=random)


def _listed(what: str, names: list[str]) -> str:
    return f"{what} ({', '.join(names)})" if names else what


def check_wide_text() -> Iterator[Check]:
    """Check that pure noise is predicted as such, and that the recommended epsilon finds a signal."""
    rows = made_text(TEXT_FEATURES).rows
    values = eigsh(rows.T @ rows, k=DECLARED, return_eigenvectors=False, tol=1e-3)[::-1]
    random = COMPONENTS / TEXT_FEATURES * TEXT_RECORDS / float(values[:COMPONENTS].sum())
    problem = Problem(
        n_features=TEXT_FEATURES,
        clip_norm=1.0,
        records_at_most=TEXT_RECORDS,
        spectrum=",".join(f"{value / TEXT_RECORDS:.3g}" for value in values),
    )
    ranked = advise(problem, PrivacyTarget(epsilon=min(EPSILONS), delta=DELTA), n_components=COMPONENTS)
    name = f"text {TEXT_RECORDS:,} x {TEXT_FEATURES:,} epsilon={min(EPSILONS):g}"
    yield at_least(
        f"{name}: mechanisms of which noise is expected, part",
        1.0,
        got=float(np.mean([a.expects_noise for a in ranked])),
    )
    (gauss,) = (each for each in ranked if each.plan.mechanism == "analyze_gauss")
    std, needed = gauss.plan.moment_std, gauss.epsilon_needed()
    assert std is not None
    assert needed is not None
    yield at_most(f"{name}: captured beyond random", BARELY, got=_captured_of_text(rows, values, std) - random)
    (enough,) = advise(
        problem, PrivacyTarget(epsilon=needed, delta=DELTA), n_components=COMPONENTS, only=["analyze_gauss"]
    )
    std, low = enough.plan.moment_std, enough.expected.captured[0]
    assert std is not None
    found = _captured_of_text(rows, values, std)
    name = f"text {TEXT_RECORDS:,} x {TEXT_FEATURES:,} epsilon={needed:.2f}, the one that is named"
    yield at_least(f"{name}: captured over random", _FOUND, got=found / random)
    yield at_least(f"{name}: captured", low - 0.1, got=found)
    yield at_most(f"{name}: captured", low + 0.1, got=found)


def _captured_of_text(rows: sparse.csr_array, values: Matrix, std: float) -> float:
    """Return the variance captured by the leading directions of the noisy operator, over that of the best k."""
    rng = np.random.default_rng(_TEXT_SEED)
    block = orthonormal(rng.standard_normal((rows.shape[1], _WIDTH)))
    krylov: list[Matrix] = []
    images: list[Matrix] = []
    for _ in range(_PASSES):
        image = rows.T @ (rows @ block) + std * _noise_times(block)
        krylov.append(block)
        images.append(image)
        known = np.hstack(krylov)
        rest = image - known @ (known.T @ image)
        block = orthonormal(rest - known @ (known.T @ rest))
    basis = np.hstack(krylov)
    small = basis.T @ np.hstack(images)
    leading = basis @ np.linalg.eigh((small + small.T) / 2.0)[1][:, -COMPONENTS:]
    return float(np.square(rows @ leading).sum()) / float(values[:COMPONENTS].sum())


def _noise_times(block: Matrix) -> Matrix:
    """Multiply columns by isotropic noise, regenerated from its seed, with std 1 off the diagonal."""
    order, narrow = len(block), block.astype(np.float32)
    product = np.zeros(block.shape)
    for first in range(0, order, _TILE):
        rows = slice(first, min(first + _TILE, order))
        for second in range(first, order, _TILE):
            columns = slice(second, min(second + _TILE, order))
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            tile = np.random.default_rng((_TEXT_SEED, first, second)).standard_normal(shape, dtype=np.float32)
            if first == second:
                tile = (tile + tile.T) / np.float32(math.sqrt(2.0))
                product[rows] += tile @ narrow[rows]
            else:
                product[rows] += tile @ narrow[columns]
                product[columns] += tile.T @ narrow[rows]
    return product
