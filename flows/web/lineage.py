"""Where a version came from, and what was made of it or found out about it: from rows and from what it states."""

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from flows.web.listing import VersionRow
from storage.database import tables

_OF_SITE = ("site", "dataset", "population", "release", "epsilon", "delta", "relation")


def lineage_facts(connection: sa.Connection, row: VersionRow, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parents of a version, what is of the same release, its stream, its sites, and who evaluated it.

    Parameters
    ----------
    connection : Connection
    row : VersionRow
    manifest : mapping
        Of its artifact.

    Returns
    -------
    dict
        ``release``, ``code_version``; ``parent`` and ``made_from``, the digest of the artifact that it was made of
        without reading a row, and the versions that have it; ``same_release``; ``stream`` with ``tick``; ``sites``;
        ``evaluates`` and ``evaluated_by``.
    """
    parent, plan = manifest.get("parent"), manifest.get("plan") or {}
    return {
        "release": row.release,
        "code_version": manifest.get("code_version"),
        "parent": parent,
        "made_from": [] if parent is None else _versions(connection, tables.published.c.digest == parent),
        "same_release": [
            other for other in _versions(connection, tables.published.c.origin == row.release) if other != row.reference
        ],
        "stream": _stream(connection, row),
        "sites": _sites(connection, row),
        "evaluates": plan.get("evaluated"),
        "evaluated_by": _estimates(connection, row),
    }


def _versions(connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[str]:
    table = tables.published
    query = sa.select(table.c.name, table.c.version).where(which).order_by(table.c.name, table.c.version)
    return [f"{row.name}@{row.version}" for row in connection.execute(query)]


def _stream(connection: sa.Connection, row: VersionRow) -> dict[str, Any] | None:
    """Return the stream and the tick that a version is of; None where it is of no stream."""
    tick, stream, charge = tables.tick, tables.stream, tables.stream_charge
    charged = sa.select(sa.func.max(charge.c.ticks)).where(charge.c.stream == stream.c.id).scalar_subquery()
    query = (
        sa.select(stream.c.name, tick.c.tick, tick.c.slot, charged.label("ticks"))
        .join(stream, stream.c.id == tick.c.stream)
        .where(tick.c.release_id == row.release)
    )
    found = connection.execute(query).first()
    return None if found is None else dict(found._mapping)


def _sites(connection: sa.Connection, row: VersionRow) -> list[dict[str, Any]]:
    table = tables.joint_version
    here = (table.c.name == row.name) & (table.c.version == row.version)
    told = connection.execute(sa.select(table.c.sites).where(here)).scalar()
    sites = [] if told is None else json.loads(told)
    return [{name: site[name] for name in _OF_SITE if name in site} for site in sites]


def _estimates(connection: sa.Connection, row: VersionRow) -> list[str]:
    """Return the published estimates of how good a version is."""
    release, version = tables.release, tables.version
    query = (
        sa.select(version.c.name, version.c.version, release.c.request)
        .join(release, release.c.id == version.c.release_id)
        .where(release.c.request.contains(f'"artifact": "{row.reference}"', autoescape=True))
        .order_by(version.c.name, version.c.version)
    )
    found = connection.execute(query).all()
    return [f"{each.name}@{each.version}" for each in found if json.loads(each.request)["artifact"] == row.reference]
