"""A private subspace in memory: released components and public facts about them.

All content is post-processing of a noisy release; no method reads private rows.

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
    """A projection of rows onto released components, and a fitted scikit-learn transformer.

    Parameters
    ----------
    components : array of shape (n_components, n_features)
        Orthonormal rows.
    eigenvalues : array of shape (n_components,), data units squared, optional
        The eigenvalues of the noisy second moment (not divided by the number of rows), in descending order. Some
        mechanisms release only directions.
    spectrum : array of shape (n_released,), data units squared, optional
        More eigenvalues of the released matrix, in descending order, for a scree plot. They contain the noise of the
        matrix.
    further : array of shape (n_released - n_components, n_features), optional
        The directions of the other eigenvalues in `spectrum`. With them `refit` needs no further budget for other
        numbers of components.
    leading : array of shape (n_released, n_features), optional
        The directions of all eigenvalues in `spectrum`, if the components are refined and `matrix` was not kept.
    matrix : array of shape (order * (order + 1) / 2,), optional
        The released matrix: its upper triangle, row by row. Its order is one larger if rows were extended to be
        centred. With it every post-processing is free of charge (`dpca subspace refit`).
    answers : array of shape (n_entries,), optional
        The answers of a release in rounds: their upper triangles, row by row, one after the other, in squared clip
        norms. They replace ``matrix``.
    map_directions, map_reductions : array of shape (n_map_directions, n_features), optional
        The maps of the rounds, one after the other: in units of ``2^-12``, the rows of U^T and W^T of ``I - W U^T``.
    mean : array of shape (n_features,), optional
        The released mean around which the components were computed. `transform` subtracts it; `inverse_transform` adds
        it.
    manifest : mapping
        Public facts, by the names that a subspace may state, as plain JSON values. ``format``, ``kind``,
        ``n_components`` and ``n_features`` are filled in. The manifest of a release without privacy states this (see
        `is_private`).

    Raises
    ------
    Invalid
        If the arrays do not have these properties, or the manifest holds anything else.

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
                f"map_directions and map_reductions must both be given, as rows of {components.shape[1]} features, or "
                "neither; pass the arrays of a finished release"
            )
        if further is not None and (spectrum is None or len(spectrum) != len(components) + len(further)):
            raise Invalid(
                "further directions need one value each in spectrum; pass the spectrum of all directions kept"
            )
        if mean is not None and len(mean) != components.shape[1]:
            raise Invalid(f"a mean of {len(mean)} values; each feature needs one ({components.shape[1]}); pass all")
        if eigenvalues is None and spectrum is not None:
            raise Invalid("a spectrum without the eigenvalues of the components; pass both, or neither")
        if eigenvalues is not None and len(eigenvalues) != len(components):
            raise Invalid(
                f"{len(eigenvalues)} eigenvalues for {len(components)} components; each component needs one; pass the "
                "eigenvalues of these components"
            )
        for name, values in (("eigenvalues", eigenvalues), ("spectrum", spectrum)):
            if values is not None and np.any(np.diff(values) > 0):
                raise Invalid(f"{name} must be in descending order; sort them together with the components")
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
            raise Invalid(f"{len(names)} feature names; each feature needs one; declare {components.shape[1]}")
        object.__setattr__(self, "manifest", manifest)

    def __repr__(self) -> str:
        """Show the guarantee, or in capitals that there is none."""
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
        """Return the main facts of the subspace by name."""
        return {
            "clip_norm": self.manifest.get("clip_norm"),
            "n_components": self.n_components,
            "n_features": self.n_features,
            "eigenvalues": None if self.eigenvalues is None else self.eigenvalues.tolist(),
            **{name: self.outcome[name] for name in _SHOWN if name in self.outcome},
        }

    def headline(self) -> str:
        """Return a short description with the numbers of components and features."""
        return f"{self.n_components} components of {self.n_features} features"

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        return int(self.components.shape[1])

    @property
    def feature_names(self) -> Sequence[str] | None:
        """The public names of the features, if there are any."""
        names: Sequence[str] | None = self.manifest.get("feature_names")
        return names

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The decisions and the quality estimates of the release; empty if it has none."""
        return self.manifest.get("outcome") or {}

    @property
    def refined_by(self) -> str:
        """The method that refined the components; ``none`` if they are as the mechanism returned them."""
        return str(self.outcome.get("refined_by", "none"))

    @property
    def explained_variance_ratio(self) -> NDArray[np.float64] | None:
        """Each component's estimated share of the total variance, without the noise; None if it cannot be estimated.

        No share is negative, and their sum is at most 1.
        """
        shown = self.outcome.get("explained_variance_ratio")
        return None if shown is None else np.array(shown, np.float64)

    def refit(self, n_components: int, *, parent: str) -> "PrivateSubspace":
        """Return the subspace with another number of components of the same release, by free post-processing.

        Parameters
        ----------
        n_components : int
            At most the number of stored directions.
        parent : str
            The digest of this artifact, for the manifest of the new one.

        Raises
        ------
        Invalid
            If the release stored fewer directions, or directions without eigenvalues, which have no order. If its
            components are refined: another number of components has to be refined anew.

        Notes
        -----
        The quality estimates of the release hold for one number of components, so they are not copied.
        `flows.published.refit_release` computes them anew.
        """
        if self.refined_by != "none" or self.answers is not None:
            variant = "computed from rounds" if self.answers is not None else f"refined ({self.refined_by})"
            raise Invalid(
                f"these components were {variant}, and another number of components needs a new "
                "refinement; use `dpca subspace refit`"
            )
        if self.eigenvalues is None:
            raise Invalid(
                f"this release has {len(self.components)} directions without eigenvalues, so they have no order; fit "
                "again with the required number of components"
            )
        basis = self.components if self.further is None else _stacked(self.components, self.further)
        values = self.eigenvalues if self.further is None or self.spectrum is None else self.spectrum
        if not 1 <= n_components <= len(basis):
            raise Invalid(
                f"{n_components} components; this release has {len(basis)} directions; request 1 to {len(basis)}"
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
        """Return the released second moment with its noise, from which `PrivateMoment` derives more at no charge.

        Parameters
        ----------
        parent : str, optional
            The digest of this artifact, for the manifest of the moment.

        Raises
        ------
        Invalid
            If the release has no noisy matrix, or did not keep it. If it was released in rounds: combining them needs
            the pipeline (`flows.published.moment_of`).
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
            Real, finite numbers. They are not scaled here, and centred only if a mean was released. If both rows and
            release name their columns, these are matched by name, in any order. If the release has an `encoder`, frames
            and tables are raw rows; arrays and AnnData objects are already encoded.

        Returns
        -------
        array of shape (n_rows, n_components)
            Scores in dense float64, also for sparse rows; a data frame if selected with `set_output`. An input without
            rows gives no scores.

        Raises
        ------
        Invalid
            If `rows` has another shape or other columns, is not numeric, or holds NaN or infinity.
        """
        scores = np.asarray(self.checked(rows) @ self.components.T)
        if self.mean is not None:
            scores = scores - self.components @ self.mean
        framed: NDArray[np.float64] = self.in_container(scores, rows)
        return framed

    def checked(self, rows: Any) -> Any:
        """Return rows as a finite matrix, with columns matched by name if both rows and release have names."""
        named = rows_by_name(rows, names=self.feature_names, noun=self.noun, encode=self.raw_encoding)
        return checked_rows("rows", named, width=self.n_features, column="feature", noun=self.noun)

    def inverse_transform(self, scores: Any) -> NDArray[np.float64]:
        """Map scores back to rows, the points of the subspace with these scores.

        Parameters
        ----------
        scores : array-like or scipy sparse array or matrix of shape (n_rows, n_components)

        Returns
        -------
        array of shape (n_rows, n_features)
            Dense float64.

        Raises
        ------
        Invalid
            If `scores` has another shape, is not numeric, or holds NaN or infinity.
        """
        matrix = checked_rows("scores", scores, width=self.n_components, column="component", noun=self.noun)
        points = np.asarray(matrix @ self.components)
        return points if self.mean is None else points + self.mean


def _stacked(components: NDArray[np.float64], further: NDArray[np.float64]) -> NDArray[np.float64]:
    if components.shape[1] != further.shape[1]:
        raise Invalid(
            f"further directions of {further.shape[1]} features; components have {components.shape[1]}; pass "
            "directions with as many"
        )
    return np.vstack([components, further])


def _check_leading(
    leading: NDArray[np.float64], components: NDArray[np.float64], spectrum: NDArray[np.float64] | None
) -> None:
    if leading.shape[1] != components.shape[1] or spectrum is None or len(spectrum) != len(leading):
        raise Invalid(
            f"leading directions of shape {leading.shape} must have one value each in spectrum, and as many features "
            "as the components; pass the spectrum of all directions kept"
        )
    _check_components(leading)


def _check_matrix(matrix: NDArray[np.float64], n_features: int) -> None:
    lengths = [order * (order + 1) // 2 for order in (n_features, n_features + 1)]
    if len(matrix) not in lengths:
        raise Invalid(
            f"a matrix of {len(matrix)} entries; an upper triangle of {n_features} features has {lengths[0]}, or "
            f"{lengths[1]} if rows are centred; pass all entries"
        )


def _check_components(components: NDArray[np.float64]) -> None:
    n_components, n_features = components.shape
    if n_components > n_features:
        raise Invalid(
            f"{n_components} components for {n_features} features; components cannot outnumber features; pass them as "
            "rows"
        )
    most = 1 + _ORTHONORMAL_WITHIN  # larger entries might overflow in the product
    if (
        np.abs(components).max() > most
        or np.abs(components @ components.T - np.eye(n_components)).max() > _ORTHONORMAL_WITHIN
    ):
        raise Invalid("components must have orthonormal rows; orthonormalise them first")
