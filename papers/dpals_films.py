"""Repeat the experiments of the DPALS paper on ratings of films and on preferences, with synthetic data and MovieLens.

Ratings are synthetic or public and keys come from seeds, so nothing is charged and every number is reproducible. All
epsilons are exact.

*Synthetic ratings* have the skewed popularity of MovieLens 10M. *Synthetic preferences* resemble MovieLens 20M: users
choose films by popularity and by individual taste. Then factors can be better than a list of the most popular films.
Without taste, this list is best for every user, and no factorization can be better. Both kinds are compared.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse

from dpca_tasks.kernels.ratings import chosen_ratings
from dpca_tasks.mechanisms.base import ItemFactors
from dpca_tasks.records.made_ratings import SKEWED_ITEMS, SKEWED_USERS, SplitRatings, pairs, skewed, split
from flows.families.completion import advised
from flows.tune import held_out_error
from papers.lib.experiments import (
    Check,
    DataFolder,
    OutFolder,
    Report,
    Runs,
    at_least,
    at_most,
    judged,
    near,
    report,
    side_by_side,
)
from papers.lib.figures import LineChart, write_line_charts
from papers.lib.ratings import (
    CHARGED,
    FETCHED,
    RUNS,
    SHARE,
    Arm,
    Draws,
    FilmRatings,
    Scale,
    ShareOfUsers,
    Tables,
    Trial,
    arm,
    popularity,
    read_movielens,
    recall,
    request_of,
    user_means,
)

RANK, PER_USER, EPSILON, CENTRE = 8, 50, 10.0, 3.5
"""The settings of ratings."""
EPSILONS, PREFERRED_EPSILONS = (1.0, 3.0, 5.0, 10.0, 20.0), (1.0, 5.0, 10.0, 20.0)
USER_MEAN, GLOBAL_MEAN, POPULARITY = "user mean", "global mean", "most popular"
MEANS = arm("item_means", centre=CENTRE)
OFFSETS = arm("dpals", "dpals, tail and offsets", centre=CENTRE, user_ridge=4.0, item_ridge=0.7, pooled=1)
TAIL = OFFSETS.with_settings("dpals, tail", offsets=False, totals_share=0.03)
UNIFORM = TAIL.with_settings("dpals, uniform", sampling="uniform")
"""Three variants of DPALS: OFFSETS releases counts and offsets, TAIL releases only counts (which need less budget),
and UNIFORM releases neither."""
UNPROJECTED = arm(
    "unprojected",
    "dpals, no projection",
    rounds=3,
    item_ridge=0.3,
    centre=CENTRE,
    user_ridge=4.0,
    sampling="uniform",
    offsets=False,
)
ONE_SHOT = arm("one_shot", centre=CENTRE, user_ridge=4.0)
DPFW, DPSVD = arm("dpfw", centre=CENTRE), arm("dpsvd", centre=CENTRE, user_ridge=4.0)
ALS = arm("als", "als without privacy", centre=CENTRE, ridge=8.0)
ALS_UNIFORM, ALS_TAIL = "als, uniform sample", "als, tail sample"
PREFERENCES: dict[str, Any] = {"centre": 0.0, "user_means": False, "offsets": False}
ALL_PAIRS = arm("dpals", "dpals with lambda_0", **PREFERENCES, unobserved=0.3, user_ridge=10.0)
NO_PAIRS = ALL_PAIRS.with_settings("dpals without lambda_0", unobserved=0.0)
PREFERRED_DPFW = arm("dpfw", **PREFERENCES, spread=1.0)
IALS = arm("ials", "als without privacy", unobserved=0.3, ridge=5.0)
NOISELESS, HUGE = "dpals without noise", 1e6
CHARTS = {
    "figure2": LineChart(
        title="Figure 2: skew before and after sampling", x="share of items", y="share of ratings", log=False
    ),
    "figure3a": LineChart(
        title="Figure 3a: error on the 400 most rated films",
        x="epsilon",
        y="RMSE",
        arms=("dpals", "dpfw", "dpsvd", ALS.name, GLOBAL_MEAN, USER_MEAN),
    ),
    "figure3b": LineChart(
        title="Figure 3b: error on all films",
        x="epsilon",
        y="RMSE",
        arms=(OFFSETS.name, TAIL.name, UNIFORM.name, "dpfw on the top films", ONE_SHOT.name, USER_MEAN, ALS.name),
    ),
    "figure3c": LineChart(
        title="Figure 3c: recall of preferences",
        x="epsilon",
        y="Recall@20",
        arms=(ALL_PAIRS.name, NO_PAIRS.name, PREFERRED_DPFW.name, ONE_SHOT.name, POPULARITY, IALS.name, NOISELESS),
    ),
    "figure5": LineChart(
        title="Figure 5: error by the share of items in use",
        x="share of items",
        y="RMSE",
        log=False,
        arms=(TAIL.name, UNIFORM.name, UNPROJECTED.name, ALS_TAIL, ALS_UNIFORM, ALS.name),
    ),
    "ranks": LineChart(title="Error by rank", x="rank", y="RMSE"),
    "ridges": LineChart(title="Error by ridge, as a multiple of the usual ridge", x="ridge", y="RMSE"),
    "users": LineChart(title="Error by share of users on the 400 most rated films", x="share of users", y="RMSE"),
    "ml-100k": LineChart(title="Error against epsilon, ml-100k", x="epsilon", y="RMSE"),
}

GAINS = {"tail sampling": 0.006, "offsets": 0.005, "tail sampling over item means": 0.02}
FEW_USERS, FEW_EPSILON = 8_000, 1.0
BEATS_DPFW, MOST_RATED = 0.05, 400
"""The least relative gain over DPFW at every epsilon from 5 on (the paper states 0.07 to 0.116), and the number of
films in this comparison."""
FEW_SHARE = 0.23
"""The fraction of users with which DPALS must be as accurate as DPFW with all users, as in the paper."""
TASTE, KEPT, LEAST_KEPT = 1.5, 0.85, 1.0
"""The weight of taste in synthetic preferences, the fraction of the non-private recall that DPALS must reach from
epsilon 5 on, and its least ratio to the recall of popularity at every epsilon."""
FRACTIONS, RANKS, RIDGES, SHARES = (
    (0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
    (2, 4, 8, 16, 32),
    (0.1, 0.3, 1.0, 3.0, 10.0),
    (0.1, FEW_SHARE, 0.5, 0.75, 1.0),
)
ML_100K_RANK, ML_100K_EPSILONS, ML_100K_RATINGS = 4, (1.0, 5.0, 10.0, 20.0), 1_682
ML_100K_EXACT, ML_100K_MEAN = 0.925, 1.044
ML_100K_BELOW_MEAN = {1.0: (-0.006, 0.034), 5.0: (-0.021, 0.019), 10.0: (-0.051, -0.011), 20.0: (-0.066, -0.026)}
"""Bounds on the error of DPALS minus the error of user means, by epsilon; negative from epsilon 10 on."""

_SEED, _SKEWED_TESTED, _PAIRS_TESTED, _FILMS_TESTED = 20210720, 6_000, 2_000, 4_000


def reproduce(
    *,
    data: DataFolder = Path("data"),
    runs: Runs = RUNS,
    share: ShareOfUsers = SHARE,
    movielens: Annotated[
        Path | None,
        typer.Option(
            help="Folder of MovieLens: u.data (100K), ratings.dat (1M with users.dat, 10M), ratings.csv (20M, 25M)."
        ),
    ] = None,
    out: OutFolder = None,
) -> Report:
    """Check private alternating least squares on ratings of skewed popularity, on preferences, and on films.

    Ratings are synthetic or public and keys come from seeds, so nothing is charged; every epsilon is exact. --json also
    contains the tables of the figures. It takes ten minutes on two processors; with fewer runs or users the checks are
    not judged. Tables of MovieLens are added without checks.

    Returns
    -------
    Report
        With ``tables``, ``seeds``, ``files`` and ``charged``.
    """
    scale = Scale(share=share, runs=runs)
    tables: Tables = {name: [] for name in CHARTS}
    parts: list[tuple[Callable[[Tables], Iterator[Check]], bool]] = [
        (partial(each, scale), scale.is_full) for each in (skewed_checks, film_checks, preference_checks)
    ]
    films = None if movielens is None else read_movielens(movielens)
    left_out = []
    if (data / FETCHED).is_dir():
        parts.append((partial(ml_100k_checks, scale, data), scale.runs >= RUNS))
    else:
        left_out.append(f"ml-100k: {data} has no {FETCHED}; fetch it with make data")
    if films is None:
        left_out.append("MovieLens 1M to 25M: no package has them; name the folder of ratings with --movielens")

    def checks() -> Iterator[Check]:
        found = side_by_side([partial(found_by, part) for part, _ in parts])
        for (rows, made), (_, full) in zip(found, parts, strict=True):
            for name, some in rows.items():
                tables[name] += some
            yield from judged(made, full=full)
        if films is not None:
            assert movielens is not None
            name = movielens.name
            films_compared(name, [films.most_rated(MOST_RATED)], tables)
            preferences_compared(name, [_preferences(films)], tables)

    found = report(checks(), left_out=left_out, tables=tables, charged=CHARGED, seeds=list(range(runs)))
    return found | {"files": write_line_charts(tables, CHARTS, out)}


def found_by(part: Callable[[Tables], Iterator[Check]]) -> tuple[Tables, list[Check]]:
    """Run one part of the experiments, and return the rows of its tables and its checks."""
    tables: Tables = {name: [] for name in CHARTS}
    return tables, list(part(tables))


def _made(scale: Scale, users: int, draw: int, *, taste: float = 0.0) -> SplitRatings:
    return skewed(n_users=scale.users(users), n_items=scale.items(SKEWED_ITEMS), seed=draw, taste=taste)


def _run(each: Arm, made: SplitRatings, draw: int, *, epsilon: float = EPSILON, rank: int = RANK) -> ItemFactors:
    return each.run(made, Trial(rank=rank, per_user=PER_USER, epsilon=epsilon), seed=draw)


def _error(found: ItemFactors, made: SplitRatings) -> float:
    return held_out_error(found, made, users=_SKEWED_TESTED)


def _exactly(each: Arm, made: SplitRatings, draw: int, *, rank: int = RANK) -> ItemFactors:
    """Run a method without privacy on all ratings, as a reference."""
    return each.run(made, Trial(rank=rank, per_user=made.n_items, epsilon=math.inf), seed=draw)


def skewed_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Compare methods on synthetic ratings, check the gain of each part of DPALS, and check Figures 2, 3b and 5."""
    against, fractions, ranks, ridges = Draws(), Draws(), Draws(), Draws()
    small = Draws()
    for draw in range(scale.runs):
        made = _made(scale, SKEWED_USERS, draw)
        against.add(_error(user_means(made, centre=CENTRE), made), USER_MEAN)
        against.add(_error(_exactly(ALS, made, draw), made), ALS.name)
        for epsilon in EPSILONS:
            for each in (MEANS, UNIFORM, TAIL, OFFSETS, ONE_SHOT):
                against.add(_error(_run(each, made, draw, epsilon=epsilon), made), each.name, epsilon)
            top = top_films(made)
            found = _spread_over(_run(DPFW, top[0], draw, epsilon=epsilon), top[1], made)
            against.add(_error(found, made), "dpfw on the top films", epsilon)
        if draw == 0:
            yield from _skew(made, tables)
        for fraction in FRACTIONS:
            for each in (UNIFORM, TAIL):
                some = each.with_settings(each.name, frequent=fraction)
                fractions.add(_error(_run(some, made, draw), made), each.name, fraction)
                if fraction in (0.3, 1.0):
                    small.add(_error(_run(some, made, draw, epsilon=FEW_EPSILON), made), each.name, fraction)
            some = UNPROJECTED.with_settings(UNPROJECTED.name, frequent=fraction)
            fractions.add(_error(_run(some, made, draw), made), UNPROJECTED.name, fraction)
            for name, sample in (("all", ALS.name), ("uniform", ALS_UNIFORM), ("tail", ALS_TAIL)):
                part = sampled(made, name, fraction=fraction, seed=draw)
                fractions.add(_error(_exactly(ALS, part, draw), made), sample, fraction)
        for rank in RANKS:
            ranks.add(_error(_run(OFFSETS, made, draw, rank=rank), made), OFFSETS.name, rank)
            ranks.add(_error(_exactly(ALS, made, draw, rank=rank), made), ALS.name, rank)
        for ridge in RIDGES:
            for which, usual in (("item_ridge", 0.7), ("user_ridge", 4.0)):
                some = OFFSETS.with_settings(which, **{which: ridge * usual})
                ridges.add(_error(_run(some, made, draw), made), which, ridge)
    name = f"skewed n={scale.users(SKEWED_USERS)}"
    against.fill(tables["figure3b"], name, "epsilon")
    fractions.fill(tables["figure5"], f"{name}, epsilon {EPSILON:g}", "share of items")
    small.fill(tables["figure5"], f"{name}, epsilon {FEW_EPSILON:g}", "share of items")
    ranks.fill(tables["ranks"], f"{name}, epsilon {EPSILON:g}", "rank")
    ridges.fill(tables["ridges"], f"{name}, epsilon {EPSILON:g}", "ridge")
    yield from _parts_compared(f"{name} epsilon={EPSILON:g}", against, fractions)
    yield from _studies(name, fractions, small, ranks, ridges)
    yield from _few_users(scale)


