"""Independent verification of an exported audit trail: what a trail proves, and the edits that are detected.

Every part of a trail is dropped, changed, duplicated, reordered, or taken from another ledger.
"""

import copy
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.errors import Corrupt, Refused
from dpca.home import state_folder
from dpca_tasks.accounting.events import gaussian, stream_tick
from dpca_tasks.accounting.factorisation import choose_weights, extension_event
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.accounting.prices import Charge, add
from storage.database import tables
from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import KEY_FILE
from storage.ledger.witness import decode, encode
from storage.trail import checkpoints as entries
from storage.trail.checkpoints import JournalRoots, hash_entry, tree_root, tree_roots
from storage.trail.verification import _replayed, _tick_charge, verify_trail
from storage.workspace import Workspace
from tests.forger import forgeries
from tests.storage import releasing
from tests.storage.releasing import POPULATION, calibrated, open_budget
from tests.storage.trail.forging import (
    EDITS,
    GAUSSIAN,
    PURE,
    Trail,
    append,
    exported,
    find_entry,
    signed_anew,
    spend,
    two_populations,
)


@pytest.fixture
def workspace(home: Path) -> Workspace:
    return two_populations()


@pytest.fixture(scope="module")
def trail(tmp_path_factory: pytest.TempPathFactory) -> Trail:
    """Return one exported trail for all edits; each test edits a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(tmp_path_factory.mktemp("trail") / "home"))
        return exported(two_populations())


def test_spent_agrees_with_the_ledger_to_the_last_digit(workspace: Workspace) -> None:
    for population in ("patients", "others"):
        found, statement = verify_trail(exported(workspace, population)), workspace.ledger.statement(population)
        assert (found["spent"], found["remaining"]) == (statement.spent, statement.remaining)
        assert found["entries"] == workspace.ledger.verify()
    assert verify_trail(exported(workspace))["releases"] == {"abandoned": 1, "noising": 3}


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_spent_agrees_under_every_filter_and_relation_and_after_a_restore(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filter_: str, relation: str
) -> None:
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    workspace = Workspace.open()
    workspace.ledger.open_budget("patients", epsilon=4.0, delta=1e-6, filter=filter_, relation=relation)
    spend(workspace.ledger, "patients", PURE, 0)
    shutil.copy(home / "dpca.sqlite", tmp_path / "copy")
    for number, event in enumerate((GAUSSIAN, {"name": "self_composed", "event": GAUSSIAN, "count": 2}), start=1):
        spend(workspace.ledger, "patients", event, number)
    spent = workspace.ledger.statement("patients").spent
    assert verify_trail(exported(workspace))["spent"] == spent > 0.5
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    shutil.copy(tmp_path / "copy", home / "dpca.sqlite")
    restored = Workspace.open(accept_restored="the disk died")
    spend(restored.ledger, "patients", calibrated(0.1), 3)
    found, statement = verify_trail(exported(restored)), restored.ledger.statement("patients")
    assert (found["spent"], found["remaining"], found["restored"]) == (statement.spent, statement.remaining, 1)
    assert found["spent"] > spent


def _root(hashes: list[str]) -> bytes:
    """Return the root of a Merkle tree by its definition (RFC 9162, section 2.1)."""
    if len(hashes) < 2:
        return hashlib.sha256(b"\0" + bytes.fromhex(hashes[0]) if hashes else b"").digest()
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _root(hashes[:split]) + _root(hashes[split:])).digest()


def test_roots_over_all_beginnings_are_those_of_the_definition() -> None:
    hashes = [hashlib.sha256(bytes([leaf])).hexdigest() for leaf in range(70)]
    assert tree_roots(hashes, range(100)) == {count: _root(hashes[:count]).hex() for count in range(71)}
    assert tree_root(hashes[:37]) == _root(hashes[:37]).hex()


def test_checkpoints_are_compared_in_one_pass_over_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[bytes] = []
    digest = vars(entries)["_digest"]

    def counted(payload: bytes) -> Any:
        digests.append(payload)
        return digest(payload)

    monkeypatch.setattr(entries, "_digest", counted)
    hashes = [hashlib.sha256(bytes([leaf % 256])).hexdigest() for leaf in range(4096)]
    numbers = list(range(1, 4097, 2))
    for checkpoints in (1, 64):
        digests.clear()
        lengths = [4096 * (at + 1) // checkpoints for at in range(checkpoints)]
        JournalRoots.of(hashes, {"patients": numbers}, lengths=lengths)
        assert len(digests) < 2 * (4096 + 2048) + 2 * 12 * checkpoints


def test_a_later_export_continues_an_earlier_one_and_holds_its_checkpoint(workspace: Workspace) -> None:
    first = exported(workspace)
    spend(workspace.ledger, "others", GAUSSIAN, 9)
    workspace.ledger.open_budget("third", epsilon=1.0, delta=1e-6)
    second = exported(workspace)
    found = verify_trail(second, earlier=first, key=first["checkpoints"][0]["key"])
    assert (found["checkpoints"], found["pinned"]) == (2, True)
    assert verify_trail(exported(workspace, "third"))["checkpoints"] == 2
    with pytest.raises(Corrupt, match="does not continue the earlier export"):
        verify_trail(first, earlier=second)
    with pytest.raises(Corrupt, match="is signed by"):
        verify_trail(second, key="00" * 32)


def test_a_trail_contains_only_hashes_of_other_populations(workspace: Workspace) -> None:
    trail = exported(workspace)
    assert "others" not in json.dumps(trail)
    assert {entry["population"] for entry in trail["entries"]} <= {"patients", None}


def test_ticks_of_a_stream_are_paid_for_by_its_charge(home: Path) -> None:
    ledger = Workspace.open().ledger
    open_budget(ledger)
    releasing.register(ledger)
    releasing.open_stream(ledger, ticks=3)
    for night in (1, 2):
        releasing.publish_tick(ledger, f"night {night}")
    trail = exported(Workspace.open(), POPULATION)
    found = verify_trail(trail)
    assert found["spent"] == ledger.statement(POPULATION).spent
    assert found["releases"] == {"committed": 2, "noising": 1}
    assert not any("arrivals" in entry["name"] or "snapshot" in entry["name"] for entry in trail["entries"])
    replay = _replayed(trail["entries"])
    tick = json.loads(find_entry(trail, "tick_begun")["detail"])
    detail: Trail = {"charge": [0, 0, 0, 0], "delta": 1e-6, "event": {**stream_tick(tick["stream"], 3, 1e6)}}
    assert not any(_tick_charge(replay, "x", detail))
    forged: tuple[Trail, ...] = ({"tick": 4}, {"tick": 2}, {"noise_multiplier": 0.1}, {"stream": "y"})
    for event in forged:
        replay = _replayed(trail["entries"])
        with pytest.raises((ValueError, LookupError)):
            _tick_charge(replay, "x", {**detail, "event": detail["event"] | event})


def _paid_in_parts(*, more_noise: float = 1.0) -> Ledger:
    """Publish two ticks of a stream that is charged per tick; return the ledger.

    The second event has ``more_noise`` times its noise.
    """
    ledger, weights = Workspace.open().ledger, choose_weights("sqrt", ticks=3)
    open_budget(ledger)
    releasing.register(ledger)
    of = {"horizon": 3, "noise_multiplier": releasing.TERMS["noise_multiplier"]}
    first, second = (extension_event(weights, charged=at, to=at + 1, **of) for at in (0, 1))
    second = gaussian(second["noise_multiplier"] * more_noise)
    terms = {**releasing.TERMS, "weights": weights.to_json(), "horizon": 3}
    of_all: dict[str, Any] = {"name": "nightly", "epsilon": 0.1, "delta": 1e-6, "terms": terms}
    stream = ledger.streams.open(POPULATION, ticks=1, event=first, **of_all)
    releasing.publish_tick(ledger, "night 1", fingerprint=stream.fingerprint)
    ledger.streams.extend("nightly", ticks=2, event=second, epsilon=0.1, after=1)
    releasing.publish_tick(ledger, "night 2", fingerprint=stream.fingerprint)
    return ledger


def test_instalments_of_a_stream_cover_its_ticks(home: Path) -> None:
    ledger = _paid_in_parts()
    found = verify_trail(exported(Workspace.open(), POPULATION))
    assert found["releases"] == {"committed": 2, "noising": 2}
    assert found["spent"] == ledger.statement(POPULATION).spent


def test_an_undercharged_instalment_is_detected(home: Path) -> None:
    _paid_in_parts(more_noise=1.0 + 1e-9)
    with pytest.raises(Corrupt, match="does not have the facts that its name requires"):
        verify_trail(exported(Workspace.open(), POPULATION))


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_export_is_refused_in_one_line(trail: Trail, edit: str) -> None:
    edited = copy.deepcopy(trail)
    EDITS[edit](edited)
    assert edited != trail
    with pytest.raises(Corrupt) as refused:
        verify_trail(edited)
    assert "\n" not in str(refused.value)


def _detail_of(trail: Trail, name: str) -> Trail:
    detail: Trail = json.loads(find_entry(trail, name)["detail"])
    return detail


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("budget_opened", None),  # a second one would reset the spending to zero
        ("release_abandoned", "release_begun"),
        ("release_begun", "release_abandoned"),  # the release would no longer be charged
        ("release_committed", "release_abandoned"),
        ("release_reserved", "release_begun"),
    ],
)
def test_appended_signed_entries_cannot_reduce_spending(trail: Trail, name: str, about: str | None) -> None:
    assert verify_trail(signed_anew(copy.deepcopy(trail)))["spent"] == verify_trail(trail)["spent"]
    longer = copy.deepcopy(trail)
    release = None if about is None else find_entry(longer, about)["release_id"]
    append(longer, name, _detail_of(longer, name) if name != "release_committed" else {}, release=release)
    with pytest.raises(Corrupt, match=r"opens a budget that is already open|does not have the facts"):
        verify_trail(signed_anew(longer))


def test_an_acceptance_that_begins_an_abandoned_release_is_refused(trail: Trail) -> None:
    longer = copy.deepcopy(trail)
    given_up = find_entry(longer, "release_abandoned")["release_id"]
    append(longer, "ledger_accepted", {"reason": "lost", "begun": [given_up]})
    with pytest.raises(Corrupt, match="does not have the facts"):
        verify_trail(signed_anew(longer))


@pytest.mark.parametrize("detail", ["[" * 200_000, "null", "3", '{"epsilon": 1180591620717411303424}'], ids=str.__len__)
def test_a_signed_entry_without_facts_is_refused_in_one_line(trail: Trail, detail: str) -> None:
    edited = copy.deepcopy(trail)
    opened = find_entry(edited, "budget_opened")
    opened["detail"] = json.dumps(json.loads(opened["detail"]) | json.loads(detail)) if "{" in detail else detail
    with pytest.raises(Corrupt, match="does not have the facts"):
        verify_trail(signed_anew(edited))


@pytest.mark.parametrize("field", ["hashes", "entries"])
@pytest.mark.parametrize("junk", [None, 3, True, 1.5, {}, "x"], ids=str)
def test_a_trail_without_lists_is_refused(trail: Trail, field: str, junk: object) -> None:
    with pytest.raises(Corrupt, match=r"not an audit trail|checkpoint"):
        verify_trail({**trail, field: junk})


@pytest.mark.parametrize("junk", [True, 1.0, "1", 2, None], ids=str)
def test_a_trail_of_another_version_is_refused(trail: Trail, junk: object) -> None:
    with pytest.raises(Corrupt, match="not an audit trail of version 1"):
        verify_trail({**trail, "version": junk})


@pytest.mark.parametrize("junk", [None, 3, [], {}, {"format": "dpca-audit-trail", "version": 1}, "x"], ids=str)
def test_a_file_that_is_not_a_trail_is_refused(junk: object) -> None:
    with pytest.raises(Corrupt, match=r"not an audit trail|lacks"):
        verify_trail(junk)


def rewritten(workspace: Workspace) -> None:
    """Double a release's noise multiplier, recompute the whole chain, and update both witnesses."""
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
    separate = state_folder() / workspace.ledger.id
    witnesses = [*workspace.home.rglob("witness.json"), *separate.rglob("witness.json")]
    assert len(witnesses) == 2
    for path in witnesses:
        path.write_bytes(encode(replace(decode(path.read_bytes()), hash=before)))


