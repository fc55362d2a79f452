"""The pool: whatever becomes of a worker, every input gets a verdict of its own."""

import os
import time
from collections.abc import Iterator

from tests.fuzz.pool import Judge, Verdict, run


def fates() -> Iterator[Judge]:
    """Judge, but die of one input and hang at another."""

    def judge(number: int) -> Verdict:
        if number == 2:
            os._exit(1)
        if number == 4:
            time.sleep(600)
        return Verdict(kind="refused", detail=str(number))

    yield judge


def test_a_worker_that_hangs_or_dies_takes_one_input_with_it() -> None:
    verdicts = dict(run(range(7), fates, (), workers=2, seconds=2.0))
    kinds = {number: verdict.kind for number, verdict in verdicts.items()}
    assert kinds == {0: "refused", 1: "refused", 2: "other", 3: "refused", 4: "hung", 5: "refused", 6: "refused"}
    assert all(verdict.detail == str(number) for number, verdict in verdicts.items() if verdict.kind == "refused")
