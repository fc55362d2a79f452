"""Runs of completion mechanisms on ratings in arrays: one arm of a comparison, and how well it predicts.

Keys come from seeds and the ratings are public or made, so nothing is charged and every number can be made again. All
predictions are those of `storage.artifacts.embeddings.ItemEmbeddings`, as users make them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Plan, PrivacyTarget
from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.parts.ratings import RatingsProblem
from dpca_tasks.mechanisms.results import ItemFactors
from dpca_tasks.metrics import ranked_items, recall_of, rmse
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.disclosure import DisclosingCurator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.privacy.ways.release_tiles import TiledAnswer
from dpca_tasks.queries.item_statistics import ItemStatistics
from dpca_tasks.queries.tiled_sum import TiledSum
from dpca_tasks.records.sources import ArrayBlocks
from flows.reproductions.rating_makers import SplitRatings
from storage.artifacts.embeddings import ItemEmbeddings

type Matrix = NDArray[np.float64]

DELTA, RECOMMENDED = 1e-5, 20
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a mechanism besides its settings: rank, ratings counted of one user, and epsilon at `DELTA`.

    An infinite epsilon asks for a reference without privacy.
    """

    rank: int
    per_user: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A mechanism with its settings, under the name that tables and figures show."""

    name: str
    mechanism: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def with_settings(self, name: str, **settings: Any) -> "Arm":
        """Return an arm of other settings besides."""
        return Arm(name=name, mechanism=self.mechanism, settings={**self.settings, **settings})

    def plan(self, ratings: SplitRatings, asked: Asked) -> Plan:
        """Calibrate it to what is asked."""
        plan: Plan = self._mechanism(asked).plan(*request_of(ratings, asked))
        return plan

    def run(self, ratings: SplitRatings, asked: Asked, *, seed: int, seen: "Seen | None" = None) -> ItemFactors:
        """Release items of the ratings to learn from.

        Parameters
        ----------
        ratings : SplitRatings
        asked : Asked
        seed : int
            Of the noise.
        seen : Seen, optional
            Gets what was released on the way.
        """
        plan = self.plan(ratings, asked)
        reservation = InMemoryReservation(event=plan.event, key=seed.to_bytes(32, "little"))
        source, mechanism = ArrayBlocks(ratings.train), self._mechanism(asked)
        found: ItemFactors
        if math.isinf(asked.epsilon):
            found = mechanism.run(DisclosingCurator(source, reservation, i_know_this_is_not_private=True), plan)
            return found
        curator = _Watched(source, reservation)
        found = mechanism.run(curator, plan)
        if seen is not None:
            seen.rounds = curator.seen.rounds
        return found

    def _mechanism(self, asked: Asked) -> Any:
        return {**MECHANISMS, **REFERENCES}[self.mechanism](rank=asked.rank, **self.settings)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """What a round of alternating least squares began with and released: factors, H and w, and the noise std of H."""

    factors: Matrix
    outer: Matrix
    weighted: Matrix
    outer_std: float


@dataclass(slots=True)
class Seen:
    """The rounds of a run."""

    rounds: list[Round] = field(default_factory=list)


class _Watched(Curator):
    """A curator that remembers what every round began with and released."""

    def __init__(self, source: ArrayBlocks, reservation: InMemoryReservation) -> None:
        super().__init__(source, reservation)
        self.seen = Seen()

    def release_tiles(self, query: TiledSum, distribution: JointGaussian) -> TiledAnswer:
        answer = super().release_tiles(query, distribution)
        parts = answer.whole()
        if isinstance(query, ItemStatistics):
            outer = query.parts["outer"]
            self.seen.rounds.append(
                Round(
                    factors=np.asarray(query.factors * query.unit, np.float64),
                    outer=parts["outer"],
                    weighted=parts["weighted"].reshape(query.factors.shape),
                    outer_std=outer.scale * outer.unit * distribution.noise_multiplier,
                )
            )
        return answer


def request_of(ratings: SplitRatings, asked: Asked) -> tuple[RatingsProblem, PrivacyTarget]:
    """Return the public facts of ratings, the number of users among them, and the target."""
    problem = RatingsProblem(
        n_features=ratings.n_items,
        low=ratings.low,
        high=ratings.high,
        ratings_per_user=asked.per_user,
        records_at_most=ratings.n_users,
        records_declared=True,
    )
    return problem, NO_GUARANTEE if math.isinf(asked.epsilon) else PrivacyTarget(epsilon=asked.epsilon, delta=DELTA)


def true_epsilon(plan: Plan) -> float:
    """Return what a plan really costs at its delta: an upper bound on the exact epsilon of its steps."""
    return epsilon_bracket(plan.event, delta=plan.target.delta).upper


def user_means(ratings: SplitRatings, *, centre: float, prior: float = 5.0) -> ItemFactors:
    """Return items without offsets and factors: every user's prediction is that user's shrunk mean."""
    return ItemFactors(offsets=np.zeros(ratings.n_items), user_step={"centre": centre, "prior": prior})


def popularity(ratings: SplitRatings) -> Matrix:
    """Return how often each item is rated: not private."""
    return np.bincount(ratings.train.indices, minlength=ratings.n_items).astype(np.float64)


def held_out_error(found: ItemFactors, ratings: SplitRatings, *, users: int) -> float:
    """Return the RMSE of the held-out ratings of the first users that have any."""
    items = _embeddings(found, ratings)
    predicted = [
        items.predict(*_row(ratings.train, user))[_row(ratings.held, user)[0]] for user in _tested(ratings, users)
    ]
    actual = [_row(ratings.held, user)[1] for user in _tested(ratings, users)]
    return rmse(np.concatenate(predicted), np.concatenate(actual))


def recall(found: ItemFactors | Matrix, ratings: SplitRatings, *, users: int) -> float:
    """Return the mean Recall@20 of the first users with held-out ratings.

    Parameters
    ----------
    found : ItemFactors or float64 array of shape (n_items,)
        Released items, or scores that are the same for all users.
    ratings : SplitRatings
    users : int
        At most so many.
    """
    tested = _tested(ratings, users)
    items = _embeddings(found, ratings) if isinstance(found, ItemFactors) else None
    recalls = []
    for start in range(0, tested.size, _AT_ONCE):
        some = tested[start : start + _AT_ONCE]
        if items is None:
            scores = np.tile(np.asarray(found), (some.size, 1))
        else:
            scores = np.stack([_scores(items, *_row(ratings.train, user)) for user in some])
        ranked = ranked_items(scores, count=RECOMMENDED, seen=sparse.csr_array(ratings.train[some]))
        recalls.append(recall_of(ranked, sparse.csr_array(ratings.held[some])))
    return float(np.mean(np.concatenate(recalls)))


def _scores(items: ItemEmbeddings, rated: NDArray[np.integer], values: Matrix) -> Matrix:
    """Return a user's scores of all items, not clipped to the range of ratings, so that they keep their order."""
    _, factor = items.fold_in(rated, values)
    return items.offsets if items.factors is None else items.offsets + items.factors @ factor


def _tested(ratings: SplitRatings, users: int) -> NDArray[np.int64]:
    return np.flatnonzero(np.diff(ratings.held.indptr))[:users]


def _row(ratings: sparse.csr_array, user: int) -> tuple[NDArray[np.integer], Matrix]:
    part = slice(ratings.indptr[user], ratings.indptr[user + 1])
    return ratings.indices[part], ratings.data[part]


def _embeddings(found: ItemFactors, ratings: SplitRatings) -> ItemEmbeddings:
    return ItemEmbeddings(
        factors=found.factors,
        offsets=found.offsets,
        counts=found.counts,
        low=ratings.low,
        high=ratings.high,
        manifest={"user_step": dict(found.user_step)},
    )
