"""Check claims of Shang et al. on single algorithms: theorems, Lemma 2, movement of directions, and open settings.

*Rates.* Theorems 2 and 4 bound the squared distance of the first direction by powers of n, epsilon and d. Each power is
measured as the slope of a line through logarithms of errors, with a 95 % band over seeds. A claim does not hold if the
whole band is above the claimed slope. Half of the rows are on the first axis, the others evenly on the other axes. The
error is ``|v - v^|^2``, with the sign of v^ that gives the smaller error.

*Restated theorems.* The printed step size in Theorem 2 is ``1 / T``. T steps of this size turn a direction by a
constant angle, so the result is near the random start for every n. The restated step size is `LONGER` times as large.
Theorem 4 does not state the number T of steps per epoch. Two variants run: T = n, as in the experiments of the paper,
and a fixed T.

*Lemma 2* compares ``|V - V^|_F^2`` with ``|V V^T - V^ V^^T|_F``. Both are computed for random pairs of bases, from
nearly equal to orthogonal.

*Movement.* The guarantee of DP-VRPCA depends on how far its directions move within an epoch
(`dpca_tasks.accounting.vrpca_movement`). The movement is measured on a9a, and on the worst rows that we know.

*Open settings.* The paper does not state the number m of epochs of Algorithm 2, the number T of steps of Algorithm 1,
and mu. Several values are tried on a9a, and the best are used. A private run would have to pay for this choice; here
the printed algorithms get it for free.

*Columns.* The paper also scales columns to norm 1, with norms that are computed from the data. Records then have norms
far below 1.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse, stats

from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.accounting.vrpca_movement import Epoch
from papers.lib.ascents import ascend
from papers.lib.experiments import Check, Matrix, OutFolder, Report, at_least, at_most, judged, near, report
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.public_data import LabelledRows, a9a, a9a_entries, of_norm_one
from papers.lib.subspaces import ANALYZE_GAUSS, MIX, Reference, Rows, random_subspace

type Row = dict[str, Any]

SEEDS = (1, 2, 3, 4, 5)
"""The seeds of every experiment."""
DELTA, EPSILON = 1e-3, 0.1
RECORDS, SOME_EPSILONS, ORDERS = (500, 1_000, 2_000, 4_000), (0.5, 1.0, 2.0, 4.0), (10, 20, 40)
LONGER, FIXED, STEP = 40.0, 200, 1.0 / 12.0
"""The factor of the restated step size in Theorem 2; the fixed T in Theorem 4; its step size ``1 / (12 L)``, L = 1."""
BOUNDS: dict[str, Callable[[dict[str, float]], float]] = {
    "Theorem 2": lambda facts: math.sqrt(facts["d"] / facts["epsilon"]) / facts["n"],
    "Theorem 4": lambda facts: (
        facts["d"] * math.log(facts["n"] * facts["epsilon"] / facts["d"]) / (facts["n"] * facts["epsilon"]) ** 2
    ),
}
"""The printed bounds without constants. The logarithm in Theorem 4 makes the slopes less steep than its exponents."""
EPOCHS, PASSES, MIXES = (1, 3, 10, 30), (0.1, 1.0, 10.0), (0.1, 0.5, 0.9)
"""The values that the sweep tries: m of Algorithm 2, T / n of both algorithms, and mu of Algorithm 1."""
CHARTS = {
    "sweep": LineChart(
        title="Shang et al.: free settings of the printed algorithms on a9a, epsilon 0.1",
        x="passes over the records",
        y="captured",
        y_label="captured variance",
    ),
    "rates": LineChart(
        title="Shang et al.: errors of the top direction", x="value", y="error", panel="quantity", log_y=True
    ),
}

_USUAL = {"n": 2_000, "epsilon": 1.0, "d": 20}
_PAIRS, _LARGEST_K, _FEATURES, _ROUNDING = 400, 6, 20, 1e-9
_NOISE_ONLY, _FOUND, _SLACK = 0.35, 0.9, 0.02
_LEAST_MOVED, _GAINED, _OF_MIXES = 0.05, 0.3, 0.1


def reproduce(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two seeds, and no more than ten epochs; results are not judged.")
    ] = False,
    out: OutFolder = None,
) -> Report:
    """Check the theorems of Shang et al. as slopes, Lemma 2, movement, free settings and scaled columns.

    The data are synthetic or a9a, and the seeds are fixed, so no budget is spent.

    Returns
    -------
    Report
        With ``tables``: ``rates``, ``slopes``, ``sweep`` and ``columns``; and ``files``.
    """
    seeds = SEEDS[:2] if quick else SEEDS
    tables: dict[str, list[Row]] = {"rates": [], "slopes": [], "sweep": [], "columns": []}
    data = a9a()
    checks = itertools.chain(
        check_lemma(),
        check_rates(tables, seeds),
        check_movement(data, seeds),
        check_sweep(data, tables["sweep"], seeds, epochs=[m for m in EPOCHS if not quick or m <= 10]),
        check_columns(tables["columns"], seeds),
    )
    found = report(judged(checks, full=not quick), tables=tables)
    return found | {"files": write_line_charts(tables, CHARTS, out)}


def check_lemma() -> Iterator[Check]:
    """Check the constant and the powers of Lemma 2 for aligned bases, and that it fails for other bases."""
    rng = np.random.default_rng(SEEDS[0])
    largest = 0.0
    for _ in range(_PAIRS):
        k = int(rng.integers(1, _LARGEST_K + 1))
        one = np.linalg.qr(rng.standard_normal((_FEATURES, k)))[0]
        other = np.linalg.qr(one + 10.0 ** rng.uniform(-3, 2) * rng.standard_normal((_FEATURES, k)))[0]
        left, _, right = np.linalg.svd(other.T @ one)
        aligned, projected = _criteria(one, other @ left @ right)
        largest = max(largest, aligned / (math.sqrt(2.0 * k) * projected))
    yield at_most(
        "Lemma 2, aligned bases: largest criterion divided by sqrt(2 k) times the projectors' distance",
        1.0,
        got=largest,
    )
    one, turn = np.eye(_FEATURES)[:, :2], np.array([[0.0, -1.0], [1.0, 0.0]])
    aligned, projected = _criteria(one, one @ turn)
    yield at_least("Lemma 2, one subspace in two bases: criterion, the projectors' being 0", 1.0, got=aligned)
    yield at_most("Lemma 2, one subspace in two bases: projectors' distance", _ROUNDING, got=projected)
    near_by = [_criteria(np.eye(2)[:, :1], np.array([[math.cos(t)], [math.sin(t)]])) for t in (1e-2, 1e-3)]
    orders = [math.log10(near_by[0][at] / near_by[1][at]) for at in (0, 1)]
    text = "Lemma 2, small angles: power of the criterion divided by that of the projectors"
    yield near(text, 2.0, 0.01, got=orders[0] / orders[1])


def _criteria(one: Matrix, other: Matrix) -> tuple[float, float]:
    """Return the two distances of Lemma 2 for two bases: ``|V - V'|_F^2`` and ``|V V^T - V' V'^T|_F``."""
    return float(np.sum((one - other) ** 2)), float(np.linalg.norm(one @ one.T - other @ other.T))


