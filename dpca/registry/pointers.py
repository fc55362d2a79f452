"""References to published artifacts, and the pointer file that maps versions and aliases to artifacts.

A reference is ``name``, ``name@3``, ``name@alias`` or ``name@sha256:...``. The pointer file of a name maps each version
to the digest of an artifact, and each alias to a version.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Self

from dpca.artifacts.base import canonical_json, canonical_object
from dpca.artifacts.files import DIGEST
from dpca.backends.base import Place
from dpca.errors import Corrupt, Invalid, NotFound

LATEST = "latest"

NAME_PATTERN = "[a-z][a-z0-9._-]{0,99}"
VERSION_PATTERN = "[1-9][0-9]{0,8}"
_NAME_RULE = "a lower-case letter, then up to 99 of a-z 0-9 . _ -"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference to an artifact by name and version, alias or digest; a name alone means the latest version."""

    name: str
    version: int | None = None
    alias: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``name``, ``name@3``, ``name@champion``, ``name@latest`` or ``name@sha256:<hex>``.

        Raises
        ------
        Invalid
            If `text` has none of these forms.
        """
        found = re.fullmatch(f"({NAME_PATTERN})(?:@(?:({VERSION_PATTERN})|({NAME_PATTERN})|sha256:({DIGEST})))?", text)
        if not found:
            raise Invalid(
                f"reference {text!r} is not name, name@3, name@alias or name@sha256:<64 hex digits>; a name or alias "
                f"is {_NAME_RULE}; correct it"
            )
        name, version, alias, digest = found.groups()
        return cls(
            name=name,
            version=int(version) if version else None,
            alias=None if alias == LATEST else alias,
            digest=digest,
        )


def check_name(name: str) -> str:
    """Return a name unchanged if artifacts may be published under this name.

    Raises
    ------
    Invalid
        If the name is not a lower-case letter followed by up to 99 of the characters ``a-z 0-9 . _ -``.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise Invalid(f"name {name!r} is not allowed; a name is {_NAME_RULE}; choose another")
    return name


def check_alias(alias: str) -> str:
    """Return an alias unchanged if a version may have this alias.

    Raises
    ------
    Invalid
        If the alias breaks the rule for names (`check_name`), or is the reserved alias ``latest``.
    """
    if alias == LATEST:
        raise Invalid(f"alias {LATEST!r} is reserved; it always means the highest version; choose another")
    if not re.fullmatch(NAME_PATTERN, alias):
        raise Invalid(f"alias {alias!r} is not allowed; an alias is {_NAME_RULE}; choose another")
    return alias


