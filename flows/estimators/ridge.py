"""Differentially private ridge regression, as a scikit-learn regressor on a released moment."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpca.artifacts.moment import PrivateMoment
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput
from flows.estimators.base import UNNAMED, PrivateEstimator
from flows.estimators.memory import LIBRARIES, InMemoryBudget
from flows.estimators.tables import quoting_no_value
from flows.requests import MomentRequest
from storage.workspace import PopulationBudget


class PrivateRidge(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Differentially private ridge regression of one target.

    Each new fit charges a privacy budget once: it releases the second moment of the rows with the target as their last
    column. Everything else follows from the release at no further charge.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of a fit.
    clip_norm : float
        Public bound on the norm of a row together with its target. Longer rows are clipped.
    l2 : float, squared data units summed over rows, optional
        The penalty, as in `dpca.artifacts.moment.PrivateMoment.ridge`.
    fit_intercept : bool
        Whether mean and count are released too, at a third more noise, for an intercept.
    relation : {"add_remove", "zero_out", "replace_one"}, optional
        Neighboring relation; by default the relation of the budget.
    records_at_most : int, optional
        Public upper bound on the number of rows. ``delta`` must be below its inverse.
    slot : str, optional
    budget : InMemoryBudget or PopulationBudget, optional
        Both as in `flows.estimators.PrivatePCA`.

    Attributes
    ----------
    coef_ : array of shape (n_features,)
    intercept_ : float
        The coefficients for predictions, with the least expected error (`dpca.predictors`).
    ridge_coef_, ridge_coef_errors_ : arrays of shape (n_features,)
        Nearly unbiased estimates of the coefficients of ridge without noise, and their standard errors.
    l2_ : float
        The penalty that was used.
    r_squared_ : float
        The estimated R^2 on the rows of the fit; NaN if the release does not give it.
    n_features_in_ : int
    feature_names_in_ : array of str
        The names of the columns, if they have names.
    artifact_ : PrivateMoment
        The release, in which the target is the last column.
    published_ : str or None
        The version in the registry of a ledger.

    See Also
    --------
    dpca.Budget : a budget in memory.
    dpca.artifacts.moment.PrivateMoment : all that follows from the release.

    Examples
    --------
    >>> import dpca
    >>> rows = np.random.default_rng(0).uniform(-1, 1, size=(20_000, 3))
    >>> budget = dpca.Budget(epsilon=2, delta=1e-5)
    >>> model = dpca.PrivateRidge(epsilon=1, delta=1e-6, clip_norm=2.5, budget=budget)
    >>> bool(np.abs(model.fit(rows, rows @ [1.0, 0.5, 0.0]).coef_ - [1.0, 0.5, 0.0]).max() < 0.2)
    True
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | None = None,
        l2: float | None = None,
        fit_intercept: bool = True,
        relation: Relation | None = None,
        records_at_most: int | None = None,
        slot: str | None = None,
        budget: InMemoryBudget | PopulationBudget | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.relation = relation
        self.records_at_most = records_at_most
        self.slot = slot
        self.budget = budget

    def fit(self, X: Any, y: Any) -> Self:
        """Release the second moment of rows and target, or find the release of the slot, and compute the regression.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_features)
        y : array of shape (n_rows,)

        Raises
        ------
        ValueError, Refused, BudgetExhausted, Conflict
            In each case before anything is charged, with a message of one line. Conflict if the slot has other terms.
        """
        if self.clip_norm is None:
            raise InvalidInput("clip_norm=None sets no bound on rows; give a public bound on the norm of a row (x, y).")
        with quoting_no_value():
            rows, target = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        released = _Released(self)
        moment: PrivateMoment = released.release(np.column_stack([rows, target]))
        self.artifact_, self.published_ = moment, released.published_
        width = rows.shape[1]
        found = moment.moment.ridge(np.array([width]), np.arange(width), l2=self.l2)
        assert found.weights is not None
        assert found.offsets is not None
        self.coef_, self.intercept_, self.l2_ = found.weights[0], float(found.offsets[0]), found.l2
        self.ridge_coef_, self.ridge_coef_errors_ = found.coefficients[0], found.errors[0]
        self.r_squared_ = found.quality[0].r_squared if found.quality else float("nan")
        if self.fit_intercept and (not found.quality or found.quality[0].is_hidden):
            warnings.warn(
                "the noise hides whether the columns predict the target; use more rows or a larger epsilon.",
                UserWarning,
                skip_file_prefixes=LIBRARIES,
            )
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict the target of rows, shape (n_rows,). A prediction is not private, as it is a function of its row."""
        check_is_fitted(self)
        with quoting_no_value():
            rows = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(rows @ self.coef_ + self.intercept_)

    def __sklearn_tags__(self) -> Any:
        """Return the scikit-learn tags; two fits on equal rows differ by their noise."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.regressor_tags.poor_score = True
        return tags


class _Released(PrivateEstimator):
    """Internal estimator of `PrivateRidge`, which makes the release of a fit as other private estimators do."""

    def __init__(self, of: PrivateRidge) -> None:
        self.of = of
        self.epsilon, self.delta, self.relation = of.epsilon, of.delta, of.relation
        self.records_at_most, self.slot, self.budget = of.records_at_most, of.slot, of.budget

    def release(self, rows: NDArray[np.float64]) -> Any:
        """Release the moment of rows whose last column is the target."""
        epsilon, delta = self._guarantee()
        assert self.of.clip_norm is not None
        request = MomentRequest(
            dataset=UNNAMED,
            publish=UNNAMED,
            epsilon=epsilon,
            delta=delta,
            clip_norm=float(self.of.clip_norm),
            center="private" if self.of.fit_intercept else "none",
        )
        return self._release(request, rows)
