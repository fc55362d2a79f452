"""The locations of all data: the home folder ``DPCA_HOME``, and the settings that place some data elsewhere."""

import os
import re
from pathlib import Path

from dpca.backends.atomic_files import FOLDER, is_yes, require_private
from dpca.backends.base import Place
from dpca.backends.local import LocalPlace, open_place
from dpca.errors import Invalid, Refused, Unavailable

WORKERS = "workers"
"""The folder of a home for the locks of Dask's local workers, outside the folders that ingests clean up."""
STAGING = "staging"
"""The folder of a home for artifacts and release steps in preparation. Remains of a crash are removed from it."""


def home() -> Path:
    """Return the home folder without creating it: ``DPCA_HOME``, or by default the platform's folder for user data."""
    chosen = os.environ.get("DPCA_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("dpca")


def readable_home() -> Path:
    """Return the home folder for reading, without creating the folder if it does not exist yet.

    Raises
    ------
    Unavailable
        If the path of the home folder, or of a folder above it, is a file.
    Refused
        If other users can access the home folder.
    """
    folder = home()
    if folder.is_dir():
        require_private(folder, name="DPCA_HOME")
    elif any(place.exists() and not place.is_dir() for place in (folder, *folder.parents)):
        raise _unusable(folder)
    return folder


def writable_home() -> Path:
    """Return the home folder for writing, and create the folder if it does not exist.

    Raises
    ------
    Unavailable
        If the home folder cannot be created or written.
    Refused
        If other users can access the home folder.
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
    """Return the storage place of datasets and artifacts: ``DPCA_STORE_URL``, or by default the home folder.

    Raises
    ------
    Invalid
        If ``DPCA_STORE_URL`` is not ``s3://bucket/prefix``.
    """
    url = os.environ.get("DPCA_STORE_URL")
    if not url:
        return LocalPlace(home())
    if not url.startswith("s3://"):
        raise Invalid("DPCA_STORE_URL must be s3://bucket/prefix; correct it, or unset it to use the home folder")
    return open_place(url)


def ledger_url() -> str | None:
    """Return ``DPCA_LEDGER_URL``, the address of a ledger server; None if this process opens the ledger's database."""
    return os.environ.get("DPCA_LEDGER_URL") or None


def database_url() -> str:
    """Return the URL of the database: ``DPCA_DATABASE_URL``, or by default a SQLite file in the home folder.

    Raises
    ------
    Refused
        If ``DPCA_LEDGER_URL`` is set, because then only the ledger server opens the database.
    """
    if ledger_url() is not None:
        raise Refused(
            "this command needs the database, which a process with DPCA_LEDGER_URL cannot open; run it where `dpca "
            "ledger serve` runs, without DPCA_LEDGER_URL."
        )
    return os.environ.get("DPCA_DATABASE_URL") or f"sqlite:///{home() / 'dpca.sqlite'}"


def key_folder() -> Path:
    """Return the folder of keys: ``DPCA_KEY_FOLDER``, or by default ``keys`` in the home folder.

    Raises
    ------
    Refused
        If the folder exists, and other users can access it.
    """
    chosen = os.environ.get("DPCA_KEY_FOLDER")
    return _closed(Path(chosen).expanduser().absolute() if chosen else home() / "keys", name="DPCA_KEY_FOLDER")


def state_folder() -> Path:
    """Return the folder for state that a backup of the home must not restore, such as the newest pointers seen.

    The folder is ``DPCA_STATE_FOLDER``, or by default the platform's folder for state.

    Raises
    ------
    Refused
        If the folder exists, and other users can access it.
    """
    chosen = os.environ.get("DPCA_STATE_FOLDER")
    if chosen:
        return _closed(Path(chosen).expanduser().absolute(), name="DPCA_STATE_FOLDER")
    from platformdirs import user_state_path

    # The name differs from that of the home folder, because some platforms use the same parent for state and data.
    return _closed(user_state_path("dpca-state"), name="DPCA_STATE_FOLDER")


def requires_signature() -> bool:
    """Return whether ``DPCA_REQUIRE_SIGNATURE`` is set, so that registries without a pinned root key are refused."""
    return is_yes("DPCA_REQUIRE_SIGNATURE")


def signature_days() -> int | None:
    """Return after how many days a signed pointer expires (``DPCA_SIGNATURE_DAYS``); None, the default, means never.

    Raises
    ------
    Invalid
        If ``DPCA_SIGNATURE_DAYS`` is not a whole number from 1 to 99999.
    """
    text = os.environ.get("DPCA_SIGNATURE_DAYS", "").strip()
    if not text:
        return None
    if not re.fullmatch("[1-9][0-9]{0,4}", text):
        raise Invalid(
            f"DPCA_SIGNATURE_DAYS={text!r} must be a whole number of days, 1 to 99999; correct it, or unset it"
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
    """Return whether a folder, or its nearest existing parent, is on a disk mounted read-only."""
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