def _parts_compared(name: str, against: Draws, fractions: Draws) -> Iterator[Check]:
    of = {each.name: against[each.name, EPSILON] for each in (MEANS, UNIFORM, TAIL, OFFSETS)}
    of[USER_MEAN] = against[USER_MEAN]
    for worse, better in pairwise((USER_MEAN, MEANS.name, UNIFORM.name, TAIL.name, OFFSETS.name)):
        yield at_least(f"{name}: RMSE of {worse} minus that of {better}", 0.0, got=of[worse] - of[better])
    for part, without, having in (
        ("tail sampling", UNIFORM, TAIL),
        ("offsets", TAIL, OFFSETS),
        ("tail sampling over item means", MEANS, TAIL),
    ):
        gain = of[without.name] - of[having.name]
        yield at_least(f"{name}: reduction of RMSE by {part}", GAINS[part], got=gain)
    lost = fractions[UNPROJECTED.name, 1.0] - of[USER_MEAN]
    yield at_least(f"{name}: RMSE without the projection minus that of the user mean", 0.0, got=lost)
    for epsilon in EPSILONS[2:]:
        gain = against["dpfw on the top films", epsilon] - against[OFFSETS.name, epsilon]
        yield at_least(f"all films, epsilon={epsilon:g}: RMSE of dpfw minus that of dpals", 0.0, got=gain)


