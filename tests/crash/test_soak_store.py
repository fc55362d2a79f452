"""The soak on a lying store believes nothing, and would notice a believer."""

from pathlib import Path

import pytest

from storage.backends.s3 import ObjectPlace
from storage.datasets import snapshot_reader
from tests.crash.lying_store import lying_store
from tests.crash.soak_store import soak
from tests.s3 import Server


@pytest.mark.audit_only
@pytest.mark.parametrize(
    ("lie", "blind"),
    [
        ("lost_write", lambda patch: patch.setattr(ObjectPlace, "_missing", lambda *_: [])),
        ("swapped", lambda patch: patch.setattr(snapshot_reader, "checksum_of", lambda _: 0)),
    ],
)
def test_a_lie_is_noticed_or_the_soak_notices_who_believed_it(
    s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str, blind: object
) -> None:
    assert callable(blind)
    with lying_store(s3_server) as (proxy, server):
        report = soak(tmp_path, server, proxy, [lie], is_brief=True)
        assert (report.wrong, report.counts["lies"] > 0) == ([], True)
        blind(monkeypatch)
        (tmp_path / "believer").mkdir()
        assert soak(tmp_path / "believer", server, proxy, [lie], is_brief=True).wrong
