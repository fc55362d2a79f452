"""Artifacts that are computed from a released moment: linear models and correlations.

Examples
--------
>>> model = DerivedModel(
...     coefficients=[[2.0, 0.0]], intercepts=[1.0], errors=[[0.5, 0.1]],
...     manifest={"feature_names": ["x", "z"], "derived": {"model": "ridge", "target": "y", "outputs": ["y"]}},
... )
>>> model.predict([[1.0, 5.0]])
array([3.])
>>> model.intervals()[0].round(2)
array([[ 1.02,  2.98],
       [-0.2 ,  0.2 ]])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import Artifact, checked_manifest, frozen, npz
from dpca.artifacts.columns import checked_rows, rows_by_name
from dpca.errors import Invalid

SIGNIFICANT = 3.0
"""The number of standard errors that a correlation must exceed to be shown as different from 0."""


class FeatureArtifact(Artifact):
    """Common base of moments, models and correlations: arrays over named features."""

    __slots__ = ()
    exports = {"npz": npz}  # noqa: RUF012
    facts: ClassVar[Mapping[str, str]]
    """The public facts that the manifest may state besides those of every artifact, with their types."""

    def _freeze(self, *, shape: Mapping[str, int], **ndims: int) -> None:
        for name, ndim in ndims.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, frozen(name, getattr(self, name), ndim=ndim))
        object.__setattr__(
            self, "manifest", checked_manifest(self.manifest, kind=self.kind, facts=self.facts, shape=shape)
        )
        names = self.manifest.get("feature_names")
        if names is not None and len(names) != shape["n_features"]:
            raise Invalid(
                f"there are {len(names)} feature names for {shape['n_features']} features; declare one name per feature"
            )

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        """Rebuild through the constructor, so that a copy is as read-only as the original."""
        fields = {name: getattr(self, name) for name in (*self.dimensions, "manifest")}
        return partial(type(self), **fields), ()

    @classmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> Any:
        """Build an artifact from stored arrays and a manifest."""
        return cls(**arrays, manifest=manifest)  # type: ignore[call-arg]

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        return int(self.manifest["n_features"])

    @property
    def feature_names(self) -> Sequence[str]:
        """The public names of the features; without names, the numbers of the columns from 0."""
        names: Sequence[str] | None = self.manifest.get("feature_names")
        return [str(column) for column in range(self.n_features)] if names is None else names


class _Derived(FeatureArtifact):
    """Common base of models and correlations."""

    __slots__ = ()
    facts = {"clip_norm": "number", "derived": "facts", "encoder": "facts", "feature_names": "names"}  # noqa: RUF012

    @property
    def derived(self) -> Mapping[str, Any]:
        """The name of the model, and the options with which it was derived."""
        facts: Mapping[str, Any] = self.manifest["derived"]
        return facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DerivedModel(_Derived):
    """Linear functions of a row, derived from a released moment: a regression, a classification, or components.

    Parameters
    ----------
    coefficients : array of shape (n_outputs, n_features)
    intercepts : array of shape (n_outputs,)
    errors : array of shape (n_outputs, n_features), optional
        The standard errors of the coefficients, from the noise of the release.
    weights, offsets : arrays of shape (n_outputs, n_features) and (n_outputs,), optional
        For a ridge regression, the predictors: ``x @ weights.T + offsets`` estimates the target with less error than
        the coefficients do. Outputs of several classes estimate the probability of each class.
    loadings : array of shape (n_outputs, n_features), optional
        For components: directions times the standard deviations of their scores, estimated without the noise.
    manifest : mapping
        Public facts. ``derived`` holds the ``model`` (ridge, lda or pca), the names of its ``outputs``, and for a
        classification its ``classes``.

    Raises
    ------
    Invalid
        If the arrays or the manifest are not of this kind.

    Guarantees
    ----------
    The errors describe the noise of the release only, not the sampling of the rows.
    """

    kind = "derived_model"
    noun = "derived model"
    dimensions = {  # noqa: RUF012
        "coefficients": ("output", "feature"),
        "intercepts": ("output",),
        "errors": ("output", "feature"),
        "weights": ("output", "feature"),
        "offsets": ("output",),
        "loadings": ("output", "feature"),
    }

    coefficients: NDArray[np.float64]
    intercepts: NDArray[np.float64]
    errors: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64] | None = None
    loadings: NDArray[np.float64] | None = None
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        m, d = np.shape(self.coefficients) if np.ndim(self.coefficients) == 2 else (0, 0)
        self._freeze(
            shape={"n_outputs": m, "n_features": d},
            **{name: len(dimensions) for name, dimensions in self.dimensions.items()},
        )
        sizes = {"output": m, "feature": d}
        for name, values in self.arrays().items():
            if values.shape != tuple(sizes[axis] for axis in self.dimensions[name]):
                raise Invalid(
                    f"{name} has shape {values.shape}, which does not fit {m} outputs of {d} features; pass one entry "
                    "for each"
                )
        if not isinstance(self.manifest.get("derived"), Mapping) or len(self.outputs) != m:
            raise Invalid(f"the model has {m} outputs, and each needs a name; pass the names in derived")

    @property
    def outputs(self) -> Sequence[str]:
        """The names of the outputs."""
        return [str(name) for name in self.derived.get("outputs", ())]

    @property
    def classes(self) -> Sequence[Any] | None:
        """The classes of a classification; None for other models."""
        found: Sequence[Any] | None = self.derived.get("classes")
        return found

    def summary(self) -> dict[str, Any]:
        """Return the main facts of the model by name."""
        facts = {name: value for name, value in self.derived.items() if name != "outputs"}
        return {**facts, "n_features": self.n_features, **(self.manifest.get("outcome") or {})}

    def headline(self) -> str:
        """Return a short description with the model and its target."""
        if self.derived["model"] == "pca":
            return f"{len(self.outputs)} principal components of {self.n_features} features"
        return f"{self.derived['model']} of {self.derived['target']} on {self.n_features} features"

    def scores(self, rows: Any) -> NDArray[np.float64]:
        """Return the linear functions of rows, shape (n_rows, n_outputs).

        Parameters
        ----------
        rows : array-like, scipy sparse array or matrix, or data frame of shape (n_rows, n_features)
            In the units of the release, without the target. If the release has an `encoder`, frames and tables are raw
            rows; arrays are already encoded.

        Raises
        ------
        Invalid
            If `rows` has another shape or other columns, is not numeric, or holds NaN or infinity.
        """
        names = self.manifest.get("feature_names")
        named = rows_by_name(rows, names=names, noun=self.noun, encode=self.raw_encoding)
        matrix = checked_rows("rows", named, width=self.n_features, column="feature", noun=self.noun)
        if self.weights is None or self.offsets is None:
            return np.asarray(matrix @ self.coefficients.T) + self.intercepts
        return np.asarray(matrix @ self.weights.T) + self.offsets

    def transform(self, rows: Any) -> NDArray[np.float64]:
        """Return the scores of rows, like `scores`, under scikit-learn's name."""
        return self.scores(rows)

    def decision_function(self, rows: Any) -> NDArray[np.float64]:
        """Return the scores of classes: shape (n_rows,) for a target of two values, else (n_rows, n_classes).

        For a target of two values, a positive score means the larger value. For several classes, the class with the
        largest score is predicted.

        Raises
        ------
        Invalid
            If the model is not a classification, or in the same cases as `scores`.
        """
        if self.classes is None:
            raise Invalid("this model is no classification; use predict, or derive it with classes")
        found = self.scores(rows)
        return found[:, 0] - sum(self.classes) / 2.0 if len(self.outputs) == 1 else found

    def predict(self, rows: Any) -> NDArray[Any]:
        """Predict the target of rows: a number, or a class.

        Raises
        ------
        Invalid
            If the model has no target, or in the same cases as `scores`.
        """
        if self.derived["model"] == "pca":
            raise Invalid("components have no target to predict; use transform")
        if self.classes is None:
            return self.scores(rows)[:, 0]
        found = self.decision_function(rows)
        classes: NDArray[Any] = np.array(list(self.classes))
        chosen: NDArray[Any] = classes[(found > 0.0).astype(np.intp) if found.ndim == 1 else found.argmax(axis=1)]
        return chosen

    def intervals(self, level: float = 0.95) -> NDArray[np.float64]:
        """Return confidence intervals for the coefficients that this model would have without the noise.

        Parameters
        ----------
        level : float
            The fraction of releases in which the interval contains the coefficient without noise.

        Returns
        -------
        array of shape (n_outputs, n_features, 2)

        Raises
        ------
        Invalid
            If the model has no standard errors, or the level is not in (0, 1).
        """
        if self.errors is None or not 0.0 < level < 1.0:
            raise Invalid(
                f"there are no intervals of level={level} for a model {'without' if self.errors is None else 'with'} "
                "standard errors; give a level in (0, 1), and a model of ridge or lda"
            )
        width = NormalDist().inv_cdf((1.0 + level) / 2.0) * self.errors
        return np.stack([self.coefficients - width, self.coefficients + width], axis=-1)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each output and feature, with the largest coefficients or loadings first."""
        shown = self.coefficients if self.loadings is None else self.loadings
        found = []
        for at, output in enumerate(self.outputs):
            for column in np.argsort(-np.abs(shown[at]), kind="stable").tolist():
                row = {"output": output, "feature": self.feature_names[column]}
                if self.loadings is not None:
                    row["loading"] = float(self.loadings[at, column])
                row["coefficient"] = float(self.coefficients[at, column])
                if self.weights is not None:
                    row["weight"] = float(self.weights[at, column])
                if self.errors is not None:
                    low, high = self.intervals()[at, column].tolist()
                    row |= {"error": float(self.errors[at, column]), "low": low, "high": high}
                found.append(row)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correlations(_Derived):
    """Correlations of features, and partial correlations given all other features.

    Parameters
    ----------
    values, errors, partial, partial_errors : arrays of shape (n_features, n_features)
        Correlations and partial correlations, with their standard errors from the noise of the release. A feature that
        the noise hides has correlations of 0 with an error of 1.
    manifest : mapping
        Public facts.

    Raises
    ------
    Invalid
        If the arrays or the manifest are not of this kind.
    """

    kind = "correlations"
    noun = "correlations"
    dimensions = {  # noqa: RUF012
        name: ("feature", "other") for name in ("values", "errors", "partial", "partial_errors")
    }

    values: NDArray[np.float64]
    errors: NDArray[np.float64]
    partial: NDArray[np.float64]
    partial_errors: NDArray[np.float64]
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        d = len(self.values)
        self._freeze(shape={"n_features": d}, **dict.fromkeys(self.dimensions, 2))
        if {values.shape for values in self.arrays().values()} != {(d, d)}:
            raise Invalid(f"correlations of {d} features must be square matrices; pass one row for each feature")

    @property
    def significant(self) -> NDArray[np.bool_]:
        """Whether each correlation differs from 0 by more than three standard errors, shape (d, d)."""
        return np.abs(self.values) > SIGNIFICANT * self.errors

    def summary(self) -> dict[str, Any]:
        """Return the number of features and of significant pairs."""
        pairs = np.triu_indices(self.n_features, 1)
        return {
            "n_features": self.n_features,
            "pairs": len(pairs[0]),
            "significant_pairs": int(self.significant[pairs].sum()),
            "median_error": float(np.median(self.errors[pairs])) if len(pairs[0]) else None,
        }

    def headline(self) -> str:
        """Return a short description with the number of features."""
        return f"correlations of {self.n_features} features"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each pair of features, with the most significant pairs first."""
        first, second = np.triu_indices(self.n_features, 1)
        sizes = np.abs(self.values[first, second]) / np.maximum(self.errors[first, second], 1e-300)
        names = self.feature_names
        return [
            {
                "feature": names[first[at]],
                "other": names[second[at]],
                "correlation": float(self.values[first[at], second[at]]),
                "error": float(self.errors[first[at], second[at]]),
                "partial": float(self.partial[first[at], second[at]]),
                "partial_error": float(self.partial_errors[first[at], second[at]]),
            }
            for at in np.argsort(-sizes, kind="stable").tolist()
        ]
