"""The protocol of a fitted scikit-learn transformer, implemented without importing scikit-learn.

Classes with this protocol work in pipelines, grid searches and column transformers. `fit` learns nothing, since a
release is fitted only once: it checks that the release accepts the rows.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpca.errors import Invalid

_CONTAINERS = ("default", "pandas", "polars")


def open_to_notes[T](kind: type[T]) -> type[T]:
    """Allow setting private attributes on instances of a frozen class, as scikit-learn does in a pipeline.

    Fields and properties stay read-only: assigning to one raises ``FrozenInstanceError``.
    """

    def put(self: object, name: str, value: object) -> None:
        _check_note(name)
        object.__setattr__(self, name, value)

    def take_away(self: object, name: str) -> None:
        _check_note(name)
        object.__delattr__(self, name)

    type.__setattr__(kind, "__setattr__", put)
    type.__setattr__(kind, "__delattr__", take_away)
    return kind


def _check_note(name: str) -> None:
    if not name.startswith("_"):
        raise FrozenInstanceError(f"cannot change {name!r}; a release is fixed; create another object")


class FittedTransformer:
    """A transformer with released parameters; see scikit-learn's ``TransformerMixin`` for its methods.

    Guarantees
    ----------
    Released values never change. A clone shares the read-only arrays, and has a separate output container.
    """

    __slots__ = ("__dict__",)

    _container: str
    """The output of `transform`: ``default`` (an array), ``pandas`` or ``polars``. If unset, scikit-learn's setting
    applies."""
    raw_encoding: Callable[[Any], NDArray[np.float64]] | None
    """The function that encodes raw tables if the release takes them; the artifact provides it."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features of a row."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Number of scores of a row."""

    @property
    @abstractmethod
    def feature_names(self) -> Sequence[str] | None:
        """The public names of the features, if there are any."""

    @abstractmethod
    def transform(self, rows: Any) -> NDArray[np.float64]:
        """Return the scores of rows, in the container selected by `set_output`."""

    def fit(self, rows: Any, y: object = None) -> Self:
        """Check that the release accepts the rows, learn nothing from them, and return this object.

        Raises
        ------
        Invalid
            As `transform`.
        """
        self.checked(rows)
        return self

    def fit_transform(self, rows: Any, y: object = None) -> NDArray[np.float64]:
        """Transform rows, and learn nothing from them."""
        return self.transform(rows)

    @abstractmethod
    def checked(self, rows: Any) -> Any:
        """Return rows as a matrix with the columns of the release."""

    @property
    def n_features_in_(self) -> int:
        """Number of features of a row."""
        return self.n_features

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The public names of the features.

        Raises
        ------
        AttributeError
            If the features have no names.
        """
        if self.feature_names is None:
            raise AttributeError("this release has no feature names; its columns are matched by position")
        return np.array(self.feature_names, dtype=object)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> NDArray[Any]:
        """Return the names of the scores: the class name in lower case with the number of the score.

        Parameters
        ----------
        input_features : sequence of str, optional
            The names of the input features. If the release has names, these must be the same names in any order. If it
            encodes raw tables, these are the names of the raw columns, which the encoding checks later.

        Raises
        ------
        Invalid
            If the names differ.
        """
        known = None if self.raw_encoding is not None else self.feature_names
        if input_features is not None and known is not None and set(input_features) != set(known):
            raise Invalid("input_features is not equal to feature_names_in_; pass the same names, or omit them")
        return np.array([f"{type(self).__name__.lower()}{at}" for at in range(self.n_components)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Select the output of `transform`: ``default`` (an array), ``pandas`` or ``polars``. None changes nothing."""
        if transform is not None and transform not in _CONTAINERS:
            raise Invalid(f"transform={transform!r} is unknown; it must be one of {', '.join(_CONTAINERS)}; choose one")
        if transform is not None:
            self._container = transform
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as scikit-learn has it
        """Return no parameters; the parameters of a release are in its manifest."""
        return {}

    def set_params(self, **params: Any) -> Self:
        """Return this object, which has no parameters.

        Raises
        ------
        Invalid
            If a parameter is given.
        """
        if params:
            raise Invalid(f"{', '.join(sorted(params))} cannot be set; a release is fixed; load another one")
        return self

    def in_container(self, scores: NDArray[np.float64], rows: Any) -> Any:
        """Return scores in the selected container. A pandas data frame has the index of the rows."""
        chosen = self._chosen()
        if chosen == "default":
            return scores
        if chosen == "pandas":
            import pandas as pd

            index = getattr(rows, "obs_names", getattr(rows, "index", None))
            labels = index if isinstance(index, pd.Index) else None
            return pd.DataFrame(scores, columns=self.get_feature_names_out(), index=labels)
        import polars as pl

        return pl.DataFrame(scores, schema=list(self.get_feature_names_out()), orient="row")

    def _chosen(self) -> str:
        """Return the container of this object, or of scikit-learn's settings if that package was imported."""
        own: str | None = getattr(self, "_container", None)
        scikit = sys.modules.get("sklearn")
        if own is not None or scikit is None:
            return own or "default"
        return str(scikit.get_config()["transform_output"])

    def __sklearn_is_fitted__(self) -> bool:
        """Return True, since a release is always fitted."""
        return True

    def __sklearn_clone__(self) -> Self:
        """Return a fitted copy that shares the arrays, since fitting again would be another release."""
        twin = object.__new__(type(self))
        for name in (*type(self).__slots__, "_container"):
            if hasattr(self, name):
                object.__setattr__(twin, name, getattr(self, name))
        return twin

    def __sklearn_tags__(self) -> Any:
        """Return the estimator tags that scikit-learn requests."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(sparse=True),
            requires_fit=False,
        )
