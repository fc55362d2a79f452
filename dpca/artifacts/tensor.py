"""Released components of a mixture model, with their weights: topics of documents, or centres of points.

All arrays and facts are post-processing of noisy answers; no method reads private rows.

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
_LARGEST = 1e100  # the largest allowed entry of rows and components, so that the squares of rows stay finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorComponents(Artifact):
    """Released components of a mixture model, by which a document or a point is assigned to its component.

    Parameters
    ----------
    components : array of shape (n_components, n_features), optional
        For topics, each row has the probabilities of the words in one topic, and sums to 1. For mixtures, each row is
        a centre in data units. None if no component exceeded the noise.
    weights : array of shape (n_components,), optional
        The weights of the components, in descending order; their sum is 1.
    eigenvalues : array of shape (n_kept,), optional
        Those eigenvalues of the released second moment that exceed the noise, in descending order; the largest
        eigenvalue is always included. The moment is a sum over rows. For mixtures it is in data units squared, after
        subtraction of the noise variance.
    model : {"topics", "mixture"}
        ``topics`` if rows are documents (counts of words), ``mixture`` if rows are points of a mixture of spherical
        Gaussians.
    n_features : int
        The number of columns of a row.
    noise_variance : float, data units squared, optional
        The variance of the points of a mixture around their centres, released or declared.
    manifest : mapping
        Public facts, as plain JSON values. ``format``, ``kind`` and ``n_components`` are filled in.

    Raises
    ------
    Invalid
        If the arrays do not have these properties, or the manifest has a fact that is not accepted.

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
                raise Invalid("eigenvalues must be in descending order; pass the array of a finished release")
            if len(eigenvalues) < n_components:
                raise Invalid(
                    f"there are {len(eigenvalues)} eigenvalues for {n_components} components; pass at least one per "
                    "component"
                )
        facts = {**self.manifest, "model": self.model}
        if self.noise_variance is not None:
            facts["noise_variance"] = float(self.noise_variance)
        shape = {"n_components": n_components, "n_features": int(self.n_features)}
        manifest = checked_manifest(facts, kind=self.kind, facts=_FACTS, shape=shape)
        names = manifest.get("feature_names")
        if names is not None and len(names) != self.n_features:
            raise Invalid(
                f"there are {len(names)} feature names for {self.n_features} features; declare one name per feature"
            )
        found = (("components", components), ("weights", weights), ("eigenvalues", eigenvalues), ("manifest", manifest))
        for name, value in found:
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Show the model, the sizes, and the privacy guarantee; a result without a guarantee shows NOT PRIVATE."""
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
        """Return the model, the sizes, the weights and the quality estimates of the release, by name."""
        return {
            **(self.manifest.get("outcome") or {}),
            "model": self.model,
            "n_components": self.n_components,
            "n_features": self.n_features,
            "weights": None if self.weights is None else self.weights.tolist(),
            "noise_variance": self.noise_variance,
        }

    def headline(self) -> str:
        """Return a phrase with the numbers of components and features, such as ``5 topics of 2000 words``."""
        if self.model == "topics":
            return f"{self.n_components} topics of {self.n_features} words"
        return f"{self.n_components} centres of {self.n_features} features"

    def top_words(self, count: int) -> list[list[tuple[str, float]]]:
        """Return the largest entries of each component, in descending order; equal entries are ordered by column.

        Parameters
        ----------
        count : int
            The number of entries per component.

        Returns
        -------
        list of list of (str, float)
            For each component, pairs of a column and its entry. The column is the declared name, or a number from 0.
            The entries of topics are probabilities. The entries of centres are coordinates, of which the largest
            absolute values are selected.

        Raises
        ------
        Invalid
            If `count` is below 1.
        """
        if count < 1:
            raise Invalid(f"count={count} must be at least 1; request at least one word")
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
            For topics: documents, as non-negative whole counts of words. A document may have any length; an empty
            document gets the released weights. For mixtures: points. Named columns are matched by name, as in
            `PrivateSubspace.transform`.

        Returns
        -------
        array of shape (n_rows, n_components)
            The posterior weights; each row sums to 1. For topics, a word's probability in a topic is raised to `FLOOR`
            divided by the number of words if it is smaller; then the topic is rescaled to sum to 1. For mixtures whose
            noise variance is unknown or 0, the nearest centre gets the weight 1, the limit of small variances.

        Raises
        ------
        Invalid
            If `rows` does not fit the model, or if the release has no component.
        """
        exponents = self._exponents(self._alignments(self._checked(rows)))
        parts = np.exp(exponents - exponents.max(axis=1, keepdims=True))
        return np.asarray(parts / parts.sum(axis=1, keepdims=True))

    def score(self, rows: Any) -> float:
        """Return the mean log-likelihood per row.

        Parameters
        ----------
        rows : array-like or scipy sparse array or matrix of shape (n_rows, n_features)
            Rows as for `transform`, at least one. The score of private rows contains no noise: it may be shown only to
            those who may see the rows, and must not be published.

        Returns
        -------
        float
            For topics: the log-probability of a document's words as a sequence, so without the multinomial coefficient.
            Small word probabilities are raised as in `transform`. For mixtures: the log-density in data units.

        Raises
        ------
        Invalid
            In the same cases as `transform`. Also if there are no rows, or if a mixture has no positive noise variance
            and so no density.
        """
        variance = self.noise_variance
        if self.model == "mixture" and not variance:
            raise Invalid(
                "this mixture has no noise variance, and a density needs it to be positive; pass noise_variance, or "
                "make a release that includes it"
            )
        matrix = self._checked(rows)
        if not matrix.shape[0]:
            raise Invalid("there are no rows, but a mean needs at least one; pass at least one row")
        found = self._alignments(matrix)
        exponents = self._exponents(found)
        most = exponents.max(axis=1)
        likelihoods = most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))
        if variance:
            nearest = np.maximum(_squared_norms(matrix) - 2.0 * found.max(axis=1), 0.0)
            likelihoods -= 0.5 * (self.n_features * math.log(2.0 * math.pi * variance) + nearest / variance)
        return float(likelihoods.mean())

    def _alignments(self, matrix: Any) -> NDArray[np.float64]:
        """Return, for each row and component, the part of the log-likelihood that depends on the component.

        For a topic this part is the whole log-likelihood. For a centre ``m`` and a point ``x`` it is
        ``-|x - m|^2 / 2 + |x|^2 / 2``, before division by the noise variance.
        """
        components, _ = self._released()
        if self.model == "topics":
            words = np.maximum(components, FLOOR / self.n_features)
            return np.asarray(matrix @ np.log(words / words.sum(axis=1, keepdims=True)).T)
        return np.asarray(matrix @ components.T) - 0.5 * np.square(components).sum(axis=1)

    def _exponents(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log of each component's weight times its likelihood, up to a term equal for all components."""
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
                "this release has no component, because noise hid all of them; release again with more rows or a "
                "larger epsilon"
            )
        return self.components, self.weights

    def _checked(self, rows: Any) -> Any:
        named = rows_by_name(rows, names=self.manifest.get("feature_names"), noun=self.noun, encode=self.raw_encoding)
        matrix = checked_rows("rows", named, width=self.n_features, column="feature", noun=self.noun)
        values = matrix if isinstance(matrix, np.ndarray) else matrix.data
        if values.size and np.abs(values).max() > _LARGEST:
            raise Invalid(
                f"rows hold a value beyond {_LARGEST:g}, for which no likelihood can be computed; check the units"
            )
        if self.model == "topics" and ((values < 0).any() or (values != np.floor(values)).any()):
            raise Invalid("rows hold a count that is negative or not a whole number; pass whole counts of words")
        return matrix