def test_a_ledger_rewritten_with_its_witnesses_cannot_sign(workspace: Workspace) -> None:
    earlier = exported(workspace)
    rewritten(workspace)
    # a process that is already running remembers the newest entry
    with pytest.raises(Refused, match="lacks the committed entry"):
        exported(workspace)
    workspace = Workspace.open()
    with pytest.raises(Refused, match="was restored or rewritten"):
        exported(workspace)
    for stored in workspace.home.glob("trail/*/*.json"):  # the stored exports are also lost
        stored.unlink()
    with pytest.raises(Corrupt, match=r"does not continue the earlier export|not charged the price of its event"):
        verify_trail(exported(workspace), earlier=earlier)


def test_a_trail_signed_by_another_key_is_refused(workspace: Workspace) -> None:
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


def _reserved(trail: Trail, event: Mapping[str, Any], charge: Charge, release: str) -> None:
    detail = json.loads(find_entry(trail, "release_reserved")["detail"]) | {"event": event, "charge": list(charge)}
    append(trail, "release_reserved", detail, release=release)


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
@pytest.mark.parametrize("event", [calibrated(1.0), PURE], ids=["gaussian", "pure"])
def test_a_trail_with_a_release_over_budget_is_refused_despite_valid_signatures(
    home: Path, filter_: str, event: dict[str, Any]
) -> None:
    """Add correctly priced, hashed and signed releases: they verify only while the budget admits them."""
    workspace = Workspace.open()
    workspace.ledger.open_budget("patients", epsilon=1.0, delta=1e-6, filter=filter_)
    spend(workspace.ledger, "patients", calibrated(0.05), 0)
    trail = exported(workspace)
    rules = build_filter(filter_, epsilon=1.0, delta=1e-6, failure_delta=verify_trail(trail)["failure_delta"])
    total = tuple(json.loads(find_entry(trail, "release_reserved")["detail"])["charge"])
    delta = json.loads(find_entry(trail, "release_reserved")["detail"])["delta"]
    verdicts = []
    for number in range(40):
        charge = rules.charge_after(total, event, delta=delta)
        total = add(total, charge)
        _reserved(trail, event, charge, f"{number:032x}")
        verdicts.append(rules.admits(total))
        if not verdicts[-1]:
            break
        assert verify_trail(signed_anew(trail))["spent"] <= 1.0
    assert not verdicts[-1]
    with pytest.raises(Corrupt, match="exceeds the budget"):
        verify_trail(signed_anew(trail))


