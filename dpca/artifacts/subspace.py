"""A private subspace in memory: released components and public facts about them.

All arrays and facts are post-processing of noisy answers; no method reads private rows.

Examples
--------
>>> subspace = PrivateSubspace(components=np.eye(2, 3), eigenvalues=np.array([5.0, 2.0]), manifest={})
>>> subspace.transform([[1.0, 2.0, 3.0]])
array([[1., 2.]])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import Artifact, checked_manifest, frozen, npz
from dpca.artifacts.columns import checked_rows, rows_by_name
from dpca.artifacts.exports import mlflow_model, onnx_model, scikit_model
from dpca.artifacts.fitted_transformer import FittedTransformer, open_to_notes
from dpca.artifacts.moment import PrivateMoment
from dpca.errors import Invalid

_FACTS = {"clip_norm": "number", "encoder": "facts", "feature_names": "names", "total_variance": "number"}
_OF_ONE_NUMBER = (
    *("captured", "captured_low", "share", "share_low", "share_low_of_all", "cv", "cv_low"),
    *("explained_variance_ratio", "probes", "seed", "verdict"),
)
_SHOWN = (
    *("verdict", "in_rounds", "refined_by", "above_noise"),
    *("share", "share_low", "share_low_of_all", "cv", "cv_low", "noise_std"),
)
_OF_SUBSPACES = ("kind", "n_components", "n_features", "total_variance", "outcome")
_ORTHONORMAL_WITHIN = 1e-6


@open_to_notes
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateSubspace(FittedTransformer, Artifact):
    """Released principal components, which act as a fitted scikit-learn transformer that projects rows onto them.

    Parameters
    ----------
    components : array of shape (n_components, n_features)
        The released components, as orthonormal rows.
    eigenvalues : array of shape (n_components,), data units squared, optional
        The eigenvalues of the noisy second moment (not divided by the number of rows) that belong to the components, in
        descending order. None for mechanisms that release only directions.
    spectrum : array of shape (n_released,), data units squared, optional
        The leading eigenvalues of the released matrix, more than there are components, in descending order, for a scree
        plot. They include the noise of the matrix.
    further : array of shape (n_released - n_components, n_features), optional
        The eigenvectors of the eigenvalues in `spectrum` beyond the components. `refit` needs them to return more
        components without spending further budget.
    leading : array of shape (n_released, n_features), optional
        The eigenvectors of all eigenvalues in `spectrum`. They are stored if the components are refined and `matrix`
        is not stored.
    matrix : array of shape (order * (order + 1) / 2,), optional
        The upper triangle of the released noisy matrix, row by row. ``order`` is ``n_features``, or one more if each
        row was extended by a constant so that the mean could be released too. With `matrix`, `dpca subspace refit` can
        repeat every post-processing without spending budget.
    answers : array of shape (n_entries,), optional
        For a release in several rounds: the noisy matrix of each round, in units of the squared clip norm. The upper
        triangles are stored row by row, one round after the other. Such a release has no `matrix`.
    map_directions, map_reductions : array of shape (n_map_directions, n_features), optional
        For a release in several rounds: the public linear maps ``I - W U^T`` that were applied to records before each
        round. `map_directions` has the rows of U^T and `map_reductions` the rows of W^T, one round after the other, in
        units of ``2^-12``.
    mean : array of shape (n_features,), optional
        The released mean of the rows, if the components were computed around it. `transform` subtracts the mean;
        `inverse_transform` adds it.
    manifest : mapping
        Public facts by name, as plain JSON values. Only facts that a subspace may state are accepted. ``format``,
        ``kind``, ``n_components`` and ``n_features`` are filled in. The manifest of a result without a privacy
        guarantee must state that there is none (see `is_private`).

    Raises
    ------
    Invalid
        If the arrays do not have these properties, or the manifest has a fact that is not accepted.

    Guarantees
    ----------
    The arrays are private copies, float64 and read-only, also after pickling.
    """

    kind = "private_subspace"
    noun = "subspace"
    folder = "subspace.zarr"
    dimensions = {  # noqa: RUF012 - ClassVar of the base
        "components": ("component", "feature"),
        "eigenvalues": ("component",),
        "spectrum": ("rank",),
        "further": ("direction", "feature"),
        "mean": ("feature",),
        "leading": ("rank", "feature"),
        "matrix": ("entry",),
        "answers": ("answered",),
        "map_directions": ("mapped", "feature"),
        "map_reductions": ("mapped", "feature"),
    }
    exports = {"npz": npz, "onnx": onnx_model, "mlflow": mlflow_model, "sklearn": scikit_model}  # noqa: RUF012

    components: NDArray[np.float64]
    eigenvalues: NDArray[np.float64] | None = None
    spectrum: NDArray[np.float64] | None = None
    further: NDArray[np.float64] | None = None
    mean: NDArray[np.float64] | None = None
    leading: NDArray[np.float64] | None = None
    matrix: NDArray[np.float64] | None = None
    answers: NDArray[np.float64] | None = None
    map_directions: NDArray[np.float64] | None = None
    map_reductions: NDArray[np.float64] | None = None
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        components = frozen("components", self.components, ndim=2)
        eigenvalues = None if self.eigenvalues is None else frozen("eigenvalues", self.eigenvalues, ndim=1)
        spectrum = None if self.spectrum is None else frozen("spectrum", self.spectrum, ndim=1)
        further = None if self.further is None else frozen("further", self.further, ndim=2)
        mean = None if self.mean is None else frozen("mean", self.mean, ndim=1)
        leading = None if self.leading is None else frozen("leading", self.leading, ndim=2)
        matrix = None if self.matrix is None else frozen("matrix", self.matrix, ndim=1)
        answers = None if self.answers is None else frozen("answers", self.answers, ndim=1)
        maps = [
            None if each is None else frozen(name, each, ndim=2)
            for name, each in (("map_directions", self.map_directions), ("map_reductions", self.map_reductions))
        ]
        _check_components(components if further is None else _stacked(components, further))
        if leading is not None:
            _check_leading(leading, components, spectrum)
        if matrix is not None:
            _check_matrix(matrix, components.shape[1])
        shapes = {None if each is None else each.shape for each in maps}
        if len(shapes) > 1 or (maps[0] is not None and maps[0].shape[1] != components.shape[1]):
            raise Invalid(
                "map_directions and map_reductions must have the same shape, with "
                f"{components.shape[1]} features per row, or both be absent; pass the arrays of a finished release"
            )
        if further is not None and (spectrum is None or len(spectrum) != len(components) + len(further)):
            raise Invalid(
                "spectrum must have one value per row of components and per row of further, but has another number of "
                "values; pass the eigenvalues of all these directions"
            )
        if mean is not None and len(mean) != components.shape[1]:
            raise Invalid(
                f"mean has {len(mean)} values, but there are {components.shape[1]} features; pass one value per feature"
            )
        if eigenvalues is None and spectrum is not None:
            raise Invalid("spectrum is given without the eigenvalues of the components; pass both arrays, or neither")
        if eigenvalues is not None and len(eigenvalues) != len(components):
            raise Invalid(
                f"there are {len(eigenvalues)} eigenvalues for {len(components)} components; pass one eigenvalue per "
                "component"
            )
        for name, values in (("eigenvalues", eigenvalues), ("spectrum", spectrum)):
            if values is not None and np.any(np.diff(values) > 0):
                raise Invalid(f"{name} must be in descending order; sort eigenvalues and components together")
        shape = {"n_components": components.shape[0], "n_features": components.shape[1]}
        object.__setattr__(self, "components", components)
        object.__setattr__(self, "eigenvalues", eigenvalues)
        object.__setattr__(self, "spectrum", spectrum)
        object.__setattr__(self, "further", further)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "leading", leading)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "answers", answers)
        object.__setattr__(self, "map_directions", maps[0])
        object.__setattr__(self, "map_reductions", maps[1])
        manifest = checked_manifest(self.manifest, kind=self.kind, facts=_FACTS, shape=shape)
        names = manifest.get("feature_names")
        if names is not None and len(names) != components.shape[1]:
            raise Invalid(
                f"there are {len(names)} feature names for {components.shape[1]} features; declare one name per feature"
            )
        object.__setattr__(self, "manifest", manifest)

    def __repr__(self) -> str:
        """Show the sizes, the mechanism, and the privacy guarantee; a result without a guarantee shows NOT PRIVATE."""
        privacy = self.manifest.get("privacy", {})
        promised = [f"{name}={privacy[name]!r}" for name in ("epsilon", "delta") if name in privacy]
        facts = [f"n_components={self.n_components}", f"n_features={self.n_features}"]
        facts += [f"mechanism={self.manifest['mechanism']!r}"] if "mechanism" in self.manifest else []
        return f"PrivateSubspace({', '.join([*facts, *(promised if self.is_private else ['NOT PRIVATE'])])})"

    def __reduce__(self) -> tuple[partial["PrivateSubspace"], tuple[()]]:
        """Rebuild through the constructor, so that a copy is as read-only as the original."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return partial(PrivateSubspace, **fields), ()

    @classmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> "PrivateSubspace":
        """Build a subspace from stored arrays and a manifest."""
        return cls(**{"components": arrays["components"], **arrays}, manifest=manifest)

    def summary(self) -> dict[str, Any]:
        """Return the clip norm, the sizes, the eigenvalues and the quality estimates of the subspace, by name."""
        return {
            "clip_norm": self.manifest.get("clip_norm"),
            "n_components": self.n_components,
            "n_features": self.n_features,
            "eigenvalues": None if self.eigenvalues is None else self.eigenvalues.tolist(),
            **{name: self.outcome[name] for name in _SHOWN if name in self.outcome},
        }

    def headline(self) -> str:
        """Return a phrase with the numbers of components and features, such as ``10 components of 123 features``."""
        return f"{self.n_components} components of {self.n_features} features"

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features of an input row."""
        return int(self.components.shape[1])

    @property
    def feature_names(self) -> Sequence[str] | None:
        """The public names of the features; None if the release has none."""
        names: Sequence[str] | None = self.manifest.get("feature_names")
        return names

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Public facts that the release itself determined: automatic decisions and quality estimates. May be empty."""
        return self.manifest.get("outcome") or {}

    @property
    def refined_by(self) -> str:
        """The method that removed noise from the components after the release; ``none`` if no method was applied."""
        return str(self.outcome.get("refined_by", "none"))

    @property
    def explained_variance_ratio(self) -> NDArray[np.float64] | None:
        """The estimated share of the total variance along each component; None if the release has no such estimate.

        The estimate corrects for the noise of the release. No share is negative, and all shares add up to at most 1.
        """
        shown = self.outcome.get("explained_variance_ratio")
        return None if shown is None else np.array(shown, np.float64)

    def refit(self, n_components: int, *, parent: str) -> "PrivateSubspace":
        """Return a subspace with another number of components from the stored directions, without spending budget.

        Parameters
        ----------
        n_components : int
            The number of components, at most the number of stored directions.
        parent : str
            The digest of this artifact, which the new subspace's manifest states.

        Raises
        ------
        Invalid
            If fewer directions are stored, or if the stored directions have no eigenvalues and so no order. Also if
            the components are refined or computed from rounds, because another number of components then requires a
            new computation.

        Notes
        -----
        The quality estimates of a release hold for one number of components, so they are not copied to the new
        subspace. `flows.published.refit_release` computes new estimates.
        """
        if self.refined_by != "none" or self.answers is not None:
            variant = "computed from rounds" if self.answers is not None else f"refined ({self.refined_by})"
            raise Invalid(
                f"these components were {variant}, so another number of components needs a new computation from the "
                "released matrix; use `dpca subspace refit`"
            )
        if self.eigenvalues is None:
            raise Invalid(
                f"this release has {len(self.components)} directions without eigenvalues, so they have no order by "
                "which to choose some of them; fit again with the required number of components"
            )
        basis = self.components if self.further is None else _stacked(self.components, self.further)
        values = self.eigenvalues if self.further is None or self.spectrum is None else self.spectrum
        if not 1 <= n_components <= len(basis):
            raise Invalid(
                f"n_components={n_components}, but this release has {len(basis)} directions; request 1 to {len(basis)} "
                "components"
            )
        more = {"spectrum": values, "further": basis[n_components:]} if n_components < len(basis) else {}
        facts = {name: value for name, value in self.manifest.items() if name != "n_components"}
        if outcome := {name: value for name, value in self.outcome.items() if name not in _OF_ONE_NUMBER}:
            facts["outcome"] = outcome
        return PrivateSubspace(
            components=basis[:n_components],
            eigenvalues=values[:n_components],
            mean=self.mean,
            matrix=self.matrix,
            manifest={**facts, "parent": parent},
            **{"spectrum": self.spectrum, **more},
        )

    def moment(self, *, parent: str | None = None) -> PrivateMoment:
        """Return the released second moment with its noise, from which models are derived without spending budget.

        Parameters
        ----------
        parent : str, optional
            The digest of this artifact, for the manifest of the moment.

        Raises
        ------
        Invalid
            If the release has no noisy matrix, or did not keep it. Also if the subspace was released in rounds,
            because only the pipeline can combine the rounds (`flows.published.moment_of`).
        """
        if self.answers is not None:
            raise Invalid(
                "this subspace was released in rounds, and combining them needs the pipeline; use `dpca derive`, or "
                "release the moment with `dpca moment fit`"
            )
        if self.matrix is None or not self.outcome.get("noise"):
            raise Invalid(
                "this subspace did not keep its released matrix; release it with --keep-matrix and a mechanism that "
                "forms a noisy matrix, or use `dpca moment fit`"
            )
        return PrivateMoment(matrix=self.matrix, manifest=self.moment_facts(self.outcome["noise"], parent=parent))

    def moment_facts(self, noise: Mapping[str, Any], *, parent: str | None) -> dict[str, Any]:
        """Return the manifest of the moment of this release, with the facts of its noise."""
        facts = {name: fact for name, fact in self.manifest.items() if name not in _OF_SUBSPACES}
        return {**facts, "outcome": {"noise": dict(noise)}, **({} if parent is None else {"parent": parent})}

    def transform(self, rows: Any) -> NDArray[np.float64]:
        """Project rows onto the components.

        Parameters
        ----------
        rows : array-like, scipy sparse array or matrix, data frame or AnnData of shape (n_rows, n_features)
            Real, finite numbers. The rows are not scaled; they are centred only if the release has a mean. If both the
            rows and the release have column names, columns are matched by name, in any order. If the release has an
            `encoder`, data frames and tables are treated as raw rows and encoded first; arrays and AnnData objects are
            treated as already encoded.

        Returns
        -------
        array of shape (n_rows, n_components)
            The scores as dense float64, also for sparse rows; a data frame if `set_output` selected one. An input with
            no rows gives an output with no rows.

        Raises
        ------
        Invalid
            If `rows` has the wrong shape or the wrong column names, is not numeric, or holds NaN or infinity.
        """
        scores = np.asarray(self.checked(rows) @ self.components.T)
        if self.mean is not None:
            scores = scores - self.components @ self.mean
        framed: NDArray[np.float64] = self.in_container(scores, rows)
        return framed

    def checked(self, rows: Any) -> Any:
        """Return rows as a matrix of finite numbers, with columns matched by name if rows and release have names."""
        named = rows_by_name(rows, names=self.feature_names, noun=self.noun, encode=self.raw_encoding)
        return checked_rows("rows", named, width=self.n_features, column="feature", noun=self.noun)

    def inverse_transform(self, scores: Any) -> NDArray[np.float64]:
        """Map scores back to feature space: return the points of the subspace that have these scores.

        Parameters
        ----------
        scores : array-like or scipy sparse array or matrix of shape (n_rows, n_components)

        Returns
        -------
        array of shape (n_rows, n_features)
            The points as dense float64, with the released mean added if there is one.

        Raises
        ------
        Invalid
            If `scores` is not 2-D with `n_components` columns, is not numeric, or holds NaN or infinity.
        """
        matrix = checked_rows("scores", scores, width=self.n_components, column="component", noun=self.noun)
        points = np.asarray(matrix @ self.components)
        return points if self.mean is None else points + self.mean


