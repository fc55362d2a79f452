"""Repeat Figures 2 to 4 of the DPS-PCA paper on its model, with rows clipped so that the guarantee holds.

Each point is a mean over draws of rows and noise. Seeds are 0, 1, ... up to the number of runs, so nothing is charged
and a run can be repeated. The simulation in the paper adds noise for rows of norm 1 to rows of norm about 70, which
gives no guarantee. Its curves are drawn for comparison. Theorem 4.3 is checked in `papers.dps_rates`, and Table 1 in
`papers.dps_times`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpca_tasks.metrics import subspace_distance
from papers.lib.claims import Claim, sentence
from papers.lib.experiments import (
    Check,
    OutFolder,
    Report,
    Runs,
    at_least,
    at_most,
    judged,
    mean_rows,
    near,
    report,
    side_by_side,
)
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.sparse_model import (
    ANALYZE_GAUSS,
    ARMS,
    GIBBS,
    MOD_SULQ,
    NON_PRIVATE,
    OURS,
    PAPER,
    PPCA,
    PRINTED,
    PRINTED_SULQ,
    SPARSE,
    TRUNCATED,
    WHOLE,
    Arm,
    Bound,
    Draw,
    Model,
    Records,
    printed_std,
)

type Row = dict[str, Any]
type Tables = dict[str, list[Row]]

RUNS, MODEL = 5, PAPER
CHARGED = "nothing: rows and noise come from seeds, in this process, without a ledger"
UNSCALED = "DPS-PCA as printed, rows not scaled (no guarantee)"
FIGURE_2_DELTA, FIGURE_2_EPSILONS = 0.01, (0.2, 0.5, 1.0, 1.5, 2.0)
FIGURE_3A_DELTA, FIGURE_3A_EPSILONS = 0.3, (0.5, 1.0, 1.5, 2.0)
FIGURE_3B_DELTAS = (0.01, 0.05, 0.1, 0.5)
FIGURE_3B_EPSILONS = {"text": 1.0, "caption": 2.0}
FIGURE_3B_AT_MOST = 0.04
"""The largest accepted distance after round 8 at the epsilon of the caption, for any delta."""
FIGURE_4A_DELTA, FIGURE_4A_EPSILONS = 0.3, (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
FIGURE_4B_EPSILON, FIGURE_4B_DELTA = 1.0, 0.1
FIGURE_4B_FEATURES = (40, 60, 80, 100, 120, 140, 160)
FIGURE_4B_EXPECTED = {
    PRINTED.name: {40: 0.03, 80: 0.049, 120: 0.072, 160: 0.085},
    PRINTED_SULQ.name: {40: 0.091, 80: 0.459, 120: 1.24, 160: 1.6},
}
FIGURE_4B_MODEL = {"n_components": 3, "n_relevant": 10, "rows_kept": 20}
FIGURE_4A_GIBBS = (0.8, 2.0)
"""The epsilons of the Gibbs chain in figure 4a; it runs only for the first draw, because each run takes minutes."""
FIGURE_4A = f"d=1000, delta={FIGURE_4A_DELTA:g}"
STATISTICAL, PRIVACY, TOTAL = "sampling: without privacy to the truth", "privacy: private to non-private", "total"
SAMPLING_BOUND, PRIVACY_BOUND = "sampling, Theorem 4.3 with C = 1", "privacy, Theorem 4.3"
NOTES = (
    "Figure 3(b) has epsilon 1.0 in the paper's text and 2.0 in its caption; both are shown here.",
    "Figure 4(b) ends at d = 140 in the paper's text and at 160 in its caption; here it ends at 160.",
    "PPCA is drawn by peeling, for which privacy is proved, and by Gibbs sampling with 40 sweeps, for which it is not.",
)


def _chart(title: str, x: str, **more: Any) -> LineChart:
    return LineChart(title=title, x=x, y="distance", log=False, log_y=True, y_label="subspace distance", **more)


CHARTS = {
    "figure2": _chart(f"Figure 2: errors by privacy and by sampling, delta = {FIGURE_2_DELTA:g}", "epsilon"),
    "figure3a": _chart(f"Figure 3a: distance after each round, delta = {FIGURE_3A_DELTA:g}", "round"),
    "figure3b": _chart("Figure 3b: distance after each round, by delta", "round"),
    "figure4a": _chart(
        f"Figure 4a: accuracy at d = 1,000, delta = {FIGURE_4A_DELTA:g}",
        "epsilon",
        arms=(OURS.name, UNSCALED, ANALYZE_GAUSS.name, MOD_SULQ.name, PRINTED_SULQ.name, PPCA.name, GIBBS.name),
    ),
    "figure4b": _chart(
        f"Figure 4b: accuracy at epsilon = {FIGURE_4B_EPSILON:g}, delta = {FIGURE_4B_DELTA:g}",
        "d",
        x_label="number of features",
        arms=(OURS.name, UNSCALED, ANALYZE_GAUSS.name, MOD_SULQ.name, PRINTED_SULQ.name, PPCA.name, GIBBS.name),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A compared method (arm) at one epsilon and delta, with the expected distance from the true directions.

    Without a ``tolerance``, the expected distance is an upper bound. ``share`` is the fraction of the model's records
    that is used.
    """

    epsilon: float
    delta: float
    distance: float
    share: float = 1.0
    tolerance: float | None = None
    arm: Arm = OURS

    def name(self, model: Model) -> str:
        """Return the number of records, epsilon, delta and the settings of the arm as text."""
        settings = "".join(f" {key}={value}" for key, value in self.arm.settings.items())
        return f"n={self.n_records(model)} epsilon={self.epsilon} delta={self.delta}{settings}"

    def n_records(self, model: Model) -> int:
        """Return the number of records that this case uses."""
        return round(self.share * model.n_records)

    def check(self, distances: Sequence[float], model: Model) -> Check:
        """Check the mean of measured distances against the expected distance."""
        got = float(np.mean(distances))
        if self.tolerance is None:
            return at_most(self.name(model), self.distance, got=got)
        return near(self.name(model), self.distance, self.tolerance * self.distance, got=got)


