"""Published names in the ledger, and the check that ledger and registry agree.

*Names*: who has published under a name, and the history of the name's aliases. The publishers are populations of this
ledger, joint releases, or another ledger. Alias rows and pointer files state only the current version of each alias.
The earlier versions are in the journal.

*Pointers*: the content of a name's pointer file, computed from database rows: versions, aliases, versions without
privacy, and the number of the signed pointer. Pointers of a few names are read by queries for these names. For more
names, all rows are read once.

*Comparison* of ledger and registry: of names, at each opening; of all manifests, on request; or incrementally. An
incremental check reads everything new, and a part of what earlier checks have read. The result of a check is stored in
the key folder. So an attacker who can write to the database or the registry, but not to the key folder, cannot forge
the result. A check that finds a fault stores nothing, so the next check finds the fault too.

Examples
--------
::

    with reading(engine) as connection:
        for move in alias_history(connection, "news"):
            print(move.time, move.actor, move.alias, move.before, "->", move.version, move.why)
        pointer = read_pointer(connection, "news")
        assert pointer.aliases["champion"] in pointer.versions
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import batched, chain
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpca.artifacts.files import read_manifest
from dpca.backends.atomic_files import make_folder, write_atomically, writing
from dpca.backends.base import Place
from dpca.errors import Corrupt, NotFound, Refused
from dpca.registry.pointers import Pointer, read_names, read_tags
from dpca_tasks.accounting.events import is_private
from storage.database import tables
from storage.database.engine import raw_rows, reading
from storage.ledger.checks import CheckedChanges, Compared
from storage.ledger.journal import Key, check_rows
from storage.ledger.ledger import Ledger
from storage.registry.signing import signed_tags


def others_of(connection: sa.Connection) -> set[str]:
    """Return the names that another ledger publishes, as the operator stated when accepting a restored ledger."""
    table = tables.event
    accepted = sa.select(table.c.detail).where(table.c.name == "ledger_accepted")
    return {name for detail in connection.execute(accepted).scalars() for name in json.loads(detail).get("others", ())}


def owners_of(connection: sa.Connection, name: str) -> frozenset[str | None]:
    """Return the populations whose releases are published under a name; None stands for a joint release of sites."""
    table, release = tables.published, tables.release
    rows = sa.select(release.c.population).select_from(table.outerjoin(release, table.c.origin == release.c.id))
    return frozenset(connection.execute(rows.where(table.c.name == name)).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMove:
    """A move of an alias from one version of a name to another.

    Attributes
    ----------
    time : str, ISO 8601 in UTC
    name, alias : str
    before : int or None, the version to which the alias pointed before; None if the alias was new
    version : int, the version to which the alias was moved
    actor : str, the operating-system user who moved the alias
    why : mapping, public facts that caused an automatic move, such as a measured quality; empty if a person moved the
        alias
    """

    time: str
    name: str
    alias: str
    before: int | None
    version: int
    actor: str
    why: Mapping[str, Any] = field(default_factory=dict)


def alias_history(
    connection: sa.Connection, name: str | None = None, *, newest: int | None = None
) -> tuple[AliasMove, ...]:
    """Return the alias moves of one name or of all names, oldest first, or only the ``newest`` moves."""
    table = tables.event
    columns = (table.c.at, table.c.actor, table.c.detail)
    # the condition on the population lets the database use its index
    moved = (table.c.name == "alias_moved") & table.c.population.is_(None)
    query = sa.select(*columns).where(moved).order_by(table.c.seq.desc()).limit(newest)
    if name is not None:  # journal details are JSON text, in which a published name needs no escaping
        query = query.where(table.c.detail.contains(f'"name": "{name}"', autoescape=True))
    moves = ((row, json.loads(row.detail)) for row in reversed(connection.execute(query).all()))
    return tuple(
        AliasMove(
            time=row.at,
            name=reported["name"],
            alias=reported["alias"],
            before=reported["from"],
            version=reported["to"],
            actor=row.actor,
            why=reported.get("why", {}),
        )
        for row, reported in moves
        if name is None or reported["name"] == name
    )


FEW = 100
"""Largest number of names in one query; for more names, all rows are read."""
# the JSON of an event contains this text if and only if the event has no privacy
_NON_PRIVATE = '"name": "non_private"'
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
_VISIBLE = (
    (tables.version, "version_published"),
    (tables.joint_version, "joint_version_published"),
    (tables.alias, "alias_moved"),
)
"""The tables from which pointers are computed, each with the name of the journal entry about its rows."""


def read_pointer(connection: sa.Connection, name: str) -> Pointer:
    """Return the pointer (versions and aliases) of one name, which is empty if the name has no version.

    Raises the errors of `check_names`.
    """
    return next(iter(read_pointers(connection, [name])), Pointer(name=name, versions={}, aliases={}))


def read_pointers(connection: sa.Connection, names: Collection[str] | None) -> list[Pointer]:
    """Return the pointers (versions and aliases) of some names, or of all names that have a version.

    Raises the errors of `check_names`.
    """
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
    """Check that the version and alias rows of some names, or of all names, agree with the journal.

    Raises
    ------
    Corrupt
        When a row was edited or inserted by hand, or an alias was removed.
    """
    few = None if names is None or len(names) > FEW else list(names)
    for table, entry in _VISIBLE:
        named = sa.true() if few is None else table.c.name.in_(few)
        rows = connection.execute(sa.select(table).where(named)).all()
        reported: sa.ColumnElement[bool] = _ENTRY.name == entry
        if table is tables.version:
            reported &= _ENTRY.release_id.in_(sa.select(table.c.release_id).where(named))
        elif few is not None:  # journal details are JSON text, in which a published name needs no escaping
            reported &= sa.or_(
                sa.false(), *(_ENTRY.detail.contains(f'"name": "{name}"', autoescape=True) for name in few)
            )
        check_rows(connection, table.name, rows, reported, every=table is tables.alias, first=few)


def read_numbers(connection: sa.Connection, names: Collection[str] | None) -> dict[str, int]:
    """Return, for some or all names, the number of the signed pointer that this ledger last wrote."""
    if names is not None and len(names) <= FEW:
        rows = connection.execute(_FEW_NUMBERS, {"names": list(names)})
    else:
        rows = connection.execute(_NUMBERS)
    return {row.name: row.number for row in rows}


_AT_ONCE = 500  # number of keys in one query
_JOINT = tables.joint_version.c
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
    """Check, with one listing of the registry, that this ledger published every name in it.

    The database is read after the listing, because the row of a name is written before its file.

    Raises
    ------
    Refused
        When the registry has a name without a row, and no operator stated that another ledger publishes it.
    """
    shown = set(read_names(place))
    with reading(engine) as connection:
        _refuse_unknown(connection, place, shown - _published_names(connection))


def stale_names(engine: sa.Engine, place: Place) -> set[str]:
    """Return the names whose plain or signed pointer file must be rewritten, found by listing these files.

    A file must be rewritten if it is missing, if it was not written since its rows changed, or if it changed since it
    was last written.

    Raises
    ------
    Refused
        When the registry has a name without a row, and no operator stated that another ledger publishes it.
    """
    shown = read_tags(place)
    with reading(engine) as connection:
        stale = _changed(connection, place, shown)
        _refuse_unknown(connection, place, shown.keys() - _published_names(connection))
    return stale


def damaged_names(engine: sa.Engine, place: Place) -> set[str]:
    """Return the names whose pointer file (list of versions and aliases) is damaged or missing.

    Only files that changed since they were last written are read. A name is left out if its rows were just committed
    and its file is not yet written.
    """
    shown = read_tags(place)
    with reading(engine) as connection:
        written = {row.name for row in connection.execute(_TAGS)}
        changed = _changed(connection, place, shown) & written
    return {name for name in changed if not _is_sound(place, name)}


def _changed(connection: sa.Connection, place: Place, shown: Mapping[str, str | None]) -> set[str]:
    """Return the names whose pointer files changed since they were last written, or were not written yet.

    ``shown`` contains the tags of the plain pointer files.
    """
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
    """Return the names that have a version, with one index lookup per name instead of reading all versions."""
    return set(connection.execute(_EVERY_NAME).scalars())


def _refuse_unknown(connection: sa.Connection, place: Place, unknown: set[str]) -> None:
    if unknown and (unknown := unknown - others_of(connection)):
        shown = ", ".join(sorted(unknown)[:3]) + (", ..." if len(unknown) > 3 else "")
        raise Refused(
            f"{place.at('registry')} shows {shown}, which this ledger did not publish: its database was restored or "
            "replaced, or another ledger publishes there; restore the newest copy of the database, give this ledger "
            "a separate store, or accept the database with `dpca budget accept-restored`."
        )


def compare_artifacts(
    connection: sa.Connection, place: Place, versions: Mapping[str, Collection[Key]] | None = None
) -> int:
    """Compare the manifest of every published version with its release; return the number of compared versions.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    place : Place
    versions : mapping of table to collection of key, optional
        The keys (name, version) to compare, for each of the tables ``version`` and ``joint_version``; by default all
        versions.

    Raises
    ------
    Corrupt
        When a manifest is missing, or states another release, event or epsilon than the ledger.
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
    reported = privacy if isinstance(privacy, dict) else {}
    declared = (manifest.get("release"), reported.get("event"), reported.get("epsilon"))
    if declared != (release, event, epsilon if is_private(event) else None):
        raise Corrupt(
            f"the artifact of {name}@{version} states another release, event or epsilon than the ledger; restore the "
            "registry and the database of the same ledger."
        )


