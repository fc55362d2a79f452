"""Check the predictions of ``dpca mechanism advise`` against actual releases by all mechanisms.

Every private mechanism runs at three epsilons and with two numbers of components, on real and on synthetic rows. The
advisor gets what a user would declare: the numbers of rows and features, and the rounded leading shares of the total
variance. Each data set has a fixed neighboring relation; the local mechanism has its own relation.

- A *warning* is the verdict "expect noise". It is false if releases capture more than noise would. Noise captures at
  most `RANDOM` times the variance that random directions capture, or at most `BARELY` more. Three standard errors, of
  the releases or of random directions, are added to this limit.
- A *predicted interval* is missed if the mean of the releases is more than `TOLERANCE` outside.

The synthetic rows are uniform on the sphere (flat), in ten strong directions (spikes), or from the model of the DPS-PCA
paper (sparse). A quick run has one draw of each release and six data sets. A full run has three draws, and adds MNIST
and Reuters; mechanisms that take minutes per run are left out there.

Synthetic text of 72,309 rows and 20,958 columns is too wide to form its second moment. There, the noisy second moment
is applied to vectors instead, with noise that is drawn again from a seed, tile by tile, for each product.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse
from scipy.sparse.linalg import eigsh

from dpca_tasks.accounting.events import Relation
from dpca_tasks.advisor import BARELY, RANDOM, Advice, advise
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS
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
    orthonormal,
    report,
    run_mechanism,
)
from papers.lib.public_data import TEXT_FEATURES, TEXT_RECORDS, available, made_text, second_moment, unit_rows
from papers.lib.sparse_model import Model

type Rows = sparse.csr_array | Matrix

PRIVATE = tuple(name for name in MECHANISMS if name != "non_private")
MINUTES = ("exponential", "smooth_sensitivity", "propose_test_release")
"""The mechanisms that take minutes per run on MNIST and Reuters."""
EPSILONS = (0.1, 1.0, 4.0)
DELTA, DECLARED, DIGITS = 1e-6, 40, 3
TOLERANCE, DRAWS, QUICK_DRAWS, SPREAD = 0.1, 3, 2, 2.0
"""A mean misses an interval if it is outside by more than `TOLERANCE` and `SPREAD` standard errors of the mean.

The standard errors count because noise, and with it a mean of few draws, differs between machines: the last digits of a
public map depend on the processor. `DRAWS` are the draws of a full run, and `QUICK_DRAWS` those of other runs.
"""

_SEED = 11
_ROWS, _FEATURES, _SPIKES = 10_000, 100, 10
_SPARSE = Model(n_features=300, n_records=20_000)
_CLOSE, _RIGHT, _WIDE, _MOSTLY = 0.95, 11 / 12, 0.2, 0.25
_GUESSES, _ERRORS = 200, 3.0
_COMPONENTS, _LOCAL = 10, "local_gaussian"
_TEXT_SEED, _TILE, _PASSES, _WIDTH, _FOUND = 5, 2_048, 12, 18, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A data set with its second moment, and the relation, numbers of components and mechanisms to run on it."""

    data: str
    rows: Rows
    moment: Matrix
    values: Matrix
    relation: Relation = "add_remove"
    counts: tuple[int, int] = (1, _COMPONENTS)
    mechanisms: tuple[str, ...] = PRIVATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One mechanism at one epsilon and number of components: the advice, and the captured variance of each run."""

    data: str
    n_components: int
    epsilon: float
    advice: Advice
    captured: tuple[float, ...]
    random_error: float

    @property
    def name(self) -> str:
        """The data set, number of components, epsilon and mechanism as text."""
        return f"{self.data} k={self.n_components} epsilon={self.epsilon:g} {self.advice.plan.mechanism}"

    @property
    def mean(self) -> float:
        """The mean captured variance of the runs, divided by that of the best k directions."""
        return float(np.mean(self.captured))

    @property
    def error(self) -> float:
        """The standard error of the mean captured variance; at least the standard error for random directions."""
        own = float(np.std(self.captured, ddof=1)) if len(self.captured) > 1 else 0.0
        return max(own, self.random_error) / math.sqrt(len(self.captured))

    @property
    def is_noise(self) -> bool:
        """True if the runs captured no more than noise would, within three standard errors."""
        random = self.advice.expected.random
        return self.mean <= max(RANDOM * random, random + BARELY) + _ERRORS * self.error

    @property
    def misses(self) -> bool:
        """True if the mean captured variance is outside the predicted interval by more than the tolerance."""
        low, high = self.advice.expected.captured
        return max(low - self.mean, self.mean - high) > TOLERANCE + SPREAD * self.error

    def facts(self) -> dict[str, Any]:
        """Return the results as a row of the report's table ``grid``."""
        expected = self.advice.expected
        return {
            "data": self.data,
            "k": self.n_components,
            "epsilon": self.epsilon,
            "mechanism": self.advice.plan.mechanism,
            "captured": round(self.mean, 4),
            "from": round(expected.captured[0], 4),
            "to": round(expected.captured[1], 4),
            "random": round(expected.random, 4),
            "expects_noise": self.advice.expects_noise,
            "is_noise": self.is_noise,
            "misses": self.misses,
        }


