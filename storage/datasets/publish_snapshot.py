"""Complete the files of a written snapshot, move them into place and register them in the catalog."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.datasets.catalog import Catalog
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.manifest import MARKER, Manifest
from storage.datasets.open_source import OpenSource
from storage.datasets.snapshot_writer import SnapshotWriter, Totals
from storage.datasets.staging import Staging
from storage.errors import BadSource, Conflict
from storage.formats.registry import of_reader
from storage.formats.rejects import quarantine_notes

NOTES = ".rejected"
"""The file in a staging folder that holds the notes on bad rows."""


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
    """Write the declared arrays and the manifest of a snapshot whose rows are written.

    Parameters
    ----------
    writer : SnapshotWriter
        The writer of the rows.
    source : OpenSource
    totals : Totals
        Its result.
    rows_digest : str
        See `storage.datasets.content_digest`.
    options : IngestOptions
    quarantined : int
        Bad rows left out.
    snapshot, dataset, ledger, population : str
        Its id, and the names of what it belongs to.
    epoch : str or None
        The table that the first-seen numbers of the rows come from.
    owners : str or None
        The name of the key of the hashes of ids.

    Raises
    ------
    BadSource
        If the name of a feature cannot be stored.
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
    """Move a complete snapshot into place and register it; take it back if the catalog refuses it.

    With ``over`` it replaces that snapshot as the current one, or is refused.

    Raises
    ------
    Conflict
        If the catalog refuses it; see `Catalog.register`.
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
    """Return a schema as it is stored."""
    return np.frombuffer(json.dumps(facts, sort_keys=True).encode(), dtype=np.uint8)


def joined(names: Sequence[str]) -> NDArray[np.uint8]:
    """Return names of features as they are stored.

    Raises
    ------
    BadSource
        If one holds a line break.
    """
    if any("\n" in name for name in names):
        raise BadSource("a feature name holds a line break; names are stored one a line, so rename it")
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)
