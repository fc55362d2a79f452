"""The comparison of the journal with the database rows.

An intact journal does not detect changes of other tables. The journal has an entry for every budget, snapshot, release,
step, stream, tick, version and alias, and for every table of arrivals and its segments; this check replays the entries
and compares the result with the rows.

Examples
--------
::

    with ledger.transaction() as connection:
        compare(connection)
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting import charges
from storage.database import tables
from storage.errors import Corrupt
from storage.ledger.stream_check import check_ticks

_MOVED = {
    "release_begun": "noising",
    "release_committed": "committed",
    "release_abandoned": "abandoned",
    "release_closed": "closed",
}
"""The state of a release after each journal entry."""

_NEXT = "restore the database from a copy, and accept it with `dpca budget accept-restored`."


def compare(connection: sa.Connection) -> None:
    """Compare the rows with the journal, under a lock that lasts until the transaction ends.

    Raises
    ------
    Corrupt
        At the first row that was changed, removed or inserted by hand, and at a tick that no charged stream pays for.
        The message names columns but no values.
    """
    connection.execute(sa.select(tables.ledger.c.id).with_for_update())
    rows, told = dict(_stored_rows(connection)), _replayed(connection)
    for name, facts in told.items():
        row = rows.pop(name, None)
        if row is None:
            raise Corrupt(f"the journal tells of {name}, whose row is gone; {_NEXT}")
        if changed := [column for column, value in facts.items() if row[column] != value]:
            raise Corrupt(f"the row of {name} does not say what the journal says ({', '.join(changed)}); {_NEXT}")
    if rows:
        raise Corrupt(f"the journal knows nothing of {next(iter(rows))}, which has a row; {_NEXT}")
    _check_totals(connection, told.values())
    check_ticks(connection)


def _replayed(connection: sa.Connection) -> dict[str, dict[str, Any]]:
    """Replay the journal; return the recorded columns of each object by its name."""
    told: dict[str, dict[str, Any]] = {}
    for event in connection.execute(sa.select(tables.event).order_by(tables.event.c.seq)):
        detail, release = json.loads(event.detail), f"release {event.release_id}"
        match event.name:
            case "budget_opened":
                if (budget := f"budget {event.population!r}") in told:
                    raise Corrupt(f"the journal opens {budget} twice, and terms never change; {_NEXT}")
                told[budget] = detail
            case "snapshot_registered":
                facts = {"name": detail["dataset"], "population": event.population, "seq": event.seq}
                arrivals = {"number": detail.get("number"), "epoch": detail.get("epoch")}
                told[f"snapshot {detail['snapshot']}"] = facts | arrivals
            case "arrivals_begun":
                facts = {"population": event.population, "lost": False}
                told[f"table of arrivals {detail['epoch']}"] = facts
            case "arrivals_lost":
                told[f"table of arrivals {detail['epoch']}"]["lost"] = True
            case "arrivals_recorded":
                told[f"segment of arrivals {detail.pop('segment')}"] = detail
            case "release_reserved":
                charge = charges.encode(tuple(detail.pop("charge")))
                told[release] = {"population": event.population, "state": "reserved", "artifact_digest": None}
                told[release] |= {"seq": event.seq, "charge": charge, **detail}
            case "stream_opened":
                told[f"stream {event.release_id}"] = {"population": event.population, "seq": event.seq, **detail}
            case "stream_charged":
                charged = {"release_id": event.release_id}
                told[f"charge of stream {detail['stream']} to tick {detail['ticks']}"] = charged
            case "tick_begun":
                facts = {"release_id": event.release_id, **detail}
                told[f"tick {detail['tick']} of stream {detail['stream']}"] = facts
            case "tick_answered":
                told[f"answer of tick {detail['tick']} of stream {detail['stream']}"] = {"digest": detail["digest"]}
            case "step_kept":
                told[f"step {detail['step']} of {release}"] = {"digest": detail["digest"]}
            case "version_published":
                told[f"{detail['name']}@{detail['version']}"] = {
                    "digest": detail["digest"],
                    "release_id": event.release_id,
                }
            case "joint_version_published":
                facts = {"digest": detail["digest"], "joint_id": detail["joint"], "sites": detail["sites"]}
                told[f"{detail['name']}@{detail['version']}"] = facts
            case "alias_moved":
                told[f"{detail['name']}@{detail['alias']}"] = {"version": detail["to"]}
            case "ledger_accepted":
                for release_id in detail["begun"]:
                    told[f"release {release_id}"]["state"] = "noising"
            case moved if moved in _MOVED:
                told[release] |= {"state": _MOVED[moved], "artifact_digest": detail.get("artifact")}
    return told


def _check_totals(connection: sa.Connection, told: Iterable[Mapping[str, Any]]) -> None:
    """Compare the noted total of each population with what the journal says that its releases were charged."""
    charged: dict[str, list[bytes]] = {}
    counted: dict[str, int] = {}
    for facts in told:
        if "charge" in facts:
            counted[facts["population"]] = counted.get(facts["population"], 0) + 1
            if facts["state"] != "abandoned":
                charged.setdefault(facts["population"], []).append(facts["charge"])
    for row in connection.execute(sa.select(tables.charged_total)):
        noted = tuple(json.loads(row.charge))
        stored = charged.get(row.population, [])
        summed = charges.total_of(stored, zero=(0,) * len(noted))
        if (noted, row.releases) != (summed, counted.get(row.population, 0)):
            raise Corrupt(f"the noted total of budget {row.population!r} is not what the journal adds up to; {_NEXT}")


def _stored_rows(connection: sa.Connection) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row with the name that `_replayed` uses for it."""

    def rows(table: sa.Table) -> Iterator[dict[str, Any]]:
        return (row._asdict() for row in connection.execute(sa.select(table)))

    for row in rows(tables.budget):
        yield f"budget {row['population']!r}", row
    for row in rows(tables.snapshot):
        yield f"snapshot {row['id']}", row
    for row in rows(tables.arrival_epoch):
        yield f"table of arrivals {row['id']}", {**row, "lost": row["lost_at"] is not None}
    for row in rows(tables.arrival_segment):
        if row["number"] is not None:  # else it was planned
            yield f"segment of arrivals {row['id']}", row
    for row in rows(tables.release):
        decoded = {name: json.loads(row[name]) for name in ("event", "request")} | {"charge": bytes(row["charge"])}
        yield f"release {row['id']}", {**row, **decoded}
    for row in rows(tables.stream):
        yield f"stream {row['id']}", {**row, "terms": json.loads(row["terms"])}
    for row in rows(tables.stream_charge):
        yield f"charge of stream {row['stream']} to tick {row['ticks']}", row
    for row in rows(tables.tick):
        yield f"tick {row['tick']} of stream {row['stream']}", row
    for row in rows(tables.tick_answer):
        yield f"answer of tick {row['tick']} of stream {row['stream']}", row
    for row in rows(tables.step):
        yield f"step {row['step']} of release {row['release_id']}", row
    for row in rows(tables.version):
        yield f"{row['name']}@{row['version']}", row
    for row in rows(tables.joint_version):
        yield f"{row['name']}@{row['version']}", {**row, "sites": json.loads(row["sites"])}
    for row in rows(tables.alias):
        yield f"{row['name']}@{row['alias']}", row
