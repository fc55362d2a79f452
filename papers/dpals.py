"""Reproduction of DPALS on the tasks of its paper, on skewed ratings, on pairs without ratings, and on MovieLens.

Ratings are synthetic or public and keys come from seeds, so nothing is charged and every number is reproducible. All
epsilons are exact. The published accounting of DPALS counts only one of the two sums that each round releases.

Pairs are the films that people rated, without the ratings. In their generator, a user chooses items by popularity
alone. So the order of popularity is the best list for every user. A factorisation cannot beat it here, with or without
privacy.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.sparse.linalg import svds

from dpca.errors import Invalid
from dpca_tasks.kernels.ratings import chosen_ratings
from dpca_tasks.mechanisms.base import ItemFactors
from dpca_tasks.records.made_ratings import (
    LOW_RANK_ITEMS,
    SKEWED_ITEMS,
    SKEWED_USERS,
    SplitRatings,
    expected_count,
    low_rank,
    pairs,
    skewed,
    split,
)
from dpca_tasks.records.made_ratings import RANK as LOW_RANK
from flows.families.completion import advised
from flows.tune import held_out_error
from papers.lib.experiments import Check, DataFolder, Matrix, OutFolder, Report, Runs, at_least, at_most, near, report
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.ratings import (
    FETCHED,
    Arm,
    Asked,
    FilmRatings,
    arm,
    popularity,
    read_movielens,
    recall,
    request_of,
    true_epsilon,
    user_means,
)

type Tables = dict[str, list[dict[str, Any]]]

RUNS, SHARE = 5, 1.0
CHARGED = "nothing: ratings are synthetic or public, and keys come from seeds"
CHARTS = {
    "figure2": LineChart(
        title="Figure 2: skew before and after sampling", x="share of items", y="share of ratings", log=False
    ),
    "figure3": LineChart(title="Figure 3: error against epsilon, skewed ratings", x="true epsilon", y="RMSE"),
    "figure4": LineChart(title="Figure 4: error against epsilon, rank 5", x="true epsilon", y="RMSE"),
    "figure5": LineChart(title="Figure 5: error against the share of items in use", x="share of items", y="RMSE"),
    "iterations": LineChart(title="Error by iteration, rank 5", x="round", y="RMSE", log=False),
    "ml-100k": LineChart(title="Error against epsilon, ml-100k", x="true epsilon", y="RMSE"),
    "pairs": LineChart(title="Recall@20 against epsilon, pairs", x="true epsilon", y="Recall@20"),
    "ranks": LineChart(title="Error by rank, skewed ratings", x="rank", y="RMSE"),
    "ridges": LineChart(title="Error by ridge, skewed ratings", x="item ridge", y="RMSE"),
    "users": LineChart(title="Error by share of users, skewed ratings", x="share of users", y="RMSE"),
}

EPSILONS, USERS = (1.0, 5.0, 10.0, 20.0), (5_000, 10_000, 20_000, 50_000)
AT_MOST: Mapping[int, tuple[float, ...]] = {
    20_000: (0.33, 0.105, 0.065, 0.043),
    50_000: (0.18, 0.066, 0.035, 0.020),
}
"""Upper bounds of DPALS's median error on the low-rank task by number of users, at each of `EPSILONS`."""
ONE_SHOT_AT_MOST: Mapping[int, tuple[float, ...]] = {50_000: (0.09, 0.05, 0.032, 0.030)}
DPFW_BEATEN = (3.0, 7.0, 7.0, 7.0)
"""The least ratio of DPFW's error to that of DPALS, both with exact noise, at the largest number of users."""
NON_PRIVATE_AT_MOST, ONE_SHOT_WINS = 0.002, 5.0
"""On this task, the upper bound of the non-private error, and the epsilon up to which the one-shot method has a smaller
error than DPALS."""
ADVISED, RIGHT = ("dpals", "one_shot", "item_means"), 13
LOW_RANK_EXACT = arm("als", ridge=1e-3, offsets=False, user_means=False)

