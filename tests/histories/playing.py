"""Player of a history's plan: it runs the real code, and records every request and answer of every process."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpca.errors import BudgetExhausted, NotFound, StorageError, Unavailable
from dpca.registry.reader import Registry
from dpca.registry.roots import SIGNATURES
from dpca_tasks.errors import DpcaError
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release, promote_version
from flows.releases.streams import make_tick
from storage.datasets import snapshot_reader
from storage.ledger.ledger import Ledger
from storage.ledger.releases import remove_orphans
from storage.workspace import Workspace
from tests.crash.prices import mu_squared
from tests.crash.recount import query
from tests.crash.world import World
from tests.histories.objects import in_memory
from tests.histories.plans import Act, Fault, Plan
from tests.histories.scheduler import Process, Scheduler, Stuck
from tests.histories.surroundings import Seen, Surroundings
from tests.histories.violation import Violation
from tests.histories.worlds import POPULATION, SETTINGS, STREAM, Template, dump, enter, load, renew, request_of

ALIAS = "champion"
ATTEMPTS = 6
LATER = timedelta(days=90)
"""Final clock jump after the faults, by which any leftover file counts as an orphan despite earlier jumps back."""


@dataclass(kw_only=True)
class Call:
    """A request of a process, with its first and last step, and its answer.

    If the process dies, the request ends without an answer.
    """

    process: str
    what: str
    act: Any
    start: int
    end: int | None = None
    result: Any = None
    error: str = ""
    message: str = ""


@dataclass(kw_only=True)
class History:
    """Record of a played history.

    Attributes
    ----------
    calls : list of Call, the actions of processes
    reserves : list of Call, the reservations, with their run keys and costs
    restored : list of (step, run keys that the copy charges)
    counts : Counter of faults by kind
    killed_at : Counter of the points at which processes were killed
    wrong : list of Violation, found during the play
    closed : set of the releases that were closed at the end because their key was lost
    keys_went : bool, whether keys were lost, or replaced by those of an earlier step
    """

    plan: Plan
    seen: Seen
    scheduler: Scheduler
    calls: list[Call] = field(default_factory=list)
    reserves: list[Call] = field(default_factory=list)
    restored: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    killed_at: Counter[str] = field(default_factory=Counter)
    wrong: list[Violation] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    keys_went: bool = False


Plant = Callable[[], Any]
"""A factory of contexts in which the code has a planted fault."""


def play(plan: Plan, template: Template, world: World, *, plant: Plant | None = None) -> History:
    """Play a plan in a renewed world, and finish all releases in progress; return the record of the history.

    The world keeps its final state.
    """
    renew(template, world)
    enter(world, objects=plan.store == "objects")
    snapshot_reader._open_handles.cache_clear()  # close snapshots that an earlier history opened
    scheduler = Scheduler(seed=plan.seed, switching=plan.switching)
    recorded = partial(_recorded, world)
    surroundings = Surroundings(world.home.parent, seed=plan.seed, scheduler=scheduler, recorded=recorded)
    history = History(plan=plan, seen=surroundings.seen, scheduler=scheduler)
    with ExitStack() as stack:
        folder = world.home / "objects" if plan.store == "objects" else None
        stack.enter_context(in_memory(folder, watch=partial(_request, surroundings)))
        # set up the database engine once, outside all simulated processes, because its lock is a thread lock
        Workspace.open()
        stack.enter_context(surroundings.installed())
        stack.enter_context(_charges_recorded(history))
        if plant is not None:
            stack.enter_context(plant())
        Player(plan, world, surroundings, history).play()
        surroundings.keep(surroundings.root)
    return history


class Player:
    """Runs the processes of one history and applies its faults."""

    def __init__(self, plan: Plan, world: World, surroundings: Surroundings, history: History) -> None:
        self.plan, self.world, self.history = plan, world, history
        self.surroundings, self.scheduler = surroundings, surroundings.scheduler
        self._left: dict[str, list[Act]] = {}
        self._tried: list[Act] = []
        self._copy: tuple[Any, Path] | None = None
        self._is_calm, self._meddled = False, 0

    def play(self) -> None:
        """Play the whole plan, then stop the faults and finish all releases in progress."""
        for number, script in enumerate(self.plan.scripts):
            self._start(f"p{number}", list(script))
        for fault in self.plan.faults:
            self.scheduler.acts.setdefault(fault.step, partial(self._strike, fault))
        try:
            self.scheduler.run()
            self.scheduler.acts.clear()
            self.scheduler.acts_at.clear()
            self.surroundings.errors.clear()
            self._is_calm = True
            self.scheduler.start("last", self._finish)
            self.scheduler.run()
        except Stuck as error:
            self.history.wrong.append(Violation("processes end", str(error)))
            for process in self.scheduler.alive:
                self.scheduler.kill(process)

    # --- processes ---

    def _start(self, name: str, acts: list[Act]) -> None:
        self._left[name] = acts
        self.scheduler.start(name, partial(self._guarded, partial(self._run, name)))

    def _guarded(self, body: Callable[[], object]) -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 - any other error is a violation
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            at = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else ""
            self.history.wrong.append(Violation("errors are known", f"{type(error).__name__}: {error} ({at})"))

    def _run(self, name: str) -> None:
        left = self._left[name]
        while left:
            self._try(name, left[0])
            left.pop(0)

    def _try(self, name: str, act: Act) -> Call:
        """Perform an action, repeatedly while a resource is unavailable."""
        if act not in self._tried and act.kind in ("fit", "tick"):
            self._tried.append(act)
        for _ in range(ATTEMPTS):
            call = self._call(name, act)
            if call.error == "Refused" and "accept-restored" in call.message and not self._is_calm:
                for _ in range(ATTEMPTS):
                    if any(process.name == "operator" for process in self.scheduler.alive):
                        self.scheduler.wait("the operator")
            elif call.error != "Unavailable" or (self._is_calm and "the key of release" in call.message):
                break
        return call

    def _call(self, name: str, act: Act) -> Call:
        call = Call(process=name, what=act.kind, act=act, start=self.scheduler.step)
        self.history.calls.append(call)
        with _answered(call, self.scheduler, self.history):
            call.result = self._do(name, act)
        return call

    def _do(self, name: str, act: Act) -> Any:
        match act.kind:
            case "fit":
                self.surroundings.labels[name] = f"request {act.number}"
                report = make_release(directly, request_of(act.number, name=act.name), SETTINGS)
                return {key: report[key] for key in ("artifact", "digest", "release")}
            case "tick":
                self.surroundings.labels[name] = f"slot {act.number}"
                report = make_tick(directly, STREAM, SETTINGS, slot=f"2026-11-{act.number + 1:02}")
                return {key: report[key] for key in ("artifact", "digest", "release")}
            case "promote":
                return promote_version(f"{act.name}@{act.number}", ALIAS)
            case "read":
                found = Registry.open().verify(act.name)
                return {"artifact": str(found), "digest": found.digest}
            case "statement":
                return Workspace.read_only().ledger.statement(POPULATION).spent

    # --- faults ---

    def _strike(self, fault: Fault) -> None:
        running = self._latest()
        if fault.kind == "kill" and fault.what:
            self.scheduler.acts_at[fault.what] = partial(self._strike, replace(fault, what=""))
            return
        if fault.kind == "kill":
            if running is None:
                return
            self.history.killed_at[self.scheduler.trace[-1][1]] += 1
            self._kill(running, resumes=fault.resumes)
        elif fault.kind == "jump":
            self.surroundings.jump(timedelta(seconds=fault.by))
        elif fault.kind in ("disk", "answer"):
            self.surroundings.errors[fault.kind] += 1
        elif fault.kind == "copy":
            self._take_copy()
        elif fault.kind == "restore":
            if self._copy is None:
                return
            self._kill_all()
            self._restore(fault.what)
        else:
            self._kill_all()
            self._lose(fault.what)
        self.history.counts[fault.kind] += 1

    def _latest(self) -> Process | None:
        name = self.scheduler.trace[-1][0]
        return next((process for process in self.scheduler.alive if process.name == name), None)

    def _kill(self, process: Process, *, resumes: bool) -> None:
        self.scheduler.kill(process)
        for call in (*self.history.calls, *self.history.reserves):
            if call.process == process.name and call.end is None:
                call.end = self.scheduler.step
        if process.name == "operator":
            self.scheduler.start("operator", partial(self._guarded, self._open))
        elif resumes:
            self._start(f"{process.name}'", self._left[process.name])

    def _kill_all(self) -> None:
        self._meddled = self.scheduler.step
        for process in self.scheduler.alive:
            self._kill(process, resumes=True)

    def _take_copy(self) -> None:
        folder = self.surroundings.root / "home" / "scratch" / "copied-keys"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.world.home / "keys", folder)
        self._copy = dump(self.world), folder

    def _restore(self, what: str) -> None:
        assert self._copy is not None
        tables, keys = self._copy
        load(self.world, tables)
        if what == "database and keys":
            self.history.keys_went = True
            shutil.rmtree(self.world.home / "keys")
            shutil.copytree(keys, self.world.home / "keys")
        charged = query(self.world, "SELECT run_key FROM release WHERE state <> 'abandoned'")
        self.history.restored.append((self.scheduler.step, frozenset(key for (key,) in charged)))
        self.scheduler.start("operator", partial(self._guarded, self._open))

    def _lose(self, what: str) -> None:
        keys = self.world.home / "keys"
        if what == "keys":
            self.history.keys_went = True
            for path in keys.iterdir():
                if re.fullmatch("[0-9a-f]{32}", path.name):
                    path.unlink()
        elif what == "witness beside":
            (keys / "witness.json").unlink(missing_ok=True)
        else:
            shutil.rmtree(self.world.state, ignore_errors=True)
        self.scheduler.start("operator", partial(self._guarded, self._open))

    # --- after the faults ---

    def _open(self) -> bool:
        """Open the workspace as an operator does, and accept a restored ledger; return whether it succeeded."""
        for why in ("", "a simulated restore", "", "another try"):
            # the call's number makes the reason unique, so that the journal's entry belongs to this call
            accepted = f"{why}, call {len(self.history.calls)}" if why else None
            call = Call(process="operator", what="open", act=accepted, start=self.scheduler.step)
            self.history.calls.append(call)
            with _answered(call, self.scheduler, self.history):
                Workspace.open(accept_restored=accepted)
                call.result = True
            if call.result:
                return True
        return False

    def _finish(self) -> None:
        """Finish all releases in progress, as a new process does, after the faults have stopped."""
        self._guarded(self._finish_all)

    def _finish_all(self) -> None:
        if not self._open():
            self.history.wrong.append(Violation("locks open", self.history.calls[-1].message))
            return
        for act in self._tried:
            if act != self._tried[0] and self._is_answered(act):
                continue
            call = self._try("last", act)
            if call.error == "Unavailable" and "the key of release" in call.message:
                self._give_up(call)
            elif call.error not in ("", "BudgetExhausted") and not self._is_closed(call):
                self.history.wrong.append(Violation("requests finish", f"{act}: {call.error}: {call.message}"))
        self.surroundings.jump(LATER)
        Workspace.open().ledger.verify()
        remove_orphans(self.world.home / SIGNATURES)  # removes unused signatures, as `dpca doctor` does

    def _is_answered(self, act: Act) -> bool:
        """Return whether an action was answered since the last restore or loss of files."""
        return any(call.act == act and call.result and call.start >= self._meddled for call in self.history.calls)

    def _is_closed(self, call: Call) -> bool:
        return bool(self.history.closed) and call.error == "Refused" and "close" in call.message

    def _give_up(self, call: Call) -> None:
        """Close a release whose key is lost, as the error message advises."""
        release_id = call.message.partition("the key of release ")[2].split()[0]
        self.history.closed.add(release_id)
        workspace = Workspace.open()
        ticks = query(self.world, f"SELECT tick FROM tick WHERE release_id = '{release_id}'")
        if ticks:
            workspace.ledger.streams.close_tick(STREAM, ticks[0][0])
        else:
            workspace.ledger.close(release_id)


@contextmanager
def _answered(call: Call, scheduler: Scheduler, history: History) -> Iterator[None]:
    try:
        yield
    except (StorageError, DpcaError) as error:
        call.error, call.message = type(error).__name__, str(error)
        if isinstance(error, Unavailable):
            call.error = "Unavailable"
        elif isinstance(error, BudgetExhausted):
            call.error = "BudgetExhausted"
        elif isinstance(error, NotFound):
            call.error = "NotFound"
        if "\n" in call.message or not call.message:
            history.wrong.append(Violation("errors are one line", repr(call.message)))
    call.end = scheduler.step


@contextmanager
def _charges_recorded(history: History) -> Iterator[None]:
    """In this context, record each reservation requested from the ledger, and the answer."""
    original = Ledger.reserve

    def reserve(ledger: Ledger, population: str, *, run_key: str, **terms: Any) -> Any:
        running = history.scheduler.running
        requested = (run_key, mu_squared(terms["event"]))
        call = Call(
            process=running.name if running else "", what="reserve", act=requested, start=history.scheduler.step
        )
        history.reserves.append(call)
        try:
            grant = original(ledger, population, run_key=run_key, **terms)
        except Exception as error:
            call.error, call.end = type(error).__name__, history.scheduler.step
            raise
        call.result, call.end = grant, history.scheduler.step
        return grant

    with patch.object(Ledger, "reserve", reserve):
        yield


def _recorded(world: World, name: str) -> frozenset[int]:
    """Return the versions of a name that are currently committed in the database."""
    return frozenset(number for (number,) in query(world, f"SELECT version FROM version WHERE name = '{name}'"))


def _request(surroundings: Surroundings, what: str, path: str, payload: bytes) -> None:
    """Make a request to the object store a step of the scheduler, and report written pointer files."""
    if surroundings.running is None:
        return
    surroundings.reach(f"{what} {path}")
    if what == "put" and "/datasets/" not in path:
        surroundings.seen.written.append((path, payload))
    if what == "put" and path.startswith("registry/names/"):
        surroundings.pointer(Path(path).stem, payload)
