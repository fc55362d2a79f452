"""Ingest of files as a new snapshot of a dataset.

An ingest reads the files, brings the rows into canonical form, and writes them to a staging folder. It then adds the
declared arrays (such as feature names) and the manifest, publishes the folder as a snapshot, and registers the snapshot
in the catalog.

Examples
--------
::

    report = ingest("a9a.svm.gz", name="a9a", home=home, engine=engine, options=IngestOptions(features=123))
    report.snapshot, report.content_digest
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine

from dpca.backends.base import Place
from dpca.errors import BadSource, Conflict, StorageError, Unavailable
from dpca.schemas.schema import read_schema
from storage.datasets.catalog import Catalog, check_name
from storage.datasets.content_digest import MARKER, Manifest
from storage.datasets.ingest_options import DEFAULTS, IngestOptions
from storage.datasets.kept_sources import SavedColumns
from storage.datasets.keyed_hash import OwnerKey
from storage.datasets.open_source import OpenSource, Source, open_source
from storage.datasets.rows_digest import RowsDigest
from storage.datasets.snapshot_writer import BLOCK_NNZ, SnapshotWriter, Totals, check_block_nnz
from storage.datasets.staging import Staging, begin, quarantine_notes
from storage.datasets.whole_records import FirstSeenTable, Progress, whole_records
from storage.formats.batch import (
    Quarantine,
    Rejects,
    RowBatch,
    describe,
    make_canonical,
    stored_dtype,
    without_surplus,
)
from storage.formats.declared import Declared
from storage.formats.registry import of_reader

NOTES = ".rejected"
"""Name of the file with the private report on bad rows, in a staging folder."""


def complete(
    writer: SnapshotWriter,
    *,
    source: OpenSource,
    totals: Totals,
    rows_digest: str,
    options: IngestOptions,
    quarantined: int,
    snapshot: str,
    dataset: str,
    ledger: str,
    population: str,
    epoch: str | None = None,
    owners: str | None = None,
) -> Manifest:
    """Complete a snapshot whose rows are written: add the declared arrays and the manifest, and return the manifest.

    Parameters
    ----------
    writer : SnapshotWriter
        The writer of the rows.
    source : OpenSource
    totals : Totals
        Sizes and digest of the written rows, from `SnapshotWriter.finish`.
    rows_digest : str
        Digest of the source's rows in any order; see `storage.datasets.rows_digest.RowsDigest`.
    options : IngestOptions
    quarantined : int
        Number of bad rows left out.
    snapshot, dataset, ledger, population : str
        The ids of the snapshot and the ledger, and the names of the dataset and the population.
    epoch : str or None
        The id of the table of ids from which the rows' first-seen numbers come.
    owners : str or None
        The name of the secret key with which ids were hashed.

    Raises
    ------
    BadSource
        If a feature name contains a line break.
    """
    schema, chosen = source.declared.schema, of_reader(source.reader.format)
    fixed = None if chosen is None else chosen.density
    manifest = Manifest(
        snapshot=snapshot,
        dataset=dataset,
        ledger=ledger,
        populations=[population],
        privacy_unit=options.unit.name,
        n_features=source.reader.n_features,
        n_records=totals.n_records,
        n_rows=totals.n_rows,
        nnz=totals.nnz,
        n_blocks=totals.n_blocks,
        dtype=str(source.dtype),
        content_digest=totals.content_digest,
        rows_digest=rows_digest,
        records_at_most=options.records_at_most,
        density=fixed if options.density is None else options.density,
        source=source.reader.format,
        code_version=version("dpca-pipeline"),
        max_rows_per_unit=options.max_rows_per_unit,
        feature_names=None if source.names is None else writer.declare("feature_names", joined(source.names)),
        scale=None if source.factors is None else writer.declare("scale", source.factors),
        encoder=None if schema is None else writer.declare("encoder", encoded(schema.facts())),
        duplicates=options.duplicates or (None if source.reader.scattered else "whole"),
        keeps_zeros=options.keep_zeros,
        public=options.public,
        quarantined=quarantined,
        first_seen=None if epoch is None else writer.declare("first_seen", writer.first_seen()),
        epoch=epoch,
        owners=owners,
    )
    writer.describe(manifest)
    return manifest


def publish(
    manifest: Manifest,
    *,
    catalog: Catalog,
    staging: Staging,
    number: int | None,
    allow_shared_rows: bool,
    over: str | None = None,
) -> None:
    """Move a complete snapshot to its final place and register it in the catalog.

    If the catalog refuses the snapshot, the moved files are removed again. If ``over`` is given, the catalog refuses
    the snapshot unless ``over`` is still the current snapshot.

    Raises
    ------
    Conflict
        If the catalog refuses the snapshot; see `Catalog.register`.
    """
    path = f"datasets/{manifest.dataset}/{manifest.snapshot}"
    notes = quarantine_notes(catalog.home / path)
    if (written := staging.path / NOTES).exists():
        written.rename(notes)
    catalog.place.publish(staging.path, path, marker=MARKER)
    try:
        catalog.register(manifest, path=path, number=number, allow_shared_rows=allow_shared_rows, over=over)
    except Conflict:
        catalog.place.remove(path, marker=MARKER)
        notes.unlink(missing_ok=True)
        raise
    staging.settle(catalog.home / path)


def encoded(facts: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Return a schema as JSON in UTF-8, the form in which a snapshot stores it."""
    return np.frombuffer(json.dumps(facts, sort_keys=True).encode(), dtype=np.uint8)


