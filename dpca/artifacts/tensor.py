"""Released components of a mixture, with their weights: topics of documents, or centres of points.

All content is post-processing of a noisy release; no method reads private rows.

Examples
--------
>>> topics = TensorComponents(
...     components=np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]), weights=np.array([0.6, 0.4]), model="topics",
...     n_features=3, manifest={"feature_names": ["court", "bank", "rate"]},
... )
>>> topics.top_words(2)[1]
[('rate', 0.8), ('bank', 0.2)]
>>> topics.transform([[2, 1, 0], [0, 1, 3]]).round(3).tolist()
[[1.0, 0.0], [0.0, 1.0]]
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import Artifact, checked_manifest, frozen, npz
from dpca.artifacts.columns import checked_rows, rows_by_name
from dpca.errors import Invalid

MODELS = ("topics", "mixture")
FLOOR = 1e-3
"""The least probability of a word in a topic, times the number of words. A released zero is noise or rounding."""

_FACTS = {"encoder": "facts", "feature_names": "names", "model": "text", "noise_variance": "number"}
_SUMS_WITHIN = 1e-6
_LARGEST = 1e100  # keeps the squares of rows finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorComponents(Artifact):
    """The components of a mixture, which assign a document or a point to its component.

    Parameters
    ----------
    components : array of shape (n_components, n_features), optional
        Topics: probabilities of words, so each row sums to 1. Mixtures: centres, in data units. None if no component
        exceeded the noise.
    weights : array of shape (n_components,), optional
        The weights of the components, in descending order; their sum is 1.
    eigenvalues : array of shape (n_kept,), optional
        The eigenvalues of the released second moment above its noise, but at least the first, in descending order. The
        moment is a sum over rows. For mixtures it is in data units squared, with the noise variance subtracted.
    model : {"topics", "mixture"}
        Topics of documents, which are counts of words, or a mixture of spherical Gaussians.
    n_features : int
        The number of columns of a row.
    noise_variance : float, data units squared, optional
        The variance of the points of a mixture around their centres, released or declared.
    manifest : mapping
        Public facts, as plain JSON values. ``format``, ``kind`` and ``n_components`` are filled in.

    Raises
    ------
    Invalid
        If the arrays do not have these properties, or the manifest holds anything else.

    Guarantees
    ----------
    The arrays are private copies, float64 and read-only, also after pickling.
    """

    kind = "tensor_components"
    noun = "set of tensor components"
    dimensions = {  # noqa: RUF012 - ClassVar of the base
        "components": ("component", "feature"),
        "weights": ("component",),
        "eigenvalues": ("rank",),
    }
    exports = {"npz": npz}  # noqa: RUF012

    components: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None
    eigenvalues: NDArray[np.float64] | None = None
    model: str
    n_features: int
    noise_variance: float | None = None
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        components = None if self.components is None else frozen("components", self.components, ndim=2)
        weights = None if self.weights is None else frozen("weights", self.weights, ndim=1)
        eigenvalues = None if self.eigenvalues is None else frozen("eigenvalues", self.eigenvalues, ndim=1)
        _check_facts(self.model, self.n_features, self.noise_variance)
        _check_components(components, weights, model=self.model, n_features=self.n_features)
        n_components = 0 if components is None else len(components)
        if eigenvalues is not None:
            if np.any(np.diff(eigenvalues) > 0):
                raise Invalid("eigenvalues must be in descending order; pass the eigenvalues of these components")
            if len(eigenvalues) < n_components:
                raise Invalid(
                    f"{len(eigenvalues)} eigenvalues for {n_components} components; each component needs one; pass all"
                )
        facts = {**self.manifest, "model": self.model}
        if self.noise_variance is not None:
            facts["noise_variance"] = float(self.noise_variance)
        shape = {"n_components": n_components, "n_features": int(self.n_features)}
        manifest = checked_manifest(facts, kind=self.kind, facts=_FACTS, shape=shape)
        names = manifest.get("feature_names")
        if names is not None and len(names) != self.n_features:
            raise Invalid(f"{len(names)} feature names; each feature needs one; declare {self.n_features}")
        found = (("components", components), ("weights", weights), ("eigenvalues", eigenvalues), ("manifest", manifest))
        for name, value in found:
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Show the sizes and the guarantee, or in capitals that there is none."""
        privacy = self.manifest.get("privacy", {})
        promised = [f"{name}={privacy[name]!r}" for name in ("epsilon", "delta") if name in privacy]
        facts = [f"model={self.model!r}", f"n_components={self.n_components}", f"n_features={self.n_features}"]
        return f"TensorComponents({', '.join([*facts, *(promised if self.is_private else ['NOT PRIVATE'])])})"

    def __reduce__(self) -> tuple[partial["TensorComponents"], tuple[()]]:
        """Rebuild through the constructor, so that a copy is as read-only as the original."""
        return partial(TensorComponents, **{name: getattr(self, name) for name in self.__slots__}), ()

    @classmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> "TensorComponents":
        """Build components from stored arrays and a manifest."""
        facts: dict[str, Any] = {"model": manifest["model"], "n_features": manifest["n_features"], **arrays}
        return cls(**facts, noise_variance=manifest.get("noise_variance"), manifest=manifest)

    @property
    def n_components(self) -> int:
        """The number of components; 0 if none exceeded the noise."""
        return 0 if self.components is None else len(self.components)

    def summary(self) -> dict[str, Any]:
        """Return the model, the sizes and the weights."""
        return {
            **(self.manifest.get("outcome") or {}),
            "model": self.model,
            "n_components": self.n_components,
            "n_features": self.n_features,
            "weights": None if self.weights is None else self.weights.tolist(),
            "noise_variance": self.noise_variance,
        }

    def headline(self) -> str:
        """Return a short description of the release."""
        if self.model == "topics":
            return f"{self.n_components} topics of {self.n_features} words"
        return f"{self.n_components} centres of {self.n_features} features"

    def top_words(self, count: int) -> list[list[tuple[str, float]]]:
        """Return the largest entries of each component, best first, with ties in order of column.

        Parameters
        ----------
        count : int
            The number of entries per component.

        Returns
        -------
        list of list of (str, float)
            The declared column names, or numbers from 0, with their entries. For topics these are probabilities; for
            centres they are coordinates, selected by absolute value.

        Raises
        ------
        Invalid
            If `count` is below 1.
        """
        if count < 1:
            raise Invalid(f"count={count} must be at least 1; request one word or more")
        names = self.manifest.get("feature_names") or [str(column) for column in range(self.n_features)]
        found = []
        for row in [] if self.components is None else self.components:
            order = np.argsort(-np.abs(row), kind="stable")[:count]
            found.append([(names[column], float(row[column])) for column in order])
        return found

    def transform(self, rows: Any) -> NDArray[np.float64]:
        """Return the posterior weights of the components, given each row.

        Parameters
        ----------
        rows : array-like, scipy sparse array or matrix, data frame or AnnData of shape (n_rows, n_features)
            Named columns are matched by name, as in `PrivateSubspace.transform`. Topics: non-negative whole counts of
            words. A document may have any length; the weights of an empty one are the released weights. Mixtures:
            points.

        Returns
        -------
        array of shape (n_rows, n_components)
            Rows that sum to 1, computed from logarithms. In a topic no word has a probability below `FLOOR` divided by
            the number of words. A mixture without a noise variance, or with 0, has all weight on the nearest centre,
            the limit of small variances.

        Raises
        ------
        Invalid
            If `rows` does not fit the model, or the release has no component.
        """
        exponents = self._exponents(self._alignments(self._checked(rows)))
        parts = np.exp(exponents - exponents.max(axis=1, keepdims=True))
        return np.asarray(parts / parts.sum(axis=1, keepdims=True))

    def score(self, rows: Any) -> float:
        """Return the mean log-likelihood of a row.

        Parameters
        ----------
        rows : array-like or scipy sparse array or matrix of shape (n_rows, n_features)
            As for `transform`, with at least one row. On private rows the score is a function of them without noise. It
            is for their curator alone, and must not be published.

        Returns
        -------
        float
            Topics: the log-likelihood of the words of a document in sequence, without the multinomial coefficient, and
            with `FLOOR`. Mixtures: the log-density, in data units.

        Raises
        ------
        Invalid
            As `transform`. Also if there is no row, or if a mixture has no positive noise variance and so no density.
        """
        variance = self.noise_variance
        if self.model == "mixture" and not variance:
            raise Invalid("these centres have no noise variance, and a density needs it; pass it, or release with it")
        matrix = self._checked(rows)
        if not matrix.shape[0]:
            raise Invalid("there are no rows, and a mean needs at least one; pass rows")
        found = self._alignments(matrix)
        exponents = self._exponents(found)
        most = exponents.max(axis=1)
        likelihoods = most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))
        if variance:
            nearest = np.maximum(_squared_norms(matrix) - 2.0 * found.max(axis=1), 0.0)
            likelihoods -= 0.5 * (self.n_features * math.log(2.0 * math.pi * variance) + nearest / variance)
        return float(likelihoods.mean())

    def _alignments(self, matrix: Any) -> NDArray[np.float64]:
        """Return the part of the log-likelihood that depends on the component.

        For topics it is the log-likelihood; for a centre ``m`` it is ``-|x - m|^2 / 2`` plus ``|x|^2 / 2``.
        """
        components, _ = self._released()
        if self.model == "topics":
            words = np.maximum(components, FLOOR / self.n_features)
            return np.asarray(matrix @ np.log(words / words.sum(axis=1, keepdims=True)).T)
        return np.asarray(matrix @ components.T) - 0.5 * np.square(components).sum(axis=1)

    def _exponents(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of weight times likelihood, up to a term that depends on the row alone."""
        _, weights = self._released()
        if self.model == "topics":
            return np.asarray(found + np.log(weights))
        gaps = found.max(axis=1, keepdims=True) - found
        if not self.noise_variance:
            return np.where(gaps > 0, -np.inf, np.log(weights))
        with np.errstate(over="ignore"):
            return np.asarray(np.log(weights) - gaps / self.noise_variance)

    def _released(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.components is None or self.weights is None:
            raise Invalid(
                "this release has no component, because noise hid all of them; release with more rows or epsilon"
            )
        return self.components, self.weights

    def _checked(self, rows: Any) -> Any:
        named = rows_by_name(rows, names=self.manifest.get("feature_names"), noun=self.noun, encode=self.raw_encoding)
        matrix = checked_rows("rows", named, width=self.n_features, column="feature", noun=self.noun)
        values = matrix if isinstance(matrix, np.ndarray) else matrix.data
        if values.size and np.abs(values).max() > _LARGEST:
            raise Invalid(f"rows hold a value beyond {_LARGEST:g}, the limit for a likelihood; check their units")
        if self.model == "topics" and ((values < 0).any() or (values != np.floor(values)).any()):
            raise Invalid("rows hold a count that is negative or not a whole number; pass counts of words")
        return matrix


def _squared_norms(matrix: Any) -> NDArray[np.float64]:
    squares = np.square(matrix) if isinstance(matrix, np.ndarray) else matrix.multiply(matrix)
    return np.asarray(squares.sum(axis=1)).ravel()


def _check_facts(model: str, n_features: int, noise_variance: float | None) -> None:
    if model not in MODELS:
        raise Invalid(f"model {model!r} is unknown; it must be {' or '.join(MODELS)}; choose one")
    if not isinstance(n_features, int) or n_features < 1:
        raise Invalid(f"n_features={n_features!r} must be at least 1; state the number of columns")
    if noise_variance is not None and (
        model == "topics" or not (math.isfinite(noise_variance) and noise_variance >= 0)
    ):
        raise Invalid(
            f"a noise variance of {noise_variance} in {model}; only a mixture has one, and it must not be negative; "
            "correct it"
        )


def _check_components(
    components: NDArray[np.float64] | None, weights: NDArray[np.float64] | None, *, model: str, n_features: int
) -> None:
    if components is None or weights is None:
        if components is not None or weights is not None:
            raise Invalid("components without weights, or weights without components; pass both, or neither")
        return
    if components.shape[1] != n_features or len(components) > n_features:
        raise Invalid(
            f"components of shape {components.shape} for {n_features} features; each needs one entry per feature, and "
            "components cannot outnumber features; pass them as rows"
        )
    if np.abs(components).max() > _LARGEST:
        raise Invalid(f"components with an entry beyond {_LARGEST:g}, the limit for a likelihood; check their units")
    if len(weights) != len(components):
        raise Invalid(f"{len(weights)} weights for {len(components)} components; each component needs one; pass all")
    if weights.min() <= 0 or np.any(np.diff(weights) > 0) or abs(weights.sum() - 1.0) > _SUMS_WITHIN:
        raise Invalid("weights must be positive, in descending order, and sum to 1; sort them with the components")
    if model == "topics" and (components.min() < 0 or np.abs(components.sum(axis=1) - 1.0).max() > _SUMS_WITHIN):
        raise Invalid(
            "topics must be probabilities of words, which are not negative and sum to 1; project them onto the simplex"
        )
