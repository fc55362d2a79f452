"""Choose the reader of a source by its name and check what every format needs."""

from pathlib import Path

from storage.errors import BadSource, Invalid
from storage.formats.batch import Reader, check_features
from storage.formats.npz import NpzReader
from storage.formats.svmlight import SvmlightReader


def open_source(path: Path, *, n_features: int | None) -> Reader:
    """Open a source: ``.npz`` as a scipy csr matrix, any other name as svmlight text, plain or gzip.

    Parameters
    ----------
    path : Path
        A regular file.
    n_features : int or None
        Declared number of columns. A text format needs it; npz declares its own.

    Raises
    ------
    BadSource
        If the file is missing, empty, of another kind, or of another width than declared.
    Invalid
        If `n_features` is missing or out of range.
    """
    if n_features is not None:
        check_features(n_features)
    try:
        if not path.exists():
            raise BadSource("no such file; correct the path")
        if not path.is_file():
            raise BadSource("not a regular file; name one file")
        if path.stat().st_size == 0:
            raise BadSource("the file is empty; a dataset needs at least one row")
        if path.suffix == ".npz":
            return NpzReader(path, n_features=n_features)
        if n_features is None:
            raise Invalid("svmlight text declares no width and it is never inferred; declare the number of features")
        return SvmlightReader(path, n_features=n_features)
    except OSError as error:
        raise BadSource(f"cannot be read ({error.strerror or 'input error'}); check path and permissions") from None
