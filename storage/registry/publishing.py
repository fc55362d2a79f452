"""Publication of artifacts as versions of names, with aliases and pointer files.

The database rows of versions and aliases are authoritative. They are written in the publisher's transaction. Consumers
read pointer files, which are written from the rows after the commit. A row in the table ``pointer`` states that the
file of a name is up to date, with the tag of the file. A transaction that changes a name removes this row, and writing
the file inserts it again. So after a crash in between, the row is missing, and the next opening writes the file. Every
function takes a connection inside a transaction, and first takes the journal's lock, which makes publishers wait for
each other. Since all take this lock first, no deadlock is possible.

Examples
--------
::

    with transaction(engine) as connection:
        version = add_version(connection, name="news", digest=digest, release_id=release_id)
        promote(connection, name="news", version=version, alias="champion")
    with transaction(engine) as connection:
        rebuild_pointers(connection, store(), ["news"])
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from dpca.backends.atomic_files import reached
from dpca.backends.base import Place
from dpca.errors import Conflict, Corrupt, NotFound, Refused, Unavailable
from dpca.registry.pointers import Pointer, check_alias, check_name, versions_up_to
from dpca.registry.roots import SignedPointer
from storage.database import tables
from storage.ledger import journal
from storage.registry.agreement import (
    FEW,
    alias_history,
    check_names,
    others_of,
    owners_of,
    read_numbers,
    read_pointer,
    read_pointers,
)
from storage.registry.signing import Signer, decoded, number_of, read_stored

_ATTEMPTS = 10
_NEWEST = sa.union_all(
    *(
        sa.select(sa.func.max(table.c.version)).where(table.c.name == sa.bindparam("name"))
        for table in (tables.version, tables.joint_version)
    )
)
_PUBLISHED = tables.published.c
_OF_ORIGIN = sa.select(_PUBLISHED.name, _PUBLISHED.version, _PUBLISHED.digest).where(
    _PUBLISHED.origin == sa.bindparam("origin")
)
_OF_ORIGIN_AND_NAME = _OF_ORIGIN.where(_PUBLISHED.name == sa.bindparam("name"))
_REMOVE = {
    table.name: table.delete().where(table.c.name == sa.bindparam("rebuilt"))
    for table in (tables.pointer, tables.signed_pointer)
}
_INSERT = {table.name: table.insert() for table in (tables.pointer, tables.signed_pointer)}
_ENTER = tables.version.insert()

JOINT = "joint-"
"""Prefix of the ids of joint releases (of several sites). No id of a ledger's own release has this prefix."""

type Lineage = Sequence[Mapping[str, Any]]
"""Public facts about each site's part of a joint release, as plain JSON values."""


def add_version(
    connection: sa.Connection,
    *,
    name: str,
    digest: str,
    release_id: str,
    sites: Lineage | None = None,
    among: Collection[str] | None = None,
) -> int:
    """Publish the artifact of a release as the next version of a name, and return the version.

    Parameters
    ----------
    connection : Connection
        A connection in the transaction that commits the release, or in a later one.
    name : str
        The name to publish under. A release may be published under several names.
    digest : str
        The digest of the artifact, as `dpca.artifacts.files.write_artifact` returns it.
    release_id : str
        The id of the release, or of a joint release.
    sites : sequence of mapping, optional
        For a joint release, public facts about the release of each site, which is charged in the ledger of the site.
    among : collection of str, optional
        If given, every earlier version of the name must come from one of these populations.

    Returns
    -------
    int
        One more than the highest version of the name, or 1 for a new name. If the release is already published under
        this name, the existing version.

    Raises
    ------
    Invalid
        If the name does not match the pattern of names.
    Conflict
        If the release is already published under this name with another digest. For a joint release, also if it is
        published under any name with another digest. Also if another ledger publishes the name.
    Refused
        If a population that is not in ``among``, or a joint release, has published under the name.
    """
    check_name(name)
    journal.lock(connection)
    if among is not None and not owners_of(connection, name) <= set(among):
        raise Refused(
            f"{name!r} has versions of populations that this client may not publish for; choose another name."
        )
    same = _OF_ORIGIN_AND_NAME if sites is None else _OF_ORIGIN
    rows = connection.execute(same, {"origin": release_id, "name": name}).all()
    others = [row for row in rows if row.digest != digest]
    published = next((row for row in rows if row.name == name), None)
    if others:
        raise Conflict(
            f"{others[0].name}@{others[0].version} is release {release_id} with digest {others[0].digest}, "
            f"not {digest}; a version never changes; publish a new release"
        )
    if published is not None:
        return int(published.version)
    version = (_newest_version(connection, name) or 0) + 1
    if version == 1 and name in others_of(connection):
        raise Conflict(f"another ledger publishes {name!r} in this store, as an operator stated; choose another name")
    record_version(connection, name=name, version=version, digest=digest, release_id=release_id, sites=sites)
    return version