CASES = (
    Case(epsilon=0.5, delta=0.3, distance=0.026),
    Case(epsilon=2.0, delta=0.3, distance=0.023),
    Case(epsilon=1.0, delta=1e-5, distance=0.056),
    Case(epsilon=1.0, delta=1e-5, distance=0.06, arm=SPARSE),
    Case(epsilon=0.5, delta=0.3, distance=2.06, tolerance=0.15, arm=PRINTED),
    Case(epsilon=2.0, delta=0.3, distance=0.38, tolerance=0.15, arm=PRINTED),
    Case(epsilon=0.5, delta=1e-6, distance=0.21, share=0.5),
    Case(epsilon=1.0, delta=1e-6, distance=0.12, share=0.5),
    Case(epsilon=2.0, delta=1e-6, distance=0.07, share=0.5),
)


def reproduce(*, runs: Runs = RUNS, records: Records = PAPER.n_records, out: OutFolder = None) -> Report:
    """Check DPS-PCA and other methods on the model of its paper: figures 2 to 4.

    Every record's bound is enforced, also with the paper's formula. The rows are synthetic, so no budget is spent. With
    fewer runs or records than the defaults, checks are not judged, and the Gibbs chain of figure 4a is left out. --json
    also contains the tables of the figures.

    Returns
    -------
    Report
        With ``tables`` by the names of `CHARTS`, ``claims``, ``seeds``, ``notes``, ``files`` and ``charged``.
    """
    tables: Tables = {}
    model = replace(MODEL, n_records=min(records, MODEL.n_records))
    full = runs >= RUNS and records >= PAPER.n_records
    found = report(judged(_checks(runs, model, tables), full=full), tables=tables, charged=CHARGED)
    claims = [each if full else replace(each, holds=None) for each in claims_of(tables)]
    return found | {
        "seeds": list(range(runs)),
        "claims": [each.row() for each in claims],
        "notes": [*NOTES, *(sentence(each) for each in claims)],
        "files": write_line_charts(tables, CHARTS, out),
    }


