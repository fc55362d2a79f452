"""Configuration files of parties: YAML with one mapping, whose names are all known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpca_tasks.errors import InvalidInput
from storage.backends.atomic_files import read_file
from storage.errors import Corrupt, Invalid
from storage.schemas.plain_yaml import load_yaml

_MOST_BYTES = 1 << 20


def read_yaml(path: Path, *, what: str) -> Mapping[str, Any]:
    """Read a file with one mapping.

    Raises
    ------
    InvalidInput
        When it cannot be read, or is something else.
    """
    try:
        content = load_yaml(read_file(path, most=_MOST_BYTES).decode())
    except Invalid as error:
        raise InvalidInput(f"{what} {path} cannot be read as YAML: {error}.") from None
    except (Corrupt, OSError, UnicodeError):
        raise InvalidInput(
            f"{what} {path} cannot be read as YAML of at most {_MOST_BYTES} bytes; correct the path, or the file."
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise InvalidInput(f"{what} {path} is no mapping of names to values; see its guide.")
    return content


def check_names(content: Mapping[str, Any], *, known: set[str], needed: set[str], what: str) -> None:
    """Refuse a mapping with unknown names, or without those that are needed.

    Raises
    ------
    InvalidInput
        With the names.
    """
    if unknown := sorted(set(content) - known):
        raise InvalidInput(f"{what} has {', '.join(unknown)}, and knows {', '.join(sorted(known))}; correct it.")
    if missing := sorted(needed - set(content)):
        raise InvalidInput(f"{what} lacks {', '.join(missing)}; add what is missing.")