def reproduce(
    *,
    data: DataFolder = Path("data"),
    full: Annotated[bool, typer.Option("--full", help="Run three draws; add MNIST and Reuters; 20 minutes.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Also check sparse text of 20,958 columns.")] = False,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set.")] = None,
) -> Report:
    """Compare the advisor's warnings, intervals and first choices with runs of every mechanism.

    The data are public and keys come from seeds, so no budget is spent. Every false warning and every missed interval
    is a failed check.

    Returns
    -------
    Report
        With ``grid``, a row for each data set, number of components, epsilon and mechanism.
    """
    loaders, left_out = _loaders(data, full=full)
    if dataset:
        loaders = {name: load for name, load in loaders.items() if name in dataset}
    if not wide:
        left_out.append("text of 20,958 columns: takes minutes; include it with --wide")
    grid: list[dict[str, Any]] = []
    draws = DRAWS if full else QUICK_DRAWS
    checks = itertools.chain(_checks(loaders, grid, draws=draws), check_wide_text() if wide else ())
    return report(checks, left_out=left_out, grid=grid)


def _loaders(data: Path, *, full: bool) -> tuple[dict[str, Callable[[], Setting]], list[str]]:
    """Return functions that load the data sets, and the reasons why other data sets are left out."""
    small, left_out = available(data, "a9a", "digits", "breast cancer")
    found: dict[str, Callable[[], Setting]] = {name: partial(_setting_of, name, load) for name, load in small.items()}
    found |= {
        "flat": lambda: _setting("flat", flat_rows()),
        "spikes": lambda: _setting("spikes", spiked_rows()),
        "sparse": lambda: _setting("sparse", _sparse_rows(), relation="replace_one", counts=(1, _SPARSE.n_components)),
    }
    if not full:
        return found, [*left_out, "mnist, reuters: take minutes; include them with --full"]
    large, missing = available(data, "mnist", "reuters")
    quick = tuple(name for name in PRIVATE if name not in MINUTES)
    found |= {name: partial(_setting_of, name, load, mechanisms=quick) for name, load in large.items()}
    return found, [*left_out, *missing, f"{', '.join(MINUTES)} on mnist and reuters: take minutes a run"]


def _setting(data: str, rows: Rows, **terms: Any) -> Setting:
    moment = rows.T @ rows if isinstance(rows, np.ndarray) else second_moment(rows)
    return Setting(data=data, rows=rows, moment=moment, values=np.linalg.eigvalsh(moment)[::-1], **terms)


def _setting_of(data: str, load: Callable[[], Rows], **terms: Any) -> Setting:
    return _setting(data, load(), **terms)


def flat_rows() -> Matrix:
    """Return synthetic rows of norm 1 in uniformly random directions."""
    return unit_rows(np.random.default_rng(_SEED).standard_normal((_ROWS, _FEATURES)))


def spiked_rows() -> Matrix:
    """Return synthetic rows in which ten directions have twenty times the variance of all others."""
    rng = np.random.default_rng(_SEED)
    stds = np.where(np.arange(_FEATURES) < _SPIKES, math.sqrt(20.0), 1.0)
    turned = orthonormal(rng.standard_normal((_FEATURES, _FEATURES)))
    return unit_rows((rng.standard_normal((_ROWS, _FEATURES)) * stds) @ turned)


def _sparse_rows() -> Matrix:
    return unit_rows(_SPARSE.draw(0)[0].astype(np.float64))


def _checks(loaders: dict[str, Callable[[], Setting]], grid: list[dict[str, Any]], *, draws: int) -> Iterator[Check]:
    cells: list[Cell] = []
    right: list[bool] = []
    for name, load in loaders.items():
        setting = load()
        here: list[Cell] = []
        for count, epsilon in itertools.product(setting.counts, EPSILONS):
            made = list(_cells(setting, count, epsilon, draws=draws))
            right.append(made[0].mean >= _CLOSE * max(cell.mean for cell in made))
            here += made
        grid += [cell.facts() for cell in here]
        cells += here
        missed = [f"{cell.name}: {cell.mean:.2f}" for cell in here if cell.misses]
        false = [cell.name for cell in here if cell.advice.expects_noise and not cell.is_noise]
        yield at_most(_listed(f"{name}: missed intervals of {len(here)}", missed), 0.0, got=len(missed))
        yield at_most(_listed(f"{name}: false warnings of {len(here)}", false), 0.0, got=len(false))
    wide = [cell.advice.expected.captured for cell in cells]
    part = float(np.mean([high - low > _WIDE for low, high in wide]))
    yield at_most(f"share of the intervals that are wider than {_WIDE:g}", _MOSTLY, got=part)
    yield at_least(
        "share of the settings in which the first choice is within 5 % of the best", _RIGHT, got=float(np.mean(right))
    )


