"""Warm starts: earlier releases and public rows from which the release of a private subspace can start.

An earlier release gives the directions, mean and noise of a published release of the same columns. All of them are
public.

Rows that a user declares public need no protection. So their exact moment gives the map of a warm start, and no budget
is charged for it. They are in a file, or in a dataset that was declared public at ingest. A request is pinned to their
content, as ``FILE#sha256=DIGEST`` or ``DATASET#snapshot=ID``.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import NotFound
from dpca.registry.pointers import Resolved
from dpca.registry.reader import Registry
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.warm_start import Start, gives_start, start_of
from dpca_tasks.refinement.public_map import PublicMap
from flows.families.columns import Columns, check_same_columns
from flows.families.restated_subspace import released_from
from flows.requests import SubspaceRequest
from storage.datasets.catalog import Catalog
from storage.datasets.snapshot_reader import Dataset
from storage.ledger.budgets import RECORDS_AT_MOST
from storage.workspace import Workspace

NONE = "none"
"""The value of ``like`` for a release without an earlier release."""
_FILE, _DATASET = "#sha256=", "#snapshot="
_EXACT = 1e-9
"""The std of noise that is assumed for an exact moment, relative to its trace: nearly 0, but positive."""


def parent_of(request: SubspaceRequest) -> str | None:
    """Return the reference of the earlier release from which a request starts; None if there is none."""
    return None if request.like == NONE else request.like


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parent:
    """An earlier release from which another release starts, with its version and its released second moment."""

    version: Resolved
    subspace: PrivateSubspace
    released: Subspace

    @classmethod
    def of(cls, reference: str) -> "Parent":
        """Load an earlier release from the local registry.

        Raises
        ------
        NotFound, Invalid, Corrupt
            When the reference does not exist, is not a subspace, or is damaged.
        Refused
            When the release is revoked, has no privacy guarantee, or contains no moment.
        """
        registry = Registry.open()
        version = registry.resolve(reference)
        subspace = registry.load(f"{version.name}@sha256:{version.digest}", PrivateSubspace)
        if not subspace.is_private:
            raise Refused(f"{version} is not private, so no private release may start from it; name a private release.")
        released = released_from(subspace)
        if released is None or not gives_start(released):
            raise Refused(
                f"{version} contains no released second moment with Gaussian noise, from which a release could start; "
                "name a release of analyze_gauss that keeps its matrix (--keep-matrix)."
            )
        return cls(version=version, subspace=subspace, released=released)

    @property
    def columns(self) -> Columns:
        """The columns of the release."""
        found = self.subspace
        return Columns(
            table=str(self.version),
            n_features=found.n_features,
            names=found.feature_names,
            encoder=found.manifest.get("encoder"),
        )

    @classmethod
    def pinned(cls, version: str, digest: str) -> "Parent":
        """Load an earlier release by its content, given its ``NAME@VERSION`` and its digest."""
        return cls.of(f"{version.partition('@')[0]}@sha256:{digest}")

    def start(self, *, center: str = "none") -> Start:
        """Compute the public facts that a warm start uses; for a release in rounds this combines all answers.

        Raises
        ------
        Refused
            When ``center`` is ``private``, and the earlier release has no mean.
        """
        manifest = self.subspace.manifest
        bound = manifest.get("privacy", {}).get("records_at_most")
        declared = None if bound == RECORDS_AT_MOST else bound
        found = start_of(self.released, clip_norm=float(manifest["clip_norm"]), records_at_most=declared)
        assert found is not None
        found.estimate(clip_norm=1.0, centred=center == "private")  # refuses a missing mean
        return found


def check_start(columns: Columns, start: Columns) -> None:
    """Refuse rows whose columns differ from ``start``, the columns of the earlier release.

    Raises
    ------
    InvalidInput
        When the numbers of columns, the declared names, their order, or the schemas differ.
    """
    check_same_columns(columns, start, rule="a release starts only from the same columns", named=True)


def with_start(mechanism: Any, start: Callable[[], Start]) -> Any:
    """Return a copy of a mechanism that loads the earlier release by ``start``; wrappers around it are kept."""
    if hasattr(mechanism, "mechanism"):
        return replace(mechanism, mechanism=with_start(mechanism.mechanism, start))
    return replace(mechanism, start=start)


def pinned_rows(request: SubspaceRequest) -> SubspaceRequest:
    """Return a request whose public rows are pinned to their present content.

    Raises
    ------
    InvalidInput
        When there is no such file or dataset, the dataset is not public, or an earlier release is named too.
    """
    named = request.like_public
    if named is None or _FILE in named or _DATASET in named:
        return request
    if request.like is not None:
        raise InvalidInput("like and like_public both state where the release starts; leave out one of them.")
    if Path(named).exists():
        return replace(request, like_public=f"{named}{_FILE}{_digest(Path(named))}")
    catalog = Workspace.read_only().catalog
    try:
        snapshot = catalog.current(named).snapshot
    except NotFound:
        raise InvalidInput(
            f"like_public={named!r} is neither a file nor a dataset; name a file or a dataset of public rows."
        ) from None
    _public(catalog, snapshot)
    return replace(request, like_public=f"{named}{_DATASET}{snapshot}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicRows:
    """The name and digest of public rows, and the facts for a warm start that were computed from them."""

    name: str
    digest: str
    start: Start

    @classmethod
    def of(cls, request: SubspaceRequest, *, n_features: int) -> "PublicRows":
        """Read the public rows of a pinned request; they are clipped as the private rows are.

        Raises
        ------
        BadSource, InvalidInput
            When the rows are missing, cannot be read, or have other columns.
        Refused
            When the file has changed since the request was pinned.
        """
        dataset = _dataset_of(request)
        if dataset is None:
            name, digest = _path(request).name, str(request.like_public).partition(_FILE)[2]
            parts = list(_rows_of_file(_path(request), digest=digest, n_features=n_features))
        else:
            name, digest = dataset.manifest.dataset, dataset.manifest.snapshot
            parts = list(_rows_of_dataset(dataset))
        if not parts:
            raise InvalidInput(
                f"{name!r} has no rows, so no release can start from it; name other rows in like_public."
            )
        rows = _clipped(sparse.csr_array(sparse.vstack(parts, dtype=np.float64)), request)
        return cls(name=name, digest=digest, start=_start(rows, centred=request.center == "private"))


def public_columns(request: SubspaceRequest) -> Columns | None:
    """Return the columns of the public dataset of a pinned request; None for a file, or without public rows."""
    dataset = None if request.like_public is None else _dataset_of(request)
    return None if dataset is None else Columns.of(dataset)


def identity_of(request: SubspaceRequest) -> str | None:
    """Return the text that identifies the public rows of a pinned request by their content; None if there are none."""
    if request.like_public is None:
        return None
    *_, identity = request.like_public.rpartition("=")
    return f"public rows {identity}"


def _dataset_of(request: SubspaceRequest) -> Dataset | None:
    _, is_dataset, snapshot = str(request.like_public).partition(_DATASET)
    return _public(Workspace.read_only().catalog, snapshot) if is_dataset else None


def _public(catalog: Catalog, snapshot: str) -> Dataset:
    """Open a snapshot that was declared public.

    Raises
    ------
    InvalidInput
        When it was not declared public.
    """
    rows = catalog.open(catalog.entry(snapshot))
    if not rows.manifest.public:
        raise InvalidInput(
            f"dataset {rows.manifest.dataset!r} was not declared public, so no release may use its rows without "
            "noise; if all of its rows are public, ingest them again with --public."
        )
    return rows


def _rows_of_file(path: Path, *, digest: str, n_features: int) -> Iterator[sparse.csr_array]:
    from storage.formats.batch import Rejects  # these load Arrow, which most requests do not need
    from storage.formats.declared import Declared
    from storage.formats.sources import open_file

    if _digest(path) != digest:
        raise Refused(f"the public rows in {path.name!r} have changed since the release was planned; restore them.")
    with closing(open_file(path, Declared(n_features=n_features))) as reader:
        for batch in reader.batches(Rejects()):
            if batch.row_ptr.size > 1:
                shape = (batch.row_ptr.size - 1, n_features)
                yield sparse.csr_array((batch.values, batch.indices, batch.row_ptr), shape=shape)


def _rows_of_dataset(dataset: Dataset) -> Iterator[sparse.csr_array]:
    for number in range(dataset.n_blocks):
        block = dataset.read(number)
        shape = (len(block.row_ptr) - 1, dataset.n_features)
        yield sparse.csr_array((block.values, block.indices, block.row_ptr), shape=shape)


def _path(request: SubspaceRequest) -> Path:
    return Path(str(request.like_public).partition(_FILE)[0])


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        raise InvalidInput(f"like_public={path.name!r} cannot be read as a file; name a file of public rows.") from None


def _clipped(rows: sparse.csr_array, request: SubspaceRequest) -> sparse.csr_array:
    """Clip or normalise rows to the clip norm of a request; if it will be chosen privately, leave them unchanged."""
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
