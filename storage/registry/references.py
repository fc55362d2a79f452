"""Names of published artifacts: ``name``, ``name@3``, ``name@alias`` and ``name@sha256:...``."""

import re
from dataclasses import dataclass
from typing import Self

from storage.artifacts.files import DIGEST
from storage.errors import Invalid

LATEST = "latest"

NAME_PATTERN = "[a-z][a-z0-9._-]{0,99}"
VERSION_PATTERN = "[1-9][0-9]{0,8}"
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
        found = re.fullmatch(f"({NAME_PATTERN})(?:@(?:({VERSION_PATTERN})|({NAME_PATTERN})|sha256:({DIGEST})))?", text)
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
    if not re.fullmatch(NAME_PATTERN, name):
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
    if not re.fullmatch(NAME_PATTERN, alias):
        raise Invalid(f"alias {alias!r} is not allowed; an alias is {_NAME_RULE}; choose another")
    return alias