def joined(names: Sequence[str]) -> NDArray[np.uint8]:
    """Return feature names as UTF-8 text with one name per line, as a snapshot stores them.

    Raises
    ------
    BadSource
        If a name contains a line break.
    """
    if any("\n" in name for name in names):
        raise BadSource("a feature name contains a line break; names are stored one per line, so rename the feature")
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


_BEYOND = "starts a record beyond the declared records_at_most; the record is kept"
_SHARED = "equal the rows of another population, and the losses of two budgets for the same people add up"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """Facts about a finished ingest; private, because sizes and digests are."""

    dataset: str
    snapshot: str
    content_digest: str = field(repr=False)
    records: int = field(repr=False)
    rows: int = field(repr=False)
    features: int
    nnz: int = field(repr=False)
    blocks: int = field(repr=False)
    quarantined: int = field(repr=False)
    lookalikes: int = field(repr=False)
    arrivals_lost: bool
    source_bytes: int = field(repr=False)


def ingest(
    source: Source,
    *,
    name: str,
    home: Path,
    engine: Engine,
    place: Place | None = None,
    keys: Path | None = None,
    options: IngestOptions = DEFAULTS,
    progress: Progress | None = None,
) -> IngestReport:
    """Stream files into a new immutable snapshot, and make it the current snapshot of a dataset.

    Parameters
    ----------
    source : str, Path, or a sequence of them, or an opened file
        Files, folders (their files are read sorted by name) and file patterns, read in the given order.
    name : str
        Name of the dataset.
    home : Path
        The local home folder, in which the snapshot is first written. The finished snapshot is published at
        ``datasets/<name>/<snapshot>`` in the store `place`. The private report on its bad rows is always in the home
        folder, at ``datasets/<name>/<snapshot>.rejected.csv``.
    engine : sqlalchemy.Engine
        Database of the ledger and the catalog.
    place : Place or None
        The store in which the snapshot is published; None means the home folder.
    keys : Path or None
        The folder of secret keys; None means ``keys`` in the home folder.
    options : IngestOptions
        All other choices and declarations of the user. With ``unattended``, success or failure of the ingest is public,
        so no record may decide it. An unattended ingest therefore replaces records with bad rows by empty records. It
        also accepts more records than declared, rows that another population has, and a source without records. The
        private report lists each of these cases (`storage.formats.batch`).
    progress : callable or None
        Called with (phase, bytes done, bytes in total, rows done), where bytes are bytes of the source. The phase is
        "reading". If rows must then be grouped by individual on disk, the second phase is "grouping".

    Raises
    ------
    Invalid
        If an argument or option is out of range.
    BadSource
        If a file breaks a rule of its format.
    Conflict
        If the name belongs to another population, or a dataset of another population has the same rows.
    Unavailable
        If the home folder or the store of datasets cannot be written.

    Guarantees
    ----------
    If bad rows are quarantined, the rows of one individual change only one record of the snapshot, whatever bytes the
    rows contain. Then only a fault of a file as a whole raises an error. Memory is bounded by a constant plus the size
    of the largest record, whatever the size of the source. The snapshot appears complete and registered, or not at all.
    """
    population = check_name(name if options.population is None else options.population)
    options, declared, block_nnz = checked_options(options)
    catalog = Catalog(engine, home, place)
    ledger = catalog.admit(name=check_name(name), population=population, unit=options.unit)
    saved = SavedColumns.of(catalog, name)
    if saved is not None:
        declared = replace(declared, schema=saved.ordered(declared.schema))
    folder = home / "datasets" / name
    rejects = Quarantine() if options.quarantines else Rejects()

    table = FirstSeenTable(
        engine=engine,
        place=catalog.place,
        home=home,
        keys=home / "keys" if keys is None else keys,
        population=population,
    )
    owner_key = OwnerKey(table.keys, population)

    def discard(snapshot: str) -> None:
        catalog.place.remove(f"datasets/{name}/{snapshot}", marker=MARKER)

    with (
        _one_line_errors(folder, rejects),
        owner_key.given_back(),
        open_source(source, options=options, declared=declared, rejects=rejects, saved=saved) as opened,
        begin(
            folder,
            request=opened.request(options, block_nnz=block_nnz),
            resume=options.resume,
            is_registered=catalog.has,
            discard=discard,
        ) as staging,
        _noted(rejects, staging),
        whole_records(
            opened, home=home, options=options, rejects=rejects, table=table, owner_key=owner_key, progress=progress
        ) as records,
    ):
        writer = SnapshotWriter(
            staging.path,
            n_features=opened.reader.n_features,
            dtype=opened.dtype,
            block_nnz=block_nnz,
            written=staging.extents() if staging.resumed else (),
            on_block=staging.block_written,
        )
        if records.lookalikes:
            rejects.note(
                place="ids",
                number=None,
                reason=f"{records.lookalikes} differ from another id only in a leading + or leading zeros",
            )
        totals, rows_digest = _write(records.batches, writer, source=opened, options=options, rejects=rejects)
        if options.unattended and catalog.holder(population=population, rows_digest=rows_digest) is not None:
            rejects.note(place="all rows", number=None, reason=_SHARED)
        rejects.close()
        manifest = complete(
            writer,
            source=opened,
            totals=totals,
            rows_digest=rows_digest,
            options=options,
            quarantined=rejects.count,
            snapshot=staging.snapshot,
            dataset=name,
            ledger=ledger,
            population=population,
            epoch=records.first_seen.epoch,
            owners=owner_key.name,
        )
        owner_key.keep()
        publish(
            manifest,
            catalog=catalog,
            staging=staging,
            number=records.first_seen.number,
            allow_shared_rows=options.allow_shared_rows or options.unattended,
        )
    return IngestReport(
        dataset=name,
        snapshot=staging.snapshot,
        content_digest=totals.content_digest,
        records=totals.n_records,
        rows=totals.n_rows,
        features=manifest.n_features,
        nnz=totals.nnz,
        blocks=totals.n_blocks,
        quarantined=rejects.count,
        lookalikes=records.lookalikes,
        arrivals_lost=records.first_seen.lost,
        source_bytes=opened.reader.size,
    )