def record_version(
    connection: sa.Connection, *, name: str, version: int, digest: str, release_id: str, sites: Lineage | None = None
) -> None:
    """Insert the row of a version and append the journal entry; the caller has checked that the version is new."""
    detail: dict[str, Any] = {"name": name, "version": version, "digest": digest}
    row = {**detail, "created_at": journal.now()}
    _leave_to_rebuild(connection, name)
    if sites is None:
        connection.execute(_ENTER, {**row, "release_id": release_id})
        journal.append(connection, "version_published", release_id=release_id, detail=detail)
        return
    lineage = [dict(site) for site in sites]
    connection.execute(tables.joint_version.insert().values(**row, joint_id=release_id, sites=json.dumps(lineage)))
    journal.append(connection, "joint_version_published", detail={**detail, "joint": release_id, "sites": lineage})


def digest_of_joint(connection: sa.Connection, joint_id: str) -> str | None:
    """Return the digest of the published artifact of a joint release of several sites; None if unpublished."""
    table = tables.joint_version
    return connection.execute(sa.select(table.c.digest).where(table.c.joint_id == joint_id).limit(1)).scalar()


def promote(
    connection: sa.Connection, *, name: str, version: int, alias: str, why: Mapping[str, Any] | None = None
) -> None:
    """Point an alias of a name at a version.

    The journal records the version to which the alias pointed before, and the reason ``why`` for the move.

    Raises
    ------
    Invalid
        If the alias does not match the pattern of aliases, or is ``latest``.
    NotFound
        If the name has no such version; the message lists the existing ones.
    """
    check_alias(alias)
    journal.lock(connection)
    check_names(connection, [name])
    published, table = tables.published, tables.alias
    requested = sa.select(published.c.version).where(published.c.name == name, published.c.version == version)
    if connection.execute(requested).first() is None:
        newest = _newest_version(connection, name)
        known = versions_up_to(newest) if newest else "it was never published"
        raise NotFound(f"{name} has no version {version}; {known}; see dpca registry list")
    here = (table.c.name == name) & (table.c.alias == alias)
    before = connection.execute(sa.select(table.c.version).where(here)).scalar_one_or_none()
    if before == version:
        return
    if before is None:
        connection.execute(table.insert().values(name=name, alias=alias, version=version))
    else:
        connection.execute(table.update().where(here).values(version=version))
    _leave_to_rebuild(connection, name)
    detail: dict[str, Any] = {"name": name, "alias": alias, "from": before, "to": version}
    detail |= {} if why is None else {"why": dict(why)}
    journal.append(connection, "alias_moved", detail=detail)


def advance(
    connection: sa.Connection,
    *,
    name: str,
    version: int,
    alias: str,
    before: int | None,
    why: Mapping[str, Any] | None = None,
) -> bool:
    """Move an alias to a version to which it has never pointed, and return whether it moved.

    The alias is not moved if it has pointed to the version earlier, because an operator may have moved it back from
    there. It is also not moved if it no longer points to ``before``, the version at the time when the caller decided.

    Raises
    ------
    Invalid, NotFound
        If the alias is not allowed, or the name has no such version.
    """
    journal.lock(connection)
    if read_pointer(connection, name).aliases.get(alias) != before:
        return False
    if any(move.alias == alias and move.version == version for move in alias_history(connection, name)):
        return False
    promote(connection, name=name, version=version, alias=alias, why=why)
    return True


