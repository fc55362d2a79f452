"""Crash-safe private files and their digests.

*Crash points.* A crash point is a named point in the code between two durable effects, such as two writes. A test can
stop the process at each crash point. A database row is *written* inside a transaction that may still fail, and
*committed* after the transaction. The points whose names begin with ``file``, ``folder``, ``record`` or ``witness`` lie
in functions that write every file, folder or record, so a release passes these points several times.

>>> "reserve.key_written" in POINTS
True

*Private folders.* The home folder contains rows, noisy answers, keys and the ledger. So all of its folders have mode
0700 and all of its files mode 0600, regardless of the umask. If other users can enter a home or key folder, the folder
is refused until its owner changes the mode or sets ``DPCA_ALLOW_SHARED_HOME``.

*Files written once.* If several processes create the same file, the first process succeeds and its content is kept.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "note"
>>> claim_file(path, b"mine"), claim_file(path, b"yours"), path.read_bytes()
(True, False, b'mine')

*Atomic writes.* A file becomes visible by one rename of a synced temporary file. A folder becomes visible by one rename
of a synced staged folder. This module does not interpret the bytes.

*Digests.* The digest of a folder covers the names, sizes and contents of all files below the folder.

Examples
--------
>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> write_atomically(folder / "note.txt", b"kept")
>>> digest_tree(folder) == digest_files({"note.txt": b"kept"})
True

"""

import errno
import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from dpca.errors import Corrupt, Refused, StorageError, Unavailable

POINTS = (
    "file.synced",
    "file.renamed",
    "folder.synced",
    "folder.renamed",
    "record.committed",
    "witness.synced",
    "reserve.key_written",
    "reserve.row_written",
    "reserve.row_committed",
    "begin.row_written",
    "begin.row_committed",
    "keep.file_written",
    "keep.row_written",
    "keep.row_committed",
    "artifact.staged",
    "artifact.written",
    "commit.row_written",
    "commit.row_committed",
    "commit.key_erased",
    "commit.staging_removed",
    "pointer.signed",
    "pointer.written",
    "pointer.row_written",
)

STREAM_POINTS = (
    "stream.row_written",
    "stream.row_committed",
    "tick.key_written",
    "tick.row_written",
    "tick.row_committed",
    "answer.file_written",
    "answer.row_written",
    "answer.row_committed",
)
"""The additional crash points of a stream. Each tick, which releases one answer, passes most points of both lists."""

INGEST_POINTS = ("arrivals.key_written", "arrivals.planned", "arrivals.published", "arrivals.recorded")
"""The additional crash points of an ingest with ids of individuals."""

hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Report to a test that a crash point was reached; do nothing in production."""
    known = (*POINTS, *STREAM_POINTS, *INGEST_POINTS)
    if point not in known:
        raise ValueError(f"crash point {point!r} is not one of {', '.join(known)}; add it to the table of its kind.")
    if hook is not None:
        hook(point)


FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077
"""The permission bits of the group and of others."""

_YES = {"1", "true", "yes", "on"}


def create_file(path: Path) -> None:
    """Create an empty file of mode 0600 at a path that must not exist yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE)
    try:
        os.fchmod(descriptor, FILE)
    finally:
        os.close(descriptor)


def close_tree(root: Path) -> None:
    """Revoke all permissions of other users on a folder and everything in it."""
    root.chmod(FOLDER)
    for folder, folders, files in os.walk(root):
        for name in folders:
            os.chmod(f"{folder}/{name}", FOLDER)  # noqa: PTH101 - making a path object takes longer
        for name in files:
            os.chmod(f"{folder}/{name}", FILE)  # noqa: PTH101


def require_private(folder: Path, *, name: str) -> None:
    """Refuse a folder if other users can access the folder itself or the target of a symbolic link in the folder.

    Parameters
    ----------
    folder : Path
        An existing folder, or a link to one.
    name : str
        The setting that names the folder, such as ``DPCA_HOME``, for the error message.

    Raises
    ------
    Refused
        If other users have access, unless ``DPCA_ALLOW_SHARED_HOME`` permits this.
    """
    if is_insisted():
        return
    for found, remedy in openings(folder):
        raise Refused(
            f"{name}={folder} holds private files, and {found}; run `{remedy}`, or set DPCA_ALLOW_SHARED_HOME=true if "
            "you trust all other users."
        )


def is_insisted() -> bool:
    """Return whether ``DPCA_ALLOW_SHARED_HOME`` permits private folders that other users can access."""
    return is_yes("DPCA_ALLOW_SHARED_HOME")


def is_yes(variable: str) -> bool:
    """Return whether an environment variable is set to true, 1, yes or on."""
    return os.environ.get(variable, "").strip().lower() in _YES