def _squared_norms(matrix: Any) -> NDArray[np.float64]:
    squares = np.square(matrix) if isinstance(matrix, np.ndarray) else matrix.multiply(matrix)
    return np.asarray(squares.sum(axis=1)).ravel()


def _check_facts(model: str, n_features: int, noise_variance: float | None) -> None:
    if model not in MODELS:
        raise Invalid(f"model {model!r} is unknown; it must be {' or '.join(MODELS)}; choose one")
    if not isinstance(n_features, int) or n_features < 1:
        raise Invalid(f"n_features={n_features!r} must be a whole number of at least 1; pass the number of columns")
    if noise_variance is not None and (
        model == "topics" or not (math.isfinite(noise_variance) and noise_variance >= 0)
    ):
        raise Invalid(
            f"noise_variance={noise_variance} for model={model}; only mixtures have a noise variance, which must be "
            "finite and not negative; correct or omit it"
        )


def _check_components(
    components: NDArray[np.float64] | None, weights: NDArray[np.float64] | None, *, model: str, n_features: int
) -> None:
    if components is None or weights is None:
        if components is not None or weights is not None:
            raise Invalid("only one of components and weights is given; pass both arrays, or neither")
        return
    if components.shape[1] != n_features or len(components) > n_features:
        raise Invalid(
            f"components has shape {components.shape}; there must be {n_features} columns, one per feature, and not "
            "more rows than columns; pass each component as a row"
        )
    if np.abs(components).max() > _LARGEST:
        raise Invalid(
            f"components has an entry above {_LARGEST:g}, for which no likelihood can be computed; check the units"
        )
    if len(weights) != len(components):
        raise Invalid(f"there are {len(weights)} weights for {len(components)} components; pass one per component")
    if weights.min() <= 0 or np.any(np.diff(weights) > 0) or abs(weights.sum() - 1.0) > _SUMS_WITHIN:
        raise Invalid(
            "weights must be positive, in descending order, and sum to 1; normalize the weights, and sort weights and "
            "components together"
        )
    if model == "topics" and (components.min() < 0 or np.abs(components.sum(axis=1) - 1.0).max() > _SUMS_WITHIN):
        raise Invalid(
            "each topic must be a row of word probabilities, which are not negative and sum to 1; project each topic "
            "onto the probability simplex"
        )
