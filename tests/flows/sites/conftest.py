"""Fixture: a federation of three sites and a helper, each a process on loopback, started once for all tests."""

from collections.abc import Iterator

import pytest

from flows.demo import Federation, make_federation, running
from tests.flows.sites.joint import documents

FEATURES, RECORDS = 12, 150


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        made = make_federation(
            folder,
            3,
            features=FEATURES,
            records=RECORDS,
            rows_of=documents,
            colluders=0,
            dropouts=1,
            attempts=2,
            timeout=20,
        )
    with running(made):
        yield made
