"""Exported audit trail of a ledger with two populations, and ways to forge it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import export_trail
from storage.trail.checkpoints import LEDGER, START, Subjects, hash_entry, sign_checkpoint
from storage.workspace import Workspace
from tests.storage.releasing import calibrated, reserve

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
    """Return the audit trail of a population, parsed as it would be from a file."""
    with workspace.ledger.transaction() as connection:
        trail = export_trail(connection, population, place=workspace.store, keys=workspace.home / "keys")
    read: Trail = json.loads(json.dumps(trail))
    return read


def two_populations() -> Workspace:
    """Return a workspace whose ledger has two populations with alternating releases, one of which is abandoned."""
    found = Workspace.open()
    for population in ("patients", "others"):
        found.ledger.open_budget(population, epsilon=4.0, delta=1e-6)
    for number in range(3):
        spend(found.ledger, "patients", GAUSSIAN, number)
        spend(found.ledger, "others", PURE, number)
    found.ledger.abandon(spend(found.ledger, "patients", GAUSSIAN, 3, begin=False))
    return found


def find_entry(trail: Trail, name: str) -> dict[str, Any]:
    return next(entry for entry in trail["entries"] if entry["name"] == name)


def append(trail: Trail, name: str, detail: Mapping[str, Any], *, release: str | None = None) -> None:
    """Append an entry without changing any earlier one, as anyone with write access to the database can."""
    number = len(trail["hashes"]) + 1
    entry = {**trail["entries"][-1], "seq": number, "name": name, "population": "patients", "release_id": release}
    trail["entries"].append({**entry, "detail": json.dumps(detail)})
    trail["hashes"].append("")


def signed_anew(trail: Trail) -> Trail:
    """Recompute the hashes and the chain of the entries, and sign them as the ledger does at its next export."""
    hashes, subjects = trail["hashes"], Subjects()
    own: dict[str, list[str]] = {trail["population"]: [], LEDGER: []}
    for entry in trail["entries"]:
        at = entry["seq"]
        entry["prev_hash"] = hashes[at - 2] if at > 1 else START
        hashes[at - 1] = hash_entry(entry)
        own[str(subjects.of(entry))].append(hashes[at - 1])
    ledger, key = trail["checkpoints"][-1]["ledger"], Ed25519PrivateKey.from_private_bytes(bytes(32))
    signed = sign_checkpoint(key, ledger=ledger, at="2026-01-01", hashes=hashes, populations=own)
    return {**trail, "checkpoints": [json.loads(json.dumps(signed.to_json()))]}


def _edit_detail(name: str, field: str, value: object) -> Callable[[Trail], None]:
    def edit(trail: Trail) -> None:
        entry = find_entry(trail, name)
        entry["detail"] = json.dumps(json.loads(entry["detail"]) | {field: value}, sort_keys=True)

    return edit


def _drop(trail: Trail) -> None:
    trail["entries"].remove(find_entry(trail, "release_reserved"))


def _drop_quietly(trail: Trail) -> None:
    """Drop a release from the trail; the forger recomputes all hashes afterwards."""
    release = find_entry(trail, "release_reserved")["release_id"]
    trail["entries"] = [entry for entry in trail["entries"] if entry["release_id"] != release]


def _reorder(trail: Trail) -> None:
    entries = trail["entries"]
    entries[2], entries[3] = entries[3], entries[2]


def _renumber(trail: Trail) -> None:
    entries = trail["entries"]
    entries[2]["seq"], entries[3]["seq"] = entries[3]["seq"], entries[2]["seq"]
    _reorder(trail)


def _rehash(trail: Trail) -> None:
    """Halve a charge, and recompute the hash of this entry only.

    Anyone with write access to the database can do so.
    """
    entry = find_entry(trail, "release_reserved")
    detail = json.loads(entry["detail"])
    detail["charge"] = [number // 2 for number in detail["charge"]]
    entry["detail"] = json.dumps(detail, sort_keys=True)
    trail["hashes"][entry["seq"] - 1] = hash_entry(entry)


def _abandon(trail: Trail) -> None:
    """Claim that a release never began."""
    begun = find_entry(trail, "release_begun")
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


EDITS: Mapping[str, Callable[[Trail], None]] = {
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
"""Ways to change an export, each of which a check must detect."""
