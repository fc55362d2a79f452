"""Differentially private completion of a rating matrix, as a scikit-learn transformer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_is_fitted

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput
from flows.estimators.base import UNNAMED, PrivateEstimator
from flows.estimators.memory import InMemoryBudget
from flows.estimators.tables import Entries, quoting_no_value
from flows.requests import CompletionRequest
from storage.formats.registry import DUPLICATES
from storage.workspace import PopulationBudget


class PrivateMatrixFactorization(PrivateEstimator):
    """Differentially private matrix factorization of ratings, with the ratings of one user in each row.

    Each new fit charges a privacy budget once. A rating is predicted as
    ``user_offset + item_offset + user_factor @ item_factor``. The offsets and factors of items are released. The offset
    and factor of a user are computed from the ratings of this user alone (`transform`). The user need not be among the
    rows of the fit.

    Parameters
    ----------
    n_components : int
        Number of factors, below the number of items.
    epsilon, delta : float
        The guarantee of a fit. It is joint differential privacy, as stated in ``artifact_.manifest["guarantee"]``.
    ratings_between : pair of float, or str such as "1:5"
        Public range of ratings; ratings outside the range are clipped to it.
    ratings_per_user : int
        Largest number of ratings of one user that are counted; public.
    mechanism : str
        Name of a mechanism, as in ``dpca completion fit``.
    relation : {"add_remove", "zero_out", "replace_one"}, optional
        Neighboring relation; by default the relation of the budget.
    settings : mapping, optional
        Parameters of the mechanism.
    duplicates : {"refuse", "last", "mean", "sum"}
        Policy for several ratings of one user and item in a sparse table; by default they are refused.
    records_at_most : int, optional
        Public upper bound on the number of users. ``delta`` must be below its inverse.
    slot : str, optional
    budget : InMemoryBudget or PopulationBudget, optional
        Both as in `flows.estimators.PrivatePCA`.

    Attributes
    ----------
    components_ : array of shape (n_components, n_items)
        Factors of items.
    item_offsets_ : array of shape (n_items,)
    center_ : float
        The offset of a user without ratings.
    n_components_, n_features_in_ : int
        Some mechanisms release a different number of factors than requested; ``item_means`` releases none.
    feature_names_in_ : array of str
        Ids of items, if the columns have names.
    artifact_ : ItemEmbeddings
        The release; its `recommend` returns the best items that a user has not rated.
    published_ : str or None
        The version in the registry of a ledger.

    Notes
    -----
    In a sparse table, exactly the stored entries are ratings, including stored zeros. In an array, a DataFrame or
    another dense table, every number is a rating and NaN is a missing rating.

    See Also
    --------
    dpca.Budget : a budget in memory.
    dpca.open_budget : a persistent budget, in the ledger of this home.

    Examples
    --------
    >>> import dpca
    >>> from scipy import sparse
    >>> ratings = sparse.random_array((2000, 30), density=0.2, format="csr", rng=0) * 4
    >>> budget = dpca.Budget(epsilon=8, delta=1e-5)
    >>> model = dpca.PrivateMatrixFactorization(
    ...     2, epsilon=4, delta=1e-6, ratings_between=(0, 4), ratings_per_user=10, budget=budget
    ... )
    >>> model.fit(ratings).predict(ratings[:3]).shape
    (3, 30)
    """

    def __init__(
        self,
        n_components: int = 16,
        *,
        epsilon: float | None = 1.0,
        delta: float | None = 1e-6,
        ratings_between: tuple[float, float] | str | None = None,
        ratings_per_user: int | None = None,
        mechanism: str = "dpals",
        relation: Relation | None = None,
        settings: Mapping[str, str] | None = None,
        duplicates: str = "refuse",
        records_at_most: int | None = None,
        slot: str | None = None,
        budget: InMemoryBudget | PopulationBudget | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.ratings_between = ratings_between
        self.ratings_per_user = ratings_per_user
        self.mechanism = mechanism
        self.relation = relation
        self.settings = settings
        self.duplicates = duplicates
        self.records_at_most = records_at_most
        self.slot = slot
        self.budget = budget

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release factors of items, or return the release of the slot.

        Parameters
        ----------
        X : table of shape (n_users, n_items)
            Scipy sparse, array with NaN, DataFrame, AnnData, Dask array or DataFrame; a row is a record.
        y : ignored

        Raises
        ------
        ValueError, Refused, BudgetExhausted, Conflict
            In each case before anything is charged, with a message of one line. Conflict if the slot has other terms.
        """
        items: ItemEmbeddings = self._release(self._request(), X)
        self.n_components_, self.item_offsets_ = items.rank, items.offsets
        self.components_ = np.zeros((0, items.n_items)) if items.factors is None else items.factors.T
        self.center_ = float(items.manifest["user_step"]["centre"])
        return self

    def transform(self, X: Any) -> Any:
        """Return the factors of users from their own ratings. They are not private; show them only to the same user.

        Parameters
        ----------
        X : table of shape (n_users, n_items), as for `fit`

        Returns
        -------
        array of shape (n_users, n_components), or the container of `set_output`
        """
        check_is_fitted(self)
        return self._of_users(X, _factor, width=self.n_components_)

    def user_offsets(self, X: Any) -> Any:
        """Return the offsets of users from their own ratings, of shape (n_users, 1). They are not private either."""
        check_is_fitted(self)
        return self._of_users(X, _offset, width=1)

    def predict(self, X: Any) -> Any:
        """Return the predicted ratings of all items by users with these ratings, of shape (n_users, n_items).

        Predictions are within the range of ratings. They are not private; show them only to the same user.
        """
        check_is_fitted(self)
        return self._of_users(X, _prediction, width=self.n_features_in_)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the negative root mean squared error of predictions of the ratings in X, without privacy for X.

        Parameters
        ----------
        X : table of shape (n_users, n_items), as for `fit`
            The factors of each user are computed from all ratings of the user, so the error on unseen ratings is
            larger. `dpca completion evaluate` holds out a fifth of the ratings.
        y : ignored
        """
        check_is_fitted(self)
        errors = np.asarray(self._of_users(X, _squared_error, width=2), dtype=np.float64).sum(axis=0)
        return -float(np.sqrt(errors[0] / errors[1])) if errors[1] else float("nan")

    def inverse_transform(self, X: Any, user_offsets: Any = None) -> NDArray[np.float64]:
        """Return the ratings of users with these factors, not clipped to the range of ratings.

        Parameters
        ----------
        X : array of shape (n_users, n_components)
        user_offsets : array of shape (n_users, 1), optional
            As returned by `user_offsets`; `center_` by default.
        """
        check_is_fitted(self)
        with quoting_no_value():
            factors = check_array(X, dtype=np.float64)
            offsets = self.center_ if user_offsets is None else check_array(user_offsets, dtype=np.float64)
        if factors.shape[1] != self.n_components_:
            raise InvalidInput(
                f"X has {factors.shape[1]} factors for each user, but the release has {self.n_components_}; pass all."
            )
        return np.asarray(factors @ self.components_ + self.item_offsets_ + offsets)

    @property
    def _entries(self) -> Entries:  # type: ignore[override]
        return Entries(missing=True, duplicates=self.duplicates)

    def _of_users(self, X: Any, one: "_OfUser", *, width: int) -> Any:
        return self._table(X).map(_Users(items=self.artifact_, one=one, width=width), width=width)

    def _request(self) -> CompletionRequest:
        """Return the request of a fit, which has all options except ratings and budget, as plain values."""
        if self.ratings_between is None:
            raise InvalidInput(
                "ratings_between=None sets no bound on ratings; state the range that the rating scale "
                "allows, such as (1, 5), not one measured on the data."
            )
        if self.ratings_per_user is None:
            raise InvalidInput(
                "ratings_per_user=None sets no bound for users; state the maximum number of ratings "
                "counted for one user, a public number such as 50."
            )
        if self.duplicates not in DUPLICATES:
            raise InvalidInput(f"duplicates={self.duplicates!r} is not one of {', '.join(DUPLICATES)}; choose one.")
        for name in ("n_components", "ratings_per_user"):
            if not isinstance(getattr(self, name), Integral):
                raise InvalidInput(f"{name}={getattr(self, name)!r} must be a whole number; correct it.")
        (epsilon, delta), between = self._guarantee(), self.ratings_between
        return CompletionRequest(
            dataset=UNNAMED,
            publish=UNNAMED,
            mechanism=self.mechanism,
            epsilon=epsilon,
            delta=delta,
            settings=self.settings or {},
            rank=int(self.n_components),
            ratings_between=between if isinstance(between, str) else ":".join(repr(float(end)) for end in between),
            ratings_per_user=int(self.ratings_per_user),
        )


type _OfUser = Callable[[ItemEmbeddings, NDArray[np.integer[Any]], NDArray[np.float64]], Any]
"""A function of all items, the indices of the items that a user rated, and these ratings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Users:
    """Function of users' rows that handles one user at a time and can be pickled for other processes."""

    items: ItemEmbeddings
    one: _OfUser
    width: int

    def __call__(self, rows: Any) -> NDArray[np.float64]:
        """Return one row per user."""
        made = np.empty((rows.shape[0], self.width))
        for user, (first, stop) in enumerate(pairwise(rows.indptr)):
            made[user] = self.one(self.items, rows.indices[first:stop], rows.data[first:stop])
        return made


def _factor(items: ItemEmbeddings, rated: NDArray[np.integer[Any]], ratings: NDArray[np.float64]) -> Any:
    return items.fold_in(rated, ratings)[1]


def _offset(items: ItemEmbeddings, rated: NDArray[np.integer[Any]], ratings: NDArray[np.float64]) -> Any:
    return items.fold_in(rated, ratings)[0]


def _squared_error(items: ItemEmbeddings, rated: NDArray[np.integer[Any]], ratings: NDArray[np.float64]) -> Any:
    """Return the sum of squared errors of a user's ratings, and the number of ratings."""
    if not rated.size:
        return 0.0, 0.0
    errors = items.predict(rated, ratings)[rated] - np.clip(ratings, items.low, items.high)
    return float(errors @ errors), float(rated.size)


def _prediction(items: ItemEmbeddings, rated: NDArray[np.integer[Any]], ratings: NDArray[np.float64]) -> Any:
    return items.predict(rated, ratings)
