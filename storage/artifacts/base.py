"""The interface of every kind of artifact: named arrays of released numbers, and public facts about them.

A kind is one class that derives from `Artifact`, and one row of `storage.artifacts.kinds`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.artifacts.manifest import canonical_json
from storage.errors import Invalid

if TYPE_CHECKING:
    from storage.schemas.encoder import Encoder


class LinearMap(Protocol):
    """The interface of a subspace that its export formats use."""

    @property
    def components(self) -> NDArray[np.float64]: ...  # noqa: D102
    @property
    def mean(self) -> NDArray[np.float64] | None: ...  # noqa: D102
    @property
    def n_components(self) -> int: ...  # noqa: D102
    @property
    def n_features(self) -> int: ...  # noqa: D102
    @property
    def feature_names(self) -> Sequence[str] | None: ...  # noqa: D102
    @property
    def explained_variance_ratio(self) -> NDArray[np.float64] | None: ...  # noqa: D102


class Artifact(ABC):
    """A release in the form that its consumers load.

    Guarantees
    ----------
    Everything in it is post-processing of a noisy release; nothing in it looks at private rows.
    """

    __slots__ = ()

    kind: ClassVar[str]
    """The name of the kind, which manifests state."""
    noun: ClassVar[str]
    """The name of the kind in a sentence."""
    dimensions: ClassVar[Mapping[str, tuple[str, ...]]]
    """The arrays that one may have, by name, and the names of their dimensions."""
    folder: ClassVar[str] = "arrays.zarr"
    """The folder of its arrays among the files of an artifact."""
    exports: ClassVar[Mapping[str, "Export"]]
    """The portable files and folders that one can be written as, by format."""

    manifest: Mapping[str, Any]

    @classmethod
    @abstractmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> Self:
        """Build one from what `arrays` returned and its manifest.

        Raises
        ------
        Invalid, LookupError, TypeError, ValueError
            When they are not those of this kind.
        """

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the main facts of this kind by name, as plain JSON values; a fact not declared is None."""

    @abstractmethod
    def headline(self) -> str:
        """Return what was released in a few words, such as ``10 components of 123 features``."""

    @property
    def is_private(self) -> bool:
        """Whether the release has a guarantee. Reference results have none, nor has anything made from them."""
        return self.manifest.get("privacy", {}).get("private", True) is not False

    @property
    def encoder(self) -> "Encoder | None":
        """The encoding of the raw tables that the release was made from; None where its rows were numbers already.

        Raises
        ------
        Invalid
            If it is of another version than this one reads, or the libraries that it needs are not installed.
        """
        facts = self.manifest.get("encoder")
        if facts is None:
            return None
        try:  # here alone: rows of numbers need neither Arrow nor pydantic
            from storage.schemas.encoder import Encoder
        except ModuleNotFoundError as error:
            raise Invalid(
                f"raw rows are encoded by {error.name}, which is not installed; install pyarrow and pydantic, or pass "
                "an array of encoded rows"
            ) from None
        return Encoder.of(facts)

    @property
    def raw_encoding(self) -> Callable[[Any], NDArray[np.float64]] | None:
        """The function that encodes raw rows, which loads the encoder when it is called; None without an encoder."""
        if self.manifest.get("encoder") is None:
            return None
        return lambda rows: cast("Encoder", self.encoder).transform(rows)

    def with_encoder(self, facts: Mapping[str, Any] | None) -> Self:
        """Return the same artifact, stating the schema by which the rows of its features were encoded."""
        if facts is None or self.manifest.get("feature_names") is None:
            return self
        return replace(self, manifest={**self.manifest, "encoder": dict(facts)})  # type: ignore[type-var]

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the arrays that are present, by name; storing and exporting write these."""
        found = {name: getattr(self, name) for name in self.dimensions}
        return {name: values for name, values in found.items() if values is not None}


type Export = Callable[[Any, Mapping[str, str]], bytes | Mapping[str, bytes]]
"""Writes an artifact, of which lineage tags tell where it came from: as a file, or as a folder of files by path."""


def npz(artifact: Artifact, _tags: Mapping[str, str]) -> bytes:
    """Write the arrays and the manifest of an artifact as a NumPy archive; equal artifacts give equal bytes."""
    # Entries of a NumPy archive carry a fixed date, so the bytes depend on the arrays alone.
    arrays: dict[str, Any] = artifact.arrays()
    buffer = BytesIO()
    np.savez(buffer, **arrays, manifest=np.array(canonical_json(artifact.manifest).decode()))
    return buffer.getvalue()


def frozen(name: str, values: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    """Return a read-only float64 copy of an array.

    Raises
    ------
    Invalid
        When it has another number of dimensions, is empty, or holds NaN or infinity.
    """
    array = np.array(values, dtype=np.float64, order="C")
    if array.ndim != ndim or not array.size or not np.isfinite(array).all():
        raise Invalid(
            f"{name} of shape {array.shape} must be a {ndim}-D array of finite numbers, not empty; "
            "pass the arrays of a finished release"
        )
    array.flags.writeable = False
    return array
