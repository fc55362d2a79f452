"""Ingest a file: rows in, an immutable snapshot of a dataset out."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.stages import Runner, directly, finish, in_flow, recorded_failures
from storage.datasets import ingest
from storage.ledger import Ledger

watch_rows: ContextVar[Callable[[int, int | None], None] | None] = ContextVar("watch_rows", default=None)


def ingest_source(
    source: str,
    name: str,
    population: str | None,
    features: int | None,
    records_at_most: int | None,
    block_nnz: int | None,
    dtype: str | None,
) -> dict[str, Any]:
    """Stream a source into a new snapshot and register it; return its curator-side facts."""
    report = ingest(
        source,
        name=name,
        population=population,
        ledger=Ledger.open(),
        n_features=features,
        records_at_most=records_at_most,
        block_nnz=block_nnz,
        dtype=dtype,
        progress=watch_rows.get(),
    )
    return asdict(report)
