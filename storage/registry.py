"""Find and load published artifacts by name, from files alone: no database, no key.

A name has immutable versions 1, 2, 3, ... and movable aliases. One pointer file a name says which version has
which digest; it is rewritten by the publisher (`storage.versions`) and only read here.

Examples
--------
``Registry.open().load("name@champion").transform(rows)``, or ``Registry.open("s3://bucket/prefix")``. A reference is
one of

>>> for text in ("news", "news@3", "news@champion", "news@sha256:" + 64 * "0"):
...     _ = Reference.parse(text)
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from storage.artifacts import DIGEST, read_artifact
from storage.durable import write_atomically
from storage.errors import Corrupt, Invalid, NotFound, Unavailable
from storage.home import store
from storage.places import Place, open_place
from storage.subspace import PrivateSubspace, canonical_json

LATEST = "latest"

_FOLDER = "registry/names"
_MOST_BYTES = 1 << 24  # of a pointer file: 150,000 versions

_NAME = "[a-z][a-z0-9._-]{0,99}"
_VERSION = "[1-9][0-9]{0,8}"
_NAME_RULE = "a lower-case letter, then up to 99 of a-z 0-9 . _ -"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Name an artifact: a name, and a version, an alias or a digest; none of the three means the latest."""

    name: str
    version: int | None = None
    alias: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``name``, ``name@3``, ``name@champion``, ``name@latest`` or ``name@sha256:<hex>``.

        Raises
        ------
        Invalid
            If `text` is none of these.
        """
        found = re.fullmatch(f"({_NAME})(?:@(?:({_VERSION})|({_NAME})|sha256:({DIGEST})))?", text)
        if not found:
            raise Invalid(
                f"reference {text!r} is none of name, name@3, name@alias, name@sha256:<64 hex digits>; "
                f"a name or alias is {_NAME_RULE}; correct it"
            )
        name, version, alias, digest = found.groups()
        return cls(
            name=name,
            version=int(version) if version else None,
            alias=None if alias == LATEST else alias,
            digest=digest,
        )


def check_name(name: str) -> str:
    """Return a name that artifacts may be published under.

    Raises
    ------
    Invalid
        If it breaks the rule.
    """
    if not re.fullmatch(_NAME, name):
        raise Invalid(f"name {name!r} is not allowed; a name is {_NAME_RULE}; choose another")
    return name


def check_alias(alias: str) -> str:
    """Return an alias that a version may be given.

    Raises
    ------
    Invalid
        If it breaks the rule, or is the reserved ``latest``.
    """
    if alias == LATEST:
        raise Invalid(f"alias {LATEST!r} is reserved; it always means the highest version; choose another")
    if not re.fullmatch(_NAME, alias):
        raise Invalid(f"alias {alias!r} is not allowed; an alias is {_NAME_RULE}; choose another")
    return alias


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One version of one name, with the aliases that point at it now; ``private`` unless it is a reference result."""

    name: str
    version: int
    digest: str
    aliases: tuple[str, ...]
    private: bool = True

    def __str__(self) -> str:
        """Write the version as a reference, such as ``news@3``."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The content of one pointer file: every version of a name, its aliases, and which versions are not private.

    Notes
    -----
    The file carries a checksum of itself, against damage: one flipped bit could otherwise move an alias. Files that
    were written without one are still read, and trusted as they are, until the record's next publication or rebuild
    writes them anew.
    """

    name: str
    versions: Mapping[int, str]
    aliases: Mapping[str, int]
    not_private: frozenset[int] = frozenset()

    @staticmethod
    def path(name: str) -> str:
        """Where the pointer file of a name stands in a place."""
        return f"{_FOLDER}/{name}.json"

    def encode(self) -> bytes:
        """Write the content of the file."""
        facts = self._facts()
        return canonical_json({**facts, "checksum": hashlib.sha256(canonical_json(facts)).hexdigest()})

    def _facts(self) -> dict[str, Any]:
        versions = {str(version): digest for version, digest in self.versions.items()}
        marked = {"not_private": sorted(self.not_private)} if self.not_private else {}
        return {"versions": versions, "aliases": dict(self.aliases), **marked}

    @classmethod
    def read(cls, place: Place, name: str) -> Self:
        """Read the pointer file of a name.

        Raises
        ------
        Corrupt
            If it is not what `encode` writes, or older versions of it wrote without a checksum.
        NotFound
            If there is none.
        Unavailable
            If this user cannot read it.
        """
        path = cls.path(name)
        try:
            payload = place.read(path, most=_MOST_BYTES).payload
        except FileNotFoundError:
            known = _listed(_names(place))
            raise NotFound(
                f"nothing named {name!r} in {place.at('registry')}; it has {known}; see dpca registry list"
            ) from None
        pointer = cls._decode(name, payload)
        if pointer is None or payload not in (pointer.encode(), canonical_json(pointer._facts())):
            raise Corrupt(
                f"pointer file {place.at(path)} is damaged; it must list versions and aliases as published; "
                "any publishing command on the home of the ledger rebuilds it"
            )
        return pointer

    @classmethod
    def _decode(cls, name: str, payload: bytes) -> Self | None:
        try:
            content = json.loads(payload)
            versions = {int(version): str(digest) for version, digest in content["versions"].items()}
            aliases = {str(alias): int(version) for alias, version in content["aliases"].items()}
            not_private = frozenset(int(version) for version in content.get("not_private", ()))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None
        sound = (
            versions
            and not_private.union(aliases.values()) <= set(versions)
            and all(re.fullmatch(_VERSION, str(version)) for version in versions)
            and all(re.fullmatch(DIGEST, digest) for digest in versions.values())
            and all(re.fullmatch(_NAME, alias) and alias != LATEST for alias in aliases)
        )
        return cls(name=name, versions=versions, aliases=aliases, not_private=not_private) if sound else None

    def resolve(self, reference: Reference) -> Resolved:
        """Find the version that a reference means."""
        version: int | None = max(self.versions)
        if reference.version is not None:
            version = reference.version if reference.version in self.versions else None
        elif reference.alias is not None:
            version = self.aliases.get(reference.alias)
        elif reference.digest is not None:
            version = max((v for v, digest in self.versions.items() if digest == reference.digest), default=None)
        return self._unknown(reference) if version is None else self.row(version)

    def row(self, version: int) -> Resolved:
        """Describe one version."""
        aliases = tuple(sorted(alias for alias, target in self.aliases.items() if target == version))
        private = version not in self.not_private
        return Resolved(
            name=self.name, version=version, digest=self.versions[version], aliases=aliases, private=private
        )

    def _unknown(self, reference: Reference) -> NoReturn:
        if reference.alias is not None:
            asked, known = f"alias {reference.alias!r}", f"has {_listed(sorted(self.aliases))}"
        elif reference.version is not None:
            asked, known = f"version {reference.version}", f"has versions 1 to {max(self.versions)}"
        else:
            asked, known = f"version of digest {reference.digest}", f"has versions 1 to {max(self.versions)}"
        raise NotFound(f"{self.name} has no {asked}; it {known}; see dpca registry list")


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
        """Open the registry of a home folder or of ``s3://bucket/prefix``.

        Without an address it is that of ``DPCA_STORE_URL``, else of ``DPCA_HOME`` or the platform's default.
        """
        return cls(store() if address is None else open_place(address))

    def names(self) -> Sequence[str]:
        """Every published name, sorted."""
        return _names(self.place)

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

    def load(self, reference: str) -> PrivateSubspace:
        """Load an artifact.

        Raises
        ------
        Corrupt
            If any byte of its files is not what was published.
        Invalid, NotFound
            As `resolve`.
        """
        return read_artifact(self.place, self.resolve(reference).digest)

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
            ``artifact`` ("name@1"), ``private``, ``digest``, ``aliases``, the main facts of the release by name,
            ``lineage`` (where it came from) and the whole ``manifest``. A fact not declared is None.
        """
        resolved = self.resolve(reference)
        subspace = read_artifact(self.place, resolved.digest)
        manifest = dict(subspace.manifest)
        privacy = manifest.get("privacy", {})
        lineage = {name: manifest.get(name) for name in ("release", "mechanism", "code_version", "parent")}
        return {
            "artifact": str(resolved),
            "private": subspace.is_private,
            "digest": resolved.digest,
            "aliases": [*resolved.aliases],
            "release": manifest.get("release"),
            "mechanism": manifest.get("mechanism"),
            "relation": privacy.get("relation"),
            "epsilon": privacy.get("epsilon"),
            "delta": privacy.get("delta"),
            "noise_multiplier": manifest.get("plan", {}).get("noise_multiplier"),
            "clip_norm": manifest.get("clip_norm"),
            "n_components": subspace.n_components,
            "n_features": subspace.n_features,
            "eigenvalues": None if subspace.eigenvalues is None else subspace.eigenvalues.tolist(),
            "lineage": lineage,
            "manifest": manifest,
        }

    def export(self, reference: str, output: Path | str, *, format: str = "npz") -> Resolved:  # noqa: A002 - as `--format`
        """Write an artifact as one portable file.

        Parameters
        ----------
        reference : str
            What to export.
        output : Path or str
            The file, written whole or not at all; an existing one is replaced.
        format : {"npz"}
            NumPy archive of the arrays of a `PrivateSubspace` that the artifact has, by their names, and
            ``manifest`` (JSON), in which ``feature_names`` stand if they were declared.

        Raises
        ------
        Invalid
            If the format is unknown, or the folder of `output` does not exist.
        Corrupt, NotFound
            As `load`.
        Unavailable
            If `output` cannot be written.

        Guarantees
        ----------
        Equal artifacts give equal bytes.
        """
        if format != "npz":
            raise Invalid(f"format {format!r} is unknown; it must be npz; choose that")
        output = Path(output)
        resolved = self.resolve(reference)
        archive = _npz(read_artifact(self.place, resolved.digest))
        try:
            if output.is_dir() or not output.parent.is_dir():
                raise Invalid(f"output {output} must be a file in an existing folder; create the folder first")
            write_atomically(output, archive)
        except OSError as error:
            raise Unavailable(
                f"output {output} cannot be written ({error.strerror}); nothing was exported; choose another place"
            ) from error
        return resolved

    def _rows(self) -> Iterator[Resolved]:
        for name in self.names():
            pointer = Pointer.read(self.place, name)
            yield from (pointer.row(version) for version in sorted(pointer.versions))


def _names(place: Place) -> Sequence[str]:
    found = (re.fullmatch(rf"({_NAME})\.json", name) for name in place.names(_FOLDER))
    return sorted(name[1] for name in found if name)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"


def _npz(subspace: PrivateSubspace) -> bytes:
    # Entries of a NumPy archive carry a fixed date, so the bytes depend on the arrays alone.
    arrays: dict[str, Any] = subspace.arrays()
    buffer = BytesIO()
    np.savez(buffer, **arrays, manifest=np.array(canonical_json(subspace.manifest).decode()))
    return buffer.getvalue()
