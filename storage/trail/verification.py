"""Verification of an exported audit trail from the file alone.

Verification needs no database, no network, and none of the ledger's code. An export contains all journal entries of one
population, the hashes of all other entries, and signed checkpoints. Together they prove that no entry was changed,
dropped, added or moved since a checkpoint was signed. The spent budget is recomputed from the DP events of the
releases, with the arithmetic of the accounting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from dpca.errors import Corrupt, NotFound
from dpca.privacy_unit import PrivacyUnit, privacy_statement
from dpca_tasks.accounting.events import Event, is_private
from dpca_tasks.accounting.factorisation import Weights
from dpca_tasks.accounting.filters import PrivacyFilter, build_filter
from dpca_tasks.accounting.prices import Charge, add
from storage.trail.checkpoints import FIELDS, LEDGER, START, Checkpoint, JournalRoots, Subjects, hash_entry

FORMAT = "dpca-audit-trail"
VERSION = 1
_NEXT = "get the export again from the curator of the ledger."
_TERMS = ("epsilon", "delta", "failure_delta", "relation", "filter", "unit", "rows_per_unit")
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


@dataclass(slots=True)
class _Replay:
    """The state of a budget and its releases, computed from the journal entries that were replayed so far."""

    rules: PrivacyFilter | None = None
    total: Charge = ()
    terms: dict[str, Any] = field(default_factory=dict)
    charges: dict[str, Charge] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    paid: dict[str, int] = field(default_factory=dict)
    payers: dict[str, list[str]] = field(default_factory=dict)
    streams: dict[str, tuple[Weights, int]] = field(default_factory=dict)
    ticks: dict[str, list[str]] = field(default_factory=dict)
    accepted: int = 0

    def statement(self, spent: float) -> str:
        """Return the privacy guarantee of all releases together, as one sentence."""
        terms = self.terms
        unit = PrivacyUnit(name=terms["unit"], rows=terms["rows_per_unit"])
        epsilon = max(terms["epsilon"], spent)
        return privacy_statement(epsilon=epsilon, delta=terms["delta"], relation=terms["relation"], unit=unit)

    def move(self, release: str, state: str) -> None:
        """Change the state of a release; abandoning subtracts its charge, and an abandoned release cannot change."""
        before = self.states[release]
        if before == "abandoned" or (state == "abandoned" and before != "reserved"):
            raise ValueError(state)
        if state == "abandoned":
            self.total = tuple(sum_ - part for sum_, part in zip(self.total, self.charges[release], strict=True))
        self.states[release] = state


def read_trail(path: Path) -> Any:
    """Read an exported audit trail from a file.

    Raises
    ------
    NotFound, Corrupt
        If the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise NotFound(
            f"{path} cannot be read ({error.strerror}); give a file that `dpca budget export` wrote."
        ) from None
    except (ValueError, RecursionError):
        raise Corrupt(f"{path} is not an audit trail; {_NEXT}") from None


def verify_trail(export: Any, *, key: str | None = None, earlier: Any = None) -> dict[str, Any]:
    """Check an exported audit trail, and return the facts that it proves; all of them are public.

    Parameters
    ----------
    export : parsed JSON
        The content of a file that ``dpca budget export`` wrote.
    key : str, optional
        The public key of the ledger, in hex, from a trusted source. Without it, the key in the last checkpoint is used.
    earlier : parsed JSON, optional
        An earlier export of the same population, which this export must continue.

    Returns
    -------
    dict
        The result is in ``verdict`` ("valid"), and a description of the checks in ``checked``.
        The budget is in ``population``, ``ledger``, its terms, ``statement`` (the guarantee), ``spent`` and
        ``remaining``.
        The journal is in ``releases`` (number by state), ``restored`` (number of accepted restores) and ``entries``.
        The signatures are in ``checkpoints`` (their number), ``signed`` (time of the last one), ``key``, and
        ``pinned`` (whether ``key`` was passed).
        The users who wrote the entries of this population are in ``actors``.

    Raises
    ------
    Corrupt
        If a check fails; the message states which entry or checkpoint is wrong.
    """
    checkpoints, hashes, entries, population = _parsed(export)
    last = checkpoints[-1]
    for checkpoint in checkpoints:
        checkpoint.check_signature()
        if checkpoint.key != (key or last.key):
            raise Corrupt(
                f"the checkpoint of {checkpoint.entries} entries is signed by {checkpoint.key}, not by "
                f"{key or last.key}; use the key that the curator published."
            )
    subjects = _subjects(entries, hashes, population)
    roots = JournalRoots.of(hashes, subjects, lengths={checkpoint.entries for checkpoint in checkpoints})
    for checkpoint in checkpoints:
        checkpoint.check_journal(roots)
    if last.entries != len(hashes):
        raise Corrupt(f"the trail has {len(hashes)} entries, but the last checkpoint covers {last.entries}; {_NEXT}")
    if earlier is not None:
        _check_continues(earlier, hashes=hashes, ledger=last.ledger, population=population)
    replay = _replayed(entries)
    assert replay.rules is not None
    states, spent = list(replay.states.values()), replay.rules.spent(replay.total)
    return {
        "verdict": "valid",
        "checked": _checked(checkpoints, entries=len(hashes), key=key, continues=earlier is not None),
        "population": population,
        "ledger": last.ledger,
        **replay.terms,
        "statement": replay.statement(spent),
        "spent": spent,
        "remaining": replay.rules.remaining(replay.total),
        "releases": {state: states.count(state) for state in sorted(set(states))},
        "restored": replay.accepted,
        "entries": len(hashes),
        "checkpoints": len(checkpoints),
        "signed": last.at,
        "key": last.key,
        "pinned": key is not None,
        "actors": sorted({str(entry["actor"]) for entry in entries}),
    }


