"""Compare the errors of DPS-PCA with the rates in its paper: Theorem 4.3 and the minimax rate; draw Figures 1 and 2.

The errors from sampling, from privacy and from too few rounds are measured separately, on the model of the paper at
smaller sizes, with every row scaled to norm 1. Their slopes in n, s, d and epsilon are compared with equations (4.2) to
(4.4). No experiment can measure the minimax rate over all estimators. An estimator that knows the relevant features is
used instead.

Rows and noise come from `SEEDS`, so nothing is charged and a run can be repeated.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noisy_products import start_directions, truncated_step
from dpca_tasks.metrics import subspace_distance
from flows.reports.release_charts import FORMATS, render
from papers.lib.claims import Claim, Slope, sentence, slope_of
from papers.lib.experiments import Check, OutFolder, Report, Runs, at_least, at_most, judged, near, report
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.sparse_model import PAPER, TRUNCATED, WHOLE, Bound, Draw, Model, noisy_step, printed_std

RUNS = 5
SMALL = Model(n_features=100, n_records=20_000, n_components=3, n_relevant=10, rows_kept=20)
"""The model of the rates: that of figure 4b at d = 100."""
EPSILON, DELTA = 4.0, 0.01
RECORDS = (5_000, 10_000, 20_000, 40_000)
FEATURES = (50, 100, 200, 400)
RELEVANT = (5, 10, 20, 40)
KEPT = (10, 20, 40, 80)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
PROVIDERS = (1, 4, 16, 64)
FIGURE_2_EPSILONS, FIGURE_2_DELTA = (0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0), 0.01
SAMPLING, PRIVACY, ORACLE = "error by sampling", "error by privacy", "error with known features"
BOUNDS = {"as printed, rows of norm 70, no guarantee": 1.0, "rows of norm 1": PAPER.squared_norm}
"""By the norm of the rows for which the theorem's curves are drawn: the factor that multiplies the printed noise."""
CHARTS = {
    "figure2": LineChart(
        title="Figure 2: error terms of Theorem 4.3",
        x="epsilon",
        y="distance",
        log=False,
        log_y=True,
        y_label="subspace distance",
    ),
    "rates": LineChart(
        title="Errors of DPS-PCA by sampling and by privacy",
        x="size",
        y="distance",
        panel="axis",
        log_y=True,
        y_label="subspace distance",
    ),
}

type Row = dict[str, Any]


def reproduce(*, runs: Runs = RUNS, out: OutFolder = None) -> Report:
    """Compare slopes of DPS-PCA's errors with Theorem 4.3 and the minimax rate, and draw Figures 1 and 2.

    The rows are synthetic, so no budget is spent. With fewer runs than the default, checks are not judged. --json also
    contains the tables.

    Returns
    -------
    Report
        With ``claims`` (each statement with its verdict), ``slopes`` (with 95 % bands over seeds), ``seeds``,
        ``tables`` by the names of `CHARTS`, and ``files``.
    """
    seeds = range(1, runs + 1)
    claims: list[Claim] = []
    slopes: list[Row] = []
    tables: dict[str, list[Row]] = {"figure2": list(figure_2()), "rates": []}
    measured = itertools.chain(
        _check_rates(seeds, tables["rates"], slopes, claims),
        _check_providers(seeds, slopes, claims),
        _check_rounds(seeds, slopes, claims),
    )
    full = runs >= RUNS
    found = report(judged(measured, full=full), seeds=list(seeds), slopes=slopes, tables=tables)
    shown = [each if full else replace(each, holds=None) for each in [*_figure_2_claims(tables["figure2"]), *claims]]
    files = write_line_charts(tables, CHARTS, out)
    return found | {
        "claims": [each.row() for each in shown],
        "notes": [sentence(each) for each in shown],
        "files": files if out is None else [*files, *map(str, draw_figure_1(out / "figure1"))],
    }


@lru_cache(maxsize=2)
def drawn(model: Model, seed: int) -> Draw:
    """Return the rows of a model for a seed; the last two results are cached."""
    return Draw.of(model, run=seed)


def by_sampling(model: Model, seed: int) -> float:
    """Return the error from sampling: the distance of the truncated directions without noise from the true ones."""
    draw = drawn(model, seed)
    return draw.to_truth(draw.non_private[TRUNCATED])


def by_privacy(model: Model, seed: int, *, epsilon: float = EPSILON) -> float:
    """Return the error from privacy: the distance between Algorithm 1's results with exact noise and without noise."""
    draw = drawn(model, seed)
    found = draw.answer(WHOLE, epsilon=epsilon, delta=DELTA).components
    return subspace_distance(found, draw.non_private[TRUNCATED])


