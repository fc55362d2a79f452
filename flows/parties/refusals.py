"""What a caller is told of an error: one line, which never says where the files and databases of this process are."""

import re
import traceback

from dpca_tasks.errors import DpcaError
from storage.errors import Corrupt, StorageError, Unavailable

LONGEST_LINE = 2000
FAILED = "the request failed here; see the log."
_ADDRESS = re.compile(r"""(?:^|[\s'"(=,;:])(?:~?/|[A-Za-z]:\\)[^\s'"]|\w://""")


def told(error: Exception) -> str:
    """Return what a caller is told of an error."""
    match error:
        case Unavailable():
            return "a database, key or store cannot be used here; the log says which; run the same request again."
        case Corrupt():
            return "something stored is missing, or is not what was written; the log says what; restore it."
        case DpcaError() | StorageError():
            line = " ".join(str(error).split())[:LONGEST_LINE]
            return line if not _ADDRESS.search(line) else "the request is refused here; the log says why."
    return FAILED


def logged(error: Exception) -> dict[str, str]:
    """Return what the log of this process says of an error: its kind, and the reason or the place that nobody is told.

    The text of what is none of dpca's errors may hold anything, and is in no log either.
    """
    facts = {"kind": type(error).__name__}
    if not isinstance(error, DpcaError | StorageError):
        (last,) = traceback.extract_tb(error.__traceback__)[-1:] or (None,)
        return facts if last is None else facts | {"at": f"{last.filename.rpartition('/')[2]}:{last.lineno}"}
    line = " ".join(str(error).split())
    return facts if line == told(error) else facts | {"reason": line}