def _checked(checkpoints: Sequence[Checkpoint], *, entries: int, key: str | None, continues: bool) -> str:
    """Return a sentence that describes the checks of an audit trail."""
    signer = "the key that was given" if key is not None else "the key in the file (give --key to verify the signer)"
    return (
        f"{entries} entries against their hashes, {len(checkpoints)} checkpoint{'s' * (len(checkpoints) > 1)} against "
        f"{signer}, and the spent total against every charge" + ("; it continues the earlier export" * continues)
    )


def _parsed(export: Any) -> tuple[list[Checkpoint], list[str], list[dict[str, Any]], str]:
    try:
        if export["format"] != FORMAT or type(export["version"]) is not int or export["version"] != VERSION:
            raise Corrupt(f"this is not an audit trail of version {VERSION}; {_NEXT}")
        hashes, entries, population = export["hashes"], export["entries"], export["population"]
        checkpoints = [Checkpoint.from_json(found) for found in export["checkpoints"]]
    except (KeyError, TypeError):
        raise Corrupt(f"this is not an audit trail; {_NEXT}") from None
    if not (isinstance(hashes, list) and isinstance(entries, list)):
        raise Corrupt(f"this is not an audit trail; {_NEXT}")
    hexadecimal = all(
        isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef") for text in hashes
    )
    whole = all(isinstance(entry, dict) and entry.keys() == set(FIELDS) for entry in entries)
    if not (isinstance(population, str) and hexadecimal and whole and checkpoints):
        raise Corrupt(f"the audit trail lacks checkpoints, or has entries in another format; {_NEXT}")
    if len({checkpoint.signature for checkpoint in checkpoints}) < len(checkpoints):
        raise Corrupt(f"a checkpoint is listed twice; {_NEXT}")
    if {checkpoint.ledger for checkpoint in checkpoints} != {checkpoints[-1].ledger}:
        raise Corrupt(f"the checkpoints belong to several ledgers; {_NEXT}")
    if any(type(entry["seq"]) is not int for entry in entries):
        raise Corrupt(f"an entry has no number; {_NEXT}")
    return sorted(checkpoints, key=lambda found: found.entries), hashes, entries, population


def _subjects(entries: Sequence[Mapping[str, Any]], hashes: Sequence[str], population: str) -> dict[str, list[int]]:
    """Check that entries have their stated numbers in the journal; return the entry numbers by population."""
    subjects = Subjects()
    found: dict[str, list[int]] = {population: [], LEDGER: []}
    before = 0
    for entry in entries:
        at = entry["seq"]
        if not before < at <= len(hashes):
            raise Corrupt(f"entry {at} does not come after entry {before} of {len(hashes)}; {_NEXT}")
        if hash_entry(entry) != hashes[at - 1] or entry["prev_hash"] != (hashes[at - 2] if at > 1 else START):
            raise Corrupt(f"entry {at} differs from the journal's entry there: it was changed or moved; {_NEXT}")
        subject = subjects.of(entry)
        if subject not in found:
            raise Corrupt(f"entry {at} is not about {population!r}; {_NEXT}")
        found[subject].append(at)
        before = at
    return found


def _check_continues(earlier: Any, *, hashes: Sequence[str], ledger: str, population: str) -> None:
    checkpoints, known, _, name = _parsed(earlier)
    if (checkpoints[-1].ledger, name) != (ledger, population):
        raise Corrupt(
            "the earlier export is from another ledger or population; give an export of this ledger and population."
        )
    if list(hashes[: len(known)]) != list(known):
        raise Corrupt(
            f"this export does not continue the earlier export of {len(known)} entries: the journal was rewritten, or "
            "restored from a copy; contact the curator of the ledger."
        )


def _replayed(entries: Sequence[Mapping[str, Any]]) -> _Replay:
    replay = _Replay()
    for entry in entries:
        try:
            _replay_entry(replay, entry)
        except _UNREADABLE:
            raise Corrupt(f"entry {entry['seq']} does not have the facts that its name requires; {_NEXT}") from None
    if replay.rules is None:
        raise Corrupt(f"the trail lacks the terms of a budget; {_NEXT}")
    return replay


