"""Keys that may lie in a backup, sealed under a passphrase: those that sign, and no other.

A key of a release is never copied: beside the published artifact it takes the noise off. The keys of first-seen ids are
not copied either, because accepting a restored ledger begins another table of ids.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from storage.errors import Corrupt, Invalid, NotFound, Refused

SEALABLE = re.compile(r"(trail|publisher)-signing(-[0-9a-f]+)?\.key")
"""The names of files in the key folder that may be sealed; every other file there stays there."""
LEAST_CHARACTERS = 12
_MEMORY, _BLOCK, _LANES = 1 << 16, 8, 1  # 64 MiB and a fraction of a second a guess


def read_passphrase(file: Path) -> str:
    """Read a passphrase, the first line of a file.

    Raises
    ------
    NotFound, Invalid
        If the file cannot be read, or its line is short.
    """
    try:
        line = file.read_text(encoding="utf-8").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        raise NotFound(f"{file} cannot be read as text; write a passphrase into its first line.") from None
    if len(line) < LEAST_CHARACTERS:
        raise Invalid(f"the first line of {file} has {len(line)} characters; take at least {LEAST_CHARACTERS}.")
    return line


def sealable_keys(keys: Path) -> dict[str, bytes]:
    """Return the keys of a key folder that may be sealed, by file name."""
    if not keys.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(keys.iterdir()) if SEALABLE.fullmatch(path.name)}


def seal(keys: Mapping[str, bytes], *, passphrase: str, ledger: str) -> bytes:
    """Encrypt keys for whoever knows the passphrase; only with those of this ledger are they opened again."""
    salt, nonce = os.urandom(16), os.urandom(12)
    told = json.dumps({name: key.hex() for name, key in keys.items()}).encode()
    closed = ChaCha20Poly1305(derived_key(passphrase, salt)).encrypt(nonce, told, _context(ledger))
    return json.dumps({"version": 1, "salt": salt.hex(), "nonce": nonce.hex(), "sealed": closed.hex()}).encode()


def unseal(sealed: bytes, *, passphrase: str, ledger: str) -> dict[str, bytes]:
    """Open sealed keys.

    Raises
    ------
    Refused
        If the passphrase is another one.
    Corrupt
        If it is nothing that `seal` wrote.
    """
    try:
        found = json.loads(sealed)
        salt, nonce, closed = (bytes.fromhex(found[name]) for name in ("salt", "nonce", "sealed"))
        told = ChaCha20Poly1305(derived_key(passphrase, salt)).decrypt(nonce, closed, _context(ledger))
        keys = {name: bytes.fromhex(key) for name, key in json.loads(told).items()}
    except InvalidTag:
        raise Refused(
            "the passphrase does not open the sealed keys; give the one that they were sealed with."
        ) from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise Corrupt("the sealed keys are damaged; use another backup, or restore without keys.") from None
    if not all(SEALABLE.fullmatch(name) for name in keys):
        raise Corrupt("the sealed keys hold a file that is no key that signs; use another backup.")
    return keys


def derived_key(passphrase: str, salt: bytes) -> bytes:
    """Return the key that a passphrase and a salt give."""
    return Scrypt(salt=salt, length=32, n=_MEMORY, r=_BLOCK, p=_LANES).derive(passphrase.encode())


def _context(ledger: str) -> bytes:
    return f"dpca sealed keys 1\n{ledger}".encode()
