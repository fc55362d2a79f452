"""Erasure of one individual: a new snapshot of a dataset without any of that individual's rows.

Snapshots are immutable, so the individual's rows stay in older snapshots until these snapshots are removed. The records
are found by the keyed hash of the individual's id (`storage.datasets.keyed_hash`). The id itself is never stored,
logged or shown.

Examples
--------
::

    found = find_unit("visits", "p17", catalog=catalog, keys=key_folder())
    found.records, found.rows
    entry = erase_unit(found, catalog=catalog)
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpca.errors import Invalid, NotFound, Refused
from dpca.schemas.canonical import id_cells
from storage.datasets.catalog import Catalog, Entry
from storage.datasets.content_digest import MARKER
from storage.datasets.ingest import encoded, joined, publish
from storage.datasets.keyed_hash import OwnerKey, keyed_hashes
from storage.datasets.rows_digest import RowsDigest
from storage.datasets.snapshot_reader import Dataset
from storage.datasets.snapshot_writer import SnapshotWriter
from storage.datasets.staging import begin
from storage.formats.batch import RowBatch, without_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundUnit:
    """The records of one individual in the current snapshot of a dataset; all attributes are private.

    Attributes
    ----------
    entry : Entry, the snapshot
    owner : uint64 array of shape (2,), the keyed hash of the individual's id
    records, rows : int, the numbers of records and rows of the individual
    """

    entry: Entry
    owner: NDArray[np.uint64] = field(repr=False)
    records: int = field(repr=False)
    rows: int = field(repr=False)


def find_unit(name: str, unit: str, *, catalog: Catalog, keys: Path) -> FoundUnit:
    """Find the records of an individual in the current snapshot of a dataset.

    Parameters
    ----------
    name : str
        The name of the dataset.
    unit : str
        The id of the individual, in any spelling that `dpca.schemas.canonical` accepts. If the dataset has ids of rows
        instead of individuals, the id of the row.
    catalog : Catalog
    keys : Path
        The folder of secret keys.

    Raises
    ------
    NotFound
        If the dataset does not exist, if it does not contain this id, or if the secret key of its hashed ids is lost.
    Invalid
        If the rows of the dataset have no ids.
    Refused
        If the dataset has no other individual, so no record would be left.
    """
    entry = catalog.current(name)
    rows = catalog.open(entry)
    if rows.manifest.owners is None:
        raise Invalid(
            f"the rows of dataset {name!r} have no ids, so no individual can be found; remove the rows from the "
            "source and ingest it again, then remove the older snapshots"
        )
    key = OwnerKey(keys, entry.population).named(rows.manifest.owners)
    spellings = dict.fromkeys(text for text in (id_cells(pa.array([unit]))[0].as_py(), unit) if text is not None)
    for owner in keyed_hashes(pa.array(spellings), key=key):
        records, n_rows = _count(rows, owner)
        if records:
            break
    else:
        raise NotFound(
            f"the current snapshot of dataset {name!r} does not contain this id; leading zeros and capitals matter, "
            "so write it as in the source"
        )
    if records == rows.n_records:
        raise Refused(
            f"dataset {name!r} has no other individual, so no record would be left; remove the dataset with "
            f"`dpca dataset remove {name}`"
        )
    return FoundUnit(entry=entry, owner=owner, records=records, rows=n_rows)


def erase_unit(found: FoundUnit, *, catalog: Catalog) -> Entry:
    """Write a new snapshot of a dataset without the found individual, make it current, and return its catalog entry.

    Raises
    ------
    Conflict
        If another snapshot has become current since `find_unit`.
    Unavailable
        If the home folder or the store of datasets cannot be written.

    Guarantees
    ----------
    The new snapshot appears complete and registered, or not at all. All other records, their order, and their
    first-seen numbers stay unchanged. A first-seen number is the number of the ingest in which an individual's id first
    appeared.
    """
    entry, folder = found.entry, catalog.home / "datasets" / found.entry.name
    source = catalog.open(entry)

    def discard(snapshot: str) -> None:
        catalog.place.remove(f"datasets/{entry.name}/{snapshot}", marker=MARKER)

    request = {"erased": secrets.token_hex(16)}  # the request is random, so an interrupted erasure is never resumed
    with begin(folder, request=request, resume=False, is_registered=catalog.has, discard=discard) as staging:
        writer = SnapshotWriter(
            staging.path,
            n_features=source.n_features,
            dtype=np.dtype(source.manifest.dtype),
            on_block=staging.block_written,
        )
        digest = RowsDigest(n_features=source.n_features)
        for batch in _others(source, found.owner):
            digest.update(values=batch.values, indices=batch.indices, row_ptr=batch.row_ptr)
            writer.append(batch)
        totals, manifest = writer.finish(), source.manifest
        names, factors, facts = source.feature_names(), source.scale(), source.encoder()
        manifest = replace(
            manifest,
            snapshot=staging.snapshot,
            n_records=totals.n_records,
            n_rows=totals.n_rows,
            nnz=totals.nnz,
            n_blocks=totals.n_blocks,
            content_digest=totals.content_digest,
            rows_digest=digest.hexdigest(),
            feature_names=None if names is None else writer.declare("feature_names", joined(names)),
            scale=None if factors is None else writer.declare("scale", factors),
            encoder=None if facts is None else writer.declare("encoder", encoded(facts)),
            first_seen=None if manifest.epoch is None else writer.declare("first_seen", writer.first_seen()),
        )
        writer.describe(manifest)
        publish(manifest, catalog=catalog, staging=staging, number=None, allow_shared_rows=True, over=entry.snapshot)
    return catalog.entry(manifest.snapshot)


def _count(rows: Dataset, owner: NDArray[np.uint64]) -> tuple[int, int]:
    """Return how many records and how many rows an individual has."""
    counts = np.zeros(2, np.int64)
    for block in range(rows.n_blocks):
        matches = _matches(rows, block, owner)
        if matches.any():
            counts += matches.sum(), np.diff(rows.read(block).record_ptr)[matches].sum()
    return int(counts[0]), int(counts[1])


def _matches(rows: Dataset, block: int, owner: NDArray[np.uint64]) -> NDArray[np.bool_]:
    owners = rows.owners(block)
    assert owners is not None
    return np.asarray((owners == owner).all(axis=1))


def _others(rows: Dataset, owner: NDArray[np.uint64]) -> Iterator[RowBatch]:
    """Yield the records of all other individuals, in order."""
    for number in range(rows.n_blocks):
        block, matches = rows.read(number), _matches(rows, number, owner)
        batch = RowBatch(
            values=block.values,
            indices=block.indices.astype(np.int64),
            row_ptr=block.row_ptr,
            record_ptr=block.record_ptr,
            places=np.zeros(len(block.row_ptr) - 1, np.int64),
            place="row",
            first_seen=block.first_seen,
        )
        dropped = np.repeat(matches, np.diff(block.record_ptr))
        yield replace(
            without_rows(batch, dropped),
            rejected=block.rejected[~matches],
            owners=rows.owners(number)[~matches],  # type: ignore[index]  # as in `_matches`
        )
