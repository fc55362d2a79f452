"""The protocol of a fitted scikit-learn transformer, implemented without importing scikit-learn.

Classes with this protocol work in scikit-learn's pipelines, grid searches and column transformers. Their method `fit`
only checks that the release accepts the rows. It learns nothing from the rows, because a release is fitted before it
is published.
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
    """Let private attributes be set on instances of a frozen dataclass, because scikit-learn sets some in a pipeline.

    Public fields and properties stay read-only: assigning to one of them raises ``FrozenInstanceError``.
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
    """Base class of releases that act as fitted scikit-learn transformers, with the methods of ``TransformerMixin``.

    Guarantees
    ----------
    Released values never change. A clone shares the read-only arrays with the original. `set_output` on a clone does
    not affect the original.
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
        """Number of features of an input row."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Number of scores that `transform` computes for a row."""

    @property
    @abstractmethod
    def feature_names(self) -> Sequence[str] | None:
        """The public names of the features; None if the release has none."""

    @abstractmethod
    def transform(self, rows: Any) -> NDArray[np.float64]:
        """Return the scores of rows, as the type of array or data frame selected by `set_output`."""

    def fit(self, rows: Any, y: object = None) -> Self:
        """Check that the release accepts the rows, and return this object. Nothing is learned from the rows.

        Raises
        ------
        Invalid
            If `transform` would refuse the rows.
        """
        self.checked(rows)
        return self

    def fit_transform(self, rows: Any, y: object = None) -> NDArray[np.float64]:
        """Return the result of `transform` for the rows. Nothing is learned from the rows."""
        return self.transform(rows)

    @abstractmethod
    def checked(self, rows: Any) -> Any:
        """Check rows, and return them as a matrix with one column per feature, in the order of the release."""

    @property
    def n_features_in_(self) -> int:
        """Number of features of an input row, under scikit-learn's name."""
        return self.n_features

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The public names of the features, under scikit-learn's name.

        Raises
        ------
        AttributeError
            If the release has no feature names.
        """
        if self.feature_names is None:
            raise AttributeError("this release has no feature names; columns are matched with it by position")
        return np.array(self.feature_names, dtype=object)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> NDArray[Any]:
        """Return the names of the output columns, such as ``privatesubspace0``: the class name and a number from 0.

        Parameters
        ----------
        input_features : sequence of str, optional
            The names of the input columns. If the release has feature names, both must be the same names, in any
            order. If the release encodes raw tables, the names are not checked here, because they are the names of
            raw columns.

        Raises
        ------
        Invalid
            If the given names differ from the feature names of the release.
        """
        known = None if self.raw_encoding is not None else self.feature_names
        if input_features is not None and known is not None and set(input_features) != set(known):
            raise Invalid("input_features differs from feature_names_in_; pass the same names, or omit input_features")
        return np.array([f"{type(self).__name__.lower()}{at}" for at in range(self.n_components)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Select the output type of `transform`: ``default`` (an array), ``pandas`` or ``polars``; None keeps it."""
        if transform is not None and transform not in _CONTAINERS:
            raise Invalid(f"transform={transform!r} is unknown; it must be one of {', '.join(_CONTAINERS)}; choose one")
        if transform is not None:
            self._container = transform
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as scikit-learn has it
        """Return an empty dict, as there is nothing to tune; the parameters of a release are in its manifest."""
        return {}

    def set_params(self, **params: Any) -> Self:
        """Return this object unchanged, because a release has no parameters that could be set.

        Raises
        ------
        Invalid
            If any parameter is passed.
        """
        if params:
            raise Invalid(
                f"{', '.join(sorted(params))} cannot be set; a release never changes; load another release instead"
            )
        return self

    def in_container(self, scores: NDArray[np.float64], rows: Any) -> Any:
        """Return scores as the selected type, an array or data frame; a pandas data frame gets the index of `rows`."""
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
        """Return the output type selected for this object; by default scikit-learn's setting if that is imported."""
        own: str | None = getattr(self, "_container", None)
        scikit = sys.modules.get("sklearn")
        if own is not None or scikit is None:
            return own or "default"
        return str(scikit.get_config()["transform_output"])

    def __sklearn_is_fitted__(self) -> bool:
        """Return True, since a release is always fitted."""
        return True

    def __sklearn_clone__(self) -> Self:
        """Return a copy that is fitted like the original and shares its arrays, because fitting again is impossible."""
        twin = object.__new__(type(self))
        for name in (*type(self).__slots__, "_container"):
            if hasattr(self, name):
                object.__setattr__(twin, name, getattr(self, name))
        return twin

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's estimator tags: this transformer accepts sparse rows and needs no `fit`."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(sparse=True),
            requires_fit=False,
        )