RANK, PER_USER, EPSILON, CENTRE = 8, 50, 10.0, 3.5
"""The settings of the skewed task, its pairs, and films."""
GAINS = {"tail sampling": 0.006, "offsets": 0.005, "tail sampling over item means": 0.02}
FEW_USERS, FEW_EPSILON = 8_000, 1.0
MEANS = arm("item_means", centre=CENTRE)
OFFSETS = arm("dpals", "dpals, tail and offsets", centre=CENTRE, user_ridge=4.0, item_ridge=0.7, pooled=1)
TAIL = OFFSETS.with_settings("dpals, tail", offsets=False, totals_share=0.03)
UNIFORM = TAIL.with_settings("dpals, uniform", sampling="uniform")
"""The counts of TAIL need less budget than the counts and offsets of OFFSETS; UNIFORM needs neither and spends nothing
on them."""
UNPROJECTED = arm(
    "unprojected",
    "without projection",
    rounds=3,
    item_ridge=0.3,
    centre=CENTRE,
    user_ridge=4.0,
    sampling="uniform",
    offsets=False,
)
ONE_SHOT = arm("one_shot", centre=CENTRE, user_ridge=4.0)
NON_PRIVATE = arm("als", "als without privacy", centre=CENTRE, ridge=8.0)

KEPT, PAIRS_EPSILON, LEAST_EPSILON = 0.85, 5.0, 1.0
FILM_USERS, MOST_RATED = 8_000, 400
ML_100K_RANK, ML_100K_EPSILONS, ML_100K_RATINGS = 4, (1.0, 5.0, 10.0, 20.0), 1_682
ML_100K_EXACT, ML_100K_MEAN, ML_100K_BESIDE = 0.925, 1.044, 0.06
"""The upper bound of the non-private error, the error of user means, and the allowed distance of private errors from
that of user means."""

_SEED, _TESTED, _TRACED = 20210720, 1_000, 20_000
_SKEWED_TESTED, _PAIRS_TESTED, _FILMS_TESTED = 6_000, 2_000, 4_000
_RIDGE = 10.0  # far above V^T V = I: scores are proportional to x V V^T, as for singular vectors


