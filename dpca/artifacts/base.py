"""The interface of every kind of artifact, and its manifest of public facts.

The manifest of an artifact: public facts alone, checked against a closed list.

The interface of every kind of artifact: named arrays of released numbers, and public facts about them.

A kind is one class that derives from `Artifact`, and one row of `dpca.artifacts.files`.
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
NOT_PRIVATE = ("non_private", "als", "ials", "otd")  # the mechanisms whose results are marked for ever
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
"""What the manifest of any kind may hold, and as what: facts declared, chosen or released, never a function of private
rows. A kind adds its own."""
_HUGE = 1e300
_SHOWN = 200


def canonical_json(value: object) -> bytes:
    """Encode plain JSON values in one way only: sorted keys, ASCII, two spaces, no NaN."""
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Return what `canonical_json` would of an object, from what it returned of each member.

    >>> canonical_object({"b": canonical_json([1]), "a": canonical_json({})}) == canonical_json({"a": {}, "b": [1]})
    True
    """
    lines = [
        canonical_json(name)[:-1] + b": " + members[name][:-1].replace(b"\n", b"\n  ")  # no text holds a line's end
        for name in sorted(members)
    ]
    return b"{\n  " + b",\n  ".join(lines) + b"\n}\n" if lines else b"{}\n"


def in_short(found: object) -> str:
    """Shorten text that another person wrote to a part of one line."""
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
    """Return a manifest with the facts that follow from the arrays.

    Parameters
    ----------
    manifest : mapping
        Public facts as plain JSON values.
    kind : str
        The kind of artifact.
    facts : mapping of str to {"facts", "names", "number", "text"}
        What a manifest of this kind may hold besides `FACTS`.
    shape : mapping of str to int
        The sizes of the arrays, by the names under which they are stated.

    Raises
    ------
    Invalid
        When it holds anything that is no public fact, or contradicts the arrays.
    """
    derived = {"format": FORMAT, "kind": kind, **shape}
    known = {**FACTS, **facts, **dict.fromkeys(shape, "number")}
    if strangers := sorted(set(manifest) - set(known)):
        raise Invalid(
            f"manifest has {', '.join(map(str, strangers))}; only public facts enter an artifact "
            f"({', '.join(sorted(known))}); remove the rest"
        )
    for name, form in known.items():
        if name in manifest and name not in derived and not _is(manifest[name], form):
            raise Invalid(f"manifest has a {name} that is not of type {form}; write it as a release does")
    for name, value in derived.items():
        if manifest.get(name, value) != value:
            raise Invalid(f"manifest has {name}={manifest[name]!r}; this artifact has {value!r}; remove it")
    if manifest.get("mechanism") in NOT_PRIVATE and manifest.get("privacy", {}).get("private") is not False:
        raise Invalid(
            f"a manifest of {manifest['mechanism']} must state that it is not private; keep its facts unchanged"
        )
    try:
        return dict(json.loads(canonical_json({**manifest, **derived})))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"manifest is not JSON ({error}); it may hold only plain values; convert it first") from error


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
            If it is of another version than this one reads.
        NotInstalled
            If a library that it needs is missing.
        """
        facts = self.manifest.get("encoder")
        if facts is None:
            return None
        with needing("a raw table", extra="tables"):  # imported here: rows of numbers need neither Arrow nor pydantic
            from dpca.schemas.encoder import Encoder
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