def openings(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each reason why other users can access a folder, with the shell command that removes this access."""
    for path in (folder, *_links(folder)):
        with suppress(FileNotFoundError):
            yield from _openings(path)


def _links(folder: Path) -> list[Path]:
    if not os.access(folder, os.R_OK):
        return []
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_symlink())


def _openings(path: Path) -> Iterator[tuple[str, str]]:
    status = path.stat()
    if status.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(status.st_mode) & OTHERS:
        return
    target = path.resolve()
    closed = FOLDER if stat.S_ISDIR(status.st_mode) else FILE
    leads = f"{path} leads to {target}, which" if path.is_symlink() else f"{target}"
    if status.st_uid not in (os.geteuid(), 0):
        yield f"{leads} belongs to user {status.st_uid}", f"chown {os.geteuid()} {target}"
    if stat.S_IMODE(status.st_mode) & OTHERS:
        yield f"{leads} is open to other users (mode {stat.S_IMODE(status.st_mode):o})", f"chmod {closed:o} {target}"


def claim_file(path: Path, payload: bytes) -> bool:
    """Write a new file durably with owner-only access. Return False, and write nothing, if the file already exists.

    Guarantees
    ----------
    The file is complete as soon as it exists, also after a crash, and never changes.
    """
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(temporary)
        is_ours = True
    except FileExistsError:
        is_ours = False
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)  # sync the folder also for another writer, who may have been killed before a sync
    return is_ours


MOST_BYTES = 1 << 34
"""The most bytes of a file, or of a published folder, that are read into memory."""
MOST_FILES = 1 << 12
"""The most files of a published folder that are read at once."""
_PIECE = 1 << 12
_ATTEMPTS = 100


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert operating system errors from writing below a folder, within this context, into one clear error.

    Raises
    ------
    Unavailable
        If a file or folder below `folder` cannot be written, for example because the disk is full.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be written ({error.strerror or error}); free disk space or correct the permissions, and "
            "run the same request again."
        ) from None


def sync_file(path: Path | str) -> None:
    """Flush the content of one file to the disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path | str) -> None:
    """Flush the entries of one folder (names, renames, removals) to the disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_tree(root: Path) -> None:
    """Flush every file and folder under `root`, and `root` itself, to the disk."""
    # Paths are plain strings here, because creating a Path object takes as long as syncing a file.
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync_file(f"{folder}/{name}")
        sync_folder(folder)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents durably, for their owner alone; leave an existing folder unchanged."""
    attempts = _ATTEMPTS
    while not path.is_dir():
        make_folder(path.parent)
        attempts -= 1
        try:
            path.mkdir(mode=FOLDER, exist_ok=True)
            path.chmod(FOLDER)  # the umask may have removed permission bits from the mode given to mkdir
            sync_folder(path.parent)
        except (FileNotFoundError, FileExistsError):  # try again, as another process may have removed an empty parent
            if attempts <= 0:
                raise


def write_atomically(path: Path, payload: bytes) -> None:
    """Write or replace a file atomically and durably, accessible by its owner alone.

    Parameters
    ----------
    path : Path
        The path of the file. The folder must exist.
    payload : bytes
        The whole content of the file.

    Guarantees
    ----------
    A reader sees either the old or the new content, also after a crash. A killed writer leaves at most a hidden file
    ``.<random>.tmp`` in the same folder. The file has mode 0600 before its first byte is written, regardless of the
    umask.
    """
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb") as file:
            os.fchmod(file.fileno(), FILE)
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        reached("file.synced")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    reached("file.renamed")
    sync_folder(path.parent)