def rebuild_pointers(
    connection: sa.Connection,
    place: Place,
    names: Collection[str] | None = None,
    *,
    signer: Signer | None = None,
    above: int | None = None,
) -> None:
    """Rewrite the pointer files of some or all names (their lists of versions and aliases) that differ from the rows.

    Parameters
    ----------
    connection : Connection
    place : Place
    names : collection of str, optional
    signer : Signer, optional
        Signs each pointer before the plain pointer file is written, and each artifact that is not yet signed. Without a
        signer, signatures are left unchanged.
    above : int, optional
        If given, sign every pointer and artifact again. The new number of each signed pointer is higher than ``above``
        and than its current number.

    Raises
    ------
    Unavailable
        If the store cannot be written, or if other processes keep writing there without this ledger's lock.
    Refused
        If a file contains a version that has no database row, or has another digest there. A version that consumers may
        have seen is never overwritten.

    Guarantees
    ----------
    Each file changes as a whole or not at all. The transaction waits for other publishers, so an older state is never
    written over a newer one. A file that agrees with the rows is left unchanged. The tag of a file is recorded only
    after the file was written and read again. The number of a new signed pointer is higher than the number in the
    existing file and in the database.

    Notes
    -----
    A publisher that lost its database connection, and therefore the lock, may still be about to write a file with an
    older state. Therefore the tag of the file is read before the rows. A publisher of a newer state takes the lock
    after these rows were read, so it changes the tag after this tag was read. The object store then refuses the write
    of the older state, because the tag has changed. After such a refusal, the rows are read again, which fails if the
    lock is lost. One case remains: in the meantime, the file changed and changed back, because an alias moved and moved
    back. Then the next opening finds that the tag differs from the recorded tag, and rewrites the file.
    """
    journal.lock(connection)
    numbers = read_numbers(connection, names)
    tags: dict[str, str | None] = {}
    signed: list[dict[str, Any]] = []
    read: Mapping[str, Pointer | None]
    if names is not None and len(names) <= FEW:
        # for a few names, each pointer is read after the name's files
        read = {name: None for name in names if _newest_version(connection, name)}
    else:
        read = {pointer.name: pointer for pointer in read_pointers(connection, names)}
    for name, pointer in read.items():
        numbered = numbers.get(name, 0)
        tags[name], row = _rebuild(connection, place, name, pointer, signer=signer, number=numbered, above=above)
        signed += [] if row is None else [row]
    _note(connection, tables.pointer, tags, [{"name": name, "tag": tag} for name, tag in tags.items() if tag])
    _note(connection, tables.signed_pointer, [row["name"] for row in signed], signed)
    reached("pointer.row_written")


def _note(
    connection: sa.Connection, table: sa.Table, names: Collection[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Replace the rows of some names in the table ``pointer`` or ``signed_pointer``."""
    if names:
        connection.execute(_REMOVE[table.name], [{"rebuilt": name} for name in names])
    if rows:
        connection.execute(_INSERT[table.name], [dict(row) for row in rows])


def _rebuild(
    connection: sa.Connection,
    place: Place,
    name: str,
    pointer: Pointer | None,
    *,
    signer: Signer | None,
    number: int,
    above: int | None,
) -> tuple[str | None, dict[str, Any] | None]:
    """Write the plain and the signed pointer file (versions and aliases) of a name until both agree with the rows.

    Return the tag of the plain pointer file, and the row about the signed pointer file.
    """
    path = Pointer.path(name)
    floor: int | None = 0 if above is None else None
    for _ in range(_ATTEMPTS):
        standing = read_stored(place, path)
        over = None if signer is None else read_stored(place, SignedPointer.path(name))
        found = decoded(name, over)
        is_read_after = pointer is None
        pointer = read_pointer(connection, name) if pointer is None else pointer
        payload = pointer.encode()
        highest = max(number, number_of(found))
        floor = max(highest, above or 0) if floor is None else floor
        is_signed = signer is None or signer.agrees(place, found, pointer, payload, above=max(floor, number - 1))
        if standing is not None and standing.payload == payload and is_signed:
            if found is None or over is None:
                return standing.tag, None
            return standing.tag, {"name": name, "number": found.number, "tag": over.tag}
        if not is_read_after:
            pointer = read_pointer(connection, name)
            payload = pointer.encode()
        if standing is not None or over is not None:
            _require_all_shown(pointer, place, found)
        plain = None if standing is None else standing.payload
        if signer is not None and not signer.agrees(place, found, pointer, payload, above=max(floor, number - 1)):
            after = max(highest, floor) + 1
            if not signer.write(place, pointer, over=over, before=found, plain=plain, number=after):
                continue
            reached("pointer.signed")
        if plain != payload and place.write(path, payload, over=standing):
            reached("pointer.written")
    raise Unavailable(
        f"{place.at(path)} changes while it is written, or is not read back as it was written; only one ledger may "
        "publish there; give each ledger a separate store, check the store, and run the same request again"
    )


def _require_all_shown(rows: Pointer, place: Place, signed: SignedPointer | None) -> None:
    """Check that every version in the pointer files of a name has a row; a damaged file counts as empty."""
    shown = {} if signed is None else dict(signed.pointer.versions)
    with suppress(Corrupt, NotFound):
        shown |= Pointer.read(place, rows.name).versions
    if strange := [version for version, digest in shown.items() if rows.versions.get(version) != digest]:
        raise Refused(
            f"{place.at(Pointer.path(rows.name))} shows a {rows.name}@{min(strange)} that this ledger did not publish: "
            "its database was restored from a copy, or another ledger publishes there; restore the newest copy, or "
            "accept it with `dpca budget accept-restored`."
        )


def _leave_to_rebuild(connection: sa.Connection, name: str) -> None:
    connection.execute(_REMOVE[tables.pointer.name], {"rebuilt": name})


def _newest_version(connection: sa.Connection, name: str) -> int | None:
    found = connection.execute(_NEWEST, {"name": name}).scalars()
    return max((version for version in found if version is not None), default=None)