def _stacked(components: NDArray[np.float64], further: NDArray[np.float64]) -> NDArray[np.float64]:
    if components.shape[1] != further.shape[1]:
        raise Invalid(
            f"further has rows of {further.shape[1]} features, but components has rows of {components.shape[1]}; pass "
            "directions with the same number of features"
        )
    return np.vstack([components, further])


def _check_leading(
    leading: NDArray[np.float64], components: NDArray[np.float64], spectrum: NDArray[np.float64] | None
) -> None:
    if leading.shape[1] != components.shape[1] or spectrum is None or len(spectrum) != len(leading):
        raise Invalid(
            f"leading has shape {leading.shape}; it must have one row per value of spectrum, and as many features as "
            "the components; pass leading and spectrum of the same release"
        )
    _check_components(leading)


def _check_matrix(matrix: NDArray[np.float64], n_features: int) -> None:
    lengths = [order * (order + 1) // 2 for order in (n_features, n_features + 1)]
    if len(matrix) not in lengths:
        raise Invalid(
            f"matrix has {len(matrix)} entries; the upper triangle for {n_features} features has {lengths[0]} entries, "
            f"or {lengths[1]} if rows are centred; pass all entries"
        )


def _check_components(components: NDArray[np.float64]) -> None:
    n_components, n_features = components.shape
    if n_components > n_features:
        raise Invalid(
            f"there are {n_components} components for {n_features} features; components cannot outnumber features; "
            "pass each component as a row"
        )
    most = 1 + _ORTHONORMAL_WITHIN  # orthonormal rows have no larger entry, and a huge entry would overflow in products
    if (
        np.abs(components).max() > most
        or np.abs(components @ components.T - np.eye(n_components)).max() > _ORTHONORMAL_WITHIN
    ):
        raise Invalid("the rows of components must be orthonormal; orthonormalize them first")