def _check_joint_release(row: tuple[Any, ...], manifest: Mapping[str, Any]) -> None:
    name, version, _, joint, sites = row
    plan = manifest.get("plan")
    if (manifest.get("release"), plan.get("sites") if isinstance(plan, dict) else None) != (joint, json.loads(sites)):
        raise Corrupt(
            f"the artifact of {name}@{version} states another joint release or other sites than the ledger; restore "
            "the registry and the database of the same ledger."
        )


NOTE = "checked-changes.json"


class IncrementalCheck:
    """An incremental check of a home's ledger and registry, or a complete check on request.

    Parameters
    ----------
    ledger : Ledger
    place : Place, the store of the registry
    keys : Path, the key folder
    everything : bool, whether to check everything, whatever earlier checks have found intact
    """

    def __init__(self, ledger: Ledger, place: Place, *, keys: Path, everything: bool) -> None:
        self._ledger, self._place, self._note = ledger, place, keys / NOTE
        self._before = None if everything else self._read()
        self._found: CheckedChanges | None = None

    def ledger(self) -> CheckedChanges:
        """Check that the database rows of the ledger agree with the journal.

        Raises
        ------
        Corrupt, Refused
            When the ledger is damaged, or entries are missing; see `storage.ledger.ledger.Ledger.check_changes`.
        """
        self._found = self._ledger.check_changes(self._before)
        return self._found

    def registry(self) -> int:
        """Compare versions' manifests with database rows, store the check's result, and return the number of versions.

        Raises
        ------
        Corrupt
            When a manifest is missing, or states another release, event or epsilon than the ledger.
        """
        with self._ledger.reading() as connection:
            count = compare_artifacts(connection, self._place, None if self._found is None else self._found.versions)
        if self._found is not None and self._found.known != self._before:
            self._write(self._found.known)
        return count

    def _read(self) -> Compared | None:
        """Read the result of the last check; return None unless this version of dpca wrote it for this ledger."""
        try:
            found = json.loads(self._note.read_bytes())
            if found.pop("writer") != self._writer():
                return None
            return _decoded(found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def _write(self, known: Compared) -> None:
        aliases = [[*key, meant] for key, meant in known.aliases.items()]
        facts = asdict(known) | {"open": sorted(known.open), "aliases": aliases}
        with writing(self._note.parent):
            make_folder(self._note.parent)
            write_atomically(self._note, json.dumps({"writer": self._writer(), **facts}).encode())

    def _writer(self) -> str:
        return f"{self._ledger.id} {version('dpca-pipeline')}"


def _decoded(found: Mapping[str, Any]) -> Compared:
    totals = {population: (count, tuple(charge)) for population, (count, charge) in found["totals"].items()}
    aliases = {(name, alias): meant for name, alias, meant in found["aliases"]}
    return Compared(**{**found, "open": frozenset(found["open"]), "aliases": aliases, "totals": totals})