def _studies(name: str, fractions: Draws, small: Draws, ranks: Draws, ridges: Draws) -> Iterator[Check]:
    """Check the claims of the paper on Figure 5, and on the settings rank and ridge."""
    exact = [fractions[ALS.name, fraction] for fraction in FRACTIONS]
    yield at_most(
        f"{name}: als is best with all films, its RMSE divided by the smallest", 1.0, got=exact[-1] / min(exact)
    )
    for sample in (ALS_UNIFORM, ALS_TAIL):
        yield at_least(f"{name}: increase of RMSE by {sample}", 0.005, got=fractions[sample, 1.0] - exact[-1])
    gap = abs(fractions[ALS_TAIL, 1.0] - fractions[ALS_UNIFORM, 1.0])
    gain = fractions[UNIFORM.name, 1.0] - fractions[TAIL.name, 1.0]
    yield at_most(f"{name}: effect of the sampling rule on als divided by its effect on dpals", 1.0, got=gap / gain)
    gains = {
        epsilon: of[UNIFORM.name, 1.0] - of[UNIFORM.name, 0.3]
        for epsilon, of in ((FEW_EPSILON, small), (EPSILON, fractions))
    }
    yield at_least(
        f"{name} epsilon={FEW_EPSILON:g}: reduction of RMSE by using only the top 30 % of films",
        0.0,
        got=gains[FEW_EPSILON],
    )
    more = gains[FEW_EPSILON] - gains[EPSILON]
    yield at_least(
        f"{name}: gain by the top 30 % of films at epsilon {FEW_EPSILON:g} minus that at {EPSILON:g}", 0.0, got=more
    )
    private, without = ([ranks[of, rank] for rank in RANKS] for of in (OFFSETS.name, ALS.name))
    yield at_least(
        f"{name}: increase of the RMSE of dpals from its best rank to rank 32", 0.003, got=private[-1] - min(private)
    )
    best = RANKS[int(np.argmin(private))]
    yield near(f"{name}: best rank of dpals", 8, 4, got=best)
    yield at_most(
        f"{name}: RMSE of als at rank 8 divided by that at its best rank", 1.03, got=without[2] / min(without)
    )
    for which in ("item_ridge", "user_ridge"):
        errors = [ridges[which, ridge] for ridge in RIDGES]
        yield at_most(f"{name}: RMSE at the usual {which} divided by the smallest", 1.01, got=errors[2] / min(errors))
        yield at_least(
            f"{name}: RMSE at a tenth of {which} divided by the smallest", 1.003, got=errors[0] / min(errors)
        )


def _few_users(scale: Scale) -> Iterator[Check]:
    few = _made(scale, FEW_USERS, 0)
    by_means, by_factors = (_error(_run(each, few, 0, epsilon=FEW_EPSILON), few) for each in (MEANS, OFFSETS))
    name = f"skewed n={few.n_users} epsilon={FEW_EPSILON:g}"
    yield at_least(
        f"{name}: item_means is best, RMSE of dpals minus that of item_means", 0.0, got=by_factors - by_means
    )
    request = request_of(few, Trial(rank=RANK, per_user=PER_USER, epsilon=FEW_EPSILON))
    right = advised(*request, rank=RANK)[0].mechanism == "item_means"
    yield at_least(f"{name}: the dry run advises item_means", 1.0, got=float(right))


def top_films(made: SplitRatings) -> tuple[SplitRatings, np.ndarray[Any, Any]]:
    """Return the training ratings and the indices of the most rated films, on which the paper runs DPFW."""
    top = np.sort(np.argsort(-popularity(made), kind="stable")[:MOST_RATED])
    kept = SplitRatings(
        train=sparse.csr_array(made.train[:, top]),
        held=sparse.csr_array(made.held[:, top]),
        low=made.low,
        high=made.high,
    )
    return kept, top


def _spread_over(found: ItemFactors, top: np.ndarray[Any, Any], made: SplitRatings) -> ItemFactors:
    """Extend a release of some films to all films; the other films get offset 0 and factor 0."""
    assert found.factors is not None
    factors, offsets = np.zeros((made.n_items, found.factors.shape[1])), np.zeros(made.n_items)
    factors[top], offsets[top] = found.factors, found.offsets
    return replace(found, factors=factors, offsets=offsets, counts=None)


def sampled(made: SplitRatings, how: str, *, fraction: float, seed: int) -> SplitRatings:
    """Return at most `PER_USER` training ratings of each user, on the ``fraction`` of films with the most ratings.

    ``how`` selects the ratings of a user: ``uniform`` (at random), ``tail`` (the films with the fewest ratings), or
    ``all`` (no limit). The numbers of ratings per film are exact, without noise.
    """
    counts, train = popularity(made), made.train
    frequent = np.zeros(made.n_items, bool)
    frequent[np.argsort(-counts, kind="stable")[: math.ceil(fraction * made.n_items)]] = True
    kept = frequent[train.indices]
    if how != "all":
        priorities = np.where(frequent, counts if how == "tail" else 0.0, np.inf)
        coins = np.random.default_rng([_SEED, seed]).integers(0, 2**63, made.n_users).astype(np.uint64)
        kept &= chosen_ratings(train.indices, train.indptr, priorities, PER_USER, coins)
    rows = np.repeat(np.arange(made.n_users), np.diff(train.indptr))[kept]
    part = sparse.coo_array((train.data[kept], (rows, train.indices[kept])), shape=train.shape).tocsr()
    return SplitRatings(train=part, held=made.held, low=made.low, high=made.high)


def _skew(made: SplitRatings, tables: Tables) -> Iterator[Check]:
    """Check Figure 2: the share of all ratings that the most rated items have, before and after sampling."""
    top: dict[str, float] = {}
    for name, how in (("all ratings", "all"), ("uniform", "uniform"), ("tail", "tail")):
        counts = popularity(sampled(made, how, fraction=1.0, seed=0))
        shares = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
        for part in np.linspace(0.05, 1.0, 20):
            at = max(1, round(part * made.n_items))
            point = {"share of items": float(part), "share of ratings": float(shares[at - 1])}
            tables["figure2"].append({"data": "skewed", "arm": name, **point})
        top[name] = float(shares[round(0.2 * made.n_items) - 1])
    yield at_least(
        "skewed: share of ratings of the top 20 % of films (MovieLens 10M: 0.85)", 0.7, got=top["all ratings"]
    )
    yield at_least(
        "skewed: that share in a uniform sample minus that of all", 0.0, got=top["uniform"] - top["all ratings"]
    )
    yield at_least("skewed: that share in a uniform sample minus that of tail", 0.1, got=top["uniform"] - top["tail"])


def film_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check Figure 3a (methods on the 400 most rated films of synthetic ratings) and the claim on 23 % of the users."""
    films = []
    for draw in range(scale.runs):
        made = _made(scale, FEW_USERS, draw)
        ids = (np.arange(size) for size in made.train.shape)
        all_films = FilmRatings(ratings=made.train + made.held, users=next(ids), items=next(ids), low=made.low)
        films.append(all_films.most_rated(MOST_RATED))
    of = films_compared(f"made, n={scale.users(FEW_USERS)}", films, tables)
    for epsilon in EPSILONS[2:]:
        gain = 1.0 - of["dpals", epsilon] / of["dpfw", epsilon]
        yield at_least(f"top films, epsilon={epsilon:g}: relative gain of dpals over dpfw", BEATS_DPFW, got=gain)
    for epsilon in EPSILONS:
        gap = of["dpals", epsilon] - min(of[name, epsilon] for name in ("dpfw", "dpsvd"))
        yield at_most(f"top films, epsilon={epsilon:g}: RMSE of dpals minus the best of dpfw and dpsvd", 0.0, got=gap)
    gains = [1.0 - of["dpals", epsilon] / of["dpfw", epsilon] for epsilon in EPSILONS]
    yield at_least("top films: relative gain over dpfw at epsilon 20 minus that at 1", 0.0, got=gains[-1] - gains[0])
    users = Draws()
    for draw in range(scale.runs):
        made = _made(scale, SKEWED_USERS, draw)
        top, _ = top_films(made)
        users.add(_error(_run(DPFW, top, draw), top), "dpfw", 1.0)
        for share in SHARES:
            count = round(share * top.n_users)
            part = replace(top, train=top.train[:count], held=top.held[:count])
            found = _run(arm("dpals", centre=CENTRE, user_ridge=4.0), part, draw)
            users.add(_error(found, top), "dpals", share)
    users.fill(tables["users"], f"skewed n={scale.users(SKEWED_USERS)}, epsilon {EPSILON:g}", "share of users")
    gap = users["dpals", FEW_SHARE] - users["dpfw", 1.0]
    yield at_most(f"RMSE of dpals with {FEW_SHARE:.0%} of the users minus that of dpfw with all", 0.0, got=gap)


def film_arms(low: float) -> tuple[Arm, ...]:
    """Return the methods to compare on films; ratings are centered in the middle of a range that begins at ``low``."""
    stars: dict[str, Any] = {"centre": 3.5 if low == 0.5 else 3.0}
    return (
        arm("dpals", **stars, user_ridge=4.0),
        arm("one_shot", **stars, user_ridge=4.0),
        arm("item_means", **stars),
        arm("dpfw", **stars),
        arm("dpsvd", **stars, user_ridge=4.0),
    )


def films_compared(name: str, films: list[FilmRatings], tables: Tables) -> Draws:
    """Compare methods on the films of each draw at every epsilon, and fill the table of Figure 3a."""
    errors = Draws()
    for draw, some in enumerate(films):
        ratings = split(some.ratings, low=some.low, high=some.high, rng=np.random.default_rng([_SEED + 1, draw]))
        for each in film_arms(some.low):
            for epsilon in EPSILONS:
                found = _run(each, ratings, draw, epsilon=epsilon)
                errors.add(held_out_error(found, ratings, users=_FILMS_TESTED), each.name, epsilon)
        centre = float(ratings.train.data.mean())
        plain = user_means(ratings, centre=centre)
        errors.add(held_out_error(plain, ratings, users=_FILMS_TESTED), USER_MEAN)
        flat = user_means(ratings, centre=centre, prior=1e9)
        errors.add(held_out_error(flat, ratings, users=_FILMS_TESTED), GLOBAL_MEAN)
        exact = _exactly(ALS, ratings, draw)
        errors.add(held_out_error(exact, ratings, users=_FILMS_TESTED), ALS.name)
    errors.fill(tables["figure3a"], name, "epsilon")
    return errors


def _preferences(films: FilmRatings) -> SplitRatings:
    """Turn ratings into preferences: a user prefers the films that the user rated 4 or more, as for MovieLens 20M."""
    liked = films.ratings.copy()
    liked.data = (liked.data >= 4.0).astype(np.float64)
    liked.eliminate_zeros()
    return split(liked, low=0.0, high=1.0, rng=np.random.default_rng(_SEED))


def preference_checks(scale: Scale, tables: Tables) -> Iterator[Check]:
    """Check Figure 3c: recall of DPALS with the weight lambda_0 of unrated pairs, compared with other methods.

    The other methods are the most popular films, DPFW, and factors without privacy.
    """
    made = [pairs(_made(scale, SKEWED_USERS, draw, taste=TASTE)) for draw in range(scale.runs)]
    of = preferences_compared(f"made preferences, n={made[0].n_users}", made, tables)
    exact, popular = max(of[IALS.name], of[NOISELESS]), of[POPULARITY]
    yield at_least("preferences: Recall@20 without privacy divided by that of popularity", 1.2, got=exact / popular)
    for epsilon in PREFERRED_EPSILONS:
        found = of[ALL_PAIRS.name, epsilon]
        name = f"preferences, epsilon={epsilon:g}: Recall@20 of dpals with lambda_0 divided by that of"
        yield at_least(f"{name} popularity", LEAST_KEPT, got=found / popular)
        for other in (PREFERRED_DPFW, NO_PAIRS):
            yield at_least(f"{name} {other.name}", 1.0, got=found / of[other.name, epsilon])
        if epsilon > 1.0:
            yield at_least(f"{name} the better non-private one", KEPT, got=found / exact)
    without = pairs(_made(scale, SKEWED_USERS, 0))
    ratio = recall(_exactly(IALS, without, 0), without, users=_PAIRS_TESTED)
    ratio /= recall(popularity(without), without, users=_PAIRS_TESTED)
    yield at_most("preferences without taste: Recall@20 of als divided by that of popularity", 1.02, got=ratio)


def preferences_compared(name: str, made: list[SplitRatings], tables: Tables) -> Draws:
    """Compare methods on the preferences of each draw, and fill the table of Figure 3c."""
    found = Draws()
    for draw, ones in enumerate(made):
        found.add(recall(popularity(ones), ones, users=_PAIRS_TESTED), POPULARITY)
        found.add(recall(_exactly(IALS, ones, draw), ones, users=_PAIRS_TESTED), IALS.name)
        noiseless = _run(ALL_PAIRS, ones, draw, epsilon=HUGE)
        found.add(recall(noiseless, ones, users=_PAIRS_TESTED), NOISELESS)
        one_shot = arm("one_shot", **PREFERENCES, spread=1.0, user_ridge=10.0 * ones.n_items / RANK)
        for epsilon in PREFERRED_EPSILONS:
            for each in (ALL_PAIRS, NO_PAIRS, PREFERRED_DPFW, one_shot):
                got = recall(_run(each, ones, draw, epsilon=epsilon), ones, users=_PAIRS_TESTED)
                found.add(got, each.name, epsilon)
    found.fill(tables["figure3c"], name, "epsilon", "Recall@20")
    return found


def ml_100k_checks(scale: Scale, data: Path, tables: Tables) -> Iterator[Check]:
    """Compare private factors and factors without privacy with user means, on MovieLens 100K.

    MovieLens 100K has too few users for private factors to be useful.
    """
    films = read_movielens(data / FETCHED)
    errors, warned = Draws(), []
    private, means = arm("dpals", user_ridge=4.0), film_arms(1.0)[2]
    exact = arm("als", ALS.name, ridge=5.0, offsets=False)
    for draw in range(scale.runs):
        rng = np.random.default_rng([_SEED + 1, draw])
        ratings = split(films.ratings, low=films.low, high=films.high, rng=rng)
        every: Mapping[str, int] = {"users": ratings.n_users}
        errors.add(held_out_error(user_means(ratings, centre=3.5, prior=0.0), ratings, **every), USER_MEAN)
        requested = Trial(rank=ML_100K_RANK, per_user=ML_100K_RATINGS, epsilon=math.inf)
        errors.add(held_out_error(exact.run(ratings, requested, seed=draw), ratings, **every), ALS.name)
        for epsilon in ML_100K_EPSILONS:
            requested = Trial(rank=ML_100K_RANK, per_user=PER_USER, epsilon=epsilon)
            for each in (private, means):
                errors.add(
                    held_out_error(each.run(ratings, requested, seed=draw), ratings, **every), each.name, epsilon
                )
            warned.append(any("users are too few" in text for text in private.plan(ratings, requested).warnings))
    errors.fill(tables["ml-100k"], "ml-100k", "epsilon")
    yield at_most(f"ml-100k rank={ML_100K_RANK} without privacy: RMSE", ML_100K_EXACT, got=errors[ALS.name])
    yield near("ml-100k: RMSE of user means", ML_100K_MEAN, 0.01, got=errors[USER_MEAN])
    for epsilon, (least, most) in ML_100K_BELOW_MEAN.items():
        gap = errors[private.name, epsilon] - errors[USER_MEAN]
        middle, half = (least + most) / 2.0, (most - least) / 2.0
        yield near(f"ml-100k epsilon={epsilon:g}: RMSE of dpals minus that of user means", middle, half, got=gap)
    yield at_least("ml-100k: share of dry runs that warn of too few users", 1.0, got=float(np.mean(warned)))
