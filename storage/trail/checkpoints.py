"""Hashes of journal entries, Merkle trees over them, and signed checkpoints of a journal.

A checkpoint states the number of entries of the journal, the root over all of them, and the root over the entries of
each population.

>>> tree_root([]) == hashlib.sha256(b"").hexdigest()
True
>>> tree_root(["00" * 32, "11" * 32]) == tree_root(["11" * 32, "00" * 32])
False
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpca.errors import Corrupt

START = "0" * 64
"""The hash before the first entry."""
FIELDS = ("seq", "population", "release_id", "name", "detail", "at", "actor", "prev_hash")
"""The fields that the hash of an entry covers; they include the hash of the previous entry."""
LEDGER = ""
"""The subject of entries that concern every population."""
_encode = json.JSONEncoder().encode
_OF_THE_LEDGER = ("ledger_created", "ledger_accepted")
_OF_SPENDING = ("budget_", "release_", "step_", "stream_", "tick_", "version_")
"""The prefixes of entry names that concern spending and releases; other entries may reveal when data arrived."""


class Subjects:
    """Assignment of journal entries to populations, in the order of the journal."""

    def __init__(self) -> None:
        self._populations: dict[str, str] = {}

    def of(self, entry: Mapping[str, Any]) -> str | None:
        """Return the population of an entry about spending, or `LEDGER`; None for any other entry."""
        if entry["name"] in _OF_THE_LEDGER:
            return LEDGER
        if not entry["name"].startswith(_OF_SPENDING):
            return None
        population, release = entry["population"], entry["release_id"]
        if release is not None and population is not None:
            self._populations.setdefault(release, population)
        return population if population is not None else self._populations.get(release)


def hash_entry(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry, in hex; ``detail`` is text in its stored form."""
    return hash_values([row[name] for name in FIELDS])


def hash_values(values: Sequence[Any]) -> str:
    """Return the SHA-256 of an entry, in hex, given the values of `FIELDS`."""
    return hashlib.sha256(_encode(values).encode()).hexdigest()


def tree_root(hashes: Sequence[str]) -> str:
    """Return the root of the Merkle tree over hashes of entries, in hex.

    The first byte distinguishes leaves from inner nodes. The tree of n leaves is split at the largest power of two
    below n (RFC 9162, section 2.1).
    """
    return tree_roots(hashes, [len(hashes)])[len(hashes)]


def tree_roots(hashes: Sequence[str], lengths: Iterable[int]) -> dict[int, str]:
    """Return the roots over the first n hashes, by n, in one pass; an n beyond the last hash is left out."""
    wanted = set(lengths)
    found = {0: hashlib.sha256(b"").hexdigest()} if 0 in wanted else {}
    whole: list[bytes] = []  # the roots of the adjacent full trees so far, largest first
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


