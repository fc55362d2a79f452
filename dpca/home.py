"""The locations of all data: the folder ``DPCA_HOME``, and what other settings move out of it."""

import os
import re
from pathlib import Path

from dpca.backends.atomic_files import FOLDER, is_yes, require_private
from dpca.backends.base import Place
from dpca.backends.local import LocalPlace, open_place
from dpca.errors import Invalid, Refused, Unavailable

WORKERS = "workers"
"""The folder of a home in which Dask's local workers keep their locks; apart from what ingests sweep."""
STAGING = "staging"
"""The folder of a home in which artifacts and the steps of releases are made; what a crash leaves there is removed."""


def home() -> Path:
    """Return ``DPCA_HOME``, or the platform's folder for user data; nothing is created."""
    chosen = os.environ.get("DPCA_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("dpca")


def readable_home() -> Path:
    """Return the home folder, which need not exist yet; nothing is created.

    Raises
    ------
    Unavailable
        When it, or a folder above it, is a file.
    Refused
        When other users can enter it.
    """
    folder = home()
    if folder.is_dir():
        require_private(folder, name="DPCA_HOME")
    elif any(place.exists() and not place.is_dir() for place in (folder, *folder.parents)):
        raise _unusable(folder)
    return folder


def writable_home() -> Path:
    """Return the home folder, created when it is missing.

    Raises
    ------
    Unavailable
        When it cannot be created or written.
    Refused
        When other users can enter it.
    """
    folder = home()
    try:
        if not folder.exists():
            folder.mkdir(mode=FOLDER, parents=True, exist_ok=True)
            folder.chmod(FOLDER)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise _unusable(folder)
    require_private(folder, name="DPCA_HOME")
    return folder


def store() -> Place:
    """Return the address of datasets and artifacts: ``DPCA_STORE_URL``, or the home folder.

    Raises
    ------
    Invalid
        When ``DPCA_STORE_URL`` is not ``s3://bucket/prefix``.
    """
    url = os.environ.get("DPCA_STORE_URL")
    if not url:
        return LocalPlace(home())
    if not url.startswith("s3://"):
        raise Invalid("DPCA_STORE_URL must be s3://bucket/prefix; correct it, or unset it to use the home folder")
    return open_place(url)


def ledger_url() -> str | None:
    """Return ``DPCA_LEDGER_URL``, the address of a ledger that another process holds; None where this one does."""
    return os.environ.get("DPCA_LEDGER_URL") or None


def database_url() -> str:
    """Return ``DPCA_DATABASE_URL``, or a SQLite file in the home folder.

    Raises
    ------
    Refused
        When ``DPCA_LEDGER_URL`` says that another process holds the database.
    """
    if ledger_url() is not None:
        raise Refused(
            "this needs the database, which a process with DPCA_LEDGER_URL cannot open; run it where `dpca ledger "
            "serve` runs, without DPCA_LEDGER_URL."
        )
    return os.environ.get("DPCA_DATABASE_URL") or f"sqlite:///{home() / 'dpca.sqlite'}"


def key_folder() -> Path:
    """Return ``DPCA_KEY_FOLDER``, or the folder of keys in the home folder.

    Raises
    ------
    Refused
        When it is there, and other users can enter it.
    """
    chosen = os.environ.get("DPCA_KEY_FOLDER")
    return _closed(Path(chosen).expanduser().absolute() if chosen else home() / "keys", name="DPCA_KEY_FOLDER")


def state_folder() -> Path:
    """Return ``DPCA_STATE_FOLDER``, or the platform's folder for state: what is not to be restored with the home.

    Raises
    ------
    Refused
        When it is there, and other users can enter it.
    """
    chosen = os.environ.get("DPCA_STATE_FOLDER")
    if chosen:
        return _closed(Path(chosen).expanduser().absolute(), name="DPCA_STATE_FOLDER")
    from platformdirs import user_state_path

    # A name of its own: some platforms keep state and data in one folder.
    return _closed(user_state_path("dpca-state"), name="DPCA_STATE_FOLDER")


def requires_signature() -> bool:
    """Tell whether ``DPCA_REQUIRE_SIGNATURE`` refuses registries for which no root key is pinned."""
    return is_yes("DPCA_REQUIRE_SIGNATURE")


def signature_days() -> int | None:
    """Return ``DPCA_SIGNATURE_DAYS``: after how many days a signed pointer expires; None, the default, is never.

    Raises
    ------
    Invalid
        When it is no number of days.
    """
    text = os.environ.get("DPCA_SIGNATURE_DAYS", "").strip()
    if not text:
        return None
    if not re.fullmatch("[1-9][0-9]{0,4}", text):
        raise Invalid(
            f"DPCA_SIGNATURE_DAYS={text!r} must be a whole number of days, at least 1; correct it, or unset it"
        )
    return int(text)


def _unusable(folder: Path) -> Unavailable:
    if is_on_read_only_disk(folder):
        return Unavailable(
            f"DPCA_HOME={folder} is not a writable folder, because its disk is read-only; only commands that read "
            "work; mount the disk for writing, or set DPCA_HOME to another folder."
        )
    return Unavailable(f"DPCA_HOME={folder} is not a writable folder; set DPCA_HOME to a writable one.")


def is_on_read_only_disk(folder: Path) -> bool:
    """Return whether a folder, or the nearest one above that exists, is on a disk that is mounted read-only."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _closed(folder: Path, *, name: str) -> Path:
    if folder.is_dir():
        require_private(folder, name=name)
    return folder