def move_folder(staged: Path, address: Path) -> bool:
    """Move a complete folder to its final path atomically and durably, accessible by its owner alone.

    Parameters
    ----------
    staged : Path
        A complete folder on the same file system as `address`.
    address : Path
        The final path of the folder. The parent folder must exist.

    Returns
    -------
    bool
        False if the address already exists; both folders are then left untouched.
    """
    close_tree(staged)
    sync_tree(staged)
    reached("folder.synced")
    try:
        staged.rename(address)
    except OSError:
        if address.exists():
            return False
        raise
    reached("folder.renamed")
    sync_folder(address.parent)
    sync_folder(staged.parent)
    return True


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Write files, given by relative path, below a folder, without syncing them (`move_folder` syncs them later)."""
    # Paths are plain strings here, because creating a Path object takes as long as writing a file.
    for folder in {relative.rpartition("/")[0] for relative in files}:
        os.makedirs(f"{root}/{folder}", exist_ok=True)  # noqa: PTH103
    for relative, payload in files.items():
        with open(f"{root}/{relative}", "wb") as file:  # noqa: PTH123
            file.write(payload)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write files, given by relative path, as a new folder, atomically and durably, accessible by its owner alone.

    Raises
    ------
    FileExistsError
        If the path already exists.
    """
    staged = path.with_name(f".{uuid4().hex}.tmp")
    try:
        write_files(staged, files)
        if not move_folder(staged, path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def read_file(path: Path | str, *, most: int) -> bytes:
    """Read a regular file of bounded size; refuse pipes and devices before reading a byte.

    Raises
    ------
    Corrupt
        If the path is a pipe or a device, which another user may have placed there, or if the file has more than
        `most` bytes.
    OSError
        If the file cannot be opened.
    """
    return read_with_status(path, most=most)[0]


def read_with_status(path: Path | str, *, most: int) -> tuple[bytes, os.stat_result]:
    """Read a file as `read_file` does, and also return the file's status (`os.stat_result`) from before the read."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size <= most:
            pieces, length = [], 0
            while length <= most and (piece := file.read(max(status.st_size - length, _PIECE) + 1)):
                pieces.append(piece)
                length += len(piece)
                if length == status.st_size:
                    break
            if length <= most:
                return b"".join(pieces), status
    raise _irregular(path, most)


@contextmanager
def open_regular(path: Path | str) -> Iterator[io.FileIO]:
    """Open a file for reading, and check that the opened file is a regular one; do not block on a pipe.

    Links are followed. Check and read use the same open file, so the file cannot be exchanged between them.

    Raises
    ------
    Corrupt
        If the path is a pipe or a device, which another user may have placed there.
    OSError
        If the path cannot be opened, or is a folder.
    """
    with io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _irregular(path, MOST_BYTES)
        yield file


def _irregular(path: Path | str, most: int) -> Corrupt:
    return Corrupt(
        f"{path} is not a regular file of at most {most} bytes, as every file here must be; remove it, or restore it "
        "from a copy"
    )


def check_sizes(address: str, sizes: Collection[int], *, most: int) -> None:
    """Refuse a folder that has too many files, or too many bytes, to be read into memory at once.

    Raises
    ------
    Corrupt
        If the folder has more than `MOST_FILES` files.
    Unavailable
        If the files hold more than `most` bytes.
    """
    if len(sizes) > MOST_FILES:
        raise Corrupt(
            f"{address} holds more than {MOST_FILES} files, the limit of a published folder; restore it from a copy"
        )
    if sum(sizes) > most:
        raise Unavailable(
            f"{address} holds {sum(sizes)} bytes; this machine reads at most {most} at once; read it on a larger "
            "machine, or restore it from a copy"
        )


def _sync(path: Path | str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def relative_paths(root: Path) -> list[str]:
    """List the files under `root` by relative POSIX path; raise ``OSError`` for links, pipes and devices."""
    # A link is refused because its target is outside the folder, and could change although the digest does not.
    found, folders = [], [""]
    while folders:
        below = folders.pop()
        with os.scandir(f"{root}/{below}") as entries:  # use strings, as creating a Path takes as long as a stat
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{below}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    found.append(f"{below}{entry.name}")
                else:
                    raise OSError(
                        f"{entry.path} is neither a file nor a folder, but a link or a device; a digest covers only "
                        "files and folders; remove it"
                    )
    return found


def is_hidden(path: str) -> bool:
    """Return whether any part of a relative path begins with a dot."""
    return any(name.startswith(".") for name in path.split("/"))


def read_tree(root: Path, *, most: int = MOST_BYTES) -> dict[str, bytes]:
    """Read every file under `root` into memory; return the contents by relative POSIX path.

    Raises
    ------
    Corrupt, Unavailable
        If the files exceed the limits of `check_sizes`. These are checked before anything is read.
    """
    sizes = {relative: os.lstat(f"{root}/{relative}").st_size for relative in relative_paths(root)}
    check_sizes(str(root), sizes.values(), most=most)
    return {relative: read_file(f"{root}/{relative}", most=size) for relative, size in sizes.items()}


def digest_files(files: Mapping[str, bytes]) -> str:
    """Return the digest of files in memory: SHA-256, in hex, of the sorted list of their (path, size, sha256)."""
    return _digest((path, len(payload), hashlib.sha256(payload).hexdigest()) for path, payload in files.items())


def digest_tree(root: Path) -> str:
    """Return the digest of all files under `root`, as defined in `digest_files`, reading the files piece by piece."""
    return _digest(_entry(root, relative) for relative in relative_paths(root))


def _entry(root: Path, relative: str) -> tuple[str, int, str]:
    with (root / relative).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return relative, file.tell(), sha256


def _digest(entries: Iterable[tuple[str, int, str]]) -> str:
    canonical = json.dumps(sorted(entries), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
