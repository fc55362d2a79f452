"""Ingest files as a new snapshot of a dataset: read, make canonical, write, move into place, register.

Examples
--------
::

    report = ingest("a9a.svm.gz", name="a9a", n_features=123, home=home, engine=engine)
    report.snapshot, report.content_digest
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sqlalchemy import Engine

from storage.backends.base import Place
from storage.datasets.catalog import Catalog, check_name
from storage.datasets.grouping import Grouping
from storage.datasets.manifest import MARKER, Manifest
from storage.datasets.privacy_units import Units, declared_rows
from storage.datasets.snapshot_writer import BLOCK_NNZ, SnapshotWriter, Totals, check_block_nnz
from storage.datasets.staging import begin, scratch_folder
from storage.errors import BadSource, Conflict, Invalid, StorageError, Unavailable
from storage.formats.batch import Reader, RowBatch, make_canonical, stored_dtype
from storage.formats.declared import Declared, read_scale
from storage.formats.files import LocalFile, SourceFile, find_files
from storage.formats.rejects import Quarantine, Rejects, describe, quarantine_notes
from storage.formats.sources import FilesReader, infer_items

ROW_UNIT = "row"  # each row is one individual, hence one record
ON_ERROR = ("fail", "quarantine")
DENSITIES = {"npy": 1.0}  # of the formats that write every entry; others may or may not

_NOTES = ".rejected"

type Progress = Callable[[str, int, int], None]


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
    quarantined: int = field(repr=False)
    lookalikes: int = field(repr=False)
    source_bytes: int = field(repr=False)


def ingest(
    source: str | Path | Sequence[str | Path],
    *,
    name: str,
    home: Path,
    engine: Engine,
    place: Place | None = None,
    population: str | None = None,
    n_features: int | None = None,
    feature_names: str | Path | None = None,
    public_items: bool = False,
    format: str | None = None,  # noqa: A002, the word users know
    columns: Mapping[str, str] | None = None,
    unit_column: str | None = None,
    header: bool | None = None,
    units: str | Path | None = None,
    max_rows_per_unit: int | None = None,
    scale: str | Path | None = None,
    records_at_most: int | None = None,
    density: float | None = None,
    block_nnz: int = BLOCK_NNZ,
    dtype: DTypeLike | None = None,
    on_error: str = "fail",
    resume: bool = False,
    allow_shared_rows: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Stream files into a new immutable snapshot and make it the current one of its name.

    Parameters
    ----------
    source : str, Path, or a sequence of them
        Files, folders (the files in it, by name) and patterns, read in this order.
    name : str
        Name of the dataset.
    home : Path
        Local folder in which the snapshot is made; it lands in ``datasets/<name>/<snapshot>`` of `place`.
    engine : sqlalchemy.Engine
        Database of ledger and catalog.
    place : Place or None
        Where the snapshot appears; None is the home folder.
    population : str or None
        The people behind the rows, whose budget releases charge; None takes the dataset's name.
    n_features : int or None
        Declared number of columns; text and triplets need it, or names.
    feature_names : str, Path or None
        File of the names of the columns, one a line: also the dictionary of column ids in triplets.
    public_items : bool
        The user states that the list of column ids is public, so it may be taken from the triplets.
    format : str or None
        One of `storage.formats.declared.FORMATS`; None goes by the names of the files.
    columns : mapping or None
        Names of the columns of triplets by role: row, column, value.
    unit_column : str or None
        Column of a table that says whose row it is.
    header : bool or None
        Whether CSV and TSV begin with the names of the columns; None refuses a first line that looks like a row.
    units : str, Path or None
        .npy file of integers or text: whose row each is, in the order of the source.
    max_rows_per_unit : int or None
        Rows kept of each individual: the first in the order of the source (of triplets: of the row ids).
    scale : str, Path or None
        File of public positive factors of the columns, one a line; values are multiplied by them.
    records_at_most : int or None
        Declared public bound on the number of records.
    density : float or None
        Declared public share of entries that are not 0; it chooses between ways to compute the same bits. None goes
        by the format: NumPy's .npy is full.
    block_nnz : int
        Stored values in a block, at most.
    dtype : numpy dtype or None
        Of the stored values; None keeps the source's.
    on_error : str
        "fail" at the first bad row, or "quarantine": leave bad rows out and note where they stood in
        ``datasets/<name>/<snapshot>.rejected.csv``.
    resume : bool
        Go on from the last whole block of a killed ingest of the same request, if there is one.
    allow_shared_rows : bool
        Insist on rows that another population holds already.
    progress : callable or None
        Called with (phase, done, in all): "reading", and "grouping" where rows are brought together on disk, in
        bytes of the source.

    Raises
    ------
    Invalid
        If an argument is out of range.
    BadSource
        If a file breaks a rule of its format.
    Conflict
        If the name belongs to another population, another one holds the same rows, or there is nothing to resume.
    Unavailable
        If the home folder or the place cannot be written.

    Guarantees
    ----------
    Memory is bounded by a constant and the widest record, whatever the size of the source. The snapshot is
    visible whole and registered, or not at all.
    """
    population = check_name(name) if population is None else check_name(population)
    check_block_nnz(block_nnz)
    wanted = None if dtype is None else stored_dtype(dtype)
    for what, bound in (("records_at_most", records_at_most), ("max_rows_per_unit", max_rows_per_unit)):
        if bound is not None and bound < 1:
            raise Invalid(f"{what}={bound} must be at least 1; declare a public bound or none")
    if density is not None and not 0 <= density <= 1:
        raise Invalid(f"density={density} must lie in 0..1; declare a share of entries, or none")
    if on_error not in ON_ERROR:
        raise Invalid(f"on_error={on_error!r} is not one of {', '.join(ON_ERROR)}; choose one of them")
    if unit_column is not None and units is not None:
        raise Invalid("units come from a column or from a file, not both; give one of them")
    if max_rows_per_unit is not None and unit_column is None and units is None:
        raise Invalid("max_rows_per_unit needs to know whose row each is; give a unit column or unit ids")
    if public_items and feature_names is not None:
        raise Invalid("items are listed by a file of feature names or taken from the rows, not both; give one")
    declared = Declared.of(
        n_features=n_features,
        feature_names=None if feature_names is None else Path(feature_names),
        format=format,
        columns=columns,
        unit_column=unit_column,
        header=header,
    )
    catalog = Catalog(engine, home, place)
    ledger = catalog.admit(name=check_name(name), population=population)
    folder = home / "datasets" / name

    def discard(snapshot: str) -> None:
        catalog.place.remove(f"datasets/{name}/{snapshot}", marker=MARKER)

    rejects = Quarantine() if on_error == "quarantine" else Rejects()
    with ExitStack() as stack:
        stack.enter_context(_one_line_errors(folder, rejects))
        sources = [source] if isinstance(source, str | Path) else list(source)
        rejects.file = ", ".join(map(str, sources))
        files = find_files(sources)
        if public_items:
            declared = replace(declared, names=infer_items(files, declared))
        reader = stack.enter_context(closing(FilesReader(files, declared, rejects)))
        rejects.names = reader.names
        owners = None if units is None else Units(Path(units), reader=reader)
        factors = None if scale is None else read_scale(scale, n_features=reader.n_features)
        stored = _stored_dtype(reader.dtype, scaled=factors is not None) if wanted is None else wanted
        described = [*files, *([] if units is None else [LocalFile(Path(units))])]
        request = {
            "files": [_fingerprint(file) for file in described],
            "declared": {name: value for name, value in asdict(declared).items() if (name, value) != ("header", None)},
            "rows": [max_rows_per_unit, on_error, str(stored), block_nnz],
            "scale": None if factors is None else factors.tolist(),
        }
        staging = stack.enter_context(
            begin(folder, request=request, resume=resume, is_registered=catalog.has, discard=discard)
        )
        if isinstance(rejects, Quarantine):
            rejects.open(staging.path / _NOTES)
            stack.callback(rejects.close)
        writer = SnapshotWriter(
            staging.path,
            n_features=reader.n_features,
            dtype=stored,
            block_nnz=block_nnz,
            written=staging.extents() if staging.resumed else (),
            on_block=staging.block_written,
        )
        batches = _watched(reader.batches(rejects), "reading", lambda: reader.position, reader.size, progress)
        if owners is not None:
            batches = owners.attach(batches)
        lookalikes = 0
        if reader.scattered or owners is not None or unit_column is not None:
            scratch = stack.enter_context(scratch_folder(home))
            grouping = stack.enter_context(Grouping(scratch, max_rows_per_unit=max_rows_per_unit))
            _gather(batches, grouping, reader, owners, dtype=stored, rejects=rejects)
            lookalikes = grouping.lookalikes()
            batches = _watched(
                grouping.batches(), "grouping", lambda: int(grouping.done * reader.size), reader.size, progress
            )
        records = 0
        for batch in batches:
            rows = make_canonical(batch, n_features=reader.n_features, dtype=stored, rejects=rejects, scale=factors)
            records += len(rows.record_ptr) - 1
            if records_at_most is not None and records > records_at_most:
                raise BadSource(
                    f"there are more than the declared {records_at_most} records; declare a bound that holds"
                )
            writer.append(rows)
        totals = writer.finish()
        rejects.close()
        _check_totals(totals, rejects)
        names = None if reader.names is None and declared.names is None else declared.names or reader.names
        manifest = Manifest(
            snapshot=staging.snapshot,
            dataset=name,
            ledger=ledger,
            populations=[population],
            privacy_unit=_privacy_unit(unit_column, units),
            n_features=reader.n_features,
            n_records=totals.n_records,
            n_rows=totals.n_rows,
            nnz=totals.nnz,
            n_blocks=totals.n_blocks,
            dtype=str(stored),
            content_digest=totals.content_digest,
            records_at_most=records_at_most,
            density=DENSITIES.get(reader.format) if density is None else density,
            source=reader.format,
            code_version=version("dpca-pipeline"),
            max_rows_per_unit=max_rows_per_unit,
            feature_names=None if names is None else writer.declare("feature_names", _joined(names)),
            scale=None if factors is None else writer.declare("scale", factors),
            quarantined=rejects.count,
        )
        writer.describe(manifest)
        path = f"datasets/{name}/{staging.snapshot}"
        notes = quarantine_notes(home / path)
        if isinstance(rejects, Quarantine):
            (staging.path / _NOTES).rename(notes)
        catalog.place.publish(staging.path, path, marker=MARKER)
        try:
            catalog.register(manifest, path=path, allow_shared_rows=allow_shared_rows)
        except Conflict:
            discard(staging.snapshot)
            notes.unlink(missing_ok=True)
            raise
        staging.settle(home / path)
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
        lookalikes=lookalikes,
        source_bytes=reader.size,
    )


