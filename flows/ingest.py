"""Ingest a file: rows in, an immutable snapshot of a dataset out.

The stage returns the snapshot's random id and nothing else: sizes and digests are private, so they stay in the
catalog, where the curator's commands read them.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.stages import Runner, directly, finish, in_flow, recorded_failures
from storage.catalog import Catalog, Entry
from storage.ingest import ingest
from storage.ledger import Ledger
from storage.snapshots import BLOCK_NNZ

watch_rows: ContextVar[Callable[[int, int], None] | None] = ContextVar("watch_rows", default=None)


def ingest_source(
    source: str,
    name: str,
    population: str | None = None,
    features: int | None = None,
    records_at_most: int | None = None,
    block_nnz: int | None = None,
    dtype: str | None = None,
) -> str:
    """Stream a source into a new snapshot and register it; return its id."""
    ledger = Ledger.open()
    report = ingest(
        source,
        name=name,
        home=ledger.home,
        engine=ledger.engine,
        population=population,
        n_features=features,
        records_at_most=records_at_most,
        block_nnz=BLOCK_NNZ if block_nnz is None else block_nnz,
        dtype=dtype,
        progress=watch_rows.get(),
    )
    return report.snapshot


@flow(name="ingest-dataset", persist_result=False, log_prints=False, validate_parameters=True)
def ingest_dataset(
    source: str,
    name: str,
    population: str | None = None,
    features: int | None = None,
    records_at_most: int | None = None,
    block_nnz: int | None = None,
    dtype: str | None = None,
) -> str | State[Any]:
    """Ingest a file as a new snapshot of a dataset; return the snapshot's id.

    Parameters
    ----------
    source, name : str
        The file, and the dataset's name.
    population : str, optional
        Whose budget pays for releases; the dataset's name by default.
    features : int, optional
        Declared columns; svmlight needs it.
    records_at_most : int, optional
        Public bound on the number of records.
    block_nnz : int, optional
        Stored values a block.
    dtype : str, optional
        Stored type; the source's by default.
    """

    def body(run: Runner) -> str:
        return run(ingest_source, source, name, population, features, records_at_most, block_nnz, dtype)

    return in_flow(body)


def run_ingest(
    source: str,
    *,
    name: str,
    direct: bool = False,
    watch: Callable[[int, int], None] | None = None,
    **declared: Any,
) -> dict[str, Any]:
    """Ingest from this process, as a Prefect flow or directly; return the curator's view of the snapshot."""
    token = watch_rows.set(watch)
    try:
        if direct:
            snapshot = directly(ingest_source, source, name, **declared)
        else:
            with recorded_failures():
                snapshot = finish(ingest_dataset(source, name, **declared, return_state=True))
    finally:
        watch_rows.reset(token)
    ledger = Ledger.open()
    catalog = Catalog(ledger.engine, ledger.home)
    return snapshot_facts(catalog, catalog.entry(snapshot))


def snapshot_facts(catalog: Catalog, entry: Entry) -> dict[str, Any]:
    """Return what the curator may see of a snapshot: sizes and digest are private."""
    manifest = catalog.open(entry).manifest
    return {
        "dataset": entry.name,
        "population": entry.population,
        "snapshot": entry.snapshot,
        "content_digest": entry.content_digest,
        "records": manifest.n_records,
        "rows": manifest.n_rows,
        "features": entry.n_features,
        "nnz": manifest.nnz,
        "blocks": manifest.n_blocks,
        "dtype": manifest.dtype,
        "records_at_most": entry.records_at_most,
        "path": str(catalog.folder(entry)),
        "created_at": entry.created_at,
    }
