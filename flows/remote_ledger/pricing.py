"""Pricing of events for clients of a remote ledger, in a bounded number of processes with deadlines.

The price of an event is its epsilon. A plain Gaussian event is priced at once, in closed form. Pricing a sampled event
may take half a minute of processor time, so it runs in a separate process that is ended at a deadline. The service
computes one such price per client at a time; further requests of this client wait. If all processes are busy, the
client that was served longest ago is next. Then a computation that has run longer than `SHARE` seconds is stopped to
free a process. A computation longer than `MOMENT` continues at the lowest priority, so short computations stay fast
during an attack. Prices are cached.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from dpca.errors import Refused
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.accounting.prices import Known, Unpriced, known, known_prices_only, learn
from dpca_tasks.errors import DpcaError

if TYPE_CHECKING:  # not imported at run time, so that pricing processes start quickly
    from flows.remote_ledger.messages import Priced
    from storage.ledger.budgets import Budget

AT_ONCE = 8
"""Largest number of processes that compute prices."""
DEADLINE = 90.0
"""Largest number of seconds for waiting and computing a price together; a client waits 120 s for an answer."""
SHARE = 1.0
"""Seconds that a price may take while another client waits for a process."""
MOMENT = 0.3
"""Seconds of processor time after which the computation of a price continues at the lowest priority."""
_ATTEMPTS = 3
_POLL = 0.05


class Pricing:
    """The processes that compute prices for one service."""

    def __init__(self) -> None:
        self._turn = Condition()
        self._waiting: list[tuple[str, object]] = []
        self._running: set[str] = set()
        self._served: dict[str, float] = {}
        self._control: socket.socket | None = None
        self._end: Callable[[], object] = lambda: None

    def priced[T](self, act: Callable[[], T], *, client: str, budget: "Budget", requested: "Priced") -> T:
        """Run an operation that needs the price of an event; if the price is not cached, another process computes it.

        Parameters
        ----------
        act : callable
            The operation. It checks the bounds of the event before anything is priced, and changes nothing before the
            price is known.
        client : str
        budget : Budget
        requested : Priced

        Raises
        ------
        Refused
            When pricing takes longer than `DEADLINE`, or longer than `SHARE` while other clients wait.
        InvalidInput, Invalid, Refused
            As ``act`` raises them.
        """
        until = time.monotonic() + DEADLINE
        for _ in range(_ATTEMPTS):
            try:
                with known_prices_only():
                    return act()
            except Unpriced:
                pass
            with self._a_turn(client, until):
                learn(self._computed((budget.filter, _terms(budget), dict(requested.event), requested.delta), until))
        raise _too_long("too many other prices were computed at the same time")

    @contextmanager
    def _a_turn(self, client: str, until: float) -> Iterator[None]:
        """Wait until a process is free and no other price of this client is being computed."""
        ticket = (client, object())
        with self._turn:
            self._waiting.append(ticket)
            try:
                if not self._turn.wait_for(lambda: self._next() is ticket, until - time.monotonic()):
                    raise _too_long("other prices had priority")
                self._running.add(client)
            finally:
                self._waiting.remove(ticket)
                self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._running.remove(client)
                self._served[client] = time.monotonic()
                self._turn.notify_all()

    def _next(self) -> tuple[str, object] | None:
        """Return the waiting request that is next, if a process is free."""
        return self._first_in_line() if len(self._running) < AT_ONCE else None

    def _first_in_line(self) -> tuple[str, object] | None:
        """Return the first waiting request of the client that was served longest ago.

        Clients whose price is being computed are skipped.
        """
        line = [ticket for ticket in self._waiting if ticket[0] not in self._running]
        return min(line, key=lambda ticket: self._served.get(ticket[0], 0.0), default=None)

    def _computed(self, requested: tuple[Any, ...], until: float) -> Known:
        """Compute prices in a new process; repeat once in another process if the first one is killed."""
        for _ in range(2):
            with suppress(EOFError, ConnectionError):
                return self._computed_once(requested, until)
        raise _too_long("its process was killed")

    def _computed_once(self, requested: tuple[Any, ...], until: float) -> Known:
        """Compute prices in a new process; closing the connection ends that process."""
        began = time.monotonic()
        with self._forked() as link:
            link.send(requested)
            while not link.poll(_POLL):
                now = time.monotonic()
                if now > until:
                    raise _too_long(f"it takes longer than {DEADLINE:g} seconds")
                with self._turn:
                    is_wanted = len(self._running) >= AT_ONCE and self._first_in_line() is not None
                if now - began > SHARE and is_wanted:
                    raise _too_long("other requests wait")
            found = link.recv()
        if isinstance(found, DpcaError):
            raise found
        return found  # type: ignore[no-any-return]

    def _forked(self) -> Connection:
        """Return the connection to a new process, forked from a process that has already imported the modules."""
        ours, theirs = socket.socketpair()
        with theirs:
            for _ in range(2):  # the second attempt is for the case that the forking process was killed
                control = self.start()
                with suppress(ConnectionError):
                    socket.send_fds(control, [b"."], [theirs.fileno()])
                    return Connection(ours.detach())
                self.close(control)
        raise _too_long("no process can be started")

    def start(self) -> socket.socket:
        """Start the process from which pricing processes are forked, unless it runs; return its socket."""
        with self._turn:
            if self._control is None:
                ours, theirs = socket.socketpair()
                with theirs:
                    command = [sys.executable, "-P", "-m", "flows.remote_ledger.pricing", str(theirs.fileno())]
                    alone = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env={**os.environ, **alone}
                    )
                self._control, self._end = ours, weakref.finalize(self, _end, ours, process)
            return self._control

    def close(self, control: socket.socket | None = None) -> None:
        """End all processes; the next price starts new ones. Do nothing if another thread has replaced ``control``."""
        with self._turn:
            if self._control is not None and control in {None, self._control}:
                self._control = None
                self._end()


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    process.kill()
    process.wait()


def _terms(budget: "Budget") -> dict[str, Any]:
    replaced = budget.relation == "replace_one"
    return {name: getattr(budget, name) for name in ("epsilon", "delta", "failure_delta")} | {"replaced": replaced}


def _too_long(reason: str) -> Refused:
    return Refused(
        f"the price of this event was not computed, because {reason}; nothing was charged: try "
        "again later, or use fewer different steps on samples."
    )


def fork_for_each(control: socket.socket) -> None:
    """Fork a process for each received connection, until the service exits."""
    for module in ("dp_accounting.rdp", "dp_accounting.pld.privacy_loss_distribution"):
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        sent, (*connections,), _, _ = socket.recv_fds(control, 1, 1)
        if not sent:
            return
        if os.fork() == 0:
            try:
                control.close()  # if this copy stayed open, requests sent after the parent's death would get no error
                _compute(Connection(connections[0]))
            finally:
                os._exit(1)
        os.close(connections[0])


def _compute(link: Connection) -> None:
    """Compute the prices of one request in a forked process, which exits when the connection is closed."""
    kind, terms, event, delta = link.recv()

    def end_with_it() -> None:
        link.poll(None)  # returns only when the connection is closed, because no further data is sent
        os._exit(1)

    Thread(target=end_with_it, daemon=True).start()
    signal.signal(signal.SIGPROF, lambda *_: os.nice(19))
    signal.setitimer(signal.ITIMER_PROF, MOMENT)
    found: Known | DpcaError
    try:
        rules = build_filter(kind, **terms)
        rules.charge_after(rules.zero, event, delta=delta)
        found = known()
    except DpcaError as error:
        found = error
    link.send(found)


if __name__ == "__main__":
    fork_for_each(socket.socket(fileno=int(sys.argv[1])))
