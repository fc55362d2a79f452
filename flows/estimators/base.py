"""What private estimators share: scikit-learn's conventions, a release on a budget, and no seed."""

from typing import Any

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from flows.estimators.fits import Fit
from flows.estimators.memory import InMemoryBudget
from flows.estimators.releasing import make_release
from flows.estimators.tables import Columns, Entries, Table, TableRows
from flows.requests.base import Request
from storage.errors import Invalid
from storage.workspace import PopulationBudget

UNNAMED = "rows"
"""The dataset of a request until its budget names it."""


class PrivateEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer whose fit is one release on a budget."""

    epsilon: float | None
    delta: float | None
    relation: Relation | None
    records_at_most: int | None
    slot: str | None
    budget: InMemoryBudget | PopulationBudget | None
    n_components_: int
    _entries = Entries()

    def __sklearn_tags__(self) -> Any:
        """Return the tags: rows may be sparse, and two fits on equal rows differ by their noise."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._entries.missing
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _guarantee(self) -> tuple[float, float]:
        """Return epsilon and delta of a request.

        Raises
        ------
        InvalidInput
            When one is not stated.
        """
        if self.epsilon is None or self.delta is None:
            raise InvalidInput(
                f"epsilon={self.epsilon!r} and delta={self.delta!r} promise nothing; state both, such as epsilon=1.0 "
                "and a delta well below one over the number of rows."
            )
        return float(self.epsilon), float(self.delta)

    def _release(self, request: Request, X: Any) -> Any:
        """Release a request on a table, or find the release of its slot; return the artifact."""
        columns = Columns.learned(self, X)

        def read_rows(*, copied: bool = False) -> TableRows:
            table = self._table(X, reset=True)
            rows = TableRows(table.copied() if copied else table, feature_names=columns.names)
            if self.records_at_most is not None and rows.n_records > self.records_at_most:
                raise Invalid(
                    f"there are more rows than records_at_most={self.records_at_most}; declare a public bound that "
                    "holds."
                )
            return rows

        fit = Fit(
            request=request,
            columns=columns,
            read_rows=read_rows,
            relation=self.relation,
            records_at_most=self.records_at_most,
            slot=self.slot,
        )
        made = make_release(self.budget, fit)
        self.artifact_, self.published_ = made.artifact, made.published
        return made.artifact

    def _table(self, X: Any, *, reset: bool) -> Table:
        return Table.checked(self, X, reset=reset, entries=self._entries)
