"""Find and load published artifacts by name, from files alone: no database, no key.

A name has immutable versions 1, 2, 3, ... and movable aliases. One pointer file a name says which version has
which digest; it is rewritten by the publisher (`storage.registry.publishing`) and only read here.

Examples
--------
``Registry.open().load("name@champion").transform(rows)``, or ``Registry.open("s3://bucket/prefix")``, or
``Registry.open("https://host/registry")``. A reference is one of

>>> for text in ("news", "news@3", "news@champion", "news@sha256:" + 64 * "0"):
...     _ = Reference.parse(text)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

from storage.artifacts.base import Artifact
from storage.artifacts.files import read_artifact
from storage.artifacts.lineage import lineage_tags
from storage.backends.atomic_files import write_atomically, write_folder
from storage.backends.base import Place
from storage.backends.opening import open_published
from storage.errors import Invalid, Unavailable
from storage.home import store
from storage.registry.pointers import Pointer, Resolved, read_names
from storage.registry.references import Reference


@dataclass(frozen=True, slots=True)
class Registry:
    """Read published artifacts from the folder ``registry`` of a place.

    Guarantees
    ----------
    Every load verifies the digest of all files of the artifact, and returns the bytes that were verified.
    """

    place: Place

    @classmethod
    def open(cls, address: Path | str | None = None) -> Self:
        """Open the registry of a home folder, of ``s3://bucket/prefix``, or ``https://host/path/registry``.

        Without an address it is that of ``DPCA_STORE_URL``, else of ``DPCA_HOME`` or the platform's default. One behind
        a web server cannot be listed: name what is to be loaded.
        """
        return cls(store() if address is None else open_published(address))

    def names(self) -> Sequence[str]:
        """Every published name, sorted; a web server does not tell."""
        return read_names(self.place)

    def list(self) -> Sequence[Resolved]:
        """Every version of every name, in order."""
        return tuple(self._rows())

    def resolve(self, reference: str) -> Resolved:
        """Find the version that a reference means.

        Raises
        ------
        Invalid
            If it is not a reference.
        NotFound
            If no such name, version, alias or digest was published; the message tells what was.
        """
        parsed = Reference.parse(reference)
        return Pointer.read(self.place, parsed.name).resolve(parsed)

    @overload
    def load(self, reference: str) -> Any: ...
    @overload
    def load[T: Artifact](self, reference: str, kind: type[T]) -> T: ...
    def load(self, reference: str, kind: type[Artifact] = Artifact) -> Any:
        """Load an artifact: an object of the class of its kind, such as a `PrivateSubspace`.

        Parameters
        ----------
        reference : str
        kind : type, optional
            The kind that is wanted; any by default.

        Raises
        ------
        Corrupt
            If any byte of its files is not what was published.
        Invalid, NotFound
            As `resolve`, and if it is of another kind.
        """
        resolved = self.resolve(reference)
        artifact: Artifact = read_artifact(self.place, resolved.digest)
        if not isinstance(artifact, kind):
            raise Invalid(
                f"{resolved} is a {artifact.noun}, and a {kind.noun} is needed; name one, see `registry list`"
            )
        return artifact

    def verify(self, reference: str) -> Resolved:
        """Check every byte of an artifact, and say which version it is.

        Raises
        ------
        Corrupt, Invalid, NotFound
            As `load`.
        """
        resolved = self.resolve(reference)
        read_artifact(self.place, resolved.digest)
        return resolved

    def show(self, reference: str) -> dict[str, Any]:
        """Describe an artifact by public facts alone, as plain JSON values.

        Returns
        -------
        dict
            ``artifact`` ("name@1"), ``private``, ``digest``, ``aliases``, the main facts of the release and of its kind
            by name, ``lineage`` (where it came from) and the whole ``manifest``. A fact not declared is None.
        """
        resolved = self.resolve(reference)
        artifact: Artifact = read_artifact(self.place, resolved.digest)
        manifest = dict(artifact.manifest)
        privacy = manifest.get("privacy", {})
        lineage = {name: manifest.get(name) for name in ("release", "mechanism", "code_version", "parent")}
        return {
            "artifact": str(resolved),
            "private": artifact.is_private,
            "digest": resolved.digest,
            "aliases": [*resolved.aliases],
            "release": manifest.get("release"),
            "mechanism": manifest.get("mechanism"),
            "relation": privacy.get("relation"),
            "epsilon": privacy.get("epsilon"),
            "delta": privacy.get("delta"),
            "noise_multiplier": manifest.get("plan", {}).get("noise_multiplier"),
            **artifact.summary(),
            "lineage": lineage,
            "manifest": manifest,
        }

    def export(self, reference: str, output: Path | str, *, format: str = "npz") -> Resolved:  # noqa: A002 - as `--format`
        """Write an artifact as one portable file, or folder.

        Parameters
        ----------
        reference : str
            What to export.
        output : Path or str
            The file, written whole or not at all; an existing one is replaced. A folder must not exist yet.
        format : str
            One that the kind of artifact has; all have ``npz``: a NumPy archive of its arrays by their names, and
            ``manifest`` (JSON), which holds ``feature_names`` if they were declared. A subspace has ``onnx`` (a file
            for any runtime of ONNX), ``mlflow`` (the folder of a Python function of MLflow, with signature and
            lineage) and ``sklearn`` (a ``PCA`` in a file of skops) too: they transform rows of the release's features,
            in float64. Where a raw table has to be encoded first, they begin after that.

        Raises
        ------
        Invalid
            If the format is unknown, needs what is not installed, or the folder of `output` does not exist.
        Corrupt, NotFound
            As `load`.
        Unavailable
            If `output` cannot be written.

        Guarantees
        ----------
        Equal artifacts give equal bytes in ``npz``; under one name and version in ``onnx`` too, and in ``mlflow`` on
        one version of Python.
        """
        output = Path(output)
        resolved = self.resolve(reference)
        artifact: Artifact = read_artifact(self.place, resolved.digest)
        if format not in artifact.exports:
            raise Invalid(
                f"format {format!r} is unknown; a {artifact.noun} has {', '.join(artifact.exports)}; choose one"
            )
        tags = lineage_tags(artifact, reference=str(resolved), digest=resolved.digest)
        made = artifact.exports[format](artifact, tags)
        try:
            if isinstance(made, bytes):
                if output.is_dir() or not output.parent.is_dir():
                    raise Invalid(f"output {output} must be a file in an existing folder; create the folder first")
                write_atomically(output, made)
            else:
                if output.exists() or not output.parent.is_dir():
                    raise Invalid(f"output {output} must be a new folder in an existing one; name another")
                write_folder(output, made)
        except OSError as error:
            raise Unavailable(
                f"output {output} cannot be written ({error.strerror}); nothing was exported; choose another place"
            ) from error
        return resolved

    def _rows(self) -> Iterator[Resolved]:
        for name in self.names():
            pointer = Pointer.read(self.place, name)
            yield from (pointer.row(version) for version in sorted(pointer.versions))