def by_oracle(model: Model, seed: int) -> float:
    """Return the error of an estimator that knows the relevant features: their leading directions without noise."""
    draw, s = drawn(model, seed), model.n_relevant
    _, leading = leading_eigenpairs(draw.moment[:s, :s], model.n_components)
    return draw.to_truth(np.hstack([leading, np.zeros((model.n_components, model.n_features - s))]))


AXES: Mapping[str, tuple[Sequence[float], Callable[[float], Model]]] = {
    "n": (RECORDS, lambda n: replace(SMALL, n_records=int(n))),
    "d": (FEATURES, lambda d: replace(SMALL, n_features=int(d))),
    "s": (RELEVANT, lambda s: replace(SMALL, n_relevant=int(s), rows_kept=2 * int(s))),
    "rows kept": (KEPT, lambda kept: replace(SMALL, rows_kept=int(kept))),
}
"""The sizes to vary, and the model for each value; the number of kept rows grows with s, as the theorem assumes."""
MEASURES: Mapping[str, Callable[[Model, int], float]] = {
    SAMPLING: by_sampling,
    PRIVACY: by_privacy,
    ORACLE: by_oracle,
}
CLAIMED: Mapping[tuple[str, str], tuple[str, float, float]] = {
    # for each error and varied size: the rate in the paper, the exponent of this rate over the sizes, and a tolerance
    (SAMPLING, "n"): ("n^-1/2", -0.5, 0.1),
    (SAMPLING, "s"): ("s^1/2", 0.5, 0.15),
    (SAMPLING, "d"): ("(k + log d)^1/2", 0.06, 0.1),
    (SAMPLING, "rows kept"): ("no growth", 0.0, 0.1),
    (PRIVACY, "n"): ("n^-1", -1.0, 0.2),
    (PRIVACY, "d"): ("no growth", 0.0, 0.1),
    (PRIVACY, "rows kept"): ("s_kept^1/2", 0.5, 0.2),
    (PRIVACY, "epsilon"): ("epsilon^-1", -1.0, 0.2),
    (ORACLE, "n"): ("n^-1/2", -0.5, 0.1),
}
REFUTED = {(SAMPLING, "rows kept"), (PRIVACY, "d"), (PRIVACY, "epsilon")}
"""The stated rates that do not hold: their checks require a slope that differs by more than the tolerance."""


def _check_rates(seeds: Sequence[int], table: list[Row], slopes: list[Row], claims: list[Claim]) -> Iterator[Check]:
    """Measure each error while one size varies, and compare the slopes with Theorem 4.3."""
    values: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for (axis, (sizes, model_at)), seed in itertools.product(AXES.items(), seeds):
        found = [{measure: of(model_at(size), seed) for measure, of in MEASURES.items()} for size in sizes]
        for measure in MEASURES:
            values[measure, axis].append([each[measure] for each in found])
    for (measure, axis), by_seed in values.items():
        sizes = AXES[axis][0]
        for at, size in enumerate(sizes):
            seen = [each[at] for each in by_seed]
            row = {"axis": axis, "arm": measure, "size": size, "distance": float(np.mean(seen)), "seeds": len(seen)}
            table.append(row | ({"distance std": float(np.std(seen, ddof=1))} if len(seen) > 1 else {}))
        slope = slope_of(sizes, by_seed)
        yield from _check_rate(measure, axis, slope, slopes, claims)
    over = [
        [a / b for a, b in zip(*both, strict=True)]
        for both in zip(values[SAMPLING, "n"], values[ORACLE, "n"], strict=True)
    ]
    separate = slope_of(RECORDS, over)
    slopes.append(
        separate.row(
            item="minimax rate",
            value="error by sampling divided by that with known features",
            axis="n",
            states="constant",
        )
    )
    yield near(
        "minimax rate: error by sampling divided by that with known features in n, slope", 0.0, 0.1, got=separate.mean
    )
    claims.append(
        Claim(
            item="minimax rate",
            states="the least possible error up to a constant",
            measured=f"{np.mean(over):.2f} times the error with known features, slope {separate} in n",
            holds=separate.low <= 0.05 and separate.high >= -0.05,
        )
    )
    costs = slope_of(EPSILONS, [[by_privacy(SMALL, seed, epsilon=each) for each in EPSILONS] for seed in seeds])
    yield from _check_rate(PRIVACY, "epsilon", costs, slopes, claims)