FOLDER = "registry/names"
_FILE = re.compile(rf"({NAME_PATTERN})\.json")
_DIGEST_BYTES = 32
MOST_BYTES = 1 << 24  # the size limit of a pointer file, which is enough for 150,000 versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One version of a name, with its current aliases; `private` is False for a result without a privacy guarantee."""

    name: str
    version: int
    digest: str
    aliases: tuple[str, ...]
    private: bool = True

    def __str__(self) -> str:
        """Format the version as a reference, such as ``news@3``."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True)  # Pointer has no slots, because cached_property needs an instance dict
class Pointer:
    """The content of the pointer file of one name.

    A pointer file states the digest of every version, the version of every alias, and which versions are reference
    results without a privacy guarantee.

    Notes
    -----
    The file contains a checksum of its content, because one flipped bit could otherwise move an alias unnoticed.
    """

    name: str
    versions: Mapping[int, str]
    aliases: Mapping[str, int]
    not_private: frozenset[int] = frozenset()

    @staticmethod
    def path(name: str) -> str:
        """Return the path, within a storage place, of the pointer file of a name."""
        return f"{FOLDER}/{name}.json"

    def encode(self) -> bytes:
        """Return the bytes of the pointer file, with its checksum."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        checksum = hashlib.sha256(canonical_object(self.members)).hexdigest()
        return canonical_object({**self.members, "checksum": canonical_json(checksum)})

    @cached_property
    def members(self) -> Mapping[str, bytes]:
        """The members of `facts`, each encoded separately by `dpca.artifacts.base.canonical_json`."""
        return {name: canonical_json(fact) for name, fact in self.facts().items()}

    def facts(self) -> dict[str, Any]:
        """Return the content of the pointer file without the checksum, as plain JSON values."""
        versions = dict(zip(map(str, self.versions), self.versions.values(), strict=True))
        marked = {"not_private": sorted(self.not_private)} if self.not_private else {}
        return {"versions": versions, "aliases": dict(self.aliases), **marked}

    @classmethod
    def read(cls, place: Place, name: str) -> Self:
        """Read the pointer file of a name.

        Raises
        ------
        Corrupt
            If the file does not have exactly the form in which `encode` writes it.
        NotFound
            If the name has no pointer file.
        Unavailable
            If this user cannot read the file.
        """
        path = cls.path(name)
        try:
            payload = place.read(path, most=MOST_BYTES).payload
        except FileNotFoundError:
            if not place.lists:
                raise NotFound(
                    f"the name {name!r} cannot be read at {place.at('registry')}; correct the name or the URL (a web "
                    "server cannot list the names that exist)"
                ) from None
            known = _listed(read_names(place))
            raise NotFound(
                f"the name {name!r} does not exist in {place.at('registry')}, which has {known}; see dpca registry list"
            ) from None
        try:
            pointer = cls.from_facts(name, json.loads(payload))
        except (ValueError, RecursionError):
            pointer = None
        if pointer is None or payload != pointer.encode():
            raise Corrupt(
                f"pointer file {place.at(path)} is damaged; run `dpca doctor` on the home of the ledger to rebuild it"
            )
        return pointer

    @classmethod
    def from_facts(cls, name: str, content: Any) -> Self | None:
        """Build the pointer of a name from JSON values in the form of `facts`; return None if they are invalid."""
        try:
            shown = content["versions"]
            versions = dict(zip(map(int, shown), map(str, shown.values()), strict=True))
            aliases = {str(alias): int(version) for alias, version in content["aliases"].items()}
            not_private = frozenset(int(version) for version in content.get("not_private", ()))
            digits = "".join(versions.values())
            is_hex = len(bytes.fromhex(digits)) == _DIGEST_BYTES * len(versions) and digits == digits.lower()
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return None
        sound = (
            versions
            and versions.keys() >= not_private.union(aliases.values())
            and all(re.fullmatch(VERSION_PATTERN, str(version)) for version in (min(versions), max(versions)))
            and is_hex
            and set(map(len, versions.values())) == {2 * _DIGEST_BYTES}
            and all(re.fullmatch(NAME_PATTERN, alias) and alias != LATEST for alias in aliases)
        )
        return cls(name=name, versions=versions, aliases=aliases, not_private=not_private) if sound else None

    def resolve(self, reference: Reference) -> Resolved:
        """Return the version of this name that a reference means; raise `NotFound` if there is no such version."""
        version: int | None = max(self.versions)
        if reference.version is not None:
            version = reference.version if reference.version in self.versions else None
        elif reference.alias is not None:
            version = self.aliases.get(reference.alias)
        elif reference.digest is not None:
            version = max((v for v, digest in self.versions.items() if digest == reference.digest), default=None)
        return self._unknown(reference) if version is None else self.row(version)

    def row(self, version: int) -> Resolved:
        """Return one version with its digest and its aliases."""
        aliases: tuple[str, ...] = ()
        if version in self.aliases.values():
            aliases = tuple(sorted(alias for alias, target in self.aliases.items() if target == version))
        private = version not in self.not_private
        return Resolved(
            name=self.name, version=version, digest=self.versions[version], aliases=aliases, private=private
        )

    def _unknown(self, reference: Reference) -> NoReturn:
        if reference.alias is not None:
            requested, known = f"alias {reference.alias!r}", f"it has {_listed(sorted(self.aliases))}"
        else:
            requested = f"of digest {reference.digest}" if reference.version is None else str(reference.version)
            requested, known = f"version {requested}", versions_up_to(max(self.versions))
        raise NotFound(f"{self.name} has no {requested}; {known}; see dpca registry list")


def versions_up_to(newest: int) -> str:
    """Return a phrase with the existing versions of a name, such as ``versions 1 to 5 exist``."""
    return "only version 1 exists" if newest == 1 else f"versions 1 to {newest} exist"


def read_names(place: Place) -> Sequence[str]:
    """Return the names of the pointer files in a storage place, that is, all published names, sorted."""
    return sorted(found[1] for name in place.names(FOLDER) if (found := _FILE.fullmatch(name)))


def read_tags(place: Place) -> dict[str, str | None]:
    """Return, for each published name, the tag (such as an ETag) that changes when its pointer file changes."""
    return {found[1]: tag for name, tag in place.tags(FOLDER).items() if (found := _FILE.fullmatch(name))}


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
