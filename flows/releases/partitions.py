"""Who hears how many partitions of a sum are done: whoever waits at the terminal, Prefect's display, and the log.

Both numbers are public.

>>> progress = summing()
>>> progress(1, 8)
"""

from collections.abc import Callable
from contextvars import copy_context

from flows.reports.activity import begin_step, tell_parts
from flows.reports.logs import log_event


def summing(show: Callable[[int, int], None] | None = None) -> Callable[[int, int], None]:
    """Return the progress callback of a sum, which also calls ``show``.

    A cluster calls it from threads of its own; each call runs in the context of the stage, as Prefect and the log want.
    """
    context = copy_context()

    def report(done: int, total: int) -> None:
        begin_step("summing partitions")
        tell_parts(done, total)
        if show is not None:
            show(done, total)
        if done == total:
            begin_step("adding noise, and what follows from the sum")
            log_event("summed", partitions=total)

    return lambda done, total: context.copy().run(report, done, total)
