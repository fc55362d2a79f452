"""Signed checkpoints of a journal: how many entries it had, the root over them, and over those of each population."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from storage.errors import Corrupt
from storage.trail.entries import tree_root, tree_roots

_CONTEXT = b"dpca checkpoint 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A statement about a journal, and the signature of the ledger that made it.

    Attributes
    ----------
    ledger : str
    at : str, UTC
    entries : int, of the whole journal
    root : str, over their hashes
    populations : mapping of `name_in_checkpoint` to the number of entries and the root over them
        Of each population, and of `storage.trail.entries.LEDGER`.
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
        """The bytes that are signed."""
        said = {name: value for name, value in self.to_json().items() if name != "signature"}
        return _CONTEXT + json.dumps(said, sort_keys=True, separators=(",", ":")).encode()

    def check_signature(self) -> None:
        """Check that the stated key signed it.

        Raises
        ------
        Corrupt
            When it did not.
        """
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key)).verify(
                bytes.fromhex(self.signature), self.statement
            )
        except (InvalidSignature, ValueError):
            raise Corrupt(
                f"the checkpoint of {self.entries} entries is not signed by the key that it names; get the export from "
                "the curator again."
            ) from None

    def check_journal(self, roots: "JournalRoots") -> None:
        """Check that it tells of the first entries of a journal, and of all those of some subjects among them.

        Raises
        ------
        Corrupt
            When the journal is another one, or not all entries of the population are there.
        """
        if roots.whole.get(self.entries) != self.root:
            raise Corrupt(
                f"the journal is not the one of which the checkpoint of {self.entries} entries was signed: entries "
                "were changed, dropped or moved; ask the curator what happened to the ledger."
            )
        for subject, found in roots.subjects.items():
            told = self.populations.get(name_in_checkpoint(self.ledger, subject), (0, tree_root([])))
            if tuple(told) != found[self.entries]:
                raise Corrupt(
                    f"the {found[self.entries][0]} entries of {subject or 'the ledger'} are not the {told[0]} of which "
                    f"the checkpoint of {self.entries} entries was signed: some were dropped or moved; export again."
                )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Read a checkpoint from parsed JSON, without checking what it says.

        Raises
        ------
        Corrupt
            If it has not these fields.
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
            raise Corrupt("a checkpoint has not the fields of one; get the export from the curator again.")
        return cls(**{**found, "populations": {name: tuple(told) for name, told in found["populations"].items()}})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRoots:
    """The roots over the beginnings of a journal that checkpoints tell of, made in one pass over it.

    Attributes
    ----------
    whole : mapping of a number of entries to the root over so many; a number beyond the journal is not there
    subjects : mapping of a population, or `storage.trail.entries.LEDGER`, to such a mapping
        Of the numbers of all entries to the number of its own among them, and the root over those.
    """

    whole: Mapping[int, str]
    subjects: Mapping[str, Mapping[int, tuple[int, str]]]

    @classmethod
    def of(cls, hashes: Sequence[str], subjects: Mapping[str, Sequence[int]], *, lengths: Collection[int]) -> Self:
        """Compute them.

        Parameters
        ----------
        hashes : sequence of str, of the whole journal
        subjects : mapping of a subject to the numbers of its entries, from 1, in their order
        lengths : collection of int, of the checkpoints, in entries of the whole journal
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
    """Sign a checkpoint of a journal, given the hashes of all its entries, and of those of each population by name."""
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
    """Return how a checkpoint names a population: a hash, from which a name that is guessed can be confirmed."""
    return hashlib.sha256(f"dpca population\n{ledger}\n{population}".encode()).hexdigest()