def check_rates(tables: dict[str, list[Row]], seeds: Sequence[int]) -> Iterator[Check]:
    """Measure the slopes of the errors in Theorems 2 and 4, for the printed and the restated versions."""
    for (theorem, arm), error in ARMS.items():
        for quantity, values in (("n", RECORDS), ("epsilon", SOME_EPSILONS), ("d", ORDERS)):
            found = np.array([[error(_USUAL | {quantity: value}, seed) for value in values] for seed in seeds])
            slopes = [_slope(values, each) for each in found]
            slope, band = _band(slopes)
            claimed = _slope(values, [BOUNDS[theorem](_USUAL | {quantity: value}) for value in values])
            tables["rates"] += [
                {"quantity": quantity, "arm": f"{theorem}, {arm}", "value": value, "error": float(each.mean())}
                for value, each in zip(values, found.T, strict=True)
            ]
            tables["slopes"].append(
                {
                    "theorem": theorem,
                    "arm": arm,
                    "quantity": quantity,
                    "claimed": claimed,
                    "slope": slope,
                    "band": band,
                    "verdict": "holds" if slope - band <= claimed else "does not hold",
                }
            )
    rows = {(row["theorem"], row["arm"], row["quantity"]): row for row in tables["slopes"]}
    for theorem, arm, expected in (
        ("Theorem 2", "printed step", "does not hold"),
        ("Theorem 2", "restated step", "holds"),
        ("Theorem 4", "T = n", "does not hold"),
        ("Theorem 4", "fixed T", "holds"),
    ):
        row = rows[theorem, arm, "n"]
        text = f"{theorem}, {arm}: slope in n (claimed {row['claimed']:.2f}: {row['verdict']})"
        least = row["slope"] - row["band"]
        if expected == "holds":
            yield at_most(text, row["claimed"], got=least)
        else:
            yield at_least(text, row["claimed"] + _SLACK, got=least)