def _replay_entry(replay: _Replay, entry: Mapping[str, Any]) -> None:
    detail, release = json.loads(entry["detail"]), entry["release_id"]
    match entry["name"]:
        case "budget_opened":
            if replay.rules is not None:
                raise Corrupt(
                    f"entry {entry['seq']} opens a budget that is already open, which would reset the spent total; a "
                    "budget is opened once: contact the curator of the ledger."
                )
            replay.terms = {name: detail[name] for name in _TERMS}
            if detail["statement"] != replay.statement(0.0):
                raise ValueError(detail["statement"])
            replay.rules = build_filter(
                detail["filter"],
                epsilon=detail["epsilon"],
                delta=detail["delta"],
                failure_delta=detail["failure_delta"],
                replaced=detail["relation"] == "replace_one",
            )
            replay.total = replay.rules.zero
        case "release_reserved":
            if release in replay.states:
                raise ValueError(release)
            tick = detail["event"]["name"] == "stream_tick"
            charge = _tick_charge(replay, release, detail) if tick else _charged(replay, entry["seq"], detail)
            replay.charges[release], replay.events[release] = charge, detail["event"]
            replay.states[release], replay.total = "reserved", add(replay.total, charge)
        case "stream_opened":
            if "weights" in (terms := detail["terms"]):
                replay.streams[release] = (Weights.from_json(terms["weights"]), terms["horizon"])
        case "stream_charged":
            _check_payer(replay, release)
            replay.payers.setdefault(detail["stream"], []).append(release)
            replay.paid[detail["stream"]] = max(detail["ticks"], replay.paid.get(detail["stream"], 0))
        case "release_begun":
            replay.move(release, "noising")
        case "release_committed" | "release_abandoned" | "release_closed" as moved:
            replay.move(release, moved.removeprefix("release_"))
        case "ledger_accepted":
            replay.accepted += 1
            begun = replay.states.keys() & set(detail["begun"])
            if any(replay.states[each] == "abandoned" for each in begun):
                raise ValueError(detail["begun"])
            replay.states |= dict.fromkeys(begun, "noising")


def _charged(replay: _Replay, at: int, detail: Mapping[str, Any]) -> Charge:
    """Return the stated charge of a release, after checking that it is the price of the release's event."""
    rules, event, delta = replay.rules, detail["event"], detail["delta"]
    if rules is None:
        raise Corrupt(f"entry {at} charges a budget that is not open; {_NEXT}")
    declared = cast(Charge, tuple(detail["charge"]))
    prices = [rules.charge_after(replay.total, event, delta=delta)]
    if replay.accepted:  # a release that was inserted again after a restore has its old price, even beyond the budget
        prices += [rules.charge_after(rules.zero, event, delta=delta), rules.charge(event, delta=delta)]
    if declared not in prices:
        raise Corrupt(
            f"entry {at} was not charged the price of its event; verify the export with the version of dpca that "
            "admitted the release, and contact the curator if that version refuses the export too."
        )
    if not (replay.accepted or not is_private(event) or rules.admits(add(replay.total, declared))):
        raise Corrupt(f"entry {at} exceeds the budget; contact the curator of the ledger.")
    return declared


def _check_payer(replay: _Replay, release: str) -> None:
    """Check that a release that pays for ticks (versions) of a stream was charged for a Gaussian event."""
    if replay.events[release]["name"] != "gaussian" or not any(replay.charges[release]):
        raise ValueError(release)


def _tick_charge(replay: _Replay, release: str, detail: Mapping[str, Any]) -> Charge:
    """Return the zero charge of a stream's tick (version), after checking that the stream was charged for it."""
    event, declared = detail["event"], cast(Charge, tuple(detail["charge"]))
    stream, earlier = event["stream"], replay.ticks.setdefault(event["stream"], [])
    paid = event["tick"] == len(earlier) + 1 <= replay.paid[stream] and replay.states[stream] == "noising"
    begun = any(replay.states[tick] == "noising" for tick in earlier)
    if any(declared) or not paid or begun or not _is_covered(replay, event):
        raise ValueError(release)
    earlier.append(release)
    return declared


def _is_covered(replay: _Replay, event: Mapping[str, Any]) -> bool:
    """Return whether the Gaussian events charged for a stream cover all its ticks (versions) up to this one, exactly.

    A stream has the noise multiplier z and is calibrated for h ticks (versions). Its first t ticks together are a
    Gaussian event with ``mu^2 = zeta_t^2 / (z^2 zeta_h^2)``, where zeta follows from the weights in the stream's terms.
    If the terms contain no weights, the stream was charged for all its ticks at once. This is so, for example, after a
    restore from published versions alone.
    """
    stream, noise = event["stream"], Fraction(event["noise_multiplier"])
    if stream not in replay.streams:
        return noise >= Fraction(replay.events[stream]["noise_multiplier"])
    weights, horizon = replay.streams[stream]
    share = weights.zeta_squared(event["tick"]) / weights.zeta_squared(horizon)
    paid = sum(Fraction(replay.events[each]["noise_multiplier"]) ** -2 for each in replay.payers[stream])
    return paid >= share / noise**2
