"""Failover of the ledger's PostgreSQL primary under load, to a synchronous and an asynchronous standby.

With a synchronous standby, no acknowledged change is lost, and all releases in progress finish normally. With an
asynchronous one, charges may be lost. Then the ledger is locked before anything is written, and is never overspent.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.backends import atomic_files
from dpca.errors import Refused, Unavailable
from dpca.registry.pointers import Pointer
from storage.database.engine import transaction
from storage.workspace import Workspace
from tests.crash.prices import is_private, mu_squared
from tests.integration.processes import BIN, Failure, Processes, Service, check, wait_until
from tests.integration.spenders import DELTA, EVENT, PEOPLE, REFUSED, STEPS, TERMS, spend
from tests.postgres import Server, running_server

SPENDERS = 3
_COMMITTED = "commit.row_committed"
POINTS = ("reserve.row_committed", "begin.row_committed", "keep.row_committed", _COMMITTED)
"""Crash points at which the primary is killed, between the charge of a release and its version."""
_SENDING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
_IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' LIMIT 1"


def fail_over(root: Path, announce: Callable[[str], None]) -> None:
    """Kill a primary server that has a synchronous standby, then one that has an asynchronous standby."""
    for kind, scene in {"synchronous": _nothing_is_lost, "asynchronous": _a_loss_is_noticed}.items():
        folder = root / f"failover-{kind}"
        folder.mkdir(mode=0o700)
        with running_server() as primary, running_server(copied=primary) as standby:
            wait_until("the standby follows", partial(primary.run, "postgres", _SENDING))
            with _settings(folder, primary, standby) as environment:
                scene(Processes(folder), environment, primary, standby, announce)
    for kind, scene_at in {"synchronous": _resume_at, "asynchronous": _accept_and_resume_at}.items():
        _kill_at_each_point(root / f"failover-points-{kind}", scene_at, kind=kind, announce=announce)


def _kill_at_each_point(
    folder: Path, scene: Callable[["_Loss"], str], *, kind: str, announce: Callable[[str], None]
) -> None:
    """For each crash point between charge and version, kill the primary during a release and fail over.

    Each point gets a new standby; ``scene`` describes the failover.
    """
    folder.mkdir(mode=0o700)
    with ExitStack() as stack:
        primary, found = stack.enter_context(running_server()), []
        for number, point in enumerate(POINTS):
            standby = stack.enter_context(running_server(copied=primary))
            wait_until("the standby follows", partial(primary.run, "postgres", _SENDING))
            with _settings(folder, primary, standby):
                loss = _Loss(primary=primary, standby=standby, run=f"8-{number}", point=point)
                found.append(f"{point}: {scene(loss)}")
            primary.stop()
            primary = standby
    announce(f"PostgreSQL killed at {len(POINTS)} points of a release, its {kind} standby promoted: {'; '.join(found)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """A release during which the primary server is killed at the crash point ``point``."""

    primary: Server
    standby: Server
    run: str
    point: str
    reported: list[dict[str, Any]] = field(default_factory=list)

    def notify(self, what: str, **facts: Any) -> None:
        """Record a change that the ledger acknowledged."""
        self.reported.append({"what": what, **facts})

    def answers(self) -> dict[int, set[str]]:
        """Return the digests of all answers that the ledger acknowledged, by step."""
        found: dict[int, set[str]] = {}
        for entry in self.reported:
            if entry["what"] == "kept":
                found.setdefault(entry["step"], set()).add(entry["digest"])
        return found

    def lose(self) -> None:
        """Make the release, and kill the primary at the crash point."""
        left = [self.point]

        def kill(reached: str) -> None:
            if reached in left:
                left.clear()
                self.primary.kill()

        atomic_files.hook = kill
        try:
            spend(Workspace.open(), self.run, self.notify)
        except Unavailable:
            pass
        finally:
            atomic_files.hook = None
        check(not left, f"the release did not reach {self.point}")

    def finish(self, before: Counter[str]) -> str:
        """Repeat the request, and count the results of both attempts."""
        spend(Workspace.open(), self.run, self.notify)
        after = _count(self.standby)
        made = after - before
        # the standby has no answers of a committed release, and they are never requested again
        if self.point == _COMMITTED and "answers" not in made:
            made["answers"] = STEPS
        check(made == _ONE, f"{self.point}: one release made {dict(made)} of {dict(_ONE)}")
        check(all(len(digests) == 1 for digests in self.answers().values()), f"{self.point}: a step has two answers")
        workspace = Workspace.open()
        workspace.ledger.verify()
        _check_spent(workspace, after["releases"])
        _check_versions(workspace, self.reported)
        return ", ".join(f"{count} to {after[what]} {what}" for what, count in before.items())


def _resume_at(loss: _Loss) -> str:
    """Fail over to a standby that has every acknowledged change, and resume the release there."""
    loss.primary.run("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
    wait_until("the standby is synchronous", lambda: loss.primary.run("postgres", _IN_STEP))
    before = _count(loss.primary)
    loss.lose()
    loss.standby.promote()
    loss.standby.run("postgres", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    charged = {entry["release"] for entry in loss.reported if entry["what"] == "charged"}
    known = loss.standby.run("postgres", f"SELECT count(*) FROM release WHERE run_key = '{loss.run}'")
    check(known >= len(charged), f"{loss.point}: an acknowledged charge was lost")
    return loss.finish(before)


def _accept_and_resume_at(loss: _Loss) -> str:
    """Fail over to a standby that was cut off before the release: the ledger must be locked until accepted.

    No noised answer may be forgotten.
    """
    _cut_off(loss.primary, loss.standby)
    before = _count(loss.primary)
    loss.lose()
    loss.standby.promote()
    noised = bool(loss.answers())
    if any(entry["what"] == "charged" for entry in loss.reported):
        _must_be_locked(lambda: spend(Workspace.open(), loss.run, loss.notify))
        accepted = Workspace.open(accept_restored="the standby lacked what was acknowledged")
        check(len(accepted.recharged) >= noised, f"{loss.point}: answers left, and were not charged again")
    result = loss.finish(before)
    loss.primary.start()  # the old primary is back, accepts writes too, and is the first server in the address
    _must_be_locked(Workspace.open)
    return result


def _must_be_locked(attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except Refused as error:
        check("counts less than was spent" in str(error), f"said: {error}")
    else:
        raise Failure("a ledger without an acknowledged charge was opened or spent from, and must be locked")


def _cut_off(primary: Server, standby: Server) -> None:
    """Wait until the standby has all changes of the primary, then disconnect the standby."""
    position = primary.run("postgres", "SELECT pg_current_wal_lsn()")
    caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
    wait_until("the standby catches up", lambda: standby.run("postgres", caught_up))
    standby.run("postgres", "ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'", "SELECT pg_reload_conf()")
    wait_until("the standby is cut off", lambda: not primary.run("postgres", _SENDING))


_ONE = Counter({"releases": 1, "charges": 1, "answers": STEPS, "versions": 1})


def _count(server: Server) -> Counter[str]:
    """Return the numbers of releases, charges, step answers and versions in a server's database."""
    statements = {
        "releases": "SELECT count(*) FROM release WHERE state <> 'abandoned'",
        "charges": "SELECT count(*) FROM event WHERE name = 'release_reserved'",
        "answers": "SELECT count(*) FROM step",
        "versions": "SELECT count(*) FROM version",
    }
    return Counter({what: int(server.run("postgres", statement)) for what, statement in statements.items()})


