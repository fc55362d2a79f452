"""Hashes of journal entries, Merkle trees over them, and signed checkpoints of a journal.

A checkpoint states the number of entries in the journal, the Merkle root over all entries, and a separate root over the
entries of each population.

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
"""The value in place of a previous hash in the first journal entry."""
FIELDS = ("seq", "population", "release_id", "name", "detail", "at", "actor", "prev_hash")
"""The fields of a journal entry that its hash covers, among them the hash of the previous entry."""
LEDGER = ""
"""The name used in place of a population for entries that concern all populations."""
_encode = json.JSONEncoder().encode
_OF_THE_LEDGER = ("ledger_created", "ledger_accepted")
_OF_SPENDING = ("budget_", "release_", "step_", "stream_", "tick_", "version_")
"""Prefixes of the names of exported journal entries, on spending and releases. Others may reveal when data arrived."""


class Subjects:
    """Assignment of journal entries to populations; the entries must be given in the order of the journal."""

    def __init__(self) -> None:
        self._populations: dict[str, str] = {}

    def of(self, entry: Mapping[str, Any]) -> str | None:
        """Return the population of an entry about spending; `LEDGER` if it concerns all populations; otherwise None."""
        if entry["name"] in _OF_THE_LEDGER:
            return LEDGER
        if not entry["name"].startswith(_OF_SPENDING):
            return None
        population, release = entry["population"], entry["release_id"]
        if release is not None and population is not None:
            self._populations.setdefault(release, population)
        return population if population is not None else self._populations.get(release)


def hash_entry(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a journal entry, in hex; ``detail`` is JSON text as it is stored."""
    return hash_values([row[name] for name in FIELDS])


def hash_values(values: Sequence[Any]) -> str:
    """Return the SHA-256 of a journal entry, in hex, given the values of `FIELDS`."""
    return hashlib.sha256(_encode(values).encode()).hexdigest()


def tree_root(hashes: Sequence[str]) -> str:
    """Return the root of the Merkle tree over hashes of journal entries, in hex.

    A first byte in the hashed text distinguishes leaves from inner nodes. The tree of n leaves is split at the largest
    power of two below n (RFC 9162, section 2.1).
    """
    return tree_roots(hashes, [len(hashes)])[len(hashes)]


def tree_roots(hashes: Sequence[str], lengths: Iterable[int]) -> dict[int, str]:
    """Return the Merkle root over the first n hashes for each n in ``lengths``, in one pass.

    A length beyond the number of hashes is left out.
    """
    wanted = set(lengths)
    found = {0: hashlib.sha256(b"").hexdigest()} if 0 in wanted else {}
    whole: list[bytes] = []  # roots of the full subtrees of the Merkle tree so far, the largest first
    for count, leaf in enumerate(hashes, start=1):
        whole.append(_digest(b"\x00" + bytes.fromhex(leaf)))
        # two full subtrees are merged once for each factor 2 of the count
        for _ in range((count & -count).bit_length() - 1):
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
    """A signed statement about the entries of a ledger's journal at one time.

    Attributes
    ----------
    ledger : str, the id of the ledger
    at : str, the time of the signature in UTC
    entries : int, number of entries in the whole journal
    root : str, Merkle root over the hashes of all entries
    populations : mapping of a hashed population name to the number of its entries and the Merkle root over them
        The keys are computed by `name_in_checkpoint`, for each population and for `storage.trail.checkpoints.LEDGER`.
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
        """Check that the checkpoint is signed by the key that it contains.

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
                f"the checkpoint of {self.entries} entries is not signed by the key in it; get the export again "
                "from the curator of the ledger."
            ) from None

    def check_journal(self, roots: "JournalRoots") -> None:
        """Check that a journal begins with exactly the entries that this checkpoint covers.

        Also check for each population in ``roots`` that none of its covered entries is missing.

        Raises
        ------
        Corrupt
            When entries of the journal were changed, dropped or moved, or when entries of a population are missing.
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
        """Read a checkpoint from parsed JSON, without checking its signature.

        Raises
        ------
        Corrupt
            If fields are missing, or have wrong types.
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
            raise Corrupt(
                "a checkpoint does not have the required fields; get the export again from the curator of the ledger."
            )
        return cls(**{**found, "populations": {name: tuple(shown) for name, shown in found["populations"].items()}})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRoots:
    """Merkle roots over the first n entries of a journal, for each n that a checkpoint covers.

    Attributes
    ----------
    whole : mapping of n to the root over the first n entries of the journal, without any n beyond its end
    subjects : mapping of a population, or `storage.trail.checkpoints.LEDGER`, to a mapping
        The inner mapping has for each n the number of the population's entries among the first n, and the root over
        these.
    """

    whole: Mapping[int, str]
    subjects: Mapping[str, Mapping[int, tuple[int, str]]]

    @classmethod
    def of(cls, hashes: Sequence[str], subjects: Mapping[str, Sequence[int]], *, lengths: Collection[int]) -> Self:
        """Compute the roots in one pass over the journal.

        Parameters
        ----------
        hashes : sequence of str, hashes of all entries of the journal
        subjects : mapping of a population, or `LEDGER`, to the numbers of its entries, from 1, in order
        lengths : collection of int, the numbers of entries that checkpoints cover
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
    """Sign a checkpoint of a journal, given the hashes of all entries, and of the entries of each population."""
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
    """Return the hash that stands for a population in a checkpoint; the hash can only confirm a guess of the name."""
    return hashlib.sha256(f"dpca population\n{ledger}\n{population}".encode()).hexdigest()
