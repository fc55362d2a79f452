"""Read access to published artifacts by name, from files alone, without a database or a key.

A name has immutable versions 1, 2, 3, ... and movable aliases. The pointer file of a name maps each version to the
digest of an artifact. Publishing (`storage.registry.publishing`) writes pointer files; this module only reads them.

Examples
--------
``Registry.open().load("name@champion").transform(rows)`` loads from the home folder. To read from elsewhere, use
``Registry.open("s3://bucket/prefix")`` or ``Registry.open("https://host/registry")``. These are the forms of a
reference:

>>> for text in ("news", "news@3", "news@champion", "news@sha256:" + 64 * "0"):
...     _ = Reference.parse(text)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, overload

from dpca.artifacts.base import Artifact
from dpca.artifacts.exports import lineage_tags
from dpca.artifacts.files import read_artifact
from dpca.backends.atomic_files import write_atomically, write_folder
from dpca.backends.base import Place
from dpca.backends.local import LocalPlace, open_published
from dpca.errors import Invalid, Refused, StorageError, Unavailable
from dpca.home import key_folder, requires_signature, store
from dpca.privacy_unit import privacy_of
from dpca.registry.pointers import Pointer, Reference, Resolved, check_name, read_names
from dpca.registry.roots import PUBLISHERS_KEY, Root
from dpca.registry.trust import Trust, notify_once, pinned


@dataclass(frozen=True, slots=True)
class Registry:
    """The published artifacts in the folder ``registry`` of a storage place.

    Guarantees
    ----------
    Every load checks the digest of all files of the artifact, and uses only the checked bytes. With a pinned root key,
    only content signed by an authorized publisher is accepted, and never an older state than one seen before.

    Attributes
    ----------
    place : Place
        The local folder, object store or web server from which the registry is read.
    trust : Trust or None
        The check of signatures by pinned root keys; None if signatures are not checked.

    See Also
    --------
    dpca.load : Load one artifact in one call.
    dpca.Workspace : Publish artifacts and move aliases, in the home folder with the ledger.

    Examples
    --------
    >>> import dpca
    >>> registry = dpca.Registry.open()
    >>> registry.names()
    ['news']
    >>> str(registry.resolve("news@champion"))
    'news@1'
    >>> registry.show("news@1")["private"]
    True
    """

    place: Place
    trust: Trust | None = None
    _warning: str = field(default="", repr=False, compare=False)

    @classmethod
    def open(
        cls,
        address: Path | str | None = None,
        *,
        trust: str | Sequence[str] | None = None,
        require_signature: bool | None = None,
    ) -> Self:
        """Open the registry of a home folder, of ``s3://bucket/prefix``, or of ``https://host/path/registry``.

        Parameters
        ----------
        address : Path or str, optional
            The address of the registry. The default is ``DPCA_STORE_URL`` if it is set, or else the home folder. A web
            server cannot list a registry, so there artifacts can only be loaded by name.
        trust : str or sequence of str, optional
            The public root key of the registry in hex, or several keys that must all have signed the root. By default
            these are the keys that `dpca registry trust` pinned for this address. With a key, content that is not
            signed under this root is refused.
        require_signature : bool, optional
            True to refuse a registry for which no key is given or pinned. The default is ``DPCA_REQUIRE_SIGNATURE``. If
            False, a registry without a key is accepted, and the first read logs one warning that the publisher is not
            verified. There is no warning for the registry of this home folder if this user publishes there, or if
            nothing is published yet.

        Raises
        ------
        Invalid
            If `address` or `trust` is malformed.
        Refused
            If a signature is required, but no key is given or pinned.
        """
        place = store() if address is None else open_published(address)
        keys = pinned(place.address) if trust is None else (trust,) if isinstance(trust, str) else tuple(trust)
        if keys or trust is not None:
            return cls(place, Trust.pinned_to(place, keys))
        if requires_signature() if require_signature is None else require_signature:
            raise Refused(
                f"no root key is pinned for {place.at('registry')}, and a signature is required; get the root key from "
                "the publisher, and pin it with `dpca registry trust KEY`, or pass trust=KEY"
            )
        if _is_own(place):
            return cls(place)
        return cls(
            place,
            _warning=f"{place.at('registry')} is read without a pinned root key, so its publisher is not verified; get "
            "the root key from the publisher, and pin it with `dpca registry trust KEY`, or pass trust=KEY",
        )

    def names(self) -> Sequence[str]:
        """Return all published names, sorted; raise `Invalid` for a web server, which cannot list names."""
        found = read_names(self.place)
        self._warn()
        return found

    def list(self, name: str | None = None, *, newest: int | None = None) -> Sequence[Resolved]:
        """Return the versions of all names, or of one name, in order. With `newest`, return only the newest few.

        Parameters
        ----------
        name : str, optional
            The name whose versions are returned; by default all names.
        newest : int, optional
            How many of the newest versions of each name are returned; by default all.
        """
        return tuple(self._rows(self.names() if name is None else [check_name(name)], newest=newest))

    def versions(self, name: str) -> Sequence[Resolved]:
        """Return all versions of a name, in order.

        Raises
        ------
        Corrupt, NotFound
            If the pointer file of the name is damaged or missing.
        Refused
            If a root key is pinned, and the pointer file fails a check of `dpca.registry.trust.Trust.pointer`.
        """
        return self._versions(name, self._root())

    def digests(self, name: str) -> Mapping[int, str]:
        """Return the digest of every version of a name, with the same errors as `versions`."""
        return self._pointer(name, self._root()).versions

    def resolve(self, reference: str) -> Resolved:
        """Return the name, version and digest of the artifact that a reference means.

        Raises
        ------
        Invalid
            If `reference` does not have the form of a reference.
        NotFound
            If the name, version, alias or digest does not exist. The message lists those that exist.
        Corrupt
            If the pointer file of the name is damaged.
        Refused
            If a root key is pinned, and the pointer file fails a check of `dpca.registry.trust.Trust.pointer`.
        """
        return self._resolve(reference)[0]

    @overload
    def load(self, reference: str) -> Any: ...
    @overload
    def load[T: Artifact](self, reference: str, kind: type[T]) -> T: ...
    def load(self, reference: str, kind: type[Artifact] = Artifact) -> Any:
        """Load an artifact as an object of its kind, such as a `PrivateSubspace`.

        Parameters
        ----------
        reference : str
        kind : type, optional
            The required class of the artifact; any class by default.

        Raises
        ------
        Corrupt
            If any byte of the artifact's files differs from the published bytes.
        Invalid
            If `reference` is malformed, or the artifact is not of the required class.
        NotFound, Refused
            In the same cases as `resolve`.
        """
        resolved, artifact = self._read(reference)
        if not isinstance(artifact, kind):
            raise Invalid(
                f"{resolved} is a {artifact.noun}, but a {kind.noun} is needed; choose another artifact, see `dpca "
                "registry list`"
            )
        return artifact

    def verify(self, reference: str) -> Resolved:
        """Check every byte of an artifact, as `load` does, and return the artifact's name and version.

        Raises
        ------
        Corrupt, Invalid, NotFound, Refused
            In the same cases as `load`.
        """
        return self._read(reference)[0]

    def show(self, reference: str) -> dict[str, Any]:
        """Return a description of an artifact with public facts only, as plain JSON values.

        Returns
        -------
        dict
            ``artifact`` (such as "news@1"), ``private``, ``digest``, ``aliases``, the main facts of the release and of
            this kind of artifact by name, ``lineage`` (the origin of the artifact) and the whole ``manifest``. An
            undeclared fact is None.
        """
        return describe(*self._read(reference))

    def export(self, reference: str, output: Path | str, *, format: str = "npz") -> Resolved:  # noqa: A002 - as `--format`
        """Write an artifact as one portable file or folder.

        Parameters
        ----------
        reference : str
            The artifact to export.
        output : Path or str
            The path of the exported file or folder. A file is written atomically, and replaces an existing file. A
            folder must not exist yet.
        format : str
            An export format of the artifact's kind. All kinds can be exported as ``npz``, a NumPy archive of the
            arrays by name and the ``manifest`` as JSON text. A subspace can also be exported as ``onnx`` (a file for
            any ONNX runtime), ``mlflow`` (the folder of an MLflow Python function, with signature and lineage) or
            ``sklearn`` (a ``PCA`` in a skops file). These models transform numeric rows in float64. They do not
            include the encoding of raw tables.

        Raises
        ------
        Invalid
            If the format is unknown, or the folder of `output` does not exist.
        NotInstalled
            If the format needs a library that is not installed.
        Corrupt, NotFound, Refused
            In the same cases as `load`.
        Unavailable
            If `output` cannot be written.

        Guarantees
        ----------
        Equal artifacts give equal bytes in the format ``npz``. If their name and version are equal too, they give equal
        bytes in ``onnx``, and, with the same Python version, in ``mlflow``.
        """
        output = Path(output)
        resolved, artifact = self._read(reference)
        if format not in artifact.exports:
            raise Invalid(
                f"format {format!r} is unknown; a {artifact.noun} has {', '.join(artifact.exports)} as formats; "
                "choose one"
            )
        tags = lineage_tags(artifact, reference=str(resolved), digest=resolved.digest)
        made = artifact.exports[format](artifact, tags)
        try:
            if isinstance(made, bytes):
                if output.is_dir() or not output.parent.is_dir():
                    raise Invalid(
                        f"output {output} must be a file in an existing folder; create the folder, or choose another "
                        "path"
                    )
                write_atomically(output, made)
            else:
                if output.exists() or not output.parent.is_dir():
                    raise Invalid(f"output {output} must be a new folder in an existing folder; choose another path")
                write_folder(output, made)
        except OSError as error:
            raise Unavailable(
                f"output {output} cannot be written ({error.strerror}); no file was written; choose another folder"
            ) from error
        return resolved

    def _root(self) -> Root | None:
        return None if self.trust is None else self.trust.root(self.place)

    def _pointer(self, name: str, root: Root | None) -> Pointer:
        if self.trust is None or root is None:
            found = Pointer.read(self.place, name)
            self._warn()
            return found
        return self.trust.pointer(self.place, name, root=root)

    def _warn(self) -> None:
        if self._warning:
            notify_once(self._warning)

    def _resolve(self, reference: str) -> tuple[Resolved, Root | None]:
        parsed, root = Reference.parse(reference), self._root()
        return self._pointer(parsed.name, root).resolve(parsed), root

    def _read(self, reference: str) -> tuple[Resolved, Artifact]:
        """Resolve a reference, and read the artifact with all digests and signatures checked."""
        resolved, root = self._resolve(reference)
        if self.trust is not None and root is not None:
            self.trust.check_artifact(self.place, resolved.digest, name=resolved.name, root=root)
        artifact: Artifact = read_artifact(self.place, resolved.digest)
        return resolved, artifact

    def _rows(self, names: Sequence[str], *, newest: int | None) -> Iterator[Resolved]:
        root = self._root()
        for name in names:
            yield from self._versions(name, root, newest=newest)

    def _versions(self, name: str, root: Root | None, *, newest: int | None = None) -> Sequence[Resolved]:
        pointer = self._pointer(name, root)
        versions = sorted(pointer.versions)
        return tuple(pointer.row(version) for version in versions[-len(versions) if newest is None else -newest :])


def load(reference: str, *, registry: Path | str | None = None, trust: str | Sequence[str] | None = None) -> Any:
    """Load a published artifact by name, from the registry of this home or of an address.

    Parameters
    ----------
    reference : str
        ``name`` (its newest version), ``name@version``, ``name@alias`` or ``name@sha256:digest``.
    registry : Path or str, optional
        A home folder, ``s3://bucket/prefix`` or ``https://host/path/registry``. The default is the store or home folder
        that the environment sets, as for `Registry.open`.
    trust : str or sequence of str, optional
        The public root key of the registry in hex; by default the keys that ``dpca registry trust`` pinned.

    Returns
    -------
    Artifact
        An object of the artifact's kind, such as a `PrivateSubspace` with the method ``transform(rows)``.

    Raises
    ------
    Corrupt, Invalid, NotFound, Refused
        In the same cases as `Registry.open` and `Registry.load`.

    Guarantees
    ----------
    Every byte of the artifact was checked against its digest.

    See Also
    --------
    Registry : Lists and loads every published version, alias and fact.

    Examples
    --------
    >>> import dpca
    >>> import numpy as np
    >>> news = dpca.load("news@champion")
    >>> news.transform(np.zeros((2, news.n_features))).shape
    (2, 2)
    """
    return Registry.open(registry, trust=trust).load(reference)


def describe(resolved: Resolved, artifact: Artifact) -> dict[str, Any]:
    """Return the description of a published artifact for `Registry.show`: its public facts as plain JSON values."""
    manifest = dict(artifact.manifest)
    privacy = manifest.get("privacy", {})
    lineage = {name: manifest.get(name) for name in ("release", "mechanism", "code_version", "parent")}
    return {
        "artifact": str(resolved),
        "private": artifact.is_private,
        "headline": artifact.headline(),
        "digest": resolved.digest,
        "aliases": [*resolved.aliases],
        "release": manifest.get("release"),
        "mechanism": manifest.get("mechanism"),
        "relation": privacy.get("relation"),
        "epsilon": privacy.get("epsilon"),
        "delta": privacy.get("delta"),
        "statement": privacy_of(manifest),
        "noise_multiplier": manifest.get("plan", {}).get("noise_multiplier"),
        **artifact.summary(),
        "lineage": lineage,
        "manifest": manifest,
    }


def _is_own(place: Place) -> bool:
    """Return whether a place is this home's own store, where this user publishes or nothing is published yet."""
    try:
        empty = isinstance(place, LocalPlace) and not (place.root / "registry").exists()
        return place.address == store().address and (empty or (key_folder() / PUBLISHERS_KEY).exists())
    except (StorageError, OSError):
        return False
