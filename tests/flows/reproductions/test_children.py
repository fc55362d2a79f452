"""A child answers, states its errors, is ended after its time, and is started again."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from flows.reproductions.children import Child, Failed, OutOfTime

METHODS = """
import sys
from flows.reproductions.peers.serving import rows_of, serve

def endless(request):
    while True:
        pass

def exits(request):
    sys.exit(3)

serve({"rows": lambda request: rows_of(request["rows"]).toarray(), "wrong": lambda request: 1 / 0, "endless": endless,
       "exits": exits})
"""


def test_a_child_answers_refuses_is_ended_and_starts_again(tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.npz")
    sparse.save_npz(rows, sparse.csr_array(np.eye(2, 3)))
    with Child([sys.executable, "-c", METHODS]) as child:
        with pytest.raises(Failed, match="ZeroDivisionError"):
            child.ask(seconds=60, method="wrong", rows=rows)
        with pytest.raises(OutOfTime, match=r"0\.05 s"):
            child.ask(seconds=0.05, method="endless", rows=rows)
        answer = child.ask(seconds=60, method="rows", rows=rows)
        assert answer.directions.tolist() == np.eye(2, 3).tolist()
        assert answer.seconds >= 0
        with pytest.raises(Failed, match="status 3"):
            child.ask(seconds=60, method="exits", rows=rows)
