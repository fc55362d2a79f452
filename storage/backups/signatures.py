"""Sign the manifest of a backup, and check the signature before the backup is used.

A program that can write a backup can change rows and their digests together. So the manifest is signed with the key of
the audit trail, whose public half is published, and a backup under a passphrase has a MAC over the same bytes.
`open_backup` checks them before anything of the backup is used.
"""

import hashlib
import hmac
import json
import os
import re
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from storage.backups.contents import MANIFEST, SIGNATURE, Contents, damaged
from storage.backups.sealed_keys import derived_key
from storage.errors import Invalid, Refused
from storage.home import key_folder
from storage.ledger.trail_export import KEY_FILE, public_key, signing_key

_SIGNED, _KEYED = b"dpca backup 1\n", b"dpca backup under a passphrase 1\n"


def sign_manifest(manifest: bytes, *, private: Ed25519PrivateKey, passphrase: str | None) -> bytes:
    """Return the content of the signature file: the signature, and with a passphrase a salt and a MAC."""
    facts = {"signature": private.sign(_SIGNED + manifest).hex()}
    if passphrase is not None:
        salt = os.urandom(16)
        facts |= {"salt": salt.hex(), "mac": _mac(manifest, passphrase=passphrase, salt=salt).hex()}
    return json.dumps(facts, indent=1).encode()


def open_backup(folder: Path, *, key: str | None = None, passphrase: str | None = None) -> Contents:
    """Check the signature of a backup, then each of its files; return what is in it.

    Parameters
    ----------
    folder : Path
    key : str, optional
        The published key of the ledger's audit trail, in hex; by default that of the configured key folder.
    passphrase : str, optional
        That of the backup; where it fits, no key needs to be known.

    Raises
    ------
    Invalid
        If the key is none.
    NotFound
        If the folder is no backup.
    Corrupt
        If it is not as it was written.
    Refused
        If another key signed it, the passphrase is another one, or nothing is known by which it can be checked.
    """
    if key is not None and not re.fullmatch("[0-9a-f]{64}", key):
        raise Invalid(f"key {key!r} is no public key of 64 hexadecimal digits; give the one that was published.")
    manifest = Contents.read_bytes(folder)
    contents = Contents.decode(manifest, folder)
    try:
        facts = json.loads((folder / SIGNATURE).read_bytes())
        stated = Ed25519PublicKey.from_public_bytes(bytes.fromhex(contents.signed_by))
        stated.verify(bytes.fromhex(facts["signature"]), _SIGNED + manifest)
        has_mac = "mac" in facts
        salt, mac = (bytes.fromhex(facts.get(name, "")) for name in ("salt", "mac"))
    except OSError as error:
        raise damaged(folder, f"{SIGNATURE}: {error.strerror}") from None
    except (AttributeError, InvalidSignature, KeyError, RecursionError, TypeError, ValueError):
        raise damaged(folder, f"{MANIFEST} is not what {SIGNATURE} signs") from None
    is_keyed = passphrase is not None and has_mac
    if is_keyed and not hmac.compare_digest(mac, _mac(manifest, passphrase=str(passphrase), salt=salt)):
        raise Refused(
            f"the backup {folder} was not written under this passphrase, or was changed since; give the passphrase "
            "that it was made with, or use another backup."
        )
    if key is not None or not is_keyed:
        _check_signer(folder, contents.signed_by, known=key or _own_key())
    contents.check_files(folder)
    return contents


def _check_signer(folder: Path, signed_by: str, *, known: str | None) -> None:
    if known is None:
        raise Refused(
            f"the backup {folder} is signed by {signed_by}, and nothing here shows whether that is the ledger's key; "
            "compare it with the published key of the audit trail and give that with --key, or give --passphrase-file."
        )
    if signed_by != known:
        raise Refused(
            f"the backup {folder} is signed by {signed_by}, and the ledger's key is {known}; use a backup of this "
            "ledger, or give the key that was published with --key."
        )


def _own_key() -> str | None:
    """Return the public key of the configured key folder, if it has one."""
    keys = key_folder()
    return public_key(signing_key(keys)) if (keys / KEY_FILE).exists() else None


def _mac(manifest: bytes, *, passphrase: str, salt: bytes) -> bytes:
    return hmac.new(derived_key(passphrase, salt), _KEYED + manifest, hashlib.sha256).digest()