def _watched(
    batches: Iterator[RowBatch], phase: str, position: Callable[[], int], size: int, progress: Progress | None
) -> Iterator[RowBatch]:
    for batch in batches:
        yield batch
        if progress is not None:
            progress(phase, position(), size)


def _gather(
    batches: Iterator[RowBatch],
    grouping: Grouping,
    reader: Reader,
    owners: Units | None,
    *,
    dtype: np.dtype[Any],
    rejects: Rejects,
) -> None:
    """Check every entry where its line is still known, and hand it over to be brought together."""
    checked = np.dtype(np.float64 if dtype.kind == "f" else np.int64)
    for batch in batches:
        grouping.add(make_canonical(batch, n_features=reader.n_features, dtype=checked, rejects=rejects))
    if reader.scattered and reader.n_rows is not None:
        every = declared_rows(reader.n_rows)
        for batch in every if owners is None else owners.attach(every):
            grouping.add(batch)


def _stored_dtype(dtype: np.dtype[Any], *, scaled: bool) -> np.dtype[Any]:
    return np.dtype(np.float64) if scaled and dtype.kind != "f" else stored_dtype(dtype)


def _privacy_unit(unit_column: str | None, units: str | Path | None) -> str:
    if unit_column is not None:
        return f"column {unit_column}"
    return ROW_UNIT if units is None else "unit ids"


def _joined(names: Sequence[str]) -> NDArray[np.uint8]:
    if any("\n" in name for name in names):
        raise BadSource("a feature name holds a line break; names stand one a line, so rename it")
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def _fingerprint(file: SourceFile) -> tuple[str, int, str]:
    """Say where a file lies, and which version of it."""
    return str(file.path.absolute()) if isinstance(file, LocalFile) else file.address, *file.version()


@contextmanager
def _one_line_errors(folder: Path, rejects: Rejects) -> Iterator[None]:
    """Say which file a bad source is, and that the home folder cannot be written."""
    try:
        yield
    except BadSource as error:
        raise BadSource(f"{rejects.file}: {error}") from None
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or "input or output error"
        raise Unavailable(
            f"ingest into {folder} stopped: {reason}; make room or mend access, and go on with --resume"
        ) from error


def _check_totals(totals: Totals, rejects: Rejects) -> None:
    if not totals.n_rows and rejects.count:
        raise BadSource(
            f"no row is left, and {rejects.count} were set aside: {describe(rejects.tally)}; "
            "correct them, or what is declared about the source"
        )
    if not totals.n_rows:
        raise BadSource("the source holds no row; a dataset needs at least one")
