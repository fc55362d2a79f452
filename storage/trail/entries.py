"""Entries of a journal as they are hashed, and roots of Merkle trees over them.

>>> tree_root([]) == hashlib.sha256(b"").hexdigest()
True
>>> tree_root(["00" * 32, "11" * 32]) == tree_root(["11" * 32, "00" * 32])
False
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

START = "0" * 64
"""The hash before the first entry."""
FIELDS = ("seq", "population", "release_id", "name", "detail", "at", "actor", "prev_hash")
"""What the hash of an entry covers, the hash of the entry before it among them."""
LEDGER = ""
"""The subject of entries that concern every population."""
_encode = json.JSONEncoder().encode
_OF_THE_LEDGER = ("ledger_created", "ledger_accepted")
_OF_SPENDING = ("budget_", "release_", "step_", "stream_", "tick_", "version_")
"""How names of entries begin that say what was spent and released; others may tell when data arrived."""


class Subjects:
    """Tell of each entry of a journal, in its order, which population it is about."""

    def __init__(self) -> None:
        self._populations: dict[str, str] = {}

    def of(self, entry: Mapping[str, Any]) -> str | None:
        """Return the population that an entry of spending is about, or `LEDGER`; None of any other entry."""
        if entry["name"] in _OF_THE_LEDGER:
            return LEDGER
        if not entry["name"].startswith(_OF_SPENDING):
            return None
        population, release = entry["population"], entry["release_id"]
        if release is not None and population is not None:
            self._populations.setdefault(release, population)
        return population if population is not None else self._populations.get(release)


def hash_entry(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry, in hex; ``detail`` is text, as it is stored."""
    return hash_values([row[name] for name in FIELDS])


def hash_values(values: Sequence[Any]) -> str:
    """Return the SHA-256 of an entry of which the values of `FIELDS` are given."""
    return hashlib.sha256(_encode(values).encode()).hexdigest()


def tree_root(hashes: Sequence[str]) -> str:
    """Return the root of the Merkle tree over hashes of entries, in hex.

    Leaves and nodes are told apart by their first byte, and the tree of n leaves is split at the largest power of two
    below n (RFC 9162, section 2.1).
    """
    return tree_roots(hashes, [len(hashes)])[len(hashes)]


def tree_roots(hashes: Sequence[str], lengths: Iterable[int]) -> dict[int, str]:
    """Return the root over the first n hashes for several n, by n, in one pass; an n beyond the last is left out."""
    wanted = set(lengths)
    found = {0: hashlib.sha256(b"").hexdigest()} if 0 in wanted else {}
    whole: list[bytes] = []  # the roots of full trees that lie side by side so far, the largest first
    for count, leaf in enumerate(hashes, start=1):
        whole.append(_digest(b"\x00" + bytes.fromhex(leaf)))
        for _ in range((count & -count).bit_length() - 1):  # as many times as two divides the count
            right = whole.pop()
            whole[-1] = _digest(b"\x01" + whole[-1] + right)
        if count in wanted:
            root = whole[-1]
            for left in reversed(whole[:-1]):
                root = _digest(b"\x01" + left + root)
            found[count] = root.hex()
    return found


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
