"""Temporary home folders for benchmarks (with ledger, datasets and registry), and ingest of the rows of an input."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks.inputs import DENSE, Input
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace


@contextmanager
def own_home(home: Path) -> Iterator[Path]:
    """Make a folder the home of dpca while the context is open, and unset the variables for stores outside the home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(home))
        patch.setenv("DPCA_STATE_FOLDER", str(home / "state"))
        for elsewhere in ("DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
            patch.delenv(elsewhere, raising=False)
        yield home


@contextmanager
def own_ledger(home: Path) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder."""
    with own_home(home):
        opened = Workspace.open().ledger
        yield opened
        opened.engine.dispose()


def ingested(path: Path, declared: Input, ledger: Ledger, *, name: str | None = None) -> Dataset:
    """Ingest a file with the rows of an input, declare the facts of the input, and open the new snapshot."""
    name = name or declared.name
    ingest(
        path,
        name=name,
        home=ledger.home,
        engine=ledger.engine,
        options=IngestOptions(features=declared.n_features, density=declared.density),
    )
    catalog = Catalog(ledger.engine, ledger.home)
    return catalog.open(catalog.current(name))


def ingested_rows(
    rows: sparse.csr_array, declared: Input, ledger: Ledger, folder: Path, *, name: str | None = None
) -> Dataset:
    """Write rows to a temporary ``.npy`` file (dense rows) or ``.npz`` file (sparse rows), and ingest the file."""
    path = folder / ("rows.npy" if declared is DENSE else "rows.npz")
    if declared is DENSE:
        np.save(path, rows.toarray())
    else:
        sparse.save_npz(path, rows, compressed=False)
    snapshot = ingested(path, declared, ledger, name=name)
    path.unlink()
    return snapshot
