"""Compare the ledger with the registry: by names at each opening, by every manifest on request."""

import json
from collections.abc import Collection, Mapping
from itertools import batched, chain
from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting.events import is_private
from storage.artifacts.files import read_manifest
from storage.backends.base import Place
from storage.database import tables
from storage.database.engine import reading
from storage.database.raw_rows import raw_rows
from storage.errors import Corrupt, NotFound, Refused
from storage.ledger.replay import Key
from storage.registry.owners import others_of
from storage.registry.pointers import Pointer, read_names, read_tags
from storage.registry.signing import signed_tags

_AT_ONCE = 500  # keys in a query
_VERSION, _JOINT = tables.version.c, tables.joint_version.c
_OF_RELEASES = (
    sa.select(_VERSION.name, _VERSION.version, _VERSION.digest, _VERSION.release_id)
    .add_columns(tables.release.c.event, tables.release.c.epsilon)
    .join(tables.release, tables.release.c.id == _VERSION.release_id)
    .order_by(_VERSION.name, _VERSION.version)
)
_OF_JOINT_RELEASES = sa.select(_JOINT.name, _JOINT.version, _JOINT.digest, _JOINT.joint_id, _JOINT.sites).order_by(
    _JOINT.name, _JOINT.version
)


def _every_name(table: sa.Table) -> sa.Select[tuple[str]]:
    first = sa.select(sa.func.min(table.c.name).label("name")).cte(f"names_of_{table.name}", recursive=True)
    following = sa.select(sa.func.min(table.c.name)).where(table.c.name > first.c.name).scalar_subquery()
    every = first.union_all(sa.select(following).where(first.c.name.is_not(None)))
    return sa.select(every.c.name).where(every.c.name.is_not(None))


_EVERY_NAME = sa.union_all(_every_name(tables.version), _every_name(tables.joint_version))
_TAGS = sa.select(tables.pointer)
_SIGNED_TAGS = sa.select(tables.signed_pointer.c.name, tables.signed_pointer.c.tag)


def compare_names(engine: sa.Engine, place: Place) -> None:
    """Refuse a registry with names that this ledger never published, by one listing of any size.

    The rows are read in a snapshot that begins after the listing: the row of a name is there before its file.

    Raises
    ------
    Refused
        When there is such a name, and no operator said that it belongs to another ledger.
    """
    shown = set(read_names(place))
    with reading(engine) as connection:
        _refuse_unknown(connection, place, shown - _published_names(connection))


def stale_names(engine: sa.Engine, place: Place) -> set[str]:
    """Find the names whose pointer file or signed pointer has changed since it was last written, by a listing of each.

    Raises
    ------
    Refused
        As `compare_names`.
    """
    shown = read_tags(place)
    with reading(engine) as connection:
        stale = _changed(connection, place, shown)
        _refuse_unknown(connection, place, shown.keys() - _published_names(connection))
    return stale


def damaged_names(engine: sa.Engine, place: Place) -> set[str]:
    """Find names whose pointer file is damaged or gone; only files that changed since they were written are read.

    A name whose file is still to be written, since its rows were committed just now, is not among them.
    """
    shown = read_tags(place)
    with reading(engine) as connection:
        written = {row.name for row in connection.execute(_TAGS)}
        changed = _changed(connection, place, shown) & written
    return {name for name in changed if not _is_sound(place, name)}


def _changed(connection: sa.Connection, place: Place, shown: Mapping[str, str | None]) -> set[str]:
    """Return the names whose files are not as they were written last; ``shown`` are the tags of the plain ones."""
    noted = {row.name: row.tag for row in connection.execute(_TAGS)}
    written = {name: noted.get(name) for name in _published_names(connection)}
    tags = {row.name: row.tag for row in connection.execute(_SIGNED_TAGS)}
    shown_signed = signed_tags(place) if tags else {}
    moved = {name for name, tag in tags.items() if shown_signed.get(name) != tag}
    return {name for name, tag in written.items() if tag is None or shown.get(name) != tag or name in moved}


def _is_sound(place: Place, name: str) -> bool:
    try:
        Pointer.read(place, name)
    except (Corrupt, NotFound):
        return False
    return True


def _published_names(connection: sa.Connection) -> set[str]:
    """Return the names that have a version, by one look into the index for each of them, not one for each version."""
    return set(connection.execute(_EVERY_NAME).scalars())


def _refuse_unknown(connection: sa.Connection, place: Place, unknown: set[str]) -> None:
    if unknown and (unknown := unknown - others_of(connection)):
        shown = ", ".join(sorted(unknown)[:3]) + (", ..." if len(unknown) > 3 else "")
        raise Refused(
            f"{place.at('registry')} shows {shown}, which this ledger did not publish: its database was restored or "
            f"replaced, or another ledger publishes there; restore the newest copy of the database, give this ledger a "
            "store of its own, or accept it with `dpca budget accept-restored`."
        )


def compare_artifacts(
    connection: sa.Connection, place: Place, versions: Mapping[str, Collection[Key]] | None = None
) -> int:
    """Compare the manifest of every version with its release; return the number of versions that were compared.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    place : Place
    versions : mapping of table to collection of key, optional
        The (name, version) of those to be compared, in each of the two tables of versions; all without it.

    Raises
    ------
    Corrupt
        When one is missing, or states another release, event or epsilon than the ledger.
    """
    count = 0
    for table, query, check in (
        (tables.version, _OF_RELEASES, _check_release),
        (tables.joint_version, _OF_JOINT_RELEASES, _check_joint_release),
    ):
        for keys in (None,) if versions is None else batched(versions[table.name], _AT_ONCE):
            some = query if keys is None else query.where(sa.tuple_(*table.primary_key).in_(keys))
            for row in chain.from_iterable(raw_rows(connection, some)):
                check(row, read_manifest(place, row[2]))
                count += 1
    return count


def _check_release(row: tuple[Any, ...], manifest: Mapping[str, Any]) -> None:
    name, version, _, release, text, epsilon = row
    event, privacy = json.loads(text), manifest.get("privacy")
    told = privacy if isinstance(privacy, dict) else {}
    stated = (manifest.get("release"), told.get("event"), told.get("epsilon"))
    if stated != (release, event, epsilon if is_private(event) else None):
        raise Corrupt(
            f"the artifact of {name}@{version} tells of another release, event or epsilon than the ledger; "
            "restore the registry and the database of one ledger."
        )


def _check_joint_release(row: tuple[Any, ...], manifest: Mapping[str, Any]) -> None:
    name, version, _, joint, sites = row
    plan = manifest.get("plan")
    if (manifest.get("release"), plan.get("sites") if isinstance(plan, dict) else None) != (joint, json.loads(sites)):
        raise Corrupt(
            f"the artifact of {name}@{version} tells of another joint release, or of other sites, than the ledger; "
            "restore the registry and the database of one ledger."
        )