def checked_options(options: IngestOptions) -> tuple[IngestOptions, Declared, int]:
    """Check the options before any file is read.

    Returns
    -------
    tuple of (options, declared, block_nnz)
        The options with the unit column that the schema declares, the declarations that readers use, and the largest
        number of stored values per block.
    """
    options.check_together()
    if options.dtype is not None:
        stored_dtype(options.dtype)
    schema = None if options.table_schema is None else read_schema(options.table_schema)
    if schema is not None:
        options = replace(options, unit_column=schema.unit)
        options.check_units()
    declared = Declared.of(
        n_features=options.features,
        feature_names=None if options.feature_names is None else Path(options.feature_names),
        format=options.format,
        columns=options.columns,
        unit_column=options.unit_column,
        delimiter=options.delimiter,
        header=options.header,
        schema=schema,
        is_unattended=options.unattended,
    )
    return options, declared, check_block_nnz(BLOCK_NNZ if options.block_nnz is None else options.block_nnz)


def _write(
    batches: Iterator[RowBatch], writer: SnapshotWriter, *, source: OpenSource, options: IngestOptions, rejects: Rejects
) -> tuple[Totals, str]:
    """Write all records in canonical form; return the totals, and the order-independent digest of all rows.

    Unless the ingest is unattended, a source without any usable record is refused. Unless bad rows are quarantined, a
    source with more records than declared is refused.
    """
    records, rejected, most = 0, 0, options.records_at_most
    digest = RowsDigest(n_features=source.reader.n_features)
    for batch in batches:
        rows = make_canonical(
            batch,
            n_features=source.reader.n_features,
            dtype=source.dtype,
            rejects=rejects,
            scale=source.factors,
            duplicates=source.merges,
            keep_zeros=options.keep_zeros,
        )
        digest.update(values=rows.values, indices=rows.indices, row_ptr=rows.row_ptr)
        rows = without_surplus(rows)
        before, records = records, records + len(rows.record_ptr) - 1
        rejected += 0 if rows.rejected is None else int(rows.rejected.sum())
        if most is not None and records > most:
            if not rejects.is_tolerant:
                raise BadSource(f"there are more than the declared {most} records; declare a larger bound")
            for place in rows.places[rows.record_ptr[max(most - before, 0) : -1]].tolist():
                rejects.note(place=rows.place, number=place, reason=_BEYOND)
        writer.append(rows)
    totals = writer.finish()
    if source.declared.is_unattended or rejected < records:
        return totals, digest.hexdigest()
    if rejects.count:
        raise BadSource(
            f"no row is left, and {rejects.count} were set aside: {describe(rejects.tally)}; correct the rows, or the "
            "declarations about the source"
        )
    raise BadSource("the source holds no row, and a dataset needs at least one; check the source")


@contextmanager
def _noted(rejects: Rejects, staging: Staging) -> Iterator[None]:
    """Open the private report on bad rows, if rows are quarantined, and close it at the end of the context."""
    if isinstance(rejects, Quarantine):
        rejects.open(staging.path / NOTES)
    with closing(rejects):
        yield


@contextmanager
def _one_line_errors(folder: Path, rejects: Rejects) -> Iterator[None]:
    """Add the file's name to the message of a bad source, and the folder to the message of a disk failure."""
    try:
        yield
    except BadSource as error:
        raise BadSource(f"{rejects.file}: {error}") from None
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or "input or output error"
        raise Unavailable(
            f"ingest into {folder} stopped: {reason}; free disk space or correct the permissions, and continue with "
            "--resume"
        ) from error
