"""Signature of a backup, and encryption of signing keys under a passphrase.

A backup contains no keys except signing keys, and those only encrypted under a passphrase. The key of a release is
never copied: it generates the release's noise, so it could remove the noise from the published artifact. The keys that
hash the ids of individuals seen by earlier ingests are not copied either. After a restored ledger is accepted, ingests
use a new table of ids under a new key.

An attacker who can write to a backup can change rows together with their digests in the manifest. Therefore the
manifest is signed with the key of the audit trail, whose public half is published. If a passphrase is given, the
manifest also has a MAC under a key derived from the passphrase. `open_backup` checks both before anything of the backup
is used.
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dpca.errors import Corrupt, Invalid, NotFound, Refused
from dpca.home import key_folder
from storage.backups.contents import MANIFEST, SIGNATURE, Contents, damaged
from storage.ledger.trail_export import KEY_FILE, public_key, signing_key

SEALABLE = re.compile(r"(trail|publisher)-signing(-[0-9a-f]+)?\.key")
"""Pattern of the names of key files that a backup may contain (encrypted). Other key files are never backed up."""
LEAST_CHARACTERS = 12
# scrypt parameters: each guess of a passphrase costs 64 MiB of memory and a fraction of a second
_MEMORY, _BLOCK, _LANES = 1 << 16, 8, 1


def read_passphrase(file: Path) -> str:
    """Read a passphrase from the first line of a file.

    Raises
    ------
    NotFound
        If the file cannot be read.
    Invalid
        If the passphrase is shorter than `LEAST_CHARACTERS`.
    """
    try:
        line = file.read_text(encoding="utf-8").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        raise NotFound(f"{file} cannot be read as text; write a passphrase on its first line.") from None
    if len(line) < LEAST_CHARACTERS:
        raise Invalid(f"the first line of {file} has {len(line)} characters; use at least {LEAST_CHARACTERS}.")
    return line


def sealable_keys(keys: Path) -> dict[str, bytes]:
    """Return the signing keys in a key folder that a backup may contain, by file name."""
    if not keys.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(keys.iterdir()) if SEALABLE.fullmatch(path.name)}


def seal(keys: Mapping[str, bytes], *, passphrase: str, ledger: str) -> bytes:
    """Encrypt keys under a passphrase; they can be decrypted only with this passphrase and for this ledger."""
    salt, nonce = os.urandom(16), os.urandom(12)
    shown = json.dumps({name: key.hex() for name, key in keys.items()}).encode()
    closed = ChaCha20Poly1305(derived_key(passphrase, salt)).encrypt(nonce, shown, _context(ledger))
    return json.dumps({"version": 1, "salt": salt.hex(), "nonce": nonce.hex(), "sealed": closed.hex()}).encode()


def unseal(sealed: bytes, *, passphrase: str, ledger: str) -> dict[str, bytes]:
    """Decrypt sealed keys.

    Raises
    ------
    Refused
        If the keys were sealed with another passphrase or for another ledger.
    Corrupt
        If the input is damaged, or contains a file that is not a signing key.
    """
    try:
        found = json.loads(sealed)
        salt, nonce, closed = (bytes.fromhex(found[name]) for name in ("salt", "nonce", "sealed"))
        shown = ChaCha20Poly1305(derived_key(passphrase, salt)).decrypt(nonce, closed, _context(ledger))
        keys = {name: bytes.fromhex(key) for name, key in json.loads(shown).items()}
    except InvalidTag:
        raise Refused("the passphrase does not open the sealed keys; give the passphrase that sealed them.") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise Corrupt("the sealed keys are damaged; use another backup, or restore without keys.") from None
    if not all(SEALABLE.fullmatch(name) for name in keys):
        raise Corrupt("the sealed keys contain a file that is not a signing key; use another backup.")
    return keys


def derived_key(passphrase: str, salt: bytes) -> bytes:
    """Derive an encryption key from a passphrase and a salt."""
    return Scrypt(salt=salt, length=32, n=_MEMORY, r=_BLOCK, p=_LANES).derive(passphrase.encode())


def _context(ledger: str) -> bytes:
    return f"dpca sealed keys 1\n{ledger}".encode()


_SIGNED, _KEYED = b"dpca backup 1\n", b"dpca backup under a passphrase 1\n"


def sign_manifest(manifest: bytes, *, private: Ed25519PrivateKey, passphrase: str | None) -> bytes:
    """Return the content of the signature file, which has a salt and a MAC if there is a passphrase."""
    facts = {"signature": private.sign(_SIGNED + manifest).hex()}
    if passphrase is not None:
        salt = os.urandom(16)
        facts |= {"salt": salt.hex(), "mac": _mac(manifest, passphrase=passphrase, salt=salt).hex()}
    return json.dumps(facts, indent=1).encode()


def open_backup(folder: Path, *, key: str | None = None, passphrase: str | None = None) -> Contents:
    """Check the signature of a backup, then each of its files, and return its manifest.

    Parameters
    ----------
    folder : Path
    key : str, optional
        The published key of the ledger's audit trail, in hex; by default the key in the configured key folder.
    passphrase : str, optional
        The passphrase of the backup. If the manifest's MAC is valid under this passphrase, no key is necessary.

    Raises
    ------
    Invalid
        If ``key`` is no public key.
    NotFound
        If the folder is no backup.
    Corrupt
        If the backup has changed since it was written.
    Refused
        If the backup is signed by another key or was made with another passphrase. Also if there is neither a key nor a
        passphrase to check the signature.
    """
    if key is not None and not re.fullmatch("[0-9a-f]{64}", key):
        raise Invalid(f"key {key!r} is not a public key of 64 hexadecimal digits; give the published key.")
    manifest = Contents.read_bytes(folder)
    contents = Contents.decode(manifest, folder)
    try:
        facts = json.loads((folder / SIGNATURE).read_bytes())
        declared = Ed25519PublicKey.from_public_bytes(bytes.fromhex(contents.signed_by))
        declared.verify(bytes.fromhex(facts["signature"]), _SIGNED + manifest)
        has_mac = "mac" in facts
        salt, mac = (bytes.fromhex(facts.get(name, "")) for name in ("salt", "mac"))
    except OSError as error:
        raise damaged(folder, f"{SIGNATURE}: {error.strerror}") from None
    except (AttributeError, InvalidSignature, KeyError, RecursionError, TypeError, ValueError):
        raise damaged(folder, f"{MANIFEST} does not match {SIGNATURE}") from None
    is_keyed = passphrase is not None and has_mac
    if is_keyed and not hmac.compare_digest(mac, _mac(manifest, passphrase=str(passphrase), salt=salt)):
        raise Refused(
            f"the passphrase does not match the backup {folder}, or the backup was changed after its creation; give "
            "the passphrase with which it was made, or use another backup."
        )
    if key is not None or not is_keyed:
        _check_signer(folder, contents.signed_by, known=key or _own_key())
    contents.check_files(folder)
    return contents


def _check_signer(folder: Path, signed_by: str, *, known: str | None) -> None:
    if known is None:
        raise Refused(
            f"the backup {folder} is signed by {signed_by}, and this installation cannot verify that it is the "
            "ledger's key; give the published key of the audit trail with --key, or the passphrase of the backup "
            "with --passphrase-file."
        )
    if signed_by != known:
        raise Refused(
            f"the backup {folder} is signed by {signed_by}, and the ledger's key is {known}; use a backup of this "
            "ledger, or give the published key with --key."
        )


def _own_key() -> str | None:
    """Return the public key in the configured key folder, or None if there is none."""
    keys = key_folder()
    return public_key(signing_key(keys)) if (keys / KEY_FILE).exists() else None


def _mac(manifest: bytes, *, passphrase: str, salt: bytes) -> bytes:
    return hmac.new(derived_key(passphrase, salt), _KEYED + manifest, hashlib.sha256).digest()
