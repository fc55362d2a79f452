"""A released second moment in memory, and the models derived from it.

All content is post-processing of a noisy release: no method reads private rows, and nothing is charged.

Examples
--------
>>> rows = np.array([[1.0, 2.0], [0.0, 1.0], [2.0, 2.0]])
>>> noise = {"law": "isometric", "std": 0.01, "step": 0.0, "constant": None}
>>> moment = PrivateMoment(
...     matrix=(rows.T @ rows)[np.triu_indices(2)],
...     manifest={"feature_names": ["x", "y"], "outcome": {"noise": noise}},
... )
>>> moment.ridge("y", l2=0.0).coefficients.round(2)
array([[1.2]])
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import frozen
from dpca.artifacts.derived import Correlations, DerivedModel, FeatureArtifact
from dpca.errors import Invalid
from dpca.moments import LEAST_SHARE, MARGIN, Estimate, Moment, TooNoisy, nearest_psd

_INHERITED = ("clip_norm", "code_version", "mechanism", "parameters", "plan", "privacy", "release", "warnings")
_BISECTIONS = 200
AS_WEIGHTED = (
    "released in rounds: the values combine the answers of all rounds, and the standard errors are upper bounds for "
    "this combination"
)
SCALES = ("none", "standard", "mca", "famd")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateMoment(FeatureArtifact):
    """A released second moment with known noise.

    Parameters
    ----------
    matrix : array of shape (order * (order + 1) / 2,), squared data units
        The upper triangle of the released matrix, row by row. Its order is one larger than the number of features if
        the mean was released too.
    weights : array of the same shape, optional
        For a release in rounds, the upper triangle of K, from which the noise's covariances follow (see
        `dpca.moments`).
    manifest : mapping
        Public facts. ``outcome`` holds ``noise``: its distribution ``law``, its standard deviation ``std`` off the
        diagonal, the ``step`` to whose multiples sums were rounded, and the ``constant`` appended to each row, or None.

    Raises
    ------
    Invalid
        If the arrays or the manifest are not of this kind.

    See Also
    --------
    dpca.moments.Moment : The formulas.
    """

    kind = "moment"
    noun = "moment"
    dimensions = {"matrix": ("entry",), "weights": ("entry",)}  # noqa: RUF012
    facts = {"clip_norm": "number", "encoder": "facts", "feature_names": "names"}  # noqa: RUF012

    matrix: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        matrix = frozen("matrix", self.matrix, ndim=1)
        weights = None if self.weights is None else frozen("weights", self.weights, ndim=1)
        noise = (self.manifest.get("outcome") or {}).get("noise")
        if not isinstance(noise, Mapping) or not {"law", "std", "step", "constant"} <= set(noise):
            raise Invalid("the moment lacks the facts about its noise; pass the noise of its release in outcome")
        order = math.isqrt(2 * len(matrix))
        n_features = order - (noise["constant"] is not None)
        if (
            order * (order + 1) // 2 != len(matrix)
            or n_features < 1
            or (weights is not None and weights.shape != matrix.shape)
        ):
            raise Invalid(
                f"matrix has {len(matrix)} entries; matrix, and weights if given, need those of an upper triangle; "
                "pass all entries as released"
            )
        self._freeze(shape={"n_features": n_features}, matrix=1, weights=1)
        Moment(released=_square(matrix), noise_std=float(noise["std"]))

    @property
    def moment(self) -> Moment:
        """The matrix with its noise, for the formulas of `dpca.moments`."""
        noise = self.manifest["outcome"]["noise"]
        return Moment(
            released=_square(self.matrix),
            noise_std=float(noise["std"]),
            constant=noise["constant"],
            weights=None if self.weights is None else _square(self.weights),
        )

    @property
    def has_mean(self) -> bool:
        """Whether the release includes the mean of the rows, which a covariance needs."""
        return self.manifest["outcome"]["noise"]["constant"] is not None

    def summary(self) -> dict[str, Any]:
        """Return the main facts of the moment by name."""
        return {
            "clip_norm": self.manifest.get("clip_norm"),
            "n_features": self.n_features,
            "has_mean": self.has_mean,
            "noise_std": self.manifest["outcome"]["noise"]["std"],
            "noise_edge": self.moment.noise_edge,
        }

    def headline(self) -> str:
        """Return a short description with the number of features."""
        return f"second moment{' and mean' if self.has_mean else ''} of {self.n_features} features"

    def second_moment(self, *, psd: bool = False) -> Estimate:
        """Return the second moment, a sum over rows in squared data units, with its standard errors.

        Parameters
        ----------
        psd : bool
            Whether to return the nearest positive semidefinite matrix. The errors remain those of the released entries.
        """
        return _psd(self.moment.second_moment(), psd=psd)

    def mean(self) -> Estimate:
        """Return the mean of the rows in data units, with its standard errors.

        Raises
        ------
        Invalid
            If the release has no mean.
        """
        with self._stating_epsilon():
            return self.moment.mean()

    def covariance(self, *, psd: bool = False) -> Estimate:
        """Return the covariance of the features in squared data units, with its standard errors.

        Parameters
        ----------
        psd : bool
            As in `second_moment`.

        Raises
        ------
        Invalid
            If the release has no mean.
        """
        with self._stating_epsilon():
            return _psd(self.moment.covariance(), psd=psd)

    def correlation(self, *, psd: bool = False) -> Estimate:
        """Return the correlations of the features, with their standard errors.

        Parameters
        ----------
        psd : bool
            As in `second_moment`.

        Raises
        ------
        Invalid
            If the release has no mean, or the noise hides every variance.
        """
        with self._stating_epsilon():
            return _psd(self.moment.correlation(), psd=psd)

    def correlations(self, *, parent: str | None = None) -> Correlations:
        """Return correlations and partial correlations of the features as an artifact.

        Parameters
        ----------
        parent : str, optional
            The digest of this artifact, which the manifest of the result states.

        Raises
        ------
        Invalid
            In the same cases as `correlation`.
        """
        with self._stating_epsilon():
            plain, given_others = self.moment.correlation(), self.moment.partial_correlation()
        return Correlations(
            values=plain.values,
            errors=plain.errors,
            partial=given_others.values,
            partial_errors=given_others.errors,
            manifest=self._derived({"model": "correlation"}, parent, range(self.n_features)),
        )

    def ridge(
        self,
        target: str,
        *,
        l2: float | None = None,
        classes: tuple[float, float] | None = None,
        parent: str | None = None,
    ) -> DerivedModel:
        """Return the ridge regression of a column on all other columns.

        Parameters
        ----------
        target : str
            The column to predict. If it is a category of the schema, the model is a classification: each value of the
            category is regressed on the other columns, and `DerivedModel.predict` returns the value with the largest
            score.
        l2 : float, squared data units summed over rows, optional
            The penalty: the coefficients minimise ``sum (y - x w - b)^2 + l2 |w|^2`` over the clipped rows, up to the
            noise. By default, the noise edge, a bound on the eigenvalues of the noise (`dpca.moments.DEFAULT_L2`).
        classes : pair of float, optional
            The two values of a numeric target. If given, the model is a classification into these two values.
        parent : str, optional
            The digest of this artifact, which the manifest of the result states.

        Returns
        -------
        DerivedModel

        Raises
        ------
        Invalid
            If there is no such column, the penalty is too small for the noise, or the noise hides whether the other
            columns predict the target.

        Notes
        -----
        Without a released mean, a classification needs columns that add up to a constant, such as the values of a
        category. With such columns, a release with center=none needs less noise.
        """
        group, marks = self._target(target, classes)
        others = np.setdiff1d(np.arange(self.n_features), self._columns(target))
        if not len(others):
            raise Invalid(f"no column is left to predict {target!r} from; release more columns")
        with self._stating_epsilon():
            found = self.moment.ridge(group, others, l2=l2)
            if self.has_mean and not found.quality:
                self.mean()  # raises an error that states why
            if found.quality and all(quality.is_hidden for quality in found.quality):
                factor = MARGIN * 2.0 / max(0.02, *(each.visibility for each in found.quality))
                raise TooNoisy(f"the noise hides whether the other columns predict {target!r}", factor=factor)
        facts = {"model": "ridge", "target": target, "l2": found.l2, "outputs": self._outputs(group, target, marks)}
        assert found.weights is not None
        assert found.offsets is not None
        scale = self._mark(group) if len(group) > 1 and self.has_mean else 1.0
        outcome = {
            "r_squared": [each.r_squared for each in found.quality],
            "r_squared_error": [each.r_squared_error for each in found.quality],
        }
        return DerivedModel(
            coefficients=found.coefficients,
            intercepts=found.intercepts,
            errors=found.errors,
            weights=found.weights / scale,
            offsets=found.offsets / scale,
            manifest={
                **self._derived(facts | ({"classes": marks} if marks else {}), parent, others, left_out=target),
                "outcome": outcome,
            },
        )

    def lda(self, label: str, *, l2: float | None = None, parent: str | None = None) -> DerivedModel:
        """Return the linear discriminant functions of a category whose values are columns of the release.

        Parameters
        ----------
        label : str
            A category of the schema, of which each row has one listed value.
        l2 : float, optional
            A penalty on the scatter within classes; default as in `ridge`.
        parent : str, optional
            The digest of this artifact, which the manifest of the result states.

        Returns
        -------
        DerivedModel

        Raises
        ------
        Invalid
            If the column is no category, or the noise hides a class.
        """
        group, marks = self._target(label, None)
        if len(group) < 2:
            raise Invalid(f"{label!r} is not a category with several values; use ridge with its two values as classes")
        others = np.setdiff1d(np.arange(self.n_features), self._columns(label))
        with self._stating_epsilon():
            found = self.moment.discriminant(group, others, l2=l2)
        facts = {"model": "lda", "target": label, "l2": found.l2, "outputs": marks, "classes": marks}
        return DerivedModel(
            coefficients=found.coefficients,
            intercepts=found.intercepts,
            errors=found.errors,
            manifest=self._derived(facts, parent, others, left_out=label),
        )

    def pca(
        self, n_components: int, *, whiten: bool = False, scale: str = "none", parent: str | None = None
    ) -> DerivedModel:
        """Return principal components as a linear map, with loadings.

        Parameters
        ----------
        n_components : int
            The number of components.
        whiten : bool
            Whether to divide each score by its standard deviation: the released variance minus the part of the noise.
        scale : {"none", "standard", "mca", "famd"}
            Weights of the columns. ``standard``: one over the standard deviation. ``mca``: one over the root of the
            share of each value, for tables of categories only. ``famd``: ``mca`` for categories, and ``standard`` for
            the other columns. A variance or share below three of its standard errors is replaced by three standard
            errors.
        parent : str, optional
            The digest of this artifact, which the manifest of the result states.

        Returns
        -------
        DerivedModel

        Raises
        ------
        Invalid
            If the release does not support the scale, or for ``whiten`` if a component is not above the noise.

        Notes
        -----
        The weights follow from the released diagonal and mean, so they need no separate release. The clip norm
        bounds the unweighted rows, so weighting the released matrix is post-processing. A rare value has a large
        weight, which multiplies its noise too.
        """
        moment = self.moment
        with self._stating_epsilon():
            weights = self._column_weights(scale)
            found = moment.components(n_components, scale=weights)
            visible = int((found.denoised > 0.0).sum())
            if whiten and visible < n_components:
                raise TooNoisy(
                    f"whitening needs components above the noise, but only {visible} of {n_components} are",
                    factor=MARGIN * found.edge / max(float(found.values[-1]), found.edge / 100.0),
                )
        n = moment.n_rows if self.has_mean else 1.0
        stds = np.sqrt(found.denoised / n)
        maps = found.directions * weights / (stds[:, None] if whiten else 1.0)
        mean = moment.mean().values if self.has_mean else np.zeros(self.n_features)
        facts = {
            "model": "pca",
            "scale": scale,
            "whiten": whiten,
            "outputs": [f"component {number}" for number in range(1, n_components + 1)],
        }
        outcome = {"above_noise": visible, "noise_edge": found.edge, "eigenvalues": found.values.tolist()}
        return DerivedModel(
            coefficients=maps,
            intercepts=-maps @ mean,
            loadings=found.directions * stds[:, None],
            manifest={**self._derived(facts, parent, range(self.n_features)), "outcome": outcome},
        )

    def sample(self, n_rows: int, *, seed: int = 0) -> NDArray[np.float64]:
        """Draw normal rows with the released mean and covariance, as encoded columns of shape (n_rows, n_features).

        Parameters
        ----------
        n_rows : int
        seed : int
            The public seed of the draws.

        Raises
        ------
        Invalid
            If the release has no mean, or `n_rows` is below 1.

        Notes
        -----
        The rows match mean and covariance up to the noise. They match nothing else: neither the shapes of distributions
        nor dependences among three or more columns. `dpca.schemas.encoder.decode` turns them into a raw table.
        """
        if n_rows < 1:
            raise Invalid(f"{n_rows} rows were requested; request at least 1")
        with self._stating_epsilon():
            return self.moment.sample(n_rows, seed=seed)

    def _columns(self, name: str) -> NDArray[np.intp]:
        """Return the indices of the feature with this name, or of all features made from the raw column."""
        names = self.feature_names
        found = [at for at, each in enumerate(names) if each == name or each.startswith((f"{name}=", f"{name}["))]
        if not found:
            known = ", ".join(dict.fromkeys(each.partition("=")[0] for each in names))
            raise Invalid(f"{name!r} is no column of this release; its columns are {known[:200]}; name one")
        return np.array(found)

    def _target(self, name: str, classes: tuple[float, float] | None) -> tuple[NDArray[np.intp], list[Any]]:
        """Return the indices of the features to predict, and the class that each indicates (none in a regression)."""
        columns, names = self._columns(name), self.feature_names
        if names[columns[0]] != name and names[columns[0]].startswith(f"{name}="):
            if classes is not None:
                raise Invalid(f"{name!r} is a category, whose classes are its values; leave out classes")
            return columns, [names[column].partition("=")[2] for column in columns]
        if classes is None and self._kind_of(name) == "boolean":
            classes = (0.0, 1.0)
        if classes is not None and not classes[0] < classes[1]:
            raise Invalid(f"classes={classes} must be two values in ascending order; pass the values of the column")
        return columns[:1], [] if classes is None else list(classes)

    def _kind_of(self, name: str) -> str | None:
        declared = (self.manifest.get("encoder") or {}).get("columns", ())
        return next((str(column["kind"]) for column in declared if column["name"] == name), None)

    def _outputs(self, group: NDArray[np.intp], target: str, marks: list[Any]) -> list[str]:
        return [target] if len(group) == 1 else [str(mark) for mark in marks]

    def _mark(self, group: NDArray[np.intp]) -> float:
        """Return the typical entry of an indicator column in rows of its class: 1, or less if rows were clipped.

        It is the sum of the squared indicators divided by the sum of the indicators.
        """
        total = float(self.moment.mean().values[group].sum()) * self.moment.n_rows
        return min(max(float(np.trace(self.moment.released[np.ix_(group, group)])) / max(total, 1.0), 0.01), 1.0)

    def _column_weights(self, scale: str) -> NDArray[np.float64]:
        if scale not in SCALES:
            raise Invalid(f"scale={scale!r} is unknown; it must be one of {', '.join(SCALES)}; choose one")
        if scale == "none":
            return np.ones(self.n_features)
        mean, variance = self.moment.mean(), self.moment.covariance()
        stds = 1.0 / np.sqrt(np.maximum(np.diag(variance.values), LEAST_SHARE * np.diag(variance.errors)))
        if scale == "standard":
            return stds
        names = self.feature_names
        marks = np.array(["=" in name for name in names])
        if self.manifest.get("encoder") is None:
            raise Invalid(f"scale={scale} needs the schema of the columns; ingest with a schema, or use scale=standard")
        if scale == "mca" and not marks.all():
            raise Invalid("scale=mca is for categories only, and other columns were released; use scale=famd")
        shares = 1.0 / np.sqrt(np.maximum(mean.values, LEAST_SHARE * mean.errors))
        return np.where(marks, shares, stds)

    def _derived(
        self, facts: Mapping[str, Any], parent: str | None, columns: Any, *, left_out: str | None = None
    ) -> dict[str, Any]:
        """Return the manifest of an artifact that is derived from the features with the indices ``columns``."""
        kept = {name: self.manifest[name] for name in _INHERITED if name in self.manifest}
        names, encoder = self.manifest.get("feature_names"), self.manifest.get("encoder")
        if names is not None:
            kept["feature_names"] = [names[column] for column in columns]
        if encoder is not None:
            kept["encoder"] = {
                **encoder,
                "columns": [column for column in encoder["columns"] if column["name"] != left_out],
            }
        if self.weights is not None:
            kept["warnings"] = [*(kept.get("warnings") or ()), AS_WEIGHTED]
        return {**kept, "derived": dict(facts), **({"parent": parent} if parent is not None else {})}

    @contextmanager
    def _stating_epsilon(self) -> Iterator[None]:
        """Within this context, add to each `TooNoisy` message the epsilon at which the request would be possible."""
        try:
            yield
        except TooNoisy as error:
            privacy = self.manifest.get("privacy") or {}
            epsilon, delta = privacy.get("epsilon"), privacy.get("delta")
            if not epsilon or not delta:
                raise
            needed = epsilon_with_less_noise(epsilon=epsilon, delta=delta, factor=max(error.factor, 1.0))
            raise TooNoisy(
                f"{error}; a release with epsilon {_rounded_up(needed)} instead of {epsilon:g} should suffice",
                factor=error.factor,
            ) from None


def _square(triangle: NDArray[np.float64]) -> NDArray[np.float64]:
    order = math.isqrt(2 * len(triangle))
    matrix = np.zeros((order, order))
    matrix[np.triu_indices(order)] = triangle
    return matrix + np.triu(matrix, 1).T


def _psd(found: Estimate, *, psd: bool) -> Estimate:
    return Estimate(nearest_psd(found.values), found.errors) if psd else found


def _rounded_up(value: float) -> str:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit) * unit:.2g}"


def epsilon_with_less_noise(*, epsilon: float, delta: float, factor: float) -> float:
    """Return the epsilon at which Gaussian noise is ``factor`` times smaller than at this epsilon and delta.

    For advice only. Releases are calibrated by `dpca_tasks.accounting.calibration`, which bounds rounding errors too.

    References
    ----------
    Balle and Wang (2018), Improving the Gaussian mechanism, Theorem 8.
    """
    strength = _root(lambda mu: _delta_of(mu, epsilon) - delta) * factor
    return _root(lambda other: delta - _delta_of(strength, other))


def _delta_of(strength: float, epsilon: float) -> float:
    """Return the least delta, at an epsilon, of Gaussian noise of standard deviation 1 and sensitivity ``strength``."""
    most, tail = epsilon / strength - strength / 2.0, epsilon / strength + strength / 2.0
    if tail < 30.0:
        return (math.erfc(most / math.sqrt(2.0)) - math.exp(epsilon) * math.erfc(tail / math.sqrt(2.0))) / 2.0
    lost = math.exp(epsilon - tail**2 / 2.0) / (tail * math.sqrt(2.0 * math.pi))
    return math.erfc(most / math.sqrt(2.0)) / 2.0 - lost


def _root(increasing: Callable[[float], float]) -> float:
    low, high = 1e-9, 1e6
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if increasing(middle) < 0.0 else (low, middle)
    return high