@contextmanager
def _settings(folder: Path, primary: Server, standby: Server) -> Iterator[Mapping[str, str]]:
    """Return settings whose database address lists both servers; the one that accepts writes is used."""
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, standby))
    environment = {
        "DPCA_HOME": str(folder / "home"),
        "DPCA_STATE_FOLDER": str(folder / "state"),
        "DPCA_DATABASE_URL": f"postgresql+psycopg://dpca@/postgres?{hosts}&target_session_attrs=read-write",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        Workspace.open().ledger.open_budget(PEOPLE, **TERMS)  # type: ignore[arg-type]
        yield environment


def _nothing_is_lost(
    processes: Processes,
    environment: Mapping[str, str],
    primary: Server,
    standby: Server,
    announce: Callable[[str], None],
) -> None:
    """Kill the primary under load: the processes continue at the synchronous standby, and a killed one is resumed."""
    primary.run("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
    wait_until("the standby is synchronous", lambda: primary.run("postgres", _IN_STEP))
    spenders = _start(processes, environment)
    wait_until("all of them publish", lambda: _each(processes, "published", 5))
    before = len(_shown(processes.root, "charged"))
    primary.kill()
    wait_until("all of them notice", lambda: _each(processes, "lost", 1))
    spenders[0].kill()
    standby.promote()
    done = Counter(entry["by"] for entry in _shown(processes.root, "published"))
    wait_until("the others go on", lambda: _each(processes, "published", max(done.values()) + 2, of=range(1, SPENDERS)))
    (processes.root / "stop").touch()
    for spender in spenders[1:]:
        check(spender.ending() == 0, f"{spender.name} ended with an error: {spender.log.read_text()[-400:]}")
    _check_record(processes.root)
    lines = {entry["line"] for entry in _shown(processes.root, "lost")}
    check(all("run the same request again" in line and "\n" not in line for line in lines), f"said: {lines}")
    after = len(_shown(processes.root, "charged"))
    announce(
        f"PostgreSQL killed after {before} acknowledged charges, its standby promoted: none of {after} lost or doubled"
    )
    _nothing_is_acknowledged_alone(processes, environment, standby, announce)


def _nothing_is_acknowledged_alone(
    processes: Processes, environment: Mapping[str, str], alone: Server, announce: Callable[[str], None]
) -> None:
    """Cancel commits that wait for an absent synchronous standby: no charge may be acknowledged."""
    alone.run("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
    (processes.root / "stop").unlink()
    reported = len(_shown(processes.root))
    spender = _spender(processes, environment, SPENDERS)
    for _ in range(2):
        waiting = wait_until("a commit waits for the standby", lambda: alone.run("postgres", _WAITING))
        alone.run("postgres", f"SELECT pg_cancel_backend({waiting})")
    entries = wait_until("the spender is told", lambda: _shown(processes.root)[reported:])
    spender.kill()
    check({entry["what"] for entry in entries} == {"lost"}, f"acknowledged without the standby: {entries}")
    check(all("a failover may lose it" in entry["line"] for entry in entries), f"said: {entries}")
    announce("without its standby the primary acknowledges nothing")


def _a_loss_is_noticed(
    processes: Processes,
    environment: Mapping[str, str],
    primary: Server,
    standby: Server,
    announce: Callable[[str], None],
) -> None:
    """Cut an asynchronous standby off, charge once more, and fail over: the ledger must be locked."""
    entries: list[dict[str, Any]] = []

    def notify(what: str, **facts: Any) -> None:
        entries.append({"what": what, **facts})

    workspace = Workspace.open()
    spend(workspace, "9-0", notify)
    _cut_off(primary, standby)
    spend(workspace, "9-1", notify)
    primary.kill()
    standby.promote()
    rows = standby.run("postgres", "SELECT count(*) FROM event")
    for attempt in (lambda: spend(workspace, "9-2", notify), Workspace.open, Workspace.read_only):
        _must_be_locked(attempt)
    check(standby.run("postgres", "SELECT count(*) FROM event") == rows, "a locked ledger was written")
    spender = _spender(processes, environment, 0)
    check(spender.ending() == REFUSED, f"a spender ended otherwise than refused: {spender.log.read_text()[-400:]}")
    shown = processes.run(BIN / "dpca", "budget", "show", PEOPLE, environment=environment)
    check(shown.returncode == 1 and shown.stderr.count("\n") <= 2, f"dpca said: {shown.stderr}")
    accepted = Workspace.open(accept_restored="the standby lacked what was acknowledged")
    check(len(accepted.recharged) == 1, f"{accepted.recharged} was charged again")
    _check_spent(accepted, sum(entry["what"] == "charged" for entry in entries))
    _check_versions(accepted, entries)
    spend(Workspace.open(), "9-3", notify)
    _check_versions(Workspace.open(), entries)
    announce("an asynchronous standby lacked a charge: the ledger was locked, and charged again when it was accepted")


def _check_record(folder: Path) -> None:
    """Finish all releases in progress, and compare the ledger with everything that was acknowledged."""
    entries = _shown(folder)
    runs = {entry["run"] for entry in entries if "run" in entry}

    def notify(what: str, **facts: Any) -> None:
        entries.append({"what": what, **facts})

    for run in sorted(runs):
        spend(Workspace.open(), run, notify)
    workspace = Workspace.open()
    workspace.ledger.verify()
    releases = {row.run_key: row for row in workspace.ledger.statement(PEOPLE).releases}
    for entry in entries:
        if entry["what"] in ("charged", "begun"):
            check(releases[entry["run"]].id == entry["release"], f"the ledger lacks {entry}")
    check(all(releases[run].state == "committed" for run in runs), "a release that had begun was not finished")
    check(len(set(releases) - runs) <= SPENDERS, "the ledger contains more charges than were requested")
    with transaction(workspace.ledger.engine) as connection:
        names = Counter(connection.execute(sa.text("SELECT name FROM event")).scalars())
    check(names["release_reserved"] == len(releases), "a release was charged twice")
    check(not names["step_conflict"], "a step was answered twice")
    for run in runs:
        for step in range(STEPS):
            kept = {each["digest"] for each in entries if (each["what"], each.get("run")) == ("kept", run)
                    and each["step"] == step}  # fmt: skip
            check(len(kept) <= 1, f"step {step} of {run} has {len(kept)} answers")
    _check_spent(workspace, len(runs))
    _check_versions(workspace, entries)


def _check_spent(workspace: Workspace, releases: int) -> None:
    spent = workspace.ledger.statement(PEOPLE).spent
    known = is_private(releases * mu_squared(EVENT), epsilon=spent, delta=DELTA)
    check(known, f"the ledger says {spent}, and {releases} releases spent more")


def _check_versions(workspace: Workspace, entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        if entry["what"] == "published":
            shown = Pointer.read(workspace.store, entry["name"]).versions
            check(shown.get(entry["version"]) == entry["digest"], f"{entry['name']}@{entry['version']} was changed")


def _start(processes: Processes, environment: Mapping[str, str]) -> list[Service]:
    return [_spender(processes, environment, number) for number in range(SPENDERS)]


def _spender(processes: Processes, environment: Mapping[str, str], number: int) -> Service:
    command = (BIN / "python", "-m", "tests.integration.spenders", str(number), processes.root)
    return processes.service(f"spender-{number}", *command, environment=environment, ready=lambda _: True)


def _shown(folder: Path, what: str | None = None) -> list[dict[str, Any]]:
    """Return the complete lines that the spender processes wrote, optionally of one kind."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().split("\n")[:-1]]
    return [entry for entry in map(json.loads, lines) if what in (None, entry["what"])]


def _each(processes: Processes, what: str, most: int, *, of: range = range(SPENDERS)) -> bool:
    seen = Counter(entry["by"] for entry in _shown(processes.root, what))
    return all(seen[str(number)] >= most for number in of)
