"""Files that are written once: of several processes that write the same one, the first wins.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "note"
>>> claim_file(path, b"mine"), claim_file(path, b"yours"), path.read_bytes()
(True, False, b'mine')
"""

import os
from pathlib import Path
from uuid import uuid4

from storage.backends.atomic_files import sync_folder
from storage.backends.private import FILE


def claim_file(path: Path, payload: bytes) -> bool:
    """Write a file whole, durably and for its owner alone, unless it stands; return whether it was written.

    Guarantees
    ----------
    The file is whole as soon as it is there, also after a crash, and never changes.
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
    sync_folder(path.parent)  # of either: whoever wrote it may have been killed before
    return is_ours