@pytest.mark.parametrize("count", [1, 3])
def test_entries_after_the_last_checkpoint_are_refused(trail: Trail, count: int) -> None:
    """Append consistent entries after the last checkpoint: verification must refuse them.

    Anyone with write access to the database can append entries; only the ledger's key can sign a checkpoint.
    """
    forged = copy.deepcopy(trail)
    for _ in range(count):
        append(forged, "budget_alert", {})
    hashes = signed_anew(copy.deepcopy(forged))["hashes"]
    signed_anew(forged)
    assert forged["hashes"] == hashes
    assert len(forged["hashes"]) == len(trail["hashes"]) + count
    assert forged["checkpoints"] == trail["checkpoints"]
    with pytest.raises(Corrupt, match="but the last checkpoint covers"):
        verify_trail(forged)


def test_a_release_abandoned_after_the_last_checkpoint_is_refused(workspace: Workspace) -> None:
    release = spend(workspace.ledger, "patients", GAUSSIAN, 9, begin=False)
    forged = exported(workspace)
    append(forged, "release_abandoned", {}, release=release)
    signed_anew(forged)
    with pytest.raises(Corrupt, match="but the last checkpoint covers"):
        verify_trail(forged)


def made(folder: Path) -> Trail:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(folder / "home"))
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "state"))
        return exported(two_populations())


def is_refused(trail: Trail, key: str) -> bool:
    """Return whether a trail is refused in one line."""
    try:
        verify_trail(trail, key=key)
    except Corrupt as refused:
        return "\n" not in str(refused)
    return False


def test_every_forged_part_of_a_trail_is_refused_in_one_line(tmp_path: Path) -> None:
    trail, other = made(tmp_path / "one"), made(tmp_path / "other")
    key = trail["checkpoints"][0]["key"]
    verify_trail(trail, key=key)
    accepted: list[str] = []
    count = 0
    for kind, forged in forgeries(trail, other):
        count += 1
        accepted += [] if is_refused(forged, key) else [kind]
    assert count > 300
    assert accepted == []
