"""Asking the peers' environment, with a small stand-in for it."""

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import asking
from benchmarks.peers.asking import PeerFailed, Peers, PeerTooSlow

LOCK = asking.HERE / "requirements.lock"
STAND_IN = """
import json, sys, time
import numpy as np
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "sleep":
        time.sleep(60)
    if request["method"] == "die":
        break
    np.save(request["output"], np.eye(request["k"]))
    print(json.dumps({"seconds": 0.5}), flush=True)
"""


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peers:
    (tmp_path / "serve.py").write_text(STAND_IN)
    monkeypatch.setattr(asking, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(asking, "HERE", tmp_path)
    return Peers(workers=1)


def test_an_answer_brings_directions_and_seconds(peers: Peers) -> None:
    with peers:
        for k in (2, 3):
            answer = peers.ask("any", k=k)
            assert np.array_equal(answer.directions, np.eye(k))
            assert answer.seconds == 0.5


def test_a_peer_that_does_not_finish_is_killed(peers: Peers) -> None:
    with peers, pytest.raises(PeerTooSlow, match=r"sleep did not finish within 0\.2 s"):
        peers.ask("sleep", limit=0.2)
    assert peers._process.returncode == -signal.SIGKILL


def test_a_peer_that_dies_is_no_slow_peer(peers: Peers) -> None:
    with peers, pytest.raises(PeerFailed):
        peers.ask("die", limit=30)


def test_the_lock_of_the_peers_names_no_host() -> None:
    lock = LOCK.read_text(encoding="utf-8")
    assert "://" not in lock
    assert "--index" not in lock
    entries = re.split(r"\n(?=\S)", lock.strip())
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []
