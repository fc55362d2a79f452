"""Completion mechanisms on ratings in memory, measures of their predictions, and readers of MovieLens files.

Keys come from seeds and the ratings are public or synthetic, so nothing is charged and every number is reproducible.
Predictions are made by `dpca.artifacts.embeddings.ItemEmbeddings`, as for consumers of a release.

The MovieLens formats are these:

- 100K: ``u.data``, separated by tabs;
- 1M, and 10M with half stars: ``ratings.dat``, separated by ``::``;
- 20M and 25M: ``ratings.csv``, with a header;
- 100K as fetched by ``make data``: ``ml-100k.inter``, with a header.

Each line has a user, an item, a rating and a time.
"""

import io
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from pyarrow import csv
from scipy import sparse

from dpca.errors import BadSource, Invalid
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.mechanisms.base import NO_GUARANTEE, ItemFactors, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.completion.ratings import UNIT, RatingsProblem, in_steps, orthonormal, release_totals
from dpca_tasks.metrics import ranked_items, recall_of
from dpca_tasks.noise.distributions import JointGaussian
from dpca_tasks.privacy.curator import Curator, DisclosingCurator, TiledAnswer
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.item_statistics import ItemStatistics
from dpca_tasks.queries.joint_sum import TiledSum
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.records.made_ratings import SplitRatings, ratings_of
from flows.tune import embeddings_of
from papers.lib.experiments import Matrix, summary_of

DELTA, RECOMMENDED, RUNS, SHARE = 1e-5, 20, 5, 1.0
CHARGED = "nothing: ratings are synthetic or public, and keys come from seeds"

type Tables = dict[str, list[dict[str, Any]]]

ShareOfUsers = Annotated[
    float, typer.Option(help="Fraction of the default number of users; below 1, most checks are not judged.")
]

_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of the synthetic tasks, and the number of random draws, whose seeds are 0, 1, ...

    ``share`` is the fraction of the default number of users. The number of items is the default number for shares down
    to a quarter; below a quarter, it decreases in proportion.
    """

    share: float = SHARE
    runs: int = RUNS

    def __post_init__(self) -> None:
        """Refuse a ``share`` that is not in (0, 1]."""
        if not 0.0 < self.share <= 1.0:
            raise Invalid(f"share={self.share} must be in (0, 1]; correct it.")

    @property
    def is_full(self) -> bool:
        """True if size and number of draws are the defaults, for which the checks are made."""
        return self.share >= SHARE and self.runs >= RUNS

    def users(self, declared: int) -> int:
        """Return the scaled number of users of a task."""
        return max(50, round(self.share * declared))

    def items(self, declared: int) -> int:
        """Return the scaled number of items of a task."""
        return max(40, round(min(1.0, 4.0 * self.share) * declared))


class Draws:
    """Measured values of compared methods (arms) over several draws.

    The key of a value is the method and, if the value depends on a varied quantity, the value of this quantity.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[Any, ...], list[float]] = defaultdict(list)

    def add(self, value: float, *key: Any) -> None:
        """Add the value that was measured in one draw."""
        self.values[key].append(value)

    def __getitem__(self, key: Any) -> float:
        """Return the mean of the values of a key over all draws."""
        return float(np.mean(self.values[key if isinstance(key, tuple) else (key,)]))

    def fill(self, table: list[dict[str, Any]], data: str, place: str, measure: str = "RMSE") -> None:
        """Add a row for each key to a table, with the mean of its values and, with several draws, their std."""
        for (name, *at), values in self.values.items():
            row: dict[str, Any] = {"data": data, "arm": name} | ({place: at[0]} if at else {})
            row |= summary_of([{measure: value} for value in values], [measure])
            table.append(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The parameters of a run that are not settings of the compared method.

    They are the rank, the number of ratings that are used per user, and epsilon at `DELTA`. An infinite epsilon means
    a run without privacy, as a reference.
    """

    rank: int
    per_user: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A compared method: a mechanism with settings, and its name in tables and figures."""

    name: str
    mechanism: str
    settings: Mapping[str, Any]

    def with_settings(self, name: str, **settings: Any) -> "Arm":
        """Return a compared method with a new name and additional or changed settings."""
        return Arm(name=name, mechanism=self.mechanism, settings={**self.settings, **settings})

    def plan(self, ratings: SplitRatings, requested: Trial) -> Plan:
        """Plan the mechanism for the given ratings, rank and epsilon."""
        plan: Plan = self._mechanism(requested).plan(*request_of(ratings, requested))
        return plan

    def run(
        self, ratings: SplitRatings, requested: Trial, *, seed: int, rounds: list[Matrix] | None = None
    ) -> ItemFactors:
        """Release factors of items from the training ratings.

        Parameters
        ----------
        ratings : SplitRatings
        requested : Trial
        seed : int
            The seed of the noise.
        rounds : list, optional
            The list to which the factors at the start of each round of alternating least squares are appended.
        """
        plan = self.plan(ratings, requested)
        reservation = InMemoryReservation(event=plan.event, key=seed.to_bytes(32, "little"))
        source, mechanism = ArrayBlocks(ratings.train), self._mechanism(requested)
        found: ItemFactors
        if math.isinf(requested.epsilon):
            found = mechanism.run(DisclosingCurator(source, reservation, i_know_this_is_not_private=True), plan)
        else:
            found = mechanism.run(_Watched(source, reservation, [] if rounds is None else rounds), plan)
        return found

    def _mechanism(self, requested: Trial) -> Any:
        known = {**MECHANISMS, **REFERENCES, "unprojected": Unprojected}
        return known[self.mechanism](rank=requested.rank, **self.settings)


def arm(mechanism: str, name: str = "", **settings: Any) -> Arm:
    """Return a compared method from the name of a mechanism and settings; its name is by default the mechanism's."""
    return Arm(name=name or mechanism, mechanism=mechanism, settings=settings)


class _Watched(Curator):
    """A curator that records the factors with which every round begins."""

    def __init__(self, source: ArrayBlocks, reservation: InMemoryReservation, rounds: list[Matrix]) -> None:
        super().__init__(source, reservation)
        self._rounds = rounds

    def release_tiles(self, query: TiledSum, distribution: JointGaussian) -> TiledAnswer:
        if isinstance(query, ItemStatistics):
            self._rounds.append(np.asarray(query.factors * query.unit, np.float64))
        return super().release_tiles(query, distribution)


class Unprojected(Dpals):
    """A variant of `Dpals` without the projection of noisy matrices, to measure the effect of this projection.

    For each item, `Dpals` projects a noisy matrix H to a positive semidefinite matrix. This matters only if the ridge
    is below the spectral norm of the noise, because a larger ridge makes H positive anyway.
    """

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Run all rounds without a projection; if some items get no factors, first release noisy counts of ratings."""
        problem, centred = plan.problem, self._centring(plan.problem)
        noises, factors, priorities = self._noises(problem, plan.target), self._random_start(problem), None
        if noises.totals is not None:
            priorities = self._priorities(release_totals(curator, problem, centred, noises.totals)[1])
        out_of_use = slice(0) if priorities is None else np.isinf(priorities)
        for noise in noises.rounds:
            query = self._query(
                problem, plan.target, bits=plan.bits, centred=centred, factors=factors, priorities=priorities
            )
            parts, outer = curator.release_parts(query, noise), query.parts["outer"]
            ridge = self.item_ridge * outer.scale * outer.unit * noise.noise_multiplier * math.sqrt(2.0 * self.rank)
            weighted = parts["weighted"].reshape(problem.n_features, self.rank, 1)
            factors = np.linalg.solve(parts["outer"] + ridge * np.eye(self.rank), weighted)[:, :, 0]
            factors[out_of_use] = 0.0
            factors = orthonormal(factors)
        return ItemFactors(
            factors=np.asarray(in_steps(factors) * UNIT, np.float64),
            offsets=np.zeros(problem.n_features),
            user_step={
                **centred.facts,
                "ridge": self._ridge(problem),
                "rating_bound": problem.high - problem.low,
            },
        )


def request_of(ratings: SplitRatings, requested: Trial) -> tuple[RatingsProblem, PrivacyTarget]:
    """Return the public facts about ratings (including the number of users) and the privacy target."""
    problem = RatingsProblem(
        n_features=ratings.n_items,
        low=ratings.low,
        high=ratings.high,
        ratings_per_user=requested.per_user,
        records_at_most=ratings.n_users,
        records_declared=True,
    )
    return problem, NO_GUARANTEE if math.isinf(requested.epsilon) else PrivacyTarget(
        epsilon=requested.epsilon, delta=DELTA
    )


def true_epsilon(plan: Plan) -> float:
    """Return an upper bound on the true epsilon of all steps of a plan, at the delta of the plan."""
    return epsilon_bracket(plan.event, delta=plan.target.delta).upper


def user_means(ratings: SplitRatings, *, centre: float, prior: float = 5.0) -> ItemFactors:
    """Return a release without item offsets and factors, so that every prediction is the shrunk mean of the user."""
    return ItemFactors(offsets=np.zeros(ratings.n_items), user_step={"centre": centre, "prior": prior})


def popularity(ratings: SplitRatings) -> Matrix:
    """Return the exact number of ratings of each item, without noise."""
    return np.bincount(ratings.train.indices, minlength=ratings.n_items).astype(np.float64)


def recall(found: ItemFactors | Matrix, ratings: SplitRatings, *, users: int) -> float:
    """Return the mean Recall@20 of the first users with held-out ratings.

    Parameters
    ----------
    found : ItemFactors or float64 array of shape (n_items,)
        Released item factors, or one score per item that is the same for all users.
    ratings : SplitRatings
    users : int
        The maximum number of users.
    """
    tested = ratings.tested(users)
    recalls = []
    for start in range(0, tested.size, _AT_ONCE):
        some = tested[start : start + _AT_ONCE]
        scores = _scores(found, ratings, some) if isinstance(found, ItemFactors) else np.tile(found, (some.size, 1))
        ranked = ranked_items(scores, count=RECOMMENDED, seen=sparse.csr_array(ratings.train[some]))
        recalls.append(recall_of(ranked, sparse.csr_array(ratings.held[some])))
    return float(np.mean(np.concatenate(recalls)))


def _scores(found: ItemFactors, ratings: SplitRatings, users: NDArray[np.int64]) -> Matrix:
    """Return the predicted ratings of all items for users, not clipped to the range, so that their order is kept."""
    items = embeddings_of(found, ratings)
    factors = [items.fold_in(*ratings_of(ratings.train, user))[1] for user in users]
    return np.stack(
        [items.offsets if items.factors is None else items.offsets + items.factors @ each for each in factors]
    )


FETCHED = "ml-100k"
"""The subfolder of the data folder in which ``make data`` stores the ratings of 100K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A published file format of MovieLens ratings: file name, field separator, header and range of ratings.

    ``companion`` is a second file in the same folder. It distinguishes formats whose ratings files have the same name.
    """

    file: str
    separator: str
    header: str = ""
    low: float = 1.0
    companion: str | None = None


FORMATS = {
    "100K": Format(file="u.data", separator="\t"),
    "1M": Format(file="ratings.dat", separator="::", companion="users.dat"),
    "10M": Format(file="ratings.dat", separator="::", low=0.5),
    "20M": Format(file="ratings.csv", separator=",", header="userId,movieId,rating,timestamp", low=0.5),
    "25M": Format(file="ratings.csv", separator=",", header="userId,movieId,rating,timestamp", low=0.5),
    "100K, fetched": Format(
        file="ml-100k.inter", separator="\t", header="user_id:token\titem_id:token\trating:float\ttimestamp:float"
    ),
}
"""The formats by size; the first that fits a folder is used. A ``ratings.dat`` without ``users.dat`` may have half
stars."""
HIGH = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilmRatings:
    """The ratings of a MovieLens folder.

    Attributes
    ----------
    ratings : csr_array of shape (n_users, n_items)
        The ratings. If a user rated an item several times, the last rating in the file counts.
    users, items : int64 arrays
        The ids of the users (rows) and of the items (columns), in ascending order.
    low, high : float
        The range of ratings of the format.
    """

    ratings: sparse.csr_array
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    low: float
    high: float = HIGH

    def most_rated(self, count: int) -> "FilmRatings":
        """Return the ratings of the ``count`` items with the most ratings.

        Ties are decided by the smaller id. Users who rated none of these items are left out.
        """
        rated = np.bincount(self.ratings.indices, minlength=self.items.size)
        kept = np.sort(np.argsort(-rated, kind="stable")[:count])
        ratings = sparse.csr_array(self.ratings[:, kept])
        active = np.flatnonzero(np.diff(ratings.indptr))
        return FilmRatings(
            ratings=sparse.csr_array(ratings[active]),
            users=self.users[active],
            items=self.items[kept],
            low=self.low,
            high=self.high,
        )


def read_movielens(folder: Path) -> FilmRatings:
    """Read the ratings of a MovieLens folder in any of `FORMATS`.

    Raises
    ------
    Invalid, BadSource
        If the folder has no file of ratings, or the file does not have the expected format.
    """
    found = next((form for form in FORMATS.values() if _fits(form, folder)), None)
    if found is None:
        names = ", ".join(dict.fromkeys(form.file for form in FORMATS.values()))
        raise Invalid(f"{folder} has none of the MovieLens files {names}; name the folder of one.")
    place = folder / found.file
    users, items, values = _columns(place, found)
    if not values.size:
        raise BadSource(f"{place} holds no ratings; name another folder.")
    if not (values.min() >= found.low and values.max() <= HIGH):
        raise BadSource(
            f"{place} has ratings outside {found.low:g} to {HIGH:g}, the range of its format; name another folder."
        )
    user_ids, rows = np.unique(users, return_inverse=True)
    item_ids, columns = np.unique(items, return_inverse=True)
    places = rows * item_ids.size + columns
    last = np.append(np.argsort(places, kind="stable"), -1)
    order = places[last[:-1]]
    last = last[:-1][np.append(order[1:] != order[:-1], True)]
    matrix = sparse.coo_array((values[last], (rows[last], columns[last])), shape=(user_ids.size, item_ids.size))
    return FilmRatings(ratings=matrix.tocsr(), users=user_ids, items=item_ids, low=found.low)


def _fits(form: Format, folder: Path) -> bool:
    return (folder / form.file).is_file() and (form.companion is None or (folder / form.companion).is_file())


def _columns(place: Path, form: Format) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Read the columns for users, items and ratings from a file.

    The parser splits at single characters, so a separator of two characters gives an empty column after each field.
    """
    step = len(form.separator)
    wanted = [f"f{step * at}" for at in range(3)]
    names = [f"f{at}" for at in range(3 * step + 1)]
    content = place.read_bytes()
    if form.header:
        first, _, content = content.partition(b"\n")
        if first.decode("utf-8", "replace").strip() != form.header:
            raise BadSource(f"{place} lacks the header {form.header!r} of its format; name another folder.")
    if not content.strip():
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    try:
        table = csv.read_csv(
            io.BytesIO(content),
            read_options=csv.ReadOptions(column_names=names),
            parse_options=csv.ParseOptions(delimiter=form.separator[0]),
            convert_options=csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict(zip(wanted, (pa.int64(), pa.int64(), pa.float64()), strict=True)),
            ),
        )
    except pa.ArrowInvalid as error:
        text = str(error).splitlines()[0]
        raise BadSource(f"{place} cannot be read: {text}; each line is a user, an item, a rating, a time.") from None
    if any(column.null_count for column in table.columns):
        raise BadSource(f"{place} has a line without a user, an item or a rating; fix the line.")
    users, items, values = (column.to_numpy() for column in table.columns)
    return users, items, values