def reproduce(
    *,
    data: DataFolder = Path("data"),
    runs: Runs = RUNS,
    share: Annotated[
        float, typer.Option(help="Fraction of the stated users; expectations are for 1, smaller values test the run.")
    ] = SHARE,
    movielens: Annotated[
        Path | None, typer.Option(help="Folder with ratings of MovieLens: 100K, 1M, 10M, 20M or 25M.")
    ] = None,
    out: OutFolder = None,
) -> Report:
    """Check private alternating least squares on its paper's task, on ratings of skewed popularity, and on films.

    Ratings are synthetic or public and keys come from seeds, so nothing is charged; every epsilon is exact. --json also
    contains the tables of the figures.

    Returns
    -------
    Report
        With ``tables`` by the names of `CHARTS`, ``files`` and ``charged``.
    """
    if not 0.0 < share <= 1.0:
        raise Invalid(f"share={share} must be in (0, 1]; correct it.")
    scale = Scale(share=share, runs=runs)
    tables: Tables = {name: [] for name in (*CHARTS, "films")}
    left_out = [] if (data / FETCHED).is_dir() else [f"ml-100k: {data} has no {FETCHED}; fetch it with make data"]
    checks = chain(
        low_rank_checks(scale, tables),
        skewed_checks(scale, tables),
        pair_checks(scale, tables),
        film_checks(scale, tables),
        () if left_out else ml_100k_checks(scale, data, tables),
        () if movielens is None else _films_compared(movielens.name, read_movielens(movielens), tables),
    )
    found = report(checks, left_out=left_out, tables=tables, charged=CHARGED)
    return found | {"files": write_line_charts(tables, CHARTS, out)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of the synthetic tasks, and the number of their draws.

    ``share`` is the share of the stated users. The number of items is as stated down to a quarter of the users, then
    decreases in proportion. The low-rank task reports the median of ``runs`` draws; the skewed task reports the mean of
    at most three.
    """

    share: float = SHARE
    runs: int = RUNS

    @property
    def few(self) -> int:
        """The number of draws of the skewed task, and of splits of real ratings."""
        return min(3, self.runs)

    def users(self, stated: int) -> int:
        """Return the scaled number of users of a task."""
        return max(50, round(self.share * stated))

    def items(self, stated: int) -> int:
        """Return the scaled number of items of a task."""
        return max(40, round(min(1.0, 4.0 * self.share) * stated))

    def skewed(self, users: int, draw: int) -> SplitRatings:
        """Draw the skewed task."""
        return skewed(n_users=self.users(users), n_items=self.items(SKEWED_ITEMS), seed=draw)


def low_rank_arms(stated: int, draw: int, epsilon: float) -> tuple[Arm, ...]:
    """Return the methods to compare, with a smaller item ridge than the default, since these ratings have no error.

    DPFW computes a moment of all pairs of items in each round. So it runs only in the first draw, and with its printed
    noise only for one number of users.
    """
    plain: dict[str, Any] = {"offsets": False, "user_means": False}
    dpals = arm("dpals", **plain, sampling="uniform", user_ridge=0.2, item_ridge=0.5 / epsilon**0.5)
    one_shot = arm("one_shot", **plain, user_ridge=0.2, spread=1.0)
    dpfw = arm("dpfw", **plain, spread=1.0)
    printed = dpfw.with_settings("dpfw, printed noise", calibration="paper")
    dear = (dpfw, printed) if stated == _TRACED else (dpfw,)
    return (dpals, one_shot, arm("item_means", user_means=False), *(dear if draw == 0 else ()))


def low_rank_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check median errors, and fill the tables of Figure 4 and of errors by iteration.

    For numbers of users without an expected error, one draw suffices for the figure.
    """
    advice: list[bool] = []
    for stated in USERS:
        errors: dict[tuple[str, float], list[float]] = defaultdict(list)
        costs: dict[tuple[str, float], float] = {}
        for draw in range(scale.runs if stated in AT_MOST else 1):
            made = low_rank(n_users=scale.users(stated), n_items=scale.items(LOW_RANK_ITEMS), seed=draw)
            name, per_user = f"n={made.n_users}", expected_count(made.n_users)
            for epsilon in EPSILONS:
                asked = Asked(rank=LOW_RANK, per_user=per_user, epsilon=epsilon)
                for each in low_rank_arms(stated, draw, epsilon):
                    rounds: list[Matrix] = []
                    found = each.run(made, asked, seed=draw, rounds=rounds)
                    errors[each.name, epsilon].append(held_out_error(found, made, users=_TESTED))
                    if draw == 0:
                        costs[each.name, epsilon] = true_epsilon(each.plan(made, asked))
                        if stated == _TRACED and rounds:
                            place = {"data": name, "arm": f"epsilon {epsilon:g}"}
                            tables["iterations"] += [place | row for row in _traced(found, rounds, made)]
        medians = {key: float(np.median(values)) for key, values in errors.items()}
        for (of, epsilon), median in medians.items():
            epsilons = {"true epsilon": costs[of, epsilon], "asked epsilon": epsilon}
            row = {"data": name, "arm": of, **epsilons, "RMSE": median, "draws": len(errors[of, epsilon])}
            tables["figure4"].append(row)
        for epsilon in EPSILONS:
            request = request_of(made, Asked(rank=LOW_RANK, per_user=per_user, epsilon=epsilon))
            best = min(ADVISED, key=lambda of: medians[of, epsilon])
            advice.append(advised(*request, rank=LOW_RANK, signal=1.0)[0].mechanism == best)
        yield from _low_rank_compared(stated, name, medians)
        if stated in AT_MOST:
            exact = Asked(rank=LOW_RANK, per_user=made.n_items, epsilon=math.inf)
            error = held_out_error(LOW_RANK_EXACT.run(made, exact, seed=0), made, users=_TESTED)
            yield at_most(f"als {name} without privacy: RMSE", NON_PRIVATE_AT_MOST, got=error)
    yield at_least(f"settings of {len(advice)} in which the dry run advises the best", RIGHT, got=sum(advice))


def _traced(found: ItemFactors, rounds: Sequence[Matrix], made: SplitRatings) -> Iterator[dict[str, Any]]:
    """Iterate over the error after each round."""
    for at, factors in enumerate([*rounds[1:], found.factors], start=1):
        yield {"round": at, "RMSE": held_out_error(replace(found, factors=factors), made, users=_TESTED)}


def _low_rank_compared(stated: int, name: str, medians: Mapping[tuple[str, float], float]) -> Iterator[Check]:
    for of, expected in (("dpals", AT_MOST), ("one_shot", ONE_SHOT_AT_MOST)):
        for epsilon, ceiling in zip(EPSILONS, expected.get(stated, ()), strict=False):
            yield at_most(f"{of} {name} epsilon={epsilon:g}: median RMSE", ceiling, got=medians[of, epsilon])
    if stated == 50_000:
        for epsilon, factor in zip(EPSILONS, DPFW_BEATEN, strict=True):
            ratio = medians["dpfw", epsilon] / medians["dpals", epsilon]
            yield at_least(f"{name} epsilon={epsilon:g}: RMSE of dpfw over that of dpals", factor, got=ratio)
    for epsilon in EPSILONS:
        if stated in ONE_SHOT_AT_MOST and epsilon <= ONE_SHOT_WINS:
            ratio = medians["one_shot", epsilon] / medians["dpals", epsilon]
            yield at_most(f"{name} epsilon={epsilon:g}: one_shot wins, its RMSE over that of dpals", 1.0, got=ratio)


def skewed_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check the order of methods and the gain of each part, and fill the tables of the figures."""
    errors: dict[str, list[float]] = defaultdict(list)
    for draw in range(scale.few):
        made = scale.skewed(SKEWED_USERS, draw)
        errors["user mean"].append(_error(user_means(made, centre=CENTRE), made, scale))
        for each in (MEANS, UNIFORM, TAIL, OFFSETS, UNPROJECTED):
            errors[each.name].append(_error(_run(each, made, draw), made, scale))
        if draw == 0:
            _sampled(made, tables)
            _draw_figures(made, scale, tables)
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    name = f"skewed n={scale.users(SKEWED_USERS)} epsilon={EPSILON:g}"
    for worse, better in pairwise(("user mean", MEANS.name, UNIFORM.name, TAIL.name, OFFSETS.name)):
        yield at_least(f"{name}: RMSE of {worse} less that of {better}", 0.0, got=means[worse] - means[better])
    for part, without, having in (
        ("tail sampling", UNIFORM, TAIL),
        ("offsets", TAIL, OFFSETS),
        ("tail sampling over item means", MEANS, TAIL),
    ):
        gain = means[without.name] - means[having.name]
        yield at_least(f"{name}: RMSE gained by {part}", GAINS[part], got=gain)
    lost = means[UNPROJECTED.name] - means["user mean"]
    yield at_least(f"{name}: RMSE without the projection less that of the user mean", 0.0, got=lost)
    few = scale.skewed(FEW_USERS, 0)
    by_means, by_factors = (_error(_run(each, few, 0, epsilon=FEW_EPSILON), few, scale) for each in (MEANS, OFFSETS))
    name = f"skewed n={few.n_users} epsilon={FEW_EPSILON:g}"
    yield at_least(f"{name}: item_means is best, RMSE of dpals less its own", 0.0, got=by_factors - by_means)
    request = request_of(few, Asked(rank=RANK, per_user=PER_USER, epsilon=FEW_EPSILON))
    right = advised(*request, rank=RANK)[0].mechanism == "item_means"
    yield at_least(f"{name}: the dry run advises item_means", 1.0, got=float(right))


def _run(each: Arm, made: SplitRatings, draw: int, *, epsilon: float = EPSILON, rank: int = RANK) -> ItemFactors:
    return each.run(made, Asked(rank=rank, per_user=PER_USER, epsilon=epsilon), seed=draw)


def _error(found: ItemFactors, made: SplitRatings, scale: Scale) -> float:
    return held_out_error(found, made, users=scale.users(_SKEWED_TESTED))


def _sampled(made: SplitRatings, tables: Tables) -> None:
    """Fill Figure 2: the share of ratings that belong to the most rated items, before and after sampling."""
    rng = np.random.default_rng(_SEED)
    train = made.train
    counts = np.bincount(train.indices, minlength=made.n_items).astype(np.float64)
    coins = rng.integers(0, 2**63, made.n_users).astype(np.uint64)
    for name, priorities in (("all ratings", None), ("uniform", np.zeros(made.n_items)), ("tail", counts)):
        kept = (
            np.ones(train.nnz, bool)
            if priorities is None
            else chosen_ratings(train.indices, train.indptr, priorities, PER_USER, coins)
        )
        order = np.sort(np.bincount(train.indices[kept], minlength=made.n_items))[::-1]
        shares = np.cumsum(order) / order.sum()
        for part in np.linspace(0.05, 1.0, 20):
            at = max(1, round(part * made.n_items))
            point = {"share of items": float(part), "share of ratings": float(shares[at - 1])}
            tables["figure2"].append({"data": "skewed", "arm": name, **point})


def _draw_figures(made: SplitRatings, scale: Scale, tables: Tables) -> None:
    """Fill Figures 3 and 5, and the errors by rank, ridge and share of users, each from one draw."""
    for epsilon in (1.0, 3.0, 5.0, 10.0, 20.0):
        for each in (MEANS, UNIFORM, TAIL, OFFSETS, ONE_SHOT):
            cost = true_epsilon(each.plan(made, Asked(rank=RANK, per_user=PER_USER, epsilon=epsilon)))
            error = _error(_run(each, made, 0, epsilon=epsilon), made, scale)
            tables["figure3"].append(
                {"data": "skewed", "arm": each.name, "true epsilon": cost, "asked epsilon": epsilon, "RMSE": error}
            )
    level = _error(user_means(made, centre=CENTRE), made, scale)
    exact = _run(NON_PRIVATE, made, 0, epsilon=math.inf)
    tables["figure3"] += [
        {"data": "skewed", "arm": "user mean", "RMSE": level},
        {"data": "skewed", "arm": NON_PRIVATE.name, "RMSE": _error(exact, made, scale)},
    ]
    for each in (UNIFORM, TAIL, OFFSETS):
        for frequent in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
            some = each.with_settings(each.name, frequent=frequent)
            _add(tables, "figure5", each, {"share of items": frequent}, _error(_run(some, made, 0), made, scale))
    for rank in (2, 4, 8, 16, 32):
        _add(tables, "ranks", OFFSETS, {"rank": rank}, _error(_run(OFFSETS, made, 0, rank=rank), made, scale))
    for ridge in (0.1, 0.3, 1.0, 2.0, 4.0):
        some = OFFSETS.with_settings(OFFSETS.name, item_ridge=ridge)
        _add(tables, "ridges", OFFSETS, {"item ridge": ridge}, _error(_run(some, made, 0), made, scale))
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        users = round(share * made.n_users)
        part = SplitRatings(train=made.train[:users], held=made.held[:users], low=made.low, high=made.high)
        for each in (MEANS, OFFSETS, ONE_SHOT):
            _add(tables, "users", each, {"share of users": share}, _error(_run(each, part, 0), part, scale))


def _add(tables: Tables, table: str, each: Arm, place: dict[str, float], error: float) -> None:
    tables[table].append({"data": f"skewed, epsilon {EPSILON:g}", "arm": each.name, **place, "RMSE": error})


def pair_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check the share of Recall@20 kept with privacy, and that the generator's popularity is the best list."""
    made = pairs(scale.skewed(SKEWED_USERS, _SEED + 2))
    # Item numbers follow their popularity in the generator.
    found = {
        "popularity in the maker": recall(-np.arange(made.n_items, dtype=np.float64), made, users=_PAIRS_TESTED),
        "counts": recall(popularity(made), made, users=_PAIRS_TESTED),
        "factors": recall(_leading(made), made, users=_PAIRS_TESTED),
    }
    tables["pairs"] += [{"data": "pairs", "arm": f"{name}, not private", "Recall@20": of} for name, of in found.items()]
    ones: dict[str, Any] = {"centre": 0.0, "user_means": False}
    ridge = _RIDGE * made.n_items / RANK
    factors, means = arm("one_shot", **ones, offsets=False, spread=1.0, user_ridge=ridge), arm("item_means", **ones)
    for epsilon in (LEAST_EPSILON, PAIRS_EPSILON):
        asked = Asked(rank=RANK, per_user=PER_USER, epsilon=epsilon)
        private, counts = factors.run(made, asked, seed=0), means.run(made, asked, seed=0).counts
        assert counts is not None
        found[f"factors {epsilon:g}"] = recall(private, made, users=_PAIRS_TESTED)
        found[f"counts {epsilon:g}"] = recall(counts, made, users=_PAIRS_TESTED)
        for of, name in ((factors.name, "factors"), ("private counts", "counts")):
            row = {"data": "pairs", "arm": of, "true epsilon": epsilon, "Recall@20": found[f"{name} {epsilon:g}"]}
            tables["pairs"].append(row)
    name = f"pairs n={made.n_users}"
    best = found["popularity in the maker"]
    yield near(
        f"{name}: Recall@20 of counts over that of the popularity that made them", 1.0, 0.02, got=found["counts"] / best
    )
    yield at_most(
        f"{name}: Recall@20 of exact factors over that of counts, so none can pass popularity here",
        1.0,
        got=found["factors"] / found["counts"],
    )
    kept = found[f"factors {PAIRS_EPSILON:g}"] / found["factors"]
    yield at_least(
        f"{name} epsilon={PAIRS_EPSILON:g}: Recall@20 of one_shot over that of exact factors", KEPT, got=kept
    )
    kept = found[f"counts {LEAST_EPSILON:g}"] / found["counts"]
    yield at_least(f"{name} epsilon={LEAST_EPSILON:g}: Recall@20 of private counts over that of counts", KEPT, got=kept)


def _leading(made: SplitRatings) -> ItemFactors:
    """Return the leading singular vectors of the pairs without noise."""
    start = np.ones(made.n_items) / np.sqrt(made.n_items)
    factors = svds(made.train, k=RANK, v0=start, return_singular_vectors="vh", solver="arpack")[2].T
    step = {"centre": 0.0, "prior": None, "ridge": _RIDGE, "rating_bound": 1.0}
    return ItemFactors(factors=np.ascontiguousarray(factors), offsets=np.zeros(made.n_items), user_step=step)


def film_arms(low: float) -> tuple[Arm, ...]:
    """Return the methods to compare on films, centred in the middle of a range that begins at ``low``."""
    stars: dict[str, Any] = {"centre": 3.5 if low == 0.5 else 3.0}
    return (
        arm("dpals", **stars, user_ridge=4.0),
        arm("one_shot", **stars, user_ridge=4.0),
        arm("item_means", **stars),
        arm("dpfw", **stars),
        arm("dpsvd", **stars, user_ridge=4.0),
    )


def film_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Compare methods on the 400 most rated items of synthetic ratings."""
    made = scale.skewed(FILM_USERS, _SEED + 1)
    ids = (np.arange(size) for size in made.train.shape)
    films = FilmRatings(ratings=made.train + made.held, users=next(ids), items=next(ids), low=made.low)
    yield from _films_compared("made ratings", films, tables)


def ml_100k_checks(scale: Scale, data: Path, tables: Tables) -> Iterator[Check]:
    """Compare errors of private and exact factors on ml-100k with user means; it has too few users for privacy."""
    films = read_movielens(data / FETCHED)
    errors: dict[str, list[float]] = defaultdict(list)
    private, means, warned = arm("dpals", user_ridge=4.0), film_arms(1.0)[2], []
    exact = arm("als", "als without privacy", ridge=5.0, offsets=False)
    for draw in range(scale.few):
        rng = np.random.default_rng([_SEED + 1, draw])
        ratings = split(films.ratings, low=films.low, high=films.high, rng=rng)
        plain = user_means(ratings, centre=3.5, prior=0.0)
        errors["user mean"].append(held_out_error(plain, ratings, users=ratings.n_users))
        asked = Asked(rank=ML_100K_RANK, per_user=ML_100K_RATINGS, epsilon=math.inf)
        found = exact.run(ratings, asked, seed=draw)
        errors[exact.name].append(held_out_error(found, ratings, users=ratings.n_users))
        for epsilon in ML_100K_EPSILONS:
            for each in (private, means):
                asked = Asked(rank=ML_100K_RANK, per_user=PER_USER, epsilon=epsilon)
                found = each.run(ratings, asked, seed=draw)
                errors[f"{each.name} {epsilon:g}"].append(held_out_error(found, ratings, users=ratings.n_users))
            warned.append(any("users are too few" in said for said in private.plan(ratings, asked).warnings))
    mean = {name: float(np.mean(values)) for name, values in errors.items()}
    yield at_most(f"ml-100k rank={ML_100K_RANK} without privacy: RMSE", ML_100K_EXACT, got=mean[exact.name])
    yield near("ml-100k: RMSE of user means", ML_100K_MEAN, 0.01, got=mean["user mean"])
    for epsilon in ML_100K_EPSILONS:
        gap = mean[f"dpals {epsilon:g}"] - mean["user mean"]
        yield near(f"ml-100k epsilon={epsilon:g}: RMSE of dpals less that of user means", 0.0, ML_100K_BESIDE, got=gap)
        for each in (private, means):
            row = {
                "data": "ml-100k",
                "arm": each.name,
                "true epsilon": epsilon,
                "RMSE": mean[f"{each.name} {epsilon:g}"],
            }
            tables["ml-100k"].append(row)
    for name in ("user mean", exact.name):
        tables["ml-100k"].append({"data": "ml-100k", "arm": name, "RMSE": mean[name]})
    share = float(np.mean(warned))
    yield at_least("ml-100k: share of dry runs that warn of too few users", 1.0, got=share)


def _films_compared(name: str, films: FilmRatings, tables: Tables) -> Iterator[Check]:
    some = films.most_rated(MOST_RATED)
    ratings = split(some.ratings, low=some.low, high=some.high, rng=np.random.default_rng([_SEED + 1, 0]))
    errors = {}
    for each in film_arms(some.low):
        found = each.run(ratings, Asked(rank=RANK, per_user=PER_USER, epsilon=EPSILON), seed=0)
        errors[each.name] = held_out_error(found, ratings, users=_FILMS_TESTED)
        share = recall(found, ratings, users=_FILMS_TESTED)
        row = {"data": name, "arm": each.name, "epsilon": EPSILON, "RMSE": errors[each.name], "Recall@20": share}
        tables["films"].append({**row, "users": ratings.n_users, "items": ratings.n_items})
    for other in errors:
        if other in ("dpfw", "dpsvd"):
            gap = errors["dpals"] / errors[other]
            yield at_most(
                f"{name}, {MOST_RATED} items, epsilon={EPSILON:g}: RMSE of dpals over {other}'s", 1.0, got=gap
            )