def _checks(runs: int, model: Model, tables: Tables) -> Iterator[Check]:
    draws = [partial(found_in, model, run, gibbs=runs >= RUNS and run == 0) for run in range(runs)]
    found = [draws[0]()] if runs == 1 else list(side_by_side(draws))
    tables |= {name: mean_rows([each.rows[name] for each in found], ["distance"]) for name in found[0].rows}
    tables["figure4a"] += [row for each in found for row in each.gibbs]
    yield from scaling_checks(tables["figure4b"])
    for name, (_, checks_of) in FIGURES.items():
        yield from checks_of(tables[name])
    for case in CASES:
        yield case.check([distance for each in found for distance in each.cases[case.name(model)]], model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of one draw: distances by case, table rows by figure, and rows of the Gibbs chain in figure 4a."""

    cases: dict[str, list[float]]
    rows: dict[str, list[Row]]
    gibbs: list[Row]


def found_in(model: Model, run: int, *, gibbs: bool) -> Found:
    """Run all compared methods on one draw; with ``gibbs`` also the Gibbs chain of figure 4a, which takes minutes."""
    found = Found(cases=defaultdict(list), rows={"figure4b": list(figure_4b(model.n_records, run))}, gibbs=[])
    for draw, here in _drawn(run, model):
        for case in here:
            found.cases[case.name(model)].append(draw.distance(case.arm, epsilon=case.epsilon, delta=case.delta))
        if draw.rows.source.n_records == model.n_records:
            found.rows.update({name: list(rows_of(draw)) for name, (rows_of, _) in FIGURES.items()})
            if gibbs:
                found.gibbs.extend(gibbs_4a(draw))
    return found


def _drawn(run: int, model: Model) -> Iterator[tuple[Draw, list[Case]]]:
    """Yield the sets of records of one draw, which use different shares of the rows, with the cases for each set."""
    rows, truth = model.draw(run)
    for share in sorted({case.share for case in CASES}):
        part = Draw(model, rows[: round(share * model.n_records)], truth, run=run)
        yield part, [case for case in CASES if case.share == share]


def figure_2(draw: Draw) -> Iterator[Row]:
    """Yield the rows of figure 2, which are the errors from privacy and from sampling, with bounds, at each epsilon."""
    delta, usual = FIGURE_2_DELTA, draw.non_private[TRUNCATED]
    for arm in (OURS, SPARSE):
        for epsilon in FIGURE_2_EPSILONS:
            answer = draw.answer(arm, epsilon=epsilon, delta=delta).components
            for name, distance in ((TOTAL, draw.to_truth(answer)), (PRIVACY, subspace_distance(answer, usual))):
                yield _row(data=arm.name, arm=name, epsilon=epsilon, delta=delta, distance=distance)
        yield _row(data=arm.name, arm=STATISTICAL, delta=delta, distance=draw.to_truth(usual))
    for epsilon in FIGURE_2_EPSILONS:
        last = draw.unscaled(epsilon=epsilon, delta=delta)[-1]
        bound = Bound(model=draw.model, noise_std=printed_std(epsilon=epsilon, delta=delta))
        shown = {TOTAL: draw.to_truth(last), PRIVACY: subspace_distance(last, usual)}
        shown |= {PRIVACY_BOUND: bound.privacy, SAMPLING_BOUND: bound.sampling} if bound.exists else {}
        for name, distance in shown.items():
            yield _row(data=UNSCALED, arm=name, epsilon=epsilon, delta=delta, distance=distance)
    yield _row(data=UNSCALED, arm=STATISTICAL, delta=delta, distance=draw.to_truth(usual))


def figure_3a(draw: Draw) -> Iterator[Row]:
    """Yield the rows of figure 3a: the distance from the true directions after each round, for each epsilon."""
    for epsilon in FIGURE_3A_EPSILONS:
        requested = {"epsilon": epsilon, "delta": FIGURE_3A_DELTA}
        for name, distances in (
            *((arm.name, draw.trajectory(arm, **requested)) for arm in (OURS, WHOLE, PRINTED)),
            (UNSCALED, [draw.start, *map(draw.to_truth, draw.unscaled(**requested))]),
        ):
            for at, distance in enumerate(distances):
                yield _row(data=name, arm=f"epsilon={epsilon:g}", round=at, distance=distance, **requested)


def figure_3b(draw: Draw) -> Iterator[Row]:
    """Yield the rows of figure 3b: the distance after each round for each delta, at both epsilons of the paper."""
    for text, epsilon in FIGURE_3B_EPSILONS.items():
        for delta in FIGURE_3B_DELTAS:
            requested = {"epsilon": epsilon, "delta": delta}
            for name, distances in (
                (OURS.name, draw.trajectory(OURS, **requested)),
                (UNSCALED, [draw.start, *map(draw.to_truth, draw.unscaled(**requested))]),
            ):
                for at, distance in enumerate(distances):
                    yield _row(
                        data=_panel(name, text), arm=f"delta={delta:g}", round=at, distance=distance, **requested
                    )


def figure_4a(draw: Draw) -> Iterator[Row]:
    """Yield the rows of figure 4a: the distance of each method except the Gibbs chain, for each epsilon."""
    yield from _of_arms(ARMS, draw, FIGURE_4A, FIGURE_4A_EPSILONS, FIGURE_4A_DELTA)


def gibbs_4a(draw: Draw) -> Iterator[Row]:
    """Yield the rows of the Gibbs chain in figure 4a, which takes minutes at this number of features."""
    for epsilon in FIGURE_4A_GIBBS:
        distance = draw.distance(GIBBS, epsilon=epsilon, delta=FIGURE_4A_DELTA)
        yield _row(data=FIGURE_4A, arm=GIBBS.name, epsilon=epsilon, delta=FIGURE_4A_DELTA, distance=distance)


def figure_4b(n_records: int, run: int) -> Iterator[Row]:
    """Yield the rows of figure 4b: the distance of each method for each number of features, with one draw each."""
    data = f"epsilon={FIGURE_4B_EPSILON:g}, delta={FIGURE_4B_DELTA:g}"
    for d in FIGURE_4B_FEATURES:
        draw = Draw.of(Model(n_features=d, n_records=n_records, **FIGURE_4B_MODEL), run=run)
        yield from _of_arms((*ARMS, GIBBS), draw, data, (FIGURE_4B_EPSILON,), FIGURE_4B_DELTA)


def _of_arms(arms: Sequence[Arm], draw: Draw, data: str, epsilons: Sequence[float], delta: float) -> Iterator[Row]:
    d = draw.model.n_features
    for arm in arms:
        for epsilon in epsilons:
            distance = draw.distance(arm, epsilon=epsilon, delta=delta)
            yield _row(data=data, arm=arm.name, d=d, epsilon=epsilon, delta=delta, distance=distance)
    for epsilon in epsilons:
        distance = draw.to_truth(draw.unscaled(epsilon=epsilon, delta=delta)[-1])
        yield _row(data=data, arm=UNSCALED, d=d, epsilon=epsilon, delta=delta, distance=distance)
    for name in (NON_PRIVATE, TRUNCATED):
        yield _row(data=data, arm=name, d=d, distance=draw.to_truth(draw.non_private[name]))


def round_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check how fast distances decrease with the rounds in figure 3a, and their final value."""
    seen = {(row["data"], row["epsilon"], row["round"]): row["distance"] for row in rows}
    for epsilon in FIGURE_3A_EPSILONS:
        ours, whole = ([seen[arm.name, epsilon, at] for at in range(9)] for arm in (OURS, WHOLE))
        named = f"Figure 3a, epsilon={epsilon:g}:"
        yield at_most(f"{named} distance after round 4 divided by that after round 1", 0.05, got=ours[4] / ours[1])
        yield near(f"{named} distance after round 8 divided by that after round 4", 1.0, 0.2, got=ours[8] / ours[4])
        yield at_most(
            f"{named} distance of whole messages after round 8 divided by that after round 4",
            1.2,
            got=whole[8] / whole[4],
        )
    lead = min(seen[PRINTED.name, each, 10] / seen[OURS.name, each, 8] for each in FIGURE_3A_EPSILONS)
    yield at_least(
        "Figure 3a: last distance with printed noise divided by ours, smallest over all epsilons", 10.0, got=lead
    )
    for epsilon, expected in ((0.5, 0.053), (1.0, 0.043), (1.5, 0.038), (2.0, 0.034)):
        name = f"Figure 3a, epsilon={epsilon:g}: distance of whole messages after 10 rounds"
        yield near(name, expected, 0.15 * expected, got=seen[WHOLE.name, epsilon, 10])


def delta_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check how the final distances in figure 3b depend on delta, at both epsilons of the paper."""
    last = {(row["data"], row["delta"]): row["distance"] for row in rows}
    for text, epsilon in FIGURE_3B_EPSILONS.items():
        ours = _panel(OURS.name, text)
        least, most = min(FIGURE_3B_DELTAS), max(FIGURE_3B_DELTAS)
        named = f"Figure 3b, epsilon={epsilon:g} ({text}):"
        if text == "caption":
            worst = max(last[ours, delta] for delta in FIGURE_3B_DELTAS)
            yield at_most(f"{named} distance after round 8, largest over all deltas", FIGURE_3B_AT_MOST, got=worst)
        yield at_most(
            f"{named} distance at delta=0.5 divided by that at 0.01", 1.0, got=last[ours, most] / last[ours, least]
        )


def wide_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check which methods are more accurate than others in figure 4a, which has 1,000 features."""
    seen = _by_arm(rows, "epsilon")
    yield at_most("Figure 4a: distance of DPS-PCA, largest over all epsilons", 0.03, got=max(seen[OURS.name].values()))
    for epsilon, expected in ((1.0, 0.059), (2.0, 0.057)):
        name = f"Figure 4a, epsilon={epsilon:g}: distance of Analyze Gauss"
        yield near(name, expected, 0.1 * expected, got=seen[ANALYZE_GAUSS.name][epsilon])
    sulq, random = min(seen[PRINTED_SULQ.name].values()), 2.2
    yield at_least("Figure 4a: distance of MOD-SULQ with printed noise, smallest over all epsilons", random, got=sulq)
    yield at_least("Figure 4a: distance of PPCA, smallest over all epsilons", 1.0, got=min(seen[PPCA.name].values()))
    for name, expected in ((NON_PRIVATE, 0.052), (TRUNCATED, 0.017)):
        (got,) = seen[name].values()
        yield near(f"Figure 4a: distance with {name}", expected, 0.15 * expected, got=got)


def scaling_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check how distances in figure 4b grow with the number d of features."""
    seen = _by_arm(rows, "d")
    ours, gauss, sulq = (seen[arm.name] for arm in (OURS, ANALYZE_GAUSS, MOD_SULQ))
    yield at_most("Figure 4b: distance of DPS-PCA, largest over all d", 0.011, got=max(ours.values()))
    yield at_most("Figure 4b: distance of Analyze Gauss, largest over all d", 0.02, got=max(gauss.values()))
    over = max(sulq[d] / gauss[d] for d in gauss)
    yield near(
        "Figure 4b: distance of MOD-SULQ with least noise divided by that of Analyze Gauss, largest over all d",
        1.0,
        0.1,
        got=over,
    )
    lead = min(seen[PPCA.name][d] - ours[d] for d in ours)
    yield at_least("Figure 4b: distance of PPCA above DPS-PCA, smallest over all d", 0.05, got=lead)
    for arm, expected in FIGURE_4B_EXPECTED.items():
        for d, distance in expected.items():
            yield near(f"Figure 4b, d={d}: distance of {arm}", distance, 0.25 * distance, got=seen[arm][d])


def error_checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Check the error from privacy divided by the error from sampling in figure 2, and how the ratio decreases."""
    most, least = max(FIGURE_2_EPSILONS), min(FIGURE_2_EPSILONS)
    for name in (SPARSE.name, OURS.name):
        shares = _shares(rows, name)
        label = "Figure 2: error by privacy divided by that of sampling,"
        yield at_most(f"{label} {name}, epsilon={most:g}", 1.5, got=shares[most])
        yield at_most(
            f"Figure 2: error by privacy at epsilon=2 divided by that at 0.2, {name}",
            0.5,
            got=shares[most] / shares[least],
        )


def claims_of(tables: Mapping[str, Sequence[Row]]) -> Iterator[Claim]:
    """Compare the measured figures with the claims of the paper about these figures."""
    for name in (UNSCALED, OURS.name, SPARSE.name):
        shares = _shares(tables["figure2"], name)
        below = [epsilon for epsilon, share in shares.items() if share < 1]
        yield Claim(
            item=f"Figure 2, {name}",
            states="an error by privacy below that by sampling, for epsilon from 0.2 to 2",
            measured=f"{', '.join(f'{share:.2f} at {epsilon:g}' for epsilon, share in shares.items())}",
            holds=len(below) == len(shares),
        )
    rounds = {(row["data"], row["epsilon"], row["round"]): row["distance"] for row in tables["figure3a"]}
    for name in (UNSCALED, OURS.name, PRINTED.name):
        seen = {each: rounds[name, each, 3] / rounds[name, each, 8] for each in FIGURE_3A_EPSILONS}
        yield Claim(
            item=f"Figure 3a, {name}",
            states="geometric convergence, to within half of the last distance after round 3",
            measured=f"{max(seen.values()):.2f} times the distance of round 8 at most",
            holds=max(seen.values()) <= 1.5 and rounds[name, max(seen), 8] < 1.0,
        )
    last = {(row["data"], row["delta"]): row["distance"] for row in tables["figure3b"] if row["round"] == 8}
    for name in (UNSCALED, OURS.name):
        found = {delta: last[_panel(name, "caption"), delta] for delta in FIGURE_3B_DELTAS}
        yield Claim(
            item=f"Figure 3b, epsilon 2, {name}",
            states="a larger final error at a smaller delta",
            measured=", ".join(f"{distance:.3f} at {delta:g}" for delta, distance in found.items()),
            holds=found[min(FIGURE_3B_DELTAS)] > found[max(FIGURE_3B_DELTAS)],
        )
    yield from _comparisons(tables)


def _comparisons(tables: Mapping[str, Sequence[Row]]) -> Iterator[Claim]:
    """Compare DPS-PCA with the other private methods in figures 4a and 4b, and return the claims."""
    for table, column in (("figure4a", "epsilon"), ("figure4b", "d")):
        seen = _by_arm(tables[table], column)
        others = {
            name: each for name, each in seen.items() if name not in (OURS.name, UNSCALED, NON_PRIVATE, TRUNCATED)
        }
        least = {at: min((each[at], name) for name, each in others.items() if at in each) for at in seen[OURS.name]}
        lead = {at: least[at][0] / distance for at, distance in seen[OURS.name].items()}
        worst = min(lead, key=lambda at: lead[at])
        yield Claim(
            item=f"Figure {table.removeprefix('figure')}, DPS-PCA",
            states="the best accuracy in all scenarios",
            measured=f"the next method has {lead[worst]:.2f} times its distance at least ({least[worst][1]})",
            holds=lead[worst] >= 1.0,
        )
    seen = _by_arm(tables["figure4b"], "d")
    for arm in (PRINTED_SULQ, MOD_SULQ):
        first, final = seen[arm.name][min(FIGURE_4B_FEATURES)], seen[arm.name][max(FIGURE_4B_FEATURES)]
        yield Claim(
            item=f"Figure 4b, {arm.name}",
            states="a quick loss of accuracy with d",
            measured=f"{first:.3f} at d = {min(FIGURE_4B_FEATURES)}, {final:.3f} at {max(FIGURE_4B_FEATURES)}",
            holds=final >= 0.5,
        )


def _shares(rows: Sequence[Row], data: str) -> dict[float, float]:
    """Return, for each epsilon, the error from privacy divided by the error from sampling."""
    seen = [row for row in rows if row["data"] == data]
    (usual,) = (row["distance"] for row in seen if row["arm"] == STATISTICAL)
    return {row["epsilon"]: row["distance"] / usual for row in seen if row["arm"] == PRIVACY}


FIGURES: Mapping[str, tuple[Callable[[Draw], Iterator[Row]], Callable[[Sequence[Row]], Iterator[Check]]]] = {
    "figure2": (figure_2, error_checks),
    "figure3a": (figure_3a, round_checks),
    "figure3b": (figure_3b, delta_checks),
    "figure4a": (figure_4a, wide_checks),
}
"""The functions that compute and check the figures of one draw of the paper's model, by table."""


def _panel(name: str, text: str) -> str:
    return f"{name}, epsilon={FIGURE_3B_EPSILONS[text]:g} ({text})"


def _by_arm(rows: Sequence[Row], column: str) -> Mapping[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        found.setdefault(row["arm"], {})[row.get(column, 0.0)] = row["distance"]
    return found


def _row(*, data: str, arm: str, distance: float, **more: float) -> Row:
    return {"data": data, "arm": arm, **more, "distance": distance}
