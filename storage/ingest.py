"""Ingest a file as a new snapshot of a dataset: read, make canonical, write, move into place, register.

Examples
--------
::

    report = ingest("a9a.svm.gz", name="a9a", n_features=123, home=home, engine=engine)
    report.snapshot, report.content_digest
"""

import secrets
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from sqlalchemy import Engine

from storage.catalog import Catalog, check_name
from storage.durable import make_folder, move_folder
from storage.errors import BadSource, Conflict, Invalid, StorageError, Unavailable
from storage.formats.batch import Reader, make_canonical, stored_dtype
from storage.formats.sources import open_source
from storage.snapshots import BLOCK_NNZ, Manifest, SnapshotWriter, Totals, check_block_nnz

PRIVACY_UNIT = "row"  # each row is one individual, hence one record

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest made; curator-side, since sizes and digest are private."""

    dataset: str
    snapshot: str
    content_digest: str = field(repr=False)
    records: int = field(repr=False)
    rows: int = field(repr=False)
    features: int
    nnz: int = field(repr=False)
    blocks: int = field(repr=False)


def ingest(
    source: str | Path,
    *,
    name: str,
    home: Path,
    engine: Engine,
    population: str | None = None,
    n_features: int | None = None,
    records_at_most: int | None = None,
    block_nnz: int = BLOCK_NNZ,
    dtype: DTypeLike | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Stream a file into a new immutable snapshot and make it the current one of its name.

    Parameters
    ----------
    source : str or Path
        A scipy csr matrix (``.npz``) or svmlight text, plain or gzip (any other name).
    name : str
        Name of the dataset.
    home : Path
        Folder that holds everything; the snapshot lands in ``datasets/<name>/<snapshot>``.
    engine : sqlalchemy.Engine
        Database of ledger and catalog.
    population : str or None
        The people behind the rows, whose budget releases charge; None takes the dataset's name.
    n_features : int or None
        Declared number of columns; text formats need it.
    records_at_most : int or None
        Declared public bound on the number of records.
    block_nnz : int
        Stored values in a block, at most.
    dtype : numpy dtype or None
        Of the stored values; None keeps the source's.
    progress : callable or None
        Called with (bytes read, bytes in all).

    Raises
    ------
    Invalid
        If an argument is out of range.
    BadSource
        If the file breaks a rule of its format.
    Conflict
        If the name belongs to another population.
    Unavailable
        If the home folder cannot be written.

    Guarantees
    ----------
    Memory is bounded by one block, whatever the size of the source. The snapshot is visible whole and
    registered, or not at all.
    """
    population = check_name(name) if population is None else check_name(population)
    check_block_nnz(block_nnz)
    wanted = None if dtype is None else stored_dtype(dtype)
    if records_at_most is not None and records_at_most < 1:
        raise Invalid(f"records_at_most={records_at_most} must be at least 1; declare a public bound or none")
    catalog = Catalog(engine, home)
    ledger = catalog.admit(name=check_name(name), population=population)
    snapshot = secrets.token_hex(16)
    address = home / "datasets" / name / snapshot
    staged = address.with_name(f".{snapshot}.partial")
    try:
        with closing(open_source(Path(source), n_features=n_features)) as reader:
            stored = stored_dtype(reader.dtype) if wanted is None else wanted
            make_folder(address.parent)
            writer = SnapshotWriter(staged, n_features=reader.n_features, dtype=stored, block_nnz=block_nnz)
            totals = _copy_rows(reader, writer, dtype=stored, progress=progress)
        _check_totals(totals, records_at_most=records_at_most)
        manifest = Manifest(
            snapshot=snapshot,
            dataset=name,
            ledger=ledger,
            populations=[population],
            privacy_unit=PRIVACY_UNIT,
            n_features=reader.n_features,
            n_records=totals.n_records,
            n_rows=totals.n_rows,
            nnz=totals.nnz,
            n_blocks=totals.n_blocks,
            dtype=str(stored),
            content_digest=totals.content_digest,
            records_at_most=records_at_most,
            source=reader.format,
            code_version=version("dpca-pipeline"),
        )
        writer.describe(manifest)
        move_folder(staged, address)
    except BadSource as error:
        raise BadSource(f"{source}: {error}") from None
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or "input or output error"
        raise Unavailable(f"ingest into {address.parent} stopped: {reason}; make room or mend access") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    try:
        catalog.register(manifest, path=address)
    except Conflict:
        shutil.rmtree(address)
        raise
    return IngestReport(
        dataset=name,
        snapshot=snapshot,
        content_digest=totals.content_digest,
        records=totals.n_records,
        rows=totals.n_rows,
        features=manifest.n_features,
        nnz=totals.nnz,
        blocks=totals.n_blocks,
    )


def _copy_rows(reader: Reader, writer: SnapshotWriter, *, dtype: np.dtype[Any], progress: Progress | None) -> Totals:
    for batch in reader.batches():
        writer.append(make_canonical(batch, n_features=reader.n_features, dtype=dtype))
        if progress is not None:
            progress(reader.position, reader.size)
    return writer.finish()


def _check_totals(totals: Totals, *, records_at_most: int | None) -> None:
    if not totals.n_rows:
        raise BadSource("the source holds no row; a dataset needs at least one")
    if records_at_most is not None and totals.n_records > records_at_most:
        raise BadSource(f"there are more than the declared {records_at_most} records; declare a bound that holds")
