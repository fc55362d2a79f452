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
from dpca.privacy_unit import stated_privacy
from dpca.registry.pointers import Pointer, Reference, Resolved, check_name, read_names
from dpca.registry.roots import PUBLISHERS_KEY, Root
from dpca.registry.trust import Trust, pinned, tell_once


@dataclass(frozen=True, slots=True)
class Registry:
    """Read published artifacts from the folder ``registry`` of a place.

    Guarantees
    ----------
    Every load verifies the digest of all files of the artifact, and returns the bytes that were verified. With a pinned
    root key nothing is believed that a publisher did not sign, or that is older than what was seen before.

    Attributes
    ----------
    place : Place
    trust : Trust or None, from a pinned root key; None believes what is there

    See Also
    --------
    dpca.load : one artifact in one call.
    dpca.Workspace : move aliases and publish, where the ledger is.

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
        """Open the registry of a home folder, of ``s3://bucket/prefix``, or ``https://host/path/registry``.

        Without an address it is that of ``DPCA_STORE_URL``, else of ``DPCA_HOME`` or the platform's default. One behind
        a web server cannot be listed: name what is to be loaded.

        Parameters
        ----------
        address : Path or str, optional
        trust : str or sequence of str, optional
            The key of its root, in hex, or several that must all have signed it; by default those that
            `dpca registry trust` pinned for this address. What is not signed under it is then refused.
        require_signature : bool, optional
            Refuse a registry for which no key is given or pinned; by default as ``DPCA_REQUIRE_SIGNATURE`` says. If it
            is not required, one line of warning says after the first read that nothing shows who published it.

        Raises
        ------
        Invalid
            If `address` or `trust` is none.
        Refused
            If a signature is required, and no key is given or pinned.
        """
        place = store() if address is None else open_published(address)
        keys = pinned(place.address) if trust is None else (trust,) if isinstance(trust, str) else tuple(trust)
        if keys or trust is not None:
            return cls(place, Trust.pinned_to(place, keys))
        if requires_signature() if require_signature is None else require_signature:
            raise Refused(
                f"no root key is pinned for {place.at('registry')}, and a signature is required; get the key from its "
                "publisher, and pin it with `dpca registry trust KEY`, or pass trust=KEY"
            )
        if _is_own(place):
            return cls(place)
        return cls(
            place,
            _warning=f"{place.at('registry')} is read without a pinned root key, so its publisher is not verified; get "
            "the key from its publisher, and pin it with `dpca registry trust KEY`, or pass trust=KEY",
        )

    def names(self) -> Sequence[str]:
        """Every published name, sorted; a web server does not tell."""
        found = read_names(self.place)
        self._warn()
        return found

    def list(self, name: str | None = None, *, newest: int | None = None) -> Sequence[Resolved]:
        """Every version of every name or of one, in order; with ``newest``, as many of the newest of each."""
        return tuple(self._rows(self.names() if name is None else [check_name(name)], newest=newest))

    def versions(self, name: str) -> Sequence[Resolved]:
        """Every version of a name, in order.

        Raises
        ------
        Corrupt, NotFound, Refused
            If its pointer file is damaged or missing, or as `dpca.registry.trust.Trust.pointer` under a pinned key.
        """
        return self._versions(name, self._root())

    def digests(self, name: str) -> Mapping[int, str]:
        """Return the digest of every version of a name; raise as `versions`."""
        return self._pointer(name, self._root()).versions

    def resolve(self, reference: str) -> Resolved:
        """Find the version that a reference means.

        Raises
        ------
        Invalid
            If it is not a reference.
        NotFound
            If no such name, version, alias or digest was published; the message tells what was.
        Corrupt, Refused
            If a root key is pinned, as `dpca.registry.trust.Trust.pointer`.
        """
        return self._resolve(reference)[0]

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
        resolved, artifact = self._read(reference)
        if not isinstance(artifact, kind):
            raise Invalid(
                f"{resolved} is a {artifact.noun}, and a {kind.noun} is needed; choose one, see `dpca registry list`"
            )
        return artifact

    def verify(self, reference: str) -> Resolved:
        """Check every byte of an artifact, and say which version it is.

        Raises
        ------
        Corrupt, Invalid, NotFound
            As `load`.
        """
        return self._read(reference)[0]

    def show(self, reference: str) -> dict[str, Any]:
        """Describe an artifact by public facts alone, as plain JSON values.

        Returns
        -------
        dict
            ``artifact`` ("name@1"), ``private``, ``digest``, ``aliases``, the main facts of the release and of its kind
            by name, ``lineage`` (where it came from) and the whole ``manifest``. A fact not declared is None.
        """
        return describe(*self._read(reference))

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
            If the format is unknown, or the folder of `output` does not exist.
        NotInstalled
            If the format needs a library that is missing.
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
        resolved, artifact = self._read(reference)
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
                    raise Invalid(f"output {output} must be a new folder in an existing folder; choose another")
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
            tell_once(self._warning)

    def _resolve(self, reference: str) -> tuple[Resolved, Root | None]:
        parsed, root = Reference.parse(reference), self._root()
        return self._pointer(parsed.name, root).resolve(parsed), root

    def _read(self, reference: str) -> tuple[Resolved, Artifact]:
        """Find a version and read its artifact, of which every byte is checked."""
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
        A home folder, ``s3://bucket/prefix`` or ``https://host/path/registry``; by default as `Registry.open`.
    trust : str or sequence of str, optional
        The key of the registry's root, in hex; by default those that ``dpca registry trust`` pinned.

    Returns
    -------
    Artifact
        An object of the class of its kind, such as a `PrivateSubspace` with ``transform(rows)``.

    Raises
    ------
    Corrupt, Invalid, NotFound, Refused
        As `Registry.open` and `Registry.load`.

    Guarantees
    ----------
    Every byte of the artifact was checked against its digest.

    See Also
    --------
    Registry : every version, alias and fact.

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
    """Describe a published artifact as `Registry.show` does."""
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
        "statement": stated_privacy(manifest),
        "noise_multiplier": manifest.get("plan", {}).get("noise_multiplier"),
        **artifact.summary(),
        "lineage": lineage,
        "manifest": manifest,
    }


def _is_own(place: Place) -> bool:
    """Tell whether it is the store of this home, and this user publishes there, or nothing is published yet."""
    try:
        empty = isinstance(place, LocalPlace) and not (place.root / "registry").exists()
        return place.address == store().address and (empty or (key_folder() / PUBLISHERS_KEY).exists())
    except (StorageError, OSError):
        return False