def _check_rate(measure: str, axis: str, slope: Slope, slopes: list[Row], claims: list[Claim]) -> Iterator[Check]:
    """Compare a measured slope with the exponent in the paper.

    A claim that is expected to be refuted must differ from the slope by more than the tolerance.
    """
    states, exponent, tolerance = CLAIMED.get((measure, axis), ("", math.nan, 0.0))
    slopes.append(slope.row(item="Theorem 4.3", value=measure, axis=axis, states=states))
    if not states:
        return
    name = f"Theorem 4.3: {measure} in {axis}, slope"
    if (measure, axis) in REFUTED:
        distance = abs(slope.mean - exponent)
        yield at_least(f"{name}, distance from the claimed {exponent:g}: does not hold", tolerance, got=distance)
    else:
        yield near(name, exponent, tolerance, got=slope.mean)
    holds = slope.low - tolerance <= exponent <= slope.high + tolerance
    claims.append(
        Claim(item=f"Theorem 4.3, {measure} in {axis}", states=states, measured=f"slope {slope}", holds=holds)
    )


def _check_providers(seeds: Sequence[int], slopes: list[Row], claims: list[Claim]) -> Iterator[Check]:
    """Check how the error from privacy grows with the number of data providers, each with independent noise."""

    def error(providers: int, seed: int) -> float:
        draw, model = drawn(SMALL, seed), SMALL
        rng = np.random.default_rng([seed, providers])
        std = math.sqrt(providers) * printed_std(epsilon=EPSILON, delta=DELTA) / model.squared_norm
        directions = draw.non_private[TRUNCATED].T
        directions = noisy_step(draw.moment, directions, std=std, rows_kept=model.rows_kept, rng=rng)
        return subspace_distance(directions.T, draw.non_private[TRUNCATED])

    found = slope_of(PROVIDERS, [[error(each, seed) for each in PROVIDERS] for seed in seeds])
    slopes.append(found.row(item="Theorem 4.3", value=PRIVACY, axis="providers", states="N"))
    yield near("Theorem 4.3: error by privacy in the number of providers, slope", 0.5, 0.15, got=found.mean)
    claims.append(
        Claim(
            item="Theorem 4.3, number of providers",
            states="noise that grows like N at most",
            measured=f"slope {found} with independent noise of each provider",
            holds=found.high <= 1.0,
        )
    )


def _check_rounds(seeds: Sequence[int], slopes: list[Row], claims: list[Claim]) -> Iterator[Check]:
    """Check the factor by which each round reduces the distance from the final directions, against (4.4)."""
    gamma = Bound(model=PAPER, noise_std=printed_std(epsilon=2.0, delta=DELTA)).gamma
    factors = [_contraction(seed) for seed in seeds]
    mean = float(np.mean(factors))
    yield at_most("Theorem 4.3: factor of a round, mean over seeds", gamma**0.25, got=mean)
    claims.append(
        Claim(
            item="Theorem 4.3, optimization error",
            states=f"a factor of at most gamma^1/4 = {gamma**0.25:.2f} for each round",
            measured=f"{mean:.2f}, largest {max(factors):.2f}",
            holds=max(factors) <= gamma**0.25,
        )
    )
    slow = [_first_close(seed, epsilon=0.5) - _first_close(seed, epsilon=8.0) for seed in seeds]
    slopes.append(
        {"item": "Theorem 4.3", "value": "further rounds at epsilon .5 than at 8", "slope": float(np.mean(slow))}
    )
    claims.append(
        Claim(
            item="section 4, privacy and rate of convergence",
            states="a much slower rate under stricter privacy",
            measured=f"{np.mean(slow):+.1f} rounds at epsilon 0.5 compared with 8; only the final error grows",
            holds=bool(np.mean(slow) >= 1.0),
        )
    )


def _contraction(seed: int) -> float:
    """Return the factor by which a round without noise reduces the distance from the limit of the iteration.

    It is the geometric mean over all rounds whose distance is above rounding errors.
    """
    draw = drawn(SMALL, seed)
    directions, found = start_directions(SMALL.n_features, SMALL.n_components), []
    for _ in range(12):
        directions = truncated_step(draw.moment, directions, rows_kept=SMALL.rows_kept)
        found.append(subspace_distance(directions.T, draw.non_private[TRUNCATED]))
    seen = [each for each in found if each > 1e-6]
    return float((seen[-1] / seen[0]) ** (1.0 / max(1, len(seen) - 1)))


