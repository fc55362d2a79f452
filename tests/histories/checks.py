"""Checks of a simulated history, independent of the product's code.

The checks use plain SQL, files, and the observed behavior of processes, and nothing of the product's accounting,
registry or recovery. Each check yields all violations.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np

from tests.crash.prices import is_private, mu_squared
from tests.crash.recount import digest_of, leftovers, query
from tests.crash.world import World
from tests.histories.linearisable import Answer, Charge, is_explained
from tests.histories.playing import ALIAS, Call, History
from tests.histories.violation import Violation
from tests.histories.worlds import DELTA, NAMES, STREAM, Template

Known = MutableMapping[tuple[str, str, str], str]
"""Artifact digest of each release of all histories, by database, store and release id."""

LEAST_TOTAL, LEAST_BITS = 10**7, 16
"""Smaller totals, or totals with fewer significant bits, occur by chance."""


def violations(history: History, template: Template, world: World, known: Known) -> list[Violation]:
    """Return all violations found by the checks of a history, after its processes have ended."""
    found = [*history.wrong]
    for check in (
        lambda: equal_requests(history, known),
        lambda: charges(history, template, world),
        lambda: nothing_unnoised(history),
        lambda: versions(history, world),
        lambda: finished(history, world),
    ):
        found += check()
    return found


# --- equal requests ---


def equal_requests(history: History, known: Known) -> Iterator[Violation]:
    """Check that equal requests were answered by equal artifacts, in this history and in all earlier ones."""
    answers: dict[tuple[str, int], set[str]] = defaultdict(set)
    for call in history.calls:
        if call.result and call.what in ("fit", "tick"):
            answers[call.what, call.act.number].add(call.result["digest"])
            if call.what == "fit":
                place = (history.plan.database, history.plan.store, call.result["release"])
                digest = known.setdefault(place, call.result["digest"])
                if digest != call.result["digest"]:
                    yield Violation(
                        "equal requests", f"release {place[2][:8]} has other bytes than in an earlier history"
                    )
    for (what, number), digests in answers.items():
        if len(digests) > 1:
            yield Violation("equal requests", f"{what} {number} was answered by {len(digests)} artifacts")


# --- charges ---


def charges(history: History, template: Template, world: World) -> Iterator[Violation]:
    """Check that the charges fit one budget in some sequential order, and that every answered release is charged."""
    yield from _linear(history, template, world)
    rows = query(world, "SELECT id, state, event, request FROM release")
    costs = {release: _cost(event) for release, state, event, _ in rows if state != "abandoned"}
    if not _fits(sum(costs.values(), Fraction(0)), template.epsilon):
        yield Violation("budget holds", "the budget is overspent")
    answered = {release for release, _ in history.seen.answers}
    if missing := answered - costs.keys():
        yield Violation("noise is charged", f"{len(missing)} releases that drew noise are charged to nobody")
    for (release, step), found in history.seen.answers.items():
        if len(found) > 1:
            yield Violation(
                "one answer a step", f"step {step} of release {release[:8]} drew noise for {len(found)} answers"
            )
    requested = Counter(_number_of(request) for _, state, _, request in rows if state != "abandoned")
    for number, count in requested.items():
        if number is not None and count > 1:
            yield Violation("charged once", f"request {number} is charged {count} times")


def _linear(history: History, template: Template, world: World) -> Iterator[Violation]:
    """Check that some sequential order explains the charges, in each period between two restores.

    After a restore, the ledger starts with the charges of the restored copy.
    """
    costs: dict[str, Fraction] = {call.act[0]: call.act[1] for call in history.reserves}

    def fits(keys: frozenset[str]) -> bool:
        return _fits(template.stream + sum((costs[key] for key in keys if key in costs), Fraction(0)), template.epsilon)

    starts = [(0, frozenset[str]()), *history.restored]
    for (start, charged), end in zip(starts, [*(step for step, _ in starts[1:]), None], strict=True):
        within = [call for call in history.reserves if start <= call.start and (end is None or call.start < end)]
        requested = [_charge(call) for call in within]
        requested += _entered(world, [call for call in history.calls if start <= call.start])
        if not is_explained(requested, charged=charged.intersection(costs), fits=fits):
            reported = ", ".join(
                f"{charge.answer} {[*charge.keys]} {charge.start}-{charge.end}" for charge in requested
            )
            yield Violation("order of charges", f"no order explains the answers after step {start}: {reported}")


def _charge(call: Call) -> Charge:
    """Return a reservation in the form of the linearizability check.

    A failed or killed reservation was charged before its end, or never.
    """
    answer: Answer = None
    if call.result is not None:
        answer = "new" if call.result.is_new else "found"
    elif call.error == "BudgetExhausted":
        answer = "refused"
    return Charge(start=call.start, end=call.end, keys=frozenset({call.act[0]}), answer=answer)


def _entered(world: World, calls: Sequence[Call]) -> list[Charge]:
    """Return the run keys that an operator's acceptance of a restored ledger charged, from the journal.

    These charges count even if the operator's call failed afterwards.
    """
    keys: dict[str, list[str]] = {}
    reason = ""
    for name, detail, key in query(
        world,
        "SELECT event.name, event.detail, release.run_key FROM event"
        " LEFT JOIN release ON release.id = event.release_id ORDER BY event.seq",
    ):
        if name == "ledger_accepted":
            reason = json.loads(detail)["reason"]
            keys[reason] = []
        elif name == "release_begun" and "found_in" in json.loads(detail):
            keys[reason].append(key)
    return [
        Charge(start=call.start, end=call.end, keys=frozenset(keys[call.act]), answer="entered")
        for call in calls
        if call.what == "open" and call.act in keys
    ]


def _cost(event: str) -> Fraction:
    reported = json.loads(event)
    return Fraction(0) if reported["name"] == "stream_tick" else mu_squared(reported)


@lru_cache(maxsize=10_000)
def _fits(total: Fraction, epsilon: float) -> bool:
    return is_private(total, epsilon=epsilon, delta=DELTA)


def _number_of(request: str) -> int | None:
    """Return the number encoded in a stored request, or None for the charge of a stream and for its ticks."""
    clip_norm = json.loads(request).get("clip_norm")
    return None if clip_norm is None else round((clip_norm - 1) * 64)


# --- written content ---


def nothing_unnoised(history: History) -> Iterator[Violation]:
    """Check that no exact sum was ever written to a file, and no key outside the folder of keys."""
    sums = [pattern for total in history.seen.totals for pattern in _patterns(total)]
    keys = [pattern for key in history.seen.keys.values() for pattern in (key, key.hex().encode())]
    message = [f"{call.message} {call.result}".encode() for call in history.calls]
    everything = b"\n\n".join([*{payload for _, payload in history.seen.written}, *message])
    if any(pattern in everything for pattern in sums):
        places = {place for place, payload in history.seen.written if any(pattern in payload for pattern in sums)}
        yield Violation("sums are secret", f"an exact sum was written to {', '.join(sorted(places)) or 'a message'}")
    elsewhere = b"\n\n".join(
        [*{payload for place, payload in history.seen.written if not place.startswith("home/keys/")}, *message]
    )
    if any(pattern in elsewhere for pattern in keys):
        yield Violation("keys are secret", "a key was written elsewhere than into the folder of keys")


def _patterns(total: int) -> list[bytes]:
    """Return the bytes by which an exact sum would be recognized: decimal text, integer, and start of a float.

    Sums with few significant bits have no patterns.
    """
    bits = abs(total).bit_length() - ((abs(total) & -abs(total)).bit_length() - 1) if total else 0
    if abs(total) < LEAST_TOTAL or bits < LEAST_BITS:
        return []
    return [str(abs(total)).encode(), np.int64(total).tobytes(), np.float64(total).tobytes()[:6]]


# --- versions ---


def versions(history: History, world: World) -> Iterator[Violation]:
    """Check that versions are recorded before they are visible and never change.

    Only promotions may move aliases.
    """
    shown: dict[tuple[str, int], str] = {}
    for step, name, content, recorded in history.seen.pointers:
        for number, digest in content["versions"].items():
            if int(number) not in recorded:
                yield Violation("recorded before shown", f"{name}@{number} was shown at step {step}, not yet recorded")
            if shown.setdefault((name, int(number)), digest) != digest:
                yield Violation("versions stay", f"{name}@{number} changed at step {step}")
        requested = {call.act.number for call in history.calls if call.what == "promote" and call.act.name == name}
        moved = content["aliases"].get(ALIAS)
        if content["aliases"].keys() - {ALIAS} or (moved is not None and moved not in requested):
            yield Violation("aliases are promoted", f"an alias of {name} moved at step {step}, and nobody promoted it")
    for call in history.calls:
        if call.result and call.what in ("fit", "tick", "read"):
            name, _, number = call.result["artifact"].partition("@")
            if shown.setdefault((name, int(number)), call.result["digest"]) != call.result["digest"]:
                yield Violation("versions stay", f"{name}@{number} was told with other bytes than it is shown with")
    rows: dict[tuple[str, int], str] = {
        (name, number): digest for name, number, digest in query(world, "SELECT name, version, digest FROM version")
    }
    for (name, number), digest in shown.items():
        if rows.get((name, number)) != digest:
            yield Violation("versions are recorded", f"{name}@{number} was shown, and is not in the record")
    for name in (*NAMES, STREAM):
        numbers = sorted(number for known, number in rows if known == name)
        if numbers != list(range(1, len(numbers) + 1)):
            yield Violation("versions are counted", f"{name} has versions {numbers}")
        pointer = _registry(history, world) / "names" / f"{name}.json"
        standing = json.loads(pointer.read_text())["versions"] if pointer.exists() else {}
        if {int(number): digest for number, digest in standing.items()} != {
            number: digest for (known, number), digest in rows.items() if known == name
        }:
            yield Violation("pointers agree", f"the pointer of {name} does not say what the record says")


def _registry(history: History, world: World) -> Path:
    return world.home / "objects" / "registry" if history.plan.store == "objects" else world.home / "registry"


# --- final state ---


def finished(history: History, world: World) -> Iterator[Violation]:
    """Check that every release that began is committed with an intact artifact, and that nothing is left over."""
    rows = query(world, "SELECT id, state, artifact_digest, request FROM release")
    for release, state, digest, request in rows:
        if json.loads(request).get("ticks") is not None:
            continue  # the charge of a stream stays open as long as the stream
        if state == "committed":
            folder = _registry(history, world) / "artifacts" / digest
            if not folder.is_dir() or digest_of(folder) != digest:
                yield Violation("artifacts stand", f"the artifact of release {release[:8]} does not stand")
        elif not (state == "closed" and release in history.closed):
            yield Violation("releases finish", f"release {release[:8]} is {state}")
    is_meddled = history.counts["restore"] or history.counts["lose"]
    for call in history.calls:
        if not is_meddled and "accept-restored" in call.message:
            yield Violation("locked for cause", f"locked at step {call.start}, though nothing was restored or lost")
    if history.closed and not history.keys_went:
        yield Violation("keys are kept", f"{len(history.closed)} releases lost their keys, and nobody took any")
    if left := leftovers(world.home):
        yield Violation(
            "nothing is left", f"{', '.join(path.relative_to(world.home).as_posix() for path in left)} left over"
        )
