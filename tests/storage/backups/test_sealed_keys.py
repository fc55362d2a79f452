"""Only keys that sign are sealed, only the passphrase opens them, and only for their ledger."""

from pathlib import Path

import pytest

from storage.backups import sealed_keys
from storage.backups.sealed_keys import read_passphrase, seal, sealable_keys, unseal
from storage.errors import Corrupt, Invalid, NotFound, Refused

PASSPHRASE = "a dozen words or so"
KEYS = {"trail-signing.key": bytes(range(32)), "publisher-signing.key": bytes(32)}


def test_only_keys_that_sign_are_taken_of_a_key_folder(tmp_path: Path) -> None:
    for name in ("ab" * 16, f"arrivals-{'cd' * 16}", "witness.json", ".witness.lock", "sites.key"):
        (tmp_path / name).write_bytes(b"secret")
    for name, key in KEYS.items():
        (tmp_path / name).write_bytes(key)
    assert sealable_keys(tmp_path) == KEYS
    assert sealable_keys(tmp_path / "absent") == {}


def test_the_passphrase_alone_opens_them_and_for_their_ledger_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_keys, "_MEMORY", 1 << 10)  # fast; the rest is as it is
    sealed = seal(KEYS, passphrase=PASSPHRASE, ledger="a" * 32)
    assert not any(key in sealed or key.hex().encode() in sealed for key in KEYS.values())
    assert unseal(sealed, passphrase=PASSPHRASE, ledger="a" * 32) == KEYS
    for passphrase, ledger in ((PASSPHRASE + "!", "a" * 32), (PASSPHRASE, "b" * 32)):
        with pytest.raises(Refused, match="does not open"):
            unseal(sealed, passphrase=passphrase, ledger=ledger)
    with pytest.raises(Corrupt, match="damaged"):
        unseal(b"{}", passphrase=PASSPHRASE, ledger="a" * 32)
    with pytest.raises(Corrupt, match="no key that signs"):
        unseal(seal({"../x": b""}, passphrase=PASSPHRASE, ledger="c"), passphrase=PASSPHRASE, ledger="c")


def test_a_passphrase_is_the_first_line_of_a_file_and_not_short(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    with pytest.raises(NotFound, match="cannot be read"):
        read_passphrase(file)
    file.write_text(f"{PASSPHRASE}\nmore\n")
    assert read_passphrase(file) == PASSPHRASE
    file.write_text("short\n")
    with pytest.raises(Invalid, match="has 5 characters"):
        read_passphrase(file)