def _slope(values: Sequence[float], errors: Sequence[float] | Matrix) -> float:
    return float(np.polyfit(np.log(values), np.log(errors), 1)[0])


def _band(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values, and half the width of the 95 % confidence band of the mean."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1)) * error


def _axis_rows(n: int, d: int) -> sparse.csr_array:
    """Return n unit rows along d axes: half of them along the first axis, the others evenly along the other axes."""
    axes = np.where(np.arange(n) % 2 == 0, 0, 1 + np.arange(n) // 2 % (d - 1))
    return sparse.csr_array((np.ones(n), (np.arange(n), axes)), shape=(n, d))


def _error(found: Matrix) -> float:
    return 2.0 - 2.0 * abs(float(found[0, 0]))


def _theorem_2(facts: dict[str, float], seed: int, *, longer: float = 1.0) -> float:
    """Return the error of DP-SPCA with the settings of Theorem 2.

    These are ``T = n^2 epsilon mu / (d ln(1 / delta))``, G = 1, and step size ``longer / T``.
    """
    n, d, epsilon = int(facts["n"]), int(facts["d"]), facts["epsilon"]
    steps = max(round(n**2 * epsilon * MIX / (d * math.log(1.0 / DELTA))), 1)
    requested = Settings(epsilon=epsilon, delta=DELTA, n_records=n, n_features=d, steps=steps, mix=MIX)
    found, _ = ascend(
        _axis_rows(n, d),
        1,
        noise_std=2.0 * FORMULAS["dp_spca"].noise(requested),
        rng=np.random.default_rng((seed, n, d)),
        steps=steps,
        step_size=longer / steps,
    )
    return _error(found)


def _theorem_4(facts: dict[str, float], seed: int, *, fixed: int | None = None) -> float:
    """Return the error of DP-VRPCA with the settings of Theorem 4.

    These are step size 1 / 12 and ``m = ln(n^2 epsilon^2 / (d ln(1 / delta)))`` epochs, of n or ``fixed`` steps.
    """
    n, d, epsilon = int(facts["n"]), int(facts["d"]), facts["epsilon"]
    epochs = max(round(math.log(n**2 * epsilon**2 / (d * math.log(1.0 / DELTA)))), 1)
    steps = n if fixed is None else fixed
    requested = Settings(epsilon=epsilon, delta=DELTA, n_records=n, n_features=d, steps=steps, epochs=epochs)
    found, _ = ascend(
        _axis_rows(n, d),
        1,
        noise_std=FORMULAS["dp_vrpca"].noise(requested),
        rng=np.random.default_rng((seed, n, d)),
        reduced=True,
        steps=steps,
        epochs=epochs,
        step_size=STEP,
    )
    return _error(found)


ARMS: dict[tuple[str, str], Callable[[dict[str, float], int], float]] = {
    ("Theorem 2", "printed step"): _theorem_2,
    ("Theorem 2", "restated step"): lambda facts, seed: _theorem_2(facts, seed, longer=LONGER),
    ("Theorem 4", "T = n"): _theorem_4,
    ("Theorem 4", "fixed T"): lambda facts, seed: _theorem_4(facts, seed, fixed=FIXED),
}
"""The errors of the theorems' algorithms, by theorem and arm."""


def check_movement(data: LabelledRows, seeds: Sequence[int]) -> Iterator[Check]:
    """Check how far the directions of DP-VRPCA move within an epoch.

    On a9a, the movement must be below the proved bound. On the worst known rows, it must reach the stated lower bound.
    """
    n, d, k = data.n_records, data.n_features, data.n_components
    requested = Settings(epsilon=EPSILON, delta=DELTA, n_records=n, n_features=d, n_components=k, steps=n)
    noise = FORMULAS["dp_vrpca"].noise(requested)
    epoch = Epoch(n_features=d, n_records=n, steps=n, noise_std=noise, n_components=k)
    moved = [
        ascend(data.rows, k, noise_std=noise, rng=np.random.default_rng((seed, 7)), reduced=True)[1] for seed in seeds
    ]
    failure = EPSILON * DELTA
    bound = epoch.at_most(1.0, failure=failure)
    text = f"{data.name}: movement of printed DP-VRPCA in an epoch"
    yield at_most(f"{text}, largest of {len(seeds)} seeds, divided by the proved bound", 1.0, got=max(moved) / bound)
    yield at_least(f"{text}, least of {len(seeds)} seeds", _LEAST_MOVED, got=min(moved))
    single = replace(epoch, n_components=1)
    axes = np.zeros(n, np.int64)
    axes[0] = 1
    worst = sparse.csr_array((np.ones(n), (np.arange(n), axes)), shape=(n, d))
    angle = math.atan(math.exp(0.5))
    start = np.zeros((d, 1))
    start[:2, 0] = math.cos(angle), math.sin(angle)
    _, far = ascend(worst, 1, noise_std=noise, rng=np.random.default_rng(seeds[0]), reduced=True, start=start)
    yield at_most(
        "worst rows: movement divided by the proved bound", 1.0, got=far / single.at_most(1.0, failure=failure)
    )
    yield at_least(
        "worst rows: movement divided by the attained bound", 1.0, got=far / single.attained(1.0, failure=failure)
    )


def check_sweep(
    data: LabelledRows, table: list[Row], seeds: Sequence[int], *, epochs: Sequence[int]
) -> Iterator[Check]:
    """Try several values of m, T and mu of the printed algorithms, and check the settings that Figure 1 uses."""
    reference = Reference.of(data.rows, n_components=data.n_components)
    found: dict[tuple[str, float, int, float], float] = {}
    plans = [("dp_vrpca", 1.0, count, MIX) for count in epochs]
    plans += [("dp_vrpca", passes, 1, MIX) for passes in PASSES if passes != 1.0]
    plans += [("dp_spca", passes, 1, mix) for passes in PASSES for mix in (MIXES if passes == 1.0 else (MIX,))]
    for plan in plans:
        name, passes, count, mix = plan
        seen = [_swept(data, reference, plan, seed) for seed in seeds]
        arm = f"DP-SPCA, T, mu = {mix:g}" if name == "dp_spca" else "DP-VRPCA, m" if passes == 1.0 else "DP-VRPCA, T"
        row = {"data": data.name, "arm": arm, "passes over the records": passes * count, "T / n": passes, "m": count}
        found[plan] = float(np.mean(seen))
        table.append(row | {"captured": found[plan], "captured std": float(np.std(seen, ddof=1))})
    for name, longer, text in (
        ("dp_vrpca", ("dp_vrpca", 1.0, max(epochs), MIX), f"m = {max(epochs)}"),
        ("dp_spca", ("dp_spca", 10.0, 1, MIX), "T = 10 n"),
    ):
        gained = found[longer] - found[name, 1.0, 1, MIX]
        yield at_least(
            f"{data.name}: captured by printed {name} with {text}, minus that of one pass", _GAINED, got=gained
        )
    mixes = [found["dp_spca", 1.0, 1, mix] for mix in MIXES]
    text = f"{data.name}: captured by printed dp_spca with T = n, range over the values of mu"
    yield at_most(text, _OF_MIXES, got=max(mixes) - min(mixes))
    tight = ANALYZE_GAUSS.run(
        Rows.of(data.rows), n_components=data.n_components, epsilon=EPSILON, delta=DELTA, seed=(seeds[0],)
    )
    text = f"{data.name}: captured by Analyze Gauss, minus the best of the sweep"
    yield at_least(text, 0.0, got=reference.measured(tight)["captured"] - max(found.values()))


def _swept(data: LabelledRows, reference: Reference, plan: tuple[str, float, int, float], seed: int) -> float:
    """Return the captured variance of a printed algorithm at epsilon 0.1, for one choice of the open settings."""
    (name, passes, epochs, mix), n, k = plan, data.n_records, data.n_components
    steps = round(passes * n)
    requested = Settings(
        epsilon=EPSILON, delta=DELTA, n_records=n, n_features=data.n_features, n_components=k, steps=steps, mix=mix
    )
    noise = FORMULAS[name].noise(replace(requested, epochs=epochs))
    found, _ = ascend(
        data.rows,
        k,
        noise_std=noise if name == "dp_vrpca" else 2.0 * noise,
        rng=np.random.default_rng((seed, steps, epochs)),
        reduced=name == "dp_vrpca",
        steps=steps,
        epochs=epochs,
    )
    return reference.measured(found)["captured"]


def check_columns(table: list[Row], seeds: Sequence[int]) -> Iterator[Check]:
    """Check releases of data whose columns are scaled to norm 1: with noise for sensitivity 1, components are noise."""
    entries = a9a_entries()[0]
    largest = np.maximum(np.asarray(abs(entries).max(axis=1).todense()).ravel(), 1e-300)
    of_rows = sparse.csr_array(sparse.diags_array(1.0 / largest) @ entries)
    norms = np.sqrt(of_rows.multiply(of_rows).sum(axis=0))
    scaled = {
        "rows of norm 1": of_norm_one(entries),
        "columns of norm 1": sparse.csr_array(of_rows @ sparse.diags_array(1.0 / np.maximum(norms, 1e-300))),
        "largest column of norm 1": sparse.csr_array(of_rows / norms.max()),
    }
    found = {}
    for words, rows in scaled.items():
        reference = Reference.of(rows, n_components=10)
        seen = [
            reference.measured(
                ANALYZE_GAUSS.run(Rows.of(rows), n_components=10, epsilon=EPSILON, delta=DELTA, seed=(seed,))
            )["captured"]
            for seed in seeds
        ]
        guessed = reference.measured(random_subspace(int(rows.shape[1]), 10, seed=(seeds[0],)))["captured"]
        found[words] = float(np.mean(seen))
        table.append(
            {
                "scaling": words,
                "largest row norm": float(np.sqrt(rows.multiply(rows).sum(axis=1)).max()),
                "captured": found[words],
                "random": guessed,
            }
        )
    yield at_least("a9a, rows of norm 1: captured by Analyze Gauss", _FOUND, got=found.pop("rows of norm 1"))
    for words, captured in found.items():
        yield at_most(f"a9a, {words}: captured by Analyze Gauss", _NOISE_ONLY, got=captured)
