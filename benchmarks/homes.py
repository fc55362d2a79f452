"""A home of the benchmark's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.ledger import Ledger


@contextmanager
def own_home(home: Path) -> Iterator[Path]:
    """Point to a home of the benchmark's own, with everything in it, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(home))
        for elsewhere in ("DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
            patch.delenv(elsewhere, raising=False)
        yield home


@contextmanager
def own_ledger(home: Path) -> Iterator[Ledger]:
    """Open a ledger in a home of its own."""
    with own_home(home):
        opened = Ledger.open()
        yield opened
        opened.engine.dispose()
