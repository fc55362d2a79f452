"""The soak on a lying store believes nothing, and would notice a believer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.backends.s3 import ObjectPlace
from storage.datasets import snapshot_reader, snapshot_writer
from tests.crash.lying_store import lying_store
from tests.crash.soak_store import soak
from tests.s3 import Server


def _believe_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ObjectPlace, "_missing", lambda *_: [])


def _believe_chunks(patch: pytest.MonkeyPatch) -> None:
    for module in (snapshot_reader, snapshot_writer):
        patch.setattr(module, "checksum_of", lambda _: 0)


@pytest.mark.audit_only
@pytest.mark.parametrize(("lie", "blind"), [("lost_write", _believe_acknowledgements), ("swapped", _believe_chunks)])
def test_a_lie_is_noticed_or_the_soak_notices_who_believed_it(
    s3_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    blind: Callable[[pytest.MonkeyPatch], None],
) -> None:
    with lying_store(s3_server) as (proxy, server):
        report = soak(tmp_path, server, proxy, [lie], is_brief=True)
        assert (report.wrong, report.counts["lies"] > 0) == ([], True)
        blind(monkeypatch)
        believer = tmp_path / f"believer-of-{lie}"
        believer.mkdir()
        assert soak(believer, server, proxy, [lie], is_brief=True).wrong