def _cells(setting: Setting, n_components: int, epsilon: float, *, draws: int) -> Iterator[Cell]:
    """Get the advice for a data set and run each mechanism, in the order in which the advice ranks them."""
    n, order = setting.rows.shape
    declared = ",".join(f"{share:.{DIGITS}g}" for share in setting.values[:DECLARED] / setting.values.sum())
    target, source = PrivacyTarget(epsilon=epsilon, delta=DELTA), ArrayBlocks(setting.rows)
    random_error = _spread_of_random(setting.values, n_components)
    problem = Problem(n_features=order, clip_norm=1.0, relation=setting.relation, records_at_most=n, spectrum=declared)
    ranked = advise(problem, target, n_components=n_components, only=[m for m in setting.mechanisms if m != _LOCAL])
    ranked += advise(replace(problem, relation="zero_out"), target, n_components=n_components, only=[_LOCAL])
    for advice in ranked:
        captured = []
        for draw in range(draws):
            words = (setting.data, advice.plan.mechanism, n_components, epsilon, draw, _SEED)
            key = hashlib.sha256(repr(words).encode()).digest()
            released = run_mechanism(advice.mechanism, advice.plan.problem, target, source, key=key)
            if advice.plan.moment_formed and advice.plan.moment_noise in ("isometric", "upper_triangle"):
                released = refine_release(released, n_components=n_components, method="auto").subspace
            captured.append(captured_variance(setting.moment, released.components, values=setting.values))
        yield Cell(
            data=setting.data,
            n_components=n_components,
            epsilon=epsilon,
            advice=advice,
            captured=tuple(captured),
            random_error=random_error,
        )


def _spread_of_random(values: Matrix, n_components: int) -> float:
    """Return the std of the variance that random directions capture; it depends only on the eigenvalues."""
    rng = np.random.default_rng(_SEED)
    guesses = [orthonormal(rng.standard_normal((len(values), n_components))) for _ in range(_GUESSES)]
    return float(np.std([float(values @ (each**2).sum(axis=1)) for each in guesses]) / values[:n_components].sum())


def _listed(what: str, names: list[str]) -> str:
    return f"{what} ({', '.join(names)})" if names else what


def check_wide_text() -> Iterator[Check]:
    """Check the advice for wide text: that it predicts pure noise, and recommends an epsilon that finds a signal."""
    rows = made_text(TEXT_FEATURES).rows
    values = eigsh(rows.T @ rows, k=DECLARED, return_eigenvectors=False, tol=1e-3)[::-1]
    random = _COMPONENTS / TEXT_FEATURES * TEXT_RECORDS / float(values[:_COMPONENTS].sum())
    problem = Problem(
        n_features=TEXT_FEATURES,
        clip_norm=1.0,
        records_at_most=TEXT_RECORDS,
        spectrum=",".join(f"{value / TEXT_RECORDS:.3g}" for value in values),
    )
    ranked = advise(problem, PrivacyTarget(epsilon=min(EPSILONS), delta=DELTA), n_components=_COMPONENTS)
    name = f"text {TEXT_RECORDS:,} x {TEXT_FEATURES:,} epsilon={min(EPSILONS):g}"
    yield at_least(
        f"{name}: share of mechanisms for which noise is expected",
        1.0,
        got=float(np.mean([a.expects_noise for a in ranked])),
    )
    (gauss,) = (each for each in ranked if each.plan.mechanism == "analyze_gauss")
    std, needed = gauss.plan.moment_std, gauss.epsilon_needed()
    assert std is not None
    assert needed is not None
    yield at_most(f"{name}: captured beyond random", BARELY, got=_captured_of_text(rows, values, std) - random)
    (enough,) = advise(
        problem, PrivacyTarget(epsilon=needed, delta=DELTA), n_components=_COMPONENTS, only=["analyze_gauss"]
    )
    std, low = enough.plan.moment_std, enough.expected.captured[0]
    assert std is not None
    found = _captured_of_text(rows, values, std)
    name = f"text {TEXT_RECORDS:,} x {TEXT_FEATURES:,} epsilon={needed:.2f}, as recommended"
    yield at_least(f"{name}: captured variance divided by that of random directions", _FOUND, got=found / random)
    yield at_least(f"{name}: captured", low - 0.1, got=found)
    yield at_most(f"{name}: captured", low + 0.1, got=found)


def _captured_of_text(rows: sparse.csr_array, values: Matrix, std: float) -> float:
    """Return the variance captured by the leading directions of the noisy second moment, relative to the best k.

    The second moment is not formed: its noise has standard deviation ``std`` and is drawn again for each product.
    """
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
    leading = basis @ np.linalg.eigh((small + small.T) / 2.0)[1][:, -_COMPONENTS:]
    return float(np.square(rows @ leading).sum()) / float(values[:_COMPONENTS].sum())


def _noise_times(block: Matrix) -> Matrix:
    """Multiply columns by a symmetric noise matrix, which is drawn from a seed and has std 1 off the diagonal."""
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
