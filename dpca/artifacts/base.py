"""The interface of all kinds of artifact, and the check of an artifact's manifest.

An artifact is a set of named arrays of released numbers, with public facts about them. The facts are stored in the
artifact's manifest. Every fact is checked against a fixed list of allowed facts.

To add a kind, derive a class from `Artifact` and add a row to the table in `dpca.artifacts.files`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpca.errors import Invalid
from dpca.installed import needing

if TYPE_CHECKING:
    from dpca.schemas.encoder import Encoder


FORMAT = 1
NOT_PRIVATE = ("non_private", "als", "ials", "otd")  # reference mechanisms without a privacy guarantee
FACTS: Mapping[str, str] = {
    "code_version": "text",
    "format": "number",
    "kind": "text",
    "mechanism": "text",
    "outcome": "facts",
    "parameters": "facts",
    "parent": "text",
    "plan": "facts",
    "privacy": "facts",
    "release": "text",
    "warnings": "names",
}
"""The facts that a manifest of any kind may hold, with their types. Each is declared, chosen or released, never a
function of private rows. A kind adds further facts."""
_HUGE = 1e300
_SHOWN = 200


def canonical_json(value: object) -> bytes:
    """Encode plain JSON values as ASCII with sorted keys, two-space indentation and no NaN."""
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Join the canonical JSON of an object's members into the canonical JSON of the object.

    >>> canonical_object({"b": canonical_json([1]), "a": canonical_json({})}) == canonical_json({"a": {}, "b": [1]})
    True
    """
    # Every newline in an encoded member is layout, because JSON escapes the newlines within strings.
    lines = [canonical_json(name)[:-1] + b": " + members[name][:-1].replace(b"\n", b"\n  ") for name in sorted(members)]
    return b"{\n  " + b",\n  ".join(lines) + b"\n}\n" if lines else b"{}\n"


def in_short(found: object) -> str:
    """Return untrusted text with whitespace collapsed and the end cut off, for use in a one-line message."""
    return " ".join(str(found).split())[:_SHOWN]


def _is(value: object, kind: str) -> bool:
    match kind:
        case "facts":
            return isinstance(value, Mapping)
        case "names":
            return value is None or (isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value))
        case "text":
            return value is None or isinstance(value, str)
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and not abs(value) > _HUGE)


def checked_manifest(
    manifest: Mapping[str, Any], *, kind: str, facts: Mapping[str, str], shape: Mapping[str, int]
) -> dict[str, Any]:
    """Check an artifact's manifest, and return it with the facts that follow from the arrays (format, kind, sizes).

    Parameters
    ----------
    manifest : mapping
        Public facts as plain JSON values.
    kind : str
        The kind of artifact, such as ``private_subspace``.
    facts : mapping of str to {"facts", "names", "number", "text"}
        Facts that a manifest of this kind may hold in addition to `FACTS`, with their types.
    shape : mapping of str to int
        The sizes of the arrays, by their names in the manifest, such as ``n_components``.

    Raises
    ------
    Invalid
        If the manifest holds anything but public facts, or contradicts the arrays.
    """
    derived = {"format": FORMAT, "kind": kind, **shape}
    known = {**FACTS, **facts, **dict.fromkeys(shape, "number")}
    if strangers := sorted(set(manifest) - set(known)):
        raise Invalid(
            f"manifest has {', '.join(map(str, strangers))}; an artifact may hold only public facts of the list "
            f"{', '.join(sorted(known))}; remove the rest"
        )
    for name, form in known.items():
        if name in manifest and name not in derived and not _is(manifest[name], form):
            raise Invalid(f"manifest has a {name} that is not of type {form}; pass the manifest of a finished release")
    for name, value in derived.items():
        if manifest.get(name, value) != value:
            raise Invalid(
                f"manifest has {name}={manifest[name]!r}, but the arrays have {name}={value!r}; remove this fact"
            )
    if manifest.get("mechanism") in NOT_PRIVATE and manifest.get("privacy", {}).get("private") is not False:
        raise Invalid(
            f"the manifest of a {manifest['mechanism']} result must state that the result is not private; pass the "
            "facts of the release unchanged"
        )
    try:
        return dict(json.loads(canonical_json({**manifest, **derived})))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"manifest is not JSON ({error}); it may hold only plain JSON values; convert the others first"
        ) from error


