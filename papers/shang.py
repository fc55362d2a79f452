"""Repeat the experiments of Shang et al., PCA in the stochastic differential privacy model, on real data.

Tables 1 and 2 contain formulas and facts about the data, which are computed. Figure 1 shows distance and captured
variance against epsilon, on all records. Table 3 measures how much accuracy a classifier loses on projections on
private subspaces.

Every mechanism runs with its published noise and with exactly calibrated noise (``tight``), and its true epsilon is
stated. The data are public, so no budget is charged. Keys come from seeds, so that every number is reproducible.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dpca.errors import Invalid
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import wishart_delta
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.errors import DpcaError, Refused
from papers.lib.ascents import ascend
from papers.lib.experiments import (
    Check,
    DataFolder,
    Matrix,
    OutFolder,
    Report,
    at_least,
    at_most,
    judged,
    near,
    report,
    side_by_side,
    summary_of,
)
from papers.lib.figures import LineChart, draw_lines, write_comparison
from papers.lib.public_data import (
    MNIST,
    MNIST_LABELS,
    LabelledRows,
    a9a,
    cifar10,
    made_images,
    made_text,
    mnist,
    real_sim,
    second_moment,
)
from papers.lib.subspaces import (
    ANALYZE_GAUSS,
    ARMS,
    BOUNDS,
    COMPARED,
    DP_SPCA,
    DP_VRPCA,
    GAUSSIAN,
    LONG_SPCA,
    LONG_VRPCA,
    MIX,
    MOD_SULQ,
    PPI,
    PRINTED_SPCA,
    PRINTED_VRPCA,
    REFINED,
    SMALL,
    Arm,
    Reference,
    Rows,
    Split,
    formula_epsilon,
    less_lost,
    mean_and_error,
    random_subspace,
)

type Row = dict[str, Any]
type Tables = dict[str, list[Row]]
type Key = tuple[str, float | None, float | None]

SPLITS, DRAWS, TEXT_FEATURES, IMAGES = 8, 5, 1_048, 10_000
"""The numbers of paired splits, of draws (seeds 0 to 4), of columns of the synthetic text (a twentieth of real-sim's),
and of synthetic images (a fifth of CIFAR-10's)."""
EPSILON, EPSILONS, PRINTED_DELTA, SMALL_DELTA = 0.1, (0.1, 0.3, 1.0, 4.0), 1e-3, 1e-5
"""The epsilon of Table 3, the epsilons of Figure 1, the paper's delta, and a delta below one over the number of records
of every data set."""
RANDOM, MAJORITY, FEW = "random subspace", "most frequent label", 3
"""The names of two baselines, and the number of splits for slow methods on data with many columns."""
CHARGED = "nothing: the data are public, and the keys come from seeds"
TITLES = {
    "figure1": "Figure 1: squared distance against epsilon",
    "table1": "Table 1: printed bounds and noise, and the true epsilon",
    "table2": "Table 2: the data",
    "table3": "Table 3: points of accuracy lost to the best directions",
}
_ARM = ("data", "k", "arm", "claimed epsilon", "true epsilon", "bound", "delta")
COLUMNS = {
    "figure1": (*_ARM, "distance", "distance std", "captured", "captured std", "beyond", "refused"),
    "table1": (
        *("algorithm", "printed bound, constants 1", "printed noise, constants 1", "noise of the formula", "measures"),
        *("claimed epsilon", "true epsilon", "true epsilon, claimed 1", "broken condition"),
    ),
    "table2": ("data", "records", "features", "non-zero percent", "printed records", "printed features", "printed"),
    "table3": (*_ARM, "lost", "error", "splits", "distance", "captured", "beyond", "refused"),
}
SHAPES = {
    "a9a": (32_561, 123, 11.2757),
    "CIFAR-10": (50_000, 3_072, 99.7617),
    "MNIST": (60_000, 784, 100.0 - 80.8798),
    "real-sim": (72_309, 20_958, 0.2448),
}
"""Records, features and the percentage of non-zero entries; for MNIST the paper's column states the zeros."""
FIGURE_ARMS = (MOD_SULQ, GAUSSIAN, PPI, PRINTED_SPCA, PRINTED_VRPCA, LONG_SPCA, LONG_VRPCA, ANALYZE_GAUSS)
"""The arms of the figure: those of the paper, its two algorithms with more steps, and our default."""
PAPER_LOSS = {"a9a": 84.9483 - 82.5539, "MNIST": 99.2883 - 98.4750, "real-sim": 99.4275 - 94.1852}
"""The loss of the paper's best algorithm in its Table 3, in points."""

_FIGURE_SEED, _SEED, _FIRST_ORDER_DRAWS = 1, 3, 20
_NEAR_START, _FIRST_ORDER, _GROWS = 0.25, 0.3, 0.1
_DENSITY, _SAME_BOUND, _SURE, _SAME = 5e-3, 0.02, 0.01, 5.0
_TIMES, _MOST_TIMES = 5.0, 50.0
_LARGEST = {
    ("a9a", ANALYZE_GAUSS.name): (0.6, 0.6),
    ("a9a", REFINED.name): (0.8, 0.8),
    ("MNIST", ANALYZE_GAUSS.name): (1.0, 3.0),
    ("MNIST", REFINED.name): (None, 2.0),
}
"""Upper bounds of the points of accuracy lost, at the paper's delta and at the small delta."""


def reproduce(
    *,
    data: DataFolder = Path("data"),
    cifar10: Annotated[Path | None, typer.Option(help="CIFAR-10: svmlight text, batches, or their archive.")] = None,
    real_sim: Annotated[Path | None, typer.Option(help="real-sim: svmlight text, plain or compressed.")] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set: a9a, MNIST, CIFAR-10, real-sim, text or images.")
    ] = None,
    splits: Annotated[int, typer.Option(min=2, help="Paired splits of each data set.")] = SPLITS,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each compared method in a split of a9a.")] = DRAWS,
    text_features: Annotated[
        int, typer.Option(min=100, help="Columns of the synthetic text; 20958, as in real-sim, take most of an hour.")
    ] = TEXT_FEATURES,
    images: Annotated[int, typer.Option(min=100, help="Number of synthetic images; 50000 need 5 GB.")] = IMAGES,
    quick: Annotated[bool, typer.Option("--quick", help="a9a with two splits and one draw, not judged.")] = False,
    out: OutFolder = None,
) -> Report:
    """Check the tables and the figure of Shang et al. on real data, with every mechanism published and tight.

    It computes distances and captured variance against epsilon, and the loss of a linear SVM in private subspaces, with
    the true epsilon of each arm. The data are public and the keys come from seeds, so no budget is spent.

    Returns
    -------
    Report
        With ``tables`` by the names of `TITLES`, ``columns``, ``files`` and ``charged``.
    """
    if find_spec("sklearn") is None:
        raise Refused("shang trains scikit-learn's linear SVM, which is missing; install the extra estimators.")
    if quick:
        dataset, splits, draws = dataset or ["a9a"], 2, 1
    loaders, left_out = _loaders(data, cifar10, real_sim, text_features, images)
    unknown = sorted(set(dataset or ()) - set(loaders))
    if unknown:
        raise Invalid(f"dataset={unknown[0]} is not available; use one of {', '.join(loaders)}.")
    tables: Tables = {name: [] for name in TITLES}
    chosen = [load for name, load in loaders.items() if not dataset or name in dataset]
    calls = [partial(found_on, load, splits=splits, draws=draws) for load in chosen]

    def checks() -> Iterator[Check]:
        for rows, made in (calls[0](),) if len(calls) == 1 else side_by_side(calls):
            for name, some in rows.items():
                tables[name] += some
            yield from made

    full = splits >= SPLITS and draws >= DRAWS
    found = report(judged(checks(), full=full), left_out=left_out, charged=CHARGED)
    found |= {"tables": tables, "columns": {name: list(columns) for name, columns in COLUMNS.items()}}
    return found | {"files": write_comparison(found, TITLES, out) + _draw_figure(tables["figure1"], out)}


def _draw_figure(rows: Sequence[Row], out: Path | None) -> list[str]:
    """Draw Figure 1 at the delta of the paper, with one panel per data set, and return the files."""
    arms = tuple(arm.name for arm in FIGURE_ARMS)
    shown = [row for row in rows if row.get("delta") == PRINTED_DELTA and row["arm"] in arms and "distance" in row]
    if out is None or not shown:
        return []
    chart = LineChart(
        title=f"{TITLES['figure1']}, delta = {PRINTED_DELTA:g}",
        x="claimed epsilon",
        y="distance",
        y_label="squared distance",
        arms=arms,
        panels={row["data"]: f"{row['data']}, k = {row['k']}" for row in shown},
    )
    return [str(path) for path in draw_lines(shown, chart, out / "figure1")]


def _loaders(
    data: Path, cifar10_file: Path | None, real_sim_file: Path | None, text_features: int, images: int
) -> tuple[dict[str, Callable[[], LabelledRows]], list[str]]:
    """Return functions that load the available data sets, and the reasons why others are left out."""
    found: dict[str, Callable[[], LabelledRows]] = {"a9a": a9a}
    left_out = []
    if all((data / place).is_file() for place in (MNIST, MNIST_LABELS)):
        found["MNIST"] = partial(mnist, data)
    else:
        left_out.append(f"MNIST is missing in {data}: fetch it with make data, or name its folder with --data")
    for name, place, option, load in (
        ("CIFAR-10", cifar10_file, "--cifar10", cifar10),
        ("real-sim", real_sim_file, "--real-sim", real_sim),
    ):
        if place is None:
            left_out.append(f"{name}: name its file with {option}")
        else:
            found[name] = partial(load, place)
    found["text"] = partial(made_text, text_features)
    if cifar10_file is None:
        found["images"] = partial(made_images, images)
    return found, left_out


def found_on(load: Callable[[], LabelledRows], *, splits: int, draws: int) -> tuple[Tables, list[Check]]:
    """Run all experiments on the data set that ``load`` returns, and return the rows of the tables and the checks."""
    tables: Tables = {name: [] for name in TITLES}
    return tables, list(_checks(load(), tables, splits=splits, draws=draws))


def _checks(data: LabelledRows, tables: Tables, *, splits: int, draws: int) -> Iterator[Check]:
    """Run all experiments on one data set, yield the checks, and add rows to the tables."""
    tables["table2"].append(shape(data))
    yield from check_shapes(data)
    if data.name == "a9a":
        values = (np.linalg.eigvalsh(second_moment(data.rows))[::-1] / data.n_records).tolist()
        tables["table1"] += bounds(data.n_records, data.n_features, data.n_components, values)
        yield from check_bounds(data)
        yield check_first_order(data)
        yield check_without_noise(data)
    curves = trace(data, draws=draws)
    tables["figure1"] += curves.rows()
    yield from check_distances(curves)
    majority, losses = compare(data, splits=splits, draws=draws)
    tables["table3"] += [majority.row(data), *losses.rows()]
    name = f"{data.name}: points of accuracy by which the best directions exceed the most frequent label"
    # random subspaces may be worse than predicting the most frequent label
    yield at_least(name, 0.0, got=float(np.mean(majority.lost)))
    yield from check_losses(losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a compared method (arm) at one epsilon and delta: means over its runs, or why it was refused.

    Baselines have no epsilon and delta. ``lost`` has the loss of accuracy in each split, in percentage points, as means
    over draws.
    """

    arm: str
    epsilon: float | None = None
    delta: float | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    lost: tuple[float, ...] = ()
    true_epsilon: float | None = None
    refused: str | None = None

    def row(self, data: LabelledRows) -> Row:
        """Return the result as a row of a table."""
        row: Row = {"data": data.name, "k": data.n_components, "arm": self.arm, **self.measured}
        if self.epsilon is not None:
            row |= {"claimed epsilon": self.epsilon, "true epsilon": self.true_epsilon, "delta": self.delta}
            row["bound"] = BOUNDS[self.arm]
        if self.lost:
            lost, error = mean_and_error(self.lost)
            row |= {"lost": lost, "error": error, "splits": len(self.lost)}
        return row if self.refused is None else row | {"refused": self.refused}


class Outcomes:
    """All results on one data set, by compared method (arm), epsilon and delta."""

    def __init__(self, data: LabelledRows) -> None:
        self.data = data
        self._measured: dict[Key, list[dict[str, float]]] = {}
        self._lost: dict[Key, dict[int, list[float]]] = {}
        self._truths: dict[Key, float] = {}
        self._refused: dict[Key, str] = {}

    def run(
        self, arm: Arm, rows: Rows, reference: Reference, *, epsilon: float, delta: float, seed: tuple[int, ...]
    ) -> Matrix | None:
        """Run a method, measure its components and return them.

        If the method refuses, store the reason, return None, and do not run the method again.
        """
        key, k = (arm.name, epsilon, delta), self.data.n_components
        if key in self._refused:
            return None
        try:
            if key not in self._truths:
                self._truths[key] = arm.true_epsilon(rows, n_components=k, epsilon=epsilon, delta=delta)
            components = arm.run(rows, n_components=k, epsilon=epsilon, delta=delta, seed=seed)
        except DpcaError as error:
            self._refused[key] = str(error)
            return None
        self.add(key, reference.measured(components))
        return components

    def add(self, key: Key, measured: dict[str, float]) -> None:
        """Add the measured values of one run."""
        self._measured.setdefault(key, []).append(measured)

    def lose(self, key: Key, split: int, points: float) -> None:
        """Add the loss of accuracy of one run in a split, in percentage points."""
        self._lost.setdefault(key, {}).setdefault(split, []).append(points)

    def all(self) -> Iterator[Outcome]:
        """Yield the results of all methods, in the order of their first runs, with refused methods last."""
        for key, seen in self._measured.items():
            yield Outcome(
                **dict(zip(("arm", "epsilon", "delta"), key, strict=True)),  # type: ignore[arg-type]
                measured=summary_of(seen, tuple(seen[0])),
                lost=tuple(float(np.mean(each)) for each in self._lost.get(key, {}).values()),
                true_epsilon=self._truths.get(key),
            )
        for (arm, epsilon, delta), why in self._refused.items():
            yield Outcome(arm=arm, epsilon=epsilon, delta=delta, refused=why)

    def rows(self) -> Iterator[Row]:
        """Yield the results of all methods as rows of a table."""
        return (each.row(self.data) for each in self.all())

    def measures(self, arm: Arm, measure: str, delta: float = PRINTED_DELTA) -> list[float]:
        """Return a measured value of a method for each epsilon, ascending; empty if it did not run or was refused."""
        found = [each for each in self.all() if (each.arm, each.delta) == (arm.name, delta) and each.measured]
        return [each.measured[measure] for each in found]

    def lost(self, arm: str, delta: float | None = None) -> tuple[float, ...]:
        """Return the loss of accuracy of a method in each split, in percentage points."""
        return next(each.lost for each in self.all() if (each.arm, each.delta) == (arm, delta))


def trace(data: LabelledRows, *, draws: int) -> Outcomes:
    """Run the methods at several epsilons on all records, for Figure 1.

    With few features, all methods run. Otherwise only the compared methods, DP-SPCA, DP-VRPCA and the noisy power
    method run. Slow methods, and all methods on data with many features, have one draw.
    """
    rows, k, found = Rows.of(data.rows), data.n_components, Outcomes(data)
    reference = Reference.of(data.rows, n_components=k)
    for draw in range(10):
        guess = random_subspace(data.n_features, k, seed=(_FIGURE_SEED, draw))
        found.add((RANDOM, None, None), reference.measured(guess))
    fitting = [arm for arm in ARMS if arm.fits(data.n_features)]
    main = [arm for arm in fitting if arm in (*COMPARED, DP_SPCA, DP_VRPCA)]
    if data.n_features > SMALL:
        fitting = [arm for arm in fitting if arm in main or arm.mechanism == "noisy_power"]
    for arm, delta in [(arm, PRINTED_DELTA) for arm in fitting] + [(arm, SMALL_DELTA) for arm in main]:
        for epsilon in EPSILONS:
            for draw in range(1 if arm.dear or data.n_features > SMALL else draws):
                found.run(arm, rows, reference, epsilon=epsilon, delta=delta, seed=(_FIGURE_SEED, draw))
    return found


def compare(data: LabelledRows, *, splits: int, draws: int) -> tuple[Outcome, Outcomes]:
    """Run every method that supports the data set in the same splits, for Table 3.

    Return the result for the most frequent label, and the results of the methods. With few features, each compared
    method has ``draws`` draws per split; other methods have one. Random subspaces always have ``draws`` draws.
    """
    found, majority, k = Outcomes(data), list[float](), data.n_components
    small = data.n_features <= SMALL
    fitting = [arm for arm in ARMS if arm.fits(data.n_features)]
    planned = [(arm, PRINTED_DELTA) for arm in fitting]
    planned += [(arm, SMALL_DELTA) for arm in fitting if small or arm in COMPARED]
    for split in range(splits):
        held = Split.of(data, seed=(_SEED, split))
        reference, rows = Reference.of(held.reserved, n_components=k), Rows.of(held.reserved)
        accuracy = held.accuracy(reference.best)
        majority.append(accuracy - held.majority())
        for draw in range(draws):
            guess = random_subspace(data.n_features, k, seed=(_SEED, split, draw))
            found.add((RANDOM, None, None), reference.measured(guess))
            found.lose((RANDOM, None, None), split, accuracy - held.accuracy(guess))
        for arm, delta in planned:
            if arm.dear and split >= FEW:
                continue
            for draw in range(draws if arm in COMPARED and small else 1):
                seed = (_SEED, split, draw)
                private = found.run(arm, rows, reference, epsilon=EPSILON, delta=delta, seed=seed)
                if private is not None:
                    found.lose((arm.name, EPSILON, delta), split, accuracy - held.accuracy(private))
    return Outcome(arm=MAJORITY, lost=tuple(majority)), found


def check_distances(found: Outcomes) -> Iterator[Check]:
    """Check which methods are more accurate in Figure 1, and that the printed step size ends near the start.

    With valid noise, the order of the methods is the reverse of the printed order.
    """
    name, tight = found.data.name, found.measures(ANALYZE_GAUSS, "distance")
    for arm in (DP_SPCA, DP_VRPCA):
        nearby = found.measures(arm, "distance")
        if nearby:
            least = min(theirs / ours for theirs, ours in zip(nearby, tight, strict=True))
            text = f"{name}: distance of {arm.name} divided by that of {ANALYZE_GAUSS.name}, smallest over all epsilons"
            yield at_least(text, 1.0, got=least)
    grows = max(later / earlier for earlier, later in itertools.pairwise(tight))
    text = f"{name}: distance of {ANALYZE_GAUSS.name} divided by that at the epsilon before"
    yield at_most(text, 1.0, got=grows, tolerance=_GROWS)
    for arm in (PRINTED_SPCA, PRINTED_VRPCA):
        captured = found.measures(arm, "captured")
        if captured:
            yield at_most(f"{name}: captured by {arm.name}, largest over all epsilons", _NEAR_START, got=max(captured))


def check_without_noise(data: LabelledRows) -> Check:
    """Check that DP-SPCA with the printed step size ``1 / 2n`` and T = n ends near its random start without noise."""
    k = data.n_components
    reference = Reference.of(data.rows, n_components=k)
    found, _ = ascend(data.rows, k, noise_std=0.0, rng=np.random.default_rng(_FIGURE_SEED))
    captured = reference.measured(found)["captured"]
    return at_most(f"{data.name}: captured by DP-SPCA's printed steps WITHOUT noise", _NEAR_START, got=captured)


def check_first_order(data: LabelledRows, *, epsilon: float = 0.1) -> Check:
    """Check the error of Analyze Gauss at k = 1 against first-order perturbation theory.

    The expected squared distance is ``sigma^2 / 2 sum_j (lambda_1 - lambda_j)^-2``, for noise of std sigma and
    eigenvalues lambda_j.
    """
    rows, dense = Rows.of(data.rows), data.rows.toarray()
    values = np.linalg.eigvalsh(dense.T @ dense)[::-1]
    sigma = gaussian_noise_multiplier(epsilon=epsilon, delta=PRINTED_DELTA)
    expected = sigma**2 / 2 * float(((values[0] - values[1:]) ** -2.0).sum())
    reference = Reference.of(data.rows, n_components=1)
    found = [
        ANALYZE_GAUSS.run(rows, n_components=1, epsilon=epsilon, delta=PRINTED_DELTA, seed=(_FIGURE_SEED, draw))
        for draw in range(_FIRST_ORDER_DRAWS)
    ]
    got = float(np.mean([reference.measured(each)["distance"] for each in found]))
    text = f"{data.name}: distance of Analyze Gauss at k = 1, epsilon {epsilon:g}, divided by its first-order value"
    return near(text, 1.0, _FIRST_ORDER, got=got / expected)


def check_losses(found: Outcomes) -> Iterator[Check]:
    """Check the losses of accuracy on one data set; on a9a also check which methods lose less than others."""
    name = found.data.name
    for (data, arm), most in _LARGEST.items():
        for delta, bound in zip((PRINTED_DELTA, SMALL_DELTA), most, strict=True):
            if data == name and bound is not None:
                lost, _ = mean_and_error(found.lost(arm, delta))
                yield at_most(f"{name}: points lost by {arm}, epsilon 0.1, delta {delta:g}", bound, got=lost)
    if name in PAPER_LOSS:
        lost, _ = mean_and_error(found.lost(ANALYZE_GAUSS.name, PRINTED_DELTA))
        text = f"{name}: points lost by {ANALYZE_GAUSS.name}, against what the paper's best loses"
        yield at_most(text, PAPER_LOSS[name], got=lost)
    for delta in (PRINTED_DELTA, SMALL_DELTA) if name == "a9a" else ():
        random = found.lost(RANDOM)
        tight, gaussian, mod_sulq = (found.lost(arm.name, delta) for arm in (ANALYZE_GAUSS, GAUSSIAN, MOD_SULQ))
        reported = f"{name}, delta {delta:g}: p that "
        for text, less, more in (
            ("Analyze Gauss is no better than the printed Gaussian", tight, gaussian),
            ("the printed Gaussian is no better than random", gaussian, random),
            ("the printed Gaussian is no better than MOD-SULQ", gaussian, mod_sulq),
        ):
            yield at_most(f"{reported}{text}", _SURE, got=less_lost(less, more))
        mean, error = mean_and_error(np.subtract(mod_sulq, random).tolist())
        text = f"{name}, delta {delta:g}: printed MOD-SULQ loses what random loses, difference in standard errors"
        yield near(text, 0.0, _SAME, got=mean / error)


def bounds(n: int, d: int, k: int, values: Sequence[float]) -> Iterator[Row]:
    """Yield the rows of Table 1 (error bounds and noise) for one data set, at epsilon 0.1 and delta 1e-3.

    All unnamed constants are 1. The settings are m = 1, T = n, G = 1 and mu = 1/2.

    Parameters
    ----------
    n, d, k : int
    values : sequence of float
        The eigenvalues of ``X^T X / n``, descending; they are the squares of the singular values in the paper.
    """
    first, last, after = float(values[0]), float(values[k - 1]), float(values[k])
    gap, logarithm = last - after, math.log(1.25 / PRINTED_DELTA)
    alpha = math.log(1 / PRINTED_DELTA) / ((1 - MIX) * EPSILON) + 1
    printed = {
        "analyze_gauss": (math.sqrt(n * k * logarithm) / (EPSILON * gap), logarithm / EPSILON**2),
        "wishart": (math.sqrt(k * d * math.log(d)) / (n * EPSILON * gap), d * math.log(d) / (n * EPSILON)),
        "local_gaussian": (k * d / (n * EPSILON**2), first * after / gap),
        "dp_spca": (math.sqrt(k * d) / (n * math.sqrt(EPSILON)), alpha / (n**2 * EPSILON * MIX)),
        "dp_vrpca": (math.sqrt(k) * d * math.log(n) / (n * EPSILON) ** 2, n / (n * EPSILON) ** 2),
    }
    for name, (bound, noise) in printed.items():
        requested, at_one = (_settings(name, n, d, k, epsilon) for epsilon in (EPSILON, 1.0))
        row = FORMULAS[name]
        yield {
            "algorithm": name,
            "printed bound, constants 1": bound,
            "printed noise, constants 1": noise,
            "noise of the formula": row.noise(requested),
            "measures": row.measures,
            "claimed epsilon": EPSILON,
            "true epsilon": formula_epsilon(name, requested),
            "true epsilon, claimed 1": formula_epsilon(name, at_one),
            "broken condition": row.broken(requested) or "",
        }


def check_bounds(data: LabelledRows) -> Iterator[Check]:
    """Check facts about the formulas of Table 1, evaluated on a9a."""
    n, d = data.n_records, data.n_features
    reported = f"{data.name}: true epsilon of"
    for name, claimed, expected in (
        ("analyze_gauss", 0.1, 0.0369),
        ("dp_spca", 0.1, 0.00241),
        ("dp_spca", 1.0, 100.04),
    ):
        got = formula_epsilon(name, _settings(name, n, d, data.n_components, claimed))
        yield near(f"{reported} {name} as printed, claimed {claimed:g}", expected, _SAME_BOUND * expected, got=got)
    moved = FORMULAS["dp_vrpca"].bracket(_settings("dp_vrpca", n, d, 1, EPSILON))
    text = f"{reported} dp_vrpca as printed, claimed {EPSILON:g}, every iterate seen"
    yield at_least(f"{text}: lower end", _TIMES * EPSILON, got=moved.lower)
    yield at_most(f"{text}: upper end", _MOST_TIMES * EPSILON, got=moved.upper)
    third = EPSILON / 3
    yield near(
        f"{data.name}: delta of the printed Wishart matrix, claimed epsilon {EPSILON:g} and delta 0",
        1.0 - math.exp(-third),
        1e-4,
        got=wishart_delta(2.0, scale=1 / (2 * third), epsilon=EPSILON),
    )


def shape(data: LabelledRows) -> Row:
    """Return the row of Table 2 (records, features and density) for one data set."""
    n, d, density = SHAPES.get(data.name, (None, None, None))
    return {
        "data": data.name,
        "records": data.n_records,
        "features": data.n_features,
        "non-zero percent": data.density,
        "printed records": n,
        "printed features": d,
        "printed": density,
    }


def check_shapes(data: LabelledRows) -> Iterator[Check]:
    """Check the numbers of records and features and the density of a data set against Table 2."""
    if data.name in SHAPES:
        n, d, density = SHAPES[data.name]
        yield near(f"{data.name}: records", n, 0.0, got=data.n_records)
        yield near(f"{data.name}: features", d, 0.0, got=data.n_features)
        yield near(f"{data.name}: non-zero entries, percent", density, _DENSITY, got=data.density)


def _settings(name: str, n: int, d: int, k: int, epsilon: float) -> Settings:
    mix = MIX if name == "dp_spca" else None
    return Settings(
        epsilon=epsilon, delta=PRINTED_DELTA, n_records=n, n_features=d, n_components=k, steps=n, epochs=1, mix=mix
    )
