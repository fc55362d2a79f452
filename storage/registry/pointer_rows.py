"""The rows that pointer files are made of: versions, aliases and marks of a name, and the number it was signed under.

Pointers of a few names are read by queries that name them, of more names by reading every row once.

Examples
--------
::

    with reading(engine) as connection:
        pointer = read_pointer(connection, "news")
        assert pointer.aliases["champion"] in pointer.versions
"""

from collections.abc import Collection
from itertools import chain
from typing import Any

import sqlalchemy as sa

from storage.database import tables
from storage.database.raw_rows import raw_rows
from storage.ledger.replay import check_rows
from storage.registry.pointers import Pointer

FEW = 100
"""Names at most that a query lists; for more of them every row is read."""
_NON_PRIVATE = '"name": "non_private"'  # as the ledger writes events: names of its own and numbers, no other text
_PUBLISHED, _VERSION = tables.published.c, tables.version.c
_FEW_NAMES: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)
_NUMBERS = sa.select(tables.signed_pointer.c.name, tables.signed_pointer.c.number)
_FEW_NUMBERS = _NUMBERS.where(tables.signed_pointer.c.name.in_(_FEW_NAMES))
_VERSIONS = sa.select(_PUBLISHED.name, _PUBLISHED.version, _PUBLISHED.digest)
_DISCLOSED, _ALIASES = sa.select(_VERSION.name, _VERSION.version), sa.select(tables.alias)
_IS_DISCLOSED = tables.release.c.event.contains(_NON_PRIVATE)
_OF_ALL = (
    _DISCLOSED.where(_VERSION.release_id.in_(sa.select(tables.release.c.id).where(_IS_DISCLOSED))),
    _VERSIONS,
    _ALIASES,
)
_OF_FEW = (
    _DISCLOSED.join(tables.release).where(_VERSION.name.in_(_FEW_NAMES), _IS_DISCLOSED),
    _VERSIONS.where(_PUBLISHED.name.in_(_FEW_NAMES)),
    _ALIASES.where(tables.alias.c.name.in_(_FEW_NAMES)),
)

_ENTRY = tables.event.c
_TOLD = (
    (tables.version, "version_published"),
    (tables.joint_version, "joint_version_published"),
    (tables.alias, "alias_moved"),
)
"""The tables that pointers are made of, and the entries that tell of their rows."""


def read_pointer(connection: sa.Connection, name: str) -> Pointer:
    """Read the pointer of one name, empty where the name has no version; raise as `check_names`."""
    return next(iter(read_pointers(connection, [name])), Pointer(name=name, versions={}, aliases={}))


def read_pointers(connection: sa.Connection, names: Collection[str] | None) -> list[Pointer]:
    """Read the pointers of some names, or of all that have a version; raise as `check_names`."""
    check_names(connection, names)
    disclosed, versions, aliases = _OF_ALL
    given = dict[str, list[str]]()
    if names is not None and len(names) <= FEW:
        disclosed, versions, aliases = _OF_FEW
        given = {"names": list(names)}
    marked: dict[str, set[int]] = {}
    for name, number in connection.execute(disclosed, given):
        marked.setdefault(name, set()).add(number)
    numbered: dict[str, dict[int, str]] = {}
    for name, number, digest in chain.from_iterable(raw_rows(connection, versions, given)):
        numbered.setdefault(name, {})[number] = digest
    named: dict[str, dict[str, int]] = {}
    for row in connection.execute(aliases, given):
        named.setdefault(row.name, {})[row.alias] = row.version
    return [
        Pointer(
            name=key, versions=digests, aliases=named.get(key, {}), not_private=frozenset(marked.get(key, frozenset()))
        )
        for key, digests in numbered.items()
        if names is None or key in names
    ]


def check_names(connection: sa.Connection, names: Collection[str] | None) -> None:
    """Check that versions and aliases of some names, or of all, are those that the journal states.

    Raises
    ------
    Corrupt
        When a row was edited or inserted by hand, or an alias removed.
    """
    few = None if names is None or len(names) > FEW else list(names)
    for table, entry in _TOLD:
        named = sa.true() if few is None else table.c.name.in_(few)
        rows = connection.execute(sa.select(table).where(named)).all()
        told: sa.ColumnElement[bool] = _ENTRY.name == entry
        if table is tables.version:
            told &= _ENTRY.release_id.in_(sa.select(table.c.release_id).where(named))
        elif few is not None:  # the detail is JSON, and a name needs no escape in it
            told &= sa.or_(sa.false(), *(_ENTRY.detail.contains(f'"name": "{name}"', autoescape=True) for name in few))
        check_rows(connection, table.name, rows, told, every=table is tables.alias, first=few)


def read_numbers(connection: sa.Connection, names: Collection[str] | None) -> dict[str, int]:
    """Read the numbers of the signed pointers that this ledger wrote last, of some names or of all."""
    if names is not None and len(names) <= FEW:
        rows = connection.execute(_FEW_NUMBERS, {"names": list(names)})
    else:
        rows = connection.execute(_NUMBERS)
    return {row.name: row.number for row in rows}
