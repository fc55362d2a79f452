"""Fixtures: a home with everything that a backup contains, and other homes into which it is restored."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpca.home import key_folder, store
from storage.backups.contents import MANIFEST, SIGNATURE, Contents, list_files
from storage.backups.signatures import sign_manifest
from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import export_trail, public_key, signing_key
from storage.workspace import Workspace
from tests.storage import releasing
from tests.storage.releasing import POPULATION, begin, open_budget, publish, reserve

Move = Callable[..., Path]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a separate state folder for the test."""
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def filled(state: Path, ledger: Ledger) -> Ledger:
    """Return a ledger with published versions, a tick, a signed checkpoint, and unfinished releases."""
    fill(ledger)
    return ledger


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fill a home with a SQLite database, and its state folder, once for all tests; return their folder."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("DPCA_HOME", str(folder / "home"))
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "state"))
        fill(Workspace.open().ledger)
    return folder


@pytest.fixture
def filled_on_sqlite(template: Path, tmp_path: Path, state: Path, home: Path) -> Ledger:
    """Return a copy of the filled home, for tests that do not depend on the database."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Workspace.open().ledger


def fill(ledger: Ledger) -> None:
    """Publish versions and a tick, sign a checkpoint, and leave releases reserved and in progress."""
    open_budget(ledger)
    releasing.register(ledger)
    releasing.open_stream(ledger)
    releasing.publish_tick(ledger, "night 1")
    publish(ledger, "first")
    Workspace.open().promote("map", version=1, alias="champion")
    publish(ledger, "second", name="other")
    begin(ledger, "third").keep(0, {"a": releasing.STREAMED})
    reserve(ledger, "fourth")
    with ledger.transaction() as connection:
        export_trail(connection, POPULATION, place=store(), keys=key_folder())


def sign(folder: Path, contents: Contents, *, keys: Path | None = None, passphrase: str | None = None) -> None:
    """Write the manifest of a backup, signed by the key in a folder, by default the configured one."""
    private = signing_key(keys or key_folder())
    manifest = replace(contents, signed_by=public_key(private)).encode()
    (folder / MANIFEST).write_bytes(manifest)
    (folder / SIGNATURE).write_bytes(sign_manifest(manifest, private=private, passphrase=passphrase))


def list_anew(folder: Path, contents: Contents) -> Contents:
    """Return the contents of a backup with a new list of the files that exist now."""
    files = {path: shown for path, shown in list_files(folder).items() if path not in (MANIFEST, SIGNATURE)}
    return replace(contents, files=files)


@pytest.fixture
def move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Return a function that simulates another machine.

    The function creates an empty home, with or without a separate state folder.
    """

    def move(name: str, *, database_url: str = "", state: bool = True) -> Path:
        home = tmp_path / name
        monkeypatch.setenv("DPCA_HOME", str(home))
        monkeypatch.delenv("DPCA_DATABASE_URL", raising=False)
        monkeypatch.delenv("DPCA_STORE_URL", raising=False)
        if database_url:
            monkeypatch.setenv("DPCA_DATABASE_URL", database_url)
        if state:
            monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / f"{name}-state"))
        return home

    return move
