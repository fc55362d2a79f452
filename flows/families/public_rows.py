"""Rows that a user declares public, from which a private subspace starts.

Public rows need no protection. So their exact moment gives the map of a warm start, and no budget is charged for it.
A request is pinned to the content of the file: ``FILE#sha256=DIGEST``.
"""

import hashlib
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import sparse

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.warm_start import Start
from dpca_tasks.refinement.public_map import PublicMap
from flows.requests import SubspaceRequest

_PINNED = "#sha256="
_EXACT = 1e-9
"""The standard deviation of an exact moment's noise, relative to its trace: a number that is not 0."""


def pinned_rows(request: SubspaceRequest) -> SubspaceRequest:
    """Return a request whose file of public rows is pinned to its present content.

    Raises
    ------
    InvalidInput
        When there is no such file, or an earlier release is named too.
    """
    if request.like_public is None or _PINNED in request.like_public:
        return request
    if request.like is not None:
        raise InvalidInput("like and like_public both state where the release starts; leave out one of them.")
    path = _path(request)
    return replace(request, like_public=f"{path}{_PINNED}{_digest(path)}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicRows:
    """The name and digest of a file of public rows, and the start that the rows give."""

    name: str
    digest: str
    start: Start

    @classmethod
    def of(cls, request: SubspaceRequest, *, n_features: int) -> "PublicRows":
        """Read the public rows of a pinned request; they are clipped as the private rows are.

        Raises
        ------
        BadSource, InvalidInput
            When the file is missing, cannot be read, or has other columns.
        Refused
            When the file has changed since the request was pinned.
        """
        from storage.formats.batch import Rejects  # these load Arrow, which most requests do not need
        from storage.formats.declared import Declared
        from storage.formats.sources import open_file

        path, digest = _path(request), str(request.like_public).partition(_PINNED)[2]
        if _digest(path) != digest:
            raise Refused(f"the public rows in {path.name!r} have changed since the release was planned; restore them.")
        with closing(open_file(path, Declared(n_features=n_features))) as reader:
            parts = [
                sparse.csr_array(
                    (batch.values, batch.indices, batch.row_ptr), shape=(batch.row_ptr.size - 1, n_features)
                )
                for batch in reader.batches(Rejects())
                if batch.row_ptr.size > 1
            ]
        if not parts:
            raise InvalidInput(f"{path.name!r} has no rows, so it gives no map; name another file in like_public.")
        rows = _clipped(sparse.csr_array(sparse.vstack(parts, dtype=np.float64)), request)
        return cls(name=path.name, digest=digest, start=_start(rows, centred=request.center == "private"))


def identity_of(request: SubspaceRequest) -> str | None:
    """Return the text that identifies the public rows of a pinned request by their content; None if there are none."""
    return None if request.like_public is None else f"public rows {request.like_public.partition(_PINNED)[2]}"


def _path(request: SubspaceRequest) -> Path:
    return Path(str(request.like_public).partition(_PINNED)[0])


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        raise InvalidInput(f"like_public={path.name!r} cannot be read as a file; name a file of public rows.") from None


def _clipped(rows: sparse.csr_array, request: SubspaceRequest) -> sparse.csr_array:
    """Return rows clipped or normalised to the clip norm of a request; a private clip norm is not known before."""
    if isinstance(request.clip_norm, str):
        return rows
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    scales = float(request.clip_norm) / np.where(norms > 0.0, norms, 1.0)
    if request.row_policy == "clip":
        scales = np.minimum(scales, 1.0)
    return sparse.csr_array(rows.multiply(scales[:, None]))


def _start(rows: sparse.csr_array, *, centred: bool) -> Start:
    matrix, count = np.asarray((rows.T @ rows).toarray()), rows.shape[0]
    mean = np.asarray(rows.mean(axis=0)).ravel() if centred else None
    if mean is not None:
        matrix = matrix - count * np.outer(mean, mean)
    if not np.trace(matrix) > 0.0:
        raise InvalidInput("the public rows do not differ from zero or from one another; name a file of other rows.")
    return Start(
        matrix=matrix,
        noise_std=_EXACT * float(np.trace(matrix)),
        n_records=float(count),
        map=PublicMap.identity(len(matrix)),
        mean=mean,
    )
