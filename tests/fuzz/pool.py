"""Pool of processes that test inputs; a process that hangs, dies or exhausts memory affects no other input."""

import math
import multiprocessing as mp
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

SECONDS = 60.0
"""Seconds for one input, on a busy machine, before it counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Outcome of one input.

    Attributes
    ----------
    kind : str, "accepted", "refused", "partial" (files or rows were left), "hung" or "other" (anything else)
    detail : str, the message, or a description of the error
    """

    kind: str
    detail: str


type Judge = Callable[[int], Verdict]


@dataclass(kw_only=True)
class Worker:
    """A process that tests one input at a time."""

    process: BaseProcess
    pipe: Connection
    number: int = -1
    since: float = math.inf

    def give(self, number: int) -> None:
        """Send the number of an input to the worker."""
        self.number = number
        self.pipe.send(number)

    def answer(self) -> tuple[Verdict | None, bool]:
        """Return the worker's verdict, None if it has only started an input, and whether the worker is alive."""
        try:
            verdict, self.since = self.pipe.recv(), time.monotonic()
            return verdict, True
        except EOFError:
            self.process.join()
            return Verdict(kind="other", detail=f"its process died: {self.process.exitcode}"), False

    def stop(self) -> None:
        """Kill the worker's process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run[*Given](
    numbers: Sequence[int],
    judging: Callable[[*Given], Iterator[Judge]],
    given: tuple[*Given],
    *,
    workers: int,
    seconds: float = SECONDS,
) -> Iterator[tuple[int, Verdict]]:
    """Test inputs in separate processes; yield each number with its verdict.

    Parameters
    ----------
    numbers : sequence of int
    judging : callable
        A generator of one function, which tests an input by its number; called in each worker with `given`.
    given : tuple
    workers : int
    seconds : float
        Time limit of an input; the worker is then killed, and the input counts as hung.
    """
    left = iter(numbers)
    at_work = [_start(number, judging, given) for number in islice(left, workers)]
    try:
        while at_work:
            answered = wait([worker.pipe for worker in at_work], timeout=1.0)
            for place, worker in reversed(list(enumerate(at_work))):
                is_alive = False
                if worker.pipe in answered:
                    verdict, is_alive = worker.answer()
                    if verdict is None:
                        continue
                elif time.monotonic() - worker.since > seconds:
                    verdict = Verdict(kind="hung", detail=f"no end after {seconds:g} s")
                else:
                    continue
                yield worker.number, verdict
                number = next(left, None)
                if is_alive and number is not None:
                    worker.give(number)
                    continue
                worker.stop()
                at_work[place : place + 1] = [] if number is None else [_start(number, judging, given)]
    finally:
        for worker in at_work:
            worker.stop()


def _start[*Given](number: int, judging: Callable[[*Given], Iterator[Judge]], given: tuple[*Given]) -> Worker:
    context = mp.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_work, args=(other, judging, given), daemon=True)
    process.start()
    other.close()
    worker = Worker(process=process, pipe=pipe)
    worker.give(number)
    return worker


def _work[*Given](pipe: Connection, judging: Callable[[*Given], Iterator[Judge]], given: tuple[*Given]) -> None:
    """Test inputs whose numbers arrive through the pipe, until the parent ends this process."""
    for judge in judging(*given):
        pipe.send(None)
        while True:
            pipe.send(judge(pipe.recv()))