class LinearMap(Protocol):
    """The attributes of a subspace that the export formats use."""

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
    """Base class of the objects that consumers load: the arrays and public facts of one release.

    Guarantees
    ----------
    Every array and fact is post-processing of noisy answers; no method reads private rows.
    """

    __slots__ = ()

    kind: ClassVar[str]
    """The name of this kind of artifact in manifests."""
    noun: ClassVar[str]
    """The noun for this kind of artifact in a sentence."""
    dimensions: ClassVar[Mapping[str, tuple[str, ...]]]
    """The possible arrays by name, each with the names of its dimensions."""
    folder: ClassVar[str] = "arrays.zarr"
    """The name of the folder that holds the arrays, among the files of an artifact."""
    exports: ClassVar[Mapping[str, "Export"]]
    """The available export formats, each with the function that writes it."""

    manifest: Mapping[str, Any]

    @classmethod
    @abstractmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> Self:
        """Build an artifact of this kind from its arrays, as the method `arrays` returns them, and its manifest.

        Raises
        ------
        Invalid, LookupError, TypeError, ValueError
            If the arrays or the manifest do not have the form that this kind of artifact requires.
        """

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the main public facts of the artifact by name, as plain JSON values; an undeclared fact is None."""

    @abstractmethod
    def headline(self) -> str:
        """Return a short description of the artifact, such as ``10 components of 123 features``."""

    @property
    def is_private(self) -> bool:
        """True if the release has a privacy guarantee; False for reference results and anything derived from them."""
        return self.manifest.get("privacy", {}).get("private", True) is not False

    @property
    def encoder(self) -> "Encoder | None":
        """The encoder that turned raw tables into the rows of the release; None if the rows were already numbers.

        Raises
        ------
        Invalid
            If the encoder's schema has a version that this package does not support.
        NotInstalled
            If a library that the encoder needs is missing.
        """
        facts = self.manifest.get("encoder")
        if facts is None:
            return None
        with needing(
            "a raw table", extra="tables"
        ):  # import the encoder only here, because it needs Arrow and pydantic
            from dpca.schemas.encoder import Encoder
        return Encoder.of(facts)

    @property
    def raw_encoding(self) -> Callable[[Any], NDArray[np.float64]] | None:
        """The function that encodes raw rows; None without an encoder. Calling the function imports the encoder."""
        if self.manifest.get("encoder") is None:
            return None
        return lambda rows: cast("Encoder", self.encoder).transform(rows)

    def with_encoder(self, facts: Mapping[str, Any] | None) -> Self:
        """Return a copy whose manifest states the encoder's schema, or this object if its features have no names."""
        if facts is None or self.manifest.get("feature_names") is None:
            return self
        return replace(self, manifest={**self.manifest, "encoder": dict(facts)})  # type: ignore[type-var]

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the arrays of this artifact by name, leaving out fields that are None."""
        found = {name: getattr(self, name) for name in self.dimensions}
        return {name: values for name, values in found.items() if values is not None}


type Export = Callable[[Any, Mapping[str, str]], bytes | Mapping[str, bytes]]
"""A function that writes an artifact, with its lineage tags (origin and guarantee as text), as one or several files."""


def npz(artifact: Artifact, _tags: Mapping[str, str]) -> bytes:
    """Write the arrays and the manifest of an artifact as a NumPy archive; equal artifacts give equal bytes."""
    # NumPy gives all archive entries the same date, so the bytes depend on the arrays and the manifest alone.
    arrays: dict[str, Any] = artifact.arrays()
    buffer = BytesIO()
    np.savez(buffer, **arrays, manifest=np.array(canonical_json(artifact.manifest).decode()))
    return buffer.getvalue()


def frozen(name: str, values: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    """Return a read-only float64 copy of an array.

    Raises
    ------
    Invalid
        If the array does not have `ndim` dimensions, is empty, or holds NaN or infinity.
    """
    array = np.array(values, dtype=np.float64, order="C")
    if array.ndim != ndim or not array.size or not np.isfinite(array).all():
        raise Invalid(
            f"{name} has shape {array.shape}; it must be a {ndim}-D array of finite numbers and not empty; "
            "pass the arrays of a finished release"
        )
    array.flags.writeable = False
    return array
