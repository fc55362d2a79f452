"""``dpca registry key``, ``root``, ``trust`` and ``resign``, as operators and consumers type them."""

import json
from pathlib import Path

import pytest

from tests.flows.conftest import Command


@pytest.fixture
def signed(released: Path, dpca: Command, tmp_path: Path) -> Path:
    """Make a root for a home with a release; return the root's key."""
    assert (released / "registry" / "signed" / "sub.json").exists()
    key = tmp_path / "root.key"
    assert dpca("registry", "root", "init", "--out", key).status == 0
    return key


def verified(dpca: Command) -> bool:
    return bool(json.loads(dpca("registry", "verify", "sub@1", "--require-signature", "--json").out)["signed"])


def test_a_consumer_pins_a_root_and_follows_a_rotation_and_a_revocation(
    dpca: Command, signed: Path, tmp_path: Path
) -> None:
    assert "no root key is pinned" in dpca("registry", "verify", "sub@1", "--require-signature").complaint(1)
    assert dpca("registry", "trust", tmp_path / "root.key.pub").status == 0
    assert verified(dpca)
    first, after = tmp_path / "first.pub", tmp_path / "next.pub"
    assert dpca("registry", "key", "show", "--out", first).status == 0
    assert dpca("registry", "key", "rotate", "--out", after).status == 0
    root = ("registry", "root", "update", "--key", signed)
    assert dpca(*root, "--delegate", after, "--retire", first).status == 0
    assert verified(dpca)
    assert dpca("registry", "resign").status == 0
    assert verified(dpca)
    assert dpca(*root, "--revoke", first).status == 0
    assert verified(dpca)
    assert dpca(*root, "--revoke", after).status == 0
    assert "was revoked in version 4" in dpca("registry", "verify", "sub@1").complaint(1)
    shown = json.loads(dpca("registry", "root", "show", "--json").out)
    assert (shown["version"], [*shown["publishers"].values()]) == (4, ["revoked: *"] * 2)


def test_an_operator_is_told_what_is_missing_in_one_line(dpca: Command, signed: Path, tmp_path: Path) -> None:
    assert "has a root already" in dpca("registry", "root", "init", "--out", tmp_path / "other.key").complaint(1)
    assert not (tmp_path / "other.key").exists()
    assert "exists already" in dpca("registry", "key", "new").complaint(1)
    assert "64 hex digits" in dpca("registry", "trust", "key").complaint(1)
    assert "has no root signed by the pinned key" in dpca("registry", "trust", "0" * 64).complaint(1)
    other = tmp_path / "stranger.key"
    assert dpca("registry", "root", "new-key", "--out", other).status == 0
    assert "fewer of them were given" in dpca("registry", "root", "update", "--key", other).complaint(1)
    threshold = dpca("registry", "root", "init", "--out", tmp_path / "third.key", "--threshold", "2")
    assert "must be 1 to 1" in threshold.complaint(1)
    missing = dpca("registry", "root", "update", "--key", tmp_path / "missing.key")
    assert "cannot be read" in missing.complaint(1)
    assert signed.exists()


def test_doctor_says_when_consumers_refuse_what_is_signed(dpca: Command, signed: Path, tmp_path: Path) -> None:
    def signing() -> str:
        found = json.loads(dpca("doctor", "--json").out)
        return next(str(row["verdict"]) for row in found if row["check"] == "signing")

    assert signing() == "ok"
    publisher = json.loads(dpca("registry", "key", "show", "--json").out)["publisher"]
    assert dpca("registry", "root", "update", "--key", signed, "--revoke", publisher).status == 0
    assert signing() == "fix"
