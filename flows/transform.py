"""Transform a file of rows with a published release: what a consumer may do without any credential."""

import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents
from storage.backends.atomic_files import write_atomically, writing
from storage.errors import BadSource, Invalid
from storage.formats.broken import reading
from storage.formats.declared import Declared
from storage.formats.rejects import Rejects
from storage.formats.sources import open_file
from storage.registry.reader import Registry

type Transformer = PrivateSubspace | TensorComponents
"""A kind of artifact that makes one row of numbers of each row, one number a component."""


def transform_file(
    reference: str,
    source: Path,
    output: Path,
    *,
    kind: type[PrivateSubspace] | type[TensorComponents] = PrivateSubspace,
    format: str | None = None,  # noqa: A002, the word users know
    header: bool | None = None,
) -> dict[str, Any]:
    """Write what a release makes of a file's rows as .npy, and report where.

    Parameters
    ----------
    reference : str
        A published release of that kind.
    source : Path
        A dense ``.npy`` matrix, or any other file of whole rows that can be ingested: ``.npz``, svmlight, ...
    output : Path
        The file of scores, or of posterior weights: float64 of shape (n_rows, n_components), written whole or not at
        all.
    kind : type
        What it has to be.
    format : str or None
        One of `storage.formats.declared.FORMATS`; None goes by the name of the file.
    header : bool or None
        Whether CSV and TSV begin with the names of the columns; None refuses a first line that looks like a row.
    """
    if output.suffix != ".npy" or output.is_dir() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a .npy file in an existing folder; name such a file.")
    registry = Registry.open()
    resolved, release = registry.resolve(reference), registry.load(reference, kind)
    declared = Declared(n_features=release.n_features, format=format, header=header)
    scores = np.vstack([np.empty((0, release.n_components)), *_scores(release, source, declared)])
    buffer = io.BytesIO()
    np.save(buffer, scores, allow_pickle=False)
    with writing(output.parent):
        write_atomically(output, buffer.getvalue())
    return {"artifact": str(resolved), "rows": len(scores), "components": scores.shape[1], "output": str(output)}


def _scores(release: Transformer, source: Path, declared: Declared) -> Iterator[NDArray[np.float64]]:
    if declared.format == "npy" or (declared.format is None and source.suffix == ".npy"):
        yield release.transform(_dense(source))
        return
    try:
        with closing(open_file(source, declared)) as reader:
            if reader.scattered:
                raise BadSource("rows come in pieces; ingest the file, or give one whole row a line")
            for batch in reader.batches(Rejects()):
                parts = (batch.values, batch.indices, batch.row_ptr)
                shape = (batch.row_ptr.size - 1, release.n_features)
                yield release.transform(sparse.csr_array(parts, shape=shape))
    except BadSource as error:
        raise BadSource(f"{source}: {error}") from None


def _dense(source: Path) -> NDArray[Any]:
    if not source.exists():
        raise BadSource(f"{source}: no such file; correct the path")
    try:
        if source.is_file():  # a pipe would keep us waiting
            with reading(".npy matrix"):
                return np.lib.format.open_memmap(source, mode="r")
    except (BadSource, OSError):
        pass
    raise BadSource(f"{source}: not a .npy matrix; write one with numpy.save")
