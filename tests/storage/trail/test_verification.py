"""An exported audit trail is checked by others: what it proves, and each edit that it does not survive."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca_tasks.accounting.events import gaussian, stream_tick
from dpca_tasks.accounting.factorisation import choose_weights, extension_event
from storage.database import tables
from storage.errors import Corrupt, Refused
from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import KEY_FILE, export_trail
from storage.trail.entries import hash_entry
from storage.trail.verification import _replayed, _tick_charge, verify_trail
from storage.workspace import Workspace
from tests.storage import streaming
from tests.storage.releasing import POPULATION, calibrated, open_budget, reserve

Trail = dict[str, Any]
GAUSSIAN = calibrated(0.5)
PURE = {"name": "approximate", "epsilon": 0.1, "delta": 0.0}


def spend(ledger: Ledger, population: str, event: Mapping[str, Any], number: int, *, begin: bool = True) -> str:
    """Reserve a release, and begin it."""
    release = reserve(ledger, f"{population} {number}", event=event, population=population, delta=1e-7).release_id
    if begin:
        ledger.begin(release)
    return release


def exported(workspace: Workspace, population: str = "patients") -> Trail:
    with workspace.ledger.transaction() as connection:
        trail = export_trail(connection, population, place=workspace.store, keys=workspace.home / "keys")
    read: Trail = json.loads(json.dumps(trail))  # as from a file
    return read


@pytest.fixture
def workspace(home: Path) -> Workspace:
    """A ledger of two populations, whose releases alternate, and one of which is given up."""
    found = Workspace.open()
    for population in ("patients", "others"):
        found.ledger.open_budget(population, epsilon=4.0, delta=1e-6)
    for number in range(3):
        spend(found.ledger, "patients", GAUSSIAN, number)
        spend(found.ledger, "others", PURE, number)
    found.ledger.abandon(spend(found.ledger, "patients", GAUSSIAN, 3, begin=False))
    return found


def test_spent_agrees_with_the_ledger_to_the_last_digit(workspace: Workspace) -> None:
    for population in ("patients", "others"):
        found, statement = verify_trail(exported(workspace, population)), workspace.ledger.statement(population)
        assert (found["spent"], found["remaining"]) == (statement.spent, statement.remaining)
        assert found["entries"] == workspace.ledger.verify()
    assert verify_trail(exported(workspace))["releases"] == {"abandoned": 1, "noising": 3}


def test_a_later_export_continues_an_earlier_one_and_holds_its_checkpoint(workspace: Workspace) -> None:
    first = exported(workspace)
    spend(workspace.ledger, "others", GAUSSIAN, 9)
    workspace.ledger.open_budget("third", epsilon=1.0, delta=1e-6)
    second = exported(workspace)
    found = verify_trail(second, earlier=first, key=first["checkpoints"][0]["key"])
    assert (found["checkpoints"], found["pinned"]) == (2, True)
    assert verify_trail(exported(workspace, "third"))["checkpoints"] == 2
    with pytest.raises(Corrupt, match="does not continue the earlier one"):
        verify_trail(first, earlier=second)
    with pytest.raises(Corrupt, match="is signed by"):
        verify_trail(second, key="00" * 32)


def test_it_tells_nothing_of_another_population_but_hashes(workspace: Workspace) -> None:
    trail = exported(workspace)
    assert "others" not in json.dumps(trail)
    assert {entry["population"] for entry in trail["entries"]} <= {"patients", None}


def test_ticks_of_a_stream_are_paid_for_by_its_charge(home: Path) -> None:
    ledger = Workspace.open().ledger
    open_budget(ledger)
    streaming.register(ledger)
    streaming.open_stream(ledger, ticks=3)
    for night in (1, 2):
        streaming.publish_tick(ledger, f"night {night}")
    trail = exported(Workspace.open(), POPULATION)
    found = verify_trail(trail)
    assert found["spent"] == ledger.statement(POPULATION).spent
    assert found["releases"] == {"committed": 2, "noising": 1}
    assert not any("arrivals" in entry["name"] or "snapshot" in entry["name"] for entry in trail["entries"])
    replay = _replayed(trail["entries"])
    tick = json.loads(_entry(trail, "tick_begun")["detail"])
    detail: Trail = {"charge": [0, 0, 0, 0], "delta": 1e-6, "event": {**stream_tick(tick["stream"], 3, 1e6)}}
    assert not any(_tick_charge(replay, "x", detail))
    forged: tuple[Trail, ...] = ({"tick": 4}, {"tick": 2}, {"noise_multiplier": 0.1}, {"stream": "y"})
    for event in forged:
        replay = _replayed(trail["entries"])
        with pytest.raises((ValueError, LookupError)):
            _tick_charge(replay, "x", {**detail, "event": detail["event"] | event})


def _paid_in_parts(*, more_noise: float = 1.0) -> Ledger:
    """Publish two ticks of a stream that is paid tick by tick, the second as if it had so many times its noise."""
    ledger, weights = Workspace.open().ledger, choose_weights("sqrt", ticks=3)
    open_budget(ledger)
    streaming.register(ledger)
    of = {"horizon": 3, "noise_multiplier": streaming.TERMS["noise_multiplier"]}
    first, second = (extension_event(weights, charged=at, to=at + 1, **of) for at in (0, 1))
    second = gaussian(second["noise_multiplier"] * more_noise)
    terms = {**streaming.TERMS, "weights": weights.to_json(), "horizon": 3}
    of_all: dict[str, Any] = {"name": "nightly", "epsilon": 0.1, "delta": 1e-6, "terms": terms}
    stream = ledger.streams.open(POPULATION, ticks=1, event=first, **of_all)
    streaming.publish_tick(ledger, "night 1", fingerprint=stream.fingerprint)
    ledger.streams.extend("nightly", ticks=2, event=second, epsilon=0.1, after=1)
    streaming.publish_tick(ledger, "night 2", fingerprint=stream.fingerprint)
    return ledger


def test_instalments_of_a_stream_cover_its_ticks(home: Path) -> None:
    ledger = _paid_in_parts()
    found = verify_trail(exported(Workspace.open(), POPULATION))
    assert found["releases"] == {"committed": 2, "noising": 2}
    assert found["spent"] == ledger.statement(POPULATION).spent


def test_an_instalment_that_costs_too_little_is_found(home: Path) -> None:
    _paid_in_parts(more_noise=1.0 + 1e-9)
    with pytest.raises(Corrupt, match="does not say what an entry of its name says"):
        verify_trail(exported(Workspace.open(), POPULATION))


def _entry(trail: Trail, name: str) -> dict[str, Any]:
    return next(entry for entry in trail["entries"] if entry["name"] == name)


def _edit_detail(name: str, field: str, value: object) -> Callable[[Trail], None]:
    def edit(trail: Trail) -> None:
        entry = _entry(trail, name)
        entry["detail"] = json.dumps(json.loads(entry["detail"]) | {field: value}, sort_keys=True)

    return edit


def _drop(trail: Trail) -> None:
    trail["entries"].remove(_entry(trail, "release_reserved"))


def _drop_quietly(trail: Trail) -> None:
    """Drop a release, with every hash made anew."""
    release = _entry(trail, "release_reserved")["release_id"]
    trail["entries"] = [entry for entry in trail["entries"] if entry["release_id"] != release]


def _reorder(trail: Trail) -> None:
    entries = trail["entries"]
    entries[2], entries[3] = entries[3], entries[2]


def _renumber(trail: Trail) -> None:
    entries = trail["entries"]
    entries[2]["seq"], entries[3]["seq"] = entries[3]["seq"], entries[2]["seq"]
    _reorder(trail)


def _rehash(trail: Trail) -> None:
    """Halve a charge, and make the chain and the hashes anew, as somebody who may write the database can."""
    entry = _entry(trail, "release_reserved")
    detail = json.loads(entry["detail"])
    detail["charge"] = [number // 2 for number in detail["charge"]]
    entry["detail"] = json.dumps(detail, sort_keys=True)
    trail["hashes"][entry["seq"] - 1] = hash_entry(entry)


def _abandon(trail: Trail) -> None:
    """Claim that a release never began."""
    begun = _entry(trail, "release_begun")
    begun["name"] = "release_abandoned"


def _splice(trail: Trail) -> None:
    trail["hashes"].insert(3, "ab" * 32)


def _resign(trail: Trail) -> None:
    trail["checkpoints"][-1]["root"] = "00" * 32


def _truncate(trail: Trail) -> None:
    trail["hashes"].pop()
    trail["entries"] = [entry for entry in trail["entries"] if entry["seq"] <= len(trail["hashes"])]


def _forge_signature(trail: Trail) -> None:
    signature = trail["checkpoints"][-1]["signature"]
    trail["checkpoints"][-1]["signature"] = ("0" if signature[0] != "0" else "1") + signature[1:]


def _drop_checkpoint(trail: Trail) -> None:
    trail["checkpoints"] = []


EDITS: dict[str, Callable[[Trail], None]] = {
    "budget raised": _edit_detail("budget_opened", "epsilon", 40.0),
    "charge lowered": _edit_detail("release_reserved", "charge", [0, 0, 1, 0]),
    "noise raised": _edit_detail("release_reserved", "event", {"name": "gaussian", "noise_multiplier": 99.0}),
    "entry dropped": _drop,
    "release dropped": _drop_quietly,
    "entries exchanged": _reorder,
    "entries renumbered": _renumber,
    "charge lowered and hashed again": _rehash,
    "release said to be abandoned": _abandon,
    "hash inserted": _splice,
    "root replaced": _resign,
    "tail cut off": _truncate,
    "signature forged": _forge_signature,
    "checkpoint dropped": _drop_checkpoint,
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_export_is_refused_in_one_line(workspace: Workspace, edit: str) -> None:
    trail = exported(workspace)
    edited = copy.deepcopy(trail)
    EDITS[edit](edited)
    assert edited != trail
    with pytest.raises(Corrupt) as refused:
        verify_trail(edited)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("junk", [None, 3, [], {}, {"format": "dpca-audit-trail", "version": 1}, "x"], ids=str)
def test_what_is_no_trail_is_refused(junk: object) -> None:
    with pytest.raises(Corrupt, match=r"no audit trail|lacks"):
        verify_trail(junk)


def rewritten(workspace: Workspace) -> None:
    """Rewrite a release to have cost half, the whole chain after it, and both witnesses."""
    engine = workspace.ledger.engine
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            for trigger in connection.execute(
                sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
            ).scalars():
                connection.execute(sa.text(f'DROP TRIGGER "{trigger}"'))
        rows = [
            dict(row) for row in connection.execute(sa.select(tables.event).order_by(tables.event.c.seq)).mappings()
        ]
        victim = next(row for row in rows if row["name"] == "release_reserved")
        detail = json.loads(victim["detail"])
        detail["event"]["noise_multiplier"] *= 2
        victim["detail"] = json.dumps(detail, sort_keys=True)
        before = "0" * 64
        for row in rows:
            row["prev_hash"] = before
            row["hash"] = before = hash_entry(row)
            connection.execute(tables.event.update().where(tables.event.c.seq == row["seq"]).values(**row))
    for path in workspace.home.parent.rglob("witness.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"hash": before}))


def test_a_ledger_rewritten_with_its_witnesses_signs_nothing_more(workspace: Workspace) -> None:
    earlier = exported(workspace)
    rewritten(workspace)
    with pytest.raises(Refused, match="was restored or rewritten"):
        exported(workspace)
    for stored in workspace.home.glob("trail/*/*.json"):  # not even these stayed
        stored.unlink()
    with pytest.raises(Corrupt, match=r"does not continue the earlier one|charged otherwise"):
        verify_trail(exported(workspace), earlier=earlier)


def test_another_key_does_not_pass_for_the_published_one(workspace: Workspace) -> None:
    published = exported(workspace)["checkpoints"][0]["key"]
    (workspace.home / "keys" / KEY_FILE).unlink()
    with pytest.raises(Corrupt, match=f"not by {published}"):
        verify_trail(exported(workspace), key=published)


def test_the_check_needs_no_database_and_nothing_of_the_ledger(workspace: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "trail.json"
    file.write_text(json.dumps(exported(workspace)))
    script = (
        "import sys, pathlib\nfrom storage.trail.verification import read_trail, verify_trail\n"
        f"print(verify_trail(read_trail(pathlib.Path({str(file)!r})))['spent'])\n"
        "unwanted = ('sqlalchemy', 'storage.ledger', 'zarr', 'prefect')\n"
        "assert not [name for name in sys.modules if name.startswith(unwanted)]"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(ended.stdout) == workspace.ledger.statement("patients").spent