def _first_close(seed: int, *, epsilon: float) -> int:
    """Return the first round whose distance from the true directions is at most 1.5 times the final distance.

    The final distance is the mean over the last three of twenty rounds.
    """
    draw, model = drawn(SMALL, seed), SMALL
    rng = np.random.default_rng([seed, round(10 * epsilon)])
    std = printed_std(epsilon=epsilon, delta=DELTA) / model.squared_norm
    directions, found = start_directions(model.n_features, model.n_components), []
    for _ in range(20):
        directions = noisy_step(draw.moment, directions, std=std, rows_kept=model.rows_kept, rng=rng)
        found.append(draw.to_truth(directions.T))
    floor = float(np.mean(found[-3:]))
    return next(at for at, each in enumerate(found, start=1) if each <= 1.5 * floor)


def figure_2() -> Iterator[Row]:
    """Yield the rows of figure 2: both error bounds of Theorem 4.3 for each epsilon, as printed and for norm 1."""
    for data, factor in BOUNDS.items():
        for epsilon in FIGURE_2_EPSILONS:
            std = factor * printed_std(epsilon=epsilon, delta=FIGURE_2_DELTA)
            bound = Bound(model=PAPER, noise_std=std)
            if bound.exists:
                yield {"data": data, "arm": PRIVACY, "epsilon": epsilon, "distance": bound.privacy}
                yield {"data": data, "arm": SAMPLING, "epsilon": epsilon, "distance": bound.sampling}


def _figure_2_claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """Compare the error from privacy with the error from sampling, for rows as printed and for rows of norm 1."""
    for data in BOUNDS:
        seen = {(row["arm"], row["epsilon"]): row["distance"] for row in rows if row["data"] == data}
        below = [
            each for each in FIGURE_2_EPSILONS if seen.get((PRIVACY, each), math.inf) < seen.get((SAMPLING, each), 0.0)
        ]
        yield Claim(
            item=f"Figure 2, theorem, {data}",
            states="an error by privacy below that by sampling, for epsilon from 0.2 to 2",
            measured=f"below from epsilon {min(below):g}" if below else "no bound: the noise exceeds the signal",
            holds=below == list(FIGURE_2_EPSILONS),
        )


def draw_figure_1(path: Path) -> list[Path]:
    """Draw Figure 1, the data providers and the server, and return the files; ``path`` has no suffix."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(0, 10), ylim=(0, 4.6), title="Figure 1: one round of distributed private sparse PCA")
    axes.axis("off")
    _box(axes, (5.0, 3.6), "Central server\nQR and truncation")
    for x, name in ((1.6, "1"), (5.0, "2"), (8.4, "N")):
        _box(axes, (x, 0.7), f"Data provider {name}\nnoise on its product")
        for shift, ends, label in (
            (-0.2, ((5.0, 3.0), (x, 1.25)), "$Q^{(t)}$"),
            (0.2, ((x, 1.25), (5.0, 3.0)), f"$H_{name}$"),
        ):
            (x0, y0), (x1, y1) = ends
            style = {"arrowstyle": "->", "color": "black", "linewidth": 1.0, "linestyle": "-" if shift < 0 else "--"}
            axes.annotate("", xy=(x1 + shift, y1), xytext=(x0 + shift, y0), arrowprops=style)
            # the label is next to the arrow, on the outer side
            at = (5.0 + 2.0 * x) / 3.0 + 3.0 * shift * (1.0 if x == 5.0 else 1.6)
            axes.text(at, 1.85, label, ha="center", va="center", fontsize="small")
    axes.text(6.7, 0.7, "…", ha="center", va="center")
    axes.annotate("", xy=(3.0, 3.6), xytext=(0.6, 3.6), arrowprops={"arrowstyle": "->"})
    axes.text(0.6, 3.8, "initial $Q^{(0)}$", fontsize="small")
    axes.annotate("", xy=(9.6, 3.6), xytext=(7.0, 3.6), arrowprops={"arrowstyle": "->"})
    axes.text(8.2, 3.8, "output $Q_{dp}$", fontsize="small")
    paths = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for each, kind in zip(paths, FORMATS, strict=True):
        each.write_bytes(render(figure, format=kind))
    return paths


def _box(axes: Any, centre: tuple[float, float], text: str) -> None:
    x, y = centre
    axes.add_patch(FancyBboxPatch((x - 1.4, y - 0.45), 2.8, 0.9, boxstyle="round,pad=0.1", fill=False))
    axes.text(x, y, text, ha="center", va="center", fontsize="small")