_CONTEXT = b"dpca checkpoint 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A signed statement of a ledger about its journal.

    Attributes
    ----------
    ledger : str
    at : str, UTC
    entries : int, number of entries of the whole journal
    root : str, Merkle root over their hashes
    populations : mapping of `name_in_checkpoint` to the number of entries and the root over them
        Contains each population, and `storage.trail.checkpoints.LEDGER`.
    key : str, the public Ed25519 key, in hex
    signature : str, in hex
    """

    ledger: str
    at: str
    entries: int
    root: str
    populations: Mapping[str, tuple[int, str]]
    key: str
    signature: str = ""

    @property
    def statement(self) -> bytes:
        """The bytes that the signature covers."""
        signed = {name: value for name, value in self.to_json().items() if name != "signature"}
        return _CONTEXT + json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()

    def check_signature(self) -> None:
        """Check that the stated key signed the checkpoint.

        Raises
        ------
        Corrupt
            When the signature is not valid under this key.
        """
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key)).verify(
                bytes.fromhex(self.signature), self.statement
            )
        except (InvalidSignature, ValueError):
            raise Corrupt(
                f"the checkpoint of {self.entries} entries is not signed by the key in it; get the export from the "
                "curator again."
            ) from None

    def check_journal(self, roots: "JournalRoots") -> None:
        """Check that the checkpoint covers the first entries of a journal, and all entries of its subjects among them.

        Raises
        ------
        Corrupt
            When the journal is another one, or some entries of a subject are missing.
        """
        if roots.whole.get(self.entries) != self.root:
            raise Corrupt(
                f"the journal does not match the signed checkpoint of {self.entries} entries: entries were changed, "
                "dropped or moved; contact the curator of the ledger."
            )
        for subject, found in roots.subjects.items():
            shown = self.populations.get(name_in_checkpoint(self.ledger, subject), (0, tree_root([])))
            if tuple(shown) != found[self.entries]:
                raise Corrupt(
                    f"the {found[self.entries][0]} entries of {subject or 'the ledger'} do not match the {shown[0]} in "
                    f"the signed checkpoint of {self.entries} entries: some were dropped or moved; export again."
                )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Read a checkpoint from parsed JSON, without a check of its statement.

        Raises
        ------
        Corrupt
            If the fields or their types are not those of a checkpoint.
        """
        kinds = {
            "ledger": str,
            "at": str,
            "entries": int,
            "root": str,
            "populations": dict,
            "key": str,
            "signature": str,
        }
        good = isinstance(found, dict) and found.keys() == kinds.keys()
        if not good or any(type(found[name]) is not kind for name, kind in kinds.items()):
            raise Corrupt("a checkpoint does not have the required fields; get the export from the curator again.")
        return cls(**{**found, "populations": {name: tuple(shown) for name, shown in found["populations"].items()}})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRoots:
    """Merkle roots over the prefixes of a journal that checkpoints cover, computed in one pass.

    Attributes
    ----------
    whole : mapping of a number of entries to the root over them; without numbers beyond the end of the journal
    subjects : mapping of a population, or `storage.trail.checkpoints.LEDGER`, to a mapping
        The inner mapping has for each number of entries the number of the subject's entries among them, and their root.
    """

    whole: Mapping[int, str]
    subjects: Mapping[str, Mapping[int, tuple[int, str]]]

    @classmethod
    def of(cls, hashes: Sequence[str], subjects: Mapping[str, Sequence[int]], *, lengths: Collection[int]) -> Self:
        """Compute the roots.

        Parameters
        ----------
        hashes : sequence of str, hashes of all entries of the journal
        subjects : mapping of a subject to the numbers of its entries, from 1, in order
        lengths : collection of int, numbers of entries that the checkpoints cover
        """
        covered = {}
        for subject, numbers in subjects.items():
            counts = {length: bisect_right(numbers, length) for length in lengths}
            roots = tree_roots([hashes[number - 1] for number in numbers], counts.values())
            covered[subject] = {length: (count, roots[count]) for length, count in counts.items()}
        return cls(whole=tree_roots(hashes, lengths), subjects=covered)


def sign_checkpoint(
    private: Ed25519PrivateKey,
    *,
    ledger: str,
    at: str,
    hashes: Sequence[str],
    populations: Mapping[str, Sequence[str]],
) -> Checkpoint:
    """Sign a checkpoint of a journal, given the hashes of all its entries, and those of each population by name."""
    facts = {
        name_in_checkpoint(ledger, population): (len(own), tree_root(own)) for population, own in populations.items()
    }
    unsigned = Checkpoint(
        ledger=ledger,
        at=at,
        entries=len(hashes),
        root=tree_root(hashes),
        populations=facts,
        key=private.public_key().public_bytes_raw().hex(),
    )
    return replace(unsigned, signature=private.sign(unsigned.statement).hex())


def name_in_checkpoint(ledger: str, population: str) -> str:
    """Return the hash by which a checkpoint names a population; anyone can confirm a guess of the name."""
    return hashlib.sha256(f"dpca population\n{ledger}\n{population}".encode()).hexdigest()
