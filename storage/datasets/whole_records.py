"""Read an opened source as batches of whole records, brought together on disk where the source scatters them.

Examples
--------
::

    with whole_records(source, home=home, options=options, rejects=rejects) as records:
        for batch in records.batches:
            ...
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from storage.datasets.first_seen import FirstSeen, FirstSeenTable
from storage.datasets.grouping import Grouping
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.keyed_hash import keyed_hashes
from storage.datasets.open_source import OpenSource
from storage.datasets.owner_key import OwnerKey
from storage.datasets.privacy_units import declared_rows
from storage.datasets.staging import scratch_folder
from storage.formats.batch import RowBatch, make_canonical
from storage.formats.csr import BATCH_ROWS
from storage.formats.rejects import Rejects

type Progress = Callable[[str, int, int, int], None]
"""A callable of (phase, bytes done, bytes in all, rows done); the phases are "reading" and "grouping"."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeRecords:
    """The whole records of a source.

    Attributes
    ----------
    batches : iterator of RowBatch
    lookalikes : int, ids of individuals that differ from another only in spelling; private
    first_seen : FirstSeen, where nothing is known if the source has no ids of individuals
    """

    batches: Iterator[RowBatch]
    lookalikes: int = 0
    first_seen: FirstSeen = FirstSeen()  # noqa: RUF009 - it is frozen


@contextmanager
def whole_records(
    source: OpenSource,
    *,
    home: Path,
    options: IngestOptions,
    rejects: Rejects,
    table: FirstSeenTable,
    owner_key: OwnerKey,
    progress: Progress | None = None,
) -> Iterator[WholeRecords]:
    """Read the records of a source; a scratch folder exists as long as they are read.

    Parameters
    ----------
    source : OpenSource
    home : Path
        The home folder, which holds the scratch folder.
    options : IngestOptions
    rejects : Rejects
        Receives each bad row.
    table : FirstSeenTable
        Of the population; ids that are new are recorded before the first record is yielded.
    owner_key : OwnerKey
        The key of the hashes of ids, which the batches state where the rows have ids or names.
    progress : callable or None
        Called after each batch.

    Guarantees
    ----------
    Memory is bounded by a constant and the widest record. A row changes the record of its own individual alone. One
    with an unreadable id counts as one more individual, as any other id that occurs once: it becomes an empty record,
    after all others. A source that declares its rows has no others, and leaves an entry of an unreadable row out.
    """
    reader = source.reader
    batches = _watched(reader.batches(rejects), "reading", lambda: reader.position, reader.size, progress)
    nameless = 0
    if source.owners is not None:
        nameless = source.owners.reject_missing(rejects)
        batches = source.owners.attach(batches)
    has_ids = source.owners is not None or options.unit_column is not None
    if not (reader.scattered or has_ids):
        yield WholeRecords(batches=_named(batches, owner_key))
        return
    limit = options.max_rows_per_unit
    with scratch_folder(home) as scratch, Grouping(scratch, rejects=rejects, max_rows_per_unit=limit) as grouping:
        _gather(batches, grouping, source, rejects=rejects, keep_zeros=options.keep_zeros)
        grouped = _watched(
            grouping.batches(), "grouping", lambda: int(grouping.done * reader.size), reader.size, progress
        )
        first_seen = table.record(grouping) if has_ids else FirstSeen()
        if has_ids or reader.n_rows is None:  # the rows of a declared matrix have numbers, and no ids
            grouping.name_owners(owner_key.drawn())
        unknown = grouping.unknown if reader.n_rows is None else nameless  # a declared row is there without its entries
        grouped = chain(grouped, _unknown_records(unknown, first_seen.number))
        yield WholeRecords(batches=grouped, lookalikes=grouping.lookalikes(), first_seen=first_seen)


def _gather(
    batches: Iterator[RowBatch], grouping: Grouping, source: OpenSource, *, rejects: Rejects, keep_zeros: bool
) -> None:
    """Check every entry while its line is still known, and add it to the grouping."""
    reader, origins, end = source.reader, list[tuple[int, str]](), 0
    checked = np.dtype(np.float64 if source.dtype.kind == "f" else np.int64)
    for batch in batches:
        if not origins or origins[-1][1] != rejects.file:
            origins.append((end, rejects.file))
        rows = make_canonical(
            batch,
            n_features=reader.n_features,
            dtype=checked,
            rejects=rejects,
            duplicates="sum" if reader.scattered else source.merges,  # a piece of a row has one value
            keep_zeros=keep_zeros,
        )
        grouping.add(replace(rows, places=rows.places + origins[-1][0]))
        end = max(end, int(rows.places.max(initial=-1)) + origins[-1][0] + 1)
    rejects.origins = origins
    if reader.scattered and reader.n_rows is not None:
        every = declared_rows(reader.n_rows)
        for batch in every if source.owners is None else source.owners.attach(every):
            grouping.add(batch)


def _unknown_records(count: int, first_seen: int | None) -> Iterator[RowBatch]:
    """Yield the rows whose individual is not known, each as one rejected record."""
    for first in range(0, count, BATCH_ROWS):
        rows = min(BATCH_ROWS, count - first)
        yield RowBatch(
            values=np.empty(0),
            indices=np.empty(0, dtype=np.int64),
            row_ptr=np.zeros(rows + 1, dtype=np.int64),
            record_ptr=np.arange(rows + 1),
            places=np.zeros(rows, dtype=np.int64),
            place="row",
            rejected=np.ones(rows, dtype=np.bool_),
            first_seen=first_seen,
            owners=np.zeros((rows, 2), dtype=np.uint64),
        )


def _named(batches: Iterator[RowBatch], key: OwnerKey) -> Iterator[RowBatch]:
    """State a keyed hash of the name of each row, where the source has names."""
    for batch in batches:
        yield (
            batch if batch.row_names is None else replace(batch, owners=keyed_hashes(batch.row_names, key=key.drawn()))
        )


def _watched(
    batches: Iterator[RowBatch], phase: str, position: Callable[[], int], size: int, progress: Progress | None
) -> Iterator[RowBatch]:
    """Pass batches through and call `progress` after each."""
    rows = 0
    for batch in batches:
        rows += batch.row_ptr.size - 1
        yield batch
        if progress is not None:
            progress(phase, position(), size, rows)
